"""B4 and B5: llm-d's Workload Variant Autoscaler, its first law (percentages) and its present one (tokens), behind an HPA.

It publishes a number and an HPA acts on it: 15 s, tolerance 10 % (from ten replicas on, a step of one is swallowed), up at
once, down after the sample's 60 s. Missing metrics: what it wanted before stands, or what is there: fail-static. One variant,
one role. To zero it goes by its own retention rule, which is left out: at least one replica stays.
Source: llm-d-workload-variant-autoscaler 2976e4ee, internal/saturationv1, internal/engines/analyzers/saturation_v2.
"""

import math

import msgspec

from forebay.domain.scaling import Term, TermKind
from forebay.scaling.baselines import hpa, reading, windows
from forebay.scaling.baselines.frame import Answer, Seen
from forebay.scaling.baselines.hpa import HpaMemory, HpaSettings
from forebay.scaling.baselines.maxima import Past, over_the_minute
from forebay.scaling.baselines.settings import Targets
from forebay.scaling.baselines.windows import Samples
from forebay.scaling.capacity import whole_replicas

TICK_S = 15.0
SAMPLE_HPA = HpaSettings(down_stabilisation_s=60.0)
OBSERVED_MAX = 10
"""Capacities observed under a queue, per length of answer, in the rolling mean."""
OBSERVED_S = 24 * 3600.0


class SaturationV1(msgspec.Struct, frozen=True):
    """Thresholds of the first law (constants.go)."""

    kv_saturated: float = 0.80
    queue_saturated: float = 5.0
    kv_spare: float = 0.10
    queue_spare: float = 3.0
    hpa: HpaSettings = SAMPLE_HPA


class V1Memory(msgspec.Struct, frozen=True, array_like=True):
    """``wanted``: the number published last; -1: none yet."""

    past: Past = ()
    wanted: int = -1
    hpa: HpaMemory = HpaMemory()


class WvaV1:
    """Spare KV and spare queue of the replicas that are not saturated; one step at a time; frozen while anything is under way."""

    tick_s = TICK_S

    def __init__(self, settings: SaturationV1 = SaturationV1()) -> None:
        self.settings = settings

    def start(self) -> V1Memory:
        return V1Memory()

    def step(self, seen: Seen, memory: V1Memory) -> Answer[V1Memory]:
        peaks, past = over_the_minute(seen, memory.past, with_lanes=True)
        wanted, stage = self._wanted(seen, peaks, memory.wanted)
        wanted = _bounded(wanted, seen)
        answer = hpa.behave(self.settings.hpa, seen, _published(wanted, seen, self.settings.hpa), memory.hpa)
        return Answer((stage, *answer.stages), V1Memory(past, wanted, answer.memory))

    def _wanted(self, seen: Seen, peaks: list[tuple[float, float]], before: int) -> tuple[int, Term]:
        current = seen.current
        if not peaks:
            kept = before if before >= 0 else current
            return kept, reading.hold(seen, "safety_net", "no replica tells its load: what was wanted stands")
        if seen.pending or before not in (-1, current):
            kept = before if before >= 0 else current
            return kept, Term("transition", TermKind.HOLD, kept, "a change is under way: everything is frozen")
        s = self.settings
        spare = [
            (s.kv_saturated - kv, s.queue_saturated - queue) for kv, queue in peaks if kv < s.kv_saturated and queue < s.queue_saturated
        ]
        n = len(spare)
        kv, queue = windows.mean(each[0] for each in spare), windows.mean(each[1] for each in spare)
        numbers = {"unsaturated": float(n), "spare_kv": kv, "spare_queue": queue}
        if kv < s.kv_spare or queue < s.queue_spare:
            return current + 1, Term("saturated", TermKind.TRIGGER, current + 1, "too little is spare: one more", numbers)
        if n >= 2 and current > 1:
            left_kv = s.kv_saturated - (s.kv_saturated - kv) * n / (n - 1)
            left_queue = s.queue_saturated - (s.queue_saturated - queue) * n / (n - 1)
            if left_kv >= s.kv_spare and left_queue >= s.queue_spare:
                return current - 1, Term("spare", TermKind.SCALE_IN, current - 1, "one fewer would leave enough spare", numbers)
        return current, Term("steady", TermKind.TRIGGER, current, "neither too much nor too little is spare", numbers)


class SaturationV2(msgspec.Struct, frozen=True):
    """Thresholds of the present law."""

    kv_usable: float = 0.80
    queue_observed: float = 5.0
    up: float = 0.85
    down: float = 0.70
    hpa: HpaSettings = SAMPLE_HPA


class V2Memory(msgspec.Struct, frozen=True, array_like=True):
    """``observed``: capacities seen under a queue, by length of answer: below 100 tokens, below 500, longer."""

    past: Past = ()
    wanted: int = -1
    observed: tuple[Samples, Samples, Samples] = ((), (), ())
    hpa: HpaMemory = HpaMemory()


