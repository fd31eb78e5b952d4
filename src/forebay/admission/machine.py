"""The admission machine of one pool: whatever waits, waits here.

A request that fits is dispatched at once with a permit on one replica; else it waits in its tier's lane; what can't be served in time
is refused early, with an honest Retry-After. Who goes next is decided in `waiting` (lanes), `fairness` (teams, deadlines) and `pump`.

Calls in, effects out, no I/O: one owner calls it, synchronously, and carries the effects out. Uncontended requests cost
O(replicas) cheap comparisons. What was found to fit nowhere is tried again only where something was freed since.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from forebay.admission.books import Books
from forebay.admission.budget import Replica
from forebay.admission.effects import Effect, Refuse
from forebay.admission.fairness import OUTPUT_COST
from forebay.admission.foresight import LOOK_EVERY_S, doomed
from forebay.admission.lanes import Lane
from forebay.admission.outcomes import Refusal
from forebay.admission.prefixes import Prefix
from forebay.admission.prior import SPARSELY
from forebay.admission.pump import NO_REPLICAS_HOLD_S as NO_REPLICAS_HOLD_S
from forebay.admission.tickets import RETRIES_MAX, Ticket
from forebay.admission.waiting import LOOK_MAX
from forebay.admission.waits import out_of_time, retry_after_s, too_late, too_late_though_next
from forebay.domain.roster import Posture, RosterPool
from forebay.domain.shape import Shape, Usage
from forebay.spec.types import Tier

_SHED_LOW: Final = Posture.SHED_LOW  # in a name of its own: a member of an enum is looked up by a function call


class Admission(Books):
    """Lanes, permits and refusals of one pool.

    ``tiers``: one lane each, lowest rank first (equal ranks in the order given). ``queued_max`` bounds all lanes
    together, but for what had been started before and waits again. ``weights``: of the teams, 1 for those not named. ``outlook``: for a
    team and what one of its answers has emitted, the output to expect of it in all, where that is known. ``resumable``: how many more
    tokens of a ticket's answer, which has begun, would be prompt to whoever went on with it now; None: that would not be exact.
    Times are world seconds and never go backwards; call ``advance`` when ``next_deadline_s()`` has come.
    """

    def __init__(
        self,
        pool: str,
        tiers: Sequence[Tier],
        queued_max: int,
        weights: Mapping[str, float] | None = None,
        outlook: Callable[[str, int], int | None] | None = None,
        resumable: Callable[[int], int | None] | None = None,
    ) -> None:
        super().__init__(pool, tiers, queued_max, weights or {}, resumable)
        self.quiet_until_s = self._pump.quiet_until_s
        self.cached = self._replicas.cached
        self.foreseen = self._replicas.foreseen
        self._outlook = outlook
        self._foreseen_s = -math.inf

    def arrive(
        self,
        ticket: int,
        tier: str,
        team: str,
        shape: Shape,
        now_s: float,
        longest_wait_s: float | None = None,
        ttft_s: float | None = None,
        patience_s: float = math.inf,
        whole: bool = False,
        prefix: Prefix | None = None,
        excluded: tuple[str, ...] = (),
        only: str = "",
    ) -> list[Effect]:
        """A new request: dispatched, queued (no effect for it), or refused. Raises ValueError for a ticket in use or a tier unknown.

        ``longest_wait_s``, ``ttft_s``: the team's own promises in that tier, where it has some; else the tier's.
        ``patience_s``: how long the client itself waits for the first byte, which comes at the end where it asks for the ``whole`` answer:
        what can't start in time for that is refused: at once where that is all but certain, else while it waits. ``prefix``: its own, in
        place of cached tokens.
        ``excluded``: replicas that have failed it, before it went elsewhere and came back. ``only``: the one replica that can serve it,
        since that keeps what it goes on from: it waits for that one's room, and is refused as soon as that takes no requests.
        """
        lane = self._lane_of.get(tier)
        if lane is None or ticket in self._tickets:
            raise ValueError(self._why_not(ticket, tier))
        effects: list[Effect] = []
        waiting, pump = self._waiting, self._pump
        if waiting.count and (waiting.due_s <= now_s or self._replicas.wanting or self._replicas.barren_since_s is not None):
            self._catch_up(now_s, effects)
        self.arrived_total += 1
        order = lane.order
        account = order.accounts.get(team) or order.account(team)
        deadline_s = now_s + (lane.longest_wait_s if longest_wait_s is None else longest_wait_s)
        entry = self._tickets[ticket] = Ticket(ticket, lane, account, shape, now_s, deadline_s, patience_s, whole, prefix, excluded, only)
        replicas = self._replicas
        if patience_s < math.inf and out_of_time(entry, replicas):
            self._refuse(entry, Refusal.OUT_OF_TIME, now_s, effects)
            return effects
        if not lane.preemptible:
            self._presses(entry, now_s)
        goes_next = (not waiting.count or not waiting.ahead(lane)) and not (lane.preemptible and waiting.held)
        if goes_next or waiting.bound == waiting.count:
            first = replicas.choose(entry, replicas.listed, now_s) if goes_next else pump.place_beside(entry, now_s)
            replica = first or (pump.look_again(entry, now_s) if goes_next else None)
            if replica is not None:
                pump.start(entry, replica, now_s, effects)
            if replica is not None or (goes_next and pump.preempt(entry, now_s, effects)):
                if pump.some_came_back:  # what gave its place up for it may start elsewhere
                    self._run(now_s, effects)
                return effects
        prefill_s = replicas.prefill_s(entry)
        entry.late_at_s = now_s + min(lane.ttft_s if ttft_s is None else ttft_s, patience_s) - prefill_s
        if patience_s < math.inf:  # that its answer takes too long is foreseen, by which none is refused that has only come
            last_s = replicas.last_start_s(entry, now_s)
            entry.deadline_s = min(deadline_s, last_s if last_s > now_s else now_s + patience_s)
        self._wait(entry, goes_next, deadline_s, now_s, effects)
        return effects

    def first_token(self, ticket: int, now_s: float) -> list[Effect]:
        """The first token of a dispatched request is with its client: its prefill is over, its place is its own. Repeats change nothing."""
        entry = self._running(ticket)
        replica = entry.replica
        assert replica is not None
        entry.answered = True
        if entry.outstanding:
            replica.begun(entry, now_s)
            return self._freed_on(replica, now_s) if replica.prefill_wanted else []
        return []

    def answered(self, ticket: int) -> None:
        """Something of a dispatched request's answer, which is no stream, is with its client: it keeps its place."""
        self._running(ticket).answered = True

    def emitted(self, ticket: int, tokens: int) -> None:
        """``tokens`` more output tokens (a difference, not a total) of a dispatched request came out."""
        entry = self._running(ticket)
        assert entry.replica is not None
        entry.replica.grow(entry, tokens)
        if entry.emitted >= entry.review_at_tokens and self._outlook is not None:
            entry.review(self._outlook)
        charged_tokens = entry.uncached + OUTPUT_COST * entry.emitted
        more_tokens = charged_tokens - entry.charged_tokens
        if more_tokens > 0:
            entry.charged_tokens = charged_tokens
            account = entry.account
            account.given_tokens += more_tokens
            account.counter += more_tokens * account.per_weight

    def finish(self, ticket: int, usage: Usage | None, now_s: float) -> list[Effect]:
        """The last byte of a dispatched request was delivered, or it failed for good: its permit ends.

        ``usage``: what it really took, where known: its team is charged that, and no estimate any more.
        """
        entry = self._running(ticket)
        replicas, waits = self._replicas, self._waiting.count
        self.finished_total += 1
        if usage is not None:
            output_tokens = usage.output_tokens
            took_tokens = replicas.prefilled_tokens(entry, usage) + OUTPUT_COST * output_tokens
            if waits or not ticket & SPARSELY:
                replicas.served.ended(entry.cost, now_s - entry.dispatched_s)
                entry.lane.pace.ended(entry.cost, took_tokens)
            if output_tokens - entry.resumed > entry.output:
                self.outlived_total += 1
            entry.lane.order.charge(entry, took_tokens)
        replica = entry.replica
        assert replica is not None
        del self._tickets[ticket]
        replica.release(entry)
        return self._freed_on(replica, now_s) if waits or not replica.listed else []

    def abandon(self, ticket: int, now_s: float) -> list[Effect]:
        """The client went away: the request ends, queued or dispatched. One that has ended already is left alone."""
        entry = self._tickets.get(ticket)
        if entry is None:
            return []
        self.abandoned_total += 1
        del self._tickets[ticket]
        if entry.replica is not None:
            replica = entry.replica
            self._replicas.release(entry, replica)
            return self._freed_on(replica, now_s)
        effects: list[Effect] = []
        self._pump.leave(entry, now_s, started=False)
        self._settle(now_s, effects)
        return effects

    def retry(self, ticket: int, now_s: float, more_prompt_tokens: int = 0, *, reached: bool = True) -> list[Effect]:
        """A dispatched request was failed by its replica: it goes back to the head of its lane, never to that replica again.

        ``more_prompt_tokens`` of its output are out already: they are prompt to the replica that goes on. Not ``reached``: the replica
        was gone, and has left the roster for that; what comes back under its name is another try.
        It keeps its arrival time, and what was left of its longest wait when it was dispatched. Refused where no
        replica is left that it has not tried, or after ``RETRIES_MAX``.
        """
        entry = self._running(ticket)
        replica = entry.replica
        assert replica is not None
        effects: list[Effect] = []
        self._replicas.release(entry, replica)
        if more_prompt_tokens:
            entry.resume(more_prompt_tokens)
        if replica.listed:
            self._pump.freed(replica)
        else:
            self._replicas.forget_if_idle(replica)
        if reached or replica.listed:
            entry.excluded = (*entry.excluded, replica.id)
        why = Refusal.NO_REPLICAS if len(entry.excluded) > RETRIES_MAX else self._replicas.hopeless(entry)
        if why is not None:
            self._refuse(entry, why, now_s, effects)
        else:
            self._pump.wait_again(entry, now_s)
        self._settle(now_s, effects)
        return effects

    def set_roster(self, roster: RosterPool, now_s: float) -> list[Effect]:
        """Use these replicas from now on. One that left keeps its permits until they end; one that comes back counts them."""
        self._replicas.take(roster, now_s)
        self._pump.all_changed()
        self._waiting.served_by(len(self._replicas.listed), now_s)
        effects: list[Effect] = []
        if self._waiting.bound:
            for entry in [one for one in self._tickets.values() if one.only and one.queued_seq]:
                why = self._replicas.hopeless(entry)
                if why is not None:
                    self._refuse(entry, why, now_s, effects)
        self._settle(now_s, effects)
        return effects

    def advance(self, now_s: float) -> list[Effect]:
        """Start what the passing of time has made room for, and refuse what has waited as long as its tier accepts."""
        effects: list[Effect] = []
        self._catch_up(now_s, effects)
        return effects

    def look_again(self, now_s: float) -> list[Effect]:
        """What ``resumable`` says has changed: start what that makes room for."""
        effects: list[Effect] = []
        if self._waiting.count:
            self._run(now_s, effects)
        return effects

    def foresee(self, now_s: float) -> list[Effect]:
        """Refuse what waits and won't be started in time as things go; to be called every few seconds, at least."""
        effects: list[Effect] = []
        if self._waiting.count and now_s - self._foreseen_s >= LOOK_EVERY_S:
            self._foreseen_s = now_s
            for entry in doomed(self._lanes, self._replicas, now_s):
                self._refuse(entry, Refusal.WOULD_EXPIRE, now_s, effects)
            if effects:
                self._settle(now_s, effects)
        return effects

    def next_deadline_s(self) -> float | None:
        """The world time at which ``advance`` has something to do; None if nothing waits."""
        if not self.waiting:
            return None
        first = self._waiting.due()
        assert first is not None
        due_s = [first.deadline_s, self._pump.prefilled_s]
        if self._replicas.barren_since_s is not None:
            due_s += [self._held_until_s(lane) for lane in self._lanes if lane.waiting]
        return min(due_s)

    def reweigh(self, weights: Mapping[str, float]) -> None:
        """These are the teams' weights from now on, 1 for those not named; what was given is not weighed anew."""
        for lane in self._lanes:
            lane.order.reweigh(weights)

    def _why_not(self, ticket: int, tier: str) -> str:
        if tier not in self._lane_of:
            return f"pool {self.pool!r} has no tier {tier!r}; it has {', '.join(self._lane_of)}"
        return f"ticket {ticket} has not ended yet; tickets are given once"

    def _presses(self, entry: Ticket, now_s: float) -> None:
        """An arrival that preemptible work gives way to."""
        self._pump.urgent_s = now_s
        replicas = self._replicas
        replicas.reserve.arrived_tokens += entry.uncached
        if not replicas.courteous:
            replicas.be_courteous(True)

    def _wait(self, entry: Ticket, goes_next: bool, deadline_s: float, now_s: float, effects: list[Effect]) -> None:
        """An arrival waits or is refused. ``goes_next``: it has just been found to fit nowhere; else it may where those before it don't.

        ``deadline_s``: its tier's; by its client's it is late only where what goes before it whatever its team's order takes longer.
        """
        why = self._turned_away(entry, deadline_s, now_s)
        if why is not None:
            self._refuse(entry, why, now_s, effects)
            return
        waiting = self._waiting
        if waiting.count - waiting.returned >= self.queued_max and not self._make_room(entry, now_s, effects):
            self._refuse(entry, Refusal.QUEUE_FULL, now_s, effects)
        else:
            waiting.join(entry, now_s)
            if entry.deadline_s <= now_s:
                self._expire(now_s, effects)
        if not goes_next and (waiting.count - waiting.bound <= LOOK_MAX or (entry.account.waiting == 1 and waiting.first(now_s) is entry)):
            self._run(now_s, effects)

    def _turned_away(self, entry: Ticket, deadline_s: float, now_s: float) -> Refusal | None:
        """Why an arrival that can't start at once should not even wait, or None."""
        replicas, lane = self._replicas, entry.lane
        hopeless = replicas.hopeless(entry)
        if hopeless is not None:
            return hopeless
        sheds_all = replicas.posture is _SHED_LOW and lane.rank > self._lanes[0].rank
        if sheds_all or (lane.preemptible and replicas.posture.sheds):
            return Refusal.SHED if replicas.listed else Refusal.NO_REPLICAS
        late = too_late(self._lanes, lane, entry.account, replicas, deadline_s, now_s)
        if not late and entry.deadline_s < deadline_s:
            late = too_late_though_next(self._lanes, entry, replicas, now_s)
        return Refusal.WOULD_EXPIRE if late else None

    def _make_room(self, entry: Ticket, now_s: float, effects: list[Effect]) -> bool:
        """Displace one of the least important lane; of its own lane, one of a team that has more waiting for its weight."""
        for lane in reversed(self._lanes):
            if lane.waiting:
                if lane.index < entry.lane.index:
                    return False
                last = lane.order.hindmost()
                if last.returned:
                    continue  # it is over the bound already: its going would let nobody in
                if lane is entry.lane and entry.account.load(entry.cost) >= last.account.load():
                    return False
                self._refuse(last, Refusal.DISPLACED, now_s, effects)
                return True
        return False

    def _refuse(self, entry: Ticket, why: Refusal, now_s: float, effects: list[Effect]) -> None:
        if entry.queued_seq:
            self._pump.leave(entry, now_s, started=False)
        elif not self._waiting.count:
            self._replicas.held.clear()
        del self._tickets[entry.id]
        self.refused_total += 1
        effects.append(Refuse(entry.id, why, retry_after_s(self._lanes, self._replicas, entry, why, now_s)))

    def _freed_on(self, replica: Replica, now_s: float) -> list[Effect]:
        effects: list[Effect] = []
        if not replica.listed:
            self._replicas.forget_if_idle(replica)
        elif self._waiting.count and (replica.sequences < replica.sequences_max or replica.preemptible or self._replicas.held):
            pump, waiting = self._pump, self._waiting
            pump.freed(replica)
            while (head := pump.run(now_s, effects)) is not None:  # as `_settle`
                self._refuse_head(head, now_s, effects)
            if waiting.count and (waiting.due_s <= now_s or self._replicas.barren_since_s is not None):
                self._expire(now_s, effects)
        return effects

    def _settle(self, now_s: float, effects: list[Effect]) -> None:
        """Room first, then deadlines: what can start at the very instant it would expire is started."""
        self._run(now_s, effects)
        if self._waiting.count and self._due(now_s):
            self._expire(now_s, effects)

    def _run(self, now_s: float, effects: list[Effect]) -> None:
        """Start what can be started, and refuse what no replica will ever take."""
        while (head := self._pump.run(now_s, effects)) is not None:
            self._refuse_head(head, now_s, effects)

    def _refuse_head(self, head: Ticket, now_s: float, effects: list[Effect]) -> None:
        self._refuse(head, self._replicas.hopeless(head) or Refusal.NO_REPLICAS, now_s, effects)

    def _catch_up(self, now_s: float, effects: list[Effect]) -> None:
        """Do what the passing of time alone asks for."""
        if not self._waiting.count:
            return
        if self._replicas.wanting and self._pump.prefilled_s <= now_s:
            self._run(now_s, effects)
        if self._due(now_s):
            self._expire(now_s, effects)

    def _due(self, now_s: float) -> bool:
        """Whether anything may have waited for as long as it can."""
        return self._waiting.due_s <= now_s or self._replicas.barren_since_s is not None

    def _expire(self, now_s: float, effects: list[Effect]) -> None:
        refused_before = self.refused_total
        while (first := self._waiting.due()) is not None and first.deadline_s <= now_s:
            self._refuse(first, Refusal.EXPIRED if self._replicas.listed else Refusal.NO_REPLICAS, now_s, effects)
        if self._replicas.barren_since_s is not None:
            for lane in self._lanes:
                while lane.waiting and self._held_until_s(lane) <= now_s:
                    self._refuse(lane.oldest(), Refusal.NO_REPLICAS, now_s, effects)
        if self._waiting.count and self.refused_total > refused_before:
            self._run(now_s, effects)

    def _held_until_s(self, lane: Lane) -> float:
        """Until when who has waited longest in ``lane`` is held while there is no replica and none expected."""
        assert self._replicas.barren_since_s is not None
        return max(lane.oldest().queued_s, self._replicas.barren_since_s) + NO_REPLICAS_HOLD_S
