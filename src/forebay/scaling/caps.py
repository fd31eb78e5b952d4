"""The caps: what is never exceeded, whoever asks. The maximum, the budget, and growth that nobody has approved.

The maximum and the budget are obeyed at once, even downwards: somebody set them. The cap on growth never lowers
anything; it only holds where people want to be asked, and says so.
"""

import math
from functools import lru_cache

from forebay.domain.scaling import Term, TermKind
from forebay.scaling.capacity import REPLICAS_MAX, PoolCapacity
from forebay.scaling.memory import Peak, peaks
from forebay.scaling.schedule import Active
from forebay.scaling.sight import Sight
from forebay.spec.types import Scaling

GROWTH_S = 3600.0
"""Growth is measured from the fewest that were wanted over this long."""
LIMITS_KEPT_MAX = 32
"""Maximums whose term is kept: a pool has one."""
ASK = "ask"


def asks(settings: Scaling, capacity: PoolCapacity) -> int | None:
    """Replicas of growth that nobody has to approve; None: any number."""
    by_usd = None
    if settings.ask_above_usd is not None and capacity.replica_hour_usd > 0:
        by_usd = math.floor(round(settings.ask_above_usd / capacity.replica_hour_usd, 9))
    given = [each for each in (settings.ask_above, by_usd) if each is not None]
    return min(given) if given else None


def lows(before: tuple[Peak, ...], now_s: float, desired: int) -> tuple[Peak, ...]:
    """The fewest wanted in each part of the last hour."""
    return peaks(before, now_s, desired, GROWTH_S, most=False)


def terms(settings: Scaling, capacity: PoolCapacity, sight: Sight, hour: tuple[Peak, ...], active: Active | None) -> tuple[Term, ...]:
    """Every cap that is set, the maximum first."""
    found = [_maximum(settings.max_replicas)]
    price = capacity.replica_hour_usd
    if settings.budget_usd_per_hour is not None and price > 0:
        paid = math.floor(round(min(settings.budget_usd_per_hour / price, float(REPLICAS_MAX)), 9))
        because = f"${settings.budget_usd_per_hour:g} an hour pay for {paid} at ${price:g} each"
        found.append(Term("budget", TermKind.CAP, paid, because, {"usd_per_hour": settings.budget_usd_per_hour, "replica_hour_usd": price}))
    growth = asks(settings, capacity)
    if growth is not None:
        fewest = min([sight.desired, *(low.replicas for low in hour)])
        scheduled = active.entry.min_replicas if active is not None else 0
        allowed = max(fewest + growth, sight.desired, settings.approved_replicas, settings.min_replicas, scheduled)
        because = (
            f"{fewest} were enough within the last hour, and more than {growth} on top has to be approved"
            f" (scaling.ask.approved is {settings.approved_replicas})"
        )
        found.append(Term(ASK, TermKind.CAP, allowed, because, {"fewest": float(fewest), "above": float(growth)}))
    return tuple(found)


@lru_cache(maxsize=LIMITS_KEPT_MAX)
def _maximum(most: int) -> Term:
    return Term("max", TermKind.CAP, most, f"never more than {most}", {"max": float(most)})


def lowest(found: tuple[Term, ...]) -> Term:
    """The cap that caps most; the first of equals."""
    return found[0] if len(found) == 1 else min(found, key=lambda term: term.replicas)
