"""Which running preemptible requests give their place up for a more important one that fits nowhere.

Those with which least work is lost, as few as make room on one replica. One of whose answer nothing is with the client starts anew:
what is lost is the time since it was started, so the last started go first. One whose answer has begun is gone on with, where its
owner says that this is exact at this moment: its prompt and what is out are prefilled again. One whose answer has ended, as its owner
says too, keeps what is over in a moment anyway. Each gives its place up at most `PREEMPTIONS_MAX` times, so that it ends some
day. One that was started on what its lane is owed keeps it, since that would be no share else; and so does one whose client does not
wait for another start.
"""

from collections.abc import Callable

from forebay.admission.budget import Replica
from forebay.admission.replicas import Replicas
from forebay.admission.tickets import Ticket

PREEMPTIONS_MAX = 3
VICTIMS_MAX = 8
"""For one request; where more would have to go, it waits."""
REPLICAS_MAX = 4
"""Looked at."""
ASKED_MAX = 32
"""Answers on one replica of which it is asked whether they could be gone on with."""

Resumable = Callable[[int], int | None]
"""Of one that may give its place up: how many more tokens would be prompt to whoever went on with it; None: it keeps its place."""
Victim = tuple[Ticket, int]
"""And how many more tokens are prompt to whoever goes on with it."""


def victims_for(ticket: Ticket, replicas: Replicas, now_s: float, resumable: Resumable | None) -> tuple[Replica, list[Victim]] | None:
    """Where ``ticket`` fits in place of the fewest others, and in place of which; None: nowhere."""
    best: tuple[Replica, list[Victim]] | None = None
    looked = 0
    for replica in replicas.by_load() if not ticket.only else replicas.of(ticket):
        if not replica.preemptible or replica.id in ticket.excluded or ticket.lane.index >= replica.kept_index:
            continue
        spared = [permit for permit in replica.permits.values() if _may_go(permit, ticket, replicas, now_s, resumable)]
        if not spared:
            continue
        victims = _fewest(ticket, replica, _least_lost(replica, spared, now_s, resumable))
        if victims is not None and (best is None or len(victims) < len(best[1])):
            best = replica, victims
        looked += 1
        if looked == REPLICAS_MAX or (best is not None and len(best[1]) == 1):
            break
    return best


def _may_go(permit: Ticket, ticket: Ticket, replicas: Replicas, now_s: float, resumable: Resumable | None) -> bool:
    lane = permit.lane
    if not lane.preemptible or lane.index <= ticket.lane.index or (permit.answered and resumable is None):
        return False
    return may_restart(permit, replicas, now_s)


def may_restart(permit: Ticket, replicas: Replicas, now_s: float) -> bool:
    """Whether it may give its place up once more, and its client would wait for it."""
    since_s = now_s if permit.answered else permit.arrived_s
    return permit.preempted < PREEMPTIONS_MAX and not permit.shared and replicas.last_start_s(permit, since_s) > now_s


def more_prompt_tokens(permit: Ticket, resumable: Resumable | None) -> int | None:
    """See `Resumable`. One that has ended is not started anew either, though nothing of its answer is with its client yet."""
    if resumable is None:
        return None if permit.answered else 0
    return resumable(permit.id)


def _least_lost(replica: Replica, spared: list[Ticket], now_s: float, resumable: Resumable | None) -> list[Victim]:
    """Up to `VICTIMS_MAX` that go, those with which the fewest seconds are lost before those with more."""

    def lost_s(permit: Ticket) -> float:
        return replica.again_s(permit) if permit.answered else now_s - permit.dispatched_s

    victims: list[Victim] = []
    asked = 0
    for permit in sorted(spared, key=lambda permit: (lost_s(permit), -permit.dispatched_s, -permit.id)):
        more_tokens = more_prompt_tokens(permit, resumable) if asked < ASKED_MAX else None
        if permit.answered:
            asked += 1
        if more_tokens is not None:
            victims.append((permit, more_tokens))
            if len(victims) == VICTIMS_MAX:
                break
    return victims


def _fewest(ticket: Ticket, replica: Replica, victims: list[Victim]) -> list[Victim] | None:
    """The first of them that make room for ``ticket``; None where not even all of them do."""
    going = [permit for permit, _ in victims]
    if not going or not replica.fits_without(ticket, going):
        return None
    for count in range(1, len(going)):
        if replica.fits_without(ticket, going[:count]):
            return victims[:count]
    return victims
