"""What ``forebay plan size`` is told: numbers as exact decimals, a pool of a configuration, the rates of a trace."""

import math
import re
import time
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from forebay.app.config import load
from forebay.cli.trace_words import say_doubts
from forebay.demand.trace import RATE_FORMATS
from forebay.domain.errors import BadInput
from forebay.domain.units import format_duration, parse_duration_s
from forebay.scaling.capacity import pool_capacity
from forebay.simulation import sizing
from forebay.spec.problems import did_you_mean
from forebay.spec.types import Pool

if TYPE_CHECKING:
    from forebay.app.lab.replica_rate import ReplicaRate

LARGEST = 10**12
"""No rate, price or time is larger: beyond it, it is a mistake."""
BUCKETS_MAX = 1_000_000
"""Of a trace: nine years of five minutes."""
_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,15})?|\.\d{1,15}")
_PER_S = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "hour": 3600, "d": 86_400}

_RATE_WORDS = "a number (per second), or one per s, min, h or d, such as 12 or 50/min"


def of_pool(path: Path | None, name: str | None) -> dict[str, Any]:
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


def computes_rate(path: Path | None, name: str | None) -> bool:
    """Whether the rate of one replica is the formula's: no pool of ``path`` declares its own."""
    return path is not None and _pool(path, name).scaling.replica_rate_per_s is None


def warm_of(path: Path | None, name: str | None, facts: sizing.Facts) -> tuple[sizing.WarmPlan, Fraction] | None:
    """What the pool's warm nodes make of the buffer, and how long a start on one takes; None where it holds none."""
    found = _pool(path, name) if path is not None else None
    if found is None or not found.scaling.warm_max:
        return None
    start_s = facts.cold_start_s * sizing.exactly(pool_capacity(found).warm_part)
    return sizing.warm_plan(facts, found.scaling.warm_max, sizing.exactly(found.scaling.warm_share), start_s), start_s


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


def one_of(options: dict[str, Any], what: str) -> None:
    """Raises BadInput where more than one of ``options`` is given."""
    given = [option for option, value in options.items() if value is not None]
    if len(given) > 1:
        raise BadInput(f"{' and '.join(given)} both say {what}; give one of them")


def _fraction(option: str, text: str, found: str, allowed: str) -> Fraction:
    compact = text.strip().replace("_", "")
    if not _NUMBER.fullmatch(compact) or Fraction(compact) > LARGEST:
        raise BadInput(f"{option}: found {found!r}, allowed: {allowed}")
    return Fraction(compact)


def decimal(option: str, text: str | None) -> Fraction | None:
    """A number of at least 0, exactly as typed."""
    return None if text is None else _fraction(option, text, text, "a number of at least 0, such as 25 or 2.5")


def rate(option: str, text: str | None) -> Fraction | None:
    """Requests per second in ``12`` or ``50/min``."""
    if text is None:
        return None
    amount, _, unit = text.partition("/")
    if unit.strip() not in _PER_S or ("/" in text and not unit.strip()):
        raise BadInput(f"{option}: found {text!r}, allowed: {_RATE_WORDS}")
    return _fraction(option, amount, text, _RATE_WORDS) / _PER_S[unit.strip()]


def share(text: str | None) -> Fraction | None:
    """The target in ``0.7`` or ``70%``."""
    if text is None:
        return None
    allowed = "a share above 0 and at most 1, such as 0.7 or 70%"
    percent = text.strip().endswith("%")
    part = _fraction("--target", text.strip().removesuffix("%"), text, allowed) / (100 if percent else 1)
    if not 0 < part <= 1:
        raise BadInput(f"--target: found {text!r}, allowed: {allowed}")
    return part


def time_s(option: str, text: str | None) -> Fraction | None:
    """Seconds in ``6m``."""
    if text is None:
        return None
    try:
        seconds = parse_duration_s(text)
    except ValueError as error:
        raise BadInput(f"{option}: {error}") from None
    if seconds > LARGEST:
        raise BadInput(f"{option}: found {text!r}, allowed: a time that a start can take, such as 6m")
    return sizing.exactly(seconds)


