"""What one replica serves within its promise: the number that demand is divided by.

It is the rate *at the SLO*, not the throughput limit: near the limit a fleet meets its promise until it falls off a
cliff. The physics is `engine`'s; a rate that the user declares goes before it, and then requests are the only unit,
since a declared rate says nothing about tokens.
"""

import math

import msgspec

from forebay.domain.profile import Profile
from forebay.engine import capacity as engine_capacity
from forebay.spec.types import Pool

REPLICAS_MAX = 1_000_000
"""No number of replicas is ever larger: arithmetic on absurd readings stays finite."""


class PoolCapacity(msgspec.Struct, frozen=True):
    """One replica of a pool at its SLO; None where it isn't known or doesn't limit."""

    rate_per_s: float | None = None
    """Requests per second of the declared shape."""
    prompt_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    cold_start_s: float = 0.0
    """Assumed until one was measured."""
    origin: str = ""
    """Where the rate comes from, in words for people."""
    profile: Profile | None = None
    """Gives the capacity at the lengths that really come; None: the declared shape's is all that is known."""
    replica_hour_usd: float = 0.0
    """0: not known."""
    tokens_in_flight: float | None = None
    """Mean KV tokens of the requests in flight at that rate; None: not known."""
    warm_part: float = 1.0
    """Of a cold start, that is left on a node that is there already; 1 where the stages aren't known."""
    warm_up_s: float = 0.0
    """Seconds from the end of a start until its engine is as fast as the others, at full load; 0 where its profile has no warm-up."""


def pool_capacity(pool: Pool) -> PoolCapacity:
    """The capacity of one replica of ``pool``: declared, or computed from its profile at the pool's SLO and declared shape."""
    scaling = pool.scaling
    cold_start_s = scaling.cold_start_s
    if cold_start_s is None:
        cold_start_s = pool.profile.cold_start.total_s if pool.profile is not None else 0.0
    usd = pool.profile.gpus * pool.profile.gpu_hour_usd if pool.profile is not None else 0.0
    stages = pool.profile.cold_start if pool.profile is not None else None
    warm_part = stages.warm_s / stages.total_s if stages is not None and stages.total_s > 0 else 1.0
    if scaling.replica_rate_per_s is not None:
        return PoolCapacity(
            rate_per_s=scaling.replica_rate_per_s,
            cold_start_s=cold_start_s,
            origin="declared",
            replica_hour_usd=usd,
            warm_part=warm_part,
            warm_up_s=_warm_up_s(pool.profile, pool.slo.itl_s) if pool.profile is not None else 0.0,
        )
    if pool.profile is None:
        return PoolCapacity(cold_start_s=cold_start_s, origin="not known: no profile and no declared rate")
    slo = pool.slo
    found = engine_capacity.at_slo(pool.profile, scaling.prompt_tokens, scaling.output_tokens, slo.ttft_s, slo.itl_s)
    return PoolCapacity(
        rate_per_s=found.requests_per_s or None,
        prompt_tokens_per_s=found.prompt_tokens_per_s or None,
        output_tokens_per_s=found.output_tokens_per_s or None,
        cold_start_s=cold_start_s,
        origin=f"profile {pool.profile.name} at its SLO, {scaling.prompt_tokens} prompt and {scaling.output_tokens} output tokens",
        profile=pool.profile,
        replica_hour_usd=usd,
        tokens_in_flight=found.kv_usage * pool.profile.kv_tokens if found.requests_per_s else None,
        warm_part=warm_part,
        warm_up_s=_warm_up_s(pool.profile, min(slo.itl_s, found.step_s)),
    )


def _warm_up_s(profile: Profile, pass_s: float) -> float:
    """``pass_s``: what a pass takes in a warm engine that is used as far as its promise allows."""
    return profile.warm_up.passes * profile.warm_up.factor * pass_s if profile.warm_up.passes else 0.0


def whole_replicas(ratio: float) -> int:
    """``ratio`` rounded up, once float dust is gone: 30/min/min × 5 min ÷ 50/min is 3 and not 4. Absurd ratios are bounded."""
    if math.isnan(ratio) or ratio <= 0:
        return 0
    return math.ceil(round(min(ratio, float(REPLICAS_MAX)), 9))
