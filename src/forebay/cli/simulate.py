"""`forebay simulate`: one policy on recorded traffic, and what it would have cost and kept."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli import lab_options as options
from forebay.cli import lab_output
from forebay.cli.explain import show
from forebay.cli.stopping import stoppable

if TYPE_CHECKING:
    from forebay.app.lab.comparing import Comparison
    from forebay.app.lab.world import Prepared


@stoppable()
def command(
    spec: options.SpecFile,
    trace: options.Trace,
    trace_format: options.TraceFormat = "auto",
    policy: options.OnePolicy = "forebay",
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
    bound: Annotated[bool, typer.Option(help="Find the clairvoyant schedule too; without, it is several times as fast.")] = True,
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
    explain: options.Explain = [],  # noqa: B006 - typer takes it for a value, and copies it
    json: options.Json = None,
    html: options.Html = None,
) -> None:
    """Play one policy on a recorded day or week: GPU-hours, promises kept, breaches, cost.

    `forebay simulate --spec forebay.yaml --trace last-week.csv` answers whether the policy of this spec would have held; change
    the spec and ask again. The engines are the spec's profile, the policy is the very one that runs live.

    What is before --start is history that the policy may learn from. Exit code 2: bad input, nothing was played.
    """
    given = locals().copy()
    from forebay.app.lab.policies import chosen, fitting  # the simulator: nothing that another verb should wait for
    from forebay.app.lab.world import prepared

    options.check_outputs(given)
    name = options.just_one("--policy", chosen("--policy", policy, alone=True))
    request = options.request(spec, pool, options.trace_options(given), given)
    fitting([name], request, "--policy")
    with lab_output.told_bar() as (doing, tell):
        ready = prepared(request, doing, tell)
    _deliver(_played(ready, name, given), name, json, html)


def _played(ready: "Prepared", name: str, given: dict[str, Any]) -> "Comparison":
    from forebay.app.lab.comparing import compared
    from forebay.app.lab.over_cores import cores
    from forebay.app.lab.telling import asked_s

    moments_s, wanted = asked_s(ready, given["explain"]), given["html"] is not None or given["json"] is not None
    with lab_output.told_bar() as (doing, tell):
        return compared(
            ready,
            [name],
            seeds=1,
            jobs=given["jobs"] or cores(),
            bound=given["bound"],
            timelines=wanted,
            tell=tell,
            doing=doing,
            explain_s=moments_s,
        )


def _deliver(found: "Comparison", name: str, json: str | None, html: Path | None) -> None:
    from forebay.app.lab.comparing import as_json, speed
    from forebay.app.lab.telling import explained, timeline

    ready, run = found.ready, found.runs[name][0]
    why = explained(ready, run)
    lab_output.deliver(found, json, html, one(as_json(found), speed(run)) | {"timeline": timeline(ready, run), "explained": why})
    if json != "-":
        lab_output.show_run(run, ready.clock)
        for each in why:
            show(each)


def one(whole: dict[str, Any], fast: dict[str, float]) -> dict[str, Any]:
    """The keys of the one policy, what is known of the run beside them."""
    (policy,) = whole["policies"]
    return {**{key: value for key, value in whole.items() if key != "policies"}, **policy, **fast}
