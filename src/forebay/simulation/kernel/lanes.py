"""The lines at the gateway: two per tier, those that can still meet their TTFT and, behind them, the late.

TTFT is the same for all of a tier, so order of arrival is order of deadlines, and each line is kept in it. A head that can no
longer meet its TTFT, even if it ran alone at once, moves behind when it is looked at.
"""

import math

from forebay.simulation.kernel.compiling import kernel
from forebay.simulation.kernel.layout import FREE, QUEUED, World
from forebay.simulation.kernel.memory import line_at, log_at, request_at, tier_at
from forebay.simulation.kernel.numbers import SHED

NOBODY = -1


@kernel
def late(fleet: World, who: int) -> bool:
    """Whether its TTFT can no longer be met: waited + front end + prefill alone > TTFT."""
    request = request_at(fleet, who)
    return bool(fleet.by_deadline and fleet.now_s - request.at_s + request.least_s > tier_at(fleet, request.tier).ttft_s)


@kernel
def _place(fleet: World, who: int, line: int, before: int) -> None:
    """Into the line before the request ``before`` (-1: last)."""
    lane = line_at(fleet, line)
    after = lane.tail if before < 0 else request_at(fleet, before).prev
    request_at(fleet, who).prev, request_at(fleet, who).next = after, before
    if after < 0:
        lane.head = who
    else:
        request_at(fleet, after).next = who
    if before < 0:
        lane.tail = who
    else:
        request_at(fleet, before).prev = who
    lane.waiting += 1
    request_at(fleet, who).line = line


@kernel
def _take_out(fleet: World, who: int) -> None:
    request = request_at(fleet, who)
    lane = line_at(fleet, request.line)
    if request.prev < 0:
        lane.head = request.next
    else:
        request_at(fleet, request.prev).next = request.next
    if request.next < 0:
        lane.tail = request.prev
    else:
        request_at(fleet, request.next).prev = request.prev
    lane.waiting -= 1


@kernel
def _insert(fleet: World, who: int, line: int) -> None:
    """By order of arrival. A newcomer is last, and one that comes back is near the head: look from both ends."""
    lane = line_at(fleet, line)
    seq = request_at(fleet, who).seq
    before = NOBODY
    if lane.tail >= 0 and request_at(fleet, lane.tail).seq > seq:
        before = lane.head
        while request_at(fleet, before).seq < seq:
            before = request_at(fleet, before).next
    _place(fleet, who, line, before)


@kernel
def expiry_of(fleet: World) -> float:
    """When the first of all heads will have waited as long as its tier accepts."""
    at_s = math.inf
    for line in range(2 * fleet.tiers):
        head = line_at(fleet, line).head
        if head >= 0:
            at_s = min(at_s, request_at(fleet, head).at_s + tier_at(fleet, line >> 1).longest_wait_s)
    return at_s


@kernel
def enqueue(fleet: World, who: int, back: bool) -> None:
    """It waits from now on; ``back``: its replica is gone, and it may be late already."""
    request = request_at(fleet, who)
    request.state, request.row = QUEUED, -1
    _insert(fleet, who, 2 * request.tier + (1 if back and late(fleet, who) else 0))
    fleet.waiting += 1
    tier = tier_at(fleet, request.tier)
    tier.waiting += 1
    tier.waiting_tokens += request.prompt + request.output
    fleet.expiry_s = expiry_of(fleet)


@kernel
def leave(fleet: World, who: int) -> None:
    """It waits no more."""
    request = request_at(fleet, who)
    _take_out(fleet, who)
    fleet.waiting -= 1
    tier = tier_at(fleet, request.tier)
    tier.waiting -= 1
    tier.waiting_tokens -= request.prompt + request.output
    if fleet.blocked == who:
        fleet.blocked = NOBODY
    fleet.expiry_s = expiry_of(fleet)


@kernel
def head(fleet: World) -> int:
    """Who goes next, the late having been moved behind; -1: nobody waits."""
    for tier in range(fleet.tiers):
        first = line_at(fleet, 2 * tier).head
        while first >= 0 and late(fleet, first):
            _take_out(fleet, first)
            _insert(fleet, first, 2 * tier + 1)
            first = line_at(fleet, 2 * tier).head
        if first < 0:
            first = line_at(fleet, 2 * tier + 1).head
        if first >= 0:
            return int(first)
    return NOBODY


@kernel
def free(fleet: World, who: int) -> None:
    """Its record may be used again."""
    request_at(fleet, who).state, request_at(fleet, who).next = FREE, fleet.free_request
    fleet.free_request = who


@kernel
def log_end(fleet: World, who: int, outcome: int) -> None:
    """For whoever debugs."""
    request = request_at(fleet, who)
    if request.seq < fleet.logged:
        entry = log_at(fleet, request.seq)
        entry.first_s, entry.finish_s, entry.outcome = request.first_s, fleet.now_s, outcome
        entry.row, entry.preempted = request.row, request.preempted


@kernel
def shed(fleet: World, who: int) -> None:
    """It is refused, having left its lane."""
    tier = tier_at(fleet, request_at(fleet, who).tier)
    tier.shed += 1
    tier.ttft_missed += 1
    log_end(fleet, who, SHED)
    free(fleet, who)


@kernel
def expire(fleet: World) -> None:
    """Shed all that have waited as long as their tier accepts."""
    now_s = fleet.now_s
    for line in range(2 * fleet.tiers):
        first = line_at(fleet, line).head
        while first >= 0 and request_at(fleet, first).at_s + tier_at(fleet, line >> 1).longest_wait_s <= now_s:
            leave(fleet, first)
            shed(fleet, first)
            first = line_at(fleet, line).head


@kernel
def overflow(fleet: World) -> None:
    """Beyond the bound the newest of the least important lane is shed."""
    while fleet.waiting > fleet.queued_max:
        tier = fleet.tiers - 1
        while tier_at(fleet, tier).waiting == 0:
            tier -= 1
        newest, other = line_at(fleet, 2 * tier).tail, line_at(fleet, 2 * tier + 1).tail
        if newest < 0 or (other >= 0 and request_at(fleet, other).seq > request_at(fleet, newest).seq):
            newest = other
        leave(fleet, newest)
        shed(fleet, newest)
