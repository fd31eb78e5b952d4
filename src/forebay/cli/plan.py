"""``forebay plan size``: replicas, warm buffer, spares and the monthly bill, from a few numbers, a configuration's pool, or a trace.

Every number is kept as the decimal that was typed, so that the answer is the one that a calculation on paper gives.
"""

import re
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from forebay.app.config import load
from forebay.app.trace_files import FORMATS
from forebay.cli.output import check_json, write_json
from forebay.cli.output import console as output_console
from forebay.domain.errors import BadInput
from forebay.domain.units import format_duration, parse_duration_s
from forebay.scaling.capacity import REPLICAS_MAX, pool_capacity
from forebay.simulation import sizing
from forebay.simulation.sizing import Facts, Plan
from forebay.spec.problems import did_you_mean
from forebay.spec.types import Pool

app = typer.Typer(name="plan", help="How much to hold, and what it costs, before anything runs.", no_args_is_help=True)

LARGEST = 10**12
"""No rate, price or time is larger: beyond it, it is a mistake."""
BUCKETS_MAX = 1_000_000
"""Of a trace: nine years of five minutes."""
_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,15})?|\.\d{1,15}")
_PER_S = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "hour": 3600, "d": 86_400}

_RATE_WORDS = "a number (per second), or one per s, min, h or d, such as 12 or 50/min"

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
Column = Annotated[str, typer.Option(metavar="NAME", help="Column of an o365 trace, or new names for a csv's columns.")]
Bucket = Annotated[str, typer.Option(metavar="TIME", help="Rates of the trace are means over this time.")]
Lenient = Annotated[bool, typer.Option("--lenient", help="Skip the trace's broken rows.")]
Json = Annotated[str | None, typer.Option("--json", metavar="PATH", help="Write the plan as JSON to PATH (- for stdout).")]


@app.callback()
def root() -> None:
    """How much to hold, and what it costs, before anything runs."""


@app.command("size")
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
    lenient: Lenient = False,
    json: Json = None,
) -> None:
    """Size a pool: replicas at peak and trough, warm buffer, spares, and what a month costs.

    `forebay plan size --qps-per-replica 12 --target 70% --peak 400 --trough 80 --ramp-per-min 7 --cold-start 6m` is a worked case.
    """
    check_json(json)
    _one_of({"--ramp-per-min": ramp_per_min, "--rise": rise}, "how steeply the rate rises")
    _one_of({"--spares": spares, "--failure-domains": failure_domains}, "how many replicas may fail")
    given = {
        "replica_per_s": _rate("--qps-per-replica", qps_per_replica),
        "target": _share(target),
        "peak_per_s": _rate("--peak", peak),
        "trough_per_s": _rate("--trough", trough),
        "average_replicas": _decimal("--average-replicas", average_replicas),
        "gpus_per_replica": gpus_per_replica,
        "gpu_hour_usd": _decimal("--gpu-hour-usd", gpu_hour_usd),
        "hours_per_month": _decimal("--hours-per-month", hours_per_month),
        "ramp_per_s2": _ramp(ramp_per_min) if rise is None else _rise(rise),
        "cold_start_s": _time_s("--cold-start", cold_start),
        "spares": spares,
    }
    known = {**_of_pool(spec, pool), **{name: value for name, value in given.items() if value is not None}}
    rates = None
    if trace is not None:
        bucket_s = _time_s("--bucket", bucket)
        rates = _rates(
            _Trace(trace, trace_format, _time_s("--start", start), _time_s("--duration", duration), rate_scale, column, bucket_s, lenient)
        )
    facts, planned = _worked_out(known, failure_domains, rates)
    if json is not None:
        write_json(planned, json)
    if json != "-":
        _print(facts, planned)


class _Trace(msgspec.Struct, frozen=True):
    """Which part of which trace."""

    path: Path
    trace_format: str
    start_s: Fraction | None
    duration_s: Fraction | None
    rate_scale: float
    column: str
    bucket_s: Fraction | None
    lenient: bool


class _Rates(msgspec.Struct, frozen=True):
    """Mean rates of a trace's buckets."""

    bucket_s: Fraction
    per_s: list[float]


def _rates(wanted: _Trace) -> _Rates:
    from forebay.app.traces import open_arrivals  # readers of every format: nothing that plain numbers should wait for

    if not wanted.bucket_s:
        raise BadInput("--bucket: found 0, allowed: a time of more than 0, such as 5m")
    trace = open_arrivals(
        wanted.path,
        wanted.trace_format,
        lengths=None,
        shape=(1, 1),
        tiers=["any"],
        tier_weights=None,
        start_s=float(wanted.start_s or 0),
        duration_s=None if wanted.duration_s is None else float(wanted.duration_s),
        rate_scale=wanted.rate_scale,
        noise=0.0,
        cv=1.0,
        column=wanted.column,
        seed=0,
        lenient=wanted.lenient,
    )
    if trace.duration_s / float(wanted.bucket_s) > BUCKETS_MAX:
        raise BadInput(
            f"--bucket: found {wanted.bucket_s} s, allowed: at most {BUCKETS_MAX:,} of them in the trace's {trace.duration_s:g} s"
        )
    return _Rates(wanted.bucket_s, [float(rate) for rate in trace.series(float(wanted.bucket_s)).values])


