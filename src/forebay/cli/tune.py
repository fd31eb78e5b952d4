"""`forebay tune`: the best settings on a training span, judged on what came after."""

from typing import Annotated

import typer

from forebay.cli import lab_options as options
from forebay.cli import lab_output
from forebay.cli.stopping import stoppable
from forebay.domain.units import format_duration


@stoppable()
def command(
    spec: options.SpecFile,
    trace: options.Trace,
    trace_format: options.TraceFormat = "auto",
    policies: options.Policies = "forebay",
    train: Annotated[
        str | None, typer.Option("--train", metavar="TIME", help="Choose on this much of the span, judge on the rest. Default: half.")
    ] = None,
    jobs: options.Jobs = 0,
    pool: options.PoolName = None,
    lengths: options.Lengths = None,
    column: options.Column = "",
    start: options.Start = "0s",
    duration: options.Duration = None,
    rate_scale: options.RateScale = 1.0,
    noise: options.RateNoise = 0.0,
    cv: options.GapCv = 2.0,
    tiers: options.Tiers = "",
    lenient: options.Lenient = False,
    cold_start: options.ColdStart = None,
    start_cv: options.StartCv = 0.0,
    weights_bandwidth: options.WeightsBandwidth = None,
    peers: options.Peers = False,
    faults: options.Faults = "",
    queueing: options.QueueingAt = "gateway",
    dispatch: options.DispatchTo = "least_loaded",
    order: options.OrderBy = "deadline",
    actuator: options.ActuatorKind = "direct",
    scrape_delay: options.ScrapeDelay = "0s",
    seed: options.Seed = 0,
    json: options.Json = None,
    html: options.Html = None,
) -> None:
    """Find the settings that are cheapest while they keep the promise, on one span, and try them on the next.

    `forebay tune --spec forebay.yaml --trace two-weeks.csv --train 7d` tries a dozen settings of Forebay's policy on the first week
    and plays the second with the defaults and with what was chosen. `--policies kpa,ray` does the same for others, over the
    settings that their documentation offers, so that nobody is compared with a rival that was set up to lose.

    A training run ends after a million requests. Exit code 2: bad input, nothing was played.
    """
    given = locals().copy()
    from forebay.app.lab import held_out, tuning  # the simulator: nothing that another verb should wait for
    from forebay.app.lab.over_cores import cores
    from forebay.app.lab.policies import chosen

    options.check_outputs(given)
    names = chosen("--policies", policies)
    tuning.require_defaults("--policies", names)
    train_s = None if train is None else options.above_zero_s("--train", train)
    request = options.request(spec, pool, options.trace_options(given), given)
    with lab_output.told_bar() as (doing, tell):
        found = tuning.tuned(request, names, train_s, jobs=jobs or cores(), timelines=html is not None, doing=doing, tell=tell)
    if json != "-":
        lab_output.say(f"Chosen on the first {format_duration(found.trained.duration_s)}:")
        lab_output.show_choices(found.choices, found.trained.request.pool.slo.attainment)
        lab_output.say("\nOn what was held out:")
    lab_output.deliver(found.held_out, json, html, held_out.as_json(found))
    if json != "-":
        lab_output.show_verdicts(held_out.verdicts(found), held_out.remark(found))
