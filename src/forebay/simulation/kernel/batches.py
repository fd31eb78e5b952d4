"""One replica's continuous batching, from run to run: the rules of `engine.batch`, event to event.

Decoding sequences are kept by the step at which they end, latest first. What `engine.batch` does sequence by sequence after
every step is done here once per run, except where blocks are short: then that one step is done as there.
"""

from forebay.simulation.kernel.compiling import kernel
from forebay.simulation.kernel.layout import DECODING, PREFILLING, WAITING, World
from forebay.simulation.kernel.memory import replica_at, request_at, residue_at, share_at, slot_at, tier_at
from forebay.simulation.kernel.numbers import ITL
from forebay.simulation.kernel.outcomes import finished, first_token
from forebay.simulation.kernel.runs import blocks_taken, elapsed_s, growth_s, hungry_after, kv_read, plan_run, scatter, steps_done
from forebay.simulation.kernel.sketches import observe, observe_run
from forebay.simulation.kernel.trees import set_clock

NOBODY = -1


@kernel
def blocks_for(fleet: World, tokens: int) -> int:
    """Blocks that hold ``tokens``."""
    return int(-(-tokens // fleet.block))


@kernel
def _residue(fleet: World, who: int) -> int:
    return int(request_at(fleet, who).base % fleet.block)


@kernel
def _move(fleet: World, row: int, place: int, to: int) -> None:
    old, new = slot_at(fleet, row, place), slot_at(fleet, row, to)
    new.end, new.who = old.end, old.who


@kernel
def _join(fleet: World, row: int, who: int) -> None:
    """It decodes from the next step on."""
    replica, request = replica_at(fleet, row), request_at(fleet, who)
    request.state = DECODING
    request.base = request.target - replica.steps
    request.joined = replica.joins
    replica.joins += 1
    end = replica.steps + request.output - request.emitted
    place = replica.decoding
    while place > 0 and slot_at(fleet, row, place - 1).end < end:
        _move(fleet, row, place - 1, place)
        place -= 1
    slot = slot_at(fleet, row, place)
    slot.end, slot.who = end, who
    replica.decoding += 1
    replica.kv += request.target
    residue_at(fleet, row, _residue(fleet, who)).count += 1
    share_at(fleet, row, request.tier).count += 1


@kernel
def _part(fleet: World, row: int, who: int) -> None:
    """It decodes no more, its place in the list being taken by the caller."""
    replica, request = replica_at(fleet, row), request_at(fleet, who)
    replica.decoding -= 1
    replica.kv -= request.base + replica.steps
    residue_at(fleet, row, _residue(fleet, who)).count -= 1
    share_at(fleet, row, request.tier).count -= 1


@kernel
def _end_decodes(fleet: World, row: int) -> None:
    """The run's tokens: all its sequences have ``run_steps`` more, and those at their end are gone."""
    replica = replica_at(fleet, row)
    steps = replica.run_steps
    if steps > 1:
        replica.blocks_free -= blocks_taken(fleet, row, steps - 1)
    replica.steps += steps
    replica.kv += replica.decoding * steps
    while replica.decoding and slot_at(fleet, row, replica.decoding - 1).end == replica.steps:
        who = slot_at(fleet, row, replica.decoding - 1).who
        _part(fleet, row, who)
        replica.blocks_free += blocks_for(fleet, request_at(fleet, who).base + replica.steps)
        finished(fleet, row, who)


@kernel
def _end_prefills(fleet: World, row: int) -> None:
    """The step's prompts: who has all of its prompt gives a token. They are prefilled in order, so these are the first."""
    replica, now_s = replica_at(fleet, row), fleet.now_s
    who = replica.prefill_head
    while who >= 0 and request_at(fleet, who).chunk:
        request = request_at(fleet, who)
        request.kv += request.chunk
        request.chunk = 0
        if request.kv < request.target:
            break
        following = request.next
        replica.prefill_head = following
        if following < 0:
            replica.prefill_tail = NOBODY
        else:
            request_at(fleet, following).prev = NOBODY
        replica.prefilling -= 1
        request.emitted += 1
        if request.emitted == 1:
            first_token(fleet, row, who)
        else:
            observe(fleet, request.tier, ITL, now_s - request.last_s)
        request.last_s = now_s
        if request.emitted == request.output:
            replica.blocks_free += blocks_for(fleet, request.target)
            finished(fleet, row, who)
        else:
            _join(fleet, row, who)
        who = following


@kernel
def _newest(fleet: World, row: int) -> int:
    """The place in the list of the decoding sequence that joined last."""
    newest = 0
    for place in range(1, replica_at(fleet, row).decoding):
        if request_at(fleet, slot_at(fleet, row, place).who).joined > request_at(fleet, slot_at(fleet, row, newest).who).joined:
            newest = place
    return newest


@kernel
def _preempt_prefilling(fleet: World, row: int) -> int:
    replica = replica_at(fleet, row)
    who = replica.prefill_tail
    before = request_at(fleet, who).prev
    replica.prefill_tail = before
    if before < 0:
        replica.prefill_head = NOBODY
    else:
        request_at(fleet, before).next = NOBODY
    replica.prefilling -= 1
    replica.blocks_free += blocks_for(fleet, request_at(fleet, who).target)
    return int(who)


@kernel
def _preempt_decoding(fleet: World, row: int) -> int:
    replica = replica_at(fleet, row)
    place = _newest(fleet, row)
    who = slot_at(fleet, row, place).who
    request = request_at(fleet, who)
    request.emitted = request.output - (slot_at(fleet, row, place).end - replica.steps)
    request.last_s = fleet.now_s
    # The newest has not been fed yet, so it holds the blocks of its tokens and none more.
    replica.blocks_free += blocks_for(fleet, request.base + replica.steps)
    _part(fleet, row, who)
    for later in range(place, replica.decoding):
        _move(fleet, row, later + 1, later)
    return int(who)


@kernel
def _preempt(fleet: World, row: int) -> None:
    """The newest running sequence loses its KV and is first in line."""
    replica = replica_at(fleet, row)
    who = _preempt_prefilling(fleet, row) if replica.prefilling else _preempt_decoding(fleet, row)
    request = request_at(fleet, who)
    request.state = WAITING
    request.kv = request.chunk = 0
    request.target = request.prompt + request.emitted
    request.preempted += 1
    request.prev, request.next = NOBODY, replica.waiting_head
    if replica.waiting_head < 0:
        replica.waiting_tail = who
    replica.waiting_head = who
    replica.waiting += 1
    replica.preemptions += 1
    tier_at(fleet, request.tier).preempted += 1


@kernel
def _feed_singly(fleet: World, row: int) -> None:
    """Blocks are short: a block for each hungry sequence, oldest first, at the cost of the newest ones."""
    replica = replica_at(fleet, row)
    block = fleet.block
    asked = -1
    while True:
        oldest = NOBODY
        for place in range(replica.decoding):
            request = request_at(fleet, slot_at(fleet, row, place).who)
            if (request.base + replica.steps) % block or request.joined <= asked:
                continue
            if oldest < 0 or request.joined < request_at(fleet, oldest).joined:
                oldest = slot_at(fleet, row, place).who
        if oldest < 0:
            return
        request = request_at(fleet, oldest)
        asked = request.joined
        while request.state == DECODING and not replica.blocks_free:
            _preempt(fleet, row)
        if request.state == DECODING:
            replica.blocks_free -= 1


@kernel
def _admit(fleet: World, row: int, left: int) -> int:
    """Waiting sequences join the step while slots, its budget ``left`` and blocks last; returns the budget left."""
    replica = replica_at(fleet, row)
    while replica.waiting and left and replica.decoding + replica.prefilling < fleet.sequences_max:
        who = replica.waiting_head
        request = request_at(fleet, who)
        blocks = blocks_for(fleet, request.target)
        if blocks > replica.blocks_free:
            break
        replica.waiting_head = request.next
        if request.next < 0:
            replica.waiting_tail = NOBODY
        replica.waiting -= 1
        replica.blocks_free -= blocks
        request.state = PREFILLING
        request.chunk = min(request.target - request.kv, left)
        left -= request.chunk
        request.prev, request.next = replica.prefill_tail, NOBODY
        if replica.prefill_tail < 0:
            replica.prefill_head = who
        else:
            request_at(fleet, replica.prefill_tail).next = who
        replica.prefill_tail = who
        replica.prefilling += 1
    return left


@kernel
def compose(fleet: World, row: int, start_s: float) -> None:
    """What the run from ``start_s`` on does, and how long it takes."""
    replica = replica_at(fleet, row)
    budget = left = fleet.chunk_tokens - replica.decoding
    who = replica.prefill_head
    while who >= 0 and left:
        request = request_at(fleet, who)
        request.chunk = min(request.target - request.kv, left)
        left -= request.chunk
        who = request.next
    if replica.waiting:
        left = _admit(fleet, row, left)
    plan_run(fleet, row, start_s, budget - left)
    if fleet.factors_count:
        scatter(fleet, row)
    set_clock(fleet, row)


@kernel
def end_run(fleet: World, row: int) -> None:
    """The run on ``row`` ends now: its tokens come out, blocks are given, and the next one begins."""
    replica = replica_at(fleet, row)
    total_s = replica.ends_s - replica.began_s
    replica.busy_s += total_s
    if replica.decoding:
        replica.kv_read += kv_read(fleet, row, replica.run_steps)
        observe_run(fleet, row, replica.run_steps, replica.step_s, growth_s(fleet, row), total_s)
        _end_decodes(fleet, row)
    else:
        replica.steps += replica.run_steps
    if replica.prefill:
        replica.prefilled += replica.prefill
        _end_prefills(fleet, row)
    hungry = hungry_after(fleet, row, replica.steps)
    if hungry <= replica.blocks_free:
        replica.blocks_free -= hungry
    else:
        _feed_singly(fleet, row)
    compose(fleet, row, fleet.now_s)


@kernel
def break_off(fleet: World, row: int) -> None:
    """The replica is gone in the middle of a run: what its whole steps gave has been given."""
    replica = replica_at(fleet, row)
    if replica.run_steps and replica.decoding:
        steps = steps_done(fleet, row, fleet.now_s)
        if steps:
            observe_run(fleet, row, steps, replica.step_s, growth_s(fleet, row), elapsed_s(fleet, row, steps))


@kernel
def submit(fleet: World, who: int) -> None:
    """The request reaches its engine: an idle one begins at once, a run under way ends with the step under way if it can join then."""
    request = request_at(fleet, who)
    row = request.row
    replica = replica_at(fleet, row)
    request.state = WAITING
    request.target, request.kv, request.chunk = request.prompt, request.prompt - request.uncached, 0
    request.prev, request.next = replica.waiting_tail, NOBODY
    alone = replica.waiting == 0
    if alone:
        replica.waiting_head = who
    else:
        request_at(fleet, replica.waiting_tail).next = who
    replica.waiting_tail = who
    replica.waiting += 1
    if not replica.run_steps:
        compose(fleet, row, fleet.now_s)
    elif alone and not replica.prefill and replica.run_steps > 1 and replica.decoding < fleet.sequences_max:
        _cut_run(fleet, row)


@kernel
def _cut_run(fleet: World, row: int) -> None:
    """The run under way ends with its present step."""
    replica = replica_at(fleet, row)
    steps = steps_done(fleet, row, fleet.now_s) + 1
    if steps < replica.run_steps:
        replica.run_steps = steps
        replica.ends_s = replica.began_s + elapsed_s(fleet, row, steps)
        set_clock(fleet, row)
