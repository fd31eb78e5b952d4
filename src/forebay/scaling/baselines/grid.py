"""What may be tuned in each of them: a small grid, its source's defaults first, so that nobody was set up to lose.

The values tried are those that its own documentation tells a user to set, around what the pool serves at its promise. Static
and cron are sized from the training span itself, which is more than their users know.
"""

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from forebay.scaling.baselines import cron
from forebay.scaling.baselines.aibrix import Apa, ApaSettings
from forebay.scaling.baselines.chiron import Chiron, ChironSettings
from forebay.scaling.baselines.cron import Cron
from forebay.scaling.baselines.dstack import Dstack, DstackSettings
from forebay.scaling.baselines.dynamo import DynamoEasy, DynamoSla, EasySettings, SlaSettings
from forebay.scaling.baselines.dynamo_fit import FitSettings
from forebay.scaling.baselines.frame import Law
from forebay.scaling.baselines.hpa import GpuHpa, HpaSettings, QueueHpa
from forebay.scaling.baselines.keda import GUIDE, Keda, KedaSettings
from forebay.scaling.baselines.knative import Knative, KnativeSettings
from forebay.scaling.baselines.kthena import Kthena, KthenaSettings
from forebay.scaling.baselines.kubeai import KubeAi, KubeAiSettings
from forebay.scaling.baselines.ray import Ray, RaySettings
from forebay.scaling.baselines.registry import Make, framed
from forebay.scaling.baselines.sageserve import Sage, SageSettings
from forebay.scaling.baselines.settings import Targets
from forebay.scaling.baselines.skyserve import Sky, SkySettings
from forebay.scaling.baselines.static import Static
from forebay.scaling.baselines.wva import SAMPLE_HPA, SaturationV1, SaturationV2, WvaV1, WvaV2
from forebay.scaling.capacity import whole_replicas

CANDIDATES_MAX = 16
"""A law gets at most this many runs on the training span."""


class Candidate(msgspec.Struct, frozen=True):
    """One setting of one law."""

    name: str
    settings: Mapping[str, float]
    make: Make

    @property
    def label(self) -> str:
        """``name (target 26, down 300)``; the bare name where there is nothing to set."""
        told = ", ".join(f"{key} {value:.4g}" for key, value in self.settings.items())
        return f"{self.name} ({told})" if told else self.name


class _Grid(msgspec.Struct, frozen=True):
    """``axes``: values of each setting, the default first; ``law``: the law at one point of them."""

    axes: Mapping[str, Sequence[float]]
    law: Callable[..., Law[Any]]


def candidates(name: str, of: Targets, *, peak_replicas: int | None = None, hourly: Sequence[float] = ()) -> list[Candidate]:
    """The grid of the law ``name``, the defaults (or what comes nearest to them) first. Raises KeyError for an unknown name.

    ``hourly``: replicas needed in each hour of the day (24) or week (168, from Monday, UTC) of the training span.
    """
    peak = of.limits.max_replicas if peak_replicas is None else peak_replicas
    grid = _static(name, of, peak) or (_cron(peak, hourly) if name == "cron" else _GRIDS[name](of))
    points = [dict(zip(grid.axes, values, strict=True)) for values in itertools.product(*grid.axes.values())]
    found: dict[str, Candidate] = {}
    for point in points:
        made = Candidate(name, point, framed(functools.partial(grid.law, **point), of))
        found.setdefault(made.label, made)
    return list(found.values())[:CANDIDATES_MAX]


def _static(name: str, of: Targets, peak: int) -> _Grid | None:
    if name == "static-peak":
        return _Grid({}, lambda: Static(peak, "what the peak needs"))
    if name != "static":
        return None
    counts = sorted({of.limits.min_replicas, *(max(1, math.ceil(peak * share / 100)) for share in range(40, 121, 10))})
    return _Grid({"replicas": [float(count) for count in counts]}, lambda replicas: Static(int(replicas), "a fixed number, tuned"))


