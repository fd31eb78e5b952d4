"""Pools that attach to engines somebody else runs: their health is watched, and scaling them can only be advised.

Ids are made of pool and address, so they are the same after every restart. Wishes change nothing here: draining an
engine that nothing will stop would only take capacity from its owner. Only its owner takes one away, by a new list: it is shown
as draining until whoever drains it says that it is empty, and is then forgotten.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from forebay.adapters.local.health import HealthKind, asks_key, probe
from forebay.adapters.local.keeper import Pace
from forebay.domain.events import Event
from forebay.domain.replica import ReplicaState, ReplicaView, attached_id, moved
from forebay.ports.clock import Clock
from forebay.ports.events import EventSink
from forebay.ports.upstream import Upstream
from forebay.spec.engine_keys import refused
from forebay.spec.types import Pool, Spec

FAILURES_IN_A_ROW_MAX = 3
"""Bad health answers that make a ready engine failed: one lost packet must not take capacity away."""
KEY_LOOK_EVERY = 12
"""Looks at a ready engine's health to one at whether it still takes its key."""


class _Attached:
    """One fixed URL."""

    def __init__(self, pool: Pool, url: str, now_s: float) -> None:
        self.pool = pool
        self.failures = 0
        self.looks = 0
        """At its health, since it was last asked whether it takes its key."""
        self.watch: asyncio.Task[None] | None = None
        self.view = ReplicaView(attached_id(pool.name, url), pool.name, ReplicaState.REQUESTED, now_s, now_s, url.rstrip("/"))

    def saw(self, good: bool, detail: str, now_s: float) -> bool:
        """Takes one health answer; True if the state changed."""
        self.failures = 0 if good else self.failures + 1
        if good and self.view.state is not ReplicaState.READY:
            self._move(ReplicaState.READY, "", now_s)
        elif not good and self._fails():
            self._move(ReplicaState.FAILED, detail, now_s)
        else:
            if self.view.asks_key:  # it is down, or asks no more and is not well yet
                self.view = msgspec.structs.replace(self.view, problem=detail, asks_key=False)
            return False
        return True

    def refused(self, why: str, now_s: float) -> bool:
        """It asks for a key that it isn't shown: it serves nobody; True if that is news."""
        if self.view.asks_key:
            return False
        if self.view.state is not ReplicaState.FAILED:
            self._move(ReplicaState.FAILED, why, now_s)
        self.failures = 0
        self.view = msgspec.structs.replace(self.view, problem=why, asks_key=True)
        return True

    @property
    def leaves(self) -> bool:
        """Whether it is off the list, and may still have streams."""
        return self.view.state is ReplicaState.DRAINING

    def leave(self, now_s: float) -> None:
        """It serves, and is off the list."""
        self._move(ReplicaState.DRAINING, "", now_s)

    def stay(self, now_s: float) -> None:
        """It is on the list again, before it was forgotten."""
        self._move(ReplicaState.READY, "", now_s)

    def unwatch(self) -> None:
        """Ask for its health no more."""
        if self.watch is not None:
            self.watch.cancel()
            self.watch = None

    def _fails(self) -> bool:
        state = self.view.state
        return state is ReplicaState.REQUESTED or (state is ReplicaState.READY and self.failures >= FAILURES_IN_A_ROW_MAX)

    def _move(self, state: ReplicaState, problem: str, now_s: float) -> None:
        before = self.view.state
        if before is ReplicaState.FAILED:
            before = moved(before, ReplicaState.REQUESTED)
        view = self.view
        state = moved(before, state)
        self.view = ReplicaView(view.id, view.pool, state, now_s, view.requested_s, view.url, problem=problem)


