"""The Kubernetes HorizontalPodAutoscaler v2: its arithmetic on metrics, its stabilisation and its rate limits.

``minReplicas: 0`` is an alpha feature, so by itself it stops at one. Used bare (on the queue, on GPU utilisation), by
KEDA, which adds metrics and 0 ↔ 1, and as the actuator of autoscalers that only publish a number. Source:
kubernetes/website 10ae7601 and replica_calculator.go 00067268.
"""

import math
from collections.abc import Sequence

import msgspec

from forebay.domain.scaling import Term, TermKind
from forebay.scaling.baselines import reading, windows
from forebay.scaling.baselines.frame import Answer, Seen
from forebay.scaling.baselines.reading import Gap, Reading
from forebay.scaling.baselines.windows import Samples
from forebay.scaling.capacity import whole_replicas

SYNC_S = 15.0


class HpaSettings(msgspec.Struct, frozen=True):
    """``behavior`` and tolerance of an HPA; the defaults are Kubernetes' own."""

    tolerance: float = 0.1
    up_stabilisation_s: float = 0.0
    down_stabilisation_s: float = 300.0
    up_fraction: float | None = 1.0
    """At most this much more per period, or ``up_replicas``, whichever is larger; None: that policy is not set."""
    up_replicas: int | None = 4
    up_period_s: float = 15.0
    down_fraction: float = 1.0
    down_period_s: float = 15.0


class HpaMemory(msgspec.Struct, frozen=True, array_like=True):
    """Recommendations within the stabilisation windows, and the changes made within the periods of the rate limits."""

    recommended: Samples = ()
    changed: Samples = ()


def _tolerated(ratio: float, tolerance: float) -> bool:
    """As Kubernetes has it since tolerances can differ by direction: 11 ÷ 10 is within a tenth."""
    return 1 - tolerance <= ratio <= 1 + tolerance


def average_value(value: float, target: float, current: int, tolerance: float) -> int:
    """``AverageValue`` of an external metric: the value shared out over the replicas, ``target`` each."""
    if current and _tolerated(value / (target * current), tolerance):
        return current
    return whole_replicas(value / target)


def plain_value(value: float, target: float, current: int, ready: int, tolerance: float) -> int:
    """``Value`` of an external metric: as many times the *ready* replicas as the value is the target."""
    ratio = value / target
    if current == 0:
        return whole_replicas(ratio)
    return current if _tolerated(ratio, tolerance) else whole_replicas(ratio * ready)


def per_pod(readings: Sequence[Reading], target: float, current: int, unready: int, missing: int, tolerance: float) -> int | None:
    """A metric of each pod. ``unready`` pods are not scheduled yet, ``missing`` ones run without metrics; None: no metric at all.

    Missing pods are taken to be at the target when that lowers and at 0 when it raises; unready ones at 0 when it raises.
    Where these guesses turn the direction, nothing is done.
    """
    values = [value for value in readings if not isinstance(value, Gap)]
    missing += len(readings) - len(values)
    if not values:
        return None
    ratio = sum(values) / len(values) / target
    raising = unready > 0 and ratio > 1
    if not raising and not missing:
        return current if _tolerated(ratio, tolerance) else whole_replicas(ratio * len(values))
    values += [target if ratio < 1 else 0.0] * missing
    values += [0.0] * (unready if raising else 0)
    guessed = sum(values) / len(values) / target
    if _tolerated(guessed, tolerance) or (ratio < 1 < guessed) or (guessed < 1 < ratio):
        return current
    wanted = whole_replicas(guessed * len(values))
    return current if (guessed < 1 and wanted > current) or (guessed > 1 and wanted < current) else wanted


def largest(wanted: Sequence[int | None], current: int) -> int | None:
    """What several metrics want together: the most; nothing where one is not known and the others would lower."""
    valid = [each for each in wanted if each is not None]
    if not valid or (len(valid) < len(wanted) and max(valid) < current):
        return None
    return max(valid)


