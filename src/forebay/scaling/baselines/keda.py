"""B2: KEDA as llm-d's guide sets it up: the gateway's queue by ``Value``, requests running by ``AverageValue``, 250 each.

KEDA adds two things to the HPA: metrics, where an empty answer and a NaN are *zero* (``ignoreNullValues`` is true by
default) and only an error is an error; and 0 ↔ 1. Source: kedacore/keda 8b4f083c, prometheus_scaler.go:41-304, and llm-d's
guides/workload-autoscaling/README.hpa-epp.md, 1b624fae.
"""

import msgspec

from forebay.domain.scaling import Term, TermKind
from forebay.scaling.baselines import hpa, reading
from forebay.scaling.baselines.frame import Answer, Seen
from forebay.scaling.baselines.hpa import HpaMemory, HpaSettings
from forebay.scaling.baselines.reading import Gap, Reading

COOLDOWN_S = 300.0
"""Nothing active for this long: to zero, where the pool's min is 0."""
GUIDE = HpaSettings(up_replicas=None)
"""The guide's behaviour: up 100 % per 15 s, down after 300 s."""


class KedaSettings(msgspec.Struct, frozen=True):
    """The guide's thresholds."""

    queue_target: float = 250.0
    running_target: float = 250.0
    cooldown_s: float = COOLDOWN_S
    hpa: HpaSettings = GUIDE


class KedaMemory(msgspec.Struct, frozen=True, array_like=True):
    """The HPA's memory, and when a metric was last above 0."""

    hpa: HpaMemory = HpaMemory()
    active_s: float | None = None


class Keda:
    """Two triggers, the larger wins; where one has an error and the other would lower, nothing is done."""

    tick_s = hpa.SYNC_S

    def __init__(self, settings: KedaSettings = KedaSettings()) -> None:
        self.settings = settings

    def start(self) -> KedaMemory:
        return KedaMemory()

    def step(self, seen: Seen, memory: KedaMemory) -> Answer[KedaMemory]:
        settings = self.settings
        queue, run = _nulls_are_zero(reading.waiting(seen)), _nulls_are_zero(reading.running(seen))
        active = any(value is not None and value > 0 for value in (queue, run))
        active_s = seen.now_s if active or memory.active_s is None else memory.active_s
        if seen.limits.min_replicas == 0 and (zero := self._to_or_from_zero(seen, active, active_s)) is not None:
            return Answer((zero,), KedaMemory(memory.hpa, active_s))
        tolerance, current = settings.hpa.tolerance, seen.current
        by_queue = None if queue is None else hpa.plain_value(queue, settings.queue_target, current, len(seen.ready), tolerance)
        by_run = None if run is None else hpa.average_value(run, settings.running_target, current, tolerance)
        wanted = hpa.largest([by_queue, by_run], current)
        if wanted is None:
            because = "a metric can't be read and the others would not raise: the HPA holds"
            return Answer((reading.hold(seen, "no_metric", because),), KedaMemory(memory.hpa, active_s))
        stages = [
            Term(name, TermKind.TRIGGER, count, f"{value:g} {what}, {target:g} {per}", {"value": value, "target": target})
            for name, count, value, what, target, per in (
                ("queue", by_queue, queue, "requests wait", settings.queue_target, "is the target"),
                ("running", by_run, run, "requests run", settings.running_target, "per replica"),
            )
            if count is not None and value is not None
        ]
        answer = hpa.behave(settings.hpa, seen, max(wanted, 1), memory.hpa)
        return Answer((*stages, *answer.stages), KedaMemory(answer.memory, active_s))

    def _to_or_from_zero(self, seen: Seen, active: bool, active_s: float) -> Term | None:
        """KEDA's own part, below one replica."""
        if seen.current == 0:
            return Term("activation", TermKind.TRIGGER, int(active), "a metric above 0 starts the first replica")
        if not active and seen.now_s - active_s >= self.settings.cooldown_s:
            return Term("cooldown", TermKind.SCALE_IN, 0, f"nothing was active for {self.settings.cooldown_s:g} s")
        return None


def _nulls_are_zero(value: Reading) -> float | None:
    """None: an error, which is passed on (and old numbers, on which nothing changes)."""
    if isinstance(value, Gap):
        return 0.0 if value in (Gap.EMPTY, Gap.NAN) else None
    return value
