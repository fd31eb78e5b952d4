"""When the next queued request expires.

Where all wait equally long they expire in the order in which they came: such a line needs no sorting. Who expires before the end of the
line goes into a heap. What left the queue is dropped at the head of either, and all at once when it prevails; until then it is but two
numbers, and keeps no request alive.
"""

import heapq
from collections import deque

from forebay.admission.tickets import Ticket

STALE_MIN = 64
"""So many stale entries are never worth a sweep."""

_Entry = tuple[float, int]
"""Deadline and queueing number; stale once nothing waits under that number."""


class Deadlines:
    """Of everything that waits in one pool."""

    __slots__ = ("_heap", "_line", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[int, Ticket] = {}
        """By queueing number."""
        self._line: deque[_Entry] = deque()
        """In order."""
        self._heap: list[_Entry] = []

    def add(self, ticket: Ticket) -> None:
        """``ticket`` has just been queued. O(log n) at most, and memory stays within about twice what waits."""
        waiting, line = self._waiting, self._line
        seq = ticket.queued_seq
        waiting[seq] = ticket
        while line and line[0][1] not in waiting:
            line.popleft()
        if len(line) + len(self._heap) - len(waiting) > max(len(waiting), STALE_MIN):
            self._sweep()
            line = self._line
        deadline_s = ticket.deadline_s
        if not line or deadline_s >= line[-1][0]:
            line.append((deadline_s, seq))
        else:
            heapq.heappush(self._heap, (deadline_s, seq))

    def remove(self, seq: int) -> None:
        """What was queued under this number waits no more."""
        del self._waiting[seq]

    def first(self) -> Ticket | None:
        """The queued ticket with the earliest deadline; the first queued among equals."""
        waiting, line, heap = self._waiting, self._line, self._heap
        while line and line[0][1] not in waiting:
            line.popleft()
        while heap and heap[0][1] not in waiting:
            heapq.heappop(heap)
        if line and heap:
            return waiting[min(line[0], heap[0])[1]]
        return waiting[(line or heap)[0][1]] if line or heap else None

    def live(self) -> list[Ticket]:
        """All that are queued and will expire, in no order (for checks)."""
        return [self._waiting[seq] for entries in (self._line, self._heap) for _, seq in entries if seq in self._waiting]

    def _sweep(self) -> None:
        waiting = self._waiting
        self._line = deque(entry for entry in self._line if entry[1] in waiting)
        self._heap = [entry for entry in self._heap if entry[1] in waiting]
        heapq.heapify(self._heap)