def behave(settings: HpaSettings, seen: Seen, wanted: int, memory: HpaMemory) -> Answer[HpaMemory]:
    """Stages after the metrics: stabilisation, then rate limits, then the memory of what was recommended and changed."""
    now_s, current = seen.now_s, seen.current
    longest_s = max(settings.up_stabilisation_s, settings.down_stabilisation_s)
    least = min([wanted, *windows.counts(memory.recommended, now_s, settings.up_stabilisation_s)])
    most = max([wanted, *windows.counts(memory.recommended, now_s, settings.down_stabilisation_s)])
    steady = min(max(current, least), most)
    limited = _limited(settings, seen, steady, memory)
    stages = (
        Term(
            "stabilisation",
            TermKind.HOLD,
            steady,
            f"the most wanted within {settings.down_stabilisation_s:g} s, the least within {settings.up_stabilisation_s:g} s",
            {"least": float(least), "most": float(most)},
        ),
        Term("rate_limit", TermKind.CAP, limited, "what the scaling policies allow in one period"),
    )
    placed = min(max(limited, seen.limits.min_replicas), seen.limits.max_replicas)
    changed = memory.changed
    if placed != current:
        changed = windows.pushed(changed, now_s, float(placed - current), max(settings.up_period_s, settings.down_period_s))
    return Answer(stages, HpaMemory(windows.pushed(memory.recommended, now_s, float(wanted), longest_s), changed))


def _limited(settings: HpaSettings, seen: Seen, wanted: int, memory: HpaMemory) -> int:
    current = seen.current
    period_s = settings.up_period_s if wanted > current else settings.down_period_s
    began = current - sum(windows.counts(memory.changed, seen.now_s, period_s))
    if wanted > current:
        allowed = [began + settings.up_replicas] if settings.up_replicas is not None else []
        allowed += [math.ceil(began * (1 + settings.up_fraction))] if settings.up_fraction is not None else []
        return min(wanted, max([current, *allowed])) if allowed else wanted
    return max(wanted, min(current, math.floor(began * (1 - settings.down_fraction))))


class QueueHpa:
    """B1: an external metric, the sum of what waits, ``AverageValue``.

    An error and an empty answer both leave it without a metric: it holds. A NaN is read as no metric too (what the
    metrics adapter makes of one was not verified).
    """

    tick_s = SYNC_S

    def __init__(self, target: float = 5.0, settings: HpaSettings = HpaSettings()) -> None:
        """``target``: requests waiting per replica; 5 is the threshold of production-stack's own trigger."""
        self.target = target
        self.settings = settings

    def start(self) -> HpaMemory:
        return HpaMemory()

    def step(self, seen: Seen, memory: HpaMemory) -> Answer[HpaMemory]:
        value = reading.waiting(seen)
        if isinstance(value, Gap):
            return Answer((reading.hold(seen, "no_metric", f"the queue metric is gone ({value}): an HPA holds"),), memory)
        if not seen.current:
            return Answer((reading.hold(seen, "disabled", "an HPA does nothing at 0 replicas"),), memory)
        wanted = max(1, average_value(value, self.target, seen.current, self.settings.tolerance))
        stage = Term(
            "queue",
            TermKind.TRIGGER,
            wanted,
            f"{value:g} requests wait, {self.target:g} per replica",
            {"waiting": value, "target": self.target},
        )
        answer = behave(self.settings, seen, wanted, memory)
        return Answer((stage, *answer.stages), answer.memory)


class GpuHpa:
    """The reflex: an HPA on GPU utilisation, per pod. Utilisation says that a kernel ran, so it is ~100 % whenever anything runs."""

    tick_s = SYNC_S

    def __init__(self, target: float = 0.8, settings: HpaSettings = HpaSettings()) -> None:
        """``target``: mean utilisation, 0 to 1; 0.8 is what Kubernetes takes where an HPA names no target of its own."""
        self.target = target
        self.settings = settings

    def start(self) -> HpaMemory:
        return HpaMemory()

    def step(self, seen: Seen, memory: HpaMemory) -> Answer[HpaMemory]:
        usage = [reading.read(replica.gpu_usage) for replica in seen.ready]
        tolerance = self.settings.tolerance
        wanted = per_pod(usage, self.target, seen.current, seen.pending - seen.booting, seen.booting, tolerance)
        if wanted is None or not seen.current:
            return Answer((reading.hold(seen, "no_metric", "no GPU tells its utilisation: an HPA holds"),), memory)
        wanted = max(1, wanted)
        told = windows.mean(value for value in usage if not isinstance(value, Gap))
        stage = Term(
            "gpu_utilisation",
            TermKind.TRIGGER,
            wanted,
            f"GPUs are busy {told:.0%} of the time, {self.target:.0%} is the target",
            {"utilisation": told, "target": self.target},
        )
        answer = behave(self.settings, seen, wanted, memory)
        return Answer((stage, *answer.stages), answer.memory)
