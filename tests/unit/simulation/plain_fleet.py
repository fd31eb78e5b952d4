"""The judge of the fast fleet: the same fleet step by step, request by request, over `forebay.engine.batch.Engine`, without a shortcut.

It keeps every latency it sees, so it is for cases of at most some thousands of requests.
"""

import heapq
import math
from bisect import insort
from collections import OrderedDict

import numpy as np

from forebay.admission.kv import peak_kv_tokens
from forebay.domain.errors import BadInput
from forebay.domain.roster import Posture
from forebay.engine.batch import Engine, Finished, Preempted, Token
from forebay.engine.steptime import prefill_s
from forebay.simulation.fast import stream_of
from forebay.simulation.kernel.numbers import (
    COMPLETED,
    CUT,
    IN_FLIGHT,
    PREFIX_LOAD_DENOMINATOR,
    PREFIX_LOAD_NUMERATOR,
    PREFIX_STREAMS_SPARE,
    SHED,
)
from forebay.simulation.values import Dispatch, Order, Queueing, ReplicaReadings, TierResult, TierTotals

STEPS, SUBMIT, EXPIRY, ARRIVAL = range(4)
"""What comes first within one instant."""


class PrefixEngine(Engine):
    """The engine, with leading prompt tokens found in the prefix cache: they hold KV and need no prefill (after a preemption they do)."""

    def __init__(self, profile, stream):
        super().__init__(profile, stream=stream)
        self.cached = {}
        self.busy_s = 0.0
        self.began_s = None
        self.ended = [0, 0.0, 0, 0]
        """Passes, and their seconds, prompt tokens and KV tokens."""
        self.under_way = (0, 0)
        self.blocks = profile.kv_tokens // profile.block_tokens

    def _admit(self, left):
        slots = self.profile.sequences_max - self.running
        while self._waiting and left and slots:
            sequence = next(iter(self._waiting.values()))
            blocks = -(-sequence.target // self._block)
            if blocks > self._blocks_free:
                break
            del self._waiting[sequence.name]
            self._blocks_free -= blocks
            sequence.room = blocks * self._block
            sequence.kv = self.cached.pop(sequence.name, 0)
            self._prefilling[sequence.name] = sequence
            tokens = min(sequence.target - sequence.kv, left)
            self._chunks.append((sequence, tokens))
            left -= tokens
            slots -= 1
        return left

    def _compose(self, start_s, hungry):
        if self.began_s is not None:
            self.busy_s += start_s - self.began_s
            self.ended = [a + b for a, b in zip(self.ended, (1, start_s - self.began_s, *self.under_way), strict=True)]
        super()._compose(start_s, hungry)
        self.under_way = (sum(tokens for _, tokens in self._chunks), self._decoding_kv)
        self.began_s = None if self._ends_s is None else start_s

    def spared(self, is_preemptible):
        """Waiting, running and blocks of those sequences."""
        running = [s for s in (*self._decoding.values(), *self._prefilling.values()) if is_preemptible(s.name)]
        waiting = sum(is_preemptible(s.name) for s in self._waiting.values())
        return waiting, len(running), sum(s.room for s in running) // self._block

    def queued_tokens(self):
        waiting = sum(s.target - self.cached.get(s.name, 0) for s in self._waiting.values())
        return waiting + sum(s.target - s.kv for s in self._prefilling.values())


class Request:
    """One request; ``seq`` is its row of the trace."""

    def __init__(self, seq, at_s, prompt, output, tier, group, shared):
        self.seq, self.at_s, self.prompt, self.output, self.tier = seq, at_s, prompt, output, tier
        self.group = group
        self.shared = min(shared, prompt - 1) if group >= 0 else 0
        self.emitted = 0
        self.uncached = self.outstanding = 0
        self.row = -1
        self.first_s = self.last_s = self.finish_s = math.nan
        self.outcome = IN_FLIGHT
        self.preempted = 0

    def __lt__(self, other):
        return self.seq < other.seq


class Replica:
    """One engine and what the gateway has on it."""

    def __init__(self, profile, stream):
        self.engine = PrefixEngine(profile, stream)
        self.listed = True
        self.permits = {}
        self.worst_tokens = 0
        self.prefill_tokens = 0
        self.chosen_seq = 0
        self.groups = OrderedDict()


class PlainFleet:
    """`SimulatedFleet`, plainly."""

    def __init__(self, rules, arrivals):
        self.rules = rules
        self.now_s = 0.0
        self._chunks = arrivals
        self._chunk, self._place = None, 0
        self._rows_read = 0
        self._read_until_s = 0.0
        self._next = None
        self._replicas = {}
        self._free_rows = list(range(rules.replicas_max))
        self._added = 0
        self._lines = [([], []) for _ in rules.tiers]
        self._submits = []
        self._blocked = None
        self._posture = Posture.OPEN
        self._freed = set()
        self._chosen_seq = 0
        self._last_row = -1
        self._group_row = {}
        self.requests = []
        self.counts = [dict.fromkeys(TierTotals.__struct_fields__, 0) for _ in rules.tiers]
        self.latencies = [{"ttft": [], "itl": [], "tpot": [], "wait": []} for _ in rules.tiers]
        self.recent = {"ttft": [], "tpot": []}
        self._started = False

    # -- arrivals

    def _pull(self):
        """The next arrival into ``_next``; None at the end."""
        while self._chunk is None or self._place == len(self._chunk.at_s):
            self._chunk, self._place = next(self._chunks, None), 0
            if self._chunk is None:
                self._next = None
                return
        chunk, place = self._chunk, self._place
        row = [column[place].item() for column in chunk]
        self._place += 1
        self._vet(*row)
        self._next = Request(self._rows_read, *row)
        self._rows_read += 1
        self._read_until_s = row[0]

    def _vet(self, at_s, prompt, output, tier, _group, shared):
        good = at_s >= self._read_until_s and math.isfinite(at_s) and prompt > 0 and output > 0 and 0 <= tier < len(self.rules.tiers)
        if not good or shared < 0:
            raise BadInput(f"arrival {self._rows_read}")

    # -- time

    def run_until(self, at_s):
        if at_s < self.now_s:
            raise ValueError("time went backwards")
        if not self._started:
            self._started = True
            self._pull()
        while (due := self._due())[0] <= at_s:
            self.now_s = max(self.now_s, due[0])
            if due[1] == STEPS:
                self._end_steps()
            elif due[1] == SUBMIT:
                _, request = self._submits.pop(0)
                self._submit(request)
            elif due[1] == EXPIRY:
                self._expire()
                self._pump()
            else:
                request = self._next
                self._pull()
                self._arrive(request)
        self.now_s = at_s

    def _due(self):
        """When the next thing happens, and which: the first kind among those at one instant."""
        steps_s = min(
            (r.engine.next_deadline_s() for r in self._replicas.values() if r.engine.next_deadline_s() is not None), default=math.inf
        )
        submit_s = self._submits[0][0] if self._submits else math.inf
        arrival_s = self._next.at_s if self._next is not None else math.inf
        return min((steps_s, STEPS), (submit_s, SUBMIT), (self._expiry_s(), EXPIRY), (arrival_s, ARRIVAL))

    def _expiry_s(self):
        heads = [(line[0], tier) for lines, tier in zip(self._lines, self.rules.tiers, strict=True) for line in lines if line]
        return min((head.at_s + tier.longest_wait_s for head, tier in heads), default=math.inf)

    def _end_steps(self):
        for row in sorted(self._replicas):
            for effect in self._replicas[row].engine.advance(self.now_s):
                self._take(row, effect)
        if self._freed:
            self._pump()

    def _take(self, row, effect):
        request = effect.sequence
        counts, seen = self.counts[request.tier], self.latencies[request.tier]
        if isinstance(effect, Preempted):
            counts["preempted"] += 1
            request.preempted += 1
        elif isinstance(effect, Token):
            request.emitted += 1
            if effect.first:
                self._first(row, request)
            else:
                seen["itl"].append(self.now_s - request.last_s)
            request.last_s = self.now_s
        else:
            assert isinstance(effect, Finished)
            self._finish(row, request)

    def _first(self, row, request):
        tier = self.rules.tiers[request.tier]
        request.first_s = self.now_s
        ttft_s = self.now_s - request.at_s
        self.latencies[request.tier]["ttft"].append(ttft_s)
        if not tier.preemptible:
            self.recent["ttft"].append(ttft_s)
        self.counts[request.tier]["ttft_met" if ttft_s <= tier.ttft_s else "ttft_missed"] += 1
        self._replicas[row].prefill_tokens -= request.outstanding
        request.outstanding = 0
        self._freed.add(row)

    def _finish(self, row, request):
        counts, tier = self.counts[request.tier], self.rules.tiers[request.tier]
        request.finish_s, request.outcome = self.now_s, COMPLETED
        self._release(row, request)
        counts["completed"] += 1
        counts["completed_output_tokens"] += request.output
        kept = True
        if request.output > 1:
            tpot_s = (self.now_s - request.first_s) / (request.output - 1)
            self.latencies[request.tier]["tpot"].append(tpot_s)
            if not tier.preemptible:
                self.recent["tpot"].append(tpot_s)
            kept = tpot_s <= tier.itl_s
        counts["itl_met" if kept else "itl_missed"] += 1
        if kept and request.first_s - request.at_s <= tier.ttft_s:
            counts["both_met"] += 1

    def _release(self, row, request):
        replica = self._replicas[row]
        del replica.permits[request.seq]
        replica.worst_tokens -= request.prompt + request.output
        replica.prefill_tokens -= request.outstanding
        request.outstanding = 0
        self._freed.add(row)

    def waiting_since_s(self, tier):
        return np.array([request.at_s for line in self._lines[tier] for request in line])

    # -- lanes

    def _arrive(self, request):
        self.requests.append(request)
        counts = self.counts[request.tier]
        counts["arrived"] += 1
        counts["arrived_prompt_tokens"] += request.prompt
        counts["arrived_output_tokens"] += request.output
        if self._never_fits(request) or (self.rules.queueing is Queueing.ENGINE and self._unstarted() >= self.rules.queued_max):
            self._shed(request)
            return
        self._enqueue(request)
        self._pump()
        if self.rules.queueing is Queueing.GATEWAY and any(request in line for line in self._lines[request.tier]):
            low = self._posture is Posture.SHED_LOW and request.tier > 0
            if low or (self._posture is not Posture.OPEN and self.rules.tiers[request.tier].preemptible):
                self._leave(request)
                self._shed(request)
        self._overflow()

    def set_posture(self, posture):
        self._posture = posture

    def _never_fits(self, request):
        profile, capacity, total = self.rules.profile, self.rules.capacity, request.prompt + request.output
        if total > profile.context_tokens or total - 1 > profile.kv_tokens // profile.block_tokens * profile.block_tokens:
            return True
        if self.rules.queueing is Queueing.ENGINE:
            return False
        return total > capacity.kv_tokens or total > capacity.context_tokens or capacity.sequences < 1

    def _unstarted(self):
        running = sum(not r.emitted for replica in self._replicas.values() for r in replica.permits.values())
        return self._waiting() + running

    def _waiting(self):
        return sum(len(line) for lines in self._lines for line in lines)

    def _late(self, request):
        if self.rules.order is Order.FIFO:
            return False
        profile = self.rules.profile
        shared = request.shared if self.rules.prefix_groups_max else 0
        least_s = profile.front_end_s + prefill_s(profile.law, request.prompt - shared, profile.prefill_chunk_tokens)
        return self.now_s - request.at_s + least_s > self.rules.tiers[request.tier].ttft_s

    def _enqueue(self, request):
        """By order of arrival within its line: one that comes back is first."""
        insort(self._lines[request.tier][int(request.row >= 0 and self._late(request))], request)
        request.row = -1

    def _head(self):
        for on_time, late in self._lines:
            while on_time and self._late(on_time[0]):
                insort(late, on_time.pop(0))
            if on_time or late:
                return (on_time or late)[0]
        return None

    def _overflow(self):
        while self._waiting() > self.rules.queued_max:
            lines = next(lines for lines in reversed(self._lines) if lines[0] or lines[1])
            newest = max(line[-1] for line in lines if line)
            self._leave(newest)
            self._shed(newest)

    def _leave(self, request):
        for line in self._lines[request.tier]:
            if request in line:
                line.remove(request)
        if request is self._blocked:
            self._blocked = None

    def _shed(self, request):
        request.outcome, request.finish_s = SHED, self.now_s
        self.counts[request.tier]["shed"] += 1
        self.counts[request.tier]["ttft_missed"] += 1

    def _expire(self):
        for lines, tier in zip(self._lines, self.rules.tiers, strict=True):
            for line in lines:
                while line and line[0].at_s + tier.longest_wait_s <= self.now_s:
                    request = line[0]
                    self._leave(request)
                    self._shed(request)

    # -- dispatch

    def _pump(self):
        """Dispatch heads for as long as they fit somewhere; a head that was found to fit nowhere is tried where something was freed."""
        while (head := self._head()) is not None:
            listed = {row for row, replica in self._replicas.items() if replica.listed}
            row = self._choose(head, listed & self._freed if head is self._blocked else listed)
            if row is None:
                self._blocked = head
                break
            self._leave(head)
            self._grant(head, row)
        self._freed.clear()

    def _choose(self, request, candidates):
        if self.rules.dispatch is Dispatch.ROUND_ROBIN:
            turn = sorted(candidates, key=lambda row: (row - self._last_row - 1) % self.rules.replicas_max)
            return next((row for row in turn if self._fits(request, row)), None)
        if self.rules.dispatch is Dispatch.PREFIX:
            home = self._group_row.get(request.group)
            if home in candidates and self._not_overloaded(home) and self._fits(request, home):
                return home
        return next((row for row in sorted(candidates, key=self._rank) if self._fits(request, row)), None)

    def _not_overloaded(self, row):
        listed = [replica for replica in self._replicas.values() if replica.listed]
        total = sum(len(replica.permits) for replica in listed)
        streams = len(self._replicas[row].permits)
        return PREFIX_LOAD_DENOMINATOR * (streams - PREFIX_STREAMS_SPARE) * len(listed) <= PREFIX_LOAD_NUMERATOR * total

    def _rank(self, row):
        """Share of the tightest budget, streams, when last chosen, row. An engine's queue has no budgets: streams alone."""
        replica, capacity = self._replicas[row], self.rules.capacity
        load = 0.0
        if self.rules.queueing is Queueing.GATEWAY:
            load = replica.worst_tokens / capacity.kv_tokens
            load = max(load, len(replica.permits) / capacity.sequences)
            if capacity.prefill_tokens:
                load = max(load, replica.prefill_tokens / capacity.prefill_tokens)
        return load, len(replica.permits), replica.chosen_seq, row

    def _cached_on(self, request, row):
        return request.shared if request.group in self._replicas[row].groups else 0

    def _fits(self, request, row):
        if self.rules.queueing is Queueing.ENGINE:
            return True
        replica, capacity = self._replicas[row], self.rules.capacity
        if len(replica.permits) + 1 > capacity.sequences:
            return False
        uncached = request.prompt - self._cached_on(request, row)
        if replica.prefill_tokens and replica.prefill_tokens + uncached > capacity.prefill_tokens:
            return False
        if replica.worst_tokens + request.prompt + request.output <= capacity.kv_tokens:
            return True
        everyone = [request, *replica.permits.values()]
        return peak_kv_tokens((r.output - r.emitted, r.prompt + r.emitted) for r in everyone) <= capacity.kv_tokens

    def _grant(self, request, row):
        replica = self._replicas[row]
        self._chosen_seq += 1
        replica.chosen_seq = self._chosen_seq
        self._last_row = row
        cached = self._cached_on(request, row)
        request.row = row
        request.uncached = request.outstanding = request.prompt - cached
        self.counts[request.tier]["cached_tokens"] += cached
        replica.permits[request.seq] = request
        replica.worst_tokens += request.prompt + request.output
        replica.prefill_tokens += request.outstanding
        self._remember(request, row)
        self.latencies[request.tier]["wait"].append(self.now_s - request.at_s)
        if self.rules.profile.front_end_s > 0:
            self._submits.append((self.now_s + self.rules.profile.front_end_s, request))
        else:
            self._submit(request)

    def _submit(self, request):
        engine = self._replicas[request.row].engine
        engine.cached[request] = request.prompt - request.uncached
        engine.submit(request, request.prompt, request.output, self.now_s)

    def _remember(self, request, row):
        if request.group < 0 or not self.rules.prefix_groups_max:
            return
        groups = self._replicas[row].groups
        groups[request.group] = None
        groups.move_to_end(request.group)
        self._group_row[request.group] = row
        if len(groups) > self.rules.prefix_groups_max:
            self._forget(groups.popitem(last=False)[0], row)

    def _forget(self, group, row):
        if self._group_row.get(group) == row:
            del self._group_row[group]

    # -- replicas

    def add(self):
        if not self._free_rows:
            raise ValueError(f"{self.rules.replicas_max} replicas are the most there may be")
        row = heapq.heappop(self._free_rows)
        self._replicas[row] = Replica(self.rules.profile, stream_of(self.rules.seed, self._added))
        self._added += 1
        self._settle()
        return row

    def drain(self, row):
        self._replicas[row].listed = False

    def cancel_drain(self, row):
        self._replicas[row].listed = True
        self._settle()

    def idle(self, row):
        return not self._replicas[row].permits

    def stop(self, row):
        replica = self._replicas.pop(row)
        heapq.heappush(self._free_rows, row)
        self._freed.discard(row)
        for group in replica.groups:
            self._forget(group, row)
        self._submits = [entry for entry in self._submits if entry[1].row != row]
        cut = 0
        for request in replica.permits.values():
            counts = self.counts[request.tier]
            if request.emitted:
                request.outcome, request.finish_s = CUT, self.now_s
                counts["cut"] += 1
                counts["itl_missed"] += 1
                cut += 1
            else:
                counts["retried"] += 1
                request.outstanding = 0
                request.row = row
                self._enqueue(request)
        self._settle()
        return cut

    def _settle(self):
        """Who may be chosen has changed: whatever is head is tried everywhere."""
        self._blocked = None
        self._expire()
        self._pump()
        self._overflow()

    # -- what can be seen

    @property
    def exhausted(self):
        if not self._started:
            self._started = True
            self._pull()
        return self._next is None and not self._waiting() and all(not r.permits for r in self._replicas.values())

    def read(self, row, net=False):
        replica = self._replicas[row]
        engine = replica.engine
        spared = engine.spared(self._is_preemptible) if net else (0, 0, 0)
        return ReplicaReadings(
            waiting=engine.waiting - spared[0],
            running=engine.running - spared[1],
            kv_usage=engine.kv_usage - spared[2] / engine.blocks,
            queued_tokens=engine.queued_tokens(),
            live_tokens=sum(r.prompt + r.emitted for r in replica.permits.values()),
            busy_s=engine.busy_s + (0.0 if engine.began_s is None else self.now_s - engine.began_s),
            preemptions=engine.preemptions_total,
            passes=engine.ended[0],
            passes_s=engine.ended[1],
            prefilled_tokens=engine.ended[2],
            kv_tokens_read=engine.ended[3],
        )

    def _is_preemptible(self, request):
        return self.rules.tiers[request.tier].preemptible

    def totals(self, tier):
        waiting = [request for line in self._lines[tier] for request in line]
        tokens = sum(r.prompt + r.output for r in waiting)
        return TierTotals(**{**self.counts[tier], "waiting": len(waiting), "waiting_tokens": tokens})

    def recent_quantile_s(self, what, quantile):
        return quantile_of(self.recent[what], quantile)

    def forget_recent(self):
        self.recent = {"ttft": [], "tpot": []}

    def results(self, tier):
        totals, seen = self.totals(tier), self.latencies[tier]
        ended = totals.completed + totals.shed + totals.cut
        return TierResult(
            totals=totals,
            ttft_attainment=share(totals.ttft_met, totals.ttft_met + totals.ttft_missed),
            itl_attainment=share(totals.itl_met, totals.itl_met + totals.itl_missed),
            both_attainment=share(totals.both_met, ended),
            ttft_s=summary(seen["ttft"]),
            itl_s=summary(seen["itl"]),
            tpot_s=summary(seen["tpot"]),
            wait_s=summary(seen["wait"]),
        )

    def check(self):
        waiting = [request for lines in self._lines for line in lines for request in line]
        running = [request for replica in self._replicas.values() for request in replica.permits.values()]
        ended = [request for request in self.requests if request.outcome != IN_FLIGHT]
        seqs = sorted(request.seq for request in [*waiting, *running, *ended])
        assert seqs == list(range(len(self.requests))), "a request is lost or doubled"
        assert len(waiting) <= self.rules.queued_max
        for replica in self._replicas.values():
            replica.engine.check()
            assert replica.worst_tokens == sum(r.prompt + r.output for r in replica.permits.values())
            assert replica.prefill_tokens == sum(r.outstanding for r in replica.permits.values())
            if self.rules.queueing is Queueing.GATEWAY:
                assert len(replica.permits) <= self.rules.capacity.sequences
        for lines in self._lines:
            assert all(line == sorted(line) for line in lines)
        for counts in self.counts:
            assert counts["ttft_met"] + counts["ttft_missed"] <= counts["arrived"]


def share(part, whole):
    return part / whole if whole else 1.0


def quantile_of(values, quantile):
    """The smallest value that at least ``quantile`` of all do not exceed; NaN for none."""
    return float(sorted(values)[max(0, math.ceil(quantile * len(values)) - 1)]) if values else math.nan


def summary(values):
    if not values:
        return {}
    quantiles = {name: quantile_of(values, at) for name, at in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))}
    return {**quantiles, "mean": float(np.mean(values)), "max": max(values)}
