"""The options that `simulate`, `compare`, `backtest` and `tune` share: their words, and what they come to."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from forebay.app import outputs
from forebay.app.config import load
from forebay.app.lab.actuating import parse_actuator
from forebay.app.lab.clock import Clock, is_moment, zone_of
from forebay.app.lab.faults import parse_faults
from forebay.app.lab.request import LabRequest, TraceOptions
from forebay.cli import lab_values, output
from forebay.cli.trace_words import say_doubts
from forebay.domain.errors import BadInput
from forebay.domain.units import format_duration, parse_duration_s
from forebay.simulation.lab_scenario import SCRAPE_DELAY_S_MAX
from forebay.simulation.values import Dispatch, Order, Queueing
from forebay.spec.problems import did_you_mean, listed
from forebay.spec.types import Pool, Spec

TRACE_FORMATS = ("auto", "azure", "azure2024-rate", "o365", "servegen", "prometheus", "mooncake", "burstgpt", "jsonl", "csv", "ledger")
"""As `app.traces` has them, which is too heavy for `forebay --help`."""
SCALE_MAX = 1e6
GAP_CV = 2.0
"""Default of --cv."""
COLD_START_S_MAX = 86_400.0
"""Slower than that no start is: it is a mistake in the unit."""

World = "The world"
Output = "Output"

SpecFile = Annotated[
    Path, typer.Option("--spec", "-c", metavar="FILE", help="A configuration (any forebay.yaml): its pool, promise, profile and bounds.")
]
PoolName = Annotated[str | None, typer.Option("--pool", metavar="NAME", help="Which pool of it, where there are several.")]
Trace = Annotated[str, typer.Option("--trace", metavar="FILE", help="Recorded arrivals, plain or gzip; or a state folder of `forebay up`.")]
TraceFormat = Annotated[str, typer.Option("--trace-format", help=f"{' | '.join(TRACE_FORMATS)}; auto looks at the first line.")]
Lengths = Annotated[
    str | None,
    typer.Option(
        "--lengths", metavar="FILE", help="For traces of rates alone: draw token lengths from this trace. Default: the pool's shape."
    ),
]
Start = Annotated[
    str,
    typer.Option(
        "--start",
        metavar="TIME",
        help="Where in the trace to begin, such as 2d or 90m; where it has dates also 2026-11-24T14:00 or 14:00, by the clock of the "
        "pool's forecast or calendar, else UTC.",
    ),
]
Duration = Annotated[str | None, typer.Option("--duration", metavar="TIME", help="How much of it to play, such as 1d. Default: the rest.")]
RateScale = Annotated[float, typer.Option("--rate-scale", metavar="X", help="Multiply the request rate.")]
Tiers = Annotated[
    str,
    typer.Option(
        "--tiers",
        metavar="TIER=WEIGHT,…",
        help="Tiers of rows that name none, such as interactive=0.8,batch=0.2. Default: all interactive.",
    ),
]
Column = Annotated[
    str,
    typer.Option("--column", metavar="NAME", help="o365: the column, such as A_prod. csv and jsonl: columns by another name, at_s=when,…."),
]
RateNoise = Annotated[
    float, typer.Option("--noise", min=0.0, max=1.0, help="For traces of rates: stray from minute to minute, such as 0.05.")
]
GapCv = Annotated[float, typer.Option("--cv", min=0.0, max=100.0, help="For traces of rates: how bursty arrivals are; 1 is Poisson.")]
Lenient = Annotated[
    bool, typer.Option("--lenient", help="Skip and count broken rows instead of stopping at the first; sort rows a little out of order.")
]
ColdStart = Annotated[
    str | None,
    typer.Option(
        "--cold-start", metavar="TIME", rich_help_panel=World, help="From asking for a replica to its first answer. Default: the profile's."
    ),
]
Faults = Annotated[
    str,
    typer.Option(
        "--faults",
        metavar="FAULT,…",
        rich_help_panel=World,
        help="What goes wrong: metrics=error@2h+20m (or empty, frozen, nan, renamed; metrics=random), crash=2@3h, crashes=0.5 (per replica "
        "and day), reclaim=25%@5h, shortage=12@4h+1h.",
    ),
]
QueueingAt = Annotated[
    str,
    typer.Option(
        "--queueing",
        rich_help_panel=World,
        help="gateway: requests wait in one queue (Forebay's). engine: they are sent on as they come (a plain load balancer).",
    ),
]
DispatchTo = Annotated[
    str, typer.Option("--dispatch", rich_help_panel=World, help="least_loaded | round_robin | prefix (to where the prefix is cached).")
]
OrderBy = Annotated[
    str,
    typer.Option(
        "--order", rich_help_panel=World, help="deadline: what can't be in time any more goes last. fifo: first come, first served."
    ),
]
ActuatorKind = Annotated[
    str,
    typer.Option(
        "--actuator",
        metavar="KIND[,SETTING=…]",
        rich_help_panel=World,
        help="direct: the decision is carried out as it is. hpa or keda (the same: KEDA acts through an HPA): it is a metric, behind "
        "polling, tolerance and stabilisation, with Kubernetes' and KEDA's defaults or as set: keda,sync=15s,tolerance=0.1,up_window=0s,"
        "down_window=5m,polling=30s,cooldown=5m,victims=fewest.",
    ),
]
StartCv = Annotated[
    float,
    typer.Option("--start-cv", min=0.0, max=5.0, metavar="CV", rich_help_panel=World, help="How much start times vary: deviation ÷ mean."),
]
WeightsBandwidth = Annotated[
    str | None,
    typer.Option(
        "--weights-bandwidth",
        metavar="SIZE/s",
        rich_help_panel=World,
        help="What all starts share to pull weights: 10GB/s. Default: each has all its node can take, as from a cache in the region.",
    ),
]
Peers = Annotated[
    bool,
    typer.Option("--peers", rich_help_panel=World, help="Beside --weights-bandwidth: ready replicas serve the weights too, peer to peer."),
]
ScrapeDelay = Annotated[
    str, typer.Option("--scrape-delay", metavar="TIME", rich_help_panel=World, help="Age of the readings that a decision sees.")
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, rich_help_panel=World, help="Of everything that is drawn; the same seed, the same bytes.")
]
Seeds = Annotated[int, typer.Option("--seeds", min=1, max=1000, help="Play so many seeds, and show how far results stray.")]
Policies = Annotated[
    str,
    typer.Option(
        "--policies",
        metavar="NAME[:KEY=…],…",
        help="all, or names parted by commas, each as its source has it, or with settings after a colon: hpa-queue:target=3,down=10m. "
        "An unknown name lists those there are, an unknown setting those of its policy.",
    ),
]
OnePolicy = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="NAME[:KEY=…]",
        help="Which policy, with settings after a colon: hpa-queue:target=3,down=10m. An unknown name lists those there are.",
    ),
]
Tuned = Annotated[
    bool,
    typer.Option(
        "--tuned",
        help="Play every other autoscaler once more, tuned: its best settings on what comes before --start (a few hours, at most a "
        "million requests a run). Takes some minutes.",
    ),
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=0, max=256, help="Processes. Default: one per core.")]
Explain = Annotated[
    list[str],
    typer.Option(
        "--explain",
        metavar="TIME",
        rich_help_panel=Output,
        help="Why so many replicas at this time of the run, as `forebay explain` tells it: 2h30m after its start, or where the trace has "
        "dates 14:32 or 2026-11-24T14:32. May be given several times.",
    ),
]
Json = Annotated[
    str | None, typer.Option("--json", metavar="PATH", rich_help_panel=Output, help="Write the numbers as JSON to PATH (- for stdout).")
]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="PATH", rich_help_panel=Output, help="Write one self-contained page: pictures, table, no network."),
]


def request(spec: Path, pool: str | None, trace: TraceOptions, world: dict[str, Any]) -> LabRequest:
    """The lab's request from options. ``world``: cold_start, faults, queueing, dispatch, order, actuator, seed, as they were given.

    Raises BadInput naming the option, what was found and what is allowed; BadSpec for a configuration that is wrong.
    """
    if world["peers"] and world["weights_bandwidth"] is None:
        raise BadInput(
            "--peers: found no --weights-bandwidth; give what the registry has for all: where nothing is shared, peers change nothing"
        )
    declared = load(spec)
    chosen = chosen_pool(declared, pool, spec)
    say_doubts(
        Path(trace.path),
        trace.trace_format,
        trace.column,
        None if trace.lengths is None else Path(trace.lengths),
        {"--cv": (trace.gap_cv, GAP_CV), "--noise": (trace.noise, 0.0)},
        pool_said=True,
    )
    trace = _begun(_of_history(trace, chosen.name), zone_of(chosen, declared.calendar))
    names = [tier.name for tier in declared.tiers]
    for tier, _ in trace.tiers:
        if tier not in names:
            raise BadInput(f"--tiers: found {tier!r}, allowed: tiers of {spec}: {listed(names)}{_hint(tier, names)}")
    return LabRequest(
        pool=_with_cold_start(chosen, world["cold_start"]),
        tiers=tuple(sorted(declared.tiers, key=lambda tier: tier.rank)),
        calendar=tuple(entry for entry in declared.calendar if chosen.name in entry.pools),
        trace=trace,
        faults=parse_faults(world["faults"]),
        faults_text=world["faults"],
        queueing=Queueing(one_of("--queueing", world["queueing"], tuple(Queueing))),
        dispatch=Dispatch(one_of("--dispatch", world["dispatch"], tuple(Dispatch))),
        order=Order(one_of("--order", world["order"], tuple(Order))),
        actuator=parse_actuator(world["actuator"]),
        actuator_text=world["actuator"],
        seed=world["seed"],
        start_cv=world["start_cv"],
        shared_bandwidth_bytes_per_s=lab_values.bandwidth("--weights-bandwidth", world["weights_bandwidth"]),
        peer_to_peer=world["peers"],
        scrape_delay_s=_scrape_delay_s(world["scrape_delay"]),
    )


def trace_options(given: dict[str, Any]) -> TraceOptions:
    """Which arrivals. ``given``: trace, trace_format, lengths, column, start, duration, rate_scale, noise, cv, tiers, lenient,
    as they were given. Raises BadInput naming the option.
    """
    rate_scale, duration, start = given["rate_scale"], given["duration"], given["start"]
    start_at = start if is_moment(start) else ""
    if not 0 < rate_scale <= SCALE_MAX:
        raise BadInput(f"--rate-scale: found {rate_scale:g}, allowed: a number above 0, at most {SCALE_MAX:g}")
    return TraceOptions(
        path=given["trace"],
        trace_format=one_of("--trace-format", given["trace_format"], TRACE_FORMATS),
        lengths=given["lengths"],
        start_s=0.0 if start_at else Clock(0.0).second("--start", start),
        start_at=start_at,
        duration_s=None if duration is None else above_zero_s("--duration", duration),
        rate_scale=rate_scale,
        tiers=lab_values.weights("--tiers", given["tiers"]),
        lenient=given["lenient"],
        noise=given["noise"],
        gap_cv=given["cv"],
        column=given["column"],
    )


def _of_history(trace: TraceOptions, pool: str) -> TraceOptions:
    """``trace``, with what was recorded of ``pool`` where it names a state folder."""
    from forebay.app.lab import recorded  # numpy and its like: not for verbs that don't play

    path = Path(trace.path)
    return msgspec.structs.replace(trace, recorded=recorded.read(path, pool)) if recorded.holds_history(path) else trace


def _begun(trace: TraceOptions, zone: str) -> TraceOptions:
    """``trace`` with the second at which it begins, where a date or a clock time of ``zone`` says so."""
    if not trace.start_at:
        return trace
    from forebay.app.traces import begins_wall_s

    path, past = Path(trace.path), trace.recorded
    begins_s = past.start_wall_s if past else begins_wall_s(path, trace.trace_format, trace.column, lenient=trace.lenient)
    return msgspec.structs.replace(trace, start_s=Clock(begins_s, zone).second("--start", trace.start_at), start_at="")


NO_TRACE: dict[str, Any] = {
    "trace_format": "auto",
    "lengths": None,
    "column": "",
    "start": "0s",
    "duration": None,
    "noise": 0.0,
}
"""Options of a trace that a verb without them has."""


def state_folder(spec: Path) -> Path:
    """Where a fleet of this configuration keeps its state, as `forebay up` finds it."""
    return spec.resolve().parent / load(spec).state_dir


def chosen_pool(spec: Spec, name: str | None, path: Path) -> Pool:
    """The pool that is meant; raises BadInput where that isn't clear."""
    names = [pool.name for pool in spec.pools]
    if name is None:
        if len(names) == 1:
            return spec.pools[0]
        raise BadInput(f"--pool: {path} has {len(names)} pools; say which: {listed(names)}")
    if name not in names:
        raise BadInput(f"--pool: found {name!r}, allowed: a pool of {path}: {listed(names)}{_hint(name, names)}")
    return spec.pool(name)


