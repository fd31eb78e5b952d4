"""A fleet whose engines are emulated in this process: cold starts in virtual time, crashes from the seed.

It also keeps watch: a drain that ends with streams on the engine, before its deadline and without a crash, is noted as
a broken promise.
"""

import asyncio
from collections.abc import Collection, Sequence

from forebay.domain.profile import Profile
from forebay.domain.replica import LIVE_STATES, ReplicaState, ReplicaView, StageTime, moved
from forebay.emulator.engine_server import EngineServer
from forebay.emulator.faults import Fault, Kind
from forebay.ports import Clock

HOST = "127.0.0.1"
NO_SERVICE = frozenset({Kind.HANG, Kind.ERROR_FIRST_EVENT, Kind.ALL_500})
"""An engine with one of these faults serves nobody, however ready it looks."""
RESTART_S = 10.0


class Replica:
    """One engine and the view of it."""

    def __init__(self, name: str, pool: str, now_s: float) -> None:
        self.name = name
        self.pool = pool
        self.state = ReplicaState.REQUESTED
        self.since_s = self.requested_s = self.begun_s = now_s
        self.stages: tuple[StageTime, ...] = ()
        self.restarts = 0
        self.problem = ""
        self.port = 0
        self.deadline_s: float | None = None
        self.engine: EngineServer | None = None
        self.task: asyncio.Task[None] | None = None

    def move(self, state: ReplicaState, now_s: float) -> None:
        """Enter ``state``, if the table allows it."""
        self.state = moved(self.state, state)
        self.since_s = now_s

    def view(self) -> ReplicaView:
        """What the fleet reports."""
        url = f"http://{HOST}:{self.port}" if self.port else ""
        return ReplicaView(self.name, self.pool, self.state, self.since_s, self.requested_s, url, self.stages, self.restarts, self.problem)


class WorldFleet:
    """`ports.Fleet` in virtual time."""

    def __init__(self, clock: Clock, profile: Profile, model: str, seed: int) -> None:
        self.replicas: dict[str, Replica] = {}
        self.broken_promises: list[str] = []
        self.started_total = 0
        self._clock = clock
        self._profile = profile
        self._model = model
        self._seed = seed

    async def observe(self) -> tuple[ReplicaView, ...]:
        """All but the forgotten; a stopped one is reported once."""
        views = tuple(replica.view() for replica in self.replicas.values())
        self.replicas = {name: replica for name, replica in self.replicas.items() if replica.state is not ReplicaState.STOPPED}
        return views

    async def ensure(self, pool: str, replica_ids: Sequence[str]) -> None:
        """Start the unknown ones."""
        for name in replica_ids:
            if name not in self.replicas:
                replica = self.replicas[name] = Replica(name, pool, self._clock.now_s())
                replica.task = asyncio.create_task(self._start(replica), name=f"start {name}")

    async def drain(self, replica_id: str, deadline_s: float) -> None:
        """Mark as draining."""
        replica = self.replicas.get(replica_id)
        if replica is not None and replica.state is ReplicaState.READY:
            replica.move(ReplicaState.DRAINING, self._clock.now_s())
            replica.deadline_s = deadline_s

    async def cancel_drain(self, replica_id: str) -> None:
        """Serve again."""
        replica = self.replicas.get(replica_id)
        if replica is not None and replica.state is ReplicaState.DRAINING:
            replica.move(ReplicaState.READY, self._clock.now_s())
            replica.deadline_s = None

    async def stop(self, replica_id: str) -> None:
        """End it; keep watch over streams that this cuts."""
        replica = self.replicas.get(replica_id)
        if replica is None or replica.state is ReplicaState.STOPPED:
            return
        now_s = self._clock.now_s()
        on_it = replica.engine.core.queued if replica.engine is not None else 0
        early = replica.deadline_s is None or now_s < replica.deadline_s
        if on_it and early and replica.state in {ReplicaState.READY, ReplicaState.DRAINING}:
            self.broken_promises.append(f"{now_s:.3f}: {replica_id} was stopped under {on_it} requests")
        replica.move(ReplicaState.STOPPED, now_s)
        await self._end(replica)

    async def _start(self, replica: Replica) -> None:
        replica.begun_s = self._clock.now_s()
        self.started_total += 1
        engine = EngineServer(
            self._profile,
            self._model,
            self._clock,
            seed=f"{self._seed}/{replica.name}/{replica.restarts}",
            cold=True,
            on_exit=lambda code, why: self.crashed(replica.name, f"exit {code}: {why}"),
        )
        replica.engine = engine
        replica.move(ReplicaState.LOADING, self._clock.now_s())
        port = await engine.start(HOST, 0)
        if replica.state is not ReplicaState.LOADING:
            await engine.stop()
            return
        replica.port = port
        now_s = self._clock.now_s()
        replica.stages = (StageTime("load", now_s - replica.begun_s),)
        replica.move(ReplicaState.READY, now_s)

    def crashed(self, name: str, problem: str) -> None:
        """The engine is gone by itself: failed, and restarted in place after a while."""
        replica = self.replicas.get(name)
        if replica is None or replica.state not in LIVE_STATES or replica.state is ReplicaState.FAILED:
            return
        replica.move(ReplicaState.FAILED, self._clock.now_s())
        replica.problem = problem
        replica.port = 0
        replica.task = asyncio.create_task(self._restart(replica), name=f"restart {name}")

    async def _restart(self, replica: Replica) -> None:
        await self._end_engine(replica)
        await self._clock.sleep_until(self._clock.now_s() + RESTART_S)
        if replica.state is ReplicaState.FAILED:
            replica.move(ReplicaState.REQUESTED, self._clock.now_s())
            replica.restarts += 1
            replica.problem = ""
            await self._start(replica)

    def fault(self, name: str, fault: Fault | None) -> None:
        """Switch a fault of one engine on, or (None) all of its faults off."""
        replica = self.replicas.get(name)
        if replica is not None and replica.engine is not None and replica.port:
            if fault is None:
                replica.engine.clear_faults()
            else:
                replica.engine.inject(fault)

    def serves(self, unreachable: Collection[int]) -> bool:
        """Whether any engine serves what is sent to it, but for those at ``unreachable`` ports."""
        return any(
            replica.state is ReplicaState.READY
            and replica.port not in unreachable
            and replica.engine is not None
            and not any(fault.kind in NO_SERVICE for fault in replica.engine.faults)
            for replica in self.replicas.values()
        )

    async def close(self) -> None:
        """End every engine."""
        for replica in self.replicas.values():
            await self._end(replica)

    async def _end(self, replica: Replica) -> None:
        if replica.task is not None and replica.task is not asyncio.current_task():
            replica.task.cancel()
            await asyncio.gather(replica.task, return_exceptions=True)
        await self._end_engine(replica)

    async def _end_engine(self, replica: Replica) -> None:
        engine, replica.engine = replica.engine, None
        if engine is not None:
            await engine.stop()
