"""Every other autoscaler by its name: one sentence on its law, where that is written down, and how to make it for a pool."""

import math
from collections.abc import Callable, Sequence

import msgspec

from forebay.domain.scaling import Policy
from forebay.scaling.baselines import cron
from forebay.scaling.baselines.aibrix import Apa, ApaSettings
from forebay.scaling.baselines.chiron import Chiron
from forebay.scaling.baselines.cron import Cron
from forebay.scaling.baselines.dstack import Dstack, DstackSettings
from forebay.scaling.baselines.dynamo import DynamoEasy, DynamoSla, SlaSettings
from forebay.scaling.baselines.dynamo_fit import FitSettings
from forebay.scaling.baselines.frame import Framed, Law, M
from forebay.scaling.baselines.hpa import GpuHpa, QueueHpa
from forebay.scaling.baselines.keda import Keda
from forebay.scaling.baselines.knative import Knative, KnativeSettings
from forebay.scaling.baselines.kthena import Kthena
from forebay.scaling.baselines.kubeai import KubeAi, KubeAiSettings
from forebay.scaling.baselines.ray import Ray, RaySettings
from forebay.scaling.baselines.sageserve import Sage, SageSettings
from forebay.scaling.baselines.settings import Targets, targets
from forebay.scaling.baselines.skyserve import Sky, SkySettings
from forebay.scaling.baselines.static import Static
from forebay.scaling.baselines.wva import WvaV1, WvaV2
from forebay.scaling.capacity import PoolCapacity
from forebay.spec.types import CalendarEntry, Pool

Make = Callable[[], Policy]


class About(msgspec.Struct, frozen=True):
    """``reads_outage_as_zero``: which of ``error``, ``empty``, ``nan`` it takes for an idle pool."""

    what: str
    source: str
    reads_outage_as_zero: tuple[str, ...] = ()


ABOUT: dict[str, About] = {
    "static": About("No autoscaler: the pool's min, all the time.", ""),
    "static-peak": About("No autoscaler: enough for the peak, all the time.", ""),
    "hpa-gpu": About("Kubernetes HPA on GPU utilisation, 80 %.", "https://github.com/kubernetes/website"),
    "hpa-queue": About("Kubernetes HPA on requests waiting, 5 per replica.", "https://github.com/kubernetes/website"),
    "keda-queue-running": About(
        "KEDA by llm-d's guide: queue 250 by Value, running 250 per replica; an empty answer is 0.",
        "https://github.com/llm-d/llm-d",
        ("empty", "nan"),
    ),
    "kpa": About("Knative: requests in flight over 60 s, panic over 6 s.", "https://github.com/knative/serving"),
    "wva-v1": About(
        "llm-d WVA, percentages: spare KV and queue, one step at a time, behind an HPA.", "https://github.com/llm-d/llm-d-autoscaling"
    ),
    "wva-v2": About(
        "llm-d WVA, tokens: demand ÷ 0.85 and ÷ 0.70 of what replicas hold, behind an HPA.", "https://github.com/llm-d/llm-d-autoscaling"
    ),
    "dynamo-throughput": About(
        "NVIDIA Dynamo, easy mode: KV and queued prompts, above 100 % up, below 60 % down.", "https://github.com/ai-dynamo/dynamo"
    ),
    "dynamo-sla": About(
        "NVIDIA Dynamo, SLA mode: estimated TTFT and ITL, above a floor from a 3-min forecast.", "https://github.com/ai-dynamo/dynamo"
    ),
    "aibrix-apa": About(
        "AIBrix APA: KV usage 0.5, the least of 5 min on the way down; a failed fetch is 0.",
        "https://github.com/vllm-project/aibrix",
        ("error", "empty"),
    ),
    "aibrix-apa-fixed": About(
        "The same with the most of 5 min on the way down, and failed fetches left out.", "https://github.com/vllm-project/aibrix"
    ),
    "ray": About(
        "Ray Serve: ongoing requests, up after 30 s, down after 10 min; no metrics are no requests.",
        "https://github.com/ray-project/ray",
        ("error", "empty", "nan"),
    ),
    "skyserve": About(
        "SkyServe: requests per second, up after 5 min, down after 20, on-demand for spot not ready.",
        "https://github.com/skypilot-org/skypilot",
    ),
    "kubeai": About("KubeAI: the mean of active requests over 10 min.", "https://github.com/kubeai-project/kubeai"),
    "kthena": About("kthena: requests waiting per pod, 5 min down, a panic that only grows.", "https://github.com/volcano-sh/kthena"),
    "dstack": About("dstack: requests per second, 5 min apart up, 10 min down.", "https://github.com/dstackai/dstack"),
    "cron": About("GPUStack: a calendar that sets the count, and nothing else.", "https://github.com/gpustack/gpustack"),
    "sageserve": About("SageServe LT-UA: an hourly plan, spent one by one as memory fills.", "https://github.com/kjain1810/SageServe"),
    "chiron": About(
        "Chiron: the share of replicas that serve interactive work, 0.6, no dead band.", "https://github.com/kjain1810/SageServe"
    ),
}

