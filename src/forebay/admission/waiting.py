"""Whatever waits in one pool: its lanes, in what order they are looked at, and when the first of all expires.

Lanes go by rank, but a lane below the top that is owed its share goes first (`lanes`). Only as many requests are looked at behind a
head that fits nowhere as `LOOK_MAX`, so that what waits costs nothing while it waits.
"""

import math
from collections.abc import Mapping, Sequence

from forebay.admission.deadlines import deadline_of
from forebay.admission.lanes import Lane
from forebay.admission.tickets import Ticket
from forebay.spec.types import Tier

LOOK_MAX = 8
"""Requests looked at behind a head that fits nowhere."""
BOUND_LOOK_MAX = 256
"""More of them, where so many wait that only one replica can serve: it may be full beside others that are idle."""
AHEAD_STARTS = 8
"""What a lane was given beyond its share counts towards it, up to so many requests like the one started last: enough that one which
gets its share anyway is owed nothing, and little enough that one which others crowd out again is soon owed its share."""


class Waiting:
    """The lanes of one pool."""

    __slots__ = ("_sharing", "bound", "bound_at", "count", "due_s", "held", "lane_of", "lanes", "last_seq", "returned")

    def __init__(self, tiers: Sequence[Tier], weights: Mapping[str, float]) -> None:
        ranked = sorted(tiers, key=lambda tier: tier.rank)
        self.lanes = tuple(Lane(tier, index, dict(weights)) for index, tier in enumerate(ranked))
        self.lane_of = {lane.tier: lane for lane in self.lanes}
        self.count = 0
        """Requests in all lanes."""
        self.returned = 0
        """Of those, the ones that had been started before: they have been let in already."""
        self.bound = 0
        """Of those, the ones that only one replica can serve: where that has no room, others are looked at past them…"""
        self.bound_at: dict[str, int] = {}
        """…and how many wait for which."""
        self.due_s = math.inf
        """Nothing expires before this."""
        self.last_seq = 0
        """The queueing number given last."""
        self.held = False
        """What is preemptible is not started."""
        self._sharing = tuple(lane for lane in self.lanes if lane.gain)

    def join(self, ticket: Ticket, now_s: float) -> None:
        """``ticket`` waits from now on."""
        seq = self.last_seq = self.last_seq + 1
        self.count += 1
        if ticket.returned:
            self.returned += 1
        if ticket.only:
            self._bind(ticket.only, 1)
        ticket.lane.join(ticket, seq, now_s)
        if ticket.deadline_s < self.due_s:
            self.due_s = ticket.deadline_s

    def leave(self, ticket: Ticket, now_s: float, *, started: bool) -> None:
        """``ticket`` waits no more."""
        ticket.lane.leave(ticket, now_s, started=started)
        self.count -= 1
        if ticket.returned:
            self.returned -= 1
        if ticket.only:
            self._bind(ticket.only, -1)

    def _bind(self, replica: str, more: int) -> None:
        self.bound += more
        count = self.bound_at.get(replica, 0) + more
        if count:
            self.bound_at[replica] = count
        else:
            del self.bound_at[replica]

    def served_by(self, replicas: int, now_s: float) -> None:
        """So many replicas take what waits from now on, but for what is held back."""
        for lane in self.lanes:
            lane.serve(0 if self.held and lane.preemptible else replicas, now_s)

    def ahead(self, lane: Lane) -> bool:
        """Whether anything waits in this lane or in more important ones."""
        index = lane.index
        for other in self.lanes:
            if other.waiting:
                return other.index <= index
        return False

    def started(self, ticket: Ticket) -> None:
        """It has a permit: the lanes that wait below the top are owed their share of that, and its own has had it."""
        own = ticket.lane
        if own.waiting == self.count and not own.gain:
            return  # nobody waits below the top
        tokens = ticket.total
        for lane in self._sharing:
            if lane is ticket.lane:
                if lane.owed_tokens > 0:
                    ticket.shared = True
                lane.owed_tokens = max(lane.owed_tokens - tokens, -AHEAD_STARTS * tokens)
            elif lane.waiting and not (self.held and lane.preemptible):
                lane.owed_tokens += lane.gain * tokens

    def gave_up(self, ticket: Ticket) -> None:
        """It is to lose its permit to another: its lane has not been given that, as far as it is ahead of its share."""
        lane = ticket.lane
        if lane.owed_tokens < 0:
            lane.owed_tokens = min(0.0, lane.owed_tokens + ticket.total)

    def first(self, now_s: float) -> Ticket | None:
        """Who goes next; None: nobody waits, but for what is held back."""
        held = self.held
        top = self.lanes[0]
        if top.waiting == self.count and top.waiting and not (held and top.preemptible):
            return top.order.head(now_s)
        for lane in self._sharing:
            if lane.owed_tokens > 0 and lane.waiting and not (held and lane.preemptible):
                return lane.order.head(now_s)
        for lane in self.lanes:
            if lane.waiting and not (held and lane.preemptible):
                return lane.order.head(now_s)
        return None

    def after(self, first: Ticket, now_s: float) -> list[Ticket]:
        """Those that come after ``first``, up to `LOOK_MAX`, and as many more as only one replica can serve."""
        found: list[Ticket] = []
        most = LOOK_MAX + min(self.bound, BOUND_LOOK_MAX) if self.bound else LOOK_MAX
        for lane in self.lanes:
            more = most - len(found)
            if lane.waiting and more > 0 and not (self.held and lane.preemptible):
                head = lane.order.head(now_s)
                if head is not first:
                    found.append(head)
                    more -= 1
                if lane.waiting > 1 and more:
                    found += [ticket for ticket in lane.order.behind(head, now_s, more, deep=self.bound > 0) if ticket is not first]
        return found

    def due(self) -> Ticket | None:
        """Who expires first; None: nobody waits."""
        firsts = [first for lane in self.lanes if (first := lane.deadlines.first()) is not None]
        first = min(firsts, key=deadline_of, default=None)
        self.due_s = math.inf if first is None else first.deadline_s
        return first

    def check(self) -> None:
        """Raises AssertionError unless everything that waits is in its lane, and will expire."""
        for lane in self.lanes:
            lane.check()
        queued = {ticket.id for lane in self.lanes for ticket in lane.order.live()}
        assert self.count == len(queued), f"{len(queued)} wait, {self.count} counted"
        bound = [ticket.only for lane in self.lanes for ticket in lane.order.live() if ticket.only]
        assert self.bound == len(bound), f"{len(bound)} wait for one replica, {self.bound} counted"
        assert self.bound_at == {replica: bound.count(replica) for replica in bound}
        assert {ticket.id for lane in self.lanes for ticket in lane.deadlines.live()} == queued, "a queued ticket has no deadline"
