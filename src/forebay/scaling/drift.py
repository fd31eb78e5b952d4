"""What the forecast leaves out at the horizon: where demand drifts from its level, and how widely it swings, told by the last hours' shape.

A level well above the mean of the last quarter of an hour has mostly fallen by the time a start is over, and in some services
it goes on climbing instead. And a service that was restless for an hour is restless for the next one. So each outcome also teaches
two linear regressions, both with fading memory: *drift*, of ``log(came ÷ expected)`` on the shape of the level now, and *swing*, of the
logarithm of its remainder's size on how large remainders were lately. Without outcomes there is no drift, and the
swing is that of most services; each weighs as much as outcomes have proven.
"""

import math
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

import msgspec
import numpy as np

from forebay.scaling.arrivals import summed
from forebay.scaling.memory import Bucket
from forebay.scaling.spread import Values

TRAITS = 6
"""That each regression goes by."""
SLIGHT = 0.08
"""Of a logarithm: a level that differs from the one before by less is mostly noise, and by more is mostly a new level. The two are told
apart by a trait that ends here; that, and how far the level moved as a trait of swing, is worth 0.1 to 0.3 % of what is held over the
recorded weeks."""
STRETCH = 5.0
"""Times what is so small by its bound, as the ridge would else hold it down for days."""
OUTCOMES_KEPT = 5760.0
"""Outcomes that regressions remember: four days of minutes."""
RIDGE_DRIFT, RIDGE_SWING = 5.0, 10.0
"""Weight of the belief that a trait means nothing."""
DRIFT_MAX = 1.0
"""Of a logarithm: drift moves an expectation by a factor of e at most."""
STRAY_MAX = 1.5
"""Of a logarithm: an outcome further off teaches no more than this."""
SWING_FIRST = 0.12
"""Spread of the logarithm before anything was learned: the middle of what real load series show at ten minutes."""
SWING_MIN, SWING_MAX = 0.03, 0.7
PER_MEAN = 1.6
"""Of a remainder's spread to the exponential of its mean logarithm: 1.9 for normal ones, less for the SIZE_FLOOR."""
SIZE_FLOOR, RESTLESS_FLOOR = 0.02, 0.01
LATELY_S, OF_LATE_S = 3_600.0, 18_000.0
"""Remainders of an hour and of five."""
WINDOW_S, BEFORE_S = 900.0, 180.0
HOUR_BUCKETS_MIN = 0.5
"""Part of an hour of history that must be known."""
_RIDGES: Values = np.array((RIDGE_DRIFT, RIDGE_SWING))[:, None, None] * np.eye(TRAITS)
_SQUARES = TRAITS * TRAITS
_COUNT = 2 * (_SQUARES + TRAITS) + 2
_FIRST = SWING_FIRST / PER_MEAN
_NONE: Values = np.full(1, np.nan)
_ZEROS: Values = np.zeros(_COUNT)
_NEW: Values = np.concatenate((np.zeros(_COUNT - 2), np.full(2, _FIRST)))
_LATELY: Values = np.array((LATELY_S, OF_LATE_S))
_NOTED = Struct(f"<{2 * TRAITS + 2}f")
"""The traits of both, what they told."""
_ONE = np.concatenate((np.repeat(np.arange(TRAITS), TRAITS), np.arange(TRAITS)))
_ONE = np.concatenate((_ONE, _ONE + TRAITS + 1))
_OTHER = np.concatenate((np.tile(np.arange(TRAITS), TRAITS), np.full(TRAITS, TRAITS)))
_OTHER = np.concatenate((_OTHER, _OTHER + TRAITS + 1))
"""Which two of an outcome's numbers each sum is of: either regression's traits, and then what it is to tell."""


class Usual(NamedTuple):
    """What a history says of demand in general."""

    of_hour: float | None
    """Mean of the last hour, and of the last day; None where too little of it is known."""
    of_day: float | None
    known_s: float
    """Seconds of it that are known."""


_kept: list[tuple[Values, float, Usual]] = [(np.empty(0), 0.0, Usual(None, None, 0.0))]
"""One, the last: a history stays the same for all minutes of a bucket. Set in one assignment, for another thread may ask."""


class Traits(msgspec.Struct, frozen=True):
    """The shape of demand now."""

    drift: tuple[float, ...]
    """Logarithms: level ÷ mean of a quarter of an hour, that ÷ mean of an hour, level ÷ the level before, last minute ÷ level, growth, and
    once more level ÷ the level before, within SLIGHT and times STRETCH."""
    above_usual: float
    """Logarithm of level ÷ mean of a day."""


