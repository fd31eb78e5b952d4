"""What a gateway keeps for its next process, in memory: as on a disk that never fails."""


class MemoryShelf:
    """`gateway.keeping.Shelf` that outlives the gateways of a test."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = content

    async def load(self) -> bytes:
        """See `gateway.keeping.Shelf`."""
        return self.content

    async def save(self, content: bytes) -> None:
        """See `gateway.keeping.Shelf`."""
        self.content = content

    async def drop(self) -> None:
        """See `gateway.keeping.Shelf`."""
        self.content = b""
