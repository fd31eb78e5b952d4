"""The fast fleet: `SimulatedFleet` over numba kernels that jump from event to event.

Python feeds it arrivals a chunk at a time, grows its arrays when they are full, and reads its counters; all else is in `kernel`.
"""

import heapq
import random
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay.demand.arrays import Arrivals, ArrivalSource
from forebay.domain.errors import BadInput
from forebay.domain.roster import Posture
from forebay.simulation.kernel import play
from forebay.simulation.kernel.checks import check
from forebay.simulation.kernel.layout import COUNTERS, QUEUED, Records, allocate, attach, more_groups, more_log, more_requests, more_rows
from forebay.simulation.kernel.numbers import ITL, TPOT, TTFT, WAIT
from forebay.simulation.kernel.sketches import bounds, quantile_s
from forebay.simulation.values import FleetRules, ReplicaReadings, TierResult, TierTotals

_POSTURES = {
    Posture.OPEN: play.OPEN,
    Posture.SHED_PREEMPTIBLE: play.SHED_PREEMPTIBLE,
    Posture.SHED_LOW: play.SHED_LOW,
    Posture.HOLD_PREEMPTIBLE: play.OPEN,  # nothing of it is played: it holds for a minute an event
}
_QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))


class FastFleet:
    """One pool in virtual time. ``log``: keep first token, end and outcome of every request (for whoever debugs: memory grows)."""

    def __init__(self, rules: FleetRules, arrivals: ArrivalSource, log: bool = False) -> None:
        """Raises ValueError for rules that nothing could run under."""
        _vet_rules(rules)
        self._rules = rules
        self._source = arrivals
        self._logs = log
        self._rows_read = 0
        self._read_until_s = 0.0
        self._free_rows = list(range(rules.replicas_max))
        self._rows: set[int] = set()
        self._added = 0
        self._blocks = rules.profile.kv_tokens // rules.profile.block_tokens
        self._readings: list[tuple[Any, ...]] = []
        self._fleet = allocate(rules, log)
        self._fleet.bounds["upto_s"] = bounds()
        self._command(play.REBUILD)

    @property
    def now_s(self) -> float:
        """How far the world has been played."""
        return float(self._world["now_s"])

    @property
    def exhausted(self) -> bool:
        """Whether the trace has ended and nothing is in flight or waiting."""
        while self._world["place"] == self._world["filled"] and not self._world["ended"]:
            self._pull()
        world = self._world
        return bool(world["ended"] and world["place"] == world["filled"] and not world["waiting"] and not world["in_flight"])

    def run_until(self, at_s: float) -> None:
        """Play everything up to and including ``at_s``. Raises BadInput naming the row where arrivals are ill or out of order."""
        if at_s < self.now_s:
            raise ValueError(f"time does not go back from {self.now_s} s to {at_s} s")
        while (needs := self._command(play.PLAY, at_s=at_s)) != play.DONE:
            if needs == play.NEEDS_ARRIVALS:
                self._pull()
            elif needs == play.NEEDS_REQUESTS:
                self._fleet = more_requests(self._fleet)
            else:
                self._make_room_for_groups(2)

    def add(self) -> int:
        """A replica is ready now; returns its row, the lowest that is free. Raises ValueError beyond ``replicas_max``."""
        if not self._free_rows:
            raise ValueError(f"{self._rules.replicas_max} replicas are the most there may be")
        row = heapq.heappop(self._free_rows)
        if row == len(self._fleet.replicas):
            self._fleet = more_rows(self._fleet)
            self._command(play.REBUILD)
        self._world["rows"] = max(int(self._world["rows"]), row + 1)
        self._rows.add(row)
        self._fleet.replicas["stream"][row] = stream_of(self._rules.seed, self._added)
        self._added += 1
        self._settle(play.ADD, row)
        return row

    def drain(self, row: int) -> None:
        """Nothing new goes to ``row``; what runs there goes on."""
        self._command(play.DRAIN, self._live(row))

    def cancel_drain(self, row: int) -> None:
        """``row`` takes requests again."""
        self._settle(play.CANCEL_DRAIN, self._live(row))

    def set_posture(self, posture: Posture) -> None:
        """What the front queue does from now on with an arrival that can't start at once; what waits already goes on waiting."""
        self._world["posture"] = _POSTURES[posture]

    def idle(self, row: int) -> bool:
        """Whether nothing is in flight on ``row``."""
        return not self._fleet.replicas["streams"][self._live(row)]

    def stop(self, row: int) -> int:
        """``row`` is gone; what had its first token is cut, the rest goes back to its lane. Returns how many were cut."""
        self._settle(play.STOP, self._live(row))
        self._rows.remove(row)
        heapq.heappush(self._free_rows, row)
        return int(self._world["cut"])

    def read(self, row: int, net: bool = False) -> ReplicaReadings:
        """What a scrape of ``row`` shows now; ``net``: waiting, running and KV without the preemptible tiers."""
        self._live(row)
        if not self._readings:
            self._command(play.READ)
            self._readings = self._fleet.readings[: int(self._world["rows"])].tolist()
        busy_s, passes_s, waiting, running, blocks, queued_tokens, live_tokens, preemptions, passes, prefilled, kv_read, *spared = (
            self._readings[row]
        )
        if net:
            waiting, running, blocks = waiting - spared[0], running - spared[1], blocks - spared[2]
        usage = blocks / self._blocks
        return ReplicaReadings(
            waiting, running, usage, queued_tokens, live_tokens, busy_s, preemptions, passes, passes_s, prefilled, kv_read
        )

    def totals(self, tier: int) -> TierTotals:
        """Counters and gauges of one tier."""
        found = self._fleet.promises[tier]
        return TierTotals(*(int(found[name]) for name in COUNTERS.split()))

    def waiting_since_s(self, tier: int) -> npt.NDArray[np.float64]:
        """When each request of one tier arrived that waits in a lane now, in no order."""
        requests = self._fleet.requests
        at_s: npt.NDArray[np.float64] = requests["at_s"][(requests["state"] == QUEUED) & (requests["tier"] == tier)]
        return at_s

    def recent_quantile_s(self, what: str, quantile: float) -> float:
        """Of ``ttft`` or ``tpot`` since the last call of `forget_recent`, over tiers that aren't preemptible; NaN where there was none."""
        return quantile_s(self._fleet.recent["count"][{"ttft": TTFT, "tpot": TPOT}[what]], quantile)

    def forget_recent(self) -> None:
        """Begin a new window for `recent_quantile_s`."""
        self._fleet.recent["count"] = 0

    def results(self, tier: int) -> TierResult:
        """Totals, attainments and quantiles of one tier over the whole run."""
        totals = self.totals(tier)
        return TierResult(
            totals=totals,
            ttft_attainment=_share(totals.ttft_met, totals.ttft_met + totals.ttft_missed),
            itl_attainment=_share(totals.itl_met, totals.itl_met + totals.itl_missed),
            both_attainment=_share(totals.both_met, totals.completed + totals.shed + totals.cut),
            ttft_s=self._summary(tier, TTFT),
            itl_s=self._summary(tier, ITL),
            tpot_s=self._summary(tier, TPOT),
            wait_s=self._summary(tier, WAIT),
        )

    def sketch(self, tier: int, kind: int) -> npt.NDArray[np.int64]:
        """Counts per bucket of one kind of latency (`kernel.numbers`); sketches of several runs add up."""
        counts: npt.NDArray[np.int64] = self._fleet.sketches["count"][tier, kind].copy()
        return counts

    def log(self) -> Records:
        """First token, end and outcome by row of the trace, up to the last arrival; empty unless asked for."""
        return self._fleet.log[: int(self._world["seq"])]

    def check(self) -> None:
        """Assert the invariants: nothing lost, nothing doubled, limits held."""
        check(self._fleet)

    @property
    def _world(self) -> Any:
        return self._fleet.world[0]

    def _command(self, what: int, row: int = 0, at_s: float = 0.0) -> int:
        if self._readings:
            self._readings = []
        return int(play.command(self._fleet.world, what, row, at_s))

    def _settle(self, what: int, row: int) -> None:
        """A call after which whatever waits may be dispatched."""
        self._make_room_for_groups(int(self._world["waiting"]) + int(self._fleet.replicas["streams"][row]) + 2)
        self._command(what, row)

    def _live(self, row: int) -> int:
        if row not in self._rows:
            raise ValueError(f"there is no replica in row {row}")
        return row

    def _make_room_for_groups(self, more: int) -> None:
        world = self._world
        if not world["groups_max"]:
            return
        missing = int(world["waiting"]) + more - int(world["groups_free"])
        if missing > 0:
            self._fleet = more_groups(self._fleet, len(self._fleet.groups) + missing)
            self._command(play.REHASH)
            self._fleet = attach(self._fleet._replace(old_keys=self._fleet.old_keys[:0].copy()))

    def _pull(self) -> None:
        """The next chunk of arrivals, or the end of them."""
        chunk = next(self._source, None)
        if chunk is None:
            self._world["ended"] = 1
            return
        self._vet(chunk)
        rows = len(chunk.at_s)
        if not rows:
            return
        if rows > len(self._fleet.arrivals):
            self._fleet = attach(self._fleet._replace(arrivals=np.zeros(rows, self._fleet.arrivals.dtype)))
        place = self._fleet.arrivals[:rows]
        place["at_s"], place["prompt"], place["output"], place["tier"], place["group"], place["shared"] = chunk
        self._world["place"], self._world["filled"] = 0, rows
        self._rows_read += rows
        self._read_until_s = float(chunk.at_s[-1])
        if self._logs and self._rows_read > len(self._fleet.log):
            self._fleet = more_log(self._fleet, self._rows_read)

    def _vet(self, chunk: Arrivals) -> None:
        at_s = chunk.at_s
        before_s = np.concatenate(([self._read_until_s], at_s[:-1])) if len(at_s) else at_s
        tests = (
            (~np.isfinite(at_s), at_s, "a time that is no number"),
            (at_s < before_s, at_s, "a time before that of the row above (or before 0); sort the trace by time"),
            (chunk.prompt_tokens < 1, chunk.prompt_tokens, "a prompt of less than one token"),
            (chunk.output_tokens < 1, chunk.output_tokens, "an output of less than one token"),
            ((chunk.tier < 0) | (chunk.tier >= len(self._rules.tiers)), chunk.tier, f"a tier outside 0..{len(self._rules.tiers) - 1}"),
            (chunk.shared_tokens < 0, chunk.shared_tokens, "a shared prefix of less than nothing"),
        )
        for ill, column, what in tests:
            if ill.any():
                place = int(np.argmax(ill))
                raise BadInput(f"arrival {self._rows_read + place}: {column[place]} is {what}")

    def _summary(self, tier: int, kind: int) -> dict[str, float]:
        counts = self._fleet.sketches["count"][tier, kind]
        total = int(counts.sum())
        if not total:
            return {}
        sum_s, most_s = self._fleet.sums[tier, kind].item()
        return {**{name: quantile_s(counts, at) for name, at in _QUANTILES}, "mean": sum_s / total, "max": most_s}


def stream_of(seed: int, number: int) -> int:
    """64 random bits, signed, for the ``number``-th replica that a fleet is given; the same ones whatever else happens."""
    return random.Random(f"{seed}/steps/{number}").getrandbits(64) - (1 << 63)


def _vet_rules(rules: FleetRules) -> None:
    profile, capacity = rules.profile, rules.capacity
    if not rules.tiers:
        raise ValueError("a fleet has at least one tier")
    if profile.law.base_s <= 0:
        raise ValueError(f"profile {profile.name}: a step takes time, not {profile.law.base_s} s")
    if profile.prefill_chunk_tokens < profile.sequences_max:
        raise ValueError(
            f"profile {profile.name}: a step's {profile.prefill_chunk_tokens} tokens can't hold {profile.sequences_max} decodes"
        )
    if capacity.kv_tokens < 1 or capacity.sequences < 1:
        raise ValueError("the budgets of a replica hold at least one token and one sequence")
    if profile.warm_up.passes < 0 or not profile.warm_up.factor >= 1:
        raise ValueError(f"profile {profile.name}: a warm-up is of 0 passes or more, each at least 1 times as long as later ones")


def _share(part: int, whole: int) -> float:
    """Of nothing, all was kept."""
    return part / whole if whole else 1.0
