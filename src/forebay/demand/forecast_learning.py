"""One bucket more: its outcome is compared with what was said one, two, … buckets before it; then a new forecast is made.

The forecast joins the methods with weights by their recent errors. Around it, quantiles are tracked online: each is raised a little by
an outcome above it and lowered by one below it, in the proportion that makes the stated rate the achieved one whatever the errors
look like (Gibbs and Candès 2021, *Adaptive conformal inference under distribution shift*; Angelopoulos et al. 2023, *Conformal
PID control*), in units of a scale that knows quiet hours from wild ones.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.demand.forecast_methods import FEATURES, prior, sensitivity
from forebay.demand.forecast_past import DAY_S, HOUR_S, Values, held
from forebay.demand.forecast_state import COLUMNS, LEVELS, ROWS, STATED, State, steps_of

TEN_MINUTES_S = 600.0
SCALE_FIRST_COUNT = 12.0
"""The scale assumed at first has the weight of this many outcomes."""
SCALE_OF_SLOW_MIN = 0.3
SCALE_MIN = 0.003
TRACK_RATE = 0.04
"""Of the scale: the step by which an outcome moves a quantile once there were hundreds."""
TRACK_RATE_MAX = 0.3
TRACK_DECAY = 0.7
"""The step falls with the number of outcomes to this power until it is TRACK_RATE."""
ERROR_MAX = 1.5
"""Of a log: errors and growths beyond it teach no more than this."""
ERROR_MIN = 0.001
POWER = 6.0
"""Weights of methods go with their recent error to the power of minus this: near to choosing the best, without its jumps."""
ERRORS_HALF_LIFE_S = 12 * HOUR_S
ERRORS_FAST_HALF_LIFE_S = 1.5 * HOUR_S
WEEK_WEIGHT = 0.2
"""Of the errors a week ago among those of late: little while all is as usual, and decisive on a Monday after a quiet weekend."""
SCALE_HALF_LIFE_S = 1.6 * DAY_S
SCALE_FAST_HALF_LIFE_S = HOUR_S
HOUR_OF_DAY_RATE = 0.12
"""Weight of an outcome of ten minutes in its hour of the day: the last day counts for half."""
REGRESSION_HALF_LIFE_S = 3.5 * DAY_S
REGRESSION_PRIOR_S = 30_000.0
"""The weight of the prior coefficients, in seconds of outcomes."""
RESIDUAL_RATE = 0.01
HUBER = 2.0
"""Outcomes beyond this many usual residuals count for less, so that one bad night doesn't bend the coefficients."""
COVERAGE_HALF_LIFE_S = 7 * DAY_S
WIDTHS_KEPT_MAX = 16
"""Widths of a bucket whose prior coefficients are kept."""
_DIAGONAL = np.arange(FEATURES)


class Outcome(NamedTuple):
    """What one bucket reveals to each learned horizon: shapes (S, …)."""

    log: float
    """Of the bucket; NaN: not known."""
    peaks: Values
    """Shape (S,): highest log of the last ``steps`` buckets; NaN where one of them isn't known."""
    base_then: Values
    """Shape (S,): the base at the origin ``steps`` buckets before the bucket's end."""
    logs_then: Values
    """Shape (S, FIXED): what the fixed methods said there."""
    features_then: Values
    """Shape (S, FEATURES)."""
    hour_then: Values
    """Shape (S,): hour of the day of that origin."""


class Present(NamedTuple):
    """What a new forecast is made of."""

    base: float
    logs: Values
    """Shape (S, FIXED)."""
    features: Values
    """Shape (S, FEATURES)."""
    hour: int
    floor: float
    week: "WeekAgo"


class WeekAgo(NamedTuple):
    """The same hours a week earlier, at W origins: how would each method have done there? NaN where that isn't known."""

    base: Values
    """Shape (W,)."""
    logs: Values
    """Shape (W, S, FIXED)."""
    features: Values
    """Shape (W, S, FEATURES)."""
    came: Values
    """Shape (W, S)."""


