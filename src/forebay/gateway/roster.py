"""A roster from the spec alone: what a gateway routes by before, or without, a controller."""

import msgspec

from forebay.admission.capacity import replica_capacity
from forebay.domain.roster import Roster, RosterPool, RosterReplica
from forebay.spec.live import attached
from forebay.spec.types import Spec

CONTEXT_TOKENS = 131_072
LEASE_S = 10.0


def static_roster(spec: Spec) -> Roster:
    """Every attached engine of every pool, under term 0: any controller's roster replaces it."""
    context_tokens = {model.name: model.context_tokens for model in spec.models}
    pools = []
    for pool in spec.pools:
        capacity = replica_capacity(pool, context_tokens.get(pool.model, CONTEXT_TOKENS))
        replicas = tuple(RosterReplica(replica_id, url, capacity) for replica_id, url in attached(pool).items())
        pools.append(RosterPool(pool.name, replicas))
    return Roster(0, 1, LEASE_S, tuple(pools))


def next_static_roster(spec: Spec, present: Roster) -> Roster:
    """The one that replaces ``present``, which was made of another spec; ``present`` itself where the engines are the same."""
    made = static_roster(spec)
    if _engines(made) == _engines(present):
        return present
    return msgspec.structs.replace(made, version=present.version + 1)


def _engines(roster: Roster) -> dict[str, frozenset[RosterReplica]]:
    return {pool.pool: frozenset(pool.replicas) for pool in roster.pools}
