"""How long a request would wait: the work that starts before it ÷ the pace at which its lane goes.

Before it: what waits in more important lanes, and of its own lane what fairness starts first (`fairness.FairOrder.ahead`), so that a team
with little in line is not told to wait for another's backlog. The measured pace of the lane is preferred: it already contains what more
important lanes take from it. Where none was measured, what the pool's requests took, or what its profile declares
(`prior`), says how long the work takes if nothing else comes; a request is refused on that only with a margin.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from forebay.admission.fairness import LATE_EVERY, Account
from forebay.admission.lanes import Lane
from forebay.admission.looks import Position
from forebay.admission.outcomes import Refusal, Shortage, bounded
from forebay.admission.outliers import EJECT_S
from forebay.admission.prior import MARGIN
from forebay.admission.replicas import Replicas
from forebay.admission.tickets import Ticket
from forebay.domain.roster import Capacity, Posture
from forebay.domain.signal import Known

NEVER_HELPS: Final = frozenset({Refusal.NEVER_FITS, Refusal.OUT_OF_TIME})
"""Coming back as it is: it would be refused again."""
FAILED_RETRY_S: Final = EJECT_S
"""Each replica has failed this one: those that fail others too are out for so long, and are asked anew then."""
NO_REPLICAS_RETRY_S = 30.0
"""Retry-After where nothing is expected."""
FORESIGHT_S = 600.0
"""A pace seen over half a minute is not stretched further: tiers that accept a longer wait are not refused by prediction."""
SOME = 1 / 3
"""A chance to start while it is on time that is counted on."""
HOLDER_RETRY_S = 5.0
"""Retry-After where the only replica that can serve it takes no requests: one that answered wrong is tried again after so long."""
UNMEASURED_RETRY_S = 10.0
"""Retry-After where neither a measured nor a declared pace is known."""


def measured_wait_s(lanes: Sequence[Lane], lane: Lane, account: Account, now_s: float, most_s: float = 0.0) -> float | None:
    """How long another request of this team would wait at the lane's measured pace; None without one.

    Where all of the lane takes no longer than ``most_s``, that is the answer: what fairness starts first can't take longer.
    """
    per_s = lane.pace.per_s(now_s, lane.waiting > 0, lane.each_tokens)
    if not per_s:
        return None
    before = sum([other.cost_tokens for other in lanes[: lane.index]]) if lane.index else 0
    wait_s = (before + lane.cost_tokens) / per_s
    return wait_s if wait_s <= most_s else (before + lane.order.ahead(account, account.tokens)[0]) / per_s


def declared_wait_s(lanes: Sequence[Lane], lane: Lane, share: float, capacities: Iterable[Capacity]) -> float | None:
    """The same from the replicas' declared paces: prefill or decoding, whichever takes longer. None without any.

    ``share``: how much of the lane's own work starts first.
    """
    prefill_per_s = decode_per_s = 0.0
    for capacity in capacities:
        if capacity.paced:
            prefill_per_s += capacity.prefill_tokens_per_s
            decode_per_s += capacity.decode_tokens_per_s
    if prefill_per_s <= 0 or decode_per_s <= 0:
        return None
    before = lanes[: lane.index]
    prompt_tokens = sum(other.prompt_tokens for other in before) + share * lane.prompt_tokens
    output_tokens = sum(other.output_tokens for other in before) + share * lane.output_tokens
    return max(prompt_tokens / prefill_per_s, output_tokens / decode_per_s)


def foreseen_wait_s(lanes: Sequence[Lane], lane: Lane, ahead_tokens: float, replicas: Replicas, now_s: float) -> float | None:
    """The same where the lane's pace was not measured: from what ended, else declared, and not before what runs can have ended.

    ``ahead_tokens``: virtual tokens of its own lane that start first. None: nothing is known of the pool's pace.
    """
    before = sum(other.cost_tokens for other in lanes[: lane.index]) + ahead_tokens
    served, outgrown, each_tokens = replicas.served, lane.pace.outgrown, lane.each_tokens
    pace = served.tokens_per_s(replicas.listed, now_s)
    if pace is not None:
        return before / (pace * outgrown(served.each_tokens, each_tokens))
    share = ahead_tokens / lane.cost_tokens if lane.cost_tokens else 0.0
    declared_s = declared_wait_s(lanes, lane, share, (replica.capacity for replica in replicas.listed))
    best = served.best_per_s(replicas.listed, now_s)
    best_s = None if best is None else before / (best * outgrown(served.running_tokens, each_tokens))
    known = [wait_s for wait_s in (declared_s, best_s) if wait_s is not None]
    return max(known, default=None)


def too_late(lanes: Sequence[Lane], lane: Lane, account: Account, replicas: Replicas, deadline_s: float, now_s: float) -> bool:
    """Whether another request of this team can't start by ``deadline_s``, as far as that can be told."""
    longest_wait_s = deadline_s - now_s
    if not replicas.listed or longest_wait_s > FORESIGHT_S:
        return False
    if replicas.ready_at_s is not None and replicas.ready_at_s <= deadline_s:
        return False
    wait_s = measured_wait_s(lanes, lane, account, now_s, longest_wait_s)
    if wait_s is not None:
        return wait_s > longest_wait_s
    everything_s = foreseen_wait_s(lanes, lane, lane.cost_tokens, replicas, now_s)
    if everything_s is None or everything_s <= MARGIN * longest_wait_s:
        return False
    ahead_s = foreseen_wait_s(lanes, lane, lane.order.ahead(account, account.tokens)[0], replicas, now_s)
    return ahead_s is not None and ahead_s > MARGIN * longest_wait_s


