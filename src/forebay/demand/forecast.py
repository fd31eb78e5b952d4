"""Demand at a horizon as a distribution whose stated quantiles are the achieved ones.

Several methods forecast side by side and are weighed by their recent errors on this very series; around what they say, quantiles are
tracked by what came (`forecast_learning`). The work is done once a bucket, by ``learned``; ``predict`` between two
buckets only moves along the newest forecast and shifts it to the present level.
"""

import math
from bisect import bisect_right
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np

from forebay.demand.forecast_learning import Outcome, Present, WeekAgo, issue, learn
from forebay.demand.forecast_methods import METHODS, said
from forebay.demand.forecast_past import AHEAD_S_MAX, BUCKET_S_MAX, BUCKET_S_MIN, DAY_S, RATE_MAX, Frame, Past, Places, Values, framed
from forebay.demand.forecast_state import FIRST_QUANTILES, LEVELS, SCALE_FIRST, WIDTHS_KEPT_MAX, State

__all__ = ["AHEAD_S_MAX", "METHODS", "ForecastMemory", "Middle", "Past", "Prediction", "learned", "middle", "predict"]

MEMORY_BYTES_MAX = 8_192
REPLAY_S = 7 * DAY_S
"""A forecaster without memory learns from the end of the past: this much of it, which takes about half a second."""
WEEK_AGO_S = (-3_600.0, 0.0, 3_600.0)
"""How the methods would have done a week ago is asked at these origins around the same time."""
READING_S = 30.0
"""Seconds that one reading of the rate stands for."""
LEVEL_AGE_S_MAX = 120.0
"""An older reading is not the present level."""
UNLIKE = 2.0
"""Errors of the last hour that are this many times the usual: today is unlike the past."""
LOG_MAX = 60.0
SHIFT_MAX = 1.5
"""Of a log: the present level shifts a forecast by a factor of 4.5 at most."""
STATES_KEPT_MAX = 32
"""States that are kept as numbers, some 20 kB each: one a pool."""
LEVELS_TUPLE = tuple(LEVELS.tolist())


class Prediction(msgspec.Struct, frozen=True):
    """What demand will be, per second; where nothing can be said, ``known`` is False and every number NaN.

    A rate at an instant is the mean over the bucket-long window that *ends* there. Whoever needs the rate around an instant asks
    for half a bucket more.
    """

    known: bool
    value: float
    """Median of the rate at the horizon."""
    peak: float
    """Median of the highest whole bucket from now to the horizon; at least ``value``."""
    method: str
    """The one of METHODS that weighs most, or ``none``."""
    because: str
    """One sentence for people."""
    weeks: float = 0.0
    """Weeks of known history."""
    coverage: float = math.nan
    """Fraction of past outcomes within the stated 90 % quantile, the last weeks counting most; NaN before there were any."""
    peak_coverage: float = math.nan
    floor: float = 0.0
    scale: float = 0.0
    spread: tuple[float, ...] = ()
    """At LEVELS, in units of ``scale``: log(outcome + floor) − log(value + floor)."""
    peak_spread: tuple[float, ...] = ()

    def quantile(self, q: float) -> float:
        """The rate that demand at the horizon stays at or below with probability ``q``, which is held to 0.05..0.999."""
        return self._at(self.value, self.spread, q)

    def peak_quantile(self, q: float) -> float:
        """The same for the highest whole bucket from now to the horizon; never below ``quantile(q)``."""
        return max(self.quantile(q), self._at(self.peak, self.peak_spread, q))

    def _at(self, centre: float, spread: tuple[float, ...], q: float) -> float:
        if not self.known or math.isnan(q):
            return math.nan
        place = bisect_right(LEVELS_TUPLE, q)
        if place == 0 or place == len(LEVELS_TUPLE):
            strayed = spread[0] if place == 0 else spread[-1]
        else:
            left, right = LEVELS_TUPLE[place - 1], LEVELS_TUPLE[place]
            part = (q - left) / (right - left)
            strayed = spread[place - 1] + part * (spread[place] - spread[place - 1])
        return _rate(math.log(centre + self.floor) + self.scale * strayed, self.floor)


NOTHING = Prediction(False, math.nan, math.nan, "none", "no demand is known of the last hours, and no present rate")


class ForecastMemory(msgspec.Struct, frozen=True, array_like=True):
    """What travels from decision to decision: at most MEMORY_BYTES_MAX bytes. A damaged one is forgotten."""

    bucket_s: float = 0.0
    until_wall_s: float = 0.0
    """The end of the last bucket that was learned from."""
    weeks: float = 0.0
    level_sum: float = 0.0
    """Readings of the rate, exponentially weighted over half a bucket, not divided by their weight."""
    level_weight: float = 0.0
    level_wall_s: float = 0.0
    state: bytes = b""


