"""What starts, in which order, and where: the heart of the admission machine.

The first in order that fits is started. A head that fits nowhere lets others past it, `SKIPS_MAX` times; then space is kept for it: the
replica that is to take it lets nobody in any more of its lane and those behind. Only one has space kept at a time, and one whose
skips are used up lets nobody past, so a large request starts in bounded time and small ones don't wait for it meanwhile. A request that
is not preemptible takes the place of preemptible ones (`preempting`).

One that only one replica can serve stands in nobody's way elsewhere: it is passed there without a skip, and has space kept there alone.
"""

import math
from collections.abc import Callable, Collection
from typing import Final

from forebay.admission.budget import BACKFILL_PREFILL, NOT_KEPT, Replica
from forebay.admission.effects import Dispatch, Effect, Requeue
from forebay.admission.preempting import Victim, may_restart, more_prompt_tokens, victims_for
from forebay.admission.replicas import Replicas
from forebay.admission.tickets import Ticket
from forebay.admission.waiting import LOOK_MAX, Waiting
from forebay.domain.roster import Posture

NO_REPLICAS_HOLD_S = 15.0
"""With no replica and none expected a request is held this long: the controller needs a few ticks to start the first."""
SKIPS_MAX: Final = 16
"""Others let past a head that fits nowhere."""
PAUSES_MAX = 15
"""Frees of a replica after which those behind the head are looked at, however often it was in vain; the head is tried each time."""
COURTEOUS_S: Final = 60.0
"""For so long after an arrival that is not preemptible, preemptible work leaves a reserve."""

# In names of their own, that a compiled module need not look up.
_dispatch: Final = Dispatch


