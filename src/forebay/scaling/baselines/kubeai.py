"""B11: KubeAI: the mean of active requests over ten minutes against a target per replica.

The mean begins as if there had been ten minutes of nothing, and a step of load is half seen after five. What its proxies hold
counts, and its proxy itself starts the first replica. One proxy that can't be read skips the whole tick: fail-static.
Source: kubeai-project/kubeai f442a2cd, internal/modelautoscaler/autoscaler.go, internal/modelclient/scale.go.
"""

import msgspec

from forebay.domain.scaling import Term, TermKind
from forebay.scaling.baselines import reading, windows
from forebay.scaling.baselines.direction import Direction
from forebay.scaling.baselines.frame import Answer, Seen
from forebay.scaling.baselines.reading import Gap
from forebay.scaling.baselines.windows import Samples
from forebay.scaling.capacity import whole_replicas

TICK_S = 10.0


class KubeAiSettings(msgspec.Struct, frozen=True):
    """``target_requests`` is 100 in the source; a model's entry says its own."""

    target_requests: float = 100.0
    window_s: float = 600.0
    down_delay_s: float = 30.0


class KubeAiMemory(msgspec.Struct, frozen=True, array_like=True):
    """Active requests of the window, the first tick of all, and the direction wanted."""

    active: Samples = ()
    began_s: float | None = None
    direction: Direction = Direction()


class KubeAi:
    """Active requests, smoothed."""

    tick_s = TICK_S

    def __init__(self, settings: KubeAiSettings = KubeAiSettings()) -> None:
        self.settings = settings

    def start(self) -> KubeAiMemory:
        return KubeAiMemory()

    def step(self, seen: Seen, memory: KubeAiMemory) -> Answer[KubeAiMemory]:
        settings, now_s, current = self.settings, seen.now_s, seen.current
        value = reading.in_flight(seen)
        if isinstance(value, Gap) or isinstance(reading.read(seen.observation.lanes_waiting), Gap):
            return Answer((reading.hold(seen, "skipped", "a proxy can't be read: the tick is skipped"),), memory)
        began_s = now_s if memory.began_s is None else memory.began_s
        samples = windows.pushed(memory.active, now_s, value, settings.window_s)
        covered = min(1.0, (now_s - began_s + TICK_S) / settings.window_s)
        mean = windows.mean(windows.within(samples, now_s, settings.window_s)) * covered
        wanted = whole_replicas(mean / settings.target_requests)
        numbers = {"active": mean, "target": settings.target_requests}
        stages = [
            Term("active_requests", TermKind.TRIGGER, wanted, f"{mean:.3g} active, {settings.target_requests:.3g} per replica", numbers)
        ]
        if current == 0 and value > 0:
            wanted = max(1, wanted)
            stages.append(Term("proxy_wakes", TermKind.TRIGGER, wanted, "the proxy starts the first replica at once and holds the request"))
        direction = memory.direction.towards(wanted, current, now_s)
        if direction.sign < 0 and direction.for_s(now_s) < settings.down_delay_s:
            stages.append(Term("delay", TermKind.HOLD, current, f"down once it has wanted that for {settings.down_delay_s:g} s"))
        return Answer(tuple(stages), KubeAiMemory(samples, began_s, direction))