def learned(memory: ForecastMemory, past: Past, now_wall_s: float, rate_per_s: float | None = None) -> ForecastMemory:
    """``memory`` after a look at ``past`` and at a reading of the present rate (None: not known). Never raises.

    Buckets that were not seen before are learned from, each once; after a change of the bucket's width, a clock set
    back by more than a day, or a time away longer than ``past`` or REPLAY_S, learning starts anew from ``past``.
    """
    memory = _heard(memory if _sane(memory) else ForecastMemory(), now_wall_s, rate_per_s)
    if past.bucket_s == memory.bucket_s and past.end_wall_s == memory.until_wall_s:
        return memory
    past = past.usable()
    if not len(past.values):
        return memory
    behind = (past.end_wall_s - memory.until_wall_s) / past.bucket_s
    if past.bucket_s == memory.bucket_s and -DAY_S / past.bucket_s <= behind < 0.5:
        return memory
    state = _state(memory, past.bucket_s)
    count = len(past.values)
    most = min(count, round(REPLAY_S / past.bucket_s))
    if state is None or not 0 < behind <= most:
        state, behind = State(past.bucket_s), most
    first = count - max(1, round(behind))
    _replay(state, framed(past), np.arange(first + 1, count + 1))
    return msgspec.structs.replace(
        memory,
        bucket_s=past.bucket_s,
        until_wall_s=past.end_wall_s,
        weeks=float(np.isfinite(past.values).sum()) * past.bucket_s / (7 * DAY_S),
        state=state.packed(),
    )


class Middle(NamedTuple):
    """The middle of what a Prediction tells."""

    known: bool
    value: float
    peak: float
    method: str


def predict(past: Past, now_wall_s: float, horizon_s: float, memory: ForecastMemory) -> Prediction:
    """Demand ``horizon_s`` from now (0 to AHEAD_S_MAX) and up to then. Never raises.

    ``memory`` is best the one that ``learned`` gave for the same ``past``; else that is done here, and lost.
    """
    memory = learned(memory, past, now_wall_s)
    horizon_s = _ahead_s(horizon_s)
    level = _level(memory, now_wall_s)
    newest = _newest(memory, now_wall_s)
    if newest is not None:
        return _along(*newest, memory, level, horizon_s)
    if level is None:
        return NOTHING
    spread = tuple(FIRST_QUANTILES.tolist())
    because = "the present rate, and a wide margin: there is no history of the last hours to go by"
    floor = max(1e-9, level[0] * 0.02)
    return Prediction(True, level[0], level[0], METHODS[0], because, memory.weeks, math.nan, math.nan, floor, SCALE_FIRST, spread, spread)


def middle(past: Past, now_wall_s: float, horizon_s: float, memory: ForecastMemory) -> Middle:
    """What `predict` says, without what lies around it: that is most of the work, and not everybody asks for it."""
    newest = _newest(memory, now_wall_s)
    if newest is None or past.bucket_s != memory.bucket_s or past.end_wall_s != memory.until_wall_s:
        whole = predict(past, now_wall_s, horizon_s, memory)
        return Middle(whole.known, whole.value, whole.peak, whole.method)
    told, age_s = newest
    value, peak, nearest, *_ = _middle(told, memory.bucket_s, _level(memory, now_wall_s), age_s, _ahead_s(horizon_s))
    return Middle(True, value, peak, METHODS[int(told.methods[nearest])])


def _ahead_s(horizon_s: float) -> float:
    return min(max(horizon_s, 0.0), AHEAD_S_MAX) if not math.isnan(horizon_s) else AHEAD_S_MAX


def _newest(memory: ForecastMemory, now_wall_s: float) -> "tuple[_Told, float] | None":
    """The newest forecast and its age; None where there is none, or it is too old."""
    told = _read(memory.bucket_s, memory.state) if memory.state else None
    if told is None:
        return None
    origin_wall_s = memory.until_wall_s - told.unseen * memory.bucket_s
    age_s = max(0.0, now_wall_s - origin_wall_s) if math.isfinite(now_wall_s) else 0.0
    return (told, age_s) if age_s <= AHEAD_S_MAX else None


def _sane(memory: ForecastMemory) -> bool:
    numbers = (memory.until_wall_s, memory.weeks, memory.level_sum, memory.level_wall_s)
    return (
        all(abs(number) <= RATE_MAX for number in numbers)
        and 0 <= memory.level_weight <= 1
        and memory.level_sum >= 0
        and (memory.bucket_s == 0 or BUCKET_S_MIN <= memory.bucket_s <= BUCKET_S_MAX)
        and len(memory.state) <= MEMORY_BYTES_MAX
    )


