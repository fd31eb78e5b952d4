"""A roster from the spec alone: what a gateway routes by before, or without, a controller."""

from forebay.domain.roster import Capacity, Roster, RosterPool, RosterReplica
from forebay.spec.types import Pool, Spec

KV_TOKENS = 1_000_000
SEQUENCES = 256
PREFILL_TOKENS = 65_536
PREFILL_TOKENS_PER_S = 10_000.0
DECODE_TOKENS_PER_S = 2_000.0
CONTEXT_TOKENS = 131_072
LEASE_S = 10.0


def pool_capacity(spec: Spec, pool: Pool) -> Capacity:
    """From the pool's profile; without one, a permissive default: the engine's own limits then bind first."""
    if pool.profile is not None:
        from forebay.engine.capacity import roster_capacity

        return roster_capacity(pool.profile, pool.slo.ttft_s, pool.slo.itl_s)
    context = {model.name: model.context_tokens for model in spec.models}.get(pool.model, CONTEXT_TOKENS)
    return Capacity(KV_TOKENS, SEQUENCES, PREFILL_TOKENS, PREFILL_TOKENS_PER_S, DECODE_TOKENS_PER_S, context)


def static_roster(spec: Spec) -> Roster:
    """Every attached engine of every pool, under term 0: any controller's roster replaces it."""
    pools = []
    for pool in spec.pools:
        capacity = pool_capacity(spec, pool)
        replicas = tuple(RosterReplica(f"{pool.name}-{index}", url, capacity) for index, url in enumerate(pool.engine.attach))
        pools.append(RosterPool(pool.name, replicas))
    return Roster(0, 1, LEASE_S, tuple(pools))
