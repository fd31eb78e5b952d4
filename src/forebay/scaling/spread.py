"""How far demand strays from what was expected of it: a histogram of remainders, in units of the spread that was told for each.

The histogram is all the policy knows of its own forecast's worth, at the very horizon at which it acts. In units of the spread
(`scaling.drift`) quiet nights and restless days share what they have in common: the tails. Old outcomes fade, so that a week that is
unlike the last one is learned within a day. It travels packed in the policy's memory.
"""

import math

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

BINS = 160
WIDTH = 0.1
"""Of a bin of remainders, in spreads."""
LOWEST = -8.0
"""Remainders from -8 to 8 spreads; what is beyond counts at the edge."""
RATIO_WIDTH, RATIO_LOWEST = 0.02, -1.6
"""Of a histogram of ratios, in their logarithm: 2 % a bin, from 0.2 to 5."""
RATIOS: Values = np.exp(RATIO_LOWEST + RATIO_WIDTH * (np.arange(BINS) + 0.5))
OUTCOMES_KEPT = 4000.0
"""Outcomes fade so that the weights sum to this many at most: three days of minutes, for what matters are the rare ones."""
PRIOR_OUTCOMES = 30.0
"""What the prior weighs: half an hour of outcomes outweighs it."""
COUNT_MAX = 1e9
_REMAINDERS: Values = np.asarray(LOWEST + WIDTH * (np.arange(BINS) + 0.5), np.float64)


def prior() -> Values:
    """Counts before anything was learned: normal around the expectation."""
    own = np.exp(-0.5 * _REMAINDERS**2)
    return np.asarray(own / own.sum() * PRIOR_OUTCOMES)


def unpacked(data: bytes) -> Values | None:
    """Counts from memory; None where they are absent or ill."""
    if len(data) != 4 * BINS:
        return None
    counts = np.frombuffer(data, "<f4").astype(np.float64)
    return counts if np.minimum.reduce(counts) >= 0 and 0 < np.add.reduce(counts) < COUNT_MAX else None


def packed(counts: Values) -> bytes:
    """Counts as 4 bytes each."""
    return np.asarray(counts, "<f4").tobytes()


def learned(counts: Values, remainder: float) -> Values:
    """``counts`` with one more outcome; an outcome that is no number teaches nothing."""
    if not math.isfinite(remainder):
        return counts
    kept = counts * min(1.0, OUTCOMES_KEPT / (float(np.add.reduce(counts)) + 1.0))
    kept[max(0, min(BINS - 1, int((max(remainder, LOWEST) - LOWEST) / WIDTH)))] += 1.0
    return kept


def of_ratios(counts: Values, swing: float) -> Values:
    """The histogram of *came ÷ expected*, at RATIOS, where remainders of ``counts`` are in units of ``swing``."""
    places = np.minimum(np.maximum((swing * _REMAINDERS - RATIO_LOWEST) / RATIO_WIDTH - 0.5, 0.0), BINS - 1.001)
    left = places.astype(np.intp)
    part = places - left
    shared: Values = np.asarray(np.bincount(left, counts * (1 - part), BINS), np.float64)
    shared += np.bincount(left + 1, counts * part, BINS)
    return shared
