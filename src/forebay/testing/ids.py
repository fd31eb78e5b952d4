"""Ids from a counter: the same world gives the same names."""


class CountingIds:
    """``prefix-1``, ``prefix-2`` … each prefix with a count of its own."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def fresh(self, prefix: str) -> str:
        """The next id with ``prefix``."""
        self._counts[prefix] = self._counts.get(prefix, 0) + 1
        return f"{prefix}-{self._counts[prefix]}"