ASIDE: dict[str, About] = {
    "dynamo-sla-fitted": About(
        "NVIDIA Dynamo, SLA mode, which learns what a pass takes as Dynamo does, in place of being given it.",
        "https://github.com/ai-dynamo/dynamo",
    ),
}
"""Variants of those above, played where they are asked for by name: ``all`` is without them."""


def framed(law: Callable[[], Law[M]], of: Targets) -> Make:
    """A maker of policies that follow ``law`` within the pool's limits. The law itself is made once, at once: it may raise BadInput."""
    made = law()

    def make() -> Policy:
        return Framed(made, of.limits)

    return make


def named(pool: Pool, capacity: PoolCapacity, *, peak_replicas: int | None, calendar: Sequence[CalendarEntry] = ()) -> dict[str, Make]:
    """All of them for one pool, variants included, by name, each with its source's defaults and the targets of `settings.targets`.

    ``peak_replicas``: what the peak needs (default: the pool's max); ``static-peak`` holds it, and ``cron`` without a
    ``calendar`` sets it from 8 to 22, and half of it else. Raises BadInput for a pool without a profile, or without any capacity.
    """
    of = targets(pool, capacity)
    limits = of.limits
    peak = limits.max_replicas if peak_replicas is None else peak_replicas
    entries = [entry for entry in calendar if not entry.pools or pool.name in entry.pools]
    rules = cron.from_calendar(entries) if entries else cron.office_hours(peak)
    baseline = limits.min_replicas if entries else math.ceil(peak / 2)
    return {
        "static": framed(lambda: Static(limits.min_replicas, "the pool's min"), of),
        "static-peak": framed(lambda: Static(peak, "what the peak needs"), of),
        "hpa-gpu": framed(GpuHpa, of),
        "hpa-queue": framed(QueueHpa, of),
        "keda-queue-running": framed(Keda, of),
        "kpa": framed(lambda: Knative(KnativeSettings(target=of.target_concurrency)), of),
        "wva-v1": framed(WvaV1, of),
        "wva-v2": framed(lambda: WvaV2(of), of),
        "dynamo-throughput": framed(lambda: DynamoEasy(of), of),
        "dynamo-sla": framed(lambda: DynamoSla(of), of),
        "dynamo-sla-fitted": framed(lambda: DynamoSla(of, SlaSettings(fit=FitSettings())), of),
        "aibrix-apa": framed(Apa, of),
        "aibrix-apa-fixed": framed(lambda: Apa(ApaSettings(fixed=True)), of),
        "ray": framed(lambda: Ray(RaySettings(target_ongoing=of.target_concurrency)), of),
        "skyserve": framed(lambda: Sky(SkySettings(of.target_rate_per_s)), of),
        "kubeai": framed(lambda: KubeAi(KubeAiSettings(of.target_concurrency)), of),
        "kthena": framed(Kthena, of),
        "dstack": framed(lambda: Dstack(DstackSettings(of.target_rate_per_s)), of),
        "cron": framed(lambda: Cron(rules, baseline), of),
        "sageserve": framed(lambda: Sage(SageSettings(of.prompt_tokens_per_s)), of),
        "chiron": framed(Chiron, of),
    }
