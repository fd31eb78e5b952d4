"""How long replicas take to begin their answers, and to give whole ones, as measured: one that takes much longer has hung.

A running mean and mean deviation, as TCP keeps of its round trips (RFC 6298, alpha 1/8, beta 1/4, K = 4).
"""

from typing import Final

FIRST_TTFT_FACTOR = 5.0
"""A first content is waited for at least so many times the tier's promise…"""
FIRST_S_MIN = 5.0
"""…and so many world seconds."""


SHORT_S: Final = 1.0
"""What is foreseen to be over sooner says nothing: HTTP takes as long."""


class Measured:
    """World seconds that something takes, or a multiple of what was foreseen."""

    __slots__ = ("_deviation_s", "_mean_s")

    def __init__(self) -> None:
        self._mean_s = self._deviation_s = 0.0

    def took(self, seconds: float) -> None:
        """One was measured."""
        if not self._mean_s:
            self._mean_s, self._deviation_s = seconds, seconds / 2
            return
        self._deviation_s += (abs(seconds - self._mean_s) - self._deviation_s) / 4
        self._mean_s += (seconds - self._mean_s) / 8

    @property
    def most_s(self) -> float:
        """What hardly any takes longer than; 0: nothing was measured."""
        return self._mean_s + 4 * self._deviation_s


class FirstContents(Measured):
    """From sending to the first content, of one pool's streams."""

    __slots__ = ()

    def timeout_s(self, ttft_s: float) -> float:
        """After how long a request of a tier that promises ``ttft_s`` is given to another replica."""
        return max(FIRST_S_MIN, FIRST_TTFT_FACTOR * ttft_s, 2 * self.most_s)


class Overruns(Measured):
    """How much longer than foreseen whole answers take, over the tokens that they turned out to have, of one pool."""

    __slots__ = ()

    def answered(self, seconds: float, foreseen_s: float) -> None:
        """One took so long."""
        self.took(seconds / (foreseen_s + SHORT_S))

    @property
    def factor(self) -> float:
        """What hardly any takes longer than, as a multiple of what is foreseen."""
        return max(1.0, self.most_s)
