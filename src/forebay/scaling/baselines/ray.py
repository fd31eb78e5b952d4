"""B9: Ray Serve: ongoing requests, queued ones included, over a look-back, against a target per replica; long one-sided delays.

Metrics that are too old are dropped, and a replica without metrics counts 0: an outage is read as no requests. Replicas
that start are neither waited for nor counted. The loop runs ten times a second on metrics pushed every ten, so ten is the
tick here. Source: ray-project/ray, autoscaling_policy.py 00590c45, config.py 00239d48, autoscaling_state.py 00215194.
"""

import math

import msgspec

from forebay.domain.scaling import Term, TermKind
from forebay.scaling.baselines import reading, windows
from forebay.scaling.baselines.direction import Direction
from forebay.scaling.baselines.frame import Answer, Seen
from forebay.scaling.baselines.reading import Gap
from forebay.scaling.baselines.windows import Samples

TICK_S = 10.0


class RaySettings(msgspec.Struct, frozen=True):
    """``target_ongoing`` is 2 in the source, a number for slow Python functions; the rest are its defaults."""

    target_ongoing: float = 2.0
    look_back_s: float = 30.0
    up_factor: float = 1.0
    down_factor: float = 1.0
    up_delay_s: float = 30.0
    down_delay_s: float = 600.0


class RayMemory(msgspec.Struct, frozen=True, array_like=True):
    """Ongoing requests of the look-back, and the direction wanted."""

    ongoing: Samples = ()
    direction: Direction = Direction()


class Ray:
    """`replica_queue_length_autoscaling_policy` with its delays."""

    tick_s = TICK_S

    def __init__(self, settings: RaySettings = RaySettings()) -> None:
        self.settings = settings

    def start(self) -> RayMemory:
        return RayMemory()

    def step(self, seen: Seen, memory: RayMemory) -> Answer[RayMemory]:
        settings, now_s, target = self.settings, seen.now_s, seen.current
        value = reading.in_flight(seen)
        if value is Gap.FROZEN:
            return Answer((reading.hold(seen, "frozen", "the numbers are the same as before"),), memory)
        samples = windows.pushed(memory.ongoing, now_s, 0.0 if isinstance(value, Gap) else value, settings.look_back_s)
        ongoing = windows.mean(windows.within(samples, now_s, settings.look_back_s))
        running = len(seen.ready)
        if not running:  # The fast path: from nothing, one replica at once, and otherwise the target as it is.
            wanted = max(math.ceil(settings.up_factor), target) if ongoing > 0 else target
            stage = Term("cold_start", TermKind.TRIGGER, wanted, "no replica runs: a request starts the first at once")
            return Answer((stage,), RayMemory(samples, memory.direction))
        wanted = self._wanted(ongoing, running)
        numbers = {"ongoing": ongoing, "target_ongoing": settings.target_ongoing}
        stage = Term(
            "ongoing", TermKind.TRIGGER, wanted, f"{ongoing:.3g} requests ongoing, {settings.target_ongoing:.3g} per replica", numbers
        )
        wanted = min(max(wanted, seen.limits.min_replicas), seen.limits.max_replicas)
        direction = memory.direction.towards(wanted, target, now_s)
        if direction.sign < 0 and target > 1:
            wanted = max(1, wanted)  # From several it stops at one; to none is a step of its own.
        delay_s = settings.up_delay_s if direction.sign > 0 else settings.down_delay_s
        acts = direction.sign != 0 and direction.for_s(now_s) >= delay_s
        held = Term("delay", TermKind.HOLD, wanted if acts else target, f"acts once it has wanted the same for {delay_s:g} s")
        return Answer((stage, held), RayMemory(samples, Direction() if acts else direction))

    def _wanted(self, ongoing: float, running: int) -> int:
        settings = self.settings
        raw = ongoing / settings.target_ongoing
        factor = settings.up_factor if raw > running else settings.down_factor
        wanted = math.ceil(round(running + factor * (raw - running), 9))
        return wanted - 1 if math.ceil(raw) < running and wanted == running else wanted