def one_of(option: str, text: str, allowed: tuple[str, ...]) -> str:
    """``text`` if it is allowed; raises BadInput with the nearest that is."""
    if text not in allowed:
        raise BadInput(f"{option}: found {text!r}, allowed: {', '.join(allowed)}{_hint(text, allowed)}")
    return text


def just_one(option: str, names: list[str]) -> str:
    """The one name; raises BadInput where there are several."""
    if len(names) != 1:
        raise BadInput(f"{option}: found {len(names)} policies, allowed: one; `forebay compare` plays several")
    return names[0]


def duration_s(option: str, text: str) -> float:
    """Seconds; raises BadInput for what is no duration."""
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise BadInput(f"{option}: {error}") from None


def above_zero_s(option: str, text: str) -> float:
    """Seconds, more than none: an empty span has nothing to be judged by."""
    seconds = duration_s(option, text)
    if seconds <= 0:
        raise BadInput(f"{option}: found {text!r}, allowed: more than 0")
    return seconds


def _scrape_delay_s(text: str) -> float:
    seconds = duration_s("--scrape-delay", text)
    if seconds > SCRAPE_DELAY_S_MAX:
        raise BadInput(f"--scrape-delay: found {text!r}, allowed: at most {format_duration(SCRAPE_DELAY_S_MAX)}")
    return seconds


