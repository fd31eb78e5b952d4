"""Which replica keeps which answer: ``/v1/responses`` is stateful, and engines keep what they answered to themselves.

Bounded, the oldest forgotten first. What is not known here another gateway may know, which is asked (`conversations`).
"""

from collections.abc import Iterable, Iterator

import msgspec

HELD_MAX = 100_000
ID_BYTES_MAX = 128


class Holder(msgspec.Struct, frozen=True, gc=False):
    """Who keeps it, and whose it is."""

    url: str
    team: str
    tokens: int = 0
    """Of the conversation up to its end, as its engine told; 0: it has not."""


class Holders:
    """Answers kept by engines, by id."""

    __slots__ = ("_held", "_most", "changes")

    def __init__(self, most: int = HELD_MAX) -> None:
        self._held: dict[str, Holder] = {}
        self._most = most
        self.changes = 0
        """Counts what was learned and forgotten."""

    def learn(self, response_id: str, holder: Holder) -> None:
        """``response_id`` was answered by it. The first to answer keeps it."""
        if response_id and len(response_id) <= ID_BYTES_MAX and response_id not in self._held:
            if len(self._held) >= self._most:
                del self._held[next(iter(self._held))]
            self._held[response_id] = holder
            self.changes += 1

    def told(self, response_id: str, tokens: int) -> None:
        """Its conversation is so many tokens by now."""
        holder = self._held.get(response_id)
        if holder is not None and holder.tokens != tokens:
            self._held[response_id] = msgspec.structs.replace(holder, tokens=tokens)
            self.changes += 1

    def restore(self, held: Iterable[tuple[str, Holder]]) -> None:
        """As another process of this gateway knew it, the oldest first. What was learned since stays the newer."""
        since, self._held = self._held, {}
        for response_id, holder in held:
            self.learn(response_id, holder)
        for response_id, holder in since.items():
            self._held.pop(response_id, None)
            self.learn(response_id, holder)

    def find(self, response_id: str) -> Holder | None:
        """Who keeps it, if that is known."""
        return self._held.get(response_id)

    def forget(self, response_id: str) -> None:
        """It was deleted."""
        if self._held.pop(response_id, None) is not None:
            self.changes += 1

    def __iter__(self) -> Iterator[tuple[str, Holder]]:
        """All that is known, the oldest first."""
        return iter(self._held.items())

    def __len__(self) -> int:
        return len(self._held)
