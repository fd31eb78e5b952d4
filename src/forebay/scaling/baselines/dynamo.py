"""B6 and B7: NVIDIA Dynamo's planner on aggregated engines: ±1 by load each tick, and in SLA mode floors from a forecast.

Its engines push metrics of each pass; an engine that is silent, or a count that differs from the one expected, makes it
observe only: a start that never ends freezes it. Traffic comes from Prometheus, and a failed read there is *zero* requests
(ai-dynamo/dynamo#14765). Its GPU budget of 8 is left to the pool's max. What a pass takes it is told, or learns (`dynamo_fit`), and
it learns while it only observes, too. Source: planner/core/load_scaling.py 0c6da1ec, throughput_scaling.py 0c9050c9,
predictors.py 260b6ae9.
"""

import msgspec

from forebay.domain.scaling import Term, TermKind
from forebay.scaling.baselines import ar, dynamo_fit, dynamo_model, reading, windows
from forebay.scaling.baselines.dynamo_fit import Fit, FitSettings
from forebay.scaling.baselines.dynamo_model import Plane, Shape
from forebay.scaling.baselines.frame import Answer, Seen
from forebay.scaling.baselines.reading import Gap
from forebay.scaling.baselines.settings import Targets
from forebay.scaling.baselines.windows import Samples
from forebay.scaling.baselines.wva import lengths
from forebay.scaling.capacity import whole_replicas

LOAD_TICK_S = 5.0
THROUGHPUT_TICK_S = 180.0
INTERVALS_MAX = 50

Loads = list[tuple[float, float]]
"""Per engine: KV tokens scheduled, and prompt tokens queued."""


class EasyMemory(msgspec.Struct, frozen=True, array_like=True):
    """Nothing."""


class EasySettings(msgspec.Struct, frozen=True):
    """``optimization_target: throughput`` (the default); for ``latency`` the source has 0.4 and 0.1."""

    up: float = 1.0
    down: float = 0.6


class DynamoEasy:
    """KV in use and queued prompts ÷ KV: one more where any engine is above, one fewer where all are below."""

    tick_s = LOAD_TICK_S

    def __init__(self, targets: Targets, settings: EasySettings = EasySettings()) -> None:
        self.targets = targets
        self.settings = settings

    def start(self) -> EasyMemory:
        return EasyMemory()

    def step(self, seen: Seen, memory: EasyMemory) -> Answer[EasyMemory]:
        found = loads(seen, self.targets)
        if isinstance(found, Term):
            return Answer((found,), memory)
        usage = [(kv + queued) / self.targets.profile.kv_tokens for kv, queued in found]
        numbers = {"least": min(usage), "most": max(usage)}
        current = seen.current
        if max(usage) > self.settings.up:
            stage = Term("above", TermKind.TRIGGER, current + 1, f"an engine is above {self.settings.up:.0%} of its KV", numbers)
        elif current > 1 and max(usage) < self.settings.down:
            stage = Term("below", TermKind.SCALE_IN, current - 1, f"all engines are below {self.settings.down:.0%}", numbers)
        else:
            stage = Term("no_change", TermKind.TRIGGER, current, "between the thresholds", numbers)
        return Answer((stage,), memory)


class SlaSettings(msgspec.Struct, frozen=True):
    """``sensitivity``: share of the SLA that may be used after a step down. The SLAs are the pool's promises (source: 0.5 s, 50 ms)."""

    sensitivity: float = 0.8
    throughput_tick_s: float = THROUGHPUT_TICK_S
    fit: FitSettings | None = None
    """How it learns what a pass takes; None: it is given the profile's law."""


class SlaMemory(msgspec.Struct, frozen=True, array_like=True):
    """Rates since the last throughput tick; requests of each past interval; the floor; when the next interval ends; what passes took."""

    rates: Samples = ()
    intervals: tuple[float, ...] = ()
    floor: int = 0
    due_s: float | None = None
    fit: Fit = Fit()


