"""What the gateways said, and how old it is: the book from which lanes, streams, rates and attainments are read.

A gateway that has gone silent makes its part Unknown, never zero. One that said goodbye, or has been gone for so long
that its streams can't live any more, leaves the book.
"""

import math
from collections import deque
from collections.abc import Iterable

import msgspec

from forebay.admission.reconcile import Booked
from forebay.controller.came import Came
from forebay.domain.due import Due, gathered
from forebay.domain.roster import PoolLoad, Snapshot, TierCounts
from forebay.domain.signal import Known, Signal, Unknown

RATE_WINDOW_S = 30.0
RATE_SPAN_S_MIN = 5.0
ATTAINMENT_WINDOW_S = 300.0
ATTAINMENT_SAMPLES_MIN = 20
MISSED_SPAN_S_MIN = 30.0
"""That none was late in less proves nothing."""
SAMPLES_MAX = 1024
GATEWAYS_MAX = 256
FORGET_S = 900.0
BOOKED_AGE_SHARE = 0.2
"""Of a lease: what was booked longer ago than this is not compared with what an engine holds now."""
COUNTERS = (
    "arrived",
    "arrived_prompt_tokens",
    "arrived_output_tokens",
    "completed",
    "completed_output_tokens",
    "ttft_met",
    "ttft_missed",
    "itl_met",
    "itl_missed",
    "shed",
    "failed",
    "truncated",
)


class Sample(msgspec.Struct, frozen=True):
    """Counters of one pool at one gateway, preemptible tiers left out."""

    at_s: float
    """The receiver's time."""
    said_s: float
    """The gateway's own. Rates are over this one: a controller that was stopped takes a minute of snapshots in one moment."""
    counts: tuple[float, ...]
    """By COUNTERS; NaN: this gateway does not count that."""


class GatewayRecord:
    """One gateway: its last words and the recent past of its counters."""

    def __init__(self, name: str, now_s: float) -> None:
        self.name = name
        self.connected = True
        self.heard_s = now_s
        self.silent = False
        """For longer than its lease, on a connection that stands: that is said."""
        self.acknowledged = (0, 0)
        self.snapshot: Snapshot | None = None
        self.snapshot_s = now_s
        """When it was received."""
        self.samples: dict[str, deque[Sample]] = {}

    def take(self, snapshot: Snapshot, now_s: float) -> None:
        """Keep ``snapshot`` as received at ``now_s``."""
        self.snapshot = snapshot
        self.snapshot_s = self.heard_s = now_s
        for load in snapshot.pools:
            samples = self.samples.setdefault(load.pool, deque(maxlen=SAMPLES_MAX))
            counts = _counts(load.counts)
            sample = Sample(now_s, snapshot.at_s, counts)
            if samples and _began_again(samples[-1], sample):
                samples.clear()
            if not samples or sample.said_s - samples[-1].said_s >= ATTAINMENT_WINDOW_S / SAMPLES_MAX:
                samples.append(sample)