def learn(state: State, outcome: Outcome) -> None:
    """Count one bucket, known or not, and learn from it what it tells."""
    state.seen[0] += 1
    if not np.isfinite(outcome.log):
        return
    said = state.open[state.slots()]
    _track(state, said, outcome)
    errors = np.abs(outcome.log - np.concatenate((outcome.logs_then, said[:, 3:4]), axis=1))
    known = np.isfinite(errors)
    errors = np.where(known, np.minimum(errors, ERROR_MAX), 0.0)
    state.errors += known * _rate(state, ERRORS_HALF_LIFE_S) * (errors - state.errors)
    state.errors_fast += known * _rate(state, ERRORS_FAST_HALF_LIFE_S) * (errors - state.errors_fast)
    _regress(state, said[:, 3], outcome)


def _track(state: State, said: Values, outcome: Outcome) -> None:
    """Quantiles, scales and coverage by what was said and came."""
    error = outcome.log - said[:, 0]
    known = np.isfinite(error)
    error = np.where(known, error, 0.0)
    scale = np.where(known, said[:, 2], 1.0)
    state.outcomes += known
    rate = held(np.maximum(state.outcomes, 1.0) ** -TRACK_DECAY, TRACK_RATE, TRACK_RATE_MAX)
    over_peak = outcome.peaks - said[:, 1]
    peak_known = np.isfinite(over_peak)
    strayed = _columns(error, np.where(peak_known, over_peak, 0.0)) / scale[:, None]
    moves = LEVELS - (strayed[:, :, None] <= state.quantiles)
    moves[~known, 0] = moves[~peak_known, 1] = 0.0
    state.quantiles += 2.0 * rate[:, None, None] * moves
    np.maximum.accumulate(state.quantiles, axis=2, out=state.quantiles)
    both = peak_known & known
    keep = np.where(both, 1.0 - _rate(state, COVERAGE_HALF_LIFE_S), 1.0)
    counted = both.astype(np.float64)
    state.tries[:] = state.tries * keep + counted
    within = _columns(outcome.log <= said[:, 4], outcome.peaks <= said[:, 5])
    state.hits[:] = state.hits * keep[:, None] + counted[:, None] * within
    size = np.minimum(np.abs(error), ERROR_MAX)
    slow_rate = np.maximum(_rate(state, SCALE_HALF_LIFE_S), 1.0 / (state.outcomes + SCALE_FIRST_COUNT))
    state.slow += known * slow_rate * (size - state.slow)
    state.fast += known * np.maximum(_rate(state, SCALE_FAST_HALF_LIFE_S), slow_rate) * (size - state.fast)
    horizons, hours = np.flatnonzero(known), outcome.hour_then[known].astype(np.int64)
    before = state.hours[horizons, hours]
    weight = min(1.0, HOUR_OF_DAY_RATE * state.bucket_s / TEN_MINUTES_S)
    state.hours[horizons, hours] = np.where(before > 0, before + weight * (size[known] - before), size[known])


def _regress(state: State, said: Values, outcome: Outcome) -> None:
    growth = held(outcome.log - outcome.base_then, -ERROR_MAX, ERROR_MAX)
    known = np.isfinite(growth)
    residual = np.where(np.isfinite(said), np.minimum(np.abs(outcome.log - said), 1.0), 0.0)
    usual = np.sqrt(state.residual)
    weight = np.where(known, np.minimum(1.0, HUBER * usual / np.maximum(residual, 1e-9)), 0.0)
    state.residual += np.isfinite(said) * RESIDUAL_RATE * (residual**2 - state.residual)
    features = outcome.features_then
    surprise = np.where(known, growth, 0.0) - (features * _believed(state.bucket_s)).sum(axis=1)
    keep = 1.0 - _rate(state, REGRESSION_HALF_LIFE_S)
    state.gram[:] = state.gram * keep + weight[:, None] * features[:, ROWS] * features[:, COLUMNS]
    state.moment[:] = state.moment * keep + (weight * surprise)[:, None] * features


