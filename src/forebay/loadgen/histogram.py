"""Quantiles of any number of durations in fixed memory: counts in bins whose width is 1 % of their value.

Every quantile it gives is within half a bin (0.5 %) of the exact one, which is finer than what two runs differ by.
Histograms add up, so tiers are measured apart and summed for the total.
"""

import math

LEAST_S = 1e-6
MOST_S = 1e6
BINS_PER_E = 100.0
BINS = math.ceil(math.log(MOST_S / LEAST_S) * BINS_PER_E) + 1
_LOG_LEAST = math.log(LEAST_S)
_log = math.log


class Histogram:
    """Durations in seconds; those below ``LEAST_S`` or above ``MOST_S`` count in the outermost bins."""

    __slots__ = ("count", "counts", "least_s", "most_s", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * BINS
        self.count = 0
        self.total_s = 0.0
        self.least_s = math.inf
        self.most_s = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count ``seconds``, ``times`` times over."""
        index = int((_log(seconds) - _LOG_LEAST) * BINS_PER_E) if seconds > LEAST_S else 0
        self.counts[index if index < BINS else BINS - 1] += times
        self.count += times
        self.total_s += seconds * times
        if seconds > self.most_s:
            self.most_s = seconds
        if seconds < self.least_s:
            self.least_s = seconds

    def merge(self, other: "Histogram") -> None:
        """Add everything ``other`` has counted."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.count += other.count
        self.total_s += other.total_s
        self.least_s = min(self.least_s, other.least_s)
        self.most_s = max(self.most_s, other.most_s)

    def quantile(self, fraction: float) -> float | None:
        """The smallest value that at least ``fraction`` of all are not above, to 0.5 %; None if nothing was counted."""
        if self.count == 0:
            return None
        rank = max(1, math.ceil(fraction * self.count - 1e-9))
        seen = 0
        for index, number in enumerate(self.counts):
            seen += number
            if seen >= rank:
                middle = math.exp(_LOG_LEAST + (index + 0.5) / BINS_PER_E)
                return min(max(middle, self.least_s), self.most_s)
        return self.most_s
