"""``forebay plan size``: replicas, warm buffer, spares and the monthly bill, from a few numbers, a configuration's pool, or a trace.

Every number is kept as the decimal that was typed, so that the answer is the one that a calculation on paper gives.
"""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from forebay.app.outputs import check_apart
from forebay.app.trace_files import FORMATS
from forebay.cli import plan_inputs as inputs
from forebay.cli.output import aside, check_json, file_of, write_json
from forebay.cli.plan_table import Said, per, show, show_measured
from forebay.cli.stopping import stoppable
from forebay.domain.errors import BadInput
from forebay.scaling.capacity import REPLICAS_MAX
from forebay.simulation import sizing
from forebay.simulation.sizing import Facts, Plan, WarmPlan

if TYPE_CHECKING:
    from forebay.app.lab.replica_rate import ReplicaRate

app = typer.Typer(name="plan", help="How much to hold, and what it costs, before anything runs.", no_args_is_help=True)

Qps = Annotated[str | None, typer.Option(metavar="RATE", help="What one replica serves within its promises: 12 (per second), 50/min.")]
Target = Annotated[str | None, typer.Option(metavar="SHARE", help="Share of that to be used: 0.7 or 70%. Default: all of it.")]
Peak = Annotated[str | None, typer.Option(metavar="RATE", help="Rate at the peak: 400 (per second), 9000/min.")]
Trough = Annotated[str | None, typer.Option(metavar="RATE", help="Rate at the trough.")]
Average = Annotated[str | None, typer.Option(metavar="NUMBER", help="Replicas that run on average, buffer and spares included.")]
Gpus = Annotated[int | None, typer.Option(min=1, max=1024, help="GPUs of one replica. Default: 1.")]
GpuHour = Annotated[str | None, typer.Option(metavar="USD", help="Price of one GPU for an hour.")]
Hours = Annotated[str, typer.Option(metavar="HOURS", help="Hours that a month is billed as.")]
Ramp = Annotated[str | None, typer.Option(metavar="RATE", help="By how much the rate rises in a minute at most: 7 (per second), 30/min.")]
Rise = Annotated[str | None, typer.Option(metavar="FROM..TO/TIME", help="The same as a whole rise: 100/min..400/min/10m.")]
Cold = Annotated[str | None, typer.Option(metavar="TIME", help="From asking for a replica to its first answer: 6m, 90s.")]
Spares = Annotated[int | None, typer.Option(min=0, max=REPLICAS_MAX, help="Replicas that may fail at once. Default: 0.")]
Domains = Annotated[
    int | None,
    typer.Option(
        "--failure-domains", min=2, max=1000, help="Zones (or racks) replicas are spread over: spares for losing one at the peak."
    ),
]
SpecFile = Annotated[
    Path | None, typer.Option("--spec", "-c", metavar="FILE", help="Take what isn't given here from a pool of this configuration.")
]
PoolName = Annotated[str | None, typer.Option(metavar="NAME", help="Which pool of it, where there are several.")]
TraceFile = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="Take peak, trough, average and ramp that aren't given here from this trace."),
]
TraceFormat = Annotated[str, typer.Option(metavar="NAME", help=f"{' | '.join(FORMATS)}; auto looks at the first line.")]
Start = Annotated[str, typer.Option(metavar="TIME", help="Where in the trace to begin, such as 10m.")]
Duration = Annotated[str | None, typer.Option(metavar="TIME", help="How much of the trace to take. Default: the rest.")]
Scale = Annotated[float, typer.Option(metavar="NUMBER", help="Multiply the trace's rates.")]
Column = Annotated[str, typer.Option(metavar="NAME", help="Column of an o365 trace; of a csv or jsonl: at_s=ITS NAME,….")]
Bucket = Annotated[str, typer.Option(metavar="TIME", help="Rates of the trace are means over this time.")]
Lengths = Annotated[
    Path | None,
    typer.Option("--lengths", metavar="FILE", help="A trace of requests to draw token lengths from, to measure what one replica serves."),
]
Measure = Annotated[
    bool,
    typer.Option(help="Measure what one replica of --spec serves with the trace's (or --lengths') lengths: some seconds of simulation."),
]
Lenient = Annotated[bool, typer.Option("--lenient", help="Skip and count the trace's broken rows; sort rows a little out of order.")]
Json = Annotated[str | None, typer.Option("--json", metavar="PATH", help="Write the plan as JSON to PATH (- for stdout).")]