def _worked_out(known: dict[str, Any], failure_domains: int | None, rates: _Rates | None) -> tuple[Facts, Plan]:
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
        raise BadInput(f"--trough: found {_per(facts.trough_per_s)}, allowed: at most the peak of {_per(facts.peak_per_s)}")
    if facts.peak_per_s is not None and facts.peak_per_s / facts.replica_per_s / facts.target > REPLICAS_MAX:
        raise BadInput(f"--peak: that is more than {REPLICAS_MAX:,} replicas; is --qps-per-replica meant per second?")
    if facts.ramp_per_s2 and not facts.cold_start_s and not from_trace:
        raise BadInput("a ramp has no meaning without --cold-start, the time until a replica asked for now is ready: give it, such as 6m")


def _of_pool(path: Path | None, name: str | None) -> dict[str, Any]:
    """What a configuration's pool says: rate at its SLO, GPUs, price, cold start, ramp, spares."""
    if path is None:
        if name is not None:
            raise BadInput("--pool: names a pool of a configuration; give it with --spec")
        return {}
    found = _pool(path, name)
    capacity = pool_capacity(found)
    known: dict[str, Any] = {
        "cold_start_s": sizing.exactly(capacity.cold_start_s),
        "spares": found.scaling.spare_replicas,
    }
    if found.scaling.ramp_per_s2:
        known["ramp_per_s2"] = sizing.exactly(found.scaling.ramp_per_s2 * 60) / 60
    if capacity.rate_per_s:
        known["replica_per_s"] = sizing.exactly(capacity.rate_per_s * 60) / 60
    if found.profile is not None:
        known["gpus_per_replica"] = found.profile.gpus
        if found.profile.gpu_hour_usd:
            known["gpu_hour_usd"] = sizing.exactly(found.profile.gpu_hour_usd)
    return known


def _pool(path: Path, name: str | None) -> Pool:
    pools = {each.name: each for each in load(path).pools}
    if name is None:
        if len(pools) > 1:
            raise BadInput(f"{path} has several pools; name one with --pool: {', '.join(pools)}")
        return next(iter(pools.values()))
    if name not in pools:
        hint = did_you_mean(name, pools)
        raise BadInput(f"--pool: found {name!r}, allowed: {', '.join(pools)}" + (f"; {hint}" if hint else ""))
    return pools[name]


def _one_of(options: dict[str, Any], what: str) -> None:
    given = [option for option, value in options.items() if value is not None]
    if len(given) > 1:
        raise BadInput(f"{' and '.join(given)} both say {what}; give one of them")


def _fraction(option: str, text: str, found: str, allowed: str) -> Fraction:
    compact = text.strip().replace("_", "")
    if not _NUMBER.fullmatch(compact) or Fraction(compact) > LARGEST:
        raise BadInput(f"{option}: found {found!r}, allowed: {allowed}")
    return Fraction(compact)


def _decimal(option: str, text: str | None) -> Fraction | None:
    return None if text is None else _fraction(option, text, text, "a number of at least 0, such as 25 or 2.5")


def _rate(option: str, text: str | None) -> Fraction | None:
    if text is None:
        return None
    amount, _, unit = text.partition("/")
    if unit.strip() not in _PER_S or ("/" in text and not unit.strip()):
        raise BadInput(f"{option}: found {text!r}, allowed: {_RATE_WORDS}")
    return _fraction(option, amount, text, _RATE_WORDS) / _PER_S[unit.strip()]


def _share(text: str | None) -> Fraction | None:
    if text is None:
        return None
    allowed = "a share above 0 and at most 1, such as 0.7 or 70%"
    percent = text.strip().endswith("%")
    share = _fraction("--target", text.strip().removesuffix("%"), text, allowed) / (100 if percent else 1)
    if not 0 < share <= 1:
        raise BadInput(f"--target: found {text!r}, allowed: {allowed}")
    return share


def _time_s(option: str, text: str | None) -> Fraction | None:
    if text is None:
        return None
    try:
        seconds = parse_duration_s(text)
    except ValueError as error:
        raise BadInput(f"{option}: {error}") from None
    if seconds > LARGEST:
        raise BadInput(f"{option}: found {text!r}, allowed: a time that a start can take, such as 6m")
    return sizing.exactly(seconds)


def _ramp(text: str | None) -> Fraction | None:
    rate = _rate("--ramp-per-min", text)
    return None if rate is None else rate / 60


