"""Which replicas leave: those that serve nothing first, then the one with the fewest live tokens.

Replicas that aren't ready cost nothing to lose. Among ready ones the fewest live tokens means the shortest drain and
the least work at risk when the deadline comes; between equals the newest goes, since the oldest has the warmest cache.
"""

from collections.abc import Iterable, Sequence

from forebay.domain.replica import PENDING_STATES, ReplicaState
from forebay.domain.scaling import ReplicaObservation


def surplus(desired: int, replicas: Sequence[ReplicaObservation]) -> int:
    """How many replicas are more than ``desired``; draining ones have left already.

    An overdue start is surplus only once enough others are ready: it may yet come up before its replacement does.
    """
    ready = sum(replica.state is ReplicaState.READY for replica in replicas)
    failed = sum(replica.state is ReplicaState.FAILED for replica in replicas)
    pending = sum(replica.state in PENDING_STATES and not replica.overdue for replica in replicas)
    overdue = sum(replica.state in PENDING_STATES and replica.overdue for replica in replicas)
    stuck = overdue if ready >= desired else 0
    return max(0, ready + failed + pending - desired) + stuck


def pick(replicas: Iterable[ReplicaObservation], count: int) -> tuple[str, ...]:
    """Ids of ``count`` victims, first to go first: failed, overdue, pending (newest first), then ready by fewest live tokens."""
    candidates = sorted((replica for replica in replicas if _rank(replica) is not None), key=_order)
    return tuple(replica.id for replica in candidates[: max(0, count)])


def newest(replicas: Iterable[ReplicaObservation], count: int) -> tuple[str, ...]:
    """Ids of ``count`` victims as a ReplicaSet chooses where nobody steers it: what isn't ready first, then what became ready last.

    Source: Kubernetes' controller_utils.go, ActivePodsWithRanks.
    """
    candidates = [replica for replica in replicas if _rank(replica) is not None]
    candidates.sort(key=lambda replica: (replica.state is ReplicaState.READY, -replica.since_s, replica.id))
    return tuple(replica.id for replica in candidates[: max(0, count)])


def restorable(replicas: Iterable[ReplicaObservation], count: int) -> tuple[str, ...]:
    """Ids of up to ``count`` draining replicas to take back when load returns: most live tokens first, as they free latest."""
    draining = [replica for replica in replicas if replica.state is ReplicaState.DRAINING]
    draining.sort(key=lambda replica: (-replica.live_tokens, replica.id))
    return tuple(replica.id for replica in draining[: max(0, count)])


def _rank(replica: ReplicaObservation) -> int | None:
    if replica.state is ReplicaState.FAILED:
        return 0
    if replica.state in PENDING_STATES:
        return 1 if replica.overdue else 2
    return 3 if replica.state is ReplicaState.READY else None


def _order(replica: ReplicaObservation) -> tuple[int, float, float, str]:
    rank = _rank(replica)
    tokens = replica.live_tokens if rank == 3 else 0.0
    return (rank if rank is not None else 4, tokens, -replica.requested_s, replica.id)
