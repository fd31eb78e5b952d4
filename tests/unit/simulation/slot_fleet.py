"""A tiny fleet for tests of the driver: each replica has ``SLOTS`` places, a request holds one for a second or as long as its output says.

First token 0.1 s after its place; a token each ``TOKEN_S`` then. One line, first come first served.
"""

import itertools
import math
from collections import Counter, deque
from heapq import heapify, heappop, heappush

import numpy as np

from forebay.demand.arrays import Arrivals
from forebay.domain.profile import ColdStart, Profile, StepLaw
from forebay.domain.roster import Capacity, Posture
from forebay.domain.scaling import Decision, Term, TermKind
from forebay.simulation.lab import play
from forebay.simulation.values import ColdStartModel, FleetRules, ReplicaReadings, Scenario, TierResult, TierRules, TierTotals

SLOTS = 4
FIRST_S = 0.1
TOKEN_S = 0.02
OUTPUT = 50
SERVICE_S = FIRST_S + OUTPUT * TOKEN_S
KV_TOKENS = 10_000


class _Request:
    def __init__(self, at_s, prompt, output, tier):
        self.at_s, self.prompt, self.output, self.tier = at_s, prompt, output, tier
        self.first_s = math.nan


class SlotFleet:
    """`SimulatedFleet` with no physics."""

    def __init__(self, rules, arrivals):
        self.rules = rules
        self.now_s = 0.0
        self._rows = ((float(row[0]), int(row[1]), int(row[2]), int(row[3])) for chunk in arrivals for row in zip(*chunk, strict=True))
        self._next = next(self._rows, None)
        self.posture = Posture.OPEN
        self._line = deque()
        self._ends = []
        self._replicas = {}
        self._draining = set()
        self._busy = Counter()
        self._counts = [Counter() for _ in rules.tiers]
        self._recent = []
        self.ttfts = []
        self.calls = []

    @property
    def exhausted(self):
        return self._next is None and not self._line and not self._ends

    def run_until(self, at_s):
        assert at_s >= self.now_s, "time goes back"
        while True:
            arrival_s = self._next[0] if self._next else math.inf
            end_s = self._ends[0][0] if self._ends else math.inf
            expiry_s = self._line[0].at_s + self.rules.tiers[self._line[0].tier].longest_wait_s if self._line else math.inf
            if min(arrival_s, end_s, expiry_s) > at_s:
                break
            self.now_s = max(self.now_s, min(arrival_s, end_s, expiry_s))
            if end_s <= min(arrival_s, expiry_s):
                self._end()
            elif expiry_s <= arrival_s:
                request = self._line.popleft()
                self._counts[request.tier].update(shed=1, ttft_missed=1)
            else:
                self._arrive()
            self._dispatch()
        self.now_s = at_s

    def set_posture(self, posture):
        if posture is not self.posture:
            self.posture = posture
            self.calls.append((self.now_s, "posture", posture.value))

    def _arrive(self):
        at_s, prompt, output, tier = self._next
        self._next = next(self._rows, None)
        self._counts[tier].update(arrived=1, arrived_prompt_tokens=prompt, arrived_output_tokens=output)
        self._line.append(_Request(at_s, prompt, output, tier))

    def _end(self):
        _, _, row, request = heappop(self._ends)
        self._replicas[row].remove(request)
        self._busy[row] += FIRST_S + request.output * TOKEN_S
        rules, count = self.rules.tiers[request.tier], self._counts[request.tier]
        ttft_s = request.first_s - request.at_s
        in_time = ttft_s <= rules.ttft_s
        quick = rules.itl_s >= TOKEN_S
        self.ttfts.append(ttft_s)
        self._recent.append(ttft_s)
        count.update(completed=1, completed_output_tokens=request.output, both_met=in_time and quick)
        count.update(ttft_met=in_time, ttft_missed=not in_time, itl_met=quick, itl_missed=not quick)

    def _dispatch(self):
        free = [row for row, live in self._replicas.items() if row not in self._draining and len(live) < SLOTS]
        while self._line and free:
            row = min(free, key=lambda row: (len(self._replicas[row]), row))
            request = self._line.popleft()
            request.first_s = self.now_s + FIRST_S
            self._replicas[row].append(request)
            heappush(self._ends, (self.now_s + FIRST_S + request.output * TOKEN_S, id(request), row, request))
            if len(self._replicas[row]) >= SLOTS:
                free.remove(row)

    def add(self, warm=False):
        row = next(row for row in range(self.rules.replicas_max) if row not in self._replicas)
        self._replicas[row] = []
        self._busy[row] = 0.0
        self.calls.append((self.now_s, "add", row))
        self._dispatch()
        return row

    def drain(self, row):
        assert row not in self._draining
        self._draining.add(row)
        self.calls.append((self.now_s, "drain", row))

    def cancel_drain(self, row):
        self._draining.remove(row)
        self.calls.append((self.now_s, "cancel_drain", row))
        self._dispatch()

    def idle(self, row):
        return not self._replicas[row]

    def stop(self, row):
        live = self._replicas.pop(row)
        self._draining.discard(row)
        self._ends = [end for end in self._ends if end[2] != row]
        heapify(self._ends)
        cut = [request for request in live if request.first_s <= self.now_s]
        for request in cut:
            self._counts[request.tier].update(cut=1, ttft_met=1)
        self._line.extendleft(request for request in reversed(live) if request not in cut)
        self.calls.append((self.now_s, "stop", row))
        self._dispatch()
        return len(cut)

    def read(self, row, net=False):
        live = [request for request in self._replicas[row] if not (net and self.rules.tiers[request.tier].preemptible)]
        tokens = sum(request.prompt + request.output for request in live)
        return ReplicaReadings(0, len(live), min(1.0, tokens / KV_TOKENS), 0, tokens, self._busy[row], 0)

    def totals(self, tier):
        waiting = [request for request in self._line if request.tier == tier]
        return TierTotals(**self._counts[tier], waiting=len(waiting), waiting_tokens=sum(request.prompt for request in waiting))

    def waiting_since_s(self, tier):
        return np.array([request.at_s for request in self._line if request.tier == tier])

    def recent_quantile_s(self, what, quantile):
        if not self._recent:
            return math.nan
        return float(np.quantile(self._recent, quantile)) if what == "ttft" else TOKEN_S

    def forget_recent(self):
        self._recent = []

    def results(self, tier):
        totals = self.totals(tier)
        first = totals.ttft_met + totals.ttft_missed
        return TierResult(totals, totals.ttft_met / first if first else 1.0, 1.0, totals.both_met / first if first else 1.0)

    def check(self):
        for count, tier in zip(self._counts, range(len(self._counts)), strict=True):
            live = sum(request.tier == tier for live in self._replicas.values() for request in live)
            ended = count["completed"] + count["shed"] + count["cut"]
            assert count["arrived"] == ended + live + sum(request.tier == tier for request in self._line)