def _cron(peak: int, hourly: Sequence[float]) -> _Grid:
    if not hourly:
        return _Grid(
            {"day": (1.0, 0.8, 1.2), "night": (0.5, 0.25, 0.75)},
            lambda day, night: Cron(cron.office_hours(math.ceil(peak * day)), math.ceil(peak * night)),
        )
    return _Grid(
        {"margin": (1.0, 1.1, 1.2, 1.35, 1.5), "early": (0.0, 1.0)},
        lambda margin, early: Cron(cron.by_hour(_planned(hourly, margin, bool(early))), peak),
    )


def _planned(hourly: Sequence[float], margin: float, early: bool) -> list[int]:
    """Replicas per hour; ``early``: what the next hour needs is there an hour before."""
    following = [*hourly[1:], hourly[0]]
    return [max(1, whole_replicas(margin * (max(now, then) if early else now))) for now, then in zip(hourly, following, strict=True)]


def _down(seconds: float, tolerance: float = 0.1, base: HpaSettings = HpaSettings()) -> HpaSettings:
    return msgspec.structs.replace(base, down_stabilisation_s=seconds, tolerance=tolerance)


def _wva_v1(of: Targets) -> _Grid:
    def law(kv: float, queue: float, tolerance: float) -> WvaV1:
        # What is spare is measured from the threshold: it must leave room for the trigger.
        hpa = _down(60.0, tolerance, SAMPLE_HPA)
        return WvaV1(SaturationV1(kv_saturated=kv, kv_spare=min(0.1, kv / 4), queue_spare=queue, hpa=hpa))

    return _Grid({"kv": (0.8, of.kv_usage, 0.8 * of.kv_usage), "queue": (3.0, 4.5), "tolerance": (0.1, 0.0)}, law)


def _wva_v2(of: Targets) -> _Grid:
    def law(kv: float, down: float, tolerance: float) -> WvaV2:
        return WvaV2(of, SaturationV2(kv_usable=kv, down=down, hpa=_down(60.0, tolerance, SAMPLE_HPA)))

    return _Grid({"kv": (0.8, of.kv_usage, 0.8 * of.kv_usage), "down": (0.70, 0.55), "tolerance": (0.1, 0.0)}, law)


def _dynamo_sla(of: Targets) -> _Grid:
    def law(sensitivity: float, itl_share: float, tick: float) -> DynamoSla:
        aimed = msgspec.structs.replace(of, itl_s=of.itl_s * itl_share)
        return DynamoSla(aimed, SlaSettings(sensitivity, tick))

    return _Grid({"sensitivity": (0.8, 0.6, 0.95), "itl_share": (1.0, 0.8), "tick": (180.0, 60.0)}, law)


def _dynamo_sla_fitted(of: Targets) -> _Grid:
    def law(skip: float, itl_share: float) -> DynamoSla:
        aimed = msgspec.structs.replace(of, itl_s=of.itl_s * itl_share)
        return DynamoSla(aimed, SlaSettings(fit=FitSettings(skip_first=int(skip))))

    return _Grid({"skip": (0.0, 50.0, 200.0, 1000.0), "itl_share": (1.0, 0.8)}, law)


def _apa(of: Targets, fixed: bool) -> _Grid:
    def law(target: float, window: float) -> Apa:
        return Apa(ApaSettings(target=target, window_s=window, fixed=fixed))

    return _Grid({"target": (0.5, *(share * of.kv_usage for share in (0.5, 0.7, 0.85, 1.0))), "window": (180.0, 60.0)}, law)


def _keda(of: Targets) -> _Grid:
    def law(running: float, queue: float, down: float) -> Keda:
        return Keda(KedaSettings(queue_target=queue, running_target=running, hpa=_down(down, base=GUIDE)))

    shares = [share * of.sequences for share in (0.4, 0.55, 0.7)]
    return _Grid({"running": (250.0, *shares), "queue": (250.0, 25.0), "down": (300.0, 900.0)}, law)


