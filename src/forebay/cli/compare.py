"""`forebay compare`: what each policy would have cost and kept on this traffic, side by side with the clairvoyant limit."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from forebay.app.lab.over_cores import cores
from forebay.cli import lab_options as options
from forebay.cli import lab_output
from forebay.cli.stopping import stoppable

if TYPE_CHECKING:
    from forebay.app.lab.candidates import Candidate
    from forebay.app.lab.comparing import Comparison
    from forebay.app.lab.tuning import Rivals
    from forebay.app.lab.world import Prepared


@stoppable()
def command(
    spec: options.SpecFile,
    trace: options.Trace,
    trace_format: options.TraceFormat = "auto",
    policies: options.Policies = "all",
    tuned: options.Tuned = False,
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
    """Play every policy on a recorded day or week, and rank what they cost and kept.

    `forebay compare --spec forebay.yaml --trace last-week.csv --html report.html` plays Forebay's policy and everybody else's
    (HPA, KEDA, Knative, llm-d, Dynamo, AIBrix, Ray Serve …) on the same arrivals, engines and cold starts. Rows with a tick keep the
    promise of the spec. The clairvoyant schedule knows the future: nothing is known to keep it with fewer GPU-hours.

    Others stand at their sources' defaults, or as yours is set: `--policies "hpa-queue:target=3,down=10m,forebay"` (all that can be
    set is in docs/baselines.md); with --tuned those without settings are played once more with the best of up to 16.

    What is before --start is history that policies may learn from. Exit code 2: bad input, nothing was played.
    """
    given = locals().copy()
    from forebay.app.lab.policies import fitting  # the simulator: nothing that another verb should wait for
    from forebay.app.lab.world import prepared

    options.check_outputs(given)
    names = _names(policies, tuned)
    request = options.request(spec, pool, options.trace_options(given), given)
    fitting(names, request)
    lab_output.warn_of_seeds(request, seeds)
    with lab_output.told_bar() as (doing, tell):
        ready = prepared(request, doing, tell)
    rivals = _rivals(ready, names, jobs) if tuned else None
    if rivals:
        ready = msgspec.structs.replace(ready, notes=(*ready.notes, rivals.note))
    found = _played(ready, names, [choice.chosen for choice in rivals.choices] if rivals else [], given)
    _deliver(found, rivals, json, html)


def _names(policies: str, tuned: bool) -> list[str]:
    from forebay.app.lab import tuning
    from forebay.app.lab.policies import chosen

    names = chosen("--policies", policies)
    if tuned:
        tuning.require_tunable("--tuned", names)
    return names


def _rivals(ready: "Prepared", names: list[str], jobs: int) -> "Rivals":
    from forebay.app.lab import tuning

    with lab_output.told_bar() as (doing, tell):
        return tuning.rivals(ready, names, jobs=jobs or cores(), doing=doing, tell=tell)


def _deliver(found: "Comparison", rivals: "Rivals | None", json: str | None, html: Path | None) -> None:
    from forebay.app.lab.comparing import as_json
    from forebay.app.lab.tuning import choices_as_json

    lab_output.deliver(found, json, html, {**as_json(found), **choices_as_json(rivals.trained, rivals.choices)} if rivals else None)
    if rivals and json != "-":
        lab_output.show_choices(rivals.choices, rivals.trained.request.pool.slo.attainment)


def _played(ready: "Prepared", names: list[str], tuned: "list[Candidate]", given: dict[str, Any]) -> "Comparison":
    from forebay.app.lab.comparing import compared

    with lab_output.told_bar() as (doing, tell):
        return compared(
            ready,
            names,
            seeds=given["seeds"],
            jobs=given["jobs"] or cores(),
            bound=given["bound"],
            timelines=given["html"] is not None,
            tell=tell,
            doing=doing,
            tuned=tuned,
        )