PROFILE = Profile(
    "toy", "toy", "toy", 2, StepLaw(0.02, 0.0, 0.0, 0.0), SLOTS, KV_TOKENS, 16, 2048, 1, 8192, ColdStart(60.0, 30e9, 1e9, 30.0)
)
CAPACITY = Capacity(KV_TOKENS, SLOTS, 2048, 10_000.0, SLOTS * OUTPUT / SERVICE_S, 8192)
INTERACTIVE = TierRules("interactive", 1.0, 0.05, 30.0)
BATCH = TierRules("batch", 3600.0, 0.05, 86_400.0, preemptible=True)


def scenario(duration_s=1800.0, tiers=(INTERACTIVE,), **changes):
    """A small world: cold start 120 s (60 to provision, 30 of weights at 1 GB/s, 30 to initialise)."""
    settings = {
        "rules": FleetRules(PROFILE, CAPACITY, tuple(tiers)),
        "cold_start": ColdStartModel(60.0, 30e9, 30.0, node_bandwidth_bytes_per_s=1e9),
        "duration_s": duration_s,
        "gpu_hour_usd": 2.0,
        **changes,
    }
    return Scenario(**settings)


def steady(per_s, until_s, tier=0, output=OUTPUT, prompt=100, from_s=0.0):
    """Evenly spaced arrivals."""
    return rows(np.arange(from_s, until_s, 1.0 / per_s), tier, output, prompt)


def rows(at_s, tier=0, output=OUTPUT, prompt=100):
    """One chunk of these arrivals."""
    at_s = np.asarray(at_s, np.float64)
    count = len(at_s)
    yield Arrivals(
        at_s,
        np.full(count, prompt, np.int32),
        np.full(count, output, np.int32),
        np.full(count, tier, np.int16),
        np.full(count, -1, np.int64),
        np.zeros(count, np.int32),
    )


def counting():
    """A CPU clock that moves by a second a look."""
    ticks = itertools.count()
    return lambda: float(next(ticks))


def played(world, policy, arrivals=(), **more):
    made = []

    def fleet(rules, source):
        made.append(SlotFleet(rules, source))
        return made[0]

    result = play(world, policy, iter(arrivals), name="it", fleet=fleet, cpu_clock=counting(), **more)
    made[0].check()
    return result, made[0]


class Watcher:
    """Keeps every observation, and asks for what it is told to."""

    def __init__(self, replicas=1, look_s=0.0, **decision):
        self.seen = []
        self.replicas, self.look_s, self.decision = replicas, look_s, decision

    def decide(self, observation):
        self.seen.append(observation)
        replicas = self.replicas(observation) if callable(self.replicas) else self.replicas
        look_s = observation.now_s + self.look_s if self.look_s else 0.0
        term = Term("watch", TermKind.FLOOR, replicas, "", self.decision.pop("numbers", {}), binding=True)
        return Decision(observation.pool, observation.now_s, replicas, "watch", (term,), look_again_at_s=look_s, **self.decision)

    @property
    def times(self):
        return [seen.now_s for seen in self.seen]
