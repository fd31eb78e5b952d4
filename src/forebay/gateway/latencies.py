"""How long whose requests took: histograms by team, model, tier and pool, each request counted once, where its usage is, when it ends.

By then all of it is known that a histogram wants: when it was sent, when its first content came and its last, and how many tokens it had.
So a chunk costs nothing, a stream that a relay worker carries is timed like any other, and a request costs four additions.
"""

from collections.abc import Iterator
from typing import Final

from forebay.domain.usage import UsageKey

KEYS_MAX: Final = 64
"""Of team, model, tier and pool, the first that came: each is some forty lines of the metrics page. Beyond, teams count as `OTHER`."""
OTHER: Final = "other"
ABSENT_S: Final = -1.0
"""There was no such time."""

QUEUE_S: Final[list[float]] = [0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0]
TTFT_S: Final[list[float]] = [0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0]
TOKEN_S: Final[list[float]] = [0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5]
TOTAL_S: Final[list[float]] = [0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0]


def _bucket(bounds_s: list[float], seconds: float) -> int:
    """As `bisect.bisect_left`, whose call costs more in C than to look at half a dozen bounds."""
    place = 0
    for bound_s in bounds_s:
        if seconds <= bound_s:
            break
        place += 1
    return place


class Took:
    """What the requests of one key took (world seconds): by bucket how many, and sums."""

    __slots__ = ("queue", "queue_sum_s", "token", "token_sum_s", "total", "total_sum_s", "ttft", "ttft_sum_s")

    def __init__(self) -> None:
        self.queue = [0] * (len(QUEUE_S) + 1)
        """From arrival until it was first sent."""
        self.ttft = [0] * (len(TTFT_S) + 1)
        """From arrival to a stream's first content."""
        self.token = [0] * (len(TOKEN_S) + 1)
        """From one token of a stream to the next, on the mean of its answer."""
        self.total = [0] * (len(TOTAL_S) + 1)
        """From arrival to the end of an answer that is complete."""
        self.queue_sum_s = self.ttft_sum_s = self.token_sum_s = self.total_sum_s = 0.0


class Latencies:
    """One gateway's, since it started."""

    def __init__(self) -> None:
        self._took: dict[UsageKey, Took] = {}
        self._keys = 0

    def observe(self, key: UsageKey, queue_s: float, ttft_s: float, token_s: float, total_s: float) -> None:
        """A request has ended; `ABSENT_S` or less for a time that it did not have."""
        took = self._took.get(key)
        if took is None:
            took = self._new(key)
        if queue_s > 0.0:
            took.queue[_bucket(QUEUE_S, queue_s)] += 1
            took.queue_sum_s += queue_s
        elif queue_s == 0.0:
            took.queue[0] += 1
        if ttft_s >= 0.0:
            took.ttft[_bucket(TTFT_S, ttft_s)] += 1
            took.ttft_sum_s += ttft_s
        if token_s >= 0.0:
            took.token[_bucket(TOKEN_S, token_s)] += 1
            took.token_sum_s += token_s
        if total_s >= 0.0:
            took.total[_bucket(TOTAL_S, total_s)] += 1
            took.total_sum_s += total_s

    def rows(self) -> Iterator[tuple[UsageKey, Took]]:
        """By key, those of `OTHER` too."""
        return iter(self._took.items())

    def _new(self, key: UsageKey) -> Took:
        """Its place, or that of the others. Names come from the spec, so what is not of a team's own is bounded by it."""
        if self._keys < KEYS_MAX:
            self._keys += 1
        else:
            key = (OTHER, *key[1:])
        took = self._took.get(key)
        if took is None:
            took = self._took[key] = Took()
        return took