def _heard(memory: ForecastMemory, now_wall_s: float, rate_per_s: float | None) -> ForecastMemory:
    if rate_per_s is None or not (0 <= rate_per_s <= RATE_MAX and math.isfinite(now_wall_s)):
        return memory
    passed_s = now_wall_s - memory.level_wall_s
    if memory.level_weight > 0 and passed_s == 0:
        return memory
    if not 0 < passed_s <= LEVEL_AGE_S_MAX:
        memory, passed_s = msgspec.structs.replace(memory, level_sum=0.0, level_weight=0.0), READING_S
    keep = math.exp(-passed_s / (max(memory.bucket_s, 300.0) / 2))
    return msgspec.structs.replace(
        memory,
        level_sum=float(keep * memory.level_sum + (1 - keep) * rate_per_s),
        level_weight=keep * memory.level_weight + (1 - keep),
        level_wall_s=float(now_wall_s),
    )


def _level(memory: ForecastMemory, now_wall_s: float) -> tuple[float, float] | None:
    """The present rate and its weight, 0 to 1: how much of half a bucket it is known for. None where it isn't known now."""
    if not (memory.level_weight > 0 and 0 <= now_wall_s - memory.level_wall_s <= LEVEL_AGE_S_MAX):
        return None
    return memory.level_sum / memory.level_weight, min(1.0, memory.level_weight)


def _state(memory: ForecastMemory, bucket_s: float) -> State | None:
    """A State to learn with, the caller's own; None where there is none that fits."""
    if not memory.state or memory.bucket_s != bucket_s:
        return None
    kept = _parsed(bucket_s, memory.state)
    return None if kept is None else kept.copied()


@lru_cache(maxsize=STATES_KEPT_MAX)
def _parsed(bucket_s: float, data: bytes) -> State | None:
    """What ``data`` says, to read only; None where it is ill."""
    try:
        return State(bucket_s, data)
    except ValueError:
        return None


class _Told(NamedTuple):
    """What a State says, as plain numbers over its horizons: between two buckets every prediction is made of the same."""

    unseen: float
    """Buckets since the newest forecast."""
    base: float
    floor: float
    steps: tuple[float, ...]
    """In buckets, from 0 on."""
    values: tuple[float, ...]
    """From the base on, as ``peaks``; ``moves`` from 1 on."""
    peaks: tuple[float, ...]
    moves: tuple[float, ...]
    scales: list[float]
    methods: list[float]
    quantiles: list[list[list[float]]]
    hits: list[list[float]]
    tries: list[float]
    outcomes: list[float]
    slow: list[float]
    fast: list[float]


@lru_cache(maxsize=STATES_KEPT_MAX)
def _read(bucket_s: float, data: bytes) -> _Told | None:
    """What ``data`` says; None where it is ill or holds no forecast yet."""
    state = _parsed(bucket_s, data)
    if state is None or not np.isfinite(state.path).all():
        return None
    values, peaks, scales, moves, methods = state.path.T.tolist()
    base, floor = state.origin.tolist()
    return _Told(
        float(state.seen[0] - state.seen[1]),
        base,
        floor,
        (0.0, *state.steps.tolist()),
        (base, *values),
        (base, *peaks),
        (1.0, *moves),
        scales,
        methods,
        *(part.tolist() for part in (state.quantiles, state.hits, state.tries, state.outcomes, state.slow, state.fast)),
    )


def _replay(state: State, frame: Frame, origins: Places) -> None:
    """Learn from the buckets before each of ``origins``, in their order."""
    steps = state.steps
    then = origins[:, None] - steps
    ago = origins[:, None] + _week_ago(state.bucket_s)
    wanted = _each_once(np.concatenate((origins, then[then >= 0], ago[ago >= 0])))
    told = said(frame, wanted, steps)
    rows_now, rows_then, rows_ago = (wanted.searchsorted(np.maximum(each, 0)) for each in (origins, then, ago))
    logs, bases, hours = frame.log(origins - 1), frame.base(wanted), frame.hour_of_day(wanted)
    came = frame.log(wanted[:, None] + steps - 1)
    peaks = _peaks(frame, origins, steps)
    column = np.arange(len(steps))
    for place in range(len(origins)):
        rows, exists = rows_then[place], then[place] >= 0
        logs_then = np.where(exists[:, None], told.logs[rows, column], math.nan)
        base_then = np.where(exists, bases[rows], math.nan)
        learn(state, Outcome(float(logs[place]), peaks[place], base_then, logs_then, told.features[rows, column], hours[rows]))
        row, earlier = rows_now[place], rows_ago[place][ago[place] >= 0]
        week = WeekAgo(bases[earlier], told.logs[earlier], told.features[earlier], came[earlier])
        issue(state, Present(float(bases[row]), told.logs[row], told.features[row], int(hours[row]), frame.floor, week))


@lru_cache(maxsize=WIDTHS_KEPT_MAX)
def _week_ago(bucket_s: float) -> Places:
    """WEEK_AGO_S in buckets, a week before an origin."""
    return np.rint((np.array(WEEK_AGO_S) - 7 * DAY_S) / bucket_s).astype(np.int64)


