"""Who of one lane has waited longest, and who expires next.

Where all wait equally long they expire in the order in which they came: such a line needs no sorting, and no other record of who is in
it. Who would expire before one that came earlier stands apart, and in a heap, from whose top is dropped what waits no more; from all of
it, when that prevails.
"""

import heapq
import math
from collections import OrderedDict

from forebay.admission.tickets import Ticket

STALE_MIN = 64
"""So many stale entries are never worth a sweep."""

_Entry = tuple[float, int]
"""Deadline and queueing number; stale once nothing waits under that number."""


class Deadlines:
    """Of everything that waits in one lane, by queueing numbers, which grow."""

    __slots__ = ("_early", "_heap", "_last_s", "_line")

    def __init__(self) -> None:
        self._line: OrderedDict[int, Ticket] = OrderedDict()
        """Those that expire in the order in which they came."""
        self._last_s = -math.inf
        """When the last of them does, or one that came after it would have."""
        self._early: OrderedDict[int, Ticket] = OrderedDict()
        """The others…"""
        self._heap: list[_Entry] = []
        """…by their deadlines."""

    def add(self, ticket: Ticket) -> None:
        """``ticket`` has just been queued. O(log n) at most, and memory stays within about twice what waits."""
        deadline_s = ticket.deadline_s
        if deadline_s >= self._last_s or not self._line:
            self._last_s = deadline_s
            self._line[ticket.queued_seq] = ticket
            return
        early, heap = self._early, self._heap
        if len(heap) - len(early) > max(len(early), STALE_MIN):
            heap[:] = [entry for entry in heap if entry[1] in early]
            heapq.heapify(heap)
        early[ticket.queued_seq] = ticket
        heapq.heappush(heap, (deadline_s, ticket.queued_seq))

    def remove(self, seq: int) -> None:
        """What was queued under this number waits no more."""
        if self._line.pop(seq, None) is None:
            del self._early[seq]

    def first(self) -> Ticket | None:
        """The queued ticket with the earliest deadline; the first queued among equals."""
        heap, early = self._heap, self._early
        while heap and heap[0][1] not in early:
            heapq.heappop(heap)
        if not heap:
            return next(iter(self._line.values()), None)
        first = early[heap[0][1]]
        ordered = next(iter(self._line.values()), first)
        return min(first, ordered, key=deadline_of)

    def oldest(self) -> Ticket | None:
        """Who has waited longest; None: nobody waits."""
        firsts = [next(iter(line.values())) for line in (self._line, self._early) if line]
        return min(firsts, key=_number_of, default=None)

    def live(self) -> list[Ticket]:
        """All that are queued and will expire, in no order (for checks)."""
        return [*self._line.values(), *(self._early[seq] for _, seq in self._heap if seq in self._early)]


def deadline_of(ticket: Ticket) -> _Entry:
    """By which of two that are queued expires first."""
    return ticket.deadline_s, ticket.queued_seq


def _number_of(ticket: Ticket) -> int:
    return ticket.queued_seq
