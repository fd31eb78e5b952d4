"""B8: AIBrix's own autoscaler (APA), with its faults, and once more without them.

Its stabiliser takes the *least* of 300 s on the way down (an HPA takes the most), so one low sample in five minutes wins. A
metric that can't be fetched is 0.0 and no error: an outage is zero load. Replicas that start count for nothing and do not
hold anything back. Source: vllm-project/aibrix e3e10f9e, algorithm/apa.go, podautoscaler_controller.go:1215-1296,
metrics/fetcher.go:100-279.
"""

import math

import msgspec

from forebay.domain.scaling import Term, TermKind
from forebay.scaling.baselines import reading, windows
from forebay.scaling.baselines.frame import Answer, Seen
from forebay.scaling.baselines.reading import Gap
from forebay.scaling.baselines.windows import Samples
from forebay.scaling.capacity import whole_replicas

TICK_S = 10.0


class ApaSettings(msgspec.Struct, frozen=True):
    """``target``: mean KV usage per pod, 0.5 in its samples; the rest are its annotations' defaults. ``fixed``: without the faults."""

    target: float = 0.5
    up_rate: float = 2.0
    down_rate: float = 2.0
    tolerance: float = 0.1
    window_s: float = 180.0
    up_cooldown_s: float = 0.0
    down_cooldown_s: float = 300.0
    fixed: bool = False


class ApaMemory(msgspec.Struct, frozen=True, array_like=True):
    """Means over the pods, and what was recommended."""

    usage: Samples = ()
    recommended: Samples = ()


class Apa:
    """KV usage, averaged over the pods, against a target with a tolerance."""

    tick_s = TICK_S

    def __init__(self, settings: ApaSettings = ApaSettings()) -> None:
        self.settings = settings

    def start(self) -> ApaMemory:
        return ApaMemory()

    def step(self, seen: Seen, memory: ApaMemory) -> Answer[ApaMemory]:
        settings, now_s, current = self.settings, seen.now_s, seen.current
        if current == 0 and seen.limits.min_replicas:
            return Answer((reading.hold(seen, "disabled", "at 0 replicas it counts as switched off"),), memory)
        usage = self._usage(seen)
        if usage is None:
            return Answer((reading.hold(seen, "no_metric", "there is no number to go by"),), memory)
        samples = windows.pushed(memory.usage, now_s, usage, settings.window_s)
        mean = windows.mean(windows.within(samples, now_s, settings.window_s))
        ratio = mean / settings.target
        wanted = current
        if ratio > 1 + settings.tolerance:
            wanted = min(whole_replicas(current * ratio), math.ceil(current * settings.up_rate))
        elif ratio < 1 - settings.tolerance:
            wanted = max(whole_replicas(current * ratio), math.floor(current / settings.down_rate))
        numbers = {"usage": mean, "target": settings.target}
        stage = Term(
            "apa", TermKind.TRIGGER, wanted, f"KV is {mean:.1%} full over {settings.window_s:g} s, {settings.target:.1%} aimed at", numbers
        )
        recommended = windows.pushed(memory.recommended, now_s, float(wanted), max(settings.up_cooldown_s, settings.down_cooldown_s))
        stable, because = self._stabilised(windows_of=recommended, now_s=now_s, wanted=wanted, current=current)
        return Answer((stage, Term("stabilisation", TermKind.HOLD, stable, because)), ApaMemory(samples, recommended))

    def _usage(self, seen: Seen) -> float | None:
        """The mean over the pods; None: nothing to go by."""
        told = [reading.read(replica.kv_usage) for replica in seen.ready]
        if self.settings.fixed:
            known = [value for value in told if not isinstance(value, Gap)]
            return windows.mean(known) if known else None
        if not told or Gap.NAN in told or Gap.FROZEN in told:
            return None  # A NaN is above and below nothing, and on old numbers nothing changes.
        return windows.mean(0.0 if isinstance(value, Gap) else value for value in told)

    def _stabilised(self, windows_of: Samples, now_s: float, wanted: int, current: int) -> tuple[int, str]:
        settings = self.settings
        if wanted == current:
            return current, "nothing to do"
        if wanted > current:
            return max([wanted, *windows.counts(windows_of, now_s, settings.up_cooldown_s)]), "the most of the up cooldown"
        past = [wanted, *windows.counts(windows_of, now_s, settings.down_cooldown_s)]
        if settings.fixed:
            return min(current, max(past)), f"the most wanted within {settings.down_cooldown_s:g} s"
        return min(past), f"the least wanted within {settings.down_cooldown_s:g} s"
