"""How far demand strays from what was expected of it: a histogram of *came ÷ expected*, learned as it comes true.

The histogram is all the policy knows of its own forecast's worth, at the very horizon at which it acts. Old outcomes
fade, so that a week that is unlike the last one is learned within a day. It travels packed in the policy's memory.
"""

import math

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

BINS = 160
WIDTH = 0.02
"""Of a bin, in the logarithm of the ratio: 2 %, a fraction of a replica in most pools."""
LOWEST = -1.6
"""Ratios from e^-1.6 = 0.2 to 5; what is beyond counts at the edge."""
RATIOS: Values = np.exp(LOWEST + WIDTH * (np.arange(BINS) + 0.5))
OUTCOMES_KEPT = 2000.0
"""Outcomes fade so that the weights sum to this many at most: a day and a half of minutes."""
PRIOR_OUTCOMES = 30.0
"""What the prior weighs: half an hour of outcomes outweighs it."""
PRIOR_SIGMA = 0.12
"""Spread of the logarithm before anything was learned: the middle of what real load series show at ten minutes."""
COUNT_MAX = 1e9


def prior() -> Values:
    """Counts before anything was learned: lognormal around the expectation."""
    logs = LOWEST + WIDTH * (np.arange(BINS) + 0.5)
    own = np.exp(-0.5 * (logs / PRIOR_SIGMA) ** 2)
    return np.asarray(own / own.sum() * PRIOR_OUTCOMES)


def unpacked(data: bytes) -> Values | None:
    """Counts from memory; None where they are absent or ill."""
    if len(data) != 4 * BINS:
        return None
    counts = np.frombuffer(data, "<f4").astype(np.float64)
    total = float(counts.sum())
    return counts if np.all(counts >= 0) and 0 < total < COUNT_MAX else None


def packed(counts: Values) -> bytes:
    """Counts as 4 bytes each."""
    return np.asarray(counts, "<f4").tobytes()


def learned(counts: Values, ratio: float) -> Values:
    """``counts`` with one more outcome; an outcome that is no number teaches nothing."""
    if not (math.isfinite(ratio) and ratio >= 0):
        return counts
    place = int((math.log(max(ratio, 1e-9)) - LOWEST) / WIDTH)
    kept = counts * min(1.0, OUTCOMES_KEPT / (float(counts.sum()) + 1.0))
    kept[max(0, min(BINS - 1, place))] += 1.0
    return kept
