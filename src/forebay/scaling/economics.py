"""How much to hold above what is expected: each replica for as long as what it saves is worth more than it costs.

Demand at the horizon is a distribution, and a fleet does not serve up to a limit and then no more: the fuller it is, the
more requests miss their promise. ``misses(use)`` is ``(1 - attainment)·exp(STEEPNESS·(use - 1))`` while few do, and at a
use of 1 (the capacity at the SLO) just the allowed share does. What is held is the multiple of the expected demand at
which ``idle`` × what is held + ``miss`` × what misses, averaged over what demand may be, is smallest.

Where misses set in at once at a limit this is the newsvendor's rule: hold the quantile ``1 - idle ÷ miss`` of demand. And at
the price of ``1 ÷ (STEEPNESS·allowed)`` idle replica-hours for a missed one, a demand without surprises is held at a use of
1. From there the default price is multiplied with what errors of the forecast make it worth (`scaling.fair`), and corrected by what
really misses (`scaling.sustained`).

A start costs too: its node is paid while it loads, and every change is a risk. So starting one has to be worth more than holding
one, and letting one go too: a band in which nothing happens, from a miss's price × (1 - band) to its price ÷ (1 - band). Misses grow
evenly in their logarithm, so that is as far down as up, and what is held goes to and fro about what is best. Over a band of ±x in
that logarithm misses are on average sinh(x) ÷ x times those in its middle (`_bend`), so the middle is that much dearer.
"""

import math
from functools import lru_cache

import msgspec
import numpy as np

from forebay.scaling import pooling
from forebay.scaling.capacity import REPLICAS_MAX, PoolCapacity
from forebay.scaling.spread import RATIOS, Values
from forebay.spec.types import Scaling, Slo

STEEPNESS = 7.0
"""Growth of the logarithm of misses with use: measured on the simulated fleet (Llama-3.1-70B on H200, conversation lengths) from
1 % of misses to a third of them."""
START_SHARES = ((90.0, 0.42), (360.0, 0.5), (540.0, 0.6))
"""By the cold start: the band, between the lines. With starts as long as the last, more would swallow all; and even the shortest start
is a change, which is worth avoiding where that costs nothing, the more so as the calm before a scale-in (`scale_in.calm_s`) then damps
less. There 0.5 takes 3 to 8 % of the changes away for 0.5 to 0.7 % more GPU-hours
(ServeGen, O365)."""
STILL_SHARES = ((90.0, 0.55), (360.0, 0.65))
"""By the cold start: the band where the forecast is hardly ever far off, at a swing of SWING_STILL: there a replica more or less misses
little, and hardly anything else ends a calm. From SWING_RESTLESS on the band is the cold start's. Over the recorded weeks a demand as
even as Azure's swings by 0.09 to 0.12 in all hours, the O365 week by 0.12 to 0.26; there a band of 0.6 at all hours takes 1.6 % more
GPU-hours."""
SWING_STILL, SWING_RESTLESS = 0.11, 0.14
QUICK_S, SLOW_S = 90.0, 360.0
"""Cold starts between which what is prudent changes: for as long as a start what was decided wrongly goes on costing."""
LANDED_QUICK, LANDED_SLOW = 0.0, 0.5
"""How far into the band a change goes, of its width. Where a change as such is worth avoiding, the best goes not to the band's nearest
edge, where the next one is soon due, but into it (the (s, S) rule of inventories: Scarf 1960). Half of it takes a quarter to a third of
the changes away over the recorded weeks with starts of six minutes; with starts of 90 s it makes more of them turn back, but where the
forecast hardly strays."""
AIM_QUICK, AIM_SLOW = 0.98, 0.95
"""Of the allowed share: what misses are steered to."""
MOVED_MIN_QUICK, MOVED_MIN_SLOW = 0.85, 0.95
"""Of the fair price (`scaling.fair`). Calm days must not make the misses of the next burst cheap, so it is lowered by little."""
USE_MAX = 3.0
"""Far beyond what any fleet serves: there all miss."""
ALLOWED_MIN = 1e-4
"""Share of misses: a promise of 100 % is taken for 99.99 %."""