def issue(state: State, present: Present) -> None:
    """A new forecast for every learned horizon into ``state.path``, to be judged when its outcomes come."""
    slots = state.slots()
    if not np.isfinite(present.base):
        state.open[slots] = np.nan
        return
    coefficients = _coefficients(state)
    growth = (present.features * coefficients).sum(axis=1)
    regression = present.base + held(growth, -ERROR_MAX, ERROR_MAX)
    logs = np.concatenate((present.logs, regression[:, None]), axis=1)
    usable = np.isfinite(logs)
    weights = usable * (_errors(state, present.week, coefficients) + ERROR_MIN) ** -POWER
    weights /= weights.sum(axis=1, keepdims=True)
    value = (weights * np.where(usable, logs, 0.0)).sum(axis=1)
    peak = np.maximum.accumulate(value)
    scale = _scale(state, present.hour)
    stated = scale[:, None] * state.quantiles[:, :, STATED]
    state.open[slots] = _columns(value, peak, scale, regression, value + stated[:, 0], peak + stated[:, 1])
    moves = (weights * sensitivity(coefficients, state.steps, state.bucket_s)).sum(axis=1)
    for place, part in enumerate((value, peak, scale, held(moves, 0.0, 1.2), weights.argmax(axis=1))):
        state.path[:, place] = part
    state.origin[:] = present.base, present.floor
    state.seen[1] = state.seen[0]


def _errors(state: State, week: WeekAgo, coefficients: Values) -> Values:
    """Shape (S, methods): the error to expect of each method, by its errors of late and those of the same hours a week ago."""
    recent = (state.errors + state.errors_fast) / 2
    regression = week.base[:, None] + held((week.features * coefficients).sum(axis=2), -ERROR_MAX, ERROR_MAX)
    errors = np.minimum(np.abs(week.came[:, :, None] - np.concatenate((week.logs, regression[:, :, None]), axis=2)), ERROR_MAX)
    known = np.isfinite(errors)
    count = known.sum(axis=0)
    ago = np.where(known, errors, 0.0).sum(axis=0) / np.maximum(count, 1)
    return np.asarray(np.where(count > 0, (1 - WEEK_WEIGHT) * recent + WEEK_WEIGHT * ago, recent))


def _coefficients(state: State) -> Values:
    """Ridge regression around the prior, all horizons at once."""
    count = len(state.steps)
    gram = np.zeros((count, FEATURES, FEATURES))
    gram[:, ROWS, COLUMNS] = state.gram
    gram[:, COLUMNS, ROWS] = state.gram
    ridge = REGRESSION_PRIOR_S / state.bucket_s * np.maximum(state.residual, SCALE_MIN**2)
    gram[:, _DIAGONAL, _DIAGONAL] += ridge[:, None]
    believed = _believed(state.bucket_s)
    try:
        return np.asarray(believed + np.linalg.solve(gram, state.moment[:, :, None])[:, :, 0])
    except np.linalg.LinAlgError:
        return believed


def _scale(state: State, hour: int) -> Values:
    """The mean absolute log error to expect: of days, of the last hour and of this hour of the day."""
    around = state.hours[:, [(hour - 1) % 24, hour, (hour + 1) % 24]]
    count = (around > 0).sum(axis=1)
    usual = np.where(count > 0, around.sum(axis=1) / np.maximum(count, 1), state.slow)
    return np.maximum((state.fast + state.slow + usual) / 3, np.maximum(SCALE_OF_SLOW_MIN * state.slow, SCALE_MIN))


@lru_cache(maxsize=WIDTHS_KEPT_MAX)
def _believed(bucket_s: float) -> Values:
    """The prior coefficients, to read only: they are the same for every bucket of a width."""
    return prior(steps_of(bucket_s), bucket_s)


def _columns(*parts: npt.NDArray[Any]) -> Values:
    """``np.stack(parts, axis=1)``, which for a handful of horizons takes three times as long."""
    joined: Values = np.empty((len(parts[0]), len(parts)))
    for place, part in enumerate(parts):
        joined[:, place] = part
    return joined


def _rate(state: State, half_life_s: float) -> float:
    return float(1.0 - 0.5 ** (state.bucket_s / half_life_s))