@app.callback()
def root() -> None:
    """How much to hold, and what it costs, before anything runs."""


@app.command("size")
@stoppable()
def size(
    qps_per_replica: Qps = None,
    target: Target = None,
    peak: Peak = None,
    trough: Trough = None,
    average_replicas: Average = None,
    gpus_per_replica: Gpus = None,
    gpu_hour_usd: GpuHour = None,
    hours_per_month: Hours = "730",
    ramp_per_min: Ramp = None,
    rise: Rise = None,
    cold_start: Cold = None,
    spares: Spares = None,
    failure_domains: Domains = None,
    spec: SpecFile = None,
    pool: PoolName = None,
    trace: TraceFile = None,
    trace_format: TraceFormat = "auto",
    start: Start = "0s",
    duration: Duration = None,
    rate_scale: Scale = 1.0,
    column: Column = "",
    bucket: Bucket = "5m",
    lengths: Lengths = None,
    measure: Measure = True,
    lenient: Lenient = False,
    json: Json = None,
) -> None:
    """Size a pool: replicas at peak and trough, warm buffer, spares, and what a month costs.

    `forebay plan size --qps-per-replica 12 --target 70% --peak 400 --trough 80 --ramp-per-min 7 --cold-start 6m` is a worked case.
    """
    check_json(json)
    check_apart({"--json": file_of(json)}, {"the trace": trace, "what --lengths names": lengths, "the configuration": spec})
    inputs.check_lengths(lengths, spec, qps_per_replica, measure)
    _one_of_each(ramp_per_min, rise, spares, failure_domains)
    given = {
        "replica_per_s": inputs.rate("--qps-per-replica", qps_per_replica),
        "target": inputs.share(target),
        "peak_per_s": inputs.rate("--peak", peak),
        "trough_per_s": inputs.rate("--trough", trough),
        "average_replicas": inputs.decimal("--average-replicas", average_replicas),
        "gpus_per_replica": gpus_per_replica,
        "gpu_hour_usd": inputs.decimal("--gpu-hour-usd", gpu_hour_usd),
        "hours_per_month": inputs.decimal("--hours-per-month", hours_per_month),
        "ramp_per_s2": inputs.ramp(ramp_per_min) if rise is None else inputs.rise(rise),
        "cold_start_s": inputs.time_s("--cold-start", cold_start),
        "spares": spares,
    }
    known = {**inputs.of_pool(spec, pool), **{name: value for name, value in given.items() if value is not None}}
    span = (inputs.time_s("--start", start), inputs.time_s("--duration", duration))
    part = inputs.TracePart(trace, trace_format, *span, rate_scale, column, inputs.time_s("--bucket", bucket), lenient) if trace else None
    rates = inputs.rates_of(part) if part else None
    found = None
    if measure and spec is not None and qps_per_replica is None:
        found = inputs.measured_rate(spec, pool, lengths, part, lenient, _busiest(known, rates))
        known |= {"replica_per_s": sizing.exactly(found.measured_per_s)} if found and found.measured_per_s else {}
    facts, planned = _worked_out(known, failure_domains, rates)
    said = Said("ramp_per_s2" in known or bool(rates), not (found or qps_per_replica) and inputs.computes_rate(spec, pool))
    _deliver(facts, planned, said, found, inputs.warm_of(spec, pool, facts), json, rates.told if rates else ())


