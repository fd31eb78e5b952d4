"""B13: dstack: requests per second against a target per replica, five minutes apart up and ten down.

No statistics: the count stays, fail-static. Source: dstackai/dstack 511c318c, server/services/services/autoscalers.py.
"""

import msgspec

from forebay.domain.scaling import Term, TermKind
from forebay.scaling.baselines import reading, windows
from forebay.scaling.baselines.frame import Answer, Seen
from forebay.scaling.baselines.reading import Gap
from forebay.scaling.baselines.windows import Samples
from forebay.scaling.capacity import whole_replicas

TICK_S = 10.0


class DstackSettings(msgspec.Struct, frozen=True):
    """``target_rate_per_s`` has no default in the source: its user must give one."""

    target_rate_per_s: float
    window_s: float = 60.0
    up_delay_s: float = 300.0
    down_delay_s: float = 600.0


class DstackMemory(msgspec.Struct, frozen=True, array_like=True):
    """Rates of the window, and when it scaled last."""

    rates: Samples = ()
    scaled_s: float | None = None


class Dstack:
    """`RPSAutoscaler`."""

    tick_s = TICK_S

    def __init__(self, settings: DstackSettings) -> None:
        self.settings = settings

    def start(self) -> DstackMemory:
        return DstackMemory()

    def step(self, seen: Seen, memory: DstackMemory) -> Answer[DstackMemory]:
        settings, now_s, current = self.settings, seen.now_s, seen.current
        rate = reading.read(seen.observation.arrival_per_s)
        if isinstance(rate, Gap):
            return Answer((reading.hold(seen, "no_stats", "there are no statistics: the count stays"),), memory)
        samples = windows.pushed(memory.rates, now_s, rate, settings.window_s)
        rps = windows.mean(windows.within(samples, now_s, settings.window_s))
        wanted = min(max(whole_replicas(rps / settings.target_rate_per_s), seen.limits.min_replicas), seen.limits.max_replicas)
        numbers = {"rate_per_s": rps, "target_per_s": settings.target_rate_per_s}
        stages = [Term("rps", TermKind.TRIGGER, wanted, f"{rps:.3g}/s, {settings.target_rate_per_s:.3g}/s per replica", numbers)]
        delay_s = settings.up_delay_s if wanted > current else settings.down_delay_s
        scaled_s = memory.scaled_s
        if wanted != current:
            if current == 0 or scaled_s is None or now_s - scaled_s >= delay_s:
                scaled_s = now_s
            else:
                stages.append(Term("delay", TermKind.HOLD, current, f"at least {delay_s:g} s after the change before"))
        return Answer(tuple(stages), DstackMemory(samples, scaled_s))
