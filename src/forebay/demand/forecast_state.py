"""What a forecaster has learned, as arrays of 32-bit floats that travel as bytes.

All arrays are over the learned horizons S first. The order of LAYOUT is the layout of the bytes.
"""

import math
from functools import lru_cache

import numpy as np

from forebay.demand.forecast_methods import FEATURES, METHODS
from forebay.demand.forecast_past import AHEAD_S_MAX, Places, Values

AHEAD_S = (300.0, 600.0, 1_200.0, 1_800.0, 2_700.0, 3_600.0, 5_400.0, 7_200.0, AHEAD_S_MAX)
"""Horizons that are learned; in between, what is learned is interpolated."""
LEVELS = np.array([0.05, 0.1, 0.25, 0.5, 0.65, 0.8, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999])
"""Quantiles that are tracked."""
STATED = 6
"""The place of the 90 % quantile in LEVELS: the one whose achieved rate is reported."""
_NORMAL = np.array([-1.645, -1.282, -0.674, 0.0, 0.385, 0.842, 1.282, 1.645, 1.96, 2.326, 2.576, 3.09])
WIDE = 1.5
"""Quantiles begin this much wider than a normal distribution's: little history is no reason to be sure."""
MEAN_OF_NORMAL = 0.8
"""Mean absolute value over standard deviation of a normal distribution."""
FIRST_QUANTILES = WIDE * _NORMAL / MEAN_OF_NORMAL
SCALE_FIRST = 0.3
"""Mean absolute log error that is assumed before any outcome."""
ERROR_FIRST = 0.2
RESIDUAL_FIRST = 0.02
HOURS = 24
WIDTHS_KEPT_MAX = 16
"""Numbers of horizons, one a width of bucket, whose layout is kept."""
SIZE_MAX = 1e9
"""Nothing that was learned is larger; what is read and is, is damaged."""

ROWS, COLUMNS = np.tril_indices(FEATURES)
OPEN = ("value", "peak", "scale", "regression", "stated", "stated_peak")
PATH = ("value", "peak", "scale", "sensitivity", "method")


def steps_of(bucket_s: float) -> Places:
    """The learned horizons in buckets, rising, none twice."""
    return np.unique(np.maximum(1, np.rint(np.array(AHEAD_S) / bucket_s).astype(np.int64)))