HEADROOMS: Values = np.exp(np.arange(-0.3, 1.6, 0.01))
"""Multiples of the expected demand that are weighed: 0.74 to 4.9."""
ZERO_UP_TO = 0.05
"""Demand, in replicas, that is not worth a first one."""
ALLOWED_KEPT_MAX = 8
"""Promises whose curve of misses is kept: a pool has one."""
STARTS_KEPT_MAX = 8
"""Cold starts whose band is kept: the measured one moves seldom."""
_USES = RATIOS[:, None] / HEADROOMS[None, :]


class Prices(msgspec.Struct, frozen=True):
    """In idle replica-hours for one replica-hour of requests that miss their promise."""

    start: float
    """For whether to start one more: less, since the start is paid too."""
    keep: float
    """For whether to keep the last one: more, since a start is spared."""
    allowed: float
    """Share of requests that may miss the promise."""
    aim: float
    """Of that share, what misses are steered to."""
    moved_min: float
    """As little as the fair price is multiplied with while less misses."""
    idle_usd: float
    miss_usd: float


def prices(settings: Scaling, slo: Slo, replica_hour_usd: float, cold_start_s: float, moved: float = 1.0, swing: float = 1.0) -> Prices:
    """What ``settings`` say.

    ``moved``: what the default price of a miss has been multiplied with meanwhile; ``swing``: the spread of the forecast's errors.
    """
    allowed = max(ALLOWED_MIN, 1 - slo.attainment)
    idle = settings.idle_usd if settings.idle_usd is not None else replica_hour_usd or 1.0
    miss = settings.miss_usd if settings.miss_usd is not None else moved * idle / (STEEPNESS * allowed)
    share = start_share(cold_start_s, swing) if settings.start_share is None else settings.start_share
    slow = slowness(cold_start_s)
    aim, moved_min = AIM_QUICK + slow * (AIM_SLOW - AIM_QUICK), MOVED_MIN_QUICK + slow * (MOVED_MIN_SLOW - MOVED_MIN_QUICK)
    middle = miss / idle * _bend(share, (1 - slow) * stillness(swing))
    return Prices(middle * (1 - share), middle / (1 - share), allowed, aim, moved_min, idle, miss)


def start_share(cold_start_s: float, swing: float) -> float:
    """The band: the share of the price of a miss that starting one more, or letting one go, has to be worth."""
    usual, still = _shares(cold_start_s)
    return max(usual, usual + stillness(swing) * (still - usual))


@lru_cache(maxsize=STARTS_KEPT_MAX)
def _shares(cold_start_s: float) -> tuple[float, float]:
    """The usual band, and the one where the forecast hardly strays."""
    usual, still = (
        float(np.interp(cold_start_s, [start_s for start_s, _ in line], [share for _, share in line]))
        for line in (START_SHARES, STILL_SHARES)
    )
    return usual, still


def _bend(share: float, gathered: float) -> float:
    """Misses on average over the band, as a multiple of those in its middle.

    What is held lies evenly in the band. Only where changes go to the middle, and serve at once, it lies the nearer to it the likelier
    (``gathered``, 0 to 1), as what strays from a middle to two edges that send it back.
    """
    half = -math.log1p(-share)
    if not half > 0:
        return 1.0
    even, towards = math.sinh(half) / half, (math.sinh(half / 2) / (half / 2)) ** 2
    return even + gathered * (towards - even)


def landed(cold_start_s: float, swing: float) -> float:
    """How far into the band a change goes, 0 to 1, where a start takes ``cold_start_s`` and the forecast strays by ``swing``."""
    return LANDED_QUICK + max(slowness(cold_start_s), stillness(swing)) * (LANDED_SLOW - LANDED_QUICK)


