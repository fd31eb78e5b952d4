"""Pools that attach to engines somebody else runs: their health is watched, and scaling them can only be advised.

Ids are made of pool and address, so they are the same after every restart. Wishes change nothing here: draining an
engine that nothing will stop would only take capacity from its owner.
"""

import asyncio
from collections.abc import Sequence

from forebay.adapters.local.health import HealthKind, probe
from forebay.adapters.local.keeper import Pace
from forebay.domain.events import Event
from forebay.domain.replica import ReplicaState, ReplicaView, attached_id, moved
from forebay.ports.clock import Clock
from forebay.ports.events import EventSink
from forebay.ports.upstream import Upstream
from forebay.spec.types import Pool, Spec

FAILURES_IN_A_ROW_MAX = 3
"""Bad health answers that make a ready engine failed: one lost packet must not take capacity away."""


class _Attached:
    """One fixed URL."""

    def __init__(self, pool: Pool, url: str, now_s: float) -> None:
        self.pool = pool
        self.failures = 0
        self.view = ReplicaView(attached_id(pool.name, url), pool.name, ReplicaState.REQUESTED, now_s, now_s, url.rstrip("/"))

    def saw(self, good: bool, detail: str, now_s: float) -> bool:
        """Takes one health answer; True if the state changed."""
        self.failures = 0 if good else self.failures + 1
        if good and self.view.state is not ReplicaState.READY:
            self._move(ReplicaState.READY, "", now_s)
        elif not good and self._fails():
            self._move(ReplicaState.FAILED, detail, now_s)
        else:
            return False
        return True

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
        pools = [pool for pool in spec.pools if pool.engine.kind == "attach"]
        self._pools = frozenset(pool.name for pool in pools)
        attached = [_Attached(pool, url, clock.now_s()) for pool in pools for url in pool.engine.attach]
        self._replicas = {one.view.id: one for one in attached}
        self._advised: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pools(self) -> frozenset[str]:
        """Names of the pools that attach."""
        return self._pools

    def knows(self, replica_id: str) -> bool:
        """Whether ``replica_id`` is one of ours."""
        return replica_id in self._replicas

    async def adopt(self) -> None:
        """Start to watch; call it once, first."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._watch(one), name=f"watch {one.view.id}") for one in self._replicas.values()]

    async def observe(self) -> tuple[ReplicaView, ...]:
        """All of them, always."""
        return tuple(one.view for one in self._replicas.values())

    async def ensure(self, pool: str, replica_ids: Sequence[str]) -> None:
        """Advice only."""
        missing = [replica_id for replica_id in replica_ids if replica_id not in self._replicas]
        if missing:
            self._advise(pool, f"{len(missing)} more replica(s) are wanted")

    async def drain(self, replica_id: str, deadline_s: float) -> None:
        """Advice only."""
        del deadline_s
        self._advise_less(replica_id)

    async def cancel_drain(self, replica_id: str) -> None:
        """Nothing was drained."""
        one = self._replicas.get(replica_id)
        if one is not None:
            self._advised.pop(one.pool.name, None)

    async def stop(self, replica_id: str) -> None:
        """Advice only."""
        self._advise_less(replica_id)

    async def stop_all(self) -> None:
        """Nothing here is ours to stop."""

    async def close(self) -> None:
        """Stop watching."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _watch(self, one: _Attached) -> None:
        pace, clock = self._pace, self._clock
        while True:
            health = await probe(self._upstream, one.view.url, one.pool.engine.health_path, False, pace.probe_timeout_real_s)
            moved_on = one.saw(health.kind is HealthKind.HEALTHY, health.detail or str(health.kind), clock.now_s())
            if moved_on and one.view.state is ReplicaState.FAILED:
                self._upstream.forget(one.view.url)
            every_s = pace.probe_ready_s if one.view.state is ReplicaState.READY else pace.probe_pending_s
            await clock.sleep_until(clock.now_s() + max(every_s, pace.probe_real_s_least * clock.speed))

    def _advise_less(self, replica_id: str) -> None:
        one = self._replicas.get(replica_id)
        if one is not None:
            self._advise(one.pool.name, f"{replica_id} is not needed")

    def _advise(self, pool: str, advice: str) -> None:
        """Once per change of advice: wishes are repeated every second."""
        if self._advised.get(pool) != advice:
            self._advised[pool] = advice
            self._tell("scaling_advice", pool, f"{advice}; pool {pool} is attached, so scaling it is left to whoever runs it")

    def _tell(self, kind: str, pool: str, message: str) -> None:
        self._sink.emit(Event(kind, self._clock.now_s(), self._clock.wall_s(), pool, message))