def _rise(text: str) -> Fraction:
    """The ramp of ``100/min..400/min/10m``, per second and second."""
    allowed = "two rates and the time between them, such as 100/min..400/min/10m"
    rates, _, time = text.rpartition("/")
    start, dots, end = rates.partition("..")
    if not dots:
        raise BadInput(f"--rise: found {text!r}, allowed: {allowed}")
    low, high, seconds = _rate("--rise", start), _rate("--rise", end), _time_s("--rise", time)
    if low is None or high is None or not seconds or high < low:
        raise BadInput(f"--rise: found {text!r}, allowed: {allowed}, the second rate the higher one")
    return (high - low) / seconds


def _per(rate_per_s: Fraction) -> str:
    """A rate for people: per minute where that is a short number and per second is not."""
    by_minute = 1000 % rate_per_s.denominator and not 1000 % (rate_per_s * 60).denominator
    return f"{float(rate_per_s * 60):,.6g}/min" if by_minute else f"{float(rate_per_s):,.6g}/s"


def _replicas(count: float) -> str:
    return f"{count:g} replica{'' if count == 1 else 's'}"


def _usd(amount: float) -> str:
    return f"${amount:,.0f}" if amount >= 1000 or amount == int(amount) else f"${amount:,.2f}"


def _print(facts: Facts, planned: Plan) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for row in [*_sizes(facts, planned), *_prices(facts, planned)]:
        table.add_row(*row)
    console = output_console(highlight=False)
    console.print(table)
    if planned.saved_month_usd is not None:
        console.print("\nIt is saved only where the GPUs that were released go back to their provider, or are lent to batch work.")


def _sizes(facts: Facts, planned: Plan) -> list[tuple[str, str, str]]:
    each = facts.replica_per_s * facts.target
    share = "all that it can serve" if facts.target == 1 else f"{float(facts.target):.4g} of the {_per(facts.replica_per_s)} it can serve"
    rows = [("one replica", _per(each), share)]
    for name, rate, count, gpus in (
        ("peak", facts.peak_per_s, planned.peak_replicas, planned.peak_gpus),
        ("trough", facts.trough_per_s, planned.trough_replicas, planned.trough_gpus),
    ):
        if rate is not None and count is not None:
            because = f"{_per(rate)} ÷ {_per(each)} = {float(rate / each):.4g}, rounded up"
            rows.append((name, f"{_replicas(count)}, {gpus} GPU{'' if gpus == 1 else 's'}", because))
    if facts.ramp_per_s2 and not facts.cold_start_s:
        rows.append(("warm buffer", "not known", "give --cold-start: how long until a new replica is ready"))
    elif facts.ramp_per_s2:
        until = format_duration(float(facts.cold_start_s))
        because = f"a rise of {_per(facts.ramp_per_s2 * 60)} a minute × the {until} until a new replica is ready"
        rows.append(("headroom", _per(facts.ramp_per_s2 * facts.cold_start_s), because))
        rows.append(("warm buffer", _replicas(planned.buffer_replicas), f"{planned.headroom_ratio:.4g} replicas' worth, rounded up"))
    if planned.spare_replicas:
        rows.append(("spares", _replicas(planned.spare_replicas), "may fail at once and not be missed"))
    if planned.floor_replicas is not None:
        rows.append(("min", _replicas(planned.floor_replicas), "trough and spares: the pool's scaling.min"))
    if planned.ceiling_replicas is not None:
        rows.append(("max", _replicas(planned.ceiling_replicas), "peak, warm buffer and spares: the pool's scaling.max"))
    return rows


def _prices(facts: Facts, planned: Plan) -> list[tuple[str, str, str]]:
    if facts.gpu_hour_usd is None:
        return [("cost", "not known", "give --gpu-hour-usd")]
    price = f"{facts.gpus_per_replica} GPU{'' if facts.gpus_per_replica == 1 else 's'} × ${float(facts.gpu_hour_usd):g}"
    month = f"× {price} × {float(facts.hours_per_month):g} h"
    rows = []
    if planned.buffer_replicas and planned.buffer_hour_usd is not None and planned.buffer_day_usd is not None:
        rows.append(
            (
                "buffer costs",
                f"{_usd(planned.buffer_hour_usd)}/h, {_usd(planned.buffer_day_usd)}/day",
                f"{planned.buffer_replicas} × {price}",
            )
        )
    if planned.static_month_usd is not None and planned.peak_replicas is not None:
        count = planned.peak_replicas + planned.spare_replicas
        rows.append(("static", f"{_usd(planned.static_month_usd)}/month", f"{count} {month}: sized for the peak, day and night"))
    if planned.autoscaled_month_usd is not None and planned.average_replicas is not None:
        rows.append(("autoscaled", f"{_usd(planned.autoscaled_month_usd)}/month", f"{planned.average_replicas:.4g} on average {month}"))
    elif planned.static_month_usd is not None:
        rows.append(("autoscaled", "not known", "give --average-replicas, or a --trace"))
    if planned.saved_month_usd is not None and planned.static_month_usd:
        share = planned.saved_month_usd / planned.static_month_usd
        rows.append(("saved", f"{_usd(planned.saved_month_usd)}/month", f"{share:.0%} of the static bill"))
    return rows