def landed_on_demand(swing: float) -> float:
    """The same of a change that present demand asks for and the forecast does not: only where that hardly strays."""
    return stillness(swing) * LANDED_SLOW


def worth_now(headroom_start: float, swing: float) -> float:
    """Of present demand, what is worth starting replicas for: where the forecast hardly strays, as much as of what is expected.

    Else the floor of demand asks for a replica before one is worth its start, and the band is as narrow as that.
    """
    return 1 - stillness(swing) * max(0.0, 1 - headroom_start)


def stillness(swing: float) -> float:
    """1 for a forecast that strays by SWING_STILL or less, 0 for one that does by SWING_RESTLESS or more."""
    return min(1.0, max(0.0, (SWING_RESTLESS - swing) / (SWING_RESTLESS - SWING_STILL)))


def steadiness(swing: float) -> float:
    """1 up to SWING_STILL as stillness, and 0 from halfway to SWING_RESTLESS on."""
    return max(0.0, 2 * stillness(swing) - 1)


def slowness(cold_start_s: float) -> float:
    """0 for a start of QUICK_S or less, 1 for one of SLOW_S or more."""
    return min(1.0, max(0.0, (cold_start_s - QUICK_S) / (SLOW_S - QUICK_S)))


def headrooms(late: Values, found: Prices) -> tuple[float, float]:
    """Multiples of the expected demand to start up to and to keep, where ``late`` misses (`late_by_headroom`)."""
    start, keep = int((late * found.start + HEADROOMS).argmin()), int((late * found.keep + HEADROOMS).argmin())
    return float(HEADROOMS[start]), float(HEADROOMS[max(start, keep)])


def late_by_headroom(counts: Values, allowed: float) -> Values:
    """What misses, as a share of the expected demand, with each of HEADROOMS held."""
    return np.asarray(counts / np.add.reduce(counts) * RATIOS @ misses_held(allowed))


@lru_cache(maxsize=ALLOWED_KEPT_MAX)
def misses_held(allowed: float) -> Values:
    """Shape (ratios, headrooms): the share that misses where demand came as the one and what is held is the other."""
    return misses(_USES, allowed)


def misses(use: Values, allowed: float, steepness: Values | float = STEEPNESS) -> Values:
    """Share of requests that miss their promise at a use of the capacity at the SLO: ``allowed`` at 1, all of them far beyond."""
    kept = _kept(np.asarray(np.minimum(use, USE_MAX)), allowed, steepness)
    return np.asarray(np.negative(kept, out=kept))


def missed(weights: Values, uses: Values, busiest: float, allowed: float, steepness: Values) -> float:
    """``weights @ misses(uses, …)``, where ``busiest`` is the most of ``uses``, which are used up by this."""
    if busiest > USE_MAX:
        np.minimum(uses, USE_MAX, out=uses)
    return -float(weights @ _kept(uses, allowed, steepness))


def _kept(use: Values, allowed: float, steepness: Values | float) -> Values:
    """`misses` below zero, for uses up to USE_MAX, in their place."""
    use -= 1
    use *= steepness
    np.exp(use, out=use)
    use *= -allowed
    return np.asarray(np.expm1(use, out=use))


def pooled(worth: float, capacity: PoolCapacity, allowed: float) -> int:
    """Whole replicas for a load that is ``worth`` so many of a large fleet's. A declared rate is one of so many as there are."""
    return whole(worth if capacity.profile is None or not worth > ZERO_UP_TO else pooling.needed(worth, allowed))


def whole(replicas: float) -> int:
    """As many whole replicas as ``replicas`` are worth: one more once the present ones are used as much above 1 as they would then
    be below, which is before the half where there are few. Never falls as ``replicas`` rises."""
    if not replicas > ZERO_UP_TO:
        return 0
    bounded = min(replicas, float(REPLICAS_MAX))
    below = math.floor(bounded)
    if below == 0:
        return 1
    return below + (bounded - below > 0.5 - 0.25 / below)
