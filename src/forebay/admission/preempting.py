"""Which running preemptible requests give their place up for a more important one that fits nowhere.

Those of which nothing is with the client, the last started first, since the least work is lost with them; as few as make room on one
replica. Each gives its place up at most `PREEMPTIONS_MAX` times, so that it ends some day.
"""

from collections.abc import Iterable

from forebay.admission.budget import Replica
from forebay.admission.tickets import Ticket

PREEMPTIONS_MAX = 3
VICTIMS_MAX = 8
"""For one request; where more would have to go, it waits."""
REPLICAS_MAX = 4
"""Looked at."""


def victims_for(ticket: Ticket, replicas: Iterable[Replica]) -> tuple[Replica, list[Ticket]] | None:
    """Where ``ticket`` fits in place of the fewest others, and in place of which; None: nowhere."""
    best: tuple[Replica, list[Ticket]] | None = None
    looked = 0
    for replica in replicas:
        if not replica.preemptible or replica.id in ticket.excluded or ticket.lane.index >= replica.kept_index:
            continue
        spared = [permit for permit in replica.permits.values() if _may_go(permit, ticket)]
        if not spared:
            continue
        victims = _fewest(ticket, replica, spared)
        if victims is not None and (best is None or len(victims) < len(best[1])):
            best = replica, victims
        looked += 1
        if looked == REPLICAS_MAX or (best is not None and len(best[1]) == 1):
            break
    return best


def _may_go(permit: Ticket, ticket: Ticket) -> bool:
    lane = permit.lane
    return lane.preemptible and lane.index > ticket.lane.index and not permit.answered and permit.preempted < PREEMPTIONS_MAX


def _fewest(ticket: Ticket, replica: Replica, spared: list[Ticket]) -> list[Ticket] | None:
    spared.sort(key=lambda permit: (-permit.dispatched_s, -permit.id))
    victims = spared[:VICTIMS_MAX]
    if not replica.fits_without(ticket, victims):
        return None
    for count in range(1, len(victims)):
        if replica.fits_without(ticket, victims[:count]):
            return victims[:count]
    return victims
