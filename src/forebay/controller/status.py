"""What people and scripts are shown of the controller: read models, made of values, with nothing left to compute."""

import msgspec

from forebay.domain.scaling import Alert, Decision, Term


class ReplicaStatus(msgspec.Struct, frozen=True):
    """One replica in a status."""

    id: str
    state: str
    for_s: float
    url: str
    streams: int | None
    kv_usage: float | None
    cold_start_s: float | None
    restarts: int
    problem: str
    gateway: str = ""
    """Where there may be several: the one that it is leased to."""
    ejected: bool = False
    """Its gateway gives it no requests, whatever ``state`` says: that is of who runs it."""


class PoolStatus(msgspec.Struct, frozen=True):
    """One pool in a status. Unknown readings are null, with the reason in ``unknown``."""

    pool: str
    model: str
    desired: int
    replicas: dict[str, int]
    """Replicas by state."""
    binding: str
    because: str
    posture: str
    waiting: float | None
    arrival_per_min: float | None
    ttft_attainment: float | None
    cold_start_s: float | None
    gpu_hours: float
    cost_usd: float | None
    """Since the store began; None where no price is known."""
    unknown: dict[str, str]
    alerts: tuple[Alert, ...]
    detail: tuple[ReplicaStatus, ...]
    waiting_in_engines: float | None = None
    """Beside ``waiting``, which is in lanes: what ready engines say; null where none does."""
    waiting_preemptible: int | None = None
    """In lanes too, beside ``waiting``."""
    unserved: dict[str, int] | None = None
    """Requests of the last 5 min by what became of them (``arrived``, ``shed``, ``failed``, ``truncated``), preemptible tiers left out."""
    needed: int | None = None
    """Where a cap binds, and so of attached engines: what ``desired`` would be without it."""
    kv_differs: tuple[str, ...] = ()
    """Replicas that hold other KV than the profile says, in words."""


class Status(msgspec.Struct, frozen=True):
    """A fleet at one instant."""

    at: str
    """ISO time, UTC."""
    term: int
    roster_version: int
    gateways: dict[str, str]
    """Gateway name → ``ok`` | ``silent``."""
    pools: tuple[PoolStatus, ...]
    problems: tuple[str, ...] = ()
    """What is wrong with the controller itself, in words for people."""


class Explanation(msgspec.Struct, frozen=True):
    """Why a pool has the replicas it has."""

    pool: str
    at: str
    desired: int
    reason: str
    posture: str
    terms: tuple[Term, ...]
    alerts: tuple[Alert, ...]
    posture_because: str = ""


def explanation(decision: Decision, at: str) -> Explanation:
    """``decision`` for people, taken at the ISO time ``at``."""
    return Explanation(
        pool=decision.pool,
        at=at,
        desired=decision.replicas,
        reason=decision.reason,
        posture=decision.posture,
        terms=decision.terms,
        alerts=decision.alerts,
        posture_because=decision.posture_because,
    )