class WvaV2:
    """Tokens demanded against the tokens that a replica was seen to hold when a queue formed."""

    tick_s = TICK_S

    def __init__(self, targets: Targets, settings: SaturationV2 = SaturationV2()) -> None:
        self.targets = targets
        self.settings = settings

    def start(self) -> V2Memory:
        return V2Memory()

    def step(self, seen: Seen, memory: V2Memory) -> Answer[V2Memory]:
        peaks, past = over_the_minute(seen, memory.past, with_lanes=False)
        if not peaks:
            wanted = memory.wanted if memory.wanted >= 0 else seen.current
            observed = memory.observed
            stage = reading.hold(seen, "safety_net", "no replica tells its load: what was wanted stands")
        else:
            wanted, stage, observed = self._wanted(seen, peaks, memory.observed)
        wanted = _bounded(wanted, seen)
        answer = hpa.behave(self.settings.hpa, seen, _published(wanted, seen, self.settings.hpa), memory.hpa)
        return Answer((stage, *answer.stages), V2Memory(past, wanted, observed, answer.memory))

    def _wanted(
        self, seen: Seen, peaks: list[tuple[float, float]], observed: tuple[Samples, Samples, Samples]
    ) -> tuple[int, Term, tuple[Samples, Samples, Samples]]:
        prompt, output = lengths(seen, self.targets)
        kv_tokens = self.targets.profile.kv_tokens
        bucket = 0 if output < 100 else 1 if output < 500 else 2
        kept = tuple(sample for sample in observed[bucket] if sample[0] > seen.now_s - OBSERVED_S)
        kept += tuple((seen.now_s, kv * kv_tokens) for kv, queue in peaks if queue >= self.settings.queue_observed and kv > 0)
        kept = kept[-OBSERVED_MAX:]
        by_memory = kv_tokens * self.settings.kv_usable
        rolling = windows.mean(value for _, value in kept) if kept else self._derived(prompt, output)
        # A replica under a queue shows its limit itself; the others are taken to have the mean of what was seen.
        capacities = sorted(
            min(by_memory, kv * kv_tokens if queue >= self.settings.queue_observed and kv > 0 else rolling) for kv, queue in peaks
        )
        each = max(1.0, capacities[(len(capacities) - 1) // 2])
        demand = sum(kv * kv_tokens + queue * (prompt + output) for kv, queue in peaks)
        demand += (reading.known(seen.observation.lanes_waiting) or 0.0) * (prompt + output)
        supply = each * len(peaks)
        required = demand / self.settings.up - (supply + each * seen.pending)
        spare = supply - demand / self.settings.down
        numbers = {"demand_tokens": demand, "supply_tokens": supply, "per_replica_tokens": each, "pending": float(seen.pending)}
        current = seen.current
        wanted, name, kind = current, "steady", TermKind.TRIGGER
        if required > 0:
            wanted, name = current + whole_replicas(required / each), "required_capacity"
        elif spare >= each:
            wanted, name, kind = max(1, current - math.floor(spare / each)), "spare_capacity", TermKind.SCALE_IN
        stage = Term(name, kind, wanted, f"{demand:.0f} tokens are in use or wait, {each:.0f} fit a replica", numbers)
        learned = (kept if bucket == 0 else observed[0], kept if bucket == 1 else observed[1], kept if bucket == 2 else observed[2])
        return wanted, stage, learned

    def _derived(self, prompt: float, output: float) -> float:
        """Tokens in a replica whose steps are full, from the engine's arguments."""
        profile = self.targets.profile
        sequences = min(profile.prefill_chunk_tokens * output / (prompt + output), profile.sequences_max)
        return sequences * (prompt + output / 2)


def lengths(seen: Seen, targets: Targets) -> tuple[float, float]:
    """Mean prompt and output tokens of what arrives now; the declared ones where that is not known."""
    rate = reading.known(seen.observation.arrival_per_s)
    prompt = reading.known(seen.observation.arrival_prompt_tokens_per_s)
    output = reading.known(seen.observation.arrival_output_tokens_per_s)
    if not rate or not prompt or not output:
        return targets.prompt_tokens, targets.output_tokens
    return max(1.0, prompt / rate), max(1.0, output / rate)


def _bounded(wanted: int, seen: Seen) -> int:
    """It knows the limits of the HPA that acts for it, and wants nothing beyond them."""
    return min(max(wanted, seen.limits.min_replicas, 1), seen.limits.max_replicas)


def _published(wanted: int, seen: Seen, settings: HpaSettings) -> int:
    """What the HPA makes of the published number: ``AverageValue``, target 1, with its tolerance; it never reaches 0."""
    return max(1, hpa.average_value(float(wanted), 1.0, seen.current, settings.tolerance))
