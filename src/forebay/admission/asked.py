"""What a limited team's clients asked one gateway for lately, whether they got it or not: by that its share of a limit is measured.

Pairs are (requests, tokens). Times are world seconds.
"""

import math

RATE_KEPT_S = 15.0
"""A rate forgets to 1/e in this."""
PEAK_KEPT_S = 10.0
"""And so does what was in flight at once."""
LARGEST_KEPT_S = 60.0
"""The largest request is remembered for once to twice this."""


class Asked:
    """Of one team at one gateway."""

    __slots__ = ("_at_s", "_largest", "_largest_before", "_now", "_peak", "_peaks", "_rates", "_refused", "_turned_s")

    def __init__(self) -> None:
        self._at_s = self._turned_s = -math.inf
        self._now = [0, 0]
        """Asked for since ``lately`` was last called."""
        self._refused = [0, 0]
        self._peak = [0, 0]
        self._rates = [0.0, 0.0]
        """A minute."""
        self._peaks = [0.0, 0.0]
        self._largest = self._largest_before = 0

    def one_more(self, tokens: int, in_flight: int, tokens_in_flight: int, *, let_in: bool) -> None:
        """A request of so many ``tokens`` came; others were ``in_flight``."""
        self._now[0] += 1
        self._now[1] += tokens
        if let_in:
            self._peak[0] = max(self._peak[0], in_flight + 1)
            self._peak[1] = max(self._peak[1], tokens_in_flight + tokens)
        else:
            self._peak[0] = max(self._peak[0], in_flight)
            self._peak[1] = max(self._peak[1], tokens_in_flight)
            self._refused[0] += 1
            self._refused[1] += tokens
        self._largest = max(self._largest, tokens)

    def lately(self, now_s: float, most: tuple[float, float]) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Asked for a minute (not over ``most``), at once (what was refused might have been), and the largest request."""
        passed_s = now_s - self._at_s
        if passed_s > 0:
            kept, weight = (
                (0.0, 1.0) if math.isinf(passed_s) else (math.exp(-passed_s / PEAK_KEPT_S), 1 - math.exp(-passed_s / RATE_KEPT_S))
            )
            span_s = RATE_KEPT_S if math.isinf(passed_s) else passed_s
            for unit in (0, 1):
                self._rates[unit] = min(most[unit], self._rates[unit] + (self._now[unit] * 60.0 / span_s - self._rates[unit]) * weight)
                self._peaks[unit] = max(self._peak[unit] + self._refused[unit], self._peaks[unit] * kept)
            self._now, self._refused, self._peak, self._at_s = [0, 0], [0, 0], [0, 0], now_s
        if now_s - self._turned_s >= LARGEST_KEPT_S:
            self._largest_before, self._largest, self._turned_s = self._largest, 0, now_s
        largest = max(self._largest, self._largest_before)
        rates, peaks = self._rates, self._peaks
        return _whole(rates), _whole(peaks), (min(1, largest), largest)


def _whole(pair: list[float]) -> tuple[int, int]:
    """Rounded up, but for what has all but been forgotten."""
    return math.ceil(pair[0] - 0.05), math.ceil(pair[1] - 0.05)