def ramp(text: str | None) -> Fraction | None:
    """Per second and second, of a rise within a minute."""
    within_min = rate("--ramp-per-min", text)
    return None if within_min is None else within_min / 60


def rise(text: str) -> Fraction:
    """The ramp of ``100/min..400/min/10m``, per second and second."""
    allowed = "two rates and the time between them, such as 100/min..400/min/10m"
    rates, _, time = text.rpartition("/")
    start, dots, end = rates.partition("..")
    if not dots:
        raise BadInput(f"--rise: found {text!r}, allowed: {allowed}")
    low, high, seconds = rate("--rise", start), rate("--rise", end), time_s("--rise", time)
    if low is None or high is None or not seconds or high < low:
        raise BadInput(f"--rise: found {text!r}, allowed: {allowed}, the second rate the higher one")
    return (high - low) / seconds


def check_lengths(lengths: Path | None, spec: Path | None, qps_per_replica: str | None, measure: bool) -> None:
    """Raises BadInput where ``lengths`` would not be looked at."""
    if lengths is not None and (spec is None or qps_per_replica is not None or not measure):
        raise BadInput(
            "--lengths: found nothing to measure, allowed: beside --spec, whose replica is measured with them, and without "
            "--qps-per-replica and --no-measure"
        )


def measured_rate(
    spec: Path, name: str | None, lengths: Path | None, trace: "TracePart | None", lenient: bool, peak_per_s: float
) -> "ReplicaRate | None":
    """What one replica of the pool serves with the lengths of the file that was named, else of the trace, if it is one of requests.

    None where there are none, no profile, or a declared rate stands.
    """
    pool = _pool(spec, name)
    column = ""
    if lengths is None and trace is not None and trace.of_requests():
        lengths, column = trace.path, trace.column
    if lengths is None or pool.profile is None or pool.scaling.replica_rate_per_s is not None:
        return None
    from forebay.app.lab.replica_rate import REPLICAS_MAX, measured  # the simulator: nothing that plain numbers should wait for
    from forebay.app.traces import length_sampler

    tiers = sorted(load(spec).tiers, key=lambda tier: tier.rank)
    rate_per_s = pool_capacity(pool).rate_per_s
    replicas = math.ceil(peak_per_s / rate_per_s) if rate_per_s else 0
    sampler = length_sampler(lengths, (pool.scaling.prompt_tokens, pool.scaling.output_tokens), lenient, column=column)
    return measured(pool, tiers, sampler, replicas or REPLICAS_MAX // 2, time.process_time)


class TracePart(msgspec.Struct, frozen=True):
    """Which part of which trace."""

    path: Path
    trace_format: str
    start_s: Fraction | None
    duration_s: Fraction | None
    rate_scale: float
    column: str
    bucket_s: Fraction | None
    lenient: bool

    def of_requests(self) -> bool:
        """Whether it has requests, with lengths of their own. Raises BadInput for what is no trace."""
        from forebay.app.trace_files import format_of

        return format_of(self.path, self.trace_format, self.column) not in RATE_FORMATS


class Rates(msgspec.Struct, frozen=True):
    """Mean rates of a trace's buckets."""

    bucket_s: Fraction
    per_s: list[float]
    told: tuple[str, ...] = ()
    """What became of rows that were not taken as they stand."""


def rates_of(wanted: TracePart) -> Rates:
    """The rates of ``wanted``. Raises BadInput for a trace, or a part of it, that can't be used."""
    from forebay.app.traces import open_arrivals  # readers of every format: nothing that plain numbers should wait for

    if not wanted.bucket_s:
        raise BadInput("--bucket: found 0, allowed: a time of more than 0, such as 5m")
    say_doubts(wanted.path, wanted.trace_format, wanted.column)
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
            f"--bucket: found {format_duration(float(wanted.bucket_s))}, allowed: at most {BUCKETS_MAX:,} of them in the trace's "
            f"{format_duration(trace.duration_s)}"
        )
    return Rates(wanted.bucket_s, [float(rate) for rate in trace.series(float(wanted.bucket_s)).values], tuple(trace.counts.told()))
