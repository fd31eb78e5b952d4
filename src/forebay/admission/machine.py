"""The admission machine of one pool: whatever waits, waits here, in the order this file decides.

A request that fits is dispatched at once with a permit on one replica; else it waits in its tier's lane; what can't be
served in time is refused early, with an honest Retry-After. Lanes have strict priority by rank. The head of the most
important non-empty lane goes next, and while it fits nowhere it blocks all behind it, in its own lane and in less
important ones: so a large request is never starved by small ones, at the price of room left unused meanwhile. Nothing
is let past a blocked head, not even within a bound.

Calls in, effects out, no I/O: one owner calls it, synchronously, and carries the effects out. Uncontended requests cost
O(replicas) cheap comparisons. A blocked head is tried again only on replicas where something was freed since.
"""

from collections.abc import Sequence

from forebay.admission.budget import Replica
from forebay.admission.deadlines import Deadlines
from forebay.admission.effects import Dispatch, Effect, Refuse
from forebay.admission.lanes import Lane
from forebay.admission.outcomes import Refusal, bounded
from forebay.admission.replicas import Replicas
from forebay.admission.tickets import RETRIES_MAX, Ticket
from forebay.admission.waits import declared_wait_s, measured_wait_s
from forebay.domain.roster import LaneLoad, Posture, ReplicaLoad, RosterPool
from forebay.domain.shape import Shape, Usage
from forebay.domain.signal import Known
from forebay.spec.types import Tier

NO_REPLICAS_HOLD_S = 15.0
"""With no replica and none expected a request is held this long: the controller needs a few ticks to start the first."""
NO_REPLICAS_RETRY_S = 30.0
"""Retry-After where nothing is expected."""
UNMEASURED_RETRY_S = 10.0
"""Retry-After where neither a measured nor a declared pace is known."""
FORESIGHT_S = 600.0
"""A pace seen over half a minute is not stretched further: tiers that accept a longer wait are not refused by prediction."""


