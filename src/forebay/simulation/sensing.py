"""What a policy gets to see of a simulated fleet: snapshots of the truth, aged by the scrape delay and spoilt by the faults.

It follows the live controller: rates over 30 s, attainment over 5 minutes and only from 20 samples on, a start is overdue
by the controller's rule. Beyond that:

- readings are taken at least every 15 s, so none is older than the delay and that;
- requests in flight are what arrived and neither ended nor waits in a lane, so they are net of preemptible tiers, as are
  the engines' readings: the gateways know what on an engine may be aborted, and it is never a reason to scale;
- 95th percentiles are of the present minute once half of it is over, else of the whole one before;
- while the gateways are not heard no sample of their counters is kept, as none would come.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from forebay.domain.due import gathered, slot_width_s
from forebay.domain.replica import PENDING_STATES
from forebay.domain.scaling import History, Observation, Passes, ReplicaObservation
from forebay.domain.signal import Known, Signal, Unknown
from forebay.simulation.faults import FROZEN_AFTER_S, GATEWAY_WHY, LEASE_S, WHY, Active, Faults
from forebay.simulation.fleet import SimulatedFleet
from forebay.simulation.lab_life import Replica
from forebay.simulation.metering import Meters
from forebay.simulation.values import MetricFault, ReplicaReadings, TierTotals

RATE_WINDOW_S = 30.0
RATE_SPAN_S_MIN = 5.0
ATTAINMENT_WINDOW_S = 300.0
ATTAINMENT_SAMPLES_MIN = 20
MISSED_SPAN_S_MIN = 30.0
OVERDUE_FACTOR = 1.5
OVERDUE_S_MIN = 30.0
SAMPLES_MAX = 1024
SNAPSHOTS_MAX = 1024
"""Taken and not yet old enough to be seen."""
WINDOW_S = 60.0
DUST_S = 1e-6

Signals = tuple[Signal, Signal, Signal, Signal, Signal, Passes | Unknown]
"""waiting, running, kv_usage, queued_tokens, gpu_usage, passes."""
NEVER: Signals = (Unknown(), Unknown(), Unknown(), Unknown(), Unknown(), Unknown())


class Told(NamedTuple):
    """What the gateways say, over all of them."""

    lanes_waiting: Signal
    arrival_per_s: Signal
    arrival_prompt_tokens_per_s: Signal
    arrival_output_tokens_per_s: Signal
    ttft_attainment: Signal
    running: Signal
    completed_per_s: Signal
    completed_output_tokens_per_s: Signal
    ttft_p95_s: Signal
    itl_p95_s: Signal
    itl_attainment: Signal
    ttft_missed: Signal


class Counts(NamedTuple):
    """Counters since the start over the tiers that aren't preemptible, and the gauges ``waiting`` (lanes) and ``running``."""

    arrived: int
    prompt_tokens: int
    output_tokens: int
    completed: int
    completed_output_tokens: int
    ttft_met: int
    ttft_missed: int
    itl_met: int
    itl_missed: int
    waiting: int
    running: int


class Snapshot(NamedTuple):
    """The truth at one instant. ``readings``, ``gpu_usage`` and ``passes`` by replica number."""

    at_s: float
    counts: Counts
    ttft_p95_s: float
    itl_p95_s: float
    readings: dict[int, ReplicaReadings]
    gpu_usage: dict[int, float]
    passes: dict[int, Passes]
    due: tuple[tuple[float, int], ...] = ()
    """(deadline, requests) of what waits of preemptible tiers, by the slots of `domain.due`."""


class Facts(NamedTuple):
    """What the driver knows besides readings."""

    pool: str
    now_s: float
    wall_s: float
    desired: int
    memory: bytes
    cold_start_s: Signal
    assumed_cold_start_s: float
    past_ramps_per_s2: tuple[float, ...]
    history: History | None
    warm: int = 0
    warm_start_s: Signal = Unknown("never")
    assumed_warm_start_s: float = 0.0


