"""How large a pool is and what it costs, from a few numbers: exact arithmetic, so that 42 ÷ 8.4 is 5 and not 6.

Binary fractions have no 8.4, and a quotient that is a hair above 5 rounds up to a replica that nobody needs. So everything
is a ratio of whole numbers until it is written out. No physics is in here: the rate that one replica serves is given.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import msgspec

HOURS_PER_MONTH = Fraction(730)
"""365 × 24 ÷ 12, as cloud bills have it."""
DIGITS = 12
"""Digits of a measured or computed rate that count: what lies beyond is dust of floating point."""


class Facts(msgspec.Struct, frozen=True):
    """What is known about a pool; rates in requests per second. None: not told, and what hangs on it stays open."""

    replica_per_s: Fraction
    """What one replica serves within its promises."""
    target: Fraction = Fraction(1)
    """Share of it to be used, 0 to 1: what is left absorbs chance."""
    peak_per_s: Fraction | None = None
    trough_per_s: Fraction | None = None
    average_replicas: Fraction | None = None
    """Replicas that run on average, buffer and spares included."""
    gpus_per_replica: int = 1
    gpu_hour_usd: Fraction | None = None
    hours_per_month: Fraction = HOURS_PER_MONTH
    ramp_per_s2: Fraction = Fraction(0)
    """How fast the rate rises at its steepest: requests per second, per second."""
    cold_start_s: Fraction = Fraction(0)
    spares: int = 0
    """Replicas that may fail at once and not be missed."""


Number = int | float
"""Whole where it is whole: ``42`` and not ``42.0``."""


class Plan(msgspec.Struct, frozen=True):
    """The sizes and prices that follow; None where a fact is missing. Rates in requests per second."""

    replica_qps: Number
    """One replica at the target: what demand is divided by."""
    peak_replicas: int | None
    trough_replicas: int | None
    peak_gpus: int | None
    trough_gpus: int | None
    headroom_qps: Number
    """What arrives more by the time a replica asked for now is ready: ramp × cold start."""
    headroom_ratio: float
    """The headroom in replicas, before rounding up."""
    buffer_replicas: int
    spare_replicas: int
    floor_replicas: int | None
    """Trough and spares: the pool's ``min``."""
    ceiling_replicas: int | None
    """Peak, buffer and spares: the pool's ``max``."""
    average_replicas: Number | None
    static_month_usd: Number | None
    """Peak and spares, all month."""
    autoscaled_month_usd: Number | None
    saved_month_usd: Number | None
    buffer_hour_usd: Number | None
    buffer_day_usd: Number | None


def plan(facts: Facts) -> Plan:
    """Work ``facts`` out. Raises ValueError for a rate, target, count or price that can't be."""
    _check(facts)
    each = facts.replica_per_s * facts.target
    peak = None if facts.peak_per_s is None else math.ceil(facts.peak_per_s / each)
    trough = None if facts.trough_per_s is None else math.ceil(facts.trough_per_s / each)
    headroom = facts.ramp_per_s2 * facts.cold_start_s
    buffer = math.ceil(headroom / each)
    replica_hour = None if facts.gpu_hour_usd is None else facts.gpus_per_replica * facts.gpu_hour_usd
    static = autoscaled = None
    if replica_hour is not None:
        static = None if peak is None else (peak + facts.spares) * replica_hour * facts.hours_per_month
        autoscaled = None if facts.average_replicas is None else facts.average_replicas * replica_hour * facts.hours_per_month
    return Plan(
        replica_qps=number(each),
        peak_replicas=peak,
        trough_replicas=trough,
        peak_gpus=None if peak is None else peak * facts.gpus_per_replica,
        trough_gpus=None if trough is None else trough * facts.gpus_per_replica,
        headroom_qps=number(headroom),
        headroom_ratio=float(headroom / each),
        buffer_replicas=buffer,
        spare_replicas=facts.spares,
        floor_replicas=None if trough is None else trough + facts.spares,
        ceiling_replicas=None if peak is None else peak + buffer + facts.spares,
        average_replicas=_number_or_none(facts.average_replicas),
        static_month_usd=_number_or_none(static),
        autoscaled_month_usd=_number_or_none(autoscaled),
        saved_month_usd=None if static is None or autoscaled is None else number(static - autoscaled),
        buffer_hour_usd=None if replica_hour is None else number(buffer * replica_hour),
        buffer_day_usd=None if replica_hour is None else number(buffer * replica_hour * 24),
    )


class WarmPlan(msgspec.Struct, frozen=True):
    """The buffer, as far as it may wait warm; the price is None where a GPU's isn't known."""

    warm_replicas: int
    """Of the buffer, on nodes without an engine."""
    running_buffer_replicas: int
    warm_hour_usd: Number | None
    """What the whole buffer costs so."""