class GatewayBook:
    """All gateways of record."""

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self.records: dict[str, GatewayRecord] = {}
        self.came = Came()

    def hello(self, gateway: str, now_s: float) -> bool:
        """``gateway`` is there (again); False where the book is full."""
        record = self.records.get(gateway)
        if record is None:
            if len(self.records) >= GATEWAYS_MAX:
                return False
            record = self.records[gateway] = GatewayRecord(gateway, now_s)
        record.connected = True
        record.heard_s = now_s
        return True

    def acknowledged(self, gateway: str, term: int, version: int, now_s: float) -> None:
        """``gateway`` routes by that roster."""
        record = self.records.get(gateway)
        if record is not None:
            record.acknowledged = max(record.acknowledged, (term, version))
            record.heard_s = now_s

    def snapshot(self, snapshot: Snapshot, now_s: float) -> str:
        """Take a snapshot; it is also an acknowledgement of the roster it names. What is new of its configuration file, in words."""
        record = self.records.get(snapshot.gateway)
        if record is None:
            return ""
        self.came.take(record.snapshot, snapshot)
        before, now = "" if record.snapshot is None else record.snapshot.refused, snapshot.refused
        record.take(snapshot, now_s)
        record.acknowledged = max(record.acknowledged, (snapshot.term, snapshot.version))
        if now == before:
            return ""
        return f"gateway {record.name} " + (f"keeps the configuration before: {now}" if now else "goes by the configuration file again")

    def lost(self, gateway: str) -> None:
        """Its connection is gone; it may come back."""
        if gateway in self.records:
            self.records[gateway].connected = False

    def bye(self, gateway: str) -> None:
        """It left for good."""
        self.records.pop(gateway, None)

    def expire(self, now_s: float) -> list[str]:
        """Forget those gone for FORGET_S; returns their names."""
        gone = [name for name, record in self.records.items() if not record.connected and now_s - record.heard_s > FORGET_S]
        for name in gone:
            del self.records[name]
        return gone

    def of_record(self, now_s: float) -> list[str]:
        """Gateways whose lease holds: no stop before they have acknowledged."""
        return [name for name, record in self.records.items() if now_s - record.heard_s <= self.lease_s]

    def loads(self, pool: str, now_s: float) -> list[PoolLoad] | None:
        """Each gateway's load of ``pool``, or None where any gateway is silent or none has ever spoken."""
        if not self.records:
            return None
        found: list[PoolLoad] = []
        for record in self.records.values():
            if record.snapshot is None or now_s - record.heard_s > self.lease_s:
                return None
            found.extend(load for load in record.snapshot.pools if load.pool == pool)
        return found

    def lanes_waiting(self, pool: str, now_s: float) -> Signal:
        """Requests waiting in lanes, net of preemptible tiers."""
        loads = self.loads(pool, now_s)
        if loads is None:
            return self._silence()
        return Known(float(sum(lane.waiting for load in loads for lane in load.lanes if not lane.preemptible)), now_s)

    def preemptible_waiting(self, pool: str, now_s: float) -> int | None:
        """Requests of preemptible tiers waiting in lanes; None where a gateway has not said."""
        loads = self.loads(pool, now_s)
        return None if loads is None else sum(lane.waiting for load in loads for lane in load.lanes if lane.preemptible)

    def unserved(self, pool: str, now_s: float) -> dict[str, int] | None:
        """Of the last ATTAINMENT_WINDOW_S, net of preemptible tiers: what ``arrived``, was ``shed`` (not at a limit of its team),
        ``failed`` and was ``truncated``; None where a gateway has not said."""
        growth = self._growth(pool, now_s, ATTAINMENT_WINDOW_S)
        if growth is None:
            return None
        return {name: int(growth[0][COUNTERS.index(name)]) for name in ("arrived", "shed", "failed", "truncated")}

    def preemptible_due(self, pool: str, now_s: float) -> tuple[Due, ...]:
        """When what waits of preemptible tiers must have been started, by the last words of every gateway, which have aged since."""
        dues = [
            (max(0.0, due.in_s - (now_s - record.snapshot_s)), due.requests)
            for record in self.records.values()
            if record.snapshot is not None
            for load in record.snapshot.pools
            if load.pool == pool
            for lane in load.lanes
            for due in lane.due
        ]
        return gathered(dues) if dues else ()

    def running(self, pool: str, now_s: float) -> Signal:
        """Requests in flight on engines, net of preemptible tiers."""
        loads = self.loads(pool, now_s)
        if loads is None:
            return self._silence()
        return Known(float(sum(row.streams - row.preemptible_streams for load in loads for row in load.replicas)), now_s)

    def streams(self, pool: str, replica: str, now_s: float) -> int | None:
        """Live streams on ``replica`` over all gateways; None where a gateway whose lease holds has not said."""
        total = 0
        for record in self.records.values():
            if record.snapshot is None:
                if now_s - record.heard_s <= self.lease_s:
                    return None
                continue
            total += sum(
                row.streams for load in record.snapshot.pools if load.pool == pool for row in load.replicas if row.replica == replica
            )
        return total

    def ejected(self, pool: str, replica: str, now_s: float) -> bool:
        """Whether a gateway whose lease holds gives ``replica`` no requests: they know of it before anybody else."""
        return any(
            replica in load.ejected
            for record in self.records.values()
            if record.snapshot is not None and now_s - record.heard_s <= self.lease_s
            for load in record.snapshot.pools
            if load.pool == pool
        )

    def refusing(self) -> dict[str, list[str]]:
        """What is wrong with the configuration file, and the gateways that refuse it for that."""
        found: dict[str, list[str]] = {}
        for record in self.records.values():
            if record.snapshot is not None and record.snapshot.refused:
                found.setdefault(record.snapshot.refused, []).append(record.name)
        return found

    def live_tokens(self, pool: str, replica: str) -> tuple[float, float]:
        """(all, preemptible) KV tokens in flight on ``replica`` by the last words of every gateway."""
        rows = [
            row
            for record in self.records.values()
            if record.snapshot is not None
            for load in record.snapshot.pools
            if load.pool == pool
            for row in load.replicas
            if row.replica == replica
        ]
        return float(sum(row.kv_tokens for row in rows)), float(sum(row.preemptible_kv_tokens for row in rows))

    def booked(self, pool: str, replica: str, now_s: float) -> Booked | None:
        """KV tokens booked on ``replica`` over all gateways; None where one of them has not just told, or is too old to tell."""
        least = most = 0
        for record in self.records.values():
            if record.snapshot is None or now_s - record.snapshot_s > BOOKED_AGE_SHARE * self.lease_s:
                return None
            for load in record.snapshot.pools:
                for row in load.replicas if load.pool == pool else ():
                    if row.replica == replica:
                        if row.kv_tokens_least is None or row.kv_tokens_most is None:
                            return None
                        least += row.kv_tokens_least
                        most += row.kv_tokens_most
        return Booked(least, most)

    def rate(self, pool: str, counter: str, now_s: float, window_s: float = RATE_WINDOW_S) -> Signal:
        """Increase per second of ``counter`` (one of COUNTERS) over the last ``window_s``, over all gateways."""
        growth = self._growth(pool, now_s, window_s)
        if growth is None:
            return self._silence()
        increase, span_s = growth[0][COUNTERS.index(counter)], growth[1]
        if math.isnan(increase):
            return Unknown("missing")
        if span_s < min(RATE_SPAN_S_MIN, window_s):
            return Unknown("short")
        return Known(increase / span_s, now_s)

    def attainment(self, pool: str, now_s: float, promise: str = "ttft") -> Signal:
        """Fraction of the last minutes' ``ttft`` (first contents) or ``itl`` (answers that ended) within the promise.

        Unknown below a number that means something.
        """
        growth = self._growth(pool, now_s, ATTAINMENT_WINDOW_S)
        if growth is None:
            return self._silence()
        met, missed = growth[0][COUNTERS.index(f"{promise}_met")], growth[0][COUNTERS.index(f"{promise}_missed")]
        if met + missed < ATTAINMENT_SAMPLES_MIN:
            return Unknown("few")
        return Known(met / (met + missed), now_s)

    def ttft_missed(self, pool: str, now_s: float) -> Signal:
        """How many of the last minutes' first contents came late; Unknown until that is of more than a moment."""
        growth = self._growth(pool, now_s, ATTAINMENT_WINDOW_S)
        if growth is None:
            return self._silence()
        return Known(growth[0][COUNTERS.index("ttft_missed")], now_s) if growth[1] >= MISSED_SPAN_S_MIN else Unknown("short")

    def waiting_tokens(self, pool: str, gateway: str) -> int:
        """Tokens that wait in the lanes of ``pool`` at one gateway, by its last words."""
        record = self.records.get(gateway)
        loads = record.snapshot.pools if record is not None and record.snapshot is not None else ()
        return sum(lane.waiting_tokens for load in loads if load.pool == pool for lane in load.lanes)

    def out_at(self, pool: str, gateway: str) -> frozenset[str]:
        """Replicas that ``gateway`` gives no requests, by its last word."""
        record = self.records.get(gateway)
        loads = record.snapshot.pools if record is not None and record.snapshot is not None else ()
        return frozenset(replica for load in loads if load.pool == pool for replica in load.ejected)

    def asked_tokens(self, pool: str, gateway: str, now_s: float) -> float | None:
        """Tokens that clients asked one gateway for in the last RATE_WINDOW_S, and that wait there; None where that is not known.

        Of tiers that are not preemptible, as every sign of demand. What was forwarded counts where it came in.
        """
        record = self.records.get(gateway)
        if record is None or not record.samples.get(pool) or now_s - record.heard_s > self.lease_s:
            return None
        increase, span_s = _increase(record.samples[pool], now_s, RATE_WINDOW_S)
        if span_s < RATE_SPAN_S_MIN:
            return None
        tokens = sum(increase[COUNTERS.index(name)] for name in ("arrived_prompt_tokens", "arrived_output_tokens"))
        return tokens * RATE_WINDOW_S / span_s + self.waiting_tokens(pool, gateway)

    def _silence(self) -> Unknown:
        return Unknown("gateway_lost" if self.records else "no_gateway")

    def _growth(self, pool: str, now_s: float, window_s: float) -> tuple[list[float], float] | None:
        """(increase of each counter, seconds it took): summed over gateways, the span of the longest; None if any is silent."""
        if self.loads(pool, now_s) is None:
            return None
        total = [0.0] * len(COUNTERS)
        span_s = 0.0
        for record in self.records.values():
            samples = record.samples.get(pool)
            if not samples:
                continue
            increase, own_span_s = _increase(samples, now_s, window_s)
            span_s = max(span_s, own_span_s)
            total = [before + more for before, more in zip(total, increase, strict=True)]
        return total, span_s


def _increase(samples: deque[Sample], now_s: float, window_s: float) -> tuple[list[float], float]:
    """(increase of each counter of one gateway, seconds it took) in the last ``window_s``."""
    last = samples[-1]
    begin_s = last.said_s + (now_s - last.at_s) - window_s
    first = next(sample for sample in samples if sample.said_s >= begin_s or sample is last)
    return [new - old for new, old in zip(last.counts, first.counts, strict=True)], last.said_s - first.said_s


def _began_again(before: Sample, after: Sample) -> bool:
    """Whether the gateway was restarted in between: its counters, or its clock, went back."""
    return after.said_s < before.said_s or any(new < old for new, old in zip(after.counts, before.counts, strict=True))


def _counts(rows: Iterable[TierCounts]) -> tuple[float, ...]:
    kept = [row for row in rows if not row.preemptible]
    return tuple(sum(_told(getattr(row, name)) for row in kept) for name in COUNTERS)


def _told(count: int | None) -> float:
    return math.nan if count is None else count