def too_late_though_next(lanes: Sequence[Lane], ticket: Ticket, replicas: Replicas, now_s: float) -> bool:
    """Whether by the measured pace an arrival starts after its client's deadline even if its team has it go first.

    Within a team the most urgent go first, so that nothing of its own need be ahead of it.
    """
    lane, longest_wait_s = ticket.lane, ticket.deadline_s - now_s
    if not replicas.listed or (replicas.ready_at_s is not None and replicas.ready_at_s <= ticket.deadline_s):
        return False
    per_s = lane.pace.per_s(now_s, lane.waiting > 0, lane.each_tokens)
    if not per_s or longest_wait_s > FORESIGHT_S:
        return False
    before = sum([other.cost_tokens for other in lanes[: lane.index]]) + lane.order.ahead(ticket.account, 0)[0]
    return before / per_s > longest_wait_s


def out_of_time(ticket: Ticket, replicas: Replicas) -> bool:
    """Whether an arrival's client certainly has too little time: none, or less than what isn't cached takes to prefill by the profile."""
    patience_s = ticket.patience_s
    if patience_s <= 0:
        return True
    if replicas.prefill_s(ticket) <= patience_s or ticket.only:  # of a conversation that goes on, its replica has the most
        return False
    if any(not replica.capacity.paced for replica in replicas.listed):
        return False
    cached = replicas.foreseen(ticket.prefix, ticket.uncached) if ticket.prefix is not None else 0
    return (ticket.uncached - cached) / replicas.prefill_tokens_per_s > patience_s


def retry_after_s(lanes: Sequence[Lane], replicas: Replicas, ticket: Ticket, why: Refusal, now_s: float) -> float | None:
    """When coming back helps whom admission refuses: by the measured drain of what starts before its team, or when a cold start is over."""
    if why in NEVER_HELPS:
        return None
    if why is Refusal.HOLDER_OUT:
        return HOLDER_RETRY_S
    if why is Refusal.NO_REPLICAS and ticket.excluded:
        return FAILED_RETRY_S
    ready_in_s = None if replicas.ready_at_s is None else replicas.ready_at_s - now_s
    if why is Refusal.NO_REPLICAS or (ready_in_s is not None and not replicas.listed):
        return bounded(NO_REPLICAS_RETRY_S if ready_in_s is None else ready_in_s)
    lane, account = ticket.lane, ticket.account
    # At least as long as the pool needs for this one: who has waited in vain is not told to come back into the same line at once.
    ahead_tokens = max(lane.order.ahead(account, account.tokens)[0], float(ticket.cost))
    pace = lane.pace.tokens_per_s(now_s, lane.waiting > 0, lane.each_tokens)
    if isinstance(pace, Known):
        wait_s: float | None = (sum(other.cost_tokens for other in lanes[: lane.index]) + ahead_tokens) / pace.value
    else:
        wait_s = foreseen_wait_s(lanes, lane, ahead_tokens, replicas, now_s)
    if wait_s is None:
        wait_s = UNMEASURED_RETRY_S
    return bounded(wait_s if ready_in_s is None else min(wait_s, ready_in_s))


