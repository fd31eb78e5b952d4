"""The one owner of the admission machines: it tells them what happened and carries out what they ask.

Effects of one call may concern other requests, whose answers may start further requests; they are carried out from one
queue by the outermost call, so that no machine is entered while another call into it is on the stack. One timer serves
the deadlines of every pool.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from forebay.admission.effects import Dispatch, Effect, Refuse, Requeue
from forebay.admission.estimate import Estimator
from forebay.admission.machine import Admission
from forebay.admission.outliers import Effect as Ejection
from forebay.admission.outliers import Eject, Probe
from forebay.admission.prefixes import Prefix
from forebay.admission.quotas import Quota
from forebay.admission.spill import SpillAdmission
from forebay.domain.roster import PoolLoad, RosterPool
from forebay.domain.shape import Shape, Usage
from forebay.gateway.pool_desk import Caller, PoolDesk, Ticketed
from forebay.gateway.shared_limits import SharedLimits
from forebay.gateway.silence import STOPPED, Listen
from forebay.gateway.waits import Waits
from forebay.ports.clock import Clock, TimerHandle
from forebay.spec.types import Spec, TeamLimits, Tier


class Desk:
    """Every pool's machine, one timer."""

    def __init__(self, spec: Spec, clock: Clock, on_ejection: Callable[[PoolDesk, Ejection | Listen], None]) -> None:
        """``on_ejection`` is told of replicas that leave and come back, and has them probed and listened to."""
        self.clock = clock
        self.now_s = clock.now_s
        self._on_ejection = on_ejection
        self.estimator = Estimator()
        self.pools = {pool.name: PoolDesk(spec, pool, self.estimator) for pool in spec.pools}
        self.spills: list[PoolDesk] = []
        """Other people's engines: the controller hears nothing of them."""
        self.quotas = {team.name: Quota(team.limits) for team in spec.teams if team.limits != TeamLimits()}
        """Of the teams that have limits."""
        self.shares = SharedLimits(self.quotas)
        if spec.leases:
            self.shares.begin(clock.now_s())
        self._taken: dict[int, tuple[Quota, int, float]] = {}
        """Ticket → the quota it takes from, how many tokens, and since when."""
        self.next_ticket: Callable[[], int] = count(1).__next__
        """A number never given before."""
        self._effects: deque[tuple[PoolDesk, Effect]] = deque()
        self._carrying = False
        self._timer: TimerHandle | None = None
        self._timer_at_s = 0.0

    # -- what happened ------------------------------------------------------------------------------------------------

    def arrive(
        self,
        pool: PoolDesk,
        call: Caller,
        tier: Tier,
        team: str,
        shape: Shape,
        now_s: float,
        patience_s: float,
        whole: bool,
        prefix: Prefix | None = None,
        tried: tuple[str, ...] = (),
    ) -> None:
        """A request came; it may be sent or refused before this returns.

        ``patience_s``: real seconds that the client waits for the first byte, ``whole``: which comes at the answer's end. ``tried``:
        replicas that would only fail it.
        """
        ticket = call.ticket
        if self.quotas and (quota := self.quotas.get(team)) is not None:
            over = quota.take(shape.total_tokens, now_s)
            if over is not None:
                call.over_limit(over)
                return
            self._taken[ticket] = (quota, shape.total_tokens, now_s)
        pool.calls[ticket] = call
        admission = pool.admission
        longest_s, ttft_s, waits_s, only = tier.longest_wait_s, tier.ttft_s, patience_s * self.clock.speed, call.kept_at
        effects = admission.arrive(ticket, tier.name, team, shape, now_s, longest_s, ttft_s, waits_s, whole, prefix, tried, only)
        waits = admission.queue.count
        first = effects[0] if len(effects) == 1 and not (self._carrying or waits) else None
        if type(first) is Dispatch and first.ticket == ticket:
            # It starts at once, as nearly all do while nothing waits: the same as `_after`, in fewer calls.
            self._carrying = True
            try:
                call.dispatch(first)
                if self._effects:
                    self._carry_out(pool, ())
            finally:
                self._carrying = False
        elif effects:
            self._after(pool, effects)
        elif waits:
            self._see_to_timer(admission)

    def move(
        self,
        pool: PoolDesk,
        to: PoolDesk,
        call: Caller,
        tier: Tier,
        team: str,
        shape: Shape,
        now_s: float,
        waits: Waits,
        prefix: Prefix | None = None,
        tried: tuple[str, ...] = (),
    ) -> None:
        """Take it out of ``pool``, if it still waits there, and have it arrive at another; its team's limits have counted it already.

        ``tried``: replicas that have failed it.
        """
        if call.ticket in pool.calls:
            del pool.calls[call.ticket]
            self._after(pool, pool.admission.abandon(call.ticket, now_s))
        to.calls[call.ticket] = call
        effects = to.admission.arrive(
            call.ticket,
            tier.name,
            team,
            shape,
            now_s,
            waits.longest_s,
            waits.ttft_s,
            waits.patience_s * self.clock.speed,
            waits.whole,
            prefix,
            tried,
            call.kept_at,
        )
        self._after(to, effects)

    def first_token(self, pool: PoolDesk, call: Caller, now_s: float) -> None:
        """Its prompt is prefilled."""
        effects = pool.admission.first_token(call.ticket, now_s)
        if effects:
            self._after(pool, effects)

    def finish(self, pool: PoolDesk, call: Ticketed, usage: Usage | None, now_s: float) -> None:
        """Its last byte came."""
        ticket = call.ticket
        del pool.calls[ticket]
        if self._taken:
            self._give_back(ticket, usage, now_s, served=True)
        admission = pool.admission
        effects = admission.finish(ticket, usage, now_s)
        if len(effects) == 1 and not self._carrying:
            self._carry_out(pool, effects)
        elif effects:
            self._after(pool, effects)
            return
        queue = admission.queue
        if queue.count and (queue.due_s < self._timer_at_s or admission.wanting or self._timer is None):
            self._see_to_timer(admission)

    def abandon(self, pool: PoolDesk, call: Ticketed, usage: Usage | None, now_s: float) -> None:
        """Nobody waits for it any more; ``usage``: what was seen of its answer."""
        if pool.calls.pop(call.ticket, None) is None:
            return  # it never arrived
        if self._taken:
            self._give_back(call.ticket, usage, now_s, served=pool.admission.runs(call.ticket))
        self._after(pool, pool.admission.abandon(call.ticket, now_s))

    def retry(self, pool: PoolDesk, call: Caller, now_s: float, more_prompt_tokens: int = 0, *, reached: bool = True) -> None:
        """Its replica failed it: another one, or refusal. ``more_prompt_tokens`` of its output are prompt to the next."""
        self._after(pool, pool.admission.retry(call.ticket, now_s, more_prompt_tokens, reached=reached))

    def look_again(self, pool: PoolDesk) -> None:
        """Answers may be gone on with elsewhere that could not be when something last waited for a place."""
        admission = pool.admission
        if not isinstance(admission, SpillAdmission):
            self._after(pool, admission.look_again(self.now_s()))

    def served(self, pool: PoolDesk, replica: str, now_s: float) -> None:
        """``replica`` answers."""
        if replica in pool.outliers.suspects:
            pool.outliers.good(replica, now_s)
            pool.silences.alive(replica)

    def failed(self, pool: PoolDesk, replica: str, why: str, *, gone: bool = False) -> None:
        """``replica`` failed a request by a fault of its own. ``gone``: nobody listens there."""
        if isinstance(pool.admission, SpillAdmission):
            pool.admission.failed(self.now_s())
            return
        outliers, now_s = pool.outliers, self.now_s()
        self._ejected(pool, outliers.gone(replica, why, now_s) if gone else outliers.bad(replica, why, now_s))

    def wrong(self, pool: PoolDesk, replica: str, target: bytes, why: str) -> None:
        """``replica`` was asked, and is not what it was attached for."""
        self._ejected(pool, pool.silences.wrong(pool, replica, target, why, self.now_s()))

    def listened(self, pool: PoolDesk, replica: str, target: bytes, answered: bool, computed: bool | None) -> None:
        """What came of asking ``replica`` for a token (`silence.Silences.heard`)."""
        self._ejected(pool, pool.silences.heard(pool, replica, target, answered, computed, self.now_s()))

    def locked(self, pool: PoolDesk, replica: str, why: str) -> None:
        """``replica`` asks for a key that it isn't shown."""
        self._ejected(pool, pool.outliers.locked(replica, why, self.now_s()))

    def knock(self) -> None:
        """There are other keys to show: replicas that ask for one are probed by the next sweep."""
        for pool in self.pools.values():
            pool.outliers.knock(self.now_s())

    def probed(self, pool: PoolDesk, replica: str, well: bool) -> None:
        """How a probe of an ejected replica went."""
        self._ejected(pool, pool.outliers.probed(replica, well, self.now_s()))

    def elsewhere(self, pool: PoolDesk, replicas: int, out: int) -> None:
        """Other gateways have so many of its replicas in routing, and so many out."""
        self._ejected(pool, pool.outliers.elsewhere(replicas, out, self.now_s()))

    def apply(self, pools: Iterable[RosterPool]) -> None:
        """Route by these replicas from now on: the whole truth, so that a pool which isn't named has none."""
        now_s = self.now_s()
        listed = {listed.pool: listed for listed in pools}
        for pool in self.pools.values():
            pool.roster = listed.get(pool.name) or RosterPool(pool.name, ())
            pool.roster_at_s = now_s
            for effect in pool.outliers.roster(replica.id for replica in pool.roster.replicas):
                self._on_ejection(pool, effect)
            self._after(pool, pool.admission.set_roster(pool.routes(now_s), now_s))

    def sweep(self) -> None:
        """Let every request look at its times, and see which replicas have stalled.

        One that can't even do that, by a fault of ours, is broken off: it keeps no place, and no other's client waits for it. What it
        failed with is raised when all have had their look.
        """
        now_s = self.now_s()
        failed: Exception | None = None
        for pool in self.spills:
            for call in list(pool.calls.values()):
                failed = self._swept(pool, call, now_s) or failed
        for pool in self.pools.values():
            if pool.ways is not None:
                pool.ways.sweep(now_s)
            everyone = pool.ways is not None
            for call in list(pool.calls.values()):
                if everyone or call.quiet_until_s <= now_s:
                    failed = self._swept(pool, call, now_s) or failed
            stalled, to_ask = pool.silences.look(pool, now_s)
            self._ejected(pool, stalled)
            for listen in to_ask:
                self._on_ejection(pool, listen)
            if pool.admission.waiting and not isinstance(pool.admission, SpillAdmission):
                self._after(pool, pool.admission.foresee(now_s))
            self._ejected(pool, pool.outliers.advance(now_s))
        if failed is not None:
            raise failed

    def _swept(self, pool: PoolDesk, call: Caller, now_s: float) -> Exception | None:
        try:
            call.sweep(now_s)
        except Exception as error:
            failed = error
            try:
                call.break_off()
            except Exception as worse:  # its permit goes back all the same, and all others have their look
                failed = worse
            self.abandon(pool, call, None, now_s)
            return failed
        return None

    def _ejected(self, pool: PoolDesk, effects: list[Ejection]) -> None:
        """Route by what is left, and take what it has from a replica that stalls."""
        if not effects:
            return
        now_s = self.now_s()
        if any(not isinstance(effect, Probe) for effect in effects):
            self._after(pool, pool.admission.set_roster(pool.routes(now_s), now_s))
        for effect in effects:
            self._on_ejection(pool, effect)
            if isinstance(effect, Eject) and effect.stalled:
                for call in list(pool.calls.values()):
                    call.moved_from(effect.replica, STOPPED)

    def close(self) -> None:
        """No more timers."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- what is asked ------------------------------------------------------------------------------------------------

    def loads(self) -> tuple[PoolLoad, ...]:
        """Every pool as the controller is told."""
        now_s = self.now_s()
        loads = []
        for pool in self.pools.values():
            lanes, replicas = pool.admission.load(now_s)
            counts, out = tuple(meter.counts() for meter in pool.meters.values()), tuple(pool.outliers.out)
            loads.append(PoolLoad(pool.name, lanes, replicas, counts, out))
        return tuple(loads)

    def limits_left(self, team: str) -> bytes:
        """What is left of the team's limits, as header lines; none for a team without."""
        quota = self.quotas.get(team)
        return b"" if quota is None else quota.headers(self.now_s(), self.clock.speed)

    @property
    def live(self) -> int:
        """Requests inside, waiting or in flight."""
        return sum(len(pool.calls) for pool in (*self.pools.values(), *self.spills))

    def _after(self, pool: PoolDesk, effects: list[Effect]) -> None:
        """Carry out ``effects``, then see to the timer."""
        if effects:
            if len(effects) > 1:
                effects = self._requeue_first(pool, effects)
            if len(effects) > 1 or self._carrying:
                self._effects.extend([(pool, effect) for effect in effects])
            if not self._carrying:
                self._carry_out(pool, effects)
        if pool.admission.waiting:
            self._see_to_timer(pool.admission)

    def _see_to_timer(self, admission: Admission | SpillAdmission) -> None:
        """Something waits there."""
        quiet_until_s = admission.quiet_until_s()
        if self._timer is None or quiet_until_s < self._timer_at_s:
            self._arm(quiet_until_s)

    def _requeue_first(self, pool: PoolDesk, effects: list[Effect]) -> list[Effect]:
        """Stop what lost its permit at once, before anything can come of it, whoever is on the stack; returns the other effects."""
        others: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Requeue):
                ticket = effect.ticket
                # It may not even have been sent yet.
                pending = [one for one in self._effects if not (one[0] is pool and one[1].ticket == ticket)]
                if len(pending) < len(self._effects):
                    self._effects = deque(pending)
                pool.calls[ticket].requeued()
            else:
                others.append(effect)
        return others

    def _give_back(self, ticket: int, usage: Usage | None, now_s: float, *, served: bool) -> None:
        taken = self._taken.pop(ticket, None)
        if taken is not None:
            quota, tokens, since_s = taken
            quota.give_back(tokens, usage, now_s - since_s, now_s, served=served)

    def _carry_out(self, pool: PoolDesk, effects: Sequence[Effect]) -> None:
        """The only one there is, or those queued; and then what came of them."""
        self._carrying = True
        try:
            if len(effects) == 1:
                effect = effects[0]
                if type(effect) is Dispatch:  # as `_carry_out_one`, without the call
                    call = pool.calls.get(effect.ticket)
                    if call is not None:
                        call.dispatch(effect)
                else:
                    self._carry_out_one(pool, effect)
            while self._effects:
                self._carry_out_one(*self._effects.popleft())
        finally:
            self._carrying = False

    def _carry_out_one(self, pool: PoolDesk, effect: Effect) -> None:
        if isinstance(effect, Dispatch):
            call = pool.calls.get(effect.ticket)
            if call is not None:
                call.dispatch(effect)
        elif isinstance(effect, Refuse):
            call = pool.calls.pop(effect.ticket, None)
            if call is not None and not call.overflowed(effect):
                if self._taken:
                    self._give_back(effect.ticket, None, self.now_s(), served=False)
                call.refused(effect)

    def _arm(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = at_s
        self._timer = self.clock.call_at(at_s, self._due)

    def _due(self) -> None:
        self._timer = None
        now_s = self.now_s()
        for pool in self.pools.values():
            deadline_s = pool.admission.next_deadline_s()
            if deadline_s is not None and deadline_s <= now_s:
                self._after(pool, pool.admission.advance(now_s))
        self._rearm()

    def _rearm(self) -> None:
        due = [deadline_s for pool in self.pools.values() if (deadline_s := pool.admission.next_deadline_s()) is not None]
        if due and (self._timer is None or min(due) < self._timer_at_s):
            self._arm(min(due))
