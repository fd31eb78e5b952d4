"""How many replicas to start now. Weights share bandwidth, so starts are few at a time, and a stuck start keeps its slot.

A start that is overdue is replaced (it no longer counts as supply) but still takes one of ``starts_max`` slots: a pool
whose hardware is exhausted is therefore asked for at most ``starts_max`` replicas, never for one more each minute.
"""

from collections.abc import Iterable

from forebay.domain.replica import PENDING_STATES, ReplicaState
from forebay.domain.scaling import ReplicaObservation


def to_start(desired: int, replicas: Iterable[ReplicaObservation], starts_max: int, replicas_max: int | None = None) -> int:
    """Replicas to start now so that ``desired`` will serve.

    A ``failed`` replica keeps its place: its fleet restarts it. A ``stopped`` one has none, so a replica that crashed for
    good is replaced. ``replicas_max`` bounds everything that holds hardware, draining and stuck replicas included.
    """
    ready = failed = pending = overdue = draining = 0
    for replica in replicas:
        if replica.state in PENDING_STATES:
            overdue += replica.overdue
            pending += not replica.overdue
        else:
            ready += replica.state is ReplicaState.READY
            failed += replica.state is ReplicaState.FAILED
            draining += replica.state is ReplicaState.DRAINING
    wanted = desired - (ready + failed + pending)
    slots = starts_max - (pending + overdue)
    room = wanted if replicas_max is None else replicas_max - (ready + failed + pending + overdue + draining)
    return max(0, min(wanted, slots, room))
