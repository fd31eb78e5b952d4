"""The lines that requests wait in: one lane per tier, each with an order of its own.

An order is an object, so that fairness among teams and deadlines can take the place of first-come-first-served
without the machine noticing. Removal from the middle only marks: the dead are dropped when they reach an end, and all
at once when they outnumber the living, so no operation costs more than O(1) on average and memory stays within twice
the queue's bound.
"""

from collections import deque
from typing import Protocol

from forebay.admission.pace import Pace
from forebay.admission.tickets import Ticket
from forebay.domain.roster import LaneLoad
from forebay.spec.types import Tier

DEAD_MIN = 64
"""So many dead entries are never worth a sweep."""


class Order(Protocol):
    """Who of a lane goes next, and who is displaced first. Entries that are no longer queued are skipped."""

    def add(self, ticket: Ticket) -> None:
        """A new arrival."""
        ...

    def put_back(self, ticket: Ticket) -> None:
        """One that was dispatched and came back goes first."""
        ...

    def head(self) -> Ticket:
        """Who goes next. The lane is not empty."""
        ...

    def newest(self) -> Ticket:
        """Who is displaced first. The lane is not empty."""
        ...

    def dropped(self, live: int) -> None:
        """One of the entries has left; ``live`` are still there."""
        ...

    def live(self) -> list[Ticket]:
        """All that wait, in order (for checks)."""
        ...


class Fifo:
    """First come, first served."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: deque[Ticket] = deque()

    def add(self, ticket: Ticket) -> None:
        """Behind all others."""
        self._entries.append(ticket)

    def put_back(self, ticket: Ticket) -> None:
        """Before all others."""
        self._entries.appendleft(ticket)

    def head(self) -> Ticket:
        """The oldest; raises IndexError if none waits."""
        entries = self._entries
        while not entries[0].queued_seq:
            entries.popleft()
        return entries[0]

    def newest(self) -> Ticket:
        """The youngest; raises IndexError if none waits."""
        entries = self._entries
        while not entries[-1].queued_seq:
            entries.pop()
        return entries[-1]

    def dropped(self, live: int) -> None:
        """Forget the dead at the head at once, and the others when they outnumber the living."""
        entries = self._entries
        while entries and not entries[0].queued_seq:
            entries.popleft()
        if len(entries) - live > max(live, DEAD_MIN):
            self._entries = deque(self.live())

    def live(self) -> list[Ticket]:
        """Oldest first."""
        return [ticket for ticket in self._entries if ticket.queued_seq]


class Lane:
    """One tier's line inside a pool's queue, with the sums that waits are predicted from."""

    __slots__ = ("index", "longest_wait_s", "order", "output_tokens", "pace", "preemptible", "prompt_tokens", "rank", "tier", "waiting")

    def __init__(self, tier: Tier, index: int) -> None:
        self.tier = tier.name
        self.rank = tier.rank
        self.index = index
        """Place among the pool's lanes by rank; 0 goes first."""
        self.longest_wait_s = tier.longest_wait_s
        self.preemptible = tier.preemptible
        self.order: Order = Fifo()
        self.pace = Pace()
        self.waiting = 0
        self.prompt_tokens = 0
        self.output_tokens = 0

    def join(self, ticket: Ticket, seq: int, now_s: float) -> None:
        """``ticket`` waits from now on: behind the others, or first if it has been dispatched before."""
        self.pace.move(now_s, self.waiting > 0)
        ticket.queued_seq = seq
        ticket.queued_s = now_s
        if ticket.excluded:
            self.order.put_back(ticket)
        else:
            self.order.add(ticket)
        self.waiting += 1
        self.prompt_tokens += ticket.prompt
        self.output_tokens += ticket.output

    def leave(self, ticket: Ticket, now_s: float, dispatched: bool) -> None:
        """``ticket`` waits no more."""
        self.pace.move(now_s, True)
        if dispatched:
            self.pace.dispatched(ticket.total)
        ticket.queued_seq = 0
        self.waiting -= 1
        self.prompt_tokens -= ticket.prompt
        self.output_tokens -= ticket.output
        self.order.dropped(self.waiting)

    def load(self, now_s: float) -> LaneLoad:
        """What the controller is told."""
        return LaneLoad(
            tier=self.tier,
            preemptible=self.preemptible,
            waiting=self.waiting,
            waiting_tokens=self.prompt_tokens + self.output_tokens,
            oldest_wait_s=max(0.0, now_s - self.order.head().arrived_s) if self.waiting else 0.0,
        )

    def check(self) -> None:
        """Raises AssertionError unless the sums are those of the entries."""
        live = self.order.live()
        assert len(live) == self.waiting == len({ticket.id for ticket in live}), (
            f"{self.tier}: {self.waiting} wait, {len(live)} are in line"
        )
        assert all(ticket.replica is None and ticket.lane is self for ticket in live), f"{self.tier}: one in line is also elsewhere"
        assert self.prompt_tokens == sum(ticket.prompt for ticket in live), f"{self.tier}: prompt tokens leaked"
        assert self.output_tokens == sum(ticket.output for ticket in live), f"{self.tier}: output tokens leaked"