class Senses:
    """Takes snapshots, and makes observations of those that are old enough."""

    def __init__(
        self,
        fleet: SimulatedFleet,
        tiers: Sequence[int],
        faults: Faults,
        delay_s: float,
        net: bool,
        dated: Sequence[tuple[int, float]] = (),
    ) -> None:
        """``tiers``: indices of those that aren't preemptible; ``net``: there are others, and readings leave them out; ``dated``: index
        and longest wait of those others."""
        self._fleet = fleet
        self._read = partial(fleet.read, net=True) if net else fleet.read
        self._tiers = tuple(tiers)
        self._dated = tuple((tier, longest_wait_s) for tier, longest_wait_s in dated if slot_width_s(longest_wait_s))
        self._faults = faults
        self._delay_s = delay_s
        self._taken: deque[Snapshot] = deque(maxlen=SNAPSHOTS_MAX)
        self._before: Snapshot | None = None
        """The last one that was seen."""
        self._word: Snapshot | None = None
        """The last one in which the gateways were heard."""
        self._samples: deque[tuple[float, Counts]] = deque(maxlen=SAMPLES_MAX)
        self._frozen: dict[int, Snapshot] = {}
        self._meters = Meters()
        self._engines: dict[int, Signals] = {}
        self._gateways = _silent("no_gateway")
        self._window_began_s = 0.0
        self.minute_p95_s = (math.nan, math.nan)
        """TTFT and TPOT of the last whole minute."""
        self.latest: Snapshot | None = None
        self.heard = True
        """Whether the gateways were heard in what was seen last."""

    def counts(self) -> Counts:
        """Counters and gauges now."""
        totals = [self._fleet.totals(tier) for tier in self._tiers]
        every = totals[0] if len(totals) == 1 else TierTotals(*map(sum, zip(*map(msgspec.structs.astuple, totals), strict=True)))
        return Counts(
            every.arrived,
            every.arrived_prompt_tokens,
            every.arrived_output_tokens,
            every.completed,
            every.completed_output_tokens,
            every.ttft_met,
            every.ttft_missed,
            every.itl_met,
            every.itl_missed,
            every.waiting,
            every.arrived - every.waiting - (every.completed + every.shed + every.cut),
        )

    def end_minute(self, now_s: float) -> None:
        """A minute is over: keep its percentiles and begin anew."""
        self.minute_p95_s = self._p95_s()
        self._fleet.forget_recent()
        self._window_began_s = now_s

    def take(self, now_s: float, replicas: Iterable[Replica]) -> None:
        """Look at everything once. ``replicas``: those that have an engine."""
        read, looked_at = self._read, tuple(replicas)
        readings = {replica.number: read(replica.row) for replica in looked_at}
        gpu_usage, passes = self._meters.since(now_s, looked_at, readings)
        window = self._p95_s() if now_s - self._window_began_s >= WINDOW_S / 2 else self.minute_p95_s
        self.latest = Snapshot(now_s, self.counts(), *window, readings, gpu_usage, passes, self._due() if self._dated else ())
        self._taken.append(self.latest)

    def observe(self, facts: Facts, replicas: Iterable[Replica]) -> Observation:
        """The pool at ``facts.now_s``, as far as it was taken and is old enough."""
        while self._taken and self._taken[0].at_s <= facts.now_s - self._delay_s + DUST_S:
            self._see(self._taken.popleft())
        live, due = (self._word.readings, self._word.due) if self._word is not None else ({}, ())
        told = self._gateways
        return Observation(
            facts.pool,
            facts.now_s,
            facts.wall_s,
            facts.desired,
            _replicas(replicas, self._engines, live, facts),
            told.lanes_waiting,
            told.arrival_per_s,
            told.arrival_prompt_tokens_per_s,
            told.arrival_output_tokens_per_s,
            told.ttft_attainment,
            facts.cold_start_s,
            facts.past_ramps_per_s2,
            told.running,
            told.completed_per_s,
            told.completed_output_tokens_per_s,
            told.ttft_p95_s,
            told.itl_p95_s,
            told.itl_attainment,
            facts.history,
            facts.memory,
            facts.warm,
            facts.warm_start_s,
            gathered((max(0.0, at_s - facts.now_s), requests) for at_s, requests in due) if due else (),
            told.ttft_missed,
        )

    def _due(self) -> tuple[tuple[float, int], ...]:
        found: list[tuple[float, int]] = []
        for tier, longest_wait_s in self._dated:
            if self._fleet.totals(tier).waiting:
                width_s = slot_width_s(longest_wait_s)
                slots = ((self._fleet.waiting_since_s(tier) + longest_wait_s) // width_s).astype(np.int64)
                first = int(slots.min())
                counts = np.bincount(slots - first).tolist()
                found += [((first + place) * width_s, count) for place, count in enumerate(counts) if count]
        return tuple(found)

    def _p95_s(self) -> tuple[float, float]:
        return self._fleet.recent_quantile_s("ttft", 0.95), self._fleet.recent_quantile_s("tpot", 0.95)

    def _see(self, snapshot: Snapshot) -> None:
        active = self._faults.active(snapshot.at_s)
        self._frozen = {index: self._frozen.get(index, self._before or snapshot) for index, _ in active}
        fault = self._faults.gateways(active)
        self.heard = fault is None
        if fault is None:
            self._word = snapshot
            self._sample(snapshot)
            self._gateways = self._told(snapshot)
        elif fault.kind != "frozen" or snapshot.at_s - fault.from_s > LEASE_S:
            self._gateways = _silent(GATEWAY_WHY[fault.kind])
        at_s = snapshot.at_s
        self._engines = {
            number: self._spoilt(number, seen, snapshot, active)
            if active
            else _signals(seen, snapshot.gpu_usage[number], snapshot.passes[number], at_s)
            for number, seen in snapshot.readings.items()
        }
        self._before = snapshot

    def _sample(self, snapshot: Snapshot) -> None:
        samples, at_s = self._samples, snapshot.at_s
        if samples and samples[-1][0] == at_s:
            samples.pop()
        samples.append((at_s, snapshot.counts))
        while samples[0][0] < at_s - ATTAINMENT_WINDOW_S - DUST_S:
            samples.popleft()

    def _told(self, snapshot: Snapshot) -> Told:
        """What the gateways' counters say, the newest sample being ``snapshot``'s."""
        at_s, now, samples = snapshot.at_s, snapshot.counts, self._samples
        first_s, first = at_s, now
        for sample in reversed(samples):
            if sample[0] < at_s - RATE_WINDOW_S - DUST_S:
                break
            first_s, first = sample
        span_s = at_s - first_s
        long = samples[0][1]

        def rate(new: int, old: int) -> Signal:
            return Known((new - old) / span_s, at_s) if span_s >= RATE_SPAN_S_MIN else Unknown("short")

        return Told(
            Known(float(now.waiting), at_s),
            rate(now.arrived, first.arrived),
            rate(now.prompt_tokens, first.prompt_tokens),
            rate(now.output_tokens, first.output_tokens),
            _attained(now.ttft_met - long.ttft_met, now.ttft_missed - long.ttft_missed, at_s),
            Known(float(now.running), at_s),
            rate(now.completed, first.completed),
            rate(now.completed_output_tokens, first.completed_output_tokens),
            _quantile(snapshot.ttft_p95_s, at_s),
            _quantile(snapshot.itl_p95_s, at_s),
            _attained(now.itl_met - long.itl_met, now.itl_missed - long.itl_missed, at_s),
            Known(float(now.ttft_missed - long.ttft_missed), at_s) if at_s - samples[0][0] >= MISSED_SPAN_S_MIN else Unknown("short"),
        )

    def _spoilt(self, number: int, seen: ReplicaReadings, snapshot: Snapshot, active: Active) -> Signals:
        """What the page of one engine says while ``active`` faults hold; the first that touches it counts."""
        gpu, at_s = snapshot.gpu_usage[number], snapshot.at_s
        found = next(((index, fault) for index, fault in active if self._faults.touches(index, fault, number)), None)
        if found is None:
            return _signals(seen, gpu, snapshot.passes[number], at_s)
        index, fault = found
        if fault.kind == "frozen":
            return _frozen(fault, self._frozen[index], number, seen, at_s)
        ill = _ill(WHY[fault.kind])
        return (*ill[:4], Known(gpu, at_s), ill[5]) if fault.kind == "renamed" else ill


def _silent(why: str) -> Told:
    return Told(*(Unknown(why) for _ in Told._fields))


def _frozen(fault: MetricFault, before: Snapshot, number: int, seen: ReplicaReadings, at_s: float) -> Signals:
    """Old values with new times, for as long as nothing gives them away."""
    then = before.readings.get(number)
    if then is None:
        return _ill("missing")
    was_busy = then.waiting + then.running > 0
    if at_s - fault.from_s > FROZEN_AFTER_S and (was_busy or seen.waiting + seen.running > 0):
        return _ill("frozen" if was_busy else "wedged")
    return _signals(then, before.gpu_usage[number], msgspec.structs.replace(before.passes[number], at_s=at_s), at_s)


def _ill(why: str) -> Signals:
    ill = Unknown(why)
    return ill, ill, ill, ill, ill, ill


def _signals(seen: ReplicaReadings, gpu_usage: float, passes: Passes, at_s: float) -> Signals:
    return (
        Known(seen.waiting, at_s),
        Known(seen.running, at_s),
        Known(seen.kv_usage, at_s),
        Known(seen.queued_tokens, at_s),
        Known(gpu_usage, at_s),
        passes,
    )


def _attained(met: int, missed: int, at_s: float) -> Signal:
    return Known(met / (met + missed), at_s) if met + missed >= ATTAINMENT_SAMPLES_MIN else Unknown("few")


def _quantile(value_s: float, at_s: float) -> Signal:
    return Unknown("few") if math.isnan(value_s) else Known(value_s, at_s)


def _replicas(
    replicas: Iterable[Replica], engines: Mapping[int, Signals], live: Mapping[int, ReplicaReadings], facts: Facts
) -> tuple[ReplicaObservation, ...]:
    cold, warm = _times_s(facts.cold_start_s, facts.assumed_cold_start_s), _times_s(facts.warm_start_s, facts.assumed_warm_start_s)
    now_s, found = facts.now_s, []
    for replica in replicas:
        number, state, begun_s = replica.number, replica.state, replica.begun_s
        if state in PENDING_STATES:
            cold_start_s, late_s = cold
            if replica.warm_node is not None and not replica.restarts:
                (cold_start_s, late_s), begun_s = warm, max(begun_s, replica.warm_node.ready_s)
            seen = ReplicaObservation(
                replica.id,
                state,
                replica.since_s,
                replica.requested_s,
                expected_ready_s=begun_s + cold_start_s,
                overdue=now_s - begun_s > late_s,
            )
        else:
            waiting, running, kv_usage, queued, gpu_usage, passes = engines.get(number, NEVER)
            word = live.get(number)
            tokens = word.live_tokens if word is not None else 0.0
            seen = ReplicaObservation(
                replica.id,
                state,
                replica.since_s,
                replica.requested_s,
                waiting,
                running,
                kv_usage,
                queued,
                gpu_usage,
                tokens,
                None,
                False,
                passes,
            )
        found.append(seen)
    return tuple(found)


def _times_s(measured: Signal, assumed_s: float) -> tuple[float, float]:
    """(how long a start takes, from when on it is overdue), as the controller has it: one quick start does not make the next one late."""
    start_s = measured.value if isinstance(measured, Known) else assumed_s
    expected_s = max(start_s, assumed_s)
    return start_s, max(OVERDUE_FACTOR * expected_s, expected_s + OVERDUE_S_MIN)
