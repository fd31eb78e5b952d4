"""`forebay backtest`: would this policy have held on what this fleet has really seen?"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli import lab_options as options
from forebay.cli import lab_output
from forebay.cli.stopping import stoppable

if TYPE_CHECKING:
    from forebay.app.lab.request import LabRequest


@stoppable()
def command(
    spec: options.SpecFile = Path("forebay.yaml"),
    history: Annotated[
        Path | None,
        typer.Option(
            "--history",
            metavar="PATH",
            help="A state folder of `forebay up`, or a ledger of requests (JSONL, CSV). Default: the spec's own state folder.",
        ),
    ] = None,
    last: Annotated[str, typer.Option("--last", metavar="TIME", help="How much of its end to play; what is before is history.")] = "7d",
    policies: options.Policies = "forebay,static-peak",
    seeds: options.Seeds = 1,
    jobs: options.Jobs = 0,
    pool: options.PoolName = None,
    rate_scale: options.RateScale = 1.0,
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
    """Would this policy have held last week? Play it on the demand that this fleet's own controller saw come.

    `forebay backtest` beside a forebay.yaml that runs, or has run, with `forebay up` takes what its controller recorded: how many
    requests came in each five minutes, and how long they were. Change the spec (bounds, promise, profile, calendar) and ask again.
    `--policies all` adds everybody else's. Rates are recorded, single requests are not: those are drawn, from `--seed`.

    Exit code 2: bad input (there is no history), nothing was played.
    """
    given = locals().copy()
    from forebay.app.lab.comparing import compared  # the simulator: nothing that another verb should wait for
    from forebay.app.lab.over_cores import cores
    from forebay.app.lab.policies import chosen, fitting
    from forebay.app.lab.world import prepared

    options.check_outputs(given)
    names = chosen("--policies", policies)
    last_s = options.above_zero_s("--last", last)
    with lab_output.told_bar() as (doing, tell):
        doing(f"reading {history or 'what was recorded'}")
        request = _request(spec, history or options.state_folder(spec), last_s, given, tell)
        fitting(names, request)
        ready = prepared(request, doing, tell)
    with lab_output.told_bar() as (doing, tell):
        found = compared(ready, names, seeds=seeds, jobs=jobs or cores(), bound=bound, timelines=html is not None, tell=tell, doing=doing)
    lab_output.deliver(found, json, html)


def _request(spec: Path, path: Path, last_s: float, given: dict[str, Any], tell: Callable[[float], None]) -> "LabRequest":
    """The end of what is recorded at ``path``: a state folder, its file, or a ledger of requests."""
    from forebay.app.lab import recorded
    from forebay.app.lab.world import ending

    trace = options.trace_options({**options.NO_TRACE, **given, "trace": str(path)})
    request = options.request(spec, given["pool"], trace, given)
    if recorded.is_state(path) and request.trace.recorded is None:
        recorded.read(path, request.pool.name)  # there is none: it says so
    lab_output.warn_of_seeds(request, given["seeds"])
    return ending(request, last_s, tell)