class Admission:
    """Lanes, permits and refusals of one pool.

    ``tiers``: one lane each, lowest rank first (equal ranks in the order given). ``queued_max`` bounds all lanes
    together. Times are world seconds and never go backwards; call ``advance`` when ``next_deadline_s()`` has come.
    """

    def __init__(self, pool: str, tiers: Sequence[Tier], queued_max: int) -> None:
        if not tiers:
            raise ValueError(f"pool {pool!r} needs at least one tier")
        self.pool = pool
        self.queued_max = queued_max
        self.arrived_total = 0
        self.finished_total = 0
        self.refused_total = 0
        self.abandoned_total = 0
        self.outlived_total = 0
        """Finished requests whose output was longer than estimated at arrival."""
        ranked = sorted(tiers, key=lambda tier: tier.rank)
        self._lanes = tuple(Lane(tier, index) for index, tier in enumerate(ranked))
        self._lane_of = {lane.tier: lane for lane in self._lanes}
        self._tickets: dict[int, Ticket] = {}
        self.waiting = 0
        """Requests in all lanes."""
        self._seq = 0
        self._deadlines = Deadlines()
        self._replicas = Replicas()
        self._blocked: Ticket | None = None
        """The head that was found to fit nowhere…"""
        self._freed: dict[Replica, None] = {}
        """…and the replicas that have had something freed since."""

    def arrive(self, ticket: int, tier: str, team: str, shape: Shape, now_s: float, longest_wait_s: float | None = None) -> list[Effect]:
        """A new request: dispatched, queued (no effect for it), or refused. Raises ValueError for a ticket in use or a tier unknown.

        ``longest_wait_s``: the team's own promise in that tier, where it has one; else the tier's.
        """
        lane = self._lane_of.get(tier)
        if lane is None:
            raise ValueError(f"pool {self.pool!r} has no tier {tier!r}; it has {', '.join(self._lane_of)}")
        if ticket in self._tickets:
            raise ValueError(f"ticket {ticket} has not ended yet; tickets are given once")
        effects: list[Effect] = []
        if self.waiting:
            self._expire(now_s, effects)
        self.arrived_total += 1
        entry = Ticket(ticket, lane, team, shape, now_s, longest_wait_s)
        self._tickets[ticket] = entry
        goes_next = not (self.waiting and any(other.waiting for other in self._lanes[: lane.index + 1]))
        if goes_next:
            replica = self._replicas.choose(entry, self._replicas.listed)
            if replica is not None:
                self._grant(entry, replica, now_s, effects)
                return effects
        why = self._turned_away(entry, now_s)
        if why is not None:
            self._refuse(entry, why, now_s, effects)
        else:
            self._enqueue(entry, goes_next, now_s, effects)
        return effects

    def first_token(self, ticket: int, now_s: float) -> list[Effect]:
        """The first token of a dispatched request came: its share of prefill is free. Later calls change nothing."""
        entry = self._running(ticket)
        replica = entry.replica
        assert replica is not None
        if entry.outstanding:
            replica.prefilled(entry)
            return self._freed_on(replica, now_s)
        return []

    def emitted(self, ticket: int, tokens: int) -> None:
        """``tokens`` more output tokens (a difference, not a total) of a dispatched request came out."""
        entry = self._running(ticket)
        assert entry.replica is not None
        entry.replica.grow(entry, tokens)

    def finish(self, ticket: int, usage: Usage | None, now_s: float) -> list[Effect]:
        """The last byte of a dispatched request was delivered, or it failed for good: its permit ends.

        ``usage``: what it really took, where known.
        """
        entry = self._running(ticket)
        self.finished_total += 1
        if usage is not None and usage.output_tokens - entry.resumed > entry.output:
            self.outlived_total += 1
        return self._end_permit(entry, now_s)

    def abandon(self, ticket: int, now_s: float) -> list[Effect]:
        """The client went away: the request ends, queued or dispatched. One that has ended already is left alone."""
        entry = self._tickets.get(ticket)
        if entry is None:
            return []
        self.abandoned_total += 1
        if entry.replica is not None:
            return self._end_permit(entry, now_s)
        effects: list[Effect] = []
        del self._tickets[ticket]
        self._leave(entry, now_s, dispatched=False)
        self._settle(now_s, effects)
        return effects

    def retry(self, ticket: int, now_s: float, more_prompt_tokens: int = 0) -> list[Effect]:
        """A dispatched request was failed by its replica: it goes back to the head of its lane, never to that replica again.

        ``more_prompt_tokens`` of its output are out already: they are prompt to the replica that goes on.
        It keeps its arrival time, and what was left of its longest wait when it was dispatched. Refused where no
        replica is left that it has not tried, or after ``RETRIES_MAX``.
        """
        entry = self._running(ticket)
        replica = entry.replica
        assert replica is not None
        effects: list[Effect] = []
        replica.release(entry)
        if more_prompt_tokens:
            entry.resume(more_prompt_tokens)
        entry.excluded = (*entry.excluded, replica.id)
        entry.deadline_s = now_s + max(0.0, entry.deadline_s - entry.dispatched_s)
        why = Refusal.NO_REPLICAS if len(entry.excluded) > RETRIES_MAX else self._replicas.hopeless(entry)
        if why is not None:
            self._refuse(entry, why, now_s, effects)
        else:
            goes_next = not any(other.waiting for other in self._lanes[: entry.lane.index])
            target = self._replicas.choose(entry, self._replicas.listed) if goes_next else None
            if target is not None:
                self._grant(entry, target, now_s, effects)
            else:
                self._enqueue(entry, goes_next, now_s, effects)
        effects += self._freed_on(replica, now_s)
        return effects

    def set_roster(self, roster: RosterPool, now_s: float) -> list[Effect]:
        """Use these replicas from now on. One that left keeps its permits until they end; one that comes back counts them."""
        self._replicas.take(roster, now_s)
        self._blocked = None
        effects: list[Effect] = []
        self._settle(now_s, effects)
        return effects

    def advance(self, now_s: float) -> list[Effect]:
        """Refuse what has waited as long as its tier accepts."""
        effects: list[Effect] = []
        if self.waiting:
            self._expire(now_s, effects)
        return effects

    def next_deadline_s(self) -> float | None:
        """The world time at which ``advance`` has something to do; None if nothing waits."""
        if not self.waiting:
            return None
        first = self._deadlines.first()
        assert first is not None
        due_s = [first.deadline_s]
        if self._replicas.barren_since_s is not None:
            due_s += [self._held_until_s(lane) for lane in self._lanes if lane.waiting]
        return min(due_s)

    def load(self, now_s: float) -> tuple[tuple[LaneLoad, ...], tuple[ReplicaLoad, ...]]:
        """What waits and what is in flight (draining replicas included), for the snapshot to the controller."""
        lanes = tuple(lane.load(now_s) for lane in self._lanes)
        return lanes, self._replicas.load()

    def check(self) -> None:
        """Raises AssertionError unless every ticket is in exactly one place and every sum is that of its parts."""
        for lane in self._lanes:
            lane.check()
        self._replicas.check()
        queued = {entry.id for lane in self._lanes for entry in lane.order.live()}
        running = {entry.id for entry in self._replicas.running()}
        ended = self.finished_total + self.refused_total + self.abandoned_total
        assert self.waiting == len(queued) <= self.queued_max, f"{len(queued)} wait, {self.waiting} counted, {self.queued_max} allowed"
        assert not queued & running, f"queued and running at once: {queued & running}"
        assert queued | running == set(self._tickets), f"in no place: {set(self._tickets) - queued - running}"
        assert self.arrived_total == len(self._tickets) + ended, f"{self.arrived_total} came, {ended} ended, {len(self._tickets)} are here"
        assert {entry.id for entry in self._deadlines.live()} == queued, "a queued ticket has no deadline"
        assert self._blocked is None or self._blocked is self._head(), "what blocks is not the head"

    def _running(self, ticket: int) -> Ticket:
        entry = self._tickets.get(ticket)
        if entry is None or entry.replica is None:
            raise ValueError(f"ticket {ticket} holds no permit in pool {self.pool!r}")
        return entry

    def _head(self) -> Ticket | None:
        for lane in self._lanes:
            if lane.waiting:
                return lane.order.head()
        return None

    def _grant(self, entry: Ticket, replica: Replica, now_s: float, effects: list[Effect]) -> None:
        replicas = self._replicas
        replicas.chosen_seq += 1
        replica.chosen_seq = replicas.chosen_seq
        replica.grant(entry)
        entry.dispatched_s = now_s
        effects.append(Dispatch(entry.id, replica.id, replica.url))

    def _turned_away(self, entry: Ticket, now_s: float) -> Refusal | None:
        """Why an arrival that can't start at once should not even wait, or None."""
        hopeless = self._replicas.hopeless(entry)
        if hopeless is not None:
            return hopeless
        lane = entry.lane
        sheds_all = self._replicas.posture is Posture.SHED_LOW and lane.rank > self._lanes[0].rank
        if sheds_all or (self._replicas.posture is not Posture.OPEN and lane.preemptible):
            return Refusal.SHED if self._replicas.listed else Refusal.NO_REPLICAS
        longest_wait_s = entry.deadline_s - now_s
        if not self._replicas.listed or longest_wait_s > FORESIGHT_S:
            return None
        if self._replicas.ready_at_s is not None and self._replicas.ready_at_s <= entry.deadline_s:
            return None
        wait = measured_wait_s(self._lanes, lane, now_s)
        return Refusal.WOULD_EXPIRE if isinstance(wait, Known) and wait.value > longest_wait_s else None

    def _enqueue(self, entry: Ticket, goes_next: bool, now_s: float, effects: list[Effect]) -> None:
        """Let it wait, in the place of a less important one if the queue is full. ``goes_next``: it has just been found to fit nowhere."""
        if self.waiting >= self.queued_max and not self._make_room(entry, now_s, effects):
            self._refuse(entry, Refusal.QUEUE_FULL, now_s, effects)
            return
        self._seq += 1
        self.waiting += 1
        entry.lane.join(entry, self._seq, now_s)
        self._deadlines.add(entry, self.waiting)
        if goes_next:
            self._blocked = entry
            self._freed.clear()
        if entry.deadline_s <= now_s:
            self._expire(now_s, effects)

    def _make_room(self, entry: Ticket, now_s: float, effects: list[Effect]) -> bool:
        """Displace the newest of the least important lane; one that came back may displace a newer one of its own lane."""
        for lane in reversed(self._lanes):
            if lane.waiting:
                if lane.index > entry.lane.index or (lane is entry.lane and entry.excluded):
                    self._refuse(lane.order.newest(), Refusal.DISPLACED, now_s, effects)
                    return True
                return False
        return False

    def _refuse(self, entry: Ticket, why: Refusal, now_s: float, effects: list[Effect]) -> None:
        if entry.queued_seq:
            self._leave(entry, now_s, dispatched=False)
        del self._tickets[entry.id]
        self.refused_total += 1
        effects.append(Refuse(entry.id, why, self._retry_after_s(entry.lane, why, now_s)))

    def _retry_after_s(self, lane: Lane, why: Refusal, now_s: float) -> float | None:
        if why is Refusal.NEVER_FITS:
            return None
        ready_in_s = None if self._replicas.ready_at_s is None else self._replicas.ready_at_s - now_s
        if why is Refusal.NO_REPLICAS:
            return bounded(NO_REPLICAS_RETRY_S if ready_in_s is None else ready_in_s)
        wait = measured_wait_s(self._lanes, lane, now_s)
        wait_s = wait.value if isinstance(wait, Known) else declared_wait_s(self._lanes, lane, (r.capacity for r in self._replicas.listed))
        if wait_s is None:
            wait_s = UNMEASURED_RETRY_S
        return bounded(wait_s if ready_in_s is None else min(wait_s, ready_in_s))

    def _leave(self, entry: Ticket, now_s: float, *, dispatched: bool) -> None:
        entry.lane.leave(entry, now_s, dispatched)
        self.waiting -= 1
        if entry is self._blocked:
            self._blocked = None

    def _end_permit(self, entry: Ticket, now_s: float) -> list[Effect]:
        replica = entry.replica
        assert replica is not None
        del self._tickets[entry.id]
        replica.release(entry)
        return self._freed_on(replica, now_s) if self.waiting or not replica.listed else []

    def _freed_on(self, replica: Replica, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        if not replica.listed:
            self._replicas.forget_if_idle(replica)
        elif self.waiting:
            self._freed[replica] = None
            self._settle(now_s, effects)
        return effects

    def _settle(self, now_s: float, effects: list[Effect]) -> None:
        """Room first, then deadlines: what can start at the very instant it would expire is started."""
        self._pump(now_s, effects)
        if self.waiting:
            self._expire(now_s, effects)

    def _pump(self, now_s: float, effects: list[Effect]) -> None:
        """Dispatch heads for as long as they fit somewhere."""
        while True:
            head = self._head()
            if head is None:
                break
            replica = self._replicas.choose(head, self._freed if head is self._blocked else self._replicas.listed)
            if replica is not None:
                self._leave(head, now_s, dispatched=True)
                self._grant(head, replica, now_s, effects)
                continue
            why = None if head is self._blocked else self._replicas.hopeless(head)
            if why is None:
                self._blocked = head
                break
            self._refuse(head, why, now_s, effects)
        self._freed.clear()

    def _expire(self, now_s: float, effects: list[Effect]) -> None:
        refused_before = self.refused_total
        while (first := self._deadlines.first()) is not None and first.deadline_s <= now_s:
            self._refuse(first, Refusal.EXPIRED if self._replicas.listed else Refusal.NO_REPLICAS, now_s, effects)
        if self._replicas.barren_since_s is not None:
            for lane in self._lanes:
                while lane.waiting and self._held_until_s(lane) <= now_s:
                    self._refuse(lane.order.head(), Refusal.NO_REPLICAS, now_s, effects)
        if self.waiting and self.refused_total > refused_before:
            self._pump(now_s, effects)

    def _held_until_s(self, lane: Lane) -> float:
        """Until when the head of ``lane`` is held while there is no replica and none expected."""
        assert self._replicas.barren_since_s is not None
        return max(lane.order.head().queued_s, self._replicas.barren_since_s) + NO_REPLICAS_HOLD_S
