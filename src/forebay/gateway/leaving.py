"""Records of requests on their way into the history: all that did not go as it should or went slowly, and a sample of the others.

They outlive the gateway there. Who writes the history asks each second; what finds no room until then is dropped, the oldest
first, and counted. Those that were unusual wait apart, so that no sample pushes one out.
"""

from collections import deque

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
        self._unusual: deque[Finished] = deque()
        self._sampled: deque[Finished] = deque()

    def add(self, one: Finished) -> None:
        """It is to be kept."""
        queue = self._unusual if one.unusual else self._sampled
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
                taken.append(queue.popleft())
        return tuple(taken)
