"""What may be set in each of them, by the words that `forebay compare --policies NAME:KEY=VALUE` takes and `forebay tune` gives.

One table: the reader of the words, what is printed, and the reference in docs/baselines.md are made from it. Names of the
sources' own settings are those of the versions named in each law's module; "–" is a constant there.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from forebay.domain.scaling import Policy
from forebay.scaling.baselines import cron, setting
from forebay.scaling.baselines.aibrix import Apa
from forebay.scaling.baselines.chiron import Chiron
from forebay.scaling.baselines.cron import Cron
from forebay.scaling.baselines.dstack import Dstack
from forebay.scaling.baselines.dynamo import DynamoEasy, DynamoSla, SlaSettings
from forebay.scaling.baselines.frame import Framed, Law
from forebay.scaling.baselines.hpa import GpuHpa, HpaSettings, QueueHpa
from forebay.scaling.baselines.keda import Keda
from forebay.scaling.baselines.knative import Knative
from forebay.scaling.baselines.kthena import Kthena
from forebay.scaling.baselines.kubeai import KubeAi
from forebay.scaling.baselines.ray import Ray
from forebay.scaling.baselines.sageserve import Sage
from forebay.scaling.baselines.setting import Settable, Setting, Share
from forebay.scaling.baselines.settings import Targets
from forebay.scaling.baselines.skyserve import Sky
from forebay.scaling.baselines.static import Static
from forebay.scaling.baselines.wva import WvaV1, WvaV2
from forebay.spec.fields_scaling import REPLICAS_MAX
from forebay.spec.kinds import Flag, Number, Whole, duration

WINDOW_S_MAX = 3600.0
"""An HPA's own limit; what a law remembers of an hour fits a policy's memory."""
SHORT_TICK_WINDOW_S_MAX = 1800.0
"""Knative looks every 2 s."""
COUNT_MAX = 1e6
DERIVED = "70 % of what a replica serves within its promise"


class Aimed(msgspec.Struct, frozen=True):
    """An HPA's target, and its behaviour."""

    target: float
    hpa: HpaSettings


class Promised(msgspec.Struct, frozen=True):
    """Dynamo's SLAs, which are the pool's promise unless they are given, and the rest."""

    ttft_s: float
    itl_s: float
    sla: SlaSettings


class Fixed(msgspec.Struct, frozen=True):
    """A number of replicas."""

    replicas: int


class Office(msgspec.Struct, frozen=True):
    """Replicas from 8 to 22 o'clock UTC, and else."""

    day: int
    night: int


def _some(*rows: tuple[str, str, Any, str] | tuple[str, str, Any, str, str]) -> tuple[Setting, ...]:
    return tuple(Setting(*row) for row in rows)


_COUNT = Number(0, COUNT_MAX, above=True, example=5)
_RATE = Number(0, COUNT_MAX, above=True, example=2)
_FACTOR = Number(1, 1000, example=2)
_WINDOW = duration(most=WINDOW_S_MAX, example="300s")
_PERIOD = duration(least=1, most=WINDOW_S_MAX, example="60s")
_KV = Share(0, 1, above=True)
_REPLICAS = Whole(0, REPLICAS_MAX, 8)


def _hpa(prefix: str = "") -> tuple[Setting, ...]:
    """``behavior`` of an HPA."""
    up, down = "`scaleUp", "`scaleDown"
    return (
        Setting(f"{prefix}tolerance", "hpa.tolerance", Share(0, 0.99), f"{up}.tolerance`, {down}.tolerance`"),
        Setting(f"{prefix}up", "hpa.up_stabilisation_s", _WINDOW, f"{up}.stabilizationWindowSeconds`"),
        Setting(f"{prefix}down", "hpa.down_stabilisation_s", _WINDOW, f"{down}.stabilizationWindowSeconds`"),
        Setting(f"{prefix}up_percent", "hpa.up_fraction", Share(0, 100, above=True), f"{up}.policies` of type `Percent`", optional=True),
        Setting(f"{prefix}up_pods", "hpa.up_replicas", Whole(1, REPLICAS_MAX, 4), f"{up}.policies` of type `Pods`", optional=True),
        Setting(f"{prefix}up_period", "hpa.up_period_s", _PERIOD, f"`periodSeconds` of {up}.policies`"),
        Setting(f"{prefix}down_percent", "hpa.down_fraction", _KV, f"{down}.policies` of type `Percent`"),
        Setting(f"{prefix}down_period", "hpa.down_period_s", _PERIOD, f"`periodSeconds` of {down}.policies`"),
    )


