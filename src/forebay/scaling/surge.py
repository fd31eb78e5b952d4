"""Demand far beyond anything that is foreseen: what to start for while it still climbs, before the forecast's windows can see it.

The forecast judges windows shorter than a start, and is right to: what is up by half now is mostly down again when a replica
would serve. A multiple of what was there is another matter, unless such multiples come and go in this pool (then the forecast's errors hold
them, at what they are worth). The newest reading proves it, and with the one before shows how
steeply it climbs: as the last step, or where that is the first one, less (their geometric mean), for a jump is no climb. A climb is
followed for AHEAD_S more and no further: what is then still missing is asked for that much later, and no more is lost.
"""

import math
from collections.abc import Sequence

import msgspec

from forebay.domain.scaling import Term, TermKind
from forebay.domain.units import format_time
from forebay.scaling import spread
from forebay.scaling.arrivals import READING_S, summed
from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.economics import whole
from forebay.scaling.floors import per_time
from forebay.scaling.memory import Bucket

FACTOR = 2.0
"""Times the demand of before that must be proven."""
REPLICAS_MIN = 2.0
"""And by so many replicas' worth: a pool of one may double by chance."""
RARE = 0.005
"""Of the forecast's outcomes may have been as far above what was expected: seven minutes a day."""
BEFORE_S, SINCE_S = 300.0, 300.0
"""*Before*: the mean over BEFORE_S, up to SINCE_S ago; from then on the forecast's own windows see it."""
APART_S = 1.25 * READING_S
"""Between the middles of *now* (the newest reading) and *then* (the mean of readings half a minute to a minute ago, each of READING_S)."""
AHEAD_S = 45.0
COVERED_MIN = 0.45


class Surge(msgspec.Struct, frozen=True):
    """Requests per second."""

    before_per_s: float
    now_per_s: float
    """The newest reading."""
    climb_per_s2: float
    ahead_per_s: float


def seen(
    buckets: Sequence[Bucket],
    now_s: float,
    reading_per_s: float | None,
    replica_per_s: float,
    sigmas: float,
    outcomes: bytes = b"",
    swing: float = 1.0,
) -> Surge | None:
    """The surge under way; None where there is none, or too little is known of before.

    ``outcomes``: the forecast's (`scaling.spread`), in units of ``swing``.
    """
    if reading_per_s is None:
        return None
    root = math.sqrt(max(0.0, reading_per_s) * READING_S) - sigmas / 2
    proven = root * root / READING_S if root > 0 else 0.0
    before = _mean(buckets, now_s, SINCE_S + BEFORE_S, SINCE_S)
    if before is None or proven < FACTOR * before or proven < before + REPLICAS_MIN * replica_per_s:
        return None
    if not _rare(proven / before if before > 0 else math.inf, outcomes, swing):
        return None
    then = _mean(buckets, now_s, 2 * READING_S, READING_S)
    first, last = (0.0, 0.0) if then is None else (max(0.0, then - before), max(0.0, reading_per_s - then))
    climb = min(last, math.sqrt(first * last)) / APART_S
    return Surge(before, reading_per_s, climb, reading_per_s + climb * (READING_S / 2 + AHEAD_S))


def surged(surge: Surge, capacity: PoolCapacity) -> Term:
    """The floor: replicas for where the climb leads. No headroom: the usual errors say nothing about what nobody foresaw."""
    worth = surge.ahead_per_s / (capacity.rate_per_s or math.inf)
    because = (
        f"{per_time(surge.now_per_s)} arrive, {surge.now_per_s / max(surge.before_per_s, 1e-9):.3g} times what came"
        f" {format_time(SINCE_S)} ago; {per_time(surge.ahead_per_s)} where that leads"
    )
    numbers = {
        "before_per_s": surge.before_per_s,
        "now_per_s": surge.now_per_s,
        "climb_per_s2": surge.climb_per_s2,
        "ahead_per_s": surge.ahead_per_s,
        "replica_rate_per_s": capacity.rate_per_s or 0.0,
    }
    return Term("surge", TermKind.FLOOR, whole(worth), because, numbers)


def _rare(ratio: float, outcomes: bytes, swing: float) -> bool:
    """Whether what comes has hardly ever been ``ratio`` times what was expected; where nothing is known it has not."""
    counts = spread.unpacked(outcomes)
    if counts is None:
        return True
    counts = spread.of_ratios(counts, swing)
    return float(counts[min(ratio, spread.RATIOS[-1]) <= spread.RATIOS].sum()) <= RARE * float(counts.sum())


def _mean(buckets: Sequence[Bucket], now_s: float, from_s: float, to_s: float) -> float | None:
    """Mean rate from ``from_s`` to ``to_s`` ago; None where less than half of that is known."""
    longer, shorter = summed(buckets, now_s, from_s), summed(buckets, now_s, to_s)
    seconds = longer.seconds - shorter.seconds
    return (longer.requests - shorter.requests) / seconds if seconds >= COVERED_MIN * (from_s - to_s) else None
