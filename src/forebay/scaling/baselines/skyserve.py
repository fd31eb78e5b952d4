"""B10: SkyServe: requests per second against a target per replica, five minutes up and twenty down, with spot fallback.

Fallback as far as one pool can show it: while spot replicas are not ready, as many on-demand ones are asked for beside
them, and let go once they are. Which replica is spot can't be told here, so whatever is ready counts. How it reads an
outage of its metrics was not verified: it is taken to hold. Source: skypilot-org/skypilot 6c4a9281, sky/serve/autoscalers.py.
"""

import msgspec

from forebay.domain.scaling import Term, TermKind
from forebay.scaling.baselines import reading, windows
from forebay.scaling.baselines.direction import Direction
from forebay.scaling.baselines.frame import Answer, Seen
from forebay.scaling.baselines.reading import Gap
from forebay.scaling.baselines.windows import Samples
from forebay.scaling.capacity import whole_replicas

TICK_S = 20.0


class SkySettings(msgspec.Struct, frozen=True):
    """``target_rate_per_s`` has no default in the source: its user must give one."""

    target_rate_per_s: float
    window_s: float = 60.0
    up_delay_s: float = 300.0
    down_delay_s: float = 1200.0
    overprovision: int = 0
    fallback: bool = True


class SkyMemory(msgspec.Struct, frozen=True, array_like=True):
    """``target``: replicas wanted without fallback; -1: not known yet."""

    rates: Samples = ()
    direction: Direction = Direction()
    target: int = -1


class Sky:
    """`RequestRateAutoscaler`, and `FallbackRequestRateAutoscaler` on top."""

    tick_s = TICK_S

    def __init__(self, settings: SkySettings) -> None:
        self.settings = settings

    def start(self) -> SkyMemory:
        return SkyMemory()

    def step(self, seen: Seen, memory: SkyMemory) -> Answer[SkyMemory]:
        settings, now_s = self.settings, seen.now_s
        rate = reading.read(seen.observation.arrival_per_s)
        if isinstance(rate, Gap):
            return Answer((reading.hold(seen, "no_rate", "the request rate is not known: it is taken to hold"),), memory)
        samples = windows.pushed(memory.rates, now_s, rate, settings.window_s)
        qps = windows.mean(windows.within(samples, now_s, settings.window_s))
        asked = whole_replicas(qps / settings.target_rate_per_s)
        asked = min(max(asked, seen.limits.min_replicas), seen.limits.max_replicas)
        target = seen.current if memory.target < 0 else memory.target
        numbers = {"rate_per_s": qps, "target_per_s": settings.target_rate_per_s}
        stages = [Term("request_rate", TermKind.TRIGGER, asked, f"{qps:.3g}/s, {settings.target_rate_per_s:.3g}/s per replica", numbers)]
        direction = memory.direction.towards(asked, target, now_s)
        delay_s = settings.up_delay_s if direction.sign > 0 else settings.down_delay_s
        # It counts ticks, the first one included.
        if direction.sign and (target == 0 or direction.for_s(now_s) + TICK_S >= delay_s):
            target, direction = asked, Direction()
        stages.append(Term("delay", TermKind.HOLD, target, f"acts once it has wanted the same for {delay_s:g} s"))
        total = target + settings.overprovision
        if settings.fallback:
            total += min(target, max(0, target - len(seen.ready)))
            stages.append(Term("on_demand_fallback", TermKind.FLOOR, total, "on-demand replicas for those that are not ready"))
        elif settings.overprovision:
            stages.append(Term("overprovision", TermKind.FLOOR, total, "replicas beside the target"))
        return Answer(tuple(stages), SkyMemory(samples, direction, target))
