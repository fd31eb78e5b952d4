"""What one team has the gateway hold of its requests' bodies, whichever of its keys they come with."""


class Holding:
    """Of one team, on one server's budget."""

    __slots__ = ("held_bytes",)

    def __init__(self) -> None:
        self.held_bytes = 0

    def crowds(self, own_bytes: int, more_bytes: int, free_bytes: int) -> bool:
        """Whether the team would hold more than is left for others after ``more_bytes`` of a body of which it holds ``own_bytes``
        already, ``free_bytes`` of the budget being free until then; never by one body alone."""
        return self.held_bytes > own_bytes and self.held_bytes + 2 * more_bytes > free_bytes