def _with_cold_start(pool: Pool, text: str | None) -> Pool:
    """Both the world's and what policies assume until they have seen a start."""
    if text is None:
        return pool
    seconds = duration_s("--cold-start", text)
    if seconds > COLD_START_S_MAX:
        allowed = format_duration(COLD_START_S_MAX)
        raise BadInput(f"--cold-start: found {text!r}, allowed: at most {allowed}: what starts more slowly is ordered, not scaled")
    return msgspec.structs.replace(pool, scaling=msgspec.structs.replace(pool.scaling, cold_start_s=seconds))


def check_outputs(given: dict[str, Any]) -> None:
    """Raises BadInput, before an hour of work is done, where a result could not be left, or would take the place of what is read.

    ``given``: json, html, spec, trace (or history), lengths, as they were given.
    """
    html, read = given["html"], given.get("trace") or given.get("history")
    output.check_json(given["json"])
    if html is not None:
        if str(html) == "-":
            raise BadInput("--html: found '-', allowed: a file; --json alone goes to stdout")
        outputs.check("--html", html)
    inputs = {"the trace": read, "what --lengths names": given.get("lengths"), "the configuration": given["spec"]}
    outputs.check_apart(
        {"--json": output.file_of(given["json"]), "--html": html}, {what: Path(name) for what, name in inputs.items() if name is not None}
    )


def _hint(name: str, known: tuple[str, ...] | list[str]) -> str:
    hint = did_you_mean(name, known)
    return f"; {hint}" if hint else ""
