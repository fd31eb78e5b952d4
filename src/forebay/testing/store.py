"""A store in memory that forgets what a real one would keep on disk, and nothing else: the same contract tests run on both."""

import math
from collections import deque
from collections.abc import Sequence

from forebay.domain.errors import ForebayError
from forebay.domain.events import Event
from forebay.domain.roster import Finished
from forebay.domain.usage import Folded, UsageBatch, UsageRow, UsageTaken
from forebay.ports.store import DEMAND_BUCKETS_MAX, DecisionRecord, DemandBucket

ROWS_MAX = 100_000


class StoreBroken(ForebayError):
    """The fake store was told to fail."""


class MemoryStore:
    """`ports.Store`. Set ``broken`` to have every write raise, as a full disk would."""

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        self.broken = False
        self._decisions: deque[DecisionRecord] = deque(maxlen=rows_max)
        self._events: deque[Event] = deque(maxlen=rows_max)
        self._values: dict[str, bytes] = {}
        self._ramps: dict[str, dict[str, float]] = {}
        self._demand: dict[str, dict[float, DemandBucket]] = {}
        self._usage = Folded()
        self._journals: dict[str, int] = {}
        self._finished: deque[Finished] = deque(maxlen=rows_max)

    def append_decision(self, record: DecisionRecord) -> None:
        """Keep ``record``."""
        self._writable()
        self._decisions.append(record)

    def decisions(self, pool: str, until_wall_s: float | None = None, limit: int = 1) -> list[DecisionRecord]:
        """Newest first: as they were appended, or, until a time, by their times."""
        own = [record for record in reversed(self._decisions) if record.decision.pool == pool]
        if until_wall_s is not None:
            own = sorted((record for record in own if record.at_wall_s <= until_wall_s), key=lambda record: -record.at_wall_s)
        return own[:limit]

    def append_event(self, event: Event) -> None:
        """Keep ``event``."""
        self._writable()
        self._events.append(event)

    def events(self, since_wall_s: float = 0.0, kind: str | None = None, limit: int = 1000) -> list[Event]:
        """The newest ``limit``, oldest first."""
        chosen = [event for event in self._events if event.wall_s >= since_wall_s and (kind is None or event.kind == kind)]
        return chosen[max(0, len(chosen) - limit) :]

    def put(self, key: str, value: bytes) -> None:
        """Replaces."""
        self._writable()
        self._values[key] = bytes(value)

    def get(self, key: str) -> bytes | None:
        """The value put last."""
        return self._values.get(key)

    def append_ramp(self, pool: str, day: str, ramp_per_s2: float) -> None:
        """The day keeps its largest."""
        self._writable()
        days = self._ramps.setdefault(pool, {})
        days[day] = max(ramp_per_s2, days.get(day, ramp_per_s2))

    def ramps(self, pool: str, limit: int = 28) -> Sequence[float]:
        """By day, oldest first."""
        days = sorted(self._ramps.get(pool, {}).items())
        return [ramp for _, ramp in days[max(0, len(days) - limit) :]]

    def append_demand(self, pool: str, bucket: DemandBucket) -> None:
        """In place of one that begins at the same time; the last ones written stay."""
        self._writable()
        kept = self._demand.setdefault(pool, {})
        kept.pop(bucket.start_wall_s, None)
        kept[bucket.start_wall_s] = bucket
        if len(kept) > DEMAND_BUCKETS_MAX:
            del kept[next(iter(kept))]

    def demand(self, pool: str, since_wall_s: float = 0.0, until_wall_s: float | None = None) -> Sequence[DemandBucket]:
        """By time, oldest first."""
        until_s = math.inf if until_wall_s is None else until_wall_s
        kept = sorted(self._demand.get(pool, {}).items())
        return [bucket for start_s, bucket in kept if since_wall_s <= start_s < until_s]

    def append_usage(self, batch: UsageBatch, wall_s: float) -> UsageTaken | None:
        """Add the batch up, unless it does not begin where its journal's entries here end."""
        del wall_s
        self._writable()
        has = self._journals.get(batch.journal, 0)
        if batch.after < has or batch.upto <= batch.after:
            return UsageTaken(has)
        for row in batch.rows:
            self._usage.take(row)
        self._journals[batch.journal] = batch.upto
        return UsageTaken(batch.upto, batch.after - has)

    def usage(self, since_day: int = 0, until_day: int | None = None) -> Sequence[UsageRow]:
        """By day and key."""
        return sorted(
            (row for row in self._usage.rows() if row.day >= since_day and (until_day is None or row.day < until_day)),
            key=lambda row: (row.day, row.key),
        )

    def append_finished(self, requests: Sequence[Finished]) -> None:
        """Keep the newest."""
        self._writable()
        self._finished.extend(requests)

    def finished(self, request_id: str) -> Sequence[Finished]:
        """Newest first."""
        return [one for one in reversed(self._finished) if one.id == request_id]

    def close(self) -> None:
        """Nothing to release."""

    def _writable(self) -> None:
        if self.broken:
            raise StoreBroken
