"""The control loop: observe fully, decide, then act. It carries out effects and takes no decision of its own.

Each tick reads the fleet and every engine's page, asks the policy of each pool that is due, starts or withdraws
replicas, publishes a roster if it changed, and saves what a restart must not forget. What gateways say arrives between
ticks and moves the retreats; their effects are carried out by the next tick, so one task does all that is done.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from forebay.controller.corrections import Corrections
from forebay.controller.demand import Demand
from forebay.controller.gateways import GatewayBook
from forebay.controller.history import ColdStarts, Ramps
from forebay.controller.kv_told import KvTold
from forebay.controller.leasing import Leasing
from forebay.controller.ledger import Ledger
from forebay.controller.meter import Meter
from forebay.controller.observing import PoolFacts, observation, ready_urls
from forebay.controller.places import Places
from forebay.controller.remembered import remembered_number
from forebay.controller.rosters import CapacityOf, Rosters
from forebay.controller.ward import Ward
from forebay.controller.wedges import Wedges
from forebay.domain.events import Event
from forebay.domain.reloads import Reloads
from forebay.domain.replica import LIVE_STATES, ReplicaState, ReplicaView, attaching_pool
from forebay.domain.roster import Ack, Bye, FinishedRequests, FromGateway, Heard, Hello, Roster, Snapshot, ToGateway
from forebay.domain.scaling import Decision, Observation, Policy
from forebay.domain.signal import Known
from forebay.domain.usage import UsageBatch
from forebay.ports import Clock, EngineSignals, EventSink, Fleet, SignalSource, Store
from forebay.scaling import drain, explain, starts, victims
from forebay.scaling.capacity import PoolCapacity
from forebay.spec.live import attach_changes, check_live
from forebay.spec.types import Spec

LEASE_S = 15.0
TERM_KEY = "term"
SAVE_EVERY_S = 10.0
STOP_POLL_S = 0.5
GIVEN_UP_S = 900.0
PRESENT_RAMP = "present_ramp_per_s2"
"""The number of the buffer term that each day's history of ramps is made of."""


class PoolPolicy(msgspec.Struct, frozen=True):
    """How one pool is decided."""

    policy: Policy
    capacity: PoolCapacity


