"""When the next queued request expires.

Where all wait equally long they expire in the order in which they came: such a line needs no sorting, and who left it is dropped at its
head. Who expires before the end of the line goes into a heap, whose stale entries are dropped at the top, and all at once when they prevail.
"""

import heapq
from collections import deque

from forebay.admission.tickets import Ticket

STALE_MIN = 64
"""So many stale entries are never worth a sweep."""

_Entry = tuple[float, int, Ticket]
"""Deadline, queueing number, ticket; stale once the ticket was queued anew or is queued no more."""


class Deadlines:
    """Of everything that waits in one pool."""

    __slots__ = ("_heap", "_line")

    def __init__(self) -> None:
        self._line: deque[_Entry] = deque()
        """By deadline, and by queueing number."""
        self._heap: list[_Entry] = []

    def add(self, ticket: Ticket, live: int) -> None:
        """``ticket`` has just been queued as one of ``live``. O(log n) at most, and memory stays within about twice the live ones."""
        line = self._line
        while line and line[0][2].queued_seq != line[0][1]:
            line.popleft()
        if len(line) + len(self._heap) - live > max(live, STALE_MIN):
            self._sweep()
            line = self._line
        entry = (ticket.deadline_s, ticket.queued_seq, ticket)
        if not line or ticket.deadline_s >= line[-1][0]:
            line.append(entry)
        else:
            heapq.heappush(self._heap, entry)

    def first(self) -> Ticket | None:
        """The queued ticket with the earliest deadline; the first queued among equals."""
        line, heap = self._line, self._heap
        while line and line[0][2].queued_seq != line[0][1]:
            line.popleft()
        while heap and heap[0][2].queued_seq != heap[0][1]:
            heapq.heappop(heap)
        if line and heap:
            return line[0][2] if line[0] < heap[0] else heap[0][2]
        return line[0][2] if line else heap[0][2] if heap else None

    def live(self) -> list[Ticket]:
        """All that are queued, in no order (for checks)."""
        return [ticket for entries in (self._line, self._heap) for _, seq, ticket in entries if ticket.queued_seq == seq]

    def _sweep(self) -> None:
        self._line = deque(entry for entry in self._line if entry[2].queued_seq == entry[1])
        self._heap = [entry for entry in self._heap if entry[2].queued_seq == entry[1]]
        heapq.heapify(self._heap)