class DynamoSla:
    """Estimated TTFT and ITL of every engine against the SLA, one step a tick, above the throughput floor."""

    tick_s = LOAD_TICK_S

    def __init__(self, targets: Targets, settings: SlaSettings = SlaSettings()) -> None:
        self.targets = targets
        self.settings = settings

    def start(self) -> SlaMemory:
        return SlaMemory()

    def step(self, seen: Seen, memory: SlaMemory) -> Answer[SlaMemory]:
        shape = Shape(*lengths(seen, self.targets))
        fit, plane = self._plane(seen, memory, shape)
        memory, floor = self._floor(seen, memory, fit, plane, shape)
        found = loads(seen, self.targets)
        if isinstance(found, Term):  # Floors act only through the load mode, and that only observes now.
            return Answer((found,), memory)
        if plane is None:
            return Answer(
                (reading.hold(seen, "model_not_ready", "too few passes were seen, or they take less time for more tokens"),), memory
            )
        by_ttft = self._by_ttft(seen, found, plane, shape)
        by_itl = self._by_itl(seen, found, plane, shape)
        wanted = seen.current
        if max(by_ttft.replicas, by_itl.replicas) > wanted:
            wanted += 1
        elif by_ttft.replicas < wanted and by_itl.replicas < wanted:
            wanted -= 1
        combined = Term("load", TermKind.TRIGGER, wanted, "up if either breaks on all engines, down if neither would")
        stages = [by_ttft, by_itl, combined]
        if floor is not None:
            stages.append(msgspec.structs.replace(floor, replicas=max(wanted, floor.replicas)))
        return Answer(tuple(stages), memory)

    def _plane(self, seen: Seen, memory: SlaMemory, shape: Shape) -> tuple[Fit, Plane | None]:
        """What it remembers of passes, and what it believes that one takes."""
        settings = self.settings.fit
        if settings is None:
            return memory.fit, dynamo_model.given(self.targets.profile, shape)
        fit = dynamo_fit.observed(memory.fit, seen.ready, settings)
        return fit, dynamo_fit.plane(fit, settings)

    def _floor(self, seen: Seen, memory: SlaMemory, fit: Fit, plane: Plane | None, shape: Shape) -> tuple[SlaMemory, Term | None]:
        """The throughput mode: once per interval, replicas for the requests forecast for the next one."""
        now_s, interval_s = seen.now_s, self.settings.throughput_tick_s
        rate = reading.read(seen.observation.arrival_per_s)
        rates = memory.rates
        if not isinstance(rate, Gap):
            rates = windows.pushed(rates, now_s, rate, interval_s)
        due_s = now_s + interval_s if memory.due_s is None else memory.due_s
        intervals, floor = memory.intervals, memory.floor
        if now_s >= due_s:
            due_s = max(due_s + interval_s, now_s)
            if rate not in (Gap.NAN, Gap.FROZEN):  # The planner holds on NaN traffic; a read that failed has become 0 before it looks.
                requests = 0.0 if isinstance(rate, Gap) else windows.mean(windows.within(rates, now_s, interval_s)) * interval_s
                if requests or intervals:  # Leading idle time is skipped.
                    intervals = (*intervals[-(INTERVALS_MAX - 1) :], requests)
                best = self._best_rate(plane, shape)
                floor = max(1, whole_replicas(ar.one_ahead(intervals) / interval_s / best)) if best > 0 else floor
        term = None
        if floor:
            term = Term("throughput_floor", TermKind.FLOOR, floor, f"forecast for the next {interval_s:g} s ÷ the rate of one engine")
        return SlaMemory(rates, intervals, floor, due_s, fit), term

    def _best_rate(self, plane: Plane | None, shape: Shape) -> float:
        """0: not known."""
        targets = self.targets
        return 0.0 if plane is None else dynamo_model.best_rate(plane, targets.profile, shape, targets.ttft_s, targets.itl_s)

    def _by_ttft(self, seen: Seen, found: Loads, plane: Plane, shape: Shape) -> Term:
        chunk, sla, current = self.targets.profile.prefill_chunk_tokens, self.targets.ttft_s, seen.current
        estimates = [dynamo_model.ttft_s(plane, chunk, shape, queued, kv) for kv, queued in found]
        numbers = {"least_s": min(estimates), "most_s": max(estimates), "sla_s": sla}
        if min(estimates) > sla:
            return Term("ttft", TermKind.TRIGGER, current + 1, "TTFT would break on every engine", numbers)
        if current > 1 and all(self._ttft_holds(plane, shape, kv * _more(current), queued * _more(current)) for kv, queued in found):
            return Term("ttft", TermKind.SCALE_IN, current - 1, "TTFT would hold on one engine fewer", numbers)
        return Term("ttft", TermKind.TRIGGER, current, "TTFT holds, and might not on one engine fewer", numbers)

    def _ttft_holds(self, plane: Plane, shape: Shape, kv: float, queued: float) -> bool:
        """Whether the queue's part of the TTFT stays within its share once a request's own part is paid."""
        chunk = self.targets.profile.prefill_chunk_tokens
        own = dynamo_model.ttft_s(plane, chunk, shape, 0.0, kv)
        budget = (self.targets.ttft_s - own) * self.settings.sensitivity
        return budget > 0 and dynamo_model.ttft_s(plane, chunk, shape, queued, kv) - own < budget

    def _by_itl(self, seen: Seen, found: Loads, plane: Plane, shape: Shape) -> Term:
        profile, sla, current = self.targets.profile, self.targets.itl_s, seen.current
        prefill = windows.mean(kv for kv, _ in found) / shape.context_tokens * shape.prompt_tokens / shape.output_tokens
        estimates = [dynamo_model.itl_s(plane, shape, prefill, kv) for kv, _ in found]
        numbers = {"least_s": min(estimates), "most_s": max(estimates), "sla_s": sla}
        if min(estimates) > sla:
            return Term("itl", TermKind.TRIGGER, current + 1, "ITL would break on every engine", numbers)
        after = [(kv + queued) * _more(current) for kv, queued in found]
        fits = max(after) < profile.kv_tokens and dynamo_model.itl_s(plane, shape, prefill, max(after)) < sla * self.settings.sensitivity
        if current > 1 and fits:
            return Term("itl", TermKind.SCALE_IN, current - 1, "ITL would hold on one engine fewer", numbers)
        return Term("itl", TermKind.TRIGGER, current, "ITL holds, and might not on one engine fewer", numbers)


def loads(seen: Seen, targets: Targets) -> Loads | Term:
    """What the engines report of their passes; a hold where the planner would only observe."""
    if not seen.ready:
        return reading.hold(seen, "no_fpm_data", "no engine reports its passes")
    if seen.pending or len(seen.ready) != seen.current:
        return reading.hold(seen, "scaling_in_progress", f"{len(seen.ready)} engines of {seen.current} are there: it only observes")
    prompt, _ = lengths(seen, targets)
    share = reading.lanes_share(seen) * prompt
    found: Loads = []
    for replica in seen.ready:
        kv, queued = reading.known(replica.kv_usage), reading.known(replica.queued_tokens)
        waiting = reading.known(replica.waiting)
        if kv is None or (queued is None and waiting is None):
            return reading.hold(seen, "worker_count_mismatch", f"{replica.id} does not report: it only observes")
        found.append((kv * targets.profile.kv_tokens, share + (queued if queued is not None else (waiting or 0.0) * prompt)))
    return found


def _more(current: int) -> float:
    """What one engine fewer would have to take on, as a factor."""
    return current / (current - 1) if current > 1 else 1.0