class Controller:
    """One leader. ``publish`` sends a roster to the gateways; their words come in through ``hear`` and ``lost``."""

    def __init__(
        self,
        spec: Spec,
        clock: Clock,
        fleet: Fleet,
        signals: SignalSource,
        store: Store,
        sink: EventSink,
        policies: Mapping[str, PoolPolicy],
        capacity_of: CapacityOf,
        hop_key: str = "",
    ) -> None:
        """``hop_key``: a secret for gateways that forward to one another; used where the spec allows several."""
        self.spec = spec
        self._clock = clock
        self._fleet = fleet
        self._source = signals
        self._store = store
        self._sink = sink
        # A lease is a matter of processes, not of the world: an accelerated one must not make a short stall an outage.
        self.book = GatewayBook(LEASE_S * max(1.0, clock.speed))
        self.retreat = drain.Retreat(self.book.lease_s, max((pool.scaling.drain_s_max for pool in spec.pools), default=0.0))
        self.wards = {pool.name: Ward(pool, policies[pool.name].policy, policies[pool.name].capacity, store) for pool in spec.pools}
        self.cold_starts = ColdStarts(store, self.wards)
        self.ramps = Ramps(store)
        self.demand = Demand(store, self.wards)
        self.wedges = Wedges(clock.speed)
        self.places = Places()
        self.kv_told = KvTold()
        self.meter = Meter(store, {pool.name: pool.profile.gpus if pool.profile else 1 for pool in spec.pools})
        self.corrections = Corrections(store)
        self.ledger = Ledger(store, clock, self._event)
        expected, interval_s = spec.gateways, self._interval_s
        self.leasing = Leasing(store, self.book, expected, interval_s, hop_key, clock.now_s()) if spec.leases else None
        holder = self.leasing.leases.holder if self.leasing is not None else None
        self.rosters = Rosters(_next_term(store), self.book.lease_s, capacity_of, self.corrections, holder)
        self.reloads = Reloads()
        self._effects: list[drain.Effect] = []
        self._states: dict[str, ReplicaState] = {}
        self._saved_s = 0.0

    @property
    def roster(self) -> Roster:
        """The newest roster."""
        return self.rosters.current

    def hear(self, message: FromGateway) -> ToGateway | None:
        """A gateway spoke; what it is answered, if anything."""
        now_s = self._clock.now_s()
        match message:
            case Hello(gateway=name):
                if self.book.hello(name, now_s):
                    if self.leasing is not None:
                        self.leasing.joined(message, now_s)
                    self._effects += self.retreat.gateway_joined(name, now_s)
                    self._event("gateway_joined", f"gateway {name} is there")
            case Ack(gateway=name, term=term, version=version):
                self.book.acknowledged(name, term, version, now_s)
                self._acknowledged(name, term, version, now_s)
            case Snapshot():
                return self._told(message, now_s)
            case Bye(gateway=name):
                self.book.bye(name)
                if self.leasing is not None:
                    self.leasing.left(name)
                self._effects += self.retreat.gateway_left(name, now_s)
                self._event("gateway_left", f"gateway {name} has drained and left")
            case UsageBatch():
                return self.ledger.take(message)
            case FinishedRequests(requests=requests):
                self._store.append_finished(requests)
        return None

    def _acknowledged(self, gateway: str, term: int, version: int, now_s: float) -> None:
        """A roster of another term says nothing of ours, however new it is."""
        if term == self.roster.term:
            if self.leasing is not None:
                self.leasing.leases.acknowledged(gateway, term, version, now_s)
            self._effects += self.retreat.acknowledged(gateway, term, version, now_s)
        elif term > self.roster.term:
            self.rosters.outbid(term)
            self._store.put(TERM_KEY, str(self.roster.term).encode())
            words = f"gateway {gateway} routes by term {term}, which nobody here remembers; leading by term {self.roster.term}"
            self._event("term_outbid", words)

    def lost(self, gateway: str) -> None:
        """A gateway's connection is gone, without a goodbye."""
        if gateway in self.book.records:
            self.book.lost(gateway)
            self._effects += self.retreat.gateway_lost(gateway, self._clock.now_s())
            self._event("gateway_lost", f"gateway {gateway} is silent; its signals are unknown")

    def _told(self, snapshot: Snapshot, now_s: float) -> Heard:
        """How a gateway is; where there are several it is told of the others, and else only that it was heard."""
        if words := self.book.snapshot(snapshot, now_s):
            self._event("gateway_config", words)
        if self.leasing is not None:
            self.leasing.heard(snapshot.gateway, now_s)
        self._acknowledged(snapshot.gateway, snapshot.term, snapshot.version, now_s)
        return Heard(snapshot.at_s, "", ()) if self.leasing is None else self.leasing.answer(snapshot, self.roster, now_s)

    def use(self, spec: Spec, policies: Mapping[str, PoolPolicy]) -> None:
        """Attach to what ``spec`` lists from the next tick on, by the fleet's word; raises BadInput where more than may has changed."""
        check_live(self.spec, spec)
        for name, words in attach_changes(self.spec, spec).items():
            self.wards[name].use(spec.pool(name), policies[name].policy, policies[name].capacity)
            self._event("attach_taken", words, name)
        self.spec = spec

    @property
    def _interval_s(self) -> float:
        return min((pool.scaling.interval_s for pool in self.spec.pools), default=1.0)

    async def run(self, publish: Callable[[Roster], None]) -> None:
        """Tick for ever; ``publish`` is called with each new roster."""
        while True:
            due_s = self._clock.now_s() + self._interval_s
            if await self.step():
                publish(self.roster)
            await self._clock.sleep_until(due_s)

    async def step(self) -> bool:
        """One tick; True if the roster changed and must be published."""
        # 1. Observe.
        views = await self._fleet.observe()
        readings = await self._source.read(ready_urls(views))
        now_s, wall_s = self._clock.now_s(), self._clock.wall_s()
        readings = self.places.judged(views, self.wedges.judged(views, readings, self.book, now_s), now_s)
        self._account(views, now_s, wall_s)
        for ward in self.wards.values():
            ward.see(views, readings)
            for words in self.kv_told.look(ward):
                self._event("kv_differs", words, ward.pool.name)
            self.corrections.take(ward, self.rosters.capacities, self.book, now_s)
        # 2. Let retreats move.
        self._advance_retreats(views, readings, now_s)
        await self._carry_out()
        # 3. Decide and act, pool by pool.
        for ward in self.wards.values():
            if now_s >= ward.look_at_s - 1e-9:
                await self._decide(ward, now_s, wall_s)
        # 4. Tell.
        if self.leasing is not None:
            for pool, kind, words in self.leasing.look(self.wards.values(), self.retreat.leaving(), now_s):
                self._event(kind, words, pool)
        leaving = self.retreat.leaving()
        changed = self.rosters.make(self.wards.values(), leaving, now_s)
        # What went off its list before any roster had it changes none: the one that is out lacks it already.
        if changed or any(self.retreat.phase(replica) is drain.Phase.LISTED for replica in leaving):
            roster = self.roster
            gateways = self.book.of_record(now_s)
            self._effects += self.retreat.roster_published(roster.term, roster.version, leaving, gateways, now_s)
        if self.leasing is not None:
            self.leasing.leases.published(self.roster.term, self.roster.version)
        return changed

    def _account(self, views: Sequence[ReplicaView], now_s: float, wall_s: float) -> None:
        self.meter.count(views, now_s)
        self.cold_starts.take(views)
        for pool in self.wards:
            came = self.book.came.total(pool) if self.book.loads(pool, now_s) is not None else None
            self.demand.take(pool, came, self.book.came.corrections(pool), now_s, wall_s)
        for name in self.book.expire(now_s):
            self._effects += self.retreat.gateway_left(name, now_s)
            self._event("gateway_forgotten", f"gateway {name} has been gone too long for any stream of its to live")
        self._tell_states(views)
        present = {view.id for view in views}
        self.rosters.forget(present)
        self.corrections.forget(present)
        if now_s - self._saved_s >= SAVE_EVERY_S:
            self._saved_s = now_s
            self.meter.save()
            self.corrections.save()

    def save(self) -> None:
        """What a restart goes on from, as it is now."""
        self.meter.save()
        self.demand.save()

    def _tell_states(self, views: Sequence[ReplicaView]) -> None:
        for view in views:
            if self._states.get(view.id) is not view.state:
                words = f"{view.id} is {view.state}" + (f": {view.problem}" if view.problem else "")
                detail = {stage.stage: round(stage.seconds, 3) for stage in view.stages}
                self._event(f"replica_{view.state}", words, view.pool, detail)
        self._states = {view.id: view.state for view in views}

    def _advance_retreats(self, views: Sequence[ReplicaView], readings: Mapping[str, EngineSignals], now_s: float) -> None:
        present = {view.id: view for view in views}
        for seen in views:
            # One that an earlier controller began: its retreat is taken up again, from the start.
            if seen.state is ReplicaState.DRAINING and self.retreat.phase(seen.id) is None:
                self._effects += self.retreat.begin(seen.id, now_s, self._drain_s_max(seen.pool))
            elif seen.state is ReplicaState.READY and self.retreat.phase(seen.id) is not None and attaching_pool(seen.id):
                # Its list names it again. To stop it would have meant to forget it, so no phase is too late.
                self.retreat.gone(seen.id)
                self._effects = [effect for effect in self._effects if effect.replica_id != seen.id]
        self._look_for_silence(now_s)
        for replica in sorted(self.retreat.leaving()):
            view = present.get(replica)
            if view is None or view.state in {ReplicaState.STOPPED, ReplicaState.FAILED}:
                self.retreat.gone(replica)
                if view is not None and view.state is ReplicaState.FAILED:
                    self._effects.append(drain.Stop(replica, cut_streams=False))
                continue
            self._effects += self.retreat.live(replica, self._live_streams(view, readings), now_s)
        self._effects += self.retreat.advance(now_s)

    def _drain_s_max(self, pool: str) -> float | None:
        ward = self.wards.get(pool)
        return None if ward is None else ward.pool.scaling.drain_s_max

    def _look_for_silence(self, now_s: float) -> None:
        """Gateways that have said nothing for a lease hold no drain up any longer."""
        for record in self.book.records.values():
            silent = now_s - record.heard_s > self.book.lease_s
            if silent:
                self._effects += self.retreat.gateway_lost(record.name, record.heard_s)
            if silent and record.connected and not record.silent:  # else that is said already
                self._event("gateway_lost", f"gateway {record.name} is silent, though its connection stands; its signals are unknown")
            elif record.silent and not silent:
                self._event("gateway_joined", f"gateway {record.name} is heard again")
            record.silent = silent and record.connected

    def _live_streams(self, view: ReplicaView, readings: Mapping[str, EngineSignals]) -> int | None:
        """What gateways have there, and at least what the engine says: it may serve others' requests too."""
        streams = self.book.streams(view.pool, view.id, self._clock.now_s())
        if streams is None or attaching_pool(view.id):
            return streams  # what else runs on an engine of somebody else's is no concern of ours
        signals = readings.get(view.id, EngineSignals())
        for signal in (signals.running, signals.waiting):
            if isinstance(signal, Known):
                streams = max(streams, int(signal.value))
        return streams

    async def _carry_out(self) -> None:
        effects, self._effects = self._effects, []
        for effect in effects:
            match effect:
                case drain.Withdraw(replica_id=replica, deadline_s=deadline_s):
                    await self._fleet.drain(replica, deadline_s)
                case drain.Restore(replica_id=replica):
                    await self._fleet.cancel_drain(replica)
                    self._event("drain_cancelled", f"load is back: {replica} serves again")
                case drain.Stop(replica_id=replica, cut_streams=cut):
                    if pool := attaching_pool(replica):
                        how = "its streams go on" if cut else "nothing that came by here runs on it any more"
                        self._event("engine_left", f"{replica} is off the list, and {how}", pool)
                    elif cut:
                        self._event("drain_deadline", f"{replica} is stopped at its deadline with streams on it")
                    await self._fleet.stop(replica)

    async def _decide(self, ward: Ward, now_s: float, wall_s: float) -> None:
        seen = self._observation(ward, now_s, wall_s)
        before = ward.desired
        decision = ward.policy.decide(seen)
        begun, over = ward.decided(seen, decision, wall_s)
        for term in decision.terms:
            if PRESENT_RAMP in term.numbers:
                self.ramps.take(ward.pool.name, term.numbers[PRESENT_RAMP], wall_s)
        if decision.replicas != before:
            detail = {term.name: term.replicas for term in decision.terms}
            self._event("scale", f"{before} → {decision.replicas}: {explain.summary(decision)}", ward.pool.name, detail)
        for alert in begun:
            self._event("alert", f"{alert.kind}: {alert.message}", ward.pool.name, {"alert": alert.kind.value})
        for alert in over:
            self._event("alert_over", f"{alert.kind} is over", ward.pool.name, {"alert": alert.kind.value})
        if not ward.attached:
            await self._act(ward, seen, decision, now_s)

    def _observation(self, ward: Ward, now_s: float, wall_s: float) -> Observation:
        pool = ward.pool
        facts = PoolFacts(
            pool=pool.name,
            desired=ward.desired,
            memory=ward.memory,
            kv_tokens=pool.profile.kv_tokens if pool.profile else None,
            cold_start_s=self.cold_starts.signal(pool.name, now_s),
            assumed_cold_start_s=ward.capacity.cold_start_s,
            past_ramps_per_s2=self.ramps.past(pool.name),
            history=self.demand.history(pool.name),
        )
        return observation(facts, ward.views, ward.signals, self.book, now_s, wall_s)

    async def _act(self, ward: Ward, seen: Observation, decision: Decision, now_s: float) -> None:
        present = [replica for replica in seen.replicas if replica.state in LIVE_STATES]
        scaling = ward.pool.scaling
        for view in ward.views:
            if view.state is ReplicaState.FAILED and now_s - view.since_s > GIVEN_UP_S:
                # Its fleet restarts it with a growing delay; failed for this long, it only holds the place of a better one.
                self._event("replica_given_up", f"{view.id} has failed for good: {view.problem}", view.pool)
                await self._fleet.stop(view.id)
        for replica in victims.pick(present, victims.surplus(decision.replicas, present)):
            if self._states.get(replica) is ReplicaState.READY:
                self._effects += self.retreat.begin(replica, now_s, scaling.drain_s_max)
            else:
                await self._fleet.stop(replica)
        missing = decision.replicas - sum(replica.state is not ReplicaState.DRAINING for replica in present)
        back = [name for name in victims.restorable(present, len(present)) if self.retreat.cancellable(name)][: max(0, missing)]
        for replica in back:
            self._effects += self.retreat.cancel(replica, now_s)
        # A replica that is taken back holds its hardware already: only what is still missing is started.
        new = min(starts.to_start(decision.replicas, present, scaling.starts_max, scaling.max_replicas), max(0, missing - len(back)))
        if new > 0:
            known = [replica.id for replica in present]
            await self._fleet.ensure(ward.pool.name, [*known, *ward.fresh_names(new)])
        await self._carry_out()

    async def stop_all(self) -> None:
        """Stop every replica that is ours and wait until they have ended: the gateways have drained before."""
        own = {name for name, ward in self.wards.items() if not ward.attached}
        while views := [view for view in await self._fleet.observe() if view.pool in own and view.state is not ReplicaState.STOPPED]:
            for view in views:
                await self._fleet.stop(view.id)
            await self._clock.sleep_until(self._clock.now_s() + STOP_POLL_S)
        self.save()

    def tell(self, kind: str, message: str) -> None:
        """An event of the controller's own, told by who looks after its files."""
        self._event(kind, message)

    def _event(self, kind: str, message: str, pool: str = "", detail: Mapping[str, str | float | int | bool] | None = None) -> None:
        event = Event(kind, self._clock.now_s(), self._clock.wall_s(), pool, message, dict(detail or {}))
        self._store.append_event(event)
        self._sink.emit(event)


def _next_term(store: Store) -> int:
    term = 1 + remembered_number(store, TERM_KEY)
    store.put(TERM_KEY, str(term).encode())
    return term
