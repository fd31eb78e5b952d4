"""B3: Knative's pod autoscaler: requests in flight over a stable window, and a panic window that only raises.

Source: knative/serving 98e5ef90, pkg/autoscaler/scaling/autoscaler.go:150-340. No data in the window: it holds. There is no
signal about tokens, latency or KV, and replicas that start count for nothing: it divides by a target, so it doesn't matter.
"""

import math

import msgspec

from forebay.domain.scaling import Term, TermKind
from forebay.scaling.baselines import reading, windows
from forebay.scaling.baselines.frame import Answer, Seen
from forebay.scaling.baselines.reading import Gap
from forebay.scaling.baselines.windows import Samples
from forebay.scaling.capacity import whole_replicas

TICK_S = 2.0


class KnativeSettings(msgspec.Struct, frozen=True):
    """``target``: requests in flight per replica (already × 70 %); the rest are config-autoscaler's defaults."""

    target: float = 70.0
    stable_s: float = 60.0
    panic_fraction: float = 0.1
    panic_threshold: float = 2.0
    up_rate: float = 1000.0
    down_rate: float = 2.0
    scale_down_delay_s: float = 0.0

    @property
    def panic_s(self) -> float:
        return self.stable_s * self.panic_fraction


class KnativeMemory(msgspec.Struct, frozen=True, array_like=True):
    """``panic_s``: when it was last over the panic threshold; ``panic_most``: the most replicas wanted in this panic."""

    concurrency: Samples = ()
    wanted: Samples = ()
    panic_s: float | None = None
    panic_most: int = 0
    started: bool = False


class Knative:
    """KPA on concurrency; what waits at the gateway is what its activator would hold."""

    tick_s = TICK_S

    def __init__(self, settings: KnativeSettings = KnativeSettings()) -> None:
        self.settings = settings

    def start(self) -> KnativeMemory:
        return KnativeMemory()

    def step(self, seen: Seen, memory: KnativeMemory) -> Answer[KnativeMemory]:
        settings, now_s, ready = self.settings, seen.now_s, max(1, len(seen.ready))
        value = reading.in_flight(seen)
        samples = memory.concurrency if isinstance(value, Gap) else windows.pushed(memory.concurrency, now_s, value, settings.stable_s)
        stable = windows.within(samples, now_s, settings.stable_s)
        if not memory.started and ready > 1:  # A scaler that starts over several replicas starts in panic: it must not lower blindly.
            memory = msgspec.structs.replace(memory, panic_s=now_s, panic_most=ready)
        memory = msgspec.structs.replace(memory, concurrency=samples, started=True)
        if not stable:
            return Answer((reading.hold(seen, "no_data", "nothing was measured within the stable window: it holds"),), memory)
        panic = windows.within(samples, now_s, settings.panic_s)
        # A panic window without a sample of its own shows the last one.
        numbers = {"stable": windows.mean(stable), "panic": windows.mean(panic or stable[-1:]), "target": settings.target}
        by_stable, by_panic = (whole_replicas(numbers[name] / settings.target) for name in ("stable", "panic"))
        least, most = math.floor(ready / settings.down_rate), math.ceil(ready * settings.up_rate)
        panic_s, panic_most = self._panic(memory, now_s, by_panic / ready)
        wanted = min(max(by_stable, least), most)
        stages = [
            Term("stable", TermKind.TRIGGER, wanted, f"{numbers['stable']:.3g} in flight, {settings.target:.3g} per replica", numbers)
        ]
        if panic_s is not None:
            panic_most = wanted = max(wanted, min(max(by_panic, least), most), panic_most)
            stages.append(Term("panic", TermKind.TRIGGER, wanted, "in panic the count only rises", numbers))
        history = windows.pushed(memory.wanted, now_s, float(wanted), settings.scale_down_delay_s)
        if settings.scale_down_delay_s:
            wanted = max(windows.counts(history, now_s, settings.scale_down_delay_s))
            stages.append(Term("scale_down_delay", TermKind.HOLD, wanted, f"the most wanted within {settings.scale_down_delay_s:g} s"))
        return Answer(tuple(stages), KnativeMemory(samples, history, panic_s, panic_most, True))

    def _panic(self, memory: KnativeMemory, now_s: float, over: float) -> tuple[float | None, int]:
        """When it was last over the threshold, and the most it wanted; (None, 0) once it was below for a whole stable window."""
        if over >= self.settings.panic_threshold:
            return now_s, memory.panic_most
        if memory.panic_s is None or memory.panic_s + self.settings.stable_s < now_s:
            return None, 0
        return memory.panic_s, memory.panic_most
