"""The lines that requests wait in: one lane per tier, each with its teams' order, its pace, and the share it is owed.

More important lanes go first, but not for ever: while a lane below the top waits, it is owed its ``min_share`` of the tokens that
are started, and goes first once it is owed anything. Nothing is banked while it does not wait.
"""

import math

from forebay.admission.deadlines import Deadlines
from forebay.admission.fairness import FairOrder
from forebay.admission.looks import TeamLoad
from forebay.admission.pace import Pace
from forebay.admission.tickets import Ticket
from forebay.domain.due import of_slots, slot_of, slot_width_s
from forebay.domain.roster import LaneLoad
from forebay.spec.types import Tier


class Lane:
    """One tier's line inside a pool's queue, with the sums that waits are predicted from."""

    __slots__ = (
        "_due",
        "_due_slot_s",
        "cost_tokens",
        "deadlines",
        "gain",
        "index",
        "joined_s",
        "longest_wait_s",
        "order",
        "output_tokens",
        "owed_tokens",
        "pace",
        "preemptible",
        "prompt_tokens",
        "rank",
        "served_s",
        "tier",
        "ttft_s",
        "waiting",
    )

    def __init__(self, tier: Tier, index: int, weights: dict[str, float]) -> None:
        self.tier = tier.name
        self.rank = tier.rank
        self.index = index
        """Place among the pool's lanes by rank; 0 goes first."""
        self.longest_wait_s = tier.longest_wait_s
        self.ttft_s = tier.ttft_s
        self.preemptible = tier.preemptible
        self.gain = tier.min_share / (1 - tier.min_share) if index else 0.0
        """Tokens owed for each token that others are given."""
        self.owed_tokens = 0.0
        self.order = FairOrder(weights)
        self.pace = Pace(0)
        self.joined_s = -math.inf
        """When one came last that had to wait."""
        self.served_s = -math.inf
        """When it last got more replicas: what starts at that instant fills them."""
        self._due: dict[float, int] = {}
        """Requests that wait by the slot of their deadlines (`domain.due`); empty where nothing is told of them."""
        self._due_slot_s = slot_width_s(tier.longest_wait_s) if tier.preemptible else 0.0
        self.waiting = 0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.cost_tokens = 0
        """Virtual tokens of all that wait."""
        self.deadlines = Deadlines()

    def teams(self) -> list[TeamLoad]:
        """Every team that ever came."""
        return [TeamLoad(self.tier, each.team, each.waiting, each.tokens, each.given_tokens) for each in self.order.accounts.values()]

    def join(self, ticket: Ticket, seq: int, now_s: float) -> None:
        """``ticket`` waits from now on."""
        waiting = self.waiting
        self.joined_s = now_s
        if not waiting:  # else the lane goes on being backlogged
            self.pace.begin(now_s)
            if self.owed_tokens > 0:
                self.owed_tokens = 0.0
        ticket.queued_seq = seq
        ticket.queued_s = now_s
        if ticket.returned:
            self.order.put_back(ticket)
        else:
            self.order.add(ticket)
        self.deadlines.add(ticket)
        self.waiting = waiting + 1
        self.prompt_tokens += ticket.prompt
        self.output_tokens += ticket.output
        self.cost_tokens += ticket.cost
        if self._due_slot_s:
            self._count_due(ticket, 1)

    def serve(self, replicas: int, now_s: float) -> None:
        """From now on so many replicas may take what waits: none, where that is held back."""
        pace = self.pace
        pace.move(now_s, self.waiting > 0)
        if replicas > pace.replicas:
            self.served_s = now_s
        pace.replicas = replicas

    def leave(self, ticket: Ticket, now_s: float, *, started: bool) -> None:
        """``ticket`` waits no more."""
        pace, cost = self.pace, ticket.cost
        if pace.busy_until_s != now_s:
            pace.move(now_s, True)
        if started and now_s != self.served_s:
            pace.tokens += cost
            pace.dispatches += 1
            if not ticket.returned and ticket.late_at_s >= now_s:
                pace.on_time += cost
        self.deadlines.remove(ticket)
        ticket.queued_seq = 0
        self.waiting -= 1
        self.prompt_tokens -= ticket.prompt
        self.output_tokens -= ticket.output
        self.cost_tokens -= cost
        if self._due_slot_s:
            self._count_due(ticket, -1)
        self.order.remove(ticket, now_s, started=started)

    @property
    def each_tokens(self) -> float:
        """Virtual tokens of one that waits; 0: none does."""
        return self.cost_tokens / self.waiting if self.waiting else 0.0

    def oldest(self) -> Ticket:
        """Who has waited longest; somebody waits."""
        oldest = self.deadlines.oldest()
        assert oldest is not None
        return oldest

    def load(self, now_s: float) -> LaneLoad:
        """What the controller is told."""
        return LaneLoad(
            tier=self.tier,
            preemptible=self.preemptible,
            waiting=self.waiting,
            waiting_tokens=self.prompt_tokens + self.output_tokens,
            oldest_wait_s=max(0.0, now_s - self.oldest().arrived_s) if self.waiting else 0.0,
            due=of_slots(self._due, now_s) if self._due else (),
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
        assert self.cost_tokens == sum(ticket.cost for ticket in live), f"{self.tier}: virtual tokens leaked"
        slots = [self._slot(ticket) for ticket in live] if self._due_slot_s else []
        assert self._due == {slot: slots.count(slot) for slot in set(slots)}, f"{self.tier}: deadlines leaked"
        self.order.check()

    def _count_due(self, ticket: Ticket, more: int) -> None:
        """``more`` wait with its deadline, which does not move meanwhile."""
        slot = self._slot(ticket)
        count = self._due.get(slot, 0) + more
        if count:
            self._due[slot] = count
        else:
            del self._due[slot]

    def _slot(self, ticket: Ticket) -> float:
        return slot_of(ticket.deadline_s, ticket.deadline_s - ticket.queued_s, self._due_slot_s)
