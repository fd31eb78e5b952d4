"""Append-only history, policy memory and the fleet's own notes. What was acknowledged survives a crash."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from forebay.domain.events import Event
from forebay.domain.roster import Finished
from forebay.domain.scaling import Decision, Observation
from forebay.domain.usage import UsageBatch, UsageRow, UsageTaken


class DecisionRecord(msgspec.Struct, frozen=True):
    """One decision with what it was made from: a log of these is a regression corpus."""

    at_wall_s: float
    observation: Observation
    decision: Decision


class DemandBucket(msgspec.Struct, frozen=True):
    """What came to a pool in one span of time, net of preemptible tiers. A span of which too little is known has none."""

    start_wall_s: float
    bucket_s: float
    requests: float
    prompt_tokens: float
    output_tokens: float


DEMAND_BUCKETS_MAX = 8_064
"""Kept per pool: four weeks of five minutes."""


USAGE_ROWS_MAX = 500_000
"""Of the ledger: days × teams × models × tiers × pools. Beyond it, what the oldest days hold is added up under day 0."""
JOURNALS_MAX = 4_096
"""Journals of which is known how much of them the ledger has; of more, those not heard of for longest are forgotten."""
UNUSUAL_MAX = 100_000
SAMPLED_MAX = 100_000
"""Decision records of requests kept: the newest so many that were unusual, and so many of the others."""


class Store(Protocol):
    """Synchronous and quick: called from a control loop, never from the data path."""

    def append_decision(self, record: DecisionRecord) -> None:
        """Durable when it returns."""
        ...

    def decisions(self, pool: str, until_wall_s: float | None = None, limit: int = 1) -> list[DecisionRecord]:
        """The newest ``limit`` records of ``pool`` at or before ``until_wall_s``, newest first."""
        ...

    def append_event(self, event: Event) -> None:
        """Durable when it returns."""
        ...

    def events(self, since_wall_s: float = 0.0, kind: str | None = None, limit: int = 1000) -> list[Event]:
        """The newest ``limit`` events since then, oldest first."""
        ...

    def put(self, key: str, value: bytes) -> None:
        """Small durable values (policy memory, replicas to re-adopt) by key; replaces."""
        ...

    def get(self, key: str) -> bytes | None:
        """The value put last, or None."""
        ...

    def append_ramp(self, pool: str, day: str, ramp_per_s2: float) -> None:
        """Keep the largest ramp of ``day`` (an ISO date)."""
        ...

    def ramps(self, pool: str, limit: int = 28) -> Sequence[float]:
        """The largest ramp of each of the newest ``limit`` days, oldest first."""
        ...

    def append_demand(self, pool: str, bucket: DemandBucket) -> None:
        """Keep ``bucket``, in place of one that begins at the same time; the last DEMAND_BUCKETS_MAX written of each pool stay."""
        ...

    def demand(self, pool: str, since_wall_s: float = 0.0, until_wall_s: float | None = None) -> Sequence[DemandBucket]:
        """The kept buckets that begin at or after ``since_wall_s`` and before ``until_wall_s``, oldest first."""
        ...

    def append_usage(self, batch: UsageBatch, wall_s: float) -> UsageTaken | None:
        """Add the batch up and note how far its journal has come, both or neither; durable when it returns.

        One that does not begin where the journal's entries here end is not added: what is here is told instead. None: nothing could
        be kept at all; the same batch may be given again.
        """
        ...

    def usage(self, since_day: int = 0, until_day: int | None = None) -> Sequence[UsageRow]:
        """The ledger's rows of the days ``since_day <= day < until_day``, by day and key."""
        ...

    def append_finished(self, requests: Sequence[Finished]) -> None:
        """Keep these records; of more than UNUSUAL_MAX and SAMPLED_MAX the oldest go."""
        ...

    def finished(self, request_id: str) -> Sequence[Finished]:
        """The records under this id, newest first: clients choose ids, so that several teams may have used one."""
        ...

    def close(self) -> None:
        """Flush and release; idempotent."""
        ...
