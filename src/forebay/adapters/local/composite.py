"""One fleet made of parts, each owning its pools: what a controller is given where some pools start engines and some attach."""

from collections.abc import Sequence
from typing import Protocol

from forebay.adapters.local.contexts import Contexts
from forebay.domain.replica import ReplicaView
from forebay.ports.fleet import Fleet


class FleetPart(Fleet, Protocol):
    """A fleet that says what is its own."""

    @property
    def pools(self) -> frozenset[str]:
        """Names of its pools."""
        ...

    def knows(self, replica_id: str) -> bool:
        """Whether the replica is its own."""
        ...

    async def adopt(self) -> None:
        """Take up what is there; called once, first."""
        ...

    async def stop_all(self) -> None:
        """Stop what it started; returns when that has ended."""
        ...

    async def close(self) -> None:
        """Let go."""
        ...


class CompositeFleet:
    """Passes each wish to the part whose pool or replica it is; wishes for unknown replicas do nothing."""

    def __init__(self, parts: Sequence[FleetPart], contexts: Contexts | None = None) -> None:
        """``contexts`` is shown every replica that is observed."""
        self._parts = tuple(parts)
        self._contexts = contexts

    @property
    def pools(self) -> frozenset[str]:
        """Names of all pools."""
        return frozenset().union(*(part.pools for part in self._parts))

    def knows(self, replica_id: str) -> bool:
        """Whether any part knows it."""
        return any(part.knows(replica_id) for part in self._parts)

    async def adopt(self) -> None:
        """Each part, in order."""
        for part in self._parts:
            await part.adopt()

    async def observe(self) -> tuple[ReplicaView, ...]:
        """The parts' replicas, in the order of the parts."""
        views = tuple([view for part in self._parts for view in await part.observe()])
        if self._contexts is not None:
            self._contexts.see(views)
        return views

    async def ensure(self, pool: str, replica_ids: Sequence[str]) -> None:
        """Raises KeyError for a pool that no part owns."""
        for part in self._parts:
            if pool in part.pools:
                return await part.ensure(pool, replica_ids)
        raise KeyError(pool)

    async def drain(self, replica_id: str, deadline_s: float) -> None:
        """See `ports.Fleet`."""
        for part in self._owners(replica_id):
            await part.drain(replica_id, deadline_s)

    async def cancel_drain(self, replica_id: str) -> None:
        """See `ports.Fleet`."""
        for part in self._owners(replica_id):
            await part.cancel_drain(replica_id)

    async def stop(self, replica_id: str) -> None:
        """See `ports.Fleet`."""
        for part in self._owners(replica_id):
            await part.stop(replica_id)

    async def stop_all(self) -> None:
        """Each part, in order."""
        for part in self._parts:
            await part.stop_all()

    async def close(self) -> None:
        """Each part, in order."""
        if self._contexts is not None:
            await self._contexts.close()
        for part in self._parts:
            await part.close()

    def _owners(self, replica_id: str) -> list[FleetPart]:
        return [part for part in self._parts if part.knows(replica_id)]
