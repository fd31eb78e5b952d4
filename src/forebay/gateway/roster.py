"""A roster from the spec alone: what a gateway routes by before, or without, a controller."""

from forebay.admission.capacity import replica_capacity
from forebay.domain.replica import attached_id
from forebay.domain.roster import Roster, RosterPool, RosterReplica
from forebay.spec.types import Spec

CONTEXT_TOKENS = 131_072
LEASE_S = 10.0


def static_roster(spec: Spec) -> Roster:
    """Every attached engine of every pool, under term 0: any controller's roster replaces it."""
    context_tokens = {model.name: model.context_tokens for model in spec.models}
    pools = []
    for pool in spec.pools:
        capacity = replica_capacity(pool, context_tokens.get(pool.model, CONTEXT_TOKENS))
        replicas = tuple(RosterReplica(attached_id(pool.name, url), url, capacity) for url in pool.engine.attach)
        pools.append(RosterPool(pool.name, replicas))
    return Roster(0, 1, LEASE_S, tuple(pools))
