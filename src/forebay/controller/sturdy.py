"""A Store that may fail without taking the control loop with it: a full disk must not stop a fleet from being scaled.

What can't be kept is dropped, and said once until it works again. Reads that fail are as if nothing was there.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from forebay.domain.errors import ForebayError
from forebay.domain.events import Event
from forebay.domain.roster import Finished
from forebay.domain.usage import UsageBatch, UsageRow, UsageTaken
from forebay.ports import DecisionRecord, DemandBucket, Store

WRITES_WELL = 5
"""So many writes in a row show that it takes them again: on a full disk one that changes little or nothing passes now and then."""
T = TypeVar("T")


class SturdyStore:
    """`ports.Store` over another one; ``say`` is told when it begins to fail and when it works again."""

    def __init__(self, store: Store, say: Callable[[str, str], None]) -> None:
        self._store = store
        self._say = say
        self.problem = ""
        """Why history is not kept at present, in words for people; empty while it is."""
        self.dropped_total = 0
        self._refuses_writes = False
        self._well = 0
        """Writes since the last that failed."""

    def append_decision(self, record: DecisionRecord) -> None:
        """Keep ``record``, or drop it."""
        self._write(lambda: self._store.append_decision(record))

    def decisions(self, pool: str, until_wall_s: float | None = None, limit: int = 1) -> list[DecisionRecord]:
        """As the store has them; empty where it can't be read."""
        return self._read(lambda: self._store.decisions(pool, until_wall_s, limit), [])

    def append_event(self, event: Event) -> None:
        """Keep ``event``, or drop it."""
        self._write(lambda: self._store.append_event(event))

    def events(self, since_wall_s: float = 0.0, kind: str | None = None, limit: int = 1000) -> list[Event]:
        """As the store has them; empty where it can't be read."""
        return self._read(lambda: self._store.events(since_wall_s, kind, limit), [])

    def put(self, key: str, value: bytes) -> None:
        """Keep ``value``, or drop it."""
        self._write(lambda: self._store.put(key, value))

    def get(self, key: str) -> bytes | None:
        """The value, or None."""
        return self._read(lambda: self._store.get(key), None)

    def append_ramp(self, pool: str, day: str, ramp_per_s2: float) -> None:
        """Keep the ramp, or drop it."""
        self._write(lambda: self._store.append_ramp(pool, day, ramp_per_s2))

    def ramps(self, pool: str, limit: int = 28) -> Sequence[float]:
        """As the store has them; empty where it can't be read."""
        return self._read(lambda: self._store.ramps(pool, limit), ())

    def append_demand(self, pool: str, bucket: DemandBucket) -> None:
        """Keep the bucket, or drop it."""
        self._write(lambda: self._store.append_demand(pool, bucket))

    def demand(self, pool: str, since_wall_s: float = 0.0, until_wall_s: float | None = None) -> Sequence[DemandBucket]:
        """As the store has them; empty where it can't be read."""
        return self._read(lambda: self._store.demand(pool, since_wall_s, until_wall_s), ())

    def append_usage(self, batch: UsageBatch, wall_s: float) -> UsageTaken | None:
        """What became of it; None where it could not be kept: its gateway keeps it, and tells it again."""
        taken: list[UsageTaken | None] = []
        self._write(lambda: taken.append(self._store.append_usage(batch, wall_s)))
        return taken[0] if taken else None

    def usage(self, since_day: int = 0, until_day: int | None = None) -> Sequence[UsageRow]:
        """As the store has them; empty where it can't be read."""
        return self._read(lambda: self._store.usage(since_day, until_day), ())

    def append_finished(self, requests: Sequence[Finished]) -> None:
        """Keep the records, or drop them."""
        self._write(lambda: self._store.append_finished(requests))

    def finished(self, request_id: str) -> Sequence[Finished]:
        """As the store has them; empty where it can't be read."""
        return self._read(lambda: self._store.finished(request_id), ())

    def close(self) -> None:
        """Close the store beneath."""
        self._store.close()

    def _write(self, call: Callable[[], None]) -> None:
        try:
            call()
        except ForebayError as error:
            self._refuses_writes = True
            self._well = 0
            self._failed(error)
            return
        self._well += 1
        if not self._refuses_writes or self._well >= WRITES_WELL:
            self._refuses_writes = False
            self._worked()

    def _read(self, call: Callable[[], T], otherwise: T) -> T:
        try:
            result = call()
        except ForebayError as error:
            self._failed(error)
            return otherwise
        # A full disk can still be read: only a write shows that it takes writes again.
        if not self._refuses_writes:
            self._worked()
        return result

    def _failed(self, error: ForebayError) -> None:
        self.dropped_total += 1
        began = not self.problem
        self.problem = f"history is not kept, scaling goes on: {error}"
        if began:
            self._say("store_failed", self.problem)

    def _worked(self) -> None:
        if self.problem:
            self.problem = ""
            self._say("store_works", f"history is kept again; {self.dropped_total} reads and writes were lost so far")
