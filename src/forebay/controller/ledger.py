"""The ledger's desk: takes what gateways counted, each entry exactly once, and tells them how much of it is safe."""

from collections.abc import Callable

from forebay.domain.usage import UsageBatch, UsageMark
from forebay.ports import Clock, Store


class Ledger:
    """Over the Store; ``say`` is told (kind, words) of what can't be right."""

    def __init__(self, store: Store, clock: Clock, say: Callable[[str, str], None]) -> None:
        self._store = store
        self._clock = clock
        self._say = say

    def take(self, batch: UsageBatch) -> UsageMark | None:
        """Add ``batch`` up; what its gateway is told then. None: nothing, so that it keeps the batch and tells it again."""
        taken = self._store.append_usage(batch, self._clock.wall_s())
        if taken is None:
            return None
        if taken.missing:
            self._say(
                "usage_missing",
                f"{taken.missing} requests of gateway {batch.gateway} were taken by an earlier ledger, and are not in this one",
            )
        return UsageMark(batch.journal, taken.upto)
