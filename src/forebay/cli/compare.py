"""`forebay compare`: what each policy would have cost and kept on this traffic, side by side with the clairvoyant limit."""

from typing import Annotated

import typer

from forebay.cli import lab_options as options
from forebay.cli import lab_output


def command(
    spec: options.SpecFile,
    trace: options.Trace,
    trace_format: options.TraceFormat = "auto",
    policies: options.Policies = "all",
    seeds: options.Seeds = 1,
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
    bound: Annotated[bool, typer.Option(help="Find the clairvoyant schedule, which takes as long as several policies.")] = True,
    cold_start: options.ColdStart = None,
    start_cv: options.StartCv = 0.0,
    weights_bandwidth: options.WeightsBandwidth = None,
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
    """Play every policy on a recorded day or week, and rank what they cost and kept.

    `forebay compare --spec forebay.yaml --trace last-week.csv --html report.html` plays Forebay's policy and everybody else's
    (HPA, KEDA, Knative, llm-d, Dynamo, AIBrix, Ray Serve …) on the same arrivals, engines and cold starts. Marked rows keep the
    promise of the spec. The clairvoyant schedule knows the future: nobody can do with fewer GPU-hours.

    What is before --start is history that policies may learn from. Exit code 2: bad input, nothing was played.
    """
    given = locals().copy()
    from forebay.app.lab.comparing import compared  # the simulator: nothing that another verb should wait for
    from forebay.app.lab.over_cores import cores
    from forebay.app.lab.policies import chosen
    from forebay.app.lab.world import prepared

    options.check_outputs(json, html)
    names = chosen("--policies", policies)
    request = options.request(spec, pool, options.trace_options(given), given)
    with lab_output.doing() as tell_what:
        ready = prepared(request, tell_what)
    runs = f"{len(names)} policies" if len(names) > 1 else names[0]
    with lab_output.bar(f"{runs} × {seeds} seeds" if seeds > 1 else runs) as tell:
        found = compared(ready, names, seeds=seeds, jobs=jobs or cores(), bound=bound, timelines=html is not None, tell=tell)
    lab_output.deliver(found, json, html)
