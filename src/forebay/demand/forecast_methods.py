"""What each method would say at an origin for a number of buckets ahead, and the features that the regression learns from.

Every method says *present level plus growth* in logs; they differ in what they take for the level and where they look
for the growth. All are computed for many origins and steps at once, so that four weeks are replayed in a blink.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from forebay.demand.forecast_past import DAY_S, HOUR_S, Frame, Places, Values, held, level_weight

METHODS = ("last value", "last hour", "blend", "shape of the week", "weekday", "regression")
FIXED = len(METHODS) - 1
"""All but the regression, which needs what was learned."""
FEATURES = 8
WIDTHS_KEPT_MAX = 16
"""Widths of a bucket whose fixed part of the sensitivity is kept."""
BLEND_S = 7_200.0
"""The last value gives way to the shape of past days over this (measured: last value is near-best to 30 minutes)."""
GROWTH_MAX = 1.2
"""Of a log: a past day's growth counts for a factor of 3.3 at most."""
RATIO_MIN, RATIO_MAX = 0.3, 3.0
WEEKS_MIN = 3
"""The median of the same weekday and hour needs at least this many weeks."""
LAGS_DAYS = np.array([1, 2, 3, 4, 5, 6, 7, 14, 21, 28])
_WEEK = slice(0, 7)
_WEEKDAY = slice(6, 10)


class Said(NamedTuple):
    """For O origins and S steps."""

    logs: Values
    """Shape (O, S, FIXED): log(rate + floor) by method; NaN where a method has nothing to go by."""
    features: Values
    """Shape (O, S, FEATURES): 0 where a feature isn't known."""


def said(frame: Frame, origins: Places, steps: Places) -> Said:
    """What the methods say at each of ``origins`` for the bucket ``steps`` later (1: the next one)."""
    growth, absolute, hour_then = _growths(frame, origins, steps)
    base, level, hour = frame.base(origins)[:, None], frame.level(origins)[:, None], frame.mean(origins, HOUR_S)[:, None]
    week = _mean_known(growth[..., _WEEK])
    last_weight = np.maximum(0.0, 1.0 - steps * frame.bucket_s / BLEND_S)[None, :]
    ratio = absolute + held(hour - hour_then, math.log(RATIO_MIN), math.log(RATIO_MAX))
    ratio = np.where(np.isfinite(ratio), ratio, base)
    shape = (len(origins), len(steps))
    logs = _side_by_side(
        shape,
        base,
        hour,
        last_weight * base + (1 - last_weight) * ratio,
        level + np.where(np.isfinite(week), week, 0.0),
        level + _median_weekday(growth[..., _WEEKDAY]),
    )
    features = _side_by_side(
        shape,
        growth[..., 0],
        week,
        _mean_known(growth[..., _WEEKDAY]),
        level - base,
        hour - base,
        frame.mean(origins, 2 * HOUR_S)[:, None] - base,
        frame.mean(origins, DAY_S)[:, None] - base,
        0.1,
    )
    features = held(np.where(np.isfinite(features), features, 0.0), -GROWTH_MAX, GROWTH_MAX)
    return Said(logs, features)


def _side_by_side(shape: tuple[int, int], *parts: Values | float) -> Values:
    """``parts``, each of ``shape`` or stretched to it, along a last axis: ``np.stack`` and its broadcasts take several times as long."""
    joined: Values = np.empty((*shape, len(parts)))
    for place, part in enumerate(parts):
        joined[..., place] = part
    return joined


def prior(steps: Places, bucket_s: float) -> Values:
    """Shape (S, FEATURES): the coefficients believed before anything was learned, a blend of last value and the week's shape."""
    shape_weight = 1.0 - np.maximum(0.0, 1.0 - steps * bucket_s / BLEND_S)
    found = np.zeros((len(steps), FEATURES))
    found[:, 1] = 0.8 * shape_weight
    found[:, 3] = 0.5 * shape_weight
    return found


def sensitivity(coefficients: Values, steps: Places, bucket_s: float) -> Values:
    """Shape (S, methods): by how much a forecast moves when the last bucket's log does by one."""
    fixed, moves = _fixed_sensitivity(steps.tobytes(), bucket_s)
    found = fixed.copy()
    found[:, 5] = 1.0 + coefficients[:, 3:7] @ moves
    return found


@lru_cache(maxsize=WIDTHS_KEPT_MAX)
def _fixed_sensitivity(steps: bytes, bucket_s: float) -> tuple[Values, Values]:
    """`sensitivity` of the fixed methods, and of what the regression's features are of: the same for every bucket of a width."""
    newest = level_weight(bucket_s)
    in_hour = min(1.0, bucket_s / HOUR_S)
    ahead = np.frombuffer(steps, np.int64)
    last_weight = np.maximum(0.0, 1.0 - ahead * bucket_s / BLEND_S)
    found = np.ones((len(ahead), FIXED + 1))
    found[:, 1] = in_hour
    found[:, 2] = last_weight + (1 - last_weight) * in_hour
    found[:, 3:5] = newest
    return found, np.array([newest, in_hour, in_hour / 2, bucket_s / DAY_S]) - 1.0


def _growths(frame: Frame, origins: Places, steps: Places) -> tuple[Values, Values, Values]:
    """Growth on each of LAGS_DAYS (O, S, lags), and of yesterday: the bucket's own log (O, S) and the hour before it (O, 1)."""
    lags = _lags(frame.bucket_s)
    then = origins[:, None] - lags
    target = (origins[:, None] + steps - 1)[:, :, None] - lags
    if frame.shift is not None:
        # The same local time is earlier or later in UTC by what the clock was set in between.
        then = then + frame.shift[origins][:, None] - frame.shift[np.maximum(then, 0)]
        target = target + frame.shift[origins[:, None] + steps - 1][:, :, None] - frame.shift[np.maximum(target, 0)]
    log = np.where(then[:, None, :] >= 1, frame.log(target), math.nan)
    growth = held(log - frame.level(then)[:, None, :], -GROWTH_MAX, GROWTH_MAX)
    return growth, log[..., 0], frame.mean(then[:, :1], HOUR_S)


@lru_cache(maxsize=WIDTHS_KEPT_MAX)
def _lags(bucket_s: float) -> Places:
    """LAGS_DAYS in buckets."""
    return np.rint(LAGS_DAYS * (DAY_S / bucket_s)).astype(np.int64)


def _mean_known(values: Values) -> Values:
    known = np.isfinite(values)
    count = known.sum(axis=-1)
    total = np.where(known, values, 0.0).sum(axis=-1)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), math.nan))


def _median_weekday(growth: Values) -> Values:
    """The median over up to four weeks; NaN with fewer than WEEKS_MIN. NaN sorts last, so three known values are the first three."""
    ordered = np.sort(growth, axis=-1)
    count = np.isfinite(growth).sum(axis=-1)
    of_four = (ordered[..., 1] + ordered[..., 2]) / 2
    return np.asarray(np.where(count >= 4, of_four, np.where(count >= WEEKS_MIN, ordered[..., 1], math.nan)))
