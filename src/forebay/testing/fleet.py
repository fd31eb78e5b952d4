"""A fleet with nothing behind it: replicas start in virtual time, fail by a handed-in chance, and end when told.

It keeps `ports.Fleet`'s contract to the letter, so a controller that works on it is not surprised by real processes: stops
take time, a stopped replica is reported once, and a crashed one comes back in place.
"""

import random
from collections.abc import Callable, Sequence

import msgspec

from forebay.domain.replica import ReplicaState, ReplicaView, StageTime, moved
from forebay.ports.clock import Clock, TimerHandle

S = ReplicaState
_STATE_OF_STAGE = {"provision": S.PROVISIONING}


class FakeStart(msgspec.Struct, frozen=True):
    """How replicas of a pool start and end; world seconds."""

    stages: tuple[StageTime, ...] = (StageTime("provision", 240.0), StageTime("weights", 47.0), StageTime("init", 45.0))
    failures: float = 0.0
    """Probability that an attempt to start fails at its last stage."""
    restart_s: float = 10.0
    stop_s: float = 3.0


class _Replica:
    def __init__(self, view: ReplicaView, start: FakeStart) -> None:
        self.view = view
        self.start = start
        self.stopping = False
        self.timer: TimerHandle | None = None


class FakeFleet:
    """`ports.Fleet`; make it inside a running world. ``url_of`` names the engine's address by replica id."""

    def __init__(
        self,
        clock: Clock,
        chance: random.Random,
        starts: dict[str, FakeStart],
        url_of: Callable[[str], str] = lambda replica_id: f"http://{replica_id}:8000",
    ) -> None:
        self.wishes: list[tuple[str, str]] = []
        """Every wish as it came: (verb, replica id)."""
        self._clock = clock
        self._chance = chance
        self._starts = starts
        self._url_of = url_of
        self._replicas: dict[str, _Replica] = {}

    async def observe(self) -> tuple[ReplicaView, ...]:
        """In the order in which they were asked for; a stopped one is reported once."""
        views = tuple(replica.view for replica in self._replicas.values())
        self._replicas = {replica.view.id: replica for replica in self._replicas.values() if replica.view.state is not S.STOPPED}
        return views

    async def ensure(self, pool: str, replica_ids: Sequence[str]) -> None:
        """Raises KeyError for an unknown pool."""
        start = self._starts[pool]
        for replica_id in replica_ids:
            if replica_id not in self._replicas:
                self.wishes.append(("start", replica_id))
                now_s = self._clock.now_s()
                replica = _Replica(ReplicaView(replica_id, pool, S.REQUESTED, now_s, now_s), start)
                self._replicas[replica_id] = replica
                self._stage(replica, 0)

    async def drain(self, replica_id: str, deadline_s: float) -> None:
        """Mark."""
        del deadline_s
        replica = self._replicas.get(replica_id)
        if replica is not None and replica.view.state is S.READY:
            self.wishes.append(("drain", replica_id))
            self._move(replica, S.DRAINING)

    async def cancel_drain(self, replica_id: str) -> None:
        """Unmark, unless it was told to stop."""
        replica = self._replicas.get(replica_id)
        if replica is not None and replica.view.state is S.DRAINING and not replica.stopping:
            self.wishes.append(("cancel", replica_id))
            self._move(replica, S.READY)

    async def stop(self, replica_id: str) -> None:
        """It ends ``stop_s`` later; one that has no process ends at once."""
        replica = self._replicas.get(replica_id)
        if replica is None or replica.stopping or replica.view.state is S.STOPPED:
            return
        self.wishes.append(("stop", replica_id))
        replica.stopping = True
        if replica.view.state is S.READY:
            self._move(replica, S.DRAINING)
        self._after(replica, 0.0 if replica.view.state is S.FAILED else replica.start.stop_s, self._stopped)

    def crash(self, replica_id: str, problem: str = "died of signal 11") -> None:
        """The engine dies by itself: a draining one is stopped, any other fails and is started again."""
        replica = self._replicas[replica_id]
        if replica.stopping or replica.view.state is S.DRAINING:
            self._stopped(replica)
        elif replica.view.state is not S.FAILED:
            self._move(replica, S.FAILED, problem=problem, stages=())
            self._after(replica, replica.start.restart_s, self._again)

    def _stage(self, replica: _Replica, index: int) -> None:
        stages = replica.start.stages
        if index == len(stages):
            self._move(replica, S.READY, stages=stages, url=self._url_of(replica.view.id), problem="")
            return
        state = _STATE_OF_STAGE.get(stages[index].stage, S.LOADING)
        self._move(replica, state, stages=stages[:index])
        self._after(replica, stages[index].seconds, lambda one: self._stage_over(one, index))

    def _stage_over(self, replica: _Replica, index: int) -> None:
        last = index == len(replica.start.stages) - 1
        if last and self._chance.random() < replica.start.failures:
            self.crash(replica.view.id, "it did not start: out of memory")
        else:
            self._stage(replica, index + 1)

    def _again(self, replica: _Replica) -> None:
        self._move(replica, S.REQUESTED, restarts=replica.view.restarts + 1)
        self._stage(replica, 0)

    def _stopped(self, replica: _Replica) -> None:
        self._cancel(replica)
        self._move(replica, S.STOPPED)

    def _move(self, replica: _Replica, state: ReplicaState, **changes: object) -> None:
        view = replica.view
        if state is not view.state:
            changes |= {"state": moved(view.state, state), "since_s": self._clock.now_s()}
        replica.view = msgspec.structs.replace(view, **changes)

    def _after(self, replica: _Replica, seconds: float, then: Callable[[_Replica], None]) -> None:
        self._cancel(replica)
        replica.timer = self._clock.call_at(self._clock.now_s() + seconds, lambda: then(replica))

    def _cancel(self, replica: _Replica) -> None:
        if replica.timer is not None:
            replica.timer.cancel()
