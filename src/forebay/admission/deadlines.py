"""When the next queued request expires: a heap whose stale entries are dropped at the top, and all at once when they prevail."""

import heapq

from forebay.admission.tickets import Ticket

STALE_MIN = 64
"""So many stale entries are never worth a sweep."""


class Deadlines:
    """Holds (deadline, queueing number, ticket); an entry is stale once its ticket was queued anew or is queued no more."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Ticket]] = []

    def add(self, ticket: Ticket, live: int) -> None:
        """``ticket`` has just been queued as one of ``live``. O(log n), and memory stays within twice the live ones."""
        if len(self._heap) - live > max(live, STALE_MIN):
            self._heap = [entry for entry in self._heap if entry[2].queued_seq == entry[1]]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (ticket.deadline_s, ticket.queued_seq, ticket))

    def first(self) -> Ticket | None:
        """The queued ticket with the earliest deadline; the first queued among equals."""
        heap = self._heap
        while heap and heap[0][2].queued_seq != heap[0][1]:
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def live(self) -> list[Ticket]:
        """All that are queued, in no order (for checks)."""
        return [ticket for _, seq, ticket in self._heap if ticket.queued_seq == seq]