def _chiron(of: Targets) -> _Grid:
    del of
    return _Grid({"share": (0.6, 0.8, 0.95), "action": (65.0, 20.0)}, lambda share, action: Chiron(ChironSettings(share, action)))


def _kthena(of: Targets) -> _Grid:
    del of
    return _Grid(
        {"target": (5.0, 2.0, 1.0, 0.5), "down": (300.0, 900.0)},
        lambda target, down: Kthena(KthenaSettings(target=target, down_stabilisation_s=down)),
    )


def _hpa_queue(of: Targets) -> _Grid:
    del of
    return _Grid({"target": (5.0, 1.0, 0.5, 0.2), "down": (300.0, 900.0, 1800.0)}, lambda target, down: QueueHpa(target, _down(down)))


def _hpa_gpu(of: Targets) -> _Grid:
    del of
    return _Grid({"target": (0.8, 0.6, 0.95), "down": (300.0, 900.0)}, lambda target, down: GpuHpa(target, _down(down)))


def _concurrency(of: Targets, *shares: float) -> list[float]:
    return [max(1.0, share * of.sequences) for share in shares]


def _rates(of: Targets, *shares: float) -> list[float]:
    return [share * of.rate_per_s for share in shares]


_GRIDS: dict[str, Callable[[Targets], _Grid]] = {
    "hpa-gpu": _hpa_gpu,
    "hpa-queue": _hpa_queue,
    "keda-queue-running": _keda,
    "kpa": lambda of: _Grid(
        {"target": _concurrency(of, 0.7, 0.5, 0.6, 0.85), "delay": (0.0, 300.0, 900.0)},
        lambda target, delay: Knative(KnativeSettings(target=target, scale_down_delay_s=delay)),
    ),
    "wva-v1": _wva_v1,
    "wva-v2": _wva_v2,
    "dynamo-throughput": lambda of: _Grid(
        {"up": (1.0, of.kv_usage, 0.4), "down": (0.6, 0.6 * of.kv_usage, 0.1)},
        lambda up, down: DynamoEasy(of, EasySettings(up, min(up, down))),
    ),
    "dynamo-sla": _dynamo_sla,
    "dynamo-sla-fitted": _dynamo_sla_fitted,
    "aibrix-apa": lambda of: _apa(of, fixed=False),
    "aibrix-apa-fixed": lambda of: _apa(of, fixed=True),
    "ray": lambda of: _Grid(
        {"target": _concurrency(of, 0.7, 0.5, 0.85, 1.0), "down": (600.0, 300.0, 1200.0)},
        lambda target, down: Ray(RaySettings(target_ongoing=target, down_delay_s=down)),
    ),
    "skyserve": lambda of: _Grid(
        {"rate": _rates(of, 0.7, 0.55, 0.85), "up": (300.0, 60.0), "fallback": (1.0, 0.0)},
        lambda rate, up, fallback: Sky(SkySettings(rate, up_delay_s=up, fallback=bool(fallback))),
    ),
    "kubeai": lambda of: _Grid(
        {"target": _concurrency(of, 0.7, 0.5, 0.85, 0.3), "window": (600.0, 180.0, 60.0)},
        lambda target, window: KubeAi(KubeAiSettings(target, window_s=window)),
    ),
    "kthena": _kthena,
    "dstack": lambda of: _Grid(
        {"rate": _rates(of, 0.7, 0.55, 0.85), "up": (300.0, 60.0)},
        lambda rate, up: Dstack(DstackSettings(rate, up_delay_s=up)),
    ),
    "sageserve": lambda of: _Grid(
        {
            "tokens": [of.prompt_tokens_per_s * share for share in (1.0, 0.7)],
            "usage": (0.5, of.kv_usage, 0.6 * of.kv_usage),
            "action": (65.0, 20.0),
        },
        lambda tokens, usage, action: Sage(SageSettings(tokens, up_usage=usage, down_usage=usage / 2, action_s=action)),
    ),
    "chiron": _chiron,
}
