"""Records of requests on their way into the history: all that did not go as it should or went slowly, and a sample of the others.

They outlive the gateway there. Who writes the history asks each second; what finds no room until then is dropped, the oldest
first, and counted. Those that were unusual wait apart, so that no sample pushes one out. A record is made when it is asked for:
while many are slow, most are dropped.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from forebay.domain.roster import Finished

Kept = TypeVar("Kept")
"""What a record is made of."""
SAMPLE_EVERY: Final = 16
"""Of the requests that go as they should, one in so many is kept, with the scores of the replicas it could have gone to."""
WEIGHED_MAX = 64
"""So many of the others are weighed too between two takings: those that waited, or were tried again."""
WAITING_MAX = 2048
TAKEN_MAX = 256
"""At a time, of each kind: a quarter of a megabyte."""


class Leaving(Generic[Kept]):
    """Of one gateway."""

    def __init__(self, make: Callable[[Kept, float, bool], Finished]) -> None:
        """``make`` makes a record of what is kept of it, with when it ended and whether it was unusual: once it is taken."""
        self.until_sample = 1
        """Dispatches until the next is a sample."""
        self.weighed_left = WEIGHED_MAX
        self.dropped = 0
        self._make = make
        self._unusual: deque[tuple[Kept, float, bool]] = deque()
        self._sampled: deque[tuple[Kept, float, bool]] = deque()

    def add(self, one: Kept, ended_s: float, unusual: bool) -> None:
        """It is to be kept: what is known of it does not change any more."""
        queue = self._unusual if unusual else self._sampled
        if len(queue) >= WAITING_MAX:
            queue.popleft()
            self.dropped += 1
        queue.append((one, ended_s, unusual))

    def take(self) -> tuple[Finished, ...]:
        """Those to be written now; they are here no more."""
        self.weighed_left = WEIGHED_MAX
        taken: list[Finished] = []
        for queue in (self._unusual, self._sampled):
            for _ in range(min(TAKEN_MAX, len(queue))):
                taken.append(self._make(*queue.popleft()))
        return tuple(taken)