def _own(law: Any) -> Any:
    return law.settings


def _apa() -> Settable:
    annotation = "`autoscaling.aibrix.ai/"
    return Settable(
        _some(
            ("target", "target", _KV, "`targetValue`"),
            ("window", "window_s", _PERIOD, "`apa.autoscaling.aibrix.ai/window`"),
            ("tolerance", "tolerance", Share(0, 0.99), f"{annotation}scale-up-tolerance`, `…/scale-down-tolerance`"),
            ("up_rate", "up_rate", _FACTOR, f"{annotation}max-scale-up-rate`"),
            ("down_rate", "down_rate", _FACTOR, f"{annotation}max-scale-down-rate`"),
            ("up", "up_cooldown_s", _WINDOW, f"{annotation}scale-up-cooldown-window`"),
            ("down", "down_cooldown_s", _WINDOW, f"{annotation}scale-down-cooldown-window`"),
        ),
        _own,
        lambda _, given: Apa(given),
    )


def _promised(law: DynamoSla) -> Promised:
    return Promised(law.targets.ttft_s, law.targets.itl_s, law.settings)


def _sla(of: Targets, given: Promised) -> DynamoSla:
    return DynamoSla(msgspec.structs.replace(of, ttft_s=given.ttft_s, itl_s=given.itl_s), given.sla)


