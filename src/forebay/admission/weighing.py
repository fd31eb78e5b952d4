"""How the replicas that a request could have gone to compared when it was sent: computed for the few that are asked about, not for all.

The scores are those by which `replicas` chooses, as they were without the request itself.
"""

import heapq
from typing import Final

from forebay.admission.budget import Replica
from forebay.admission.candidates import Candidate, Permit, TeamShare, Weighed
from forebay.admission.outcomes import Shortage
from forebay.admission.replicas import Replicas
from forebay.admission.tickets import Ticket

CANDIDATES_MAX: Final = 4
"""The chosen one, and the least loaded others."""
TEAMS_MAX: Final = 256
"""Of a lane with more the share of none is added up."""


def weighed(ticket: Ticket, replicas: Replicas) -> Weighed:
    """What is known of ``ticket``, which has just got its permit."""
    permit = Permit(ticket.total, ticket.sequences, ticket.outstanding)
    return Weighed(candidates(ticket, replicas), permit, _share(ticket))


def _share(ticket: Ticket) -> TeamShare | None:
    own, accounts = ticket.account, ticket.lane.order.accounts
    if len(accounts) > TEAMS_MAX:
        return None
    given = weights = 0.0
    waiting = 0
    for each in accounts.values():
        given += each.given_tokens
        if each.waiting and each is not own:
            waiting += 1
            weights += 1 / each.per_weight
    weight = 1 / own.per_weight
    return TeamShare(round(own.given_tokens / given, 4) if given else 1.0, round(weight / (weight + weights), 4), waiting)


def candidates(ticket: Ticket, replicas: Replicas) -> tuple[Candidate, ...]:
    """Those of ``ticket``, which has just got its permit: the chosen one first, then by load."""
    chosen, others = ticket.replica, [replica for replica in replicas.by_load() if replica is not ticket.replica]
    rows = [_candidate(ticket, replica, replicas) for replica in heapq.nsmallest(CANDIDATES_MAX - 1, others, key=_rank)] if others else []
    return (_candidate(ticket, chosen, replicas), *rows) if chosen is not None else tuple(rows)


def _rank(replica: Replica) -> tuple[float, int, int]:
    return replica.rank


def _candidate(ticket: Ticket, replica: Replica, replicas: Replicas) -> Candidate:
    capacity, chosen = replica.capacity, replica is ticket.replica
    worst, sequences, prefill = replica.worst_tokens, replica.sequences, replica.prefill_tokens
    if chosen:
        worst, sequences, prefill = worst - ticket.total + ticket.beside, sequences - ticket.sequences, prefill - ticket.outstanding
    load = max(worst / capacity.kv_tokens if capacity.kv_tokens else 1.0, sequences / capacity.sequences if capacity.sequences else 1.0)
    if capacity.prefill_tokens:
        load += prefill / capacity.prefill_tokens
    cached, prefix = ticket.spared, ticket.prefix
    if not chosen:
        depth = replicas.prefixes.depth(prefix.chain, replica.id) if prefix is not None else 0
        cached = prefix.cached_tokens(depth, ticket.uncached + ticket.spared) if prefix is not None else 0
    short_of = "" if chosen else "failed" if replica.id in ticket.excluded else _lacks(ticket, replica)
    return Candidate(replica.id, round(load, 4), len(replica.permits) - chosen, prefill, cached, short_of, chosen)


def _lacks(ticket: Ticket, replica: Replica) -> str:
    why = Shortage.ELSEWHERE if ticket.only else replica.short_of(ticket)
    return "" if why is Shortage.TURN else why.value
