"""The outlook: demand when a replica asked for now will serve, as a distribution that is calibrated by what really came.

The level of the last minutes, times the growth that the forecast expects up to the horizon and the drift that demand of this
shape has shown (`scaling.drift`), is what is expected. Each minute that expectation is noted, and when its time has come, *came ÷
expected* is one more outcome in the histogram (`scaling.spread`). So the histogram holds everything the forecast can't see at
exactly this horizon: noise of a minute, steps, spikes, a bad method. What is decided now never depends on what is learned now.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from forebay.demand import forecast
from forebay.domain.scaling import History
from forebay.scaling import drift, fair, spread
from forebay.scaling.arrivals import summed
from forebay.scaling.economics import Prices, headrooms, late_by_headroom, steadiness
from forebay.scaling.memory import Bucket, Expected, Learnt

LEVEL_HORIZONS, LEVEL_S_MIN, LEVEL_S_MAX = 1.07, 60.0, 180.0
"""The level is the mean over a bit longer than the horizon is away, within these. For a start of six minutes 3 were the best of 3, 5, 10
and 20 on the benchmarks' traces. For one of 1½ the O365 week takes 0.4 % fewer GPU-hours with 1½ or 2 than with 3, the Azure week up to
0.3 % more: where the forecast strays as little as there (`economics.steadiness`), it is of the longest time."""
OUTCOME_S = 60.0
COVERED_MIN = 0.45
"""Part of a window in which the arrival rate must be known: looks a minute apart know half of it."""
HISTORY_S_MIN = 3600.0
"""With less history than this there is no outlook: the buffer and the long calm stand in for it."""
LOOKS_AHEAD = 64
"""Expectations are noted each minute, or so seldom that this many are open at once."""
GROWTH_MAX = 4.0
HORIZON_S_MAX = 14_400.0
"""As far as the forecast looks."""


class Outlook(msgspec.Struct, frozen=True):
    """Requests per second at the horizon."""

    expected_per_s: float
    peak_per_s: float
    """Expected highest up to the horizon: what may be let go is judged by this."""
    level_per_s: float | None
    """Mean of the last minutes; None: not known now, the forecast goes on by itself."""
    horizon_s: float
    method: str
    headroom_start: float
    """Multiple of what is expected that is worth starting."""
    headroom_keep: float


def seen(learnt: Learnt, buckets: Sequence[Bucket], now_s: float, horizon_s: float) -> Outlook | None:
    """What is to be expected ``horizon_s`` from now; None where history is too short or nothing is known."""
    if learnt.minute_s is None or learnt.known_s < HISTORY_S_MIN:
        return None
    level = mean_per_s(buckets, now_s, level_s(horizon_s, learnt.swing))
    if level is not None:
        expected, peak = level * learnt.growth, level * max(learnt.growth, learnt.growth_peak)
    elif learnt.blind_per_s is not None:
        expected = peak = learnt.blind_per_s
    else:
        return None
    return Outlook(expected, peak, level, horizon_s, learnt.method, learnt.headroom_start, learnt.headroom_keep)


def learned(
    learnt: Learnt,
    buckets: Sequence[Bucket],
    now_s: float,
    wall_s: float,
    horizon_s: float,
    history: History,
    prices: Prices,
    timezone: str = "UTC",
) -> Learnt:
    """``learnt`` for the next decision: outcomes that are due, once a minute a new forecast and what it expects.

    ``timezone``: whose clock the same hour of past days is meant in.
    """
    if learnt.minute_s is not None and 0 <= now_s - learnt.minute_s < OUTCOME_S:
        return learnt
    past = forecast.Past.of(history, zone=timezone)
    level = mean_per_s(buckets, now_s, level_s(horizon_s, learnt.swing))
    remembered = forecast.learned(learnt.forecast or forecast.ForecastMemory(), past, wall_s, level)
    at_horizon = forecast.middle(past, wall_s, horizon_s + ahead_s(horizon_s, learnt.swing), remembered)
    now = forecast.middle(past, wall_s, 0.0, remembered)
    known = spread.unpacked(learnt.spread)
    regressions = drift.Regressions(learnt.drift)
    counts, expected = _come_true(known if known is not None else spread.prior(), regressions, learnt.expected, buckets, now_s)
    growth, growth_peak = _growth(at_horizon.value, now.value), _growth(at_horizon.peak, now.value)
    strayed, swing, noted = regressions.told(drift.traits(level or 0.0, growth, buckets, now_s, past.values, past.bucket_s))
    growth *= math.exp(strayed)
    ratios = spread.of_ratios(counts, swing)
    late = late_by_headroom(ratios, prices.allowed)
    start, keep = headrooms(late, prices)
    spaced_s = max(OUTCOME_S, horizon_s / LOOKS_AHEAD)
    fair_share = learnt.fair
    if level is not None:
        came = float(ratios @ spread.RATIOS / np.add.reduce(ratios))
        fair_share = fair.averaged(learnt.fair, late, came, prices.allowed, level * growth)
        if not expected or expected[-1].due_s + spaced_s <= now_s + horizon_s + OUTCOME_S + 1e-6:
            expected = (*expected, Expected(now_s + horizon_s + OUTCOME_S, level * growth, noted))
    return Learnt(
        minute_s=now_s,
        known_s=drift.usual(past.values, past.bucket_s).known_s,
        growth=growth,
        growth_peak=growth_peak,
        blind_per_s=at_horizon.value if at_horizon.known and math.isfinite(at_horizon.value) else None,
        method=at_horizon.method[:32],
        spread=spread.packed(counts),
        drift=regressions.packed(),
        swing=swing,
        fair=fair_share,
        fair_price=fair.price(fair_share, prices.allowed, prices.aim),
        headroom_start=start,
        headroom_keep=keep,
        expected=expected[-LOOKS_AHEAD - 1 :],
        forecast=remembered,
    )


def level_s(horizon_s: float, swing: float) -> float:
    """What the level is the mean over, where the forecast strays by ``swing``."""
    usual = min(LEVEL_S_MAX, max(LEVEL_S_MIN, LEVEL_HORIZONS * horizon_s))
    return usual + steadiness(swing) * (LEVEL_S_MAX - usual)


def ahead_s(horizon_s: float, swing: float) -> float:
    """From the middle of the level's time to half a minute after the horizon, less ``horizon_s`` and the half bucket before now that the
    forecast calls now."""
    return level_s(horizon_s, swing) / 2 + OUTCOME_S / 2


def mean_per_s(buckets: Sequence[Bucket], now_s: float, width_s: float) -> float | None:
    """Mean arrival rate over the last ``width_s``; None where too little of it is known."""
    sums = summed(buckets, now_s, width_s)
    return sums.requests / sums.seconds if sums.seconds >= COVERED_MIN * width_s else None


def _come_true(
    counts: spread.Values, regressions: drift.Regressions, expected: tuple[Expected, ...], buckets: Sequence[Bucket], now_s: float
) -> tuple[spread.Values, tuple[Expected, ...]]:
    """Outcomes of the expectations that are due, and those that aren't. One whose minute nobody saw teaches nothing."""
    came = mean_per_s(buckets, now_s, OUTCOME_S)
    for each in expected:
        if each.due_s <= now_s + 1e-6 and now_s - each.due_s < OUTCOME_S and came is not None and each.per_s > 0:
            remainder = regressions.learn(came / each.per_s, each.noted, 1.0)
            counts = counts if remainder is None else spread.learned(counts, remainder)
    return counts, tuple(each for each in expected if each.due_s > now_s + 1e-6)


def _growth(then: float, now: float) -> float:
    if not (math.isfinite(then) and math.isfinite(now) and now > 0 and then >= 0):
        return 1.0
    return min(GROWTH_MAX, max(1 / GROWTH_MAX, then / now))
