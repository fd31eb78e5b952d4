"""Which replica keeps which answer: ``/v1/responses`` is stateful, and engines keep what they answered to themselves.

Bounded, the oldest forgotten first, and not shared: an id that isn't known here may still be one, so its replica is
looked for among all.
"""

import msgspec

HELD_MAX = 100_000
ID_BYTES_MAX = 128


class Holder(msgspec.Struct, frozen=True):
    """Who keeps it, and whose it is."""

    url: str
    team: str


class Holders:
    """Answers kept by engines, by id."""

    __slots__ = ("_held", "_most")

    def __init__(self, most: int = HELD_MAX) -> None:
        self._held: dict[str, Holder] = {}
        self._most = most

    def learn(self, response_id: str, holder: Holder) -> None:
        """``response_id`` was answered by it. The first to answer keeps it."""
        if response_id and len(response_id) <= ID_BYTES_MAX and response_id not in self._held:
            if len(self._held) >= self._most:
                del self._held[next(iter(self._held))]
            self._held[response_id] = holder

    def find(self, response_id: str) -> Holder | None:
        """Who keeps it, if that is known."""
        return self._held.get(response_id)

    def forget(self, response_id: str) -> None:
        """It was deleted."""
        self._held.pop(response_id, None)

    def __len__(self) -> int:
        return len(self._held)