class Regressions:
    """Both regressions and the sizes of recent remainders; they travel as bytes."""

    def __init__(self, data: bytes = b"") -> None:
        """Those in ``data``; new ones where it is absent or ill."""
        values = np.frombuffer(data, "<f8") if len(data) == 8 * _COUNT else _NONE
        # A number times nothing is nothing, unless it is none.
        if values @ _ZEROS[: len(values)] != 0:
            values = _NEW
        # Drift's and swing's side by side: two small systems at once take hardly longer than one.
        self._both = values[:-2]
        """Of each its squares, then its cross products."""
        self._lately = values[-2:]

    def packed(self) -> bytes:
        """Everything, in 8 bytes a number."""
        return np.asarray(self._both, "<f8").tobytes() + np.asarray(self._lately, "<f8").tobytes()

    def told(self, traits: Traits) -> tuple[float, float, bytes]:
        """(log of came ÷ expected, the spread around it, what `learn` will need) for demand that has these ``traits`` now."""
        of_drift = traits.drift
        restless = np.log((self._lately + RESTLESS_FLOOR) / (_FIRST + RESTLESS_FLOOR))
        of_swing = (1.0, *restless.tolist(), traits.above_usual, abs(of_drift[0]), abs(of_drift[2]))
        both = np.array((of_drift, of_swing))
        sums = self._both.reshape(2, _SQUARES + TRAITS)
        squares = sums[:, :_SQUARES].reshape(2, TRAITS, TRAITS) + _RIDGES
        found = np.linalg.solve(squares, sums[:, _SQUARES:, None])[:, :, 0]
        drift = min(DRIFT_MAX, max(-DRIFT_MAX, float(both[0] @ found[0])))
        size = PER_MEAN * math.exp(min(2.0, max(-2.0, float(both[1] @ found[1]))) + math.log(_FIRST))
        swing = min(SWING_MAX, max(SWING_MIN, size))
        return drift, swing, _NOTED.pack(*of_drift, *of_swing, drift, swing)

    def learn(self, ratio: float, noted: bytes, minutes: float) -> float | None:
        """One outcome: ``ratio`` of what came to what was expected, drift included, and what `told` gave then.

        Returns the remainder in units of the spread that was told; None for what teaches nothing. ``minutes`` since the last.
        """
        if len(noted) != _NOTED.size or not (math.isfinite(ratio) and ratio >= 0):
            return None
        numbers: tuple[float, ...] = _NOTED.unpack(noted)
        drift, swing = numbers[-2:]
        if not (all(map(math.isfinite, numbers)) and swing > 0):
            return None
        remainder = min(STRAY_MAX, max(-STRAY_MAX, math.log(max(ratio, 1e-9))))
        self._fit(numbers, remainder + drift, math.log((abs(remainder) + SIZE_FLOOR) * PER_MEAN / SWING_FIRST))
        fading = np.minimum(1.0, 60.0 * minutes / _LATELY)
        self._lately = self._lately + (abs(remainder) - self._lately) * fading
        return remainder / swing

    def _fit(self, noted: tuple[float, ...], strayed: float, size: float) -> None:
        """Least squares with fading memory, drawn to zero by ridges that do not fade."""
        seen = np.array((*noted[:TRAITS], strayed, *noted[TRAITS : 2 * TRAITS], size))
        self._both = self._both * (1 - 1 / OUTCOMES_KEPT) + seen[_ONE] * seen[_OTHER]


def traits(level: float, growth: float, buckets: Sequence[Bucket], now_s: float, past_per_s: Values, bucket_s: float) -> Traits:
    """The shape of demand now. ``past_per_s``: the history, NaN where it isn't known; what can't be told is level."""
    of_hour, of_day, _ = usual(past_per_s, bucket_s)
    quarter = _mean(buckets, now_s, WINDOW_S, 0.0)
    before = _mean(buckets, now_s, 2 * BEFORE_S, BEFORE_S)
    minute = _mean(buckets, now_s, 60.0, 0.0)
    moved = _log(level, before)
    slight = STRETCH * min(SLIGHT, max(-SLIGHT, moved))
    drift = (_log(level, quarter), _log(quarter or level, of_hour), moved, _log(minute or level, level), _log(growth, 1.0), slight)
    return Traits(drift, _log(level, of_day))


def _mean(buckets: Sequence[Bucket], now_s: float, from_s: float, to_s: float) -> float | None:
    longer, shorter = summed(buckets, now_s, from_s), summed(buckets, now_s, to_s) if to_s > 0 else None
    seconds = longer.seconds - (shorter.seconds if shorter is not None else 0.0)
    requests = longer.requests - (shorter.requests if shorter is not None else 0.0)
    return requests / seconds if seconds >= 0.45 * (from_s - to_s) else None


def usual(past_per_s: Values, bucket_s: float) -> Usual:
    """What the history says. Of one that nobody can write to it is kept until another comes."""
    known, width_s, found = _kept[0]
    if past_per_s is not known or bucket_s != width_s:
        hour, day = (past_per_s[-max(1, round(span_s / bucket_s)) :] for span_s in (3600, 86_400))
        known_s = float((past_per_s == past_per_s).sum()) * bucket_s
        found = Usual(_known_mean(hour, HOUR_BUCKETS_MIN), _known_mean(day, 0.0), known_s)
        if not past_per_s.flags.writeable:
            _kept[0] = (past_per_s, bucket_s, found)
    return found


def _known_mean(values: Values, least: float) -> float | None:
    known = values[values == values]
    return float(known.mean()) if len(known) and len(known) >= least * len(values) else None


def _log(value: float, by: float | None) -> float:
    if by is None or not (value > 0 and by > 0):
        return 0.0
    return min(STRAY_MAX, max(-STRAY_MAX, math.log(value / by)))
