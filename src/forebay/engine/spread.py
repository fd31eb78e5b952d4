"""Chance in the time of steps: a table of equally likely factors, and a stream of places in it that a replica draws from.

The stream is splitmix64 (Steele, Lea, Flood, OOPSLA 2014): a counter of odd stride, hashed. What the n-th step draws hangs on the
replica's own stream and n alone, so the numba kernel and the step-by-step engine draw the same without sharing a generator.
"""

from bisect import bisect_right

import msgspec

from forebay.domain.profile import StepSpread

FACTORS = 1 << 10
GRAIN = 2.0**-10
"""Factors are multiples of it: a thousandth is finer than anyone measures, and sums of such times stay exact for longer."""
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""Of the fields of `StepSpread`, in their order."""
STRIDE = 0x9E3779B97F4A7C15
MIX_1, MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1


def factors_of(spread: StepSpread) -> tuple[float, ...]:
    """The FACTORS equally likely factors, rising; none where steps are steady.

    Between two quantiles they rise in a line; below the lowest and above the highest they stay there.
    """
    if spread.steady:
        return ()
    values = msgspec.structs.astuple(spread)
    lines = (_between((place + 0.5) / FACTORS, values) for place in range(FACTORS))
    return tuple(max(1.0, float(round(line / GRAIN))) * GRAIN for line in lines)


def _between(level: float, values: tuple[float, ...]) -> float:
    """The quantile at ``level``, of which ``values`` are those at LEVELS."""
    after = bisect_right(LEVELS, level)
    if after in (0, len(LEVELS)):
        return values[min(after, len(LEVELS) - 1)]
    low, high = LEVELS[after - 1], LEVELS[after]
    return values[after - 1] + (values[after] - values[after - 1]) / (high - low) * (level - low)


def mean_of(spread: StepSpread) -> float:
    """The mean factor: what steps take of the law's time in the long run."""
    table = factors_of(spread)
    return sum(table) / len(table) if table else 1.0


class Places:
    """Places in the table, one a step. ``stream``: 64 bits that tell one replica's draws from another's."""

    def __init__(self, stream: int) -> None:
        self._state = stream & _MASK

    def next(self) -> int:
        """From 0 to FACTORS - 1, each as likely as any other."""
        self._state = mixed = (self._state + STRIDE) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * MIX_1) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * MIX_2) & _MASK
        return (mixed ^ (mixed >> 31)) & (FACTORS - 1)
