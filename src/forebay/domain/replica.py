"""A replica's life is one table; every shell that owns replicas moves them along it and nowhere else."""

from enum import StrEnum
from urllib.parse import urlsplit

import msgspec


class ReplicaState(StrEnum):
    """Where a replica is in its life."""

    REQUESTED = "requested"
    PROVISIONING = "provisioning"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


S = ReplicaState

TRANSITIONS: dict[ReplicaState, frozenset[ReplicaState]] = {
    S.REQUESTED: frozenset({S.PROVISIONING, S.LOADING, S.READY, S.STOPPED, S.FAILED}),
    S.PROVISIONING: frozenset({S.LOADING, S.READY, S.STOPPED, S.FAILED}),
    S.LOADING: frozenset({S.READY, S.STOPPED, S.FAILED}),
    S.READY: frozenset({S.DRAINING, S.STOPPED, S.FAILED}),
    S.DRAINING: frozenset({S.READY, S.STOPPED, S.FAILED}),
    S.STOPPED: frozenset(),
    S.FAILED: frozenset({S.REQUESTED, S.STOPPED}),
}
"""FAILED → REQUESTED is a restart in place after a crash, with backoff."""

PENDING_STATES = frozenset({S.REQUESTED, S.PROVISIONING, S.LOADING})
LIVE_STATES = frozenset({S.REQUESTED, S.PROVISIONING, S.LOADING, S.READY, S.DRAINING, S.FAILED})


def moved(source: ReplicaState, target: ReplicaState) -> ReplicaState:
    """``target``, if the table allows it from ``source``; raises ValueError otherwise."""
    if target not in TRANSITIONS[source]:
        raise ValueError(f"a replica can't go from {source} to {target}")
    return target


def attached_id(pool: str, url: str) -> str:
    """The id of an engine that somebody else runs at ``url``: the same after every restart, and whoever lists the pool's replicas."""
    return f"{pool}@{urlsplit(url).netloc}"


def attaching_pool(replica_id: str) -> str:
    """The pool whose engine somebody else runs; empty for the id of one that Forebay started."""
    return replica_id.rpartition("@")[0]


class StageTime(msgspec.Struct, frozen=True):
    """How long one stage of a start took (world seconds)."""

    stage: str
    seconds: float


class ReplicaView(msgspec.Struct, frozen=True):
    """One replica as its fleet sees it."""

    id: str
    pool: str
    state: ReplicaState
    since_s: float
    """World time at which ``state`` was entered."""
    requested_s: float
    """World time at which it was first asked for; GPU-seconds count from here."""
    url: str = ""
    stages: tuple[StageTime, ...] = ()
    """Finished start-up stages; their sum is the measured cold start."""
    restarts: int = 0
    problem: str = ""
    """Why it failed, in words for people; empty if it has not."""
    asks_key: bool = False
    """It failed since it asks for a key that it isn't shown."""

    @property
    def cold_start_s(self) -> float | None:
        """Measured seconds from request to ready, or None while it isn't known."""
        if self.state not in {S.READY, S.DRAINING} or not self.stages:
            return None
        return sum(stage.seconds for stage in self.stages)