def _one_of_each(ramp_per_min: str | None, rise: str | None, spares: int | None, failure_domains: int | None) -> None:
    inputs.one_of({"--ramp-per-min": ramp_per_min, "--rise": rise}, "how steeply the rate rises")
    inputs.one_of({"--spares": spares, "--failure-domains": failure_domains}, "how many replicas may fail")


def _deliver(
    facts: Facts,
    planned: Plan,
    said: Said,
    found: "ReplicaRate | None",
    warm: tuple[WarmPlan, Fraction] | None,
    json: str | None,
    told: Sequence[str],
) -> None:
    if json is not None:
        measures = {"measured_replica_qps": found.measured_per_s, "formula_replica_qps": found.formula_per_s} if found else {}
        write_json({**msgspec.structs.asdict(planned), **(msgspec.structs.asdict(warm[0]) if warm else {}), **measures}, json)
    if json != "-":
        show(facts, planned, warm, said)
        if found is not None:
            show_measured(found)
    for line in told:
        aside(line)


def _busiest(known: dict[str, Any], rates: inputs.Rates | None) -> float:
    """The peak, in requests per second; 0 where it isn't known."""
    return float(known.get("peak_per_s") or (max(rates.per_s) if rates is not None else 0))


def _worked_out(known: dict[str, Any], failure_domains: int | None, rates: inputs.Rates | None) -> tuple[Facts, Plan]:
    """Facts and plan. What the trace shows stands in for what wasn't given."""
    if "replica_per_s" not in known:
        raise BadInput("what one replica serves is not known: give --qps-per-replica, or a configuration with --spec")
    if not known["replica_per_s"]:
        raise BadInput("--qps-per-replica: found 0, allowed: a number above 0")
    if not known["hours_per_month"]:
        raise BadInput("--hours-per-month: found 0, allowed: a number above 0")
    held = Fraction(0)
    if rates is not None:
        each = known["replica_per_s"] * known.get("target", 1)
        seen = sizing.demand(rates.per_s, rates.bucket_s, each, known.get("cold_start_s", Fraction(0)))
        held = seen.mean_replicas
        known = {"peak_per_s": seen.peak_per_s, "trough_per_s": seen.trough_per_s, "ramp_per_s2": seen.ramp_per_s2, **known}
    facts = Facts(**known)
    _check(facts, from_trace=rates is not None)
    if failure_domains is not None:
        peak = sizing.plan(facts).peak_replicas
        if peak is None:
            raise BadInput("--failure-domains: spares are counted at the peak; give --peak, or a --trace")
        facts = msgspec.structs.replace(facts, spares=sizing.spares_over(peak, failure_domains))
    planned = sizing.plan(facts)
    if rates is not None and facts.average_replicas is None:
        facts = msgspec.structs.replace(facts, average_replicas=held + planned.buffer_replicas + facts.spares)
        planned = sizing.plan(facts)
    ceiling = planned.ceiling_replicas
    if facts.average_replicas is not None and ceiling is not None and facts.average_replicas > ceiling:
        raise BadInput(f"--average-replicas: found {float(facts.average_replicas):g}, allowed: at most {ceiling}, peak, buffer and spares")
    return facts, planned


def _check(facts: Facts, *, from_trace: bool) -> None:
    if facts.peak_per_s is not None and facts.trough_per_s is not None and facts.trough_per_s > facts.peak_per_s:
        raise BadInput(f"--trough: found {per(facts.trough_per_s)}, allowed: at most the peak of {per(facts.peak_per_s)}")
    if facts.peak_per_s is not None and facts.peak_per_s / facts.replica_per_s / facts.target > REPLICAS_MAX:
        raise BadInput(f"--peak: that is more than {REPLICAS_MAX:,} replicas; is --qps-per-replica meant per second?")
    if facts.ramp_per_s2 and not facts.cold_start_s and not from_trace:
        raise BadInput("a ramp has no meaning without --cold-start, the time until a replica asked for now is ready: give it, such as 6m")