def warm_plan(facts: Facts, most: int, share: Fraction, warm_start_s: Fraction) -> WarmPlan:
    """How much of the buffer may be warm nodes, ``most`` of them at ``share`` of the price, with starts of ``warm_start_s`` on them.

    What arrives more during a start on a warm node has to run already; what comes after that can wait for one. Raises ValueError
    for facts that can't be.
    """
    planned = plan(facts)
    running = math.ceil(facts.ramp_per_s2 * min(warm_start_s, facts.cold_start_s) / (facts.replica_per_s * facts.target))
    warm = min(most, planned.buffer_replicas - running) if share < 1 else 0
    running = planned.buffer_replicas - warm
    usd = None if facts.gpu_hour_usd is None else number((running + warm * share) * facts.gpus_per_replica * facts.gpu_hour_usd)
    return WarmPlan(warm, running, usd)


def spares_over(peak_replicas: int, failure_domains: int) -> int:
    """The fewest spares with which ``peak_replicas`` still run after one of ``failure_domains`` is lost.

    Replicas are spread evenly, so the fullest domain has ``⌈n ÷ domains⌉`` of them. Raises ValueError below two domains.
    """
    if failure_domains < 2:
        raise ValueError(f"{failure_domains} failure domains: with fewer than 2, losing one loses everything")
    # n − ⌈n ÷ d⌉ ≥ p holds exactly from n = p + ⌈p ÷ (d − 1)⌉ on: each of the other d − 1 domains carries its share of the lost one.
    return math.ceil(Fraction(peak_replicas, failure_domains - 1))


RISE_QUANTILE = Fraction(99, 100)
"""Share of moments whose rise a warm buffer should cover: a trace's steepest one is mostly chance."""


class Demand(msgspec.Struct, frozen=True):
    """What the rates of a trace come to, in requests per second."""

    peak_per_s: Fraction
    trough_per_s: Fraction
    mean_per_s: Fraction
    ramp_per_s2: Fraction
    """The rise over one cold start that RISE_QUANTILE of the moments don't exceed, per second of it."""
    mean_replicas: Fraction
    """On average over the buckets, each with the whole replicas its rate needs; no buffer, no spares."""


def demand(rates_per_s: Sequence[float], bucket_s: Fraction, replica_per_s: Fraction, cold_start_s: Fraction) -> Demand:
    """Peak, trough, mean and ramp of a trace.

    ``rates_per_s``: mean rate of each bucket of ``bucket_s``, quiet ones included, NaN where it isn't known; ``replica_per_s``: what
    one replica serves at its target. A rise is looked for over the cold start, rounded up to whole buckets. Raises ValueError
    where no rate is known.
    """
    rates = [exactly(rate) if math.isfinite(rate) else None for rate in rates_per_s]
    known = [rate for rate in rates if rate is not None]
    if not known:
        raise ValueError("no bucket of the trace has a known rate")
    steps = max(1, math.ceil(cold_start_s / bucket_s))
    pairs = zip(rates, rates[steps:], strict=False)
    rises = sorted(max(Fraction(0), later - now) for now, later in pairs if now is not None and later is not None) or [Fraction(0)]
    return Demand(
        peak_per_s=max(known),
        trough_per_s=min(known),
        mean_per_s=sum(known, Fraction(0)) / len(known),
        ramp_per_s2=rises[max(0, math.ceil(RISE_QUANTILE * len(rises)) - 1)] / (steps * bucket_s),
        mean_replicas=Fraction(sum(math.ceil(rate / replica_per_s) for rate in known), len(known)),
    )


def number(value: Fraction) -> Number:
    """``value`` for JSON: whole if it is, else the nearest float."""
    return value.numerator if value.denominator == 1 else float(value)


def exactly(value: float) -> Fraction:
    """The decimal that ``value`` stands for, dust beyond ``DIGITS`` digits dropped."""
    return Fraction(f"{value:.{DIGITS}g}")


def _number_or_none(value: Fraction | None) -> Number | None:
    return None if value is None else number(value)


def _check(facts: Facts) -> None:
    for name in ("replica_per_s", "target", "gpus_per_replica", "hours_per_month"):
        if getattr(facts, name) <= 0:
            raise ValueError(f"{name} is {getattr(facts, name)}; it is more than 0")
    for name in ("peak_per_s", "trough_per_s", "average_replicas", "gpu_hour_usd", "ramp_per_s2", "cold_start_s", "spares"):
        value = getattr(facts, name)
        if value is not None and value < 0:
            raise ValueError(f"{name} is {value}; it is at least 0")
    if facts.target > 1:
        raise ValueError(f"target is {facts.target}; it is a share of what a replica can do, at most 1")
