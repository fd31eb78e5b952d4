"""One replica's life as the fleet keeps it: state, stages, restarts. Synchronous, so that every path is tested without processes.

The same value is what the store keeps for a later controller, so nothing that is needed for re-adoption lives elsewhere.
A draining replica that dies is not started again: nobody wants it any more.
"""

import msgspec

from forebay.adapters.local.health import Health, HealthKind
from forebay.domain.replica import PENDING_STATES, ReplicaState, ReplicaView, StageTime, moved

STAGES_MAX = 16
"""Stages kept of one start: an engine that flaps between stages must not grow its record."""
STAGE_START = "start"
STAGE_METRICS = "metrics"
_PROVISION = "provision"


class Life(msgspec.Struct):
    """All times are world seconds. ``pid`` 0: no process. ``born_s``: the process's creation, Unix time."""

    id: str
    pool: str
    requested_s: float
    since_s: float
    attempt_s: float
    """When the present attempt to start began; stages and the ready timeout count from here."""
    state: ReplicaState = ReplicaState.REQUESTED
    url: str = ""
    pid: int = 0
    born_s: float = 0.0
    stages: tuple[StageTime, ...] = ()
    stage: str = STAGE_START
    stage_since_s: float = 0.0
    restarts: int = 0
    failures_in_a_row: int = 0
    """Ends since it was last ready for long; the backoff grows with it."""
    sick_since_s: float | None = None
    problem: str = ""
    stopping: bool = False
    devices: tuple[int, ...] = ()
    """Numbers of GPUs (or cores) that are this replica's alone; empty if its pool does not ask for any."""

    def view(self) -> ReplicaView:
        """What the rest of the house sees."""
        return ReplicaView(
            self.id, self.pool, self.state, self.since_s, self.requested_s, self.url, self.stages, self.restarts, self.problem
        )

    @property
    def pending(self) -> bool:
        """On its way to ready."""
        return self.state in PENDING_STATES

    def move(self, state: ReplicaState, now_s: float) -> None:
        """Enter ``state`` as the table allows."""
        if state is not self.state:
            self.state = moved(self.state, state)
            self.since_s = now_s

    def spawned(self, pid: int, born_s: float, url: str, reports_stages: bool, now_s: float) -> None:
        """A process runs. One that does not report its stages is loading from the start."""
        self.pid, self.born_s, self.url = pid, born_s, url
        self.attempt_s = self.stage_since_s = now_s
        self.stages, self.stage, self.sick_since_s = (), STAGE_START, None
        if not reports_stages:
            self.move(ReplicaState.LOADING, now_s)

    def saw(self, health: Health, now_s: float) -> bool:
        """Takes one probe's result; True if the state changed. One whose end is wished never gets ready."""
        before = self.state
        if self.stopping:
            return False
        if self.pending:
            self._saw_pending(health, now_s)
        elif health.kind in {HealthKind.SERVING, HealthKind.HEALTHY}:
            self.sick_since_s = None
        elif self.sick_since_s is None:
            self.sick_since_s = now_s
        return self.state is not before

    def _saw_pending(self, health: Health, now_s: float) -> None:
        if health.kind is HealthKind.SERVING:
            self._stage("", now_s)
            self.problem = ""
            self.move(ReplicaState.READY, now_s)
        elif health.kind is HealthKind.HEALTHY:
            self._stage(STAGE_METRICS, now_s)
            self.problem = health.detail
        elif health.kind is HealthKind.STAGE:
            self._stage(health.detail, now_s)
            wanted = ReplicaState.PROVISIONING if health.detail == _PROVISION else ReplicaState.LOADING
            if not (wanted is ReplicaState.PROVISIONING and self.state is ReplicaState.LOADING):
                self.move(wanted, now_s)

    def _stage(self, name: str, now_s: float) -> None:
        """Close the open stage where a new one begins."""
        if name == self.stage:
            return
        if len(self.stages) < STAGES_MAX:
            self.stages = (*self.stages, StageTime(self.stage, now_s - self.stage_since_s))
        self.stage, self.stage_since_s = name, now_s

    def ended(self, why: str, stable_s: float, now_s: float) -> None:
        """The process is gone: stopped if that was wanted (or it was leaving anyway), else failed."""
        was_stable = self.state is ReplicaState.READY and now_s - self.since_s >= stable_s
        leaving = self.stopping or self.state is ReplicaState.DRAINING
        self.pid = 0
        self.problem = "" if self.stopping else why
        if leaving:
            self.move(ReplicaState.STOPPED, now_s)
            return
        self.failures_in_a_row = 1 if was_stable else self.failures_in_a_row + 1
        self.move(ReplicaState.FAILED, now_s)

    def adopted(self, now_s: float) -> None:
        """Times noted by a controller whose clock was ahead of ours (a world at another speed) are now at the latest."""
        self.requested_s, self.since_s = min(self.requested_s, now_s), min(self.since_s, now_s)
        self.attempt_s, self.stage_since_s = min(self.attempt_s, now_s), min(self.stage_since_s, now_s)
        self.sick_since_s = None

    def restarting(self, now_s: float) -> None:
        """Another attempt, in place."""
        self.restarts += 1
        self.move(ReplicaState.REQUESTED, now_s)

    def drain(self, now_s: float) -> bool:
        """True if it was ready and now drains."""
        if self.state is not ReplicaState.READY:
            return False
        self.move(ReplicaState.DRAINING, now_s)
        return True

    def cancel_drain(self, now_s: float) -> bool:
        """True if it drained, was not told to stop, and serves again."""
        if self.state is not ReplicaState.DRAINING or self.stopping:
            return False
        self.move(ReplicaState.READY, now_s)
        return True

    def stop(self, now_s: float) -> bool:
        """Wish its end; True the first time. A ready replica drains from here on; a pending one keeps its state until it has ended."""
        if self.stopping or self.state is ReplicaState.STOPPED:
            return False
        self.stopping = True
        self.drain(now_s)
        if self.pid == 0:
            self.move(ReplicaState.STOPPED, now_s)
        return True


def new_life(replica_id: str, pool: str, now_s: float) -> Life:
    """A replica that was just asked for."""
    return Life(id=replica_id, pool=pool, requested_s=now_s, since_s=now_s, attempt_s=now_s, stage_since_s=now_s)


def backoff_s(failures_in_a_row: int, first_s: float, most_s: float, draw: float) -> float:
    """Seconds before the next attempt: doubling from ``first_s`` to ``most_s``, and ``draw`` (0..1) takes off up to half.

    Replicas that fail together (a full disk, a bad image) must not come back together.
    """
    doublings = min(failures_in_a_row - 1, 30)
    return float(min(most_s, first_s * 2.0 ** max(0, doublings)) * (1.0 - 0.5 * draw))
