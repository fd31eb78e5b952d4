"""What other autoscalers want to be told about a pool, derived in one place by one rule: what it serves at its promise × 0.7.

Each law has its source's real defaults beside it. Where a source leaves the number to its user (requests per second or
requests in flight per replica), the user is taken to have measured it as Forebay does, and to keep the margin that Knative
keeps: 70 % of what a replica serves within its promise.
"""

import math

import msgspec

from forebay.domain.errors import BadInput
from forebay.domain.profile import Profile
from forebay.engine import capacity as engine_capacity
from forebay.scaling.baselines.frame import Limits
from forebay.scaling.capacity import PoolCapacity
from forebay.spec.types import Pool

USED = 0.7
"""Knative's ``container-concurrency-target-percentage``; the others have no figure of their own."""
HOUR_S = 3600.0


class Targets(msgspec.Struct, frozen=True):
    """One replica of a pool at its promise, and what its user would tell another autoscaler about it."""

    profile: Profile
    limits: Limits
    ttft_s: float
    itl_s: float
    prompt_tokens: float
    """Mean lengths that were declared."""
    output_tokens: float
    rate_per_s: float
    """Requests per second that it serves at its promise (or that were declared)."""
    sequences: float
    """Requests in flight on it then, on average."""
    kv_usage: float
    """Fraction of its KV in use then."""
    prompt_tokens_per_s: float
    cold_start_s: float

    @property
    def target_concurrency(self) -> float:
        """Requests in flight per replica to aim at; at least one."""
        return max(1.0, self.sequences * USED)

    @property
    def target_rate_per_s(self) -> float:
        """Requests per second per replica to aim at."""
        return self.rate_per_s * USED


def targets(pool: Pool, capacity: PoolCapacity) -> Targets:
    """What ``pool`` is to other autoscalers. Raises BadInput where no rate per replica can be known.

    Where the promise can't be kept at any rate, the engine's own limit stands in: a user of theirs would measure that.
    """
    scaling = pool.scaling
    if pool.profile is None:
        raise BadInput(f"pool {pool.name!r} has no profile: other autoscalers can't be played on it; give it `profile:`")
    state = engine_capacity.at_slo(pool.profile, scaling.prompt_tokens, scaling.output_tokens, pool.slo.ttft_s, pool.slo.itl_s)
    if not state.requests_per_s:
        state = engine_capacity.at_slo(pool.profile, scaling.prompt_tokens, scaling.output_tokens, math.inf, math.inf)
    rate = capacity.rate_per_s or state.requests_per_s
    if not rate:
        raise BadInput(
            f"pool {pool.name!r}: a replica of {pool.profile.name} serves nothing of {scaling.prompt_tokens} prompt and "
            f"{scaling.output_tokens} output tokens, so no target can be set; change `shape:` or the profile"
        )
    return Targets(
        profile=pool.profile,
        limits=Limits(scaling.min_replicas, scaling.max_replicas),
        ttft_s=pool.slo.ttft_s,
        itl_s=pool.slo.itl_s,
        prompt_tokens=float(scaling.prompt_tokens),
        output_tokens=float(scaling.output_tokens),
        rate_per_s=rate,
        sequences=state.sequences,
        kv_usage=min(1.0, state.kv_usage),
        prompt_tokens_per_s=capacity.prompt_tokens_per_s or rate * scaling.prompt_tokens,
        cold_start_s=capacity.cold_start_s,
    )