_KNATIVE = _some(
    ("target", "target", _COUNT, "`target` (or `container-concurrency`) × its utilization, requests in flight", DERIVED),
    ("window", "stable_s", duration(least=6, most=SHORT_TICK_WINDOW_S_MAX, example="60s"), "`window` (`stable-window`)"),
    ("panic_window", "panic_fraction", Share(0.01, 1), "`panic-window-percentage`, of the window"),
    ("panic", "panic_threshold", Share(1.1, 10), "`panic-threshold-percentage`"),
    ("up_rate", "up_rate", Number(1, 1e6, example=1000), "`max-scale-up-rate`"),
    ("down_rate", "down_rate", Number(1, 1e6, above=True, example=2), "`max-scale-down-rate`"),
    ("delay", "scale_down_delay_s", duration(most=SHORT_TICK_WINDOW_S_MAX, example="300s"), "`scale-down-delay`"),
)
_WVA_V1 = _some(
    ("kv", "kv_saturated", _KV, "`kvCacheThreshold`"),
    ("queue", "queue_saturated", _COUNT, "`queueLengthThreshold`, requests waiting"),
    ("kv_spare", "kv_spare", Share(0, 1), "`kvSpareTrigger`"),
    ("queue_spare", "queue_spare", Number(0, COUNT_MAX, example=3), "`queueSpareTrigger`, requests waiting"),
)
_WVA_V2 = _some(
    ("kv", "kv_usable", _KV, "`kvCacheThreshold`"),
    ("queue", "queue_observed", _COUNT, "`queueLengthThreshold`, requests waiting"),
    ("up", "up", _KV, "`scaleUpThreshold`"),
    ("down", "down", _KV, "`scaleDownBoundary`"),
)
_SLA = _some(
    ("ttft", "ttft_s", duration(above=True, most=WINDOW_S_MAX, example="500ms"), "`ttft`", "the pool's promise"),
    ("itl", "itl_s", duration(above=True, most=WINDOW_S_MAX, example="50ms"), "`itl`", "the pool's promise"),
    ("sensitivity", "sla.sensitivity", _KV, "`load_scaling_down_sensitivity`"),
    ("tick", "sla.throughput_tick_s", duration(least=5, most=WINDOW_S_MAX, example="180s"), "`throughput_adjustment_interval`"),
)
_FIT = _some(
    ("skip_first", "sla.fit.skip_first", Whole(0, 1_000_000, 200), "–; first passes of an engine that are left out"),
    ("samples", "sla.fit.samples_max", Whole(1, 1024, 64), "`max_num_fpm_samples`"),
    ("samples_min", "sla.fit.samples_min", Whole(2, 1024, 5), "`load_min_observations`"),
    ("cells", "sla.fit.cells", Whole(1, 32, 4), "root of `fpm_sample_bucket_size`"),
)
_RAY = _some(
    ("target", "target_ongoing", _COUNT, "`target_ongoing_requests`", DERIVED),
    ("window", "look_back_s", _PERIOD, "`look_back_period_s`"),
    ("up", "up_delay_s", _WINDOW, "`upscale_delay_s`"),
    ("down", "down_delay_s", _WINDOW, "`downscale_delay_s`"),
    ("up_factor", "up_factor", Number(0, 1000, above=True), "`upscaling_factor`"),
    ("down_factor", "down_factor", Number(0, 1000, above=True), "`downscaling_factor`"),
)
_SKY = _some(
    ("rate", "target_rate_per_s", _RATE, "`target_qps_per_replica`", DERIVED),
    ("up", "up_delay_s", _WINDOW, "`upscale_delay_seconds`"),
    ("down", "down_delay_s", _WINDOW, "`downscale_delay_seconds`"),
    ("window", "window_s", _PERIOD, "–"),
    ("spare", "overprovision", _REPLICAS, "`num_overprovision`"),
    ("fallback", "fallback", Flag(), "`dynamic_ondemand_fallback`"),
)
_KUBEAI = _some(
    ("target", "target_requests", _COUNT, "`targetRequests`", DERIVED),
    ("window", "window_s", _PERIOD, "`modelAutoscaling.timeWindow`"),
    ("down", "down_delay_s", _WINDOW, "`scaleDownDelaySeconds`"),
)
_KTHENA = _some(
    ("target", "target", _COUNT, "`targetValue`, requests waiting per pod"),
    ("tolerance", "tolerance", Share(0, 0.99), "`tolerancePercent`"),
    ("up", "up_stabilisation_s", _WINDOW, "`scaleUp.stablePolicy.stabilizationWindow`"),
    ("down", "down_stabilisation_s", _WINDOW, "`scaleDown.stabilizationWindow`"),
    ("step_pods", "step_replicas", Whole(1, REPLICAS_MAX, 1), "`stablePolicy.instances`"),
    ("step_percent", "step_fraction", Share(0, 100, above=True), "`stablePolicy.percent`"),
    ("period", "period_s", _PERIOD, "`stablePolicy.period`"),
    ("panic", "panic_threshold", Share(1, 100, above=True), "`panicPolicy.panicThresholdPercent`"),
    ("panic_hold", "panic_hold_s", _WINDOW, "`panicPolicy.panicModeHold`"),
    ("panic_percent", "panic_fraction", Share(0, 100, above=True), "`panicPolicy.percent`"),
    ("panic_period", "panic_period_s", _WINDOW, "`panicPolicy.period`; 0s bounds nothing"),
)
_DSTACK = _some(
    ("rate", "target_rate_per_s", _RATE, "`scaling.target`, requests per second", DERIVED),
    ("up", "up_delay_s", _WINDOW, "`scaling.scale_up_delay`"),
    ("down", "down_delay_s", _WINDOW, "`scaling.scale_down_delay`"),
    ("window", "window_s", _PERIOD, "–"),
)
_SAGE = _some(
    (
        "tokens",
        "tokens_per_s",
        Number(0, 1e9, above=True, example=10_000),
        "prompt tokens/s of a replica",
        "what one serves in its promise",
    ),
    ("margin", "margin", Share(0, 10), "–"),
    ("up", "up_usage", _KV, "–"),
    ("down", "down_usage", _KV, "–"),
    ("surge", "ratio", Number(1, 1000, example=5), "demand ÷ forecast"),
    ("action", "action_s", _WINDOW, "time of one action"),
    ("plan", "plan_s", duration(least=60, most=WINDOW_S_MAX, example="1h"), "–"),
    ("ahead_from", "from_s", duration(most=86_400, example="20m"), "–"),
    ("ahead_until", "until_s", duration(least=60, most=86_400, example="1h"), "–"),
)