def starts_in_s(lanes: Sequence[Lane], ticket: Ticket, tokens: float, replicas: Replicas, now_s: float) -> float | None:
    """When ``ticket``, which waits behind ``tokens`` of its lane, starts. Half of its own are to go too: the next place isn't free yet."""
    lane = ticket.lane
    ready_in_s = None if replicas.ready_at_s is None else replicas.ready_at_s - now_s
    listed = len(replicas.listed)
    if not listed:
        return ready_in_s if ready_in_s is not None and ready_in_s > 0 else None
    if not lane.pace.replicas:  # it is held back
        return None
    per_s = lane.pace.per_s(now_s, True, lane.each_tokens)
    if not per_s:
        return foreseen_wait_s(lanes, lane, tokens + ticket.cost / 2, replicas, now_s)
    more_tokens = sum(other.cost_tokens for other in lanes[: lane.index]) + ticket.cost / 2
    wait_s = (tokens + more_tokens) / per_s if ticket.returned else _in_turn_s(ticket, more_tokens, per_s, now_s)
    if ready_in_s is not None and 0 < ready_in_s < wait_s:  # from then on there is one more
        wait_s = ready_in_s + (wait_s - ready_in_s) * listed / (listed + 1)
    return wait_s


def _in_turn_s(ticket: Ticket, more_tokens: float, per_s: float, now_s: float) -> float:
    """The same at a measured pace, as its lane goes on: behind those, too, that will come and be on time while it is late.

    Who is late lets them go first, but for every `LATE_EVERY`-th start. Who is on time, and will not be when its turn comes, is late then,
    unless a good part of those like it start before: those ahead of it are late before it is.
    """
    lane = ticket.lane
    on_time, late = ticket.account.standing(ticket, now_s)
    share, left_s = lane.pace.on_time_share(lane.pace.per_s(now_s, True), now_s - lane.joined_s), ticket.late_at_s - now_s
    behind = float(late)
    if left_s >= 0:
        own_tokens = on_time * LATE_EVERY / (LATE_EVERY - 1) if late else float(on_time)
        wait_s = (lane.order.ahead(ticket.account, round(own_tokens))[0] + more_tokens) / per_s
        if wait_s * SOME < left_s:
            return min(wait_s, left_s)
        behind += on_time * (1 - left_s / wait_s)
    own_tokens = LATE_EVERY * (behind + ticket.cost)
    if share < 1:
        own_tokens = min(own_tokens, (on_time + late) / (1 - share))
    return (lane.order.ahead(ticket.account, round(own_tokens))[0] + more_tokens) / per_s


def position(lanes: Sequence[Lane], ticket: Ticket, replicas: Replicas, now_s: float) -> Position:
    """Where ``ticket`` stands now. O(what waits of its team), for whoever asks."""
    lane = ticket.lane
    if ticket.replica is not None:
        return Position(lane.tier, False, 0, 0, ticket.dispatched_s - ticket.arrived_s, 0.0, 0.0)
    tokens, requests = lane.order.before(ticket)
    starts_s = starts_in_s(lanes, ticket, tokens, replicas, now_s)
    before = lanes[: lane.index]
    tokens += sum(other.cost_tokens for other in before)
    roomiest = replicas.roomiest(ticket)
    short_of = Shortage.REPLICA if roomiest is None else roomiest.short_of(ticket)
    if lane.preemptible and roomiest is not None and replicas.posture is Posture.HOLD_PREEMPTIBLE:
        short_of = Shortage.EVENT
    elif short_of is Shortage.TURN and lane.preemptible and roomiest in replicas.held:
        short_of = Shortage.PREFILL
    return Position(
        tier=lane.tier,
        waiting=True,
        ahead=int(requests) + sum(other.waiting for other in before),
        ahead_tokens=round(tokens),
        waited_s=now_s - ticket.arrived_s,
        starts_in_s=None if starts_s is None else min(starts_s, max(0.0, ticket.deadline_s - now_s)),
        refused_in_s=max(0.0, ticket.deadline_s - now_s),
        short_of=short_of,
    )
