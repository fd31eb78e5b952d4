"""Records of requests on their way into the history: all that did not go as it should or went slowly, and a sample of the others.

They outlive the gateway there. Who writes the history asks each second; what finds no room until then is dropped, the oldest
first, and counted. Those that were unusual wait apart, so that no sample pushes one out. A record is made when it is asked for:
while many are slow, most are dropped.
"""

from collections import deque
from collections.abc import Callable

from forebay.domain.roster import Finished

SAMPLE_EVERY = 16
"""Of the requests that go as they should, one in so many is kept, with the scores of the replicas it could have gone to."""
WEIGHED_MAX = 64
"""So many of the others are weighed too between two takings: those that waited, or were tried again."""
WAITING_MAX = 2048
TAKEN_MAX = 256
"""At a time, of each kind: a quarter of a megabyte."""


class Leaving:
    """Of one gateway."""

    def __init__(self) -> None:
        self.until_sample = 1
        """Dispatches until the next is a sample."""
        self.weighed_left = WEIGHED_MAX
        self.dropped = 0
        self._unusual: deque[Callable[[], Finished]] = deque()
        self._sampled: deque[Callable[[], Finished]] = deque()

    def add(self, one: Callable[[], Finished], *, unusual: bool) -> None:
        """It is to be kept; ``one`` makes it of what does not change any more."""
        queue = self._unusual if unusual else self._sampled
        if len(queue) >= WAITING_MAX:
            queue.popleft()
            self.dropped += 1
        queue.append(one)

    def take(self) -> tuple[Finished, ...]:
        """Those to be written now; they are here no more."""
        self.weighed_left = WEIGHED_MAX
        taken: list[Finished] = []
        for queue in (self._unusual, self._sampled):
            for _ in range(min(TAKEN_MAX, len(queue))):
                taken.append(queue.popleft()())
        return tuple(taken)