SETTABLE: dict[str, Settable] = {
    "static": Settable(
        _some(("replicas", "replicas", _REPLICAS, "`replicas`", "the pool's `min`")),
        lambda law: Fixed(law.replicas),
        lambda _, given: Static(given.replicas),
    ),
    "hpa-gpu": Settable(
        (Setting("target", "target", _KV, "`averageUtilization` of the GPUs"), *_hpa()),
        lambda law: Aimed(law.target, law.settings),
        lambda _, given: GpuHpa(given.target, given.hpa),
    ),
    "hpa-queue": Settable(
        (Setting("target", "target", _COUNT, "`averageValue` of requests waiting, per replica"), *_hpa()),
        lambda law: Aimed(law.target, law.settings),
        lambda _, given: QueueHpa(given.target, given.hpa),
    ),
    "keda-queue-running": Settable(
        (
            Setting("queue", "queue_target", _COUNT, "`threshold` on requests waiting (`Value`)"),
            Setting("running", "running_target", _COUNT, "`threshold` on requests running (`AverageValue`)"),
            Setting("cooldown", "cooldown_s", _WINDOW, "`cooldownPeriod`"),
            *_hpa(),
        ),
        _own,
        lambda _, given: Keda(given),
    ),
    "kpa": Settable(_KNATIVE, _own, lambda _, given: Knative(given)),
    "wva-v1": Settable((*_WVA_V1, *_hpa("hpa_")), _own, lambda _, given: WvaV1(given), below=("kv_spare", "kv")),
    "wva-v2": Settable((*_WVA_V2, *_hpa("hpa_")), _own, lambda of, given: WvaV2(of, given), below=("down", "up")),
    "dynamo-throughput": Settable(
        _some(
            ("up", "up", Share(0, 10, above=True), "–; 40 % with `optimization_target: latency`"),
            ("down", "down", Share(0, 10), "–; 10 % with `optimization_target: latency`"),
        ),
        _own,
        lambda of, given: DynamoEasy(of, given),
        below=("down", "up"),
    ),
    "dynamo-sla": Settable(_SLA, _promised, _sla),
    "dynamo-sla-fitted": Settable((*_SLA, *_FIT), _promised, _sla, below=("samples_min", "samples")),
    "aibrix-apa": _apa(),
    "aibrix-apa-fixed": _apa(),
    "ray": Settable(_RAY, _own, lambda _, given: Ray(given)),
    "skyserve": Settable(_SKY, _own, lambda _, given: Sky(given)),
    "kubeai": Settable(_KUBEAI, _own, lambda _, given: KubeAi(given)),
    "kthena": Settable(_KTHENA, _own, lambda _, given: Kthena(given)),
    "dstack": Settable(_DSTACK, _own, lambda _, given: Dstack(given)),
    "cron": Settable(
        _some(
            ("day", "day", _REPLICAS, "replicas from 8 to 22 o'clock UTC, in place of the `calendar`", "what the peak needs"),
            ("night", "night", _REPLICAS, "replicas else", "half of that"),
        ),
        lambda law: Office(max((rule.replicas for rule in law.rules), default=law.baseline), law.baseline),
        lambda _, given: Cron(cron.office_hours(given.day), given.night),
        whole=lambda law: law.rules == cron.office_hours(law.rules[0].replicas),
    ),
    "sageserve": Settable(_SAGE, _own, lambda _, given: Sage(given), below=("down", "up")),
    "chiron": Settable(
        _some(("share", "share", _KV, "–"), ("action", "action_s", _WINDOW, "time of one action")), _own, lambda _, given: Chiron(given)
    ),
}
NO_SETTINGS = Settable((), lambda _: None, lambda _, given: given)


class Pair(NamedTuple):
    """One setting as it was typed."""

    key: str
    text: str


def check(option: str, name: str, pairs: Sequence[Pair]) -> None:
    """Raises BadInput where ``pairs`` can't be set in the law ``name``."""
    setting.read(option, name, SETTABLE.get(name, NO_SETTINGS), pairs)


def set_in(option: str, name: str, policy: Policy, of: Targets, pairs: Sequence[Pair]) -> Policy:
    """``policy``, which follows the law ``name`` for a pool that is ``of``, with ``pairs`` set. Raises BadInput as `check` does."""
    assert isinstance(policy, Framed)
    settable = SETTABLE.get(name, NO_SETTINGS)
    values = setting.read(option, name, settable, pairs)
    if not values:
        return policy
    given = setting.with_values(settable.given(policy.law), values)
    setting.check_order(option, name, settable, given)
    return Framed(settable.law(of, given), of.limits)


def pairs_of(name: str, law: Law[Any], default: Law[Any]) -> list[Pair] | None:
    """What has to be set in ``default`` to have ``law``; None where that can't be typed (a calendar made from a trace)."""
    settable = SETTABLE.get(name, NO_SETTINGS)
    if not settable.settings:
        return []
    if not settable.whole(law):
        return None
    now, before = settable.given(law), settable.given(default)
    found = [(each, setting.value_at(now, each.field), setting.value_at(before, each.field)) for each in settable.settings]
    # What is typed takes the place of a calendar as a whole, and a default that the peak makes is another one elsewhere.
    replaced = name == "cron"
    return [Pair(each.key, each.show(value)) for each, value, was in found if replaced or value != was]
