"""Who waits and will not have been started in time, as things go: to be told now, and not when the time is over.

A request is refused at once where the pace says so of its tier's longest wait when it comes; by its client's deadline only where what goes
before it, whatever the order of its team, takes longer. And it may come before there is a pace, as the first burst does, or answers turn
out longer than estimated, or replicas are lost. So the lanes are gone through in the order in which they start: who would start only
after its own end is passed over, as it will be then. It is looked at with a margin, and only by a pace that was measured.
"""

from collections.abc import Sequence

from forebay.admission.fairness import LATE_EVERY, Account
from forebay.admission.lanes import Lane
from forebay.admission.replicas import Replicas
from forebay.admission.tickets import Ticket
from forebay.admission.waits import FORESIGHT_S

LOOK_EVERY_S = 2.0
"""A walk costs microseconds for each that waits."""
LATER = 1.25
"""Times what is left to it: a pace of half a minute is not known better."""
LOOKED_MAX = 4096
"""In one lane at one look; who is behind them is looked at when they are gone."""


def doomed(lanes: Sequence[Lane], replicas: Replicas, now_s: float) -> list[Ticket]:
    """Those that start too late at the measured pace of their lane, the first in line first."""
    found: list[Ticket] = []
    if not replicas.listed:
        return found
    before_tokens = 0.0
    for lane in lanes:
        first = lane.deadlines.first() if lane.waiting else None
        if first is not None and _is_foreseen(first):
            per_s = lane.pace.per_s(now_s, True, lane.each_tokens)
            everything_s = (before_tokens + lane.cost_tokens) / per_s if per_s else 0.0
            if everything_s > LATER * (first.deadline_s - now_s):
                found += _of_lane(lane, before_tokens, per_s, replicas.ready_at_s, now_s)
        before_tokens += lane.cost_tokens
    return found


def _is_foreseen(ticket: Ticket) -> bool:
    """Its tier, or its client, waits no longer than a pace is stretched."""
    return min(ticket.lane.longest_wait_s, ticket.patience_s) <= FORESIGHT_S


def _of_lane(lane: Lane, before_tokens: float, per_s: float, ready_at_s: float | None, now_s: float) -> list[Ticket]:
    found: list[Ticket] = []
    for account in lane.order.accounts.values():
        if account.waiting:
            found += _of_team(lane, account, before_tokens, per_s, ready_at_s, now_s)
    return found


def _of_team(lane: Lane, account: Account, before_tokens: float, per_s: float, ready_at_s: float | None, now_s: float) -> list[Ticket]:
    found: list[Ticket] = []
    own_tokens = late_tokens = 0
    on_time, late = account.in_order(LOOKED_MAX)
    for index, ticket in enumerate((*on_time, *late)):
        ahead_tokens = own_tokens
        if index >= len(on_time):
            # Every so manieth start is of a late one, however many are on time.
            ahead_tokens = min(own_tokens, LATE_EVERY * (late_tokens + ticket.cost))
        starts_in_s = (before_tokens + lane.order.ahead(account, ahead_tokens)[0]) / per_s
        helped = ready_at_s is not None and ready_at_s <= ticket.deadline_s
        if starts_in_s > LATER * (ticket.deadline_s - now_s) and not helped and _is_foreseen(ticket):
            found.append(ticket)
            continue
        own_tokens += ticket.cost
        if index >= len(on_time):
            late_tokens += ticket.cost
    return found