class Pump:
    """Moves requests from ``waiting`` to replicas, and preemptible ones back."""

    def __init__(self, waiting: Waiting, resumable: Callable[[int], int | None] | None = None) -> None:
        """``resumable``: see `machine.Admission`."""
        self.waiting = waiting
        self._resumable = resumable
        self.replicas = Replicas()
        self.preempted_total = 0
        self._change = 0
        """Counts what was freed…"""
        self._freed: dict[Replica, None] = {}
        """…the replicas on which that was…"""
        self._freed_from = 0
        """…since this change: what was looked at before it has to be looked at on all."""
        self.some_came_back = False
        """Since the last run: they have been looked at nowhere."""
        self._joined_before = 0
        """Who was queued with this number or before it did not know the present roster then…"""
        self._strangers = 0
        """…and so many of those wait."""
        self._kept: dict[Replica, Ticket] = {}
        """Where space is kept, and for whom: for one that may start anywhere, and beside on each replica for one that can only there."""
        self.urgent_s = -math.inf
        """When a request that is not preemptible came last."""

    def freed(self, replica: Replica) -> None:
        """Something was freed on ``replica``."""
        self._change += 1
        self._freed[replica] = None
        if self.replicas.held:
            # Where preemptible work waits for a better moment, that may be now, wherever something was freed.
            self._freed.update(self.replicas.held)
            self.replicas.held.clear()

    def all_changed(self) -> None:
        """Everything has to be looked at anew: there is another roster."""
        self.waiting.held = self.replicas.posture is Posture.HOLD_PREEMPTIBLE
        self._change += 1
        self._freed.clear()
        self._freed_from = self._change
        self._joined_before = self.waiting.last_seq
        self._strangers = self.waiting.count
        for replica in list(self._kept):
            self._keep_no_more(replica)

    def place(self, entry: Ticket, now_s: float) -> Replica | None:
        """Where it fits; None: nowhere, which is remembered."""
        known = entry.tried_seq >= self._freed_from
        replica = self.replicas.choose(entry, self._freed if known else self.replicas.listed, now_s)
        if replica is None:
            entry.tried_seq = self._change
        return replica

    def look_again(self, entry: Ticket, now_s: float) -> Replica | None:
        """It fits nowhere: perhaps what is prefilled by now makes room; else that is remembered."""
        replicas = self.replicas
        replica = replicas.choose(entry, replicas.listed, now_s) if replicas.wanting and self.reclaim(now_s) else None
        if replica is None:
            entry.tried_seq = self._change
        return replica

    def place_beside(self, entry: Ticket, now_s: float) -> Replica | None:
        """Where an arrival fits, but for the replicas that all that wait are waiting for, each for one alone."""
        waiting = self.waiting
        if entry.lane.preemptible and waiting.held:
            return None
        return self.replicas.choose(entry, [one for one in self.replicas.listed if one.id not in waiting.bound_at], now_s)

    def has_room(self, entry: Ticket, now_s: float) -> bool:
        """Whether it would fit somewhere, or could take the place of preemptible ones; nothing is started."""
        for replica in self.replicas.listed:
            if replica.fits(entry):
                return True
        return not entry.lane.preemptible and victims_for(entry, self.replicas, now_s, self._resumable) is not None

    def start(self, entry: Ticket, replica: Replica, now_s: float, effects: list[Effect]) -> None:
        """Give it its permit, whether it waited or not."""
        waiting = self.waiting
        account = entry.account
        if entry.queued_seq:
            self.leave(entry, now_s, started=True)
        else:
            order = entry.lane.order
            if order.last is not account:
                order.starts(account)
        replicas = self.replicas
        if replica.young and not entry.lane.preemptible:
            self._clear_way(entry, replica, now_s, effects)
        replicas.chosen_seq += 1
        replica.chosen_seq = replicas.chosen_seq
        replica.grant(entry, now_s, replicas.sent(entry, replica) if entry.prefix is not None else 0)
        more_tokens = entry.uncached - entry.charged_tokens
        if more_tokens > 0:
            entry.charged_tokens = entry.uncached
            account.given_tokens += more_tokens
            account.counter += more_tokens * account.per_weight
        if waiting.count:
            waiting.started(entry)
        elif replicas.held:
            replicas.held.clear()
        effects.append(_dispatch(entry.id, replica.id, replica.url))
        if entry.lane.preemptible:
            if replicas.courteous:
                replicas.risked = replica
        elif replicas.risked is not None and (regretted := replicas.regrets(now_s)) is not None:
            self._clear_way(entry, regretted, now_s, effects)

    @property
    def prefilled_s(self) -> float:
        """When the next prompt is foreseen to be prefilled on a replica that refused somebody who waits for want of that, or to be so
        nearly prefilled that it is a moment for preemptible work elsewhere."""
        foreseen_s = [replica.wholes[0].prefilled_s for replica in self.replicas.wanting if replica.wholes]
        if self.replicas.held:
            foreseen_s.append(self.replicas.moment_s)
        return min(foreseen_s) if foreseen_s and self.waiting.count else math.inf

    def quiet_until_s(self) -> float:
        """Until when the passing of time changes nothing: never later than the machine's ``next_deadline_s``, found without a search."""
        quiet_s = self.waiting.due_s
        replicas = self.replicas
        if replicas.wanting:
            quiet_s = min(quiet_s, self.prefilled_s)
        if replicas.barren_since_s is not None:
            quiet_s = min(quiet_s, replicas.barren_since_s + NO_REPLICAS_HOLD_S)
        return quiet_s

    def reclaim(self, now_s: float) -> bool:
        """Free prefill tokens where they are wanted and foreseen to be free by now; whether there were any."""
        found = [replica for replica in self.replicas.wanting if replica.reclaim(now_s)]
        for replica in found:
            self.freed(replica)
        return bool(found)

    def leave(self, entry: Ticket, now_s: float, *, started: bool) -> None:
        """It waits no more; space that was kept for it is free for others."""
        waiting = self.waiting
        if entry.queued_seq <= self._joined_before:
            self._strangers -= 1
        waiting.leave(entry, now_s, started=started)
        if not waiting.count:  # nobody is left for whom a better moment may come
            self.replicas.held.clear()
        entry.skips = 0
        if self._kept and (replica := self._kept_at(entry)) is not None:
            self._keep_no_more(replica)

    def run(self, now_s: float, effects: list[Effect]) -> Ticket | None:
        """Start all that can be started. Returns a head that no replica of this roster will ever take: to be refused, and run again."""
        replicas, freed = self.replicas, self._freed
        if replicas.wanting:
            self.reclaim(now_s)
            if replicas.held and replicas.moment_s <= now_s:
                self.freed(next(iter(replicas.held)))
            self._want_anew()
        if replicas.courteous and now_s - self.urgent_s > COURTEOUS_S:
            replicas.be_courteous(False)
            self.all_changed()
        while (head := self.waiting.first(now_s)) is not None:
            if self._strangers and head.queued_seq <= self._joined_before and replicas.hopeless(head) is not None:
                return head
            candidates: Collection[Replica] = replicas.listed if head.tried_seq < self._freed_from else freed
            if not self.some_came_back and not (_open(candidates) and (not self.waiting.bound or self._is_waited_for(freed))):
                break
            replica = replicas.choose(head, candidates, now_s)
            if replica is not None:
                self.start(head, replica, now_s, effects)
                if freed and not (self.some_came_back or self._strangers or _open(replicas.listed)):
                    break  # there is no place left where one was freed, nor any elsewhere: it doesn't matter who goes next
                continue
            head.tried_seq = self._change
            if not self.preempt(head, now_s, effects) and not (
                ((far := self._looks_on()) or head.only) and self._pass(head, now_s, effects, far=far)
            ):
                break
        freed.clear()
        self._freed_from = self._change
        self.some_came_back = False
        return None

    def _is_waited_for(self, freed: Collection[Replica]) -> bool:
        """False: all that wait do so for one replica each, and for none of these, where something was freed."""
        waiting = self.waiting
        if waiting.bound != waiting.count or self._strangers or not freed:
            return True
        return any(replica.id in waiting.bound_at for replica in freed)

    def _want_anew(self) -> None:
        """Where something was freed it will show whether prefill tokens are still wanted."""
        for replica in self._freed:
            if replica.prefill_wanted:
                replica.prefill_wanted = False
                self.replicas.wanting.remove(replica)

    def _looks_on(self) -> bool:
        """Whether those behind a head that fits nowhere are looked at this time: more seldom, the oftener it was in vain."""
        for replica in self._freed:
            if replica.pause:
                replica.pause -= 1
                return False
        return True

    def preempt(self, entry: Ticket, now_s: float, effects: list[Effect]) -> bool:
        """Start it in place of preemptible requests, which wait again; False where that makes no room."""
        if entry.lane.preemptible or not any(replica.preemptible for replica in self.replicas.listed):
            return False
        found = victims_for(entry, self.replicas, now_s, self._resumable)
        if found is None:
            return False
        replica, victims = found
        self._give_up(replica, victims, now_s, effects)
        self.start(entry, replica, now_s, effects)
        return True

    def _clear_way(self, entry: Ticket, replica: Replica, now_s: float, effects: list[Effect]) -> None:
        """Take back what has not begun there and would be in the way of ``entry`` or of who comes next, unless together they are little."""
        young = replica.young.unbegun(now_s, replica.lag_s)
        unbegun = [(one, 0) for one in young if may_restart(one, self.replicas, now_s) and self._may_go(one)]
        tokens = sum([one.outstanding for one, _ in unbegun])
        if tokens and tokens + entry.uncached > BACKFILL_PREFILL * replica.capacity.prefill_tokens:
            self._give_up(replica, [(one, 0) for one, _ in unbegun if not one.answered], now_s, effects)

    def _may_go(self, one: Ticket) -> bool:
        return one.answered or more_prompt_tokens(one, self._resumable) is not None

    def _give_up(self, replica: Replica, victims: list[Victim], now_s: float, effects: list[Effect]) -> None:
        """These wait again."""
        for victim, more_tokens in victims:
            self.replicas.release(victim, replica)
            self.waiting.gave_up(victim)
            if more_tokens:
                victim.resume(more_tokens)
            self.preempted_total += 1
            victim.preempted += 1
            self.wait_again(victim, now_s)
            _take_back(effects, Requeue(victim.id, replica.id, more_tokens))
        self.freed(replica)

    def wait_again(self, entry: Ticket, now_s: float) -> None:
        """One that had been started waits first in its lane; the queue's bound doesn't count it.

        It waits for what was left of its longest wait when it was started, and no longer than its client does.
        """
        last_start_s = self.replicas.last_start_s(entry, now_s if entry.answered else entry.arrived_s)
        entry.deadline_s = max(now_s, min(now_s + entry.deadline_s - entry.dispatched_s, last_start_s))
        entry.shared = False
        entry.returned = True
        entry.tried_seq = -1
        self.some_came_back = True
        self.waiting.join(entry, now_s)

    def _pass(self, head: Ticket, now_s: float, effects: list[Effect], *, far: bool) -> bool:
        """Start the first behind ``head`` that fits, unless somebody of its lane or before must not be passed any more.

        Not ``far``: no further than to the first that may start anywhere.
        """
        passed = [head]
        bar = NOT_KEPT if self._may_be_passed(head) else head.lane.index
        leads, looked = head.lane.preemptible or head.only != "", 0
        for entry in self.waiting.after(head, now_s):
            index = entry.lane.index
            if index >= bar:
                continue
            replica = self.place(entry, now_s)
            if replica is not None:
                self._let_past(passed, entry, replica)
                self.start(entry, replica, now_s, effects)
                replica.pauses = 0
                return True
            if leads and len(passed) <= LOOK_MAX and self.preempt(entry, now_s, effects):
                return True
            if not self._may_be_passed(entry):
                bar = index
            passed.append(entry)
            if not entry.only:
                leads = False
                looked += 1
                if looked == LOOK_MAX or not far:
                    break
        for replica in self._freed:
            replica.pause = replica.pauses = min(2 * replica.pauses + 1, PAUSES_MAX)
        return False

    def _may_be_passed(self, entry: Ticket) -> bool:
        """Whether its skips are not used up, or space is kept for it (from now on, if for nobody else)."""
        if entry.skips < SKIPS_MAX:
            return True
        kept = self._kept
        if self._kept_at(entry) is not None:
            return True
        replica: Replica | None = None
        if entry.only or all(other.only for other in kept.values()):
            # Where it is kept for less important ones, it is kept for this one instead.
            skipped = [one for one, other in kept.items() if not entry.only or other.lane.index <= entry.lane.index]
            replica = self.replicas.roomiest(entry, skipped)
        if replica is not None:
            self._keep_no_more(replica)
            kept[replica] = entry
            replica.kept_for, replica.kept_index = entry, entry.lane.index
        return replica is not None or entry.only != ""

    def _let_past(self, passed: list[Ticket], entry: Ticket, replica: Replica) -> None:
        """``entry`` is to start on ``replica`` before these, which count that where they could have started there."""
        index = entry.lane.index
        for one in passed:
            if one.lane.index <= index and one.skips < SKIPS_MAX and one.only in ("", replica.id):
                one.skips += 1

    def _kept_at(self, entry: Ticket) -> Replica | None:
        """Where space is kept for it."""
        for replica, other in self._kept.items():
            if other is entry:
                return replica
        return None

    def _keep_no_more(self, replica: Replica) -> None:
        if self._kept.pop(replica, None) is not None:
            replica.kept_for, replica.kept_index = None, NOT_KEPT
            if replica.listed:
                self.freed(replica)

    def check(self) -> None:
        """Raises AssertionError unless what waits is in order, and space is kept for one that waits alone."""
        self.waiting.check()
        self.replicas.check()
        keeping = {replica: replica.kept_for for replica in self.replicas.listed if replica.kept_for is not None}
        assert keeping == self._kept, "space is kept for nobody"
        assert all(entry.queued_seq for entry in self._kept.values()), "space is kept for one that does not wait"
        assert all(entry.only in ("", replica.id) for replica, entry in self._kept.items()), "space is kept where it can't start"
        assert sum(not entry.only for entry in self._kept.values()) <= 1, "space is kept for more than one that may start anywhere"


def _open(replicas: Collection[Replica]) -> bool:
    """Whether anybody could start on one of these: there is a slot, or one that may be given up. Of none it isn't known."""
    for one in replicas:  # no generator: this is asked for every request that waits
        if one.sequences < one.sequences_max or one.preemptible:
            return True
    return not replicas


def _take_back(effects: list[Effect], end: Requeue) -> None:
    """Ask for its end; one that has only just been started, and is not sent yet, is never sent."""
    for effect in effects:
        if isinstance(effect, Dispatch) and effect.ticket == end.ticket:
            effects.remove(effect)
            return
    effects.append(end)
