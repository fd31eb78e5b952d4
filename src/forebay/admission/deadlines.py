"""Who of one lane has waited longest, and who expires next.

Where all wait equally long they expire in the order in which they came: such a line needs no sorting, and no other record of who is in
it than that each knows its neighbours. (A table of thousands is cold memory at each look; who starts next is the neighbour of who starts.)
Who would expire before one that came earlier stands apart, and in a heap, from whose top is dropped what waits no more; from all of it,
when that prevails.
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

    __slots__ = ("_early", "_first", "_heap", "_last", "_last_s")

    def __init__(self) -> None:
        self._first: Ticket | None = None
        """Of those that expire in the order in which they came…"""
        self._last: Ticket | None = None
        """…and the other end of that line."""
        self._last_s = -math.inf
        """When the last of them does, or one that came after it would have."""
        self._early: OrderedDict[int, Ticket] = OrderedDict()
        """The others…"""
        self._heap: list[_Entry] = []
        """…by their deadlines."""

    def add(self, ticket: Ticket) -> None:
        """``ticket`` has just been queued. O(log n) at most, and memory stays within about twice what waits."""
        deadline_s, last = ticket.deadline_s, self._last
        if last is None:
            self._last_s = deadline_s
            self._first = self._last = ticket
            return
        if deadline_s >= self._last_s:
            self._last_s = deadline_s
            ticket.sooner, last.later = last, ticket
            self._last = ticket
            return
        early, heap = self._early, self._heap
        if len(heap) - len(early) > max(len(early), STALE_MIN):
            heap[:] = [entry for entry in heap if entry[1] in early]
            heapq.heapify(heap)
        early[ticket.queued_seq] = ticket
        heapq.heappush(heap, (deadline_s, ticket.queued_seq))

    def remove(self, ticket: Ticket) -> None:
        """``ticket``, which still has the number under which it was queued, waits no more."""
        sooner, later = ticket.sooner, ticket.later
        if sooner is not None:
            sooner.later = later
            ticket.sooner = None
        elif self._first is ticket:
            self._first = later
        else:
            del self._early[ticket.queued_seq]
            return
        if later is not None:
            later.sooner = sooner
            ticket.later = None
        else:
            self._last = sooner

    def first(self) -> Ticket | None:
        """The queued ticket with the earliest deadline; the first queued among equals."""
        heap, early = self._heap, self._early
        while heap and heap[0][1] not in early:
            heapq.heappop(heap)
        ordered = self._first
        if not heap:
            return ordered
        first = early[heap[0][1]]
        return first if ordered is None else min(first, ordered, key=deadline_of)

    def oldest(self) -> Ticket | None:
        """Who has waited longest; None: nobody waits."""
        ordered, early = self._first, next(iter(self._early.values()), None)
        if ordered is None or early is None:
            return ordered or early
        return min(ordered, early, key=_number_of)

    def live(self) -> list[Ticket]:
        """All that are queued and will expire, in no order (for checks)."""
        return [*self._in_line(), *(self._early[seq] for _, seq in self._heap if seq in self._early)]

    def _in_line(self) -> list[Ticket]:
        found: list[Ticket] = []
        one = self._first
        while one is not None:
            assert one.later is not None or one is self._last, "the line has another end"
            assert one.sooner is (found[-1] if found else None), "two neighbours disagree"
            found.append(one)
            one = one.later
        return found


def deadline_of(ticket: Ticket) -> _Entry:
    """By which of two that are queued expires first."""
    return ticket.deadline_s, ticket.queued_seq


def _number_of(ticket: Ticket) -> int:
    return ticket.queued_seq
