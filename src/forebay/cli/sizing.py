"""What a pool's promise comes to before anything runs: requests per replica, warm buffer, cost, and promises that can't be kept.

Nothing here fails a configuration: a promise that the profile rules out may still be right where the profile is wrong.
"""

import msgspec

from forebay.admission.capacity import UNKNOWN_SEQUENCES
from forebay.engine.capacity import at_slo
from forebay.scaling.capacity import pool_capacity, whole_replicas
from forebay.scaling.floors import BUFFER_NOISE_REPLICAS
from forebay.scaling.warm import caught
from forebay.spec.types import Pool

DECLARED_FACTOR_MAX = 3.0
"""A declared rate this many times off the computed one is more likely a mistake than a measurement."""


class Sizing(msgspec.Struct, frozen=True):
    """None where it isn't known: no profile, no price."""

    replica_rate_per_s: float | None
    """Computed from the profile at the SLO and the declared shape; 0 where no rate keeps the promise."""
    declared_replica_rate_per_s: float | None
    buffer_replicas: int
    """For the declared ramp alone; 0 where there is none or no rate to divide by."""
    usd_per_hour_min: float | None
    usd_per_hour_max: float | None
    warnings: tuple[str, ...] = ()


def sizing(pool: Pool) -> Sizing:
    """The sizing of ``pool``, as the scaling policy will compute it from its first second."""
    settings = pool.scaling
    computed = _computed_per_s(pool)
    declared = settings.replica_rate_per_s
    capacity = pool_capacity(pool)
    buffer = 0
    if settings.buffer and capacity.rate_per_s:
        buffer = whole_replicas(settings.ramp_per_s2 * capacity.cold_start_s / capacity.rate_per_s - BUFFER_NOISE_REPLICAS)
    replica_usd = pool.profile.gpus * pool.profile.gpu_hour_usd if pool.profile is not None else 0.0
    return Sizing(
        replica_rate_per_s=computed,
        declared_replica_rate_per_s=declared,
        buffer_replicas=buffer,
        usd_per_hour_min=settings.min_replicas * replica_usd if replica_usd else None,
        usd_per_hour_max=settings.max_replicas * replica_usd if replica_usd else None,
        warnings=(*_doubts(pool), *_warnings(pool, computed, declared), *_warm(pool)),
    )


def _computed_per_s(pool: Pool) -> float | None:
    if pool.profile is None:
        return None
    undeclared = msgspec.structs.replace(pool, scaling=msgspec.structs.replace(pool.scaling, replica_rate_per_s=None))
    return pool_capacity(undeclared).rate_per_s or 0.0


def _doubts(pool: Pool) -> list[str]:
    return [f"pools.{pool.name}: {pool.profile.doubt}"] if pool.profile is not None and pool.profile.doubt else []


def _warnings(pool: Pool, computed: float | None, declared: float | None) -> list[str]:
    if pool.engine.kind == "attach" and pool.profile is None:
        return [
            f"pools.{pool.name}: without a profile an engine is taken to run {UNKNOWN_SEQUENCES} requests at once; if it runs fewer, the "
            "rest waits inside it, where no tier goes first, until `forebay up` has seen how many: name a profile, with its `sequences`"
        ]
    if computed is None or pool.profile is None:
        return []
    if not computed:
        settings, slo = pool.scaling, pool.slo
        found = at_slo(pool.profile, settings.prompt_tokens, settings.output_tokens, slo.ttft_s, slo.itl_s)
        return [f"pools.{pool.name}: no replica can keep this promise, {found.binding} binds: {found.because}"]
    if declared is None or computed / DECLARED_FACTOR_MAX <= declared <= computed * DECLARED_FACTOR_MAX:
        return []
    return [
        f"pools.{pool.name}: replica_rate says {per_min(declared)}, its profile says {per_min(computed)} at this promise and shape: "
        "measure it, or leave replica_rate out"
    ]


def _warm(pool: Pool) -> list[str]:
    """What is to be known of warm nodes: where they are held at all, and whether at this price any are."""
    settings = pool.scaling
    if not settings.warm_max:
        return []
    found = [
        f"pools.{pool.name}: scaling.warm.max is {settings.warm_max}: the lab holds warm nodes; `forebay up` refuses the file, since "
        "one machine has none"
    ]
    capacity = pool_capacity(pool)
    part = caught(capacity.cold_start_s, capacity.cold_start_s * capacity.warm_part, settings.interval_s)
    if settings.warm_share >= part:
        found.append(
            f"pools.{pool.name}: scaling.warm.share is {settings.warm_share:g}: none will be held, since a start on a warm node catches "
            f"{part:.0%} of what a running replica does"
        )
    return found


def per_min(rate_per_s: float) -> str:
    """A rate for people."""
    return f"{rate_per_s * 60:.4g}/min"
