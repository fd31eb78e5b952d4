"""A fleet carries out idempotent wishes about replicas and says what it sees. It never decides."""

from collections.abc import Sequence
from typing import Protocol

from forebay.domain.replica import ReplicaView


class Fleet(Protocol):
    """A per-replica actuator: the caller names the replicas, so it also picks the victim."""

    async def observe(self) -> tuple[ReplicaView, ...]:
        """Every replica of every pool that is not yet stopped and forgotten, in a stable order."""
        ...

    async def ensure(self, pool: str, replica_ids: Sequence[str]) -> None:
        """Start those of ``replica_ids`` that are unknown. Replicas that run and are not named are left alone."""
        ...

    async def drain(self, replica_id: str, deadline_s: float) -> None:
        """Mark as draining; nothing is signalled yet. ``deadline_s`` is the world time at which it may be cut."""
        ...

    async def cancel_drain(self, replica_id: str) -> None:
        """A draining replica serves again; no effect on any other state."""
        ...

    async def stop(self, replica_id: str) -> None:
        """End the replica (politely, then by force). Idempotent; returns before it has ended."""
        ...
