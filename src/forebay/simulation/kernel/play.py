"""The loop over events, and the driver's calls, behind one compiled entry.

Within one instant: ends of runs by row, then requests that leave the front end, then expiries, then arrivals, one kind at a time.
"""

import math
from collections.abc import Callable

from forebay.simulation.kernel.batches import break_off, end_run, submit
from forebay.simulation.kernel.compiling import digest, entry, kernel
from forebay.simulation.kernel.dispatch import leave_front, pump, take_in
from forebay.simulation.kernel.lanes import enqueue, expire, free, leave, log_end, overflow, shed
from forebay.simulation.kernel.layout import DECODING, QUEUED, Records, World
from forebay.simulation.kernel.memory import (
    arrival_at,
    clock_at,
    freed_at,
    old_key_at,
    replica_at,
    request_at,
    residue_at,
    share_at,
    slot_at,
    tier_at,
)
from forebay.simulation.kernel.numbers import CUT
from forebay.simulation.kernel.outcomes import release
from forebay.simulation.kernel.prefixes import forget_all, put
from forebay.simulation.kernel.readings import read_all
from forebay.simulation.kernel.trees import rebuild, set_clock, set_load

PLAY, ADD, DRAIN, CANCEL_DRAIN, STOP, REBUILD, REHASH, READ = range(8)
"""What the entry can be asked."""
OPEN, SHED_PREEMPTIBLE, SHED_LOW = range(3)
"""What becomes of an arrival that can't start at once, as in `domain.roster.Posture`."""
DONE, NEEDS_ARRIVALS, NEEDS_REQUESTS, NEEDS_GROUPS = range(4)
"""What it answers: it goes on from where it was when it has what it needs."""


@kernel
def _end_runs(fleet: World) -> None:
    root = clock_at(fleet, 1)
    while root.at_s <= fleet.now_s:
        end_run(fleet, root.row)
    for place in range(fleet.freed):
        set_load(fleet, freed_at(fleet, place).row)
    if fleet.freed:
        pump(fleet)