def _each_once(places: Places) -> Places:
    """``places`` in order, each once: `numpy.unique`, which takes several times as long for a few."""
    places.sort()
    news = np.ones(len(places), np.bool_)
    np.not_equal(places[1:], places[:-1], out=news[1:])
    return places[news]


def _peaks(frame: Frame, origins: Places, steps: Places) -> Values:
    """Shape (O, S): the highest of the last ``steps`` logs before each origin; NaN where one of them isn't known."""
    logs = frame.log(origins[:, None] - 1 - np.arange(int(steps[-1])))
    return np.asarray(np.maximum.accumulate(logs, axis=1)[:, steps - 1])


def _middle(
    told: _Told, bucket_s: float, level: tuple[float, float] | None, age_s: float, horizon_s: float
) -> tuple[float, float, int, int, float]:
    """Value and peak of the newest forecast, ``age_s`` old, at ``horizon_s`` from now, shifted by how far the present level is off it.

    And the horizon nearest to what isn't known, the one at or left of it, and the part of the way from there to the next.
    """
    steps, floor = told.steps, told.floor
    at = _place(steps, (age_s + horizon_s) / bucket_s)
    value, peak = _on(told.values, at), _on(told.peaks, at)
    known_part = 0.0
    if level is not None:
        known_part = level[1]
        off = math.log(level[0] + floor) - _on(told.values, _place(steps, age_s / bucket_s))
        off = min(max(off, -SHIFT_MAX), SHIFT_MAX) * known_part * _on(told.moves, _place(steps, horizon_s / bucket_s))
        value, peak = value + off, peak + off
    # What isn't known of the time since the forecast was made is horizon too: it widens.
    left, part = _place(steps, max(1.0, (horizon_s + (1.0 - known_part) * age_s) / bucket_s))
    nearest = min(left, len(told.scales) - 1) if part > 0.5 else left - 1
    return _rate(value, floor), _rate(max(value, peak), floor), nearest, left, part


def _along(told: _Told, age_s: float, memory: ForecastMemory, level: tuple[float, float] | None, horizon_s: float) -> Prediction:
    """The newest forecast, ``age_s`` old, at ``horizon_s`` from now."""
    bucket_s, floor = memory.bucket_s, told.floor
    value, peak, nearest, left, part = _middle(told, bucket_s, level, age_s, horizon_s)
    right = min(left, len(told.scales) - 1)
    spread, peak_spread = (
        tuple(low + part * (high - low) for low, high in zip(*each, strict=True))
        for each in zip(told.quantiles[left - 1], told.quantiles[right], strict=True)
    )
    scale = told.scales[left - 1] + part * (told.scales[right] - told.scales[left - 1])
    tries = told.tries[nearest]
    coverage = [hits / tries for hits in told.hits[nearest]] if tries > 0 else (math.nan, math.nan)
    method = METHODS[int(told.methods[nearest])]
    because = _because(told, bucket_s, nearest, method, age_s, level is not None)
    return Prediction(True, value, peak, method, because, memory.weeks, coverage[0], coverage[1], floor, scale, spread, peak_spread)


def _because(told: _Told, bucket_s: float, nearest: int, method: str, age_s: float, level_known: bool) -> str:
    usual, recent = told.slow[nearest], told.fast[nearest]
    minutes = told.steps[nearest + 1] * bucket_s / 60
    parts = [f"{method} weighs most; forecasts of {minutes:.0f} min were off by {math.expm1(usual):.0%} on average"]
    outcomes = int(told.outcomes[nearest])
    if outcomes * bucket_s < DAY_S:
        parts.append(f"history is short ({outcomes} outcomes), so the margin is wide")
    elif recent > UNLIKE * usual:
        parts.append(f"demand is unlike the past days: in the last hour they were off by {math.expm1(recent):.0%}")
    if age_s > 2 * bucket_s:
        parts.append(f"no bucket of the last {age_s / 60:.0f} min is known")
    if not level_known:
        parts.append("the present rate isn't known")
    return "; ".join(parts)


def _place(grid: tuple[float, ...], at: float) -> tuple[int, float]:
    """The grid point at or left of ``at``, and the part of the way to the next one; held to the grid's ends."""
    left = bisect_right(grid, at) - 1
    if left >= len(grid) - 1:
        return len(grid) - 1, 0.0
    return left, (at - grid[left]) / (grid[left + 1] - grid[left])


def _on(values: tuple[float, ...], place: tuple[int, float]) -> float:
    left, part = place
    return values[left] + part * (values[left + 1] - values[left]) if part > 0 else values[left]


def _rate(log: float, floor: float) -> float:
    return max(0.0, math.exp(min(log, LOG_MAX)) - floor)
