"""B12: kthena: the HPA's arithmetic on a metric of each pod, its own stabilisation, and a panic that only grows.

No metric at all: the tick is skipped. Source: volcano-sh/kthena 3cc05728, algorithm/recommendation.go, revision.go,
autoscaler/scaler.go:131; defaults from webhook/autoscalingpolicy_mutator.go 00d9c98b.
"""

import math

import msgspec

from forebay.domain.scaling import Term, TermKind
from forebay.scaling.baselines import reading, windows
from forebay.scaling.baselines.frame import Answer, Seen
from forebay.scaling.baselines.reading import Gap, Reading
from forebay.scaling.baselines.windows import Samples
from forebay.scaling.capacity import whole_replicas

TICK_S = 15.0


class KthenaSettings(msgspec.Struct, frozen=True):
    """``target``: requests waiting per pod; no default in the source. A panic period of 0 (its default) bounds nothing."""

    target: float = 5.0
    tolerance: float = 0.1
    up_stabilisation_s: float = 0.0
    down_stabilisation_s: float = 300.0
    step_replicas: int = 1
    step_fraction: float = 1.0
    """Per period, or ``step_replicas``, whichever is larger."""
    period_s: float = 15.0
    panic_threshold: float = 2.0
    panic_hold_s: float = 60.0
    panic_fraction: float = 10.0
    panic_period_s: float = 0.0


class KthenaMemory(msgspec.Struct, frozen=True, array_like=True):
    """What was recommended, what was done, and until when the panic lasts."""

    recommended: Samples = ()
    done: Samples = ()
    panic_until_s: float | None = None


class Kthena:
    """Requests waiting per pod."""

    tick_s = TICK_S

    def __init__(self, settings: KthenaSettings = KthenaSettings()) -> None:
        self.settings = settings

    def start(self) -> KthenaMemory:
        return KthenaMemory()

    def step(self, seen: Seen, memory: KthenaMemory) -> Answer[KthenaMemory]:
        settings, now_s, current, limits = self.settings, seen.now_s, seen.current, seen.limits
        if not limits.min_replicas <= current <= limits.max_replicas:
            placed = min(max(current, limits.min_replicas), limits.max_replicas)
            return Answer((Term("limits", TermKind.FLOOR, placed, "outside its limits: back into them first"),), memory)
        wanted = recommended(reading.engine_waiting(seen), settings.target, current, seen.pending, settings.tolerance)
        if wanted is None:
            return Answer((reading.hold(seen, "skipped", "no pod tells what waits: the tick is skipped"),), memory)
        wanted = min(max(wanted, limits.min_replicas), limits.max_replicas)
        stage = Term(
            "waiting", TermKind.TRIGGER, wanted, f"requests waiting per pod, {settings.target:g} aimed at", {"target": settings.target}
        )
        panic_until_s = now_s + settings.panic_hold_s if wanted >= settings.panic_threshold * current else memory.panic_until_s
        if panic_until_s is not None and now_s <= panic_until_s:
            corrected = Term("panic", TermKind.TRIGGER, self._panic(seen, wanted, memory), "in panic the count only grows")
        else:
            because = f"the most wanted within {settings.down_stabilisation_s:g} s, in steps"
            corrected = Term("stable", TermKind.HOLD, self._stable(seen, wanted, memory), because)
        span_s = max(settings.up_stabilisation_s, settings.down_stabilisation_s)
        done_s = max(settings.period_s, settings.panic_period_s)
        kept = KthenaMemory(
            windows.pushed(memory.recommended, now_s, float(wanted), span_s),
            windows.pushed(memory.done, now_s, float(corrected.replicas), done_s),
            panic_until_s,
        )
        return Answer((stage, corrected), kept)

    def _panic(self, seen: Seen, wanted: int, memory: KthenaMemory) -> int:
        settings = self.settings
        if settings.panic_period_s:
            past = min([seen.current, *windows.counts(memory.done, seen.now_s, settings.panic_period_s)])
            if past > 0:
                wanted = min(wanted, past + int(past * settings.panic_fraction))
        return max(wanted, seen.current)

    def _stable(self, seen: Seen, wanted: int, memory: KthenaMemory) -> int:
        settings, now_s, current = self.settings, seen.now_s, seen.current
        past = min([current, *windows.counts(memory.done, now_s, settings.period_s)])
        if wanted < current:
            most = max([wanted, *windows.counts(memory.recommended, now_s, settings.down_stabilisation_s)])
            allowed = min(past - settings.step_replicas, past - int(past * settings.step_fraction))
            return min(max(most, allowed), current)
        least = min([wanted, *windows.counts(memory.recommended, now_s, settings.up_stabilisation_s)])
        allowed = max(past + settings.step_replicas, past + int(past * settings.step_fraction))
        return max(min(least, allowed), current)


def recommended(waits: list[Reading], target: float, current: int, unready: int, tolerance: float) -> int | None:
    """Replicas for a metric of each pod; None: no pod tells it. As the HPA's, but a ratio of exactly 1 counts as rising."""
    values = [value for value in waits if not isinstance(value, Gap)]
    missing = len(waits) - len(values)
    if not values:
        return None
    total = sum(values)
    ratio = total / len(values) / target
    raising = unready > 0 and ratio >= 1
    if not raising and not missing:
        return current if abs(ratio - 1) <= tolerance else whole_replicas(ratio * len(values))
    count = len(values) + missing + (unready if raising else 0)
    total += missing * target if ratio < 1 else 0.0
    guessed = total / count / target
    if abs(guessed - 1) <= tolerance or (ratio < 1) != (guessed < 1):
        return current
    wanted = math.ceil(round(guessed * count, 9))
    return current if (guessed < 1 and wanted > current) or (guessed >= 1 and wanted < current) else wanted
