"""The floors: replicas that stand whatever the queue says. Minimum, calendar, demand, warm buffer on top of it, spares on top of that.

Queues speak minutes too late for engines that take minutes to start, so the base of the decision is arithmetic: demand
÷ what one replica serves at its SLO, and the demand that can arrive while a replica starts.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from forebay.domain.scaling import Term, TermKind
from forebay.domain.units import format_time
from forebay.scaling import pooling
from forebay.scaling.arrivals import Demand
from forebay.scaling.capacity import PoolCapacity, whole_replicas
from forebay.scaling.economics import Prices, pooled
from forebay.scaling.outlook import Outlook
from forebay.scaling.schedule import Active
from forebay.spec.types import Scaling

LIMITS_KEPT_MAX = 32
"""Minimums whose term is kept: a pool has one."""
PAST_RAMPS_MAX = 10_000
FRACTION_FORESEEN = 0.5
"""With an outlook, present demand is rounded up from here: what a fraction of a replica is worth, the forecast weighs."""
FEW = 0.9
"""Where a replica is worth less than this of one in a large fleet (`scaling.pooling`), a person is told."""


def minimum(settings: Scaling) -> Term:
    """The configured minimum."""
    return _minimum(settings.min_replicas)


@lru_cache(maxsize=LIMITS_KEPT_MAX)
def _minimum(least: int) -> Term:
    return Term("min", TermKind.FLOOR, least, f"never fewer than {least}", {"min": float(least)})


def scheduled(active: Active, wall_s: float) -> Term:
    """The scheduled minimum of the calendar."""
    entry = active.entry
    early = f", asked for {format_time(active.start_s - wall_s)} ahead of its start" if wall_s < active.start_s else ""
    return Term(
        "calendar",
        TermKind.FLOOR,
        entry.min_replicas,
        f"{entry.name} wants {entry.min_replicas} ({entry.timezone}{early})",
        {"min": float(entry.min_replicas), "start_wall_s": active.start_s, "end_wall_s": active.end_s},
    )


def demanded(demand: Demand, capacity: PoolCapacity, fraction: float = 0.0, worth: float = 1.0) -> Term:
    """Demand now ÷ capacity per replica, rounded up where it is more than ``fraction`` above a whole number.

    ``worth``: that much of it is worth starting replicas for (`economics.worth_now`).
    """
    replicas = whole_replicas(demand.proven * worth - fraction)
    each = f", one replica serves {per_time(capacity.rate_per_s)}" if capacity.rate_per_s else ""
    limit = f", limited by {demand.unit}" if demand.unit != "requests" else ""
    lately, certain = format_time(demand.window_s), f"at least {demand.proven:.2f} replicas' worth"
    if worth < 1:
        certain += f"; a start is worth it from {worth:.0%} of that on"
    return Term(
        "demand",
        TermKind.FLOOR,
        replicas,
        f"{per_time(demand.rate_per_s)} arrived over {lately}{each}{limit}: {certain}",
        {
            "rate_per_s": demand.rate_per_s,
            "replica_rate_per_s": capacity.rate_per_s or 0.0,
            "proven_replicas": demand.proven,
            "load_replicas": demand.load,
            "window_s": demand.window_s,
        },
    )


def forecasted(outlook: Outlook, capacity: PoolCapacity, prices: Prices) -> Term:
    """What is expected at the end of a start, and as much above it as is worth its price (`scaling.economics`)."""
    rate = capacity.rate_per_s or math.inf
    expected = outlook.expected_per_s / rate
    replicas = pooled(expected * outlook.headroom_start, capacity, prices.allowed)
    because = (
        f"{per_time(outlook.expected_per_s)} expected in {format_time(outlook.horizon_s)} ({outlook.method}), {expected:.2f} replicas'"
        f" worth; × {outlook.headroom_start:.2f} is what its errors are worth with a miss at {prices.miss_usd / prices.idle_usd:.3g} × idle"
    )
    each = pooling.worth(replicas, prices.allowed) if capacity.profile is not None else 1.0
    if replicas and each < FEW:
        because += f"; so few share no bursts: {replicas} serve as {replicas * each:.2f}"
    numbers = {
        "expected_per_s": outlook.expected_per_s,
        "level_per_s": outlook.level_per_s if outlook.level_per_s is not None else -1.0,
        "horizon_s": outlook.horizon_s,
        "replica_rate_per_s": capacity.rate_per_s or 0.0,
        "expected_replicas": expected,
        "headroom": outlook.headroom_start,
        "headroom_keep": outlook.headroom_keep,
        "miss_usd": prices.miss_usd,
        "idle_usd": prices.idle_usd,
        "each_worth": each,
    }
    return Term("forecast", TermKind.FLOOR, replicas, because, numbers)


def landing(outlook: Outlook, capacity: PoolCapacity, allowed: float, part: float) -> int:
    """Where a change goes that is ``part`` of the way from what is worth starting to what is worth keeping."""
    return _for_load(_within(outlook, part), capacity, allowed)


def kept(outlook: Outlook, capacity: PoolCapacity, allowed: float, part: float = 1.0) -> int:
    """`landing`, and what the highest demand up to the horizon takes: how few are left by a scale-in that goes so far."""
    return _for_load(max(_within(outlook, part), outlook.peak_per_s), capacity, allowed)


def _within(outlook: Outlook, part: float) -> float:
    return outlook.expected_per_s * ((1 - part) * outlook.headroom_start + part * outlook.headroom_keep)


def _for_load(per_s: float, capacity: PoolCapacity, allowed: float) -> int:
    return pooled(per_s / (capacity.rate_per_s or math.inf), capacity, allowed)


def awake(wake_s: float, cold_start_s: float) -> Term | None:
    """One, where a start takes longer than the first request would wait; None where the pool may sleep."""
    if cold_start_s <= wake_s:
        return None
    because = f"a start takes {format_time(cold_start_s)}, and the first request would wait no longer than {format_time(wake_s)}"
    return Term("awake", TermKind.FLOOR, 1, because, {"cold_start_s": cold_start_s, "wait_s": wake_s})


def unmeasured(capacity: PoolCapacity) -> Term:
    """Stands for the demand floor where nobody knows what a replica serves."""
    return Term("demand", TermKind.FLOOR, 0, f"what a replica serves is {capacity.origin or 'not known'}: only the triggers act")


BUFFER_NOISE_REPLICAS = 0.05
"""This much of a replica is noise of the measured cold start: 5m03s in place of 5m must not turn 3 into 4."""


def buffered(
    base: int,
    settings: Scaling,
    capacity: PoolCapacity,
    present_per_s2: float,
    past: Sequence[float],
    cold_start_s: float,
    foreseen: bool = False,
) -> Term | None:
    """Warm buffer on top of ``base``: ⌈ramp × cold start ÷ capacity per replica⌉; None where it is off or capacity isn't known.

    ``ramp`` is the largest of the declared one, the ``ramp_quantile`` of the past ones, and the present one. Where demand is
    ``foreseen``, the forecast's errors hold the past and present ones, at what they are worth: only the declared one counts.
    """
    if not settings.buffer or not capacity.rate_per_s or (foreseen and settings.ramp_per_s2 <= 0):
        return None
    candidates = {"declared": settings.ramp_per_s2, "past": quantile(past, settings.ramp_quantile), "present": present_per_s2}
    origin = "declared" if foreseen else max(candidates, key=lambda name: candidates[name])
    ramp = candidates[origin]
    added = whole_replicas(ramp * cold_start_s / capacity.rate_per_s - BUFFER_NOISE_REPLICAS)
    because = (
        f"{base} for demand + {added}: a ramp of {_number(ramp * 3600)}/min/min ({origin}) × {format_time(cold_start_s)} cold start"
        f" ÷ {per_time(capacity.rate_per_s)} per replica"
    )
    numbers = {
        "added": float(added),
        "ramp_per_s2": ramp,
        "declared_ramp_per_s2": settings.ramp_per_s2,
        "past_ramp_per_s2": candidates["past"],
        "present_ramp_per_s2": present_per_s2,
        "cold_start_s": cold_start_s,
        "replica_rate_per_s": capacity.rate_per_s,
    }
    return Term("buffer", TermKind.FLOOR, base + added, because, numbers)


def spared(base: int, settings: Scaling) -> Term | None:
    """Replicas on top of ``base``, so that as many may fail, or one of the failure domains with all that is in it."""
    for_domain = math.ceil(base / (settings.domains - 1)) if settings.domains > 1 else 0
    spare = max(settings.spare_replicas, for_domain)
    if spare <= 0:
        return None
    fails = f"one of {settings.domains} failure domains" if for_domain > settings.spare_replicas else str(spare)
    numbers = {"added": float(spare), "domains": float(settings.domains)}
    return Term("spare", TermKind.FLOOR, base + spare, f"{base} + {spare} so that {fails} may fail", numbers)


def quantile(values: Sequence[float], fraction: float) -> float:
    """The smallest of ``values`` that at least ``fraction`` of them don't exceed (nearest rank); ill values don't count; 0 if none."""
    clean = sorted(value for value in values[-PAST_RAMPS_MAX:] if math.isfinite(value) and value >= 0)
    if not clean:
        return 0.0
    return clean[max(0, math.ceil(round(fraction * len(clean), 9)) - 1)]


def per_time(rate_per_s: float) -> str:
    """A request rate for people: always per minute, as in `forebay status`, so that two of them compare at a glance."""
    return f"{_number(rate_per_s * 60)}/min"


def _number(value: float) -> str:
    """Four figures, and all before the point."""
    return f"{value:.4g}" if value < 9999.5 else f"{value:.0f}"
