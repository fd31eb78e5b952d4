"""The fleet of one machine: replicas are child processes, kept one by one, noted in the store so that engines outlive a controller.

What the store holds is written before a replica is first reported. A controller that starts re-adopts what still runs
(same pid, same creation time), ends what runs but is noted nowhere, and forgets the rest. A lock on the log folder keeps a
second fleet from owning the same engines. Shared memory that an engine leaks in ``/dev/shm`` is left alone: nothing there says whose it is.
"""

import asyncio
import fcntl
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from forebay.adapters.local import child as children
from forebay.adapters.local.command import SHIM, free_devices, wants_devices
from forebay.adapters.local.keeper import Keeper, Pace, Yard
from forebay.adapters.local.life import Life, new_life
from forebay.domain.errors import ForebayError
from forebay.domain.events import Event
from forebay.domain.replica import ReplicaState, ReplicaView
from forebay.ports.clock import Clock
from forebay.ports.events import EventSink
from forebay.ports.store import Store
from forebay.ports.upstream import Upstream
from forebay.spec.types import Spec

STORE_KEY = "local-fleet"
LOCK_NAME = "fleet.lock"


class FleetTaken(ForebayError):
    """Another controller owns this fleet."""


class LocalFleet:
    """`ports.Fleet` over child processes, for the pools that start their engines."""

    def __init__(
        self,
        spec: Spec,
        clock: Clock,
        upstream: Upstream,
        store: Store,
        sink: EventSink,
        *,
        log_dir: Path,
        lifeline_fd: int | None,
        chance: random.Random,
        pace: Pace | None = None,
        meet: Callable[[str, str], None] | None = None,
    ) -> None:
        """``lifeline_fd``: read end of the supervisor's pipe, or None where engines may outlive us. ``chance``: ports and jitter.

        ``meet`` is told of each engine's pool and address before anything is asked there: it may ask for a key.
        """
        self._pools = {pool.name: pool for pool in spec.pools if pool.engine.kind != "attach"}
        self._store = store
        self._keepers: dict[str, Keeper] = {}
        self._lock_fd = -1
        owner = str(log_dir.resolve())
        self._yard = Yard(clock, upstream, sink, chance, log_dir, owner, lifeline_fd, pace or Pace(), set(), self._note, meet or _nobody)

    @property
    def pools(self) -> frozenset[str]:
        """Names of the pools whose replicas are started here."""
        return frozenset(self._pools)

    def knows(self, replica_id: str) -> bool:
        """Whether ``replica_id`` is one of ours."""
        return replica_id in self._keepers

    async def adopt(self) -> None:
        """Take over what an earlier controller left; call it once, first. Raises FleetTaken."""
        if self._lock_fd >= 0:
            return
        self._lock_fd = self._locked()
        for life in self._noted():
            self._adopt_one(life)
        known = {keeper.life.pid for keeper in self._keepers.values()}
        for pid in children.strays(self._yard.owner, str(SHIM), known):
            children.quit_shim(pid)
            self._tell("engine_forgotten", "", f"process {pid} carried this fleet's mark but was noted nowhere; killed")
        self._note()

    async def observe(self) -> tuple[ReplicaView, ...]:
        """In the order in which they were asked for; a stopped one is reported once."""
        views = tuple(keeper.life.view() for keeper in self._keepers.values())
        stopped = [view.id for view in views if view.state is ReplicaState.STOPPED]
        for replica_id in stopped:
            del self._keepers[replica_id]
        if stopped:
            self._note()
        return views

    async def ensure(self, pool: str, replica_ids: Sequence[str]) -> None:
        """Start those that are unknown. Raises KeyError for a pool that is not started here."""
        declared = self._pools[pool]
        await self.adopt()
        for replica_id in replica_ids:
            if replica_id not in self._keepers:
                life = new_life(replica_id, pool, self._yard.clock.now_s())
                if wants_devices(declared):
                    life.devices = free_devices(declared, {device for other in self._keepers.values() for device in other.life.devices})
                keeper = Keeper(life, declared, self._yard)
                self._keepers[replica_id] = keeper
                keeper.begin()

    async def drain(self, replica_id: str, deadline_s: float) -> None:
        """Mark; the deadline is kept by whoever watches the streams."""
        del deadline_s
        if replica_id in self._keepers:
            self._keepers[replica_id].drain()

    async def cancel_drain(self, replica_id: str) -> None:
        """Serve again, unless it was already told to stop."""
        if replica_id in self._keepers:
            self._keepers[replica_id].cancel_drain()

    async def stop(self, replica_id: str) -> None:
        """SIGTERM, again after the pool's grace, SIGKILL after twice that."""
        if replica_id in self._keepers:
            self._keepers[replica_id].stop()

    async def stop_all(self) -> None:
        """Stop every replica and return when the last process is gone; bounded by twice the longest grace and a little."""
        for keeper in self._keepers.values():
            keeper.stop()
        await asyncio.gather(*(keeper.over() for keeper in self._keepers.values()))
        self._note()

    async def close(self) -> None:
        """Let go of the replicas, which run on; a later fleet adopts them."""
        for keeper in self._keepers.values():
            keeper.release()
        await asyncio.gather(*(keeper.over() for keeper in self._keepers.values()), return_exceptions=True)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _locked(self) -> int:
        """A descriptor that holds the lock for as long as it is open; the kernel drops it with the process."""
        self._yard.log_dir.mkdir(parents=True, exist_ok=True)
        path = self._yard.log_dir / LOCK_NAME
        lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(lock_fd, 32).decode(errors="replace").strip() or "unknown"
            os.close(lock_fd)
            raise FleetTaken(f"{path} is held by process {holder}: another controller owns these engines; stop it first") from error
        os.ftruncate(lock_fd, 0)
        os.write(lock_fd, f"{os.getpid()}\n".encode())
        return lock_fd

    def _noted(self) -> list[Life]:
        data = self._store.get(STORE_KEY)
        if data is None:
            return []
        try:
            return msgspec.msgpack.decode(data, type=list[Life])
        except msgspec.MsgspecError as error:
            self._tell("fleet_error", "", f"the notes on running engines can't be read ({error}); they are found by their marks and ended")
            return []

    def _adopt_one(self, life: Life) -> None:
        child = children.adopt(life.pid, life.born_s) if life.pid else None
        pool = self._pools.get(life.pool)
        if child is not None and pool is not None:
            life.adopted(self._yard.clock.now_s())
            keeper = Keeper(life, pool, self._yard)
            self._keepers[life.id] = keeper
            keeper.begin(child)
            self._tell("engine_adopted", life.pool, f"{life.id}: pid {life.pid} runs on as {life.state}")
            return
        if child is not None:
            child.kill()
            child.release()
        elif life.pid and not children.exists(life.pid):
            children.kill_group(life.pid)
        why = "its process is gone" if child is None else f"pool {life.pool!r} is no longer declared; killed"
        self._tell("engine_forgotten", life.pool, f"{life.id}: {why}")

    def _note(self) -> None:
        """Losing a note is told, and is no reason to lose a replica: its mark still finds it."""
        lives = [keeper.life for keeper in self._keepers.values() if keeper.life.state is not ReplicaState.STOPPED]
        try:
            self._store.put(STORE_KEY, msgspec.msgpack.encode(lives))
        except ForebayError as error:
            self._tell("fleet_error", "", f"the notes on running engines could not be stored: {error}")

    def _tell(self, kind: str, pool: str, message: str) -> None:
        clock = self._yard.clock
        self._yard.sink.emit(Event(kind, clock.now_s(), clock.wall_s(), pool, message))


def _nobody(pool: str, url: str) -> None:
    """Of the engines none asks for a key."""
    del pool, url