@kernel
def _least_s(fleet: World, who: int) -> float:
    """The least time to a first token: the front end, and what can't be cached prefilled alone."""
    request = request_at(fleet, who)
    tokens = request.prompt - request.shared
    return float(fleet.front_end_s + (-(-tokens // fleet.chunk_tokens) * fleet.base_s + fleet.per_prefill_token_s * tokens))


@kernel
def _never_fits(fleet: World, who: int) -> bool:
    request = request_at(fleet, who)
    total = request.prompt + request.output
    if total > fleet.context_tokens or total - 1 > fleet.blocks * fleet.block:
        return True
    return bool(fleet.gateway_queues and (total > fleet.kv_budget or total > fleet.context_budget or fleet.sequences_budget < 1))


@kernel
def _take_record(fleet: World) -> int:
    """The next arrival as a request of its own."""
    row = arrival_at(fleet, fleet.place)
    who = fleet.free_request
    request = request_at(fleet, who)
    fleet.free_request = request.next
    request.at_s, request.group, request.prompt, request.output, request.tier = row.at_s, row.group, row.prompt, row.output, row.tier
    request.shared = min(row.shared, row.prompt - 1) if row.group >= 0 and fleet.groups_max else 0
    request.seq = fleet.seq
    request.first_s = math.nan
    request.row = -1
    request.emitted = request.outstanding = request.preempted = 0
    request.least_s = _least_s(fleet, who)
    fleet.seq += 1
    fleet.place += 1
    return int(who)


@kernel
def _arrive(fleet: World) -> None:
    who = _take_record(fleet)
    request = request_at(fleet, who)
    tier = tier_at(fleet, request.tier)
    tier.arrived += 1
    tier.arrived_prompt_tokens += request.prompt
    tier.arrived_output_tokens += request.output
    if _never_fits(fleet, who) or (not fleet.gateway_queues and fleet.waiting + fleet.unstarted >= fleet.queued_max):
        shed(fleet, who)
        return
    take_in(fleet, who)
    if fleet.posture and fleet.gateway_queues and request.state == QUEUED and _turned_away(fleet, request.tier):
        leave(fleet, who)
        shed(fleet, who)
    overflow(fleet)


@kernel
def _turned_away(fleet: World, tier: int) -> bool:
    """Whether the posture lets an arrival of ``tier`` not wait."""
    return bool((fleet.posture == SHED_LOW and tier > 0) or tier_at(fleet, tier).preemptible)


@kernel
def _play(fleet: World, until_s: float) -> int:
    while True:
        if fleet.place == fleet.filled and not fleet.ended:
            return NEEDS_ARRIVALS
        if fleet.free_request < 0:
            return NEEDS_REQUESTS
        if fleet.groups_max and fleet.groups_free <= fleet.waiting + 1:
            return NEEDS_GROUPS
        runs_s = clock_at(fleet, 1).at_s
        front_s = request_at(fleet, fleet.front_head).due_s if fleet.front_head >= 0 else math.inf
        arrival_s = arrival_at(fleet, fleet.place).at_s if fleet.place < fleet.filled else math.inf
        at_s = min(min(runs_s, front_s), min(fleet.expiry_s, arrival_s))
        if at_s > until_s:
            fleet.now_s = until_s
            return DONE
        fleet.now_s = max(fleet.now_s, at_s)
        if runs_s == at_s:
            _end_runs(fleet)
        elif front_s == at_s:
            who = fleet.front_head
            leave_front(fleet, who)
            submit(fleet, who)
        elif fleet.expiry_s == at_s:
            expire(fleet)
            pump(fleet)
        else:
            _arrive(fleet)


@kernel
def _settle(fleet: World) -> None:
    """Who may be chosen has changed: whatever is head is tried everywhere."""
    fleet.blocked = -1
    expire(fleet)
    pump(fleet)
    overflow(fleet)


@kernel
def _list(fleet: World, row: int) -> None:
    replica = replica_at(fleet, row)
    if not replica.listed:
        replica.listed = 1
        fleet.listed += 1
        fleet.listed_streams += replica.streams
    set_load(fleet, row)
    _settle(fleet)


@kernel
def _unlist(fleet: World, row: int) -> None:
    replica = replica_at(fleet, row)
    if replica.listed:
        replica.listed = 0
        fleet.listed -= 1
        fleet.listed_streams -= replica.streams
    set_load(fleet, row)


@kernel
def _add(fleet: World, row: int) -> None:
    replica = replica_at(fleet, row)
    replica.began_s = replica.busy_s = 0.0
    replica.ends_s = math.inf
    replica.run_steps = replica.prefill = replica.steps = replica.decoding = replica.kv = replica.joins = replica.preemptions = 0
    replica.prefilled = replica.kv_read = 0
    replica.blocks_free = fleet.blocks
    replica.worst_tokens = replica.outstanding = replica.chosen_seq = replica.streams = 0
    replica.waiting = replica.prefilling = replica.groups = replica.freed = 0
    replica.waiting_head = replica.waiting_tail = replica.prefill_head = replica.prefill_tail = -1
    replica.newest_group = replica.oldest_group = -1
    replica.live = 1
    for residue in range(fleet.block):
        residue_at(fleet, row, residue).count = 0
    for tier in range(fleet.tiers):
        share_at(fleet, row, tier).count = 0
    set_clock(fleet, row)
    _list(fleet, row)


@kernel
def _lose(fleet: World, row: int, who: int) -> None:
    """Its replica is gone: an answer under way is cut, anything else goes back to its lane."""
    request = request_at(fleet, who)
    tier = tier_at(fleet, request.tier)
    release(fleet, row, who)
    if request.emitted or request.state == DECODING:
        tier.cut += 1
        tier.itl_missed += 1
        fleet.cut += 1
        log_end(fleet, who, CUT)
        free(fleet, who)
    else:
        tier.retried += 1
        fleet.unstarted -= 1
        enqueue(fleet, who, True)


@kernel
def _lose_list(fleet: World, row: int, first: int) -> None:
    who = first
    while who >= 0:
        following = request_at(fleet, who).next
        _lose(fleet, row, who)
        who = following


@kernel
def _stop(fleet: World, row: int) -> None:
    replica = replica_at(fleet, row)
    fleet.cut = 0
    _unlist(fleet, row)
    break_off(fleet, row)
    for place in range(replica.decoding):
        _lose(fleet, row, slot_at(fleet, row, place).who)
    _lose_list(fleet, row, replica.prefill_head)
    _lose_list(fleet, row, replica.waiting_head)
    who = fleet.front_head
    while who >= 0:
        following = request_at(fleet, who).next
        if request_at(fleet, who).row == row:
            leave_front(fleet, who)
            _lose(fleet, row, who)
        who = following
    forget_all(fleet, row)
    replica.live = 0
    replica.ends_s = math.inf
    set_clock(fleet, row)
    _settle(fleet)


@kernel
def _rehash(fleet: World) -> None:
    for place in range(fleet.old_keys_count):
        key = old_key_at(fleet, place)
        if key.value >= 0:
            put(fleet, key.group, key.row, key.value)


def _entry(version: int) -> Callable[[Records, int, int, float], int]:
    def command(world: Records, what: int, row: int, at_s: float) -> int:
        fleet = world[0]
        fleet.version = version
        if what == PLAY:
            return _play(fleet, at_s)
        if what == ADD:
            _add(fleet, row)
        elif what == DRAIN:
            _unlist(fleet, row)
        elif what == CANCEL_DRAIN:
            _list(fleet, row)
        elif what == STOP:
            _stop(fleet, row)
        elif what == REBUILD:
            rebuild(fleet)
        elif what == REHASH:
            _rehash(fleet)
        elif what == READ:
            read_all(fleet)
        return DONE

    return entry(command)


command = _entry(digest())
"""``command(world, what, row, at_s)``: the one way into the kernel that changes anything."""