class State:
    """Arrays that are changed in place by `forecast_learning`; whoever made one owns it."""

    def __init__(self, bucket_s: float, data: bytes = b"") -> None:
        """From ``data`` as ``packed()`` gave it, or new. Raises ValueError where ``data`` is of another shape or ill."""
        self.bucket_s = bucket_s
        self.steps, self.first_slots, size = _layout(bucket_s)
        flat = np.frombuffer(data, "<f4").astype(np.float64) if data else np.zeros(size)
        if len(flat) != size:
            raise ValueError("what was learned is of another shape")
        self._lay_out(flat)
        if not data:
            self.errors[:] = self.errors_fast[:] = ERROR_FIRST
            self.residual[:] = RESIDUAL_FIRST
            self.slow[:] = self.fast[:] = SCALE_FIRST
            self.quantiles[:] = FIRST_QUANTILES
            self.open[:] = self.path[:] = self.origin[:] = math.nan
        elif not self._sane():
            raise ValueError("what was learned is ill")

    def copied(self) -> "State":
        """The same, for whoever changes it."""
        copy = object.__new__(State)
        copy.bucket_s, copy.steps, copy.first_slots = self.bucket_s, self.steps, self.first_slots
        copy._lay_out(self._flat.copy())
        return copy

    def _lay_out(self, flat: Values) -> None:
        self._flat, self._at = flat, 0
        count, slots = len(self.steps), (len(flat) - _size(len(self.steps), 0)) // len(OPEN)
        self.seen = self._next((2,))
        """Buckets learned from, and how many they were when ``path`` was made."""
        self.errors = self._next((count, len(METHODS)))
        """Recent mean absolute log error of each method."""
        self.errors_fast = self._next((count, len(METHODS)))
        self.gram = self._next((count, len(ROWS)))
        """The regression's normal matrix, its lower triangle."""
        self.moment = self._next((count, FEATURES))
        self.residual = self._next((count,))
        """Mean squared residual of the regression."""
        self.outcomes = self._next((count,))
        self.slow = self._next((count,))
        """Mean absolute log error of what was said: over days, over the last hour, and by hour of the day (0: not known)."""
        self.fast = self._next((count,))
        self.hours = self._next((count, HOURS))
        self.quantiles = self._next((count, 2, len(LEVELS)))
        """Of (outcome − said) ÷ scale, for the value and for the peak."""
        self.tries = self._next((count,))
        self.hits = self._next((count, 2))
        """Outcomes within the stated quantile, of ``tries``."""
        self.open = self._next((slots, len(OPEN)))
        """What was said and has no outcome yet: a ring of ``steps`` slots for each horizon. NaN: nothing was."""
        self.path = self._next((count, len(PATH)))
        """The newest forecast; NaN before there is one."""
        self.origin = self._next((2,))
        """Its base, and the floor of its logs."""

    def _next(self, shape: tuple[int, ...]) -> Values:
        end = self._at + math.prod(shape)
        part = self._flat[self._at : end].reshape(shape)
        self._at = end
        return part

    def _sane(self) -> bool:
        """Whether arithmetic on it can't fail: bytes may come from a damaged disk."""
        learned_size = len(self._flat) - self.open.size - self.path.size - self.origin.size
        sizes = np.abs(self._flat)
        scale, method = self.path[:, PATH.index("scale")], self.path[:, -1]
        said = not math.isnan(self.path[0, 0])
        # A comparison with NaN is false, `maximum` and `minimum` give it back, and `fmax` and `fmin` leave it out.
        return bool(
            np.maximum.reduce(sizes[:learned_size]) <= SIZE_MAX
            and not np.fmax.reduce(sizes[learned_size:]) > SIZE_MAX
            and np.minimum.reduce(self._flat[_never_below_0(len(self.steps))]) >= 0
            and not np.fmin.reduce(self.open[:, OPEN.index("scale")]) <= 0
            and not (said and math.isnan(np.maximum.reduce(self._flat[learned_size + self.open.size :])))
            and not np.fmin.reduce(scale) <= 0
            and not (np.fmin.reduce(method) < 0 or np.fmax.reduce(method) >= len(METHODS))
            and not self.origin[1] <= 0
        )

    def packed(self) -> bytes:
        """7 kB at most, for buckets of 5 minutes."""
        return self._flat.astype("<f4").tobytes()

    def slots(self) -> Places:
        """Shape (S,): where what was said ``steps`` buckets ago stands, and what is said now will."""
        return np.asarray(self.first_slots + int(self.seen[0]) % self.steps)


@lru_cache(maxsize=WIDTHS_KEPT_MAX)
def _layout(bucket_s: float) -> tuple[Places, Places, int]:
    """Steps, the first slot of each, and the size of everything; the same for all states of a width, so nobody can write to them."""
    steps = steps_of(bucket_s)
    first_slots = np.cumsum(steps) - steps
    steps.flags.writeable = first_slots.flags.writeable = False
    return steps, first_slots, _size(len(steps), int(steps.sum()))


def _size(count: int, slots: int) -> int:
    by_horizon = 2 * len(METHODS) + len(ROWS) + FEATURES + 4 + HOURS + 2 * len(LEVELS) + 3 + len(PATH)
    return 4 + count * by_horizon + len(OPEN) * slots


@lru_cache(maxsize=WIDTHS_KEPT_MAX)
def _never_below_0(count: int) -> Places:
    """Places in the bytes of what counts, weighs or is the size of an error, for ``count`` horizons."""
    sizes = (2, count * 2 * len(METHODS), count * (len(ROWS) + FEATURES), count * (3 + 1 + HOURS), count * 2 * len(LEVELS), count * 3)
    return np.flatnonzero(np.repeat((True, True, False, True, False, True), sizes))