class AttachedFleet:
    """`ports.Fleet` over fixed URLs."""

    def __init__(self, spec: Spec, clock: Clock, upstream: Upstream, sink: EventSink, *, pace: Pace | None = None) -> None:
        self._clock = clock
        self._upstream = upstream
        self._sink = sink
        self._pace = pace or Pace()
        self._pools = frozenset(pool.name for pool in spec.pools if pool.engine.kind == "attach")
        self._replicas = self._listed(spec)
        self._spec_pools = {pool.name: pool for pool in spec.pools}
        """As they were declared last: where the keys of engines stand may change."""
        self._advised: dict[str, str] = {}
        self._watches = False

    @property
    def pools(self) -> frozenset[str]:
        """Names of the pools that attach."""
        return self._pools

    def knows(self, replica_id: str) -> bool:
        """Whether ``replica_id`` is one of ours."""
        return replica_id in self._replicas

    async def adopt(self) -> None:
        """Start to watch; call it once, first."""
        self._watches = True
        self._watch_all()

    def use(self, spec: Spec) -> frozenset[str]:
        """Watch what ``spec`` lists from now on; the replicas that are new.

        What serves and isn't listed any more drains until it is told to stop.
        """
        now_s, listed = self._clock.now_s(), self._listed(spec)
        self._spec_pools = {pool.name: pool for pool in spec.pools}
        new = frozenset(listed.keys() - self._replicas.keys())
        for replica_id, one in list(self._replicas.items()):
            if replica_id in listed:
                listed[replica_id] = one
                if one.leaves:
                    one.stay(now_s)
            elif one.view.state in {ReplicaState.READY, ReplicaState.DRAINING}:
                one.unwatch()
                if not one.leaves:
                    one.leave(now_s)
            else:
                self._forget(one)
        # Those that leave last: they go soon, and the others' order is the list's.
        self._replicas = {**listed, **{each: one for each, one in self._replicas.items() if each not in listed}}
        self._watch_all()
        return new

    def look_again(self) -> None:
        """There are other keys to show: each engine is asked anew whether it takes its own."""
        for one in self._replicas.values():
            one.looks = KEY_LOOK_EVERY
            if one.view.asks_key and one.watch is not None:
                one.unwatch()
        self._watch_all()

    def _listed(self, spec: Spec) -> dict[str, _Attached]:
        now_s = self._clock.now_s()
        attached = [_Attached(pool, url, now_s) for pool in spec.pools for url in pool.engine.attach]
        return {one.view.id: one for one in attached}

    def _watch_all(self) -> None:
        """Each that is listed and isn't watched."""
        for one in self._replicas.values():
            if self._watches and one.watch is None and not one.leaves:
                one.watch = asyncio.create_task(self._watch(one), name=f"watch {one.view.id}")

    def _forget(self, one: _Attached) -> None:
        one.unwatch()
        del self._replicas[one.view.id]
        self._upstream.forget(one.view.url)

    async def observe(self) -> tuple[ReplicaView, ...]:
        """All that are listed, and those that leave and were not told to stop yet."""
        return tuple(one.view for one in self._replicas.values())

    async def ensure(self, pool: str, replica_ids: Sequence[str]) -> None:
        """Advice only."""
        missing = [replica_id for replica_id in replica_ids if replica_id not in self._replicas]
        if missing:
            self._advise(pool, f"{len(missing)} more replica(s) are wanted")

    async def drain(self, replica_id: str, deadline_s: float) -> None:
        """Advice only; what leaves drains already."""
        del deadline_s
        self._advise_less(replica_id)

    async def cancel_drain(self, replica_id: str) -> None:
        """Nothing was drained."""
        one = self._replicas.get(replica_id)
        if one is not None:
            self._advised.pop(one.pool.name, None)

    async def stop(self, replica_id: str) -> None:
        """Forgets what leaves; of others, advice only."""
        one = self._replicas.get(replica_id)
        if one is not None and one.leaves:
            self._forget(one)
        else:
            self._advise_less(replica_id)

    async def stop_all(self) -> None:
        """Nothing here is ours to stop."""

    async def close(self) -> None:
        """Stop watching."""
        self._watches = False
        tasks = [one.watch for one in self._replicas.values() if one.watch is not None]
        for one in self._replicas.values():
            one.unwatch()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, one: _Attached) -> None:
        pace, clock = self._pace, self._clock
        while True:
            health = await probe(self._upstream, one.view.url, one.pool.engine.health_path, False, pace.probe_timeout_real_s)
            status = health.asks_key or (await self._key_refused(one) if health.kind is HealthKind.HEALTHY else 0)
            if status:
                self._refused(one, status)
                await self._wait(pace.probe_ready_s)
                continue
            moved_on = one.saw(health.kind is HealthKind.HEALTHY, health.detail or str(health.kind), clock.now_s())
            if moved_on and one.view.state is ReplicaState.FAILED:
                self._upstream.forget(one.view.url)
            await self._wait(pace.probe_ready_s if one.view.state is ReplicaState.READY else pace.probe_pending_s)

    async def _wait(self, every_s: float) -> None:
        clock = self._clock
        await clock.sleep_until(clock.now_s() + max(every_s, self._pace.probe_real_s_least * clock.speed))

    async def _key_refused(self, one: _Attached) -> int:
        """The status by which a healthy engine asks for a key, if it does: asked before it is ready, and now and then after that."""
        one.looks += 1
        if one.view.state is ReplicaState.READY and one.looks < KEY_LOOK_EVERY:
            return 0
        one.looks = 0
        return await asks_key(self._upstream, one.view.url, one.pool.engine.metrics, self._pace.probe_timeout_real_s)

    def _refused(self, one: _Attached, status: int) -> None:
        view, pool = one.view, self._spec_pools[one.pool.name]
        words = refused(pool, view.url, status)
        if one.refused(words, self._clock.now_s()):
            self._upstream.forget(view.url)
            self._tell("engine_asks_key", view.pool, f"{view.id} {words}")

    def _advise_less(self, replica_id: str) -> None:
        one = self._replicas.get(replica_id)
        if one is not None and not one.leaves:
            self._advise(one.pool.name, f"{replica_id} is not needed")

    def _advise(self, pool: str, advice: str) -> None:
        """Once per change of advice: wishes are repeated every second."""
        if self._advised.get(pool) != advice:
            self._advised[pool] = advice
            self._tell("scaling_advice", pool, f"{advice}; pool {pool} is attached, so scaling it is left to whoever runs it")

    def _tell(self, kind: str, pool: str, message: str) -> None:
        self._sink.emit(Event(kind, self._clock.now_s(), self._clock.wall_s(), pool, message))
