"""A Store that may fail without taking the control loop with it: a full disk must not stop a fleet from being scaled.

What can't be kept is dropped, and said once until it works again. Reads that fail are as if nothing was there.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from forebay.domain.errors import ForebayError
from forebay.domain.events import Event
from forebay.ports import DecisionRecord, Store

T = TypeVar("T")


class SturdyStore:
    """`ports.Store` over another one; ``say`` is told when it begins to fail and when it works again."""

    def __init__(self, store: Store, say: Callable[[str, str], None]) -> None:
        self._store = store
        self._say = say
        self.failing = False
        self.dropped_total = 0

    def append_decision(self, record: DecisionRecord) -> None:
        """Keep ``record``, or drop it."""
        self._try(lambda: self._store.append_decision(record), None)

    def decisions(self, pool: str, until_wall_s: float | None = None, limit: int = 1) -> list[DecisionRecord]:
        """As the store has them; empty where it can't be read."""
        return self._try(lambda: self._store.decisions(pool, until_wall_s, limit), [])

    def append_event(self, event: Event) -> None:
        """Keep ``event``, or drop it."""
        self._try(lambda: self._store.append_event(event), None)

    def events(self, since_wall_s: float = 0.0, kind: str | None = None, limit: int = 1000) -> list[Event]:
        """As the store has them; empty where it can't be read."""
        return self._try(lambda: self._store.events(since_wall_s, kind, limit), [])

    def put(self, key: str, value: bytes) -> None:
        """Keep ``value``, or drop it."""
        self._try(lambda: self._store.put(key, value), None)

    def get(self, key: str) -> bytes | None:
        """The value, or None."""
        return self._try(lambda: self._store.get(key), None)

    def append_ramp(self, pool: str, day: str, ramp_per_s2: float) -> None:
        """Keep the ramp, or drop it."""
        self._try(lambda: self._store.append_ramp(pool, day, ramp_per_s2), None)

    def ramps(self, pool: str, limit: int = 28) -> Sequence[float]:
        """As the store has them; empty where it can't be read."""
        return self._try(lambda: self._store.ramps(pool, limit), ())

    def close(self) -> None:
        """Close the store beneath."""
        self._store.close()

    def _try(self, call: Callable[[], T], otherwise: T) -> T:
        try:
            result = call()
        except ForebayError as error:
            self.dropped_total += 1
            if not self.failing:
                self.failing = True
                self._say("store_failed", f"history is not kept, scaling goes on: {error}")
            return otherwise
        if self.failing:
            self.failing = False
            self._say("store_works", f"history is kept again; {self.dropped_total} reads and writes were lost so far")
        return result
