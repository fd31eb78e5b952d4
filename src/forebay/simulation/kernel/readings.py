"""What a scrape of each replica would show at this instant, in the middle of its run of steps as well."""

from forebay.simulation.kernel.compiling import kernel
from forebay.simulation.kernel.layout import World
from forebay.simulation.kernel.memory import reading_at, replica_at, request_at, share_at, slot_at, tier_at
from forebay.simulation.kernel.runs import blocks_taken, elapsed_s, kv_read, steps_done


@kernel
def _read_decoding(fleet: World, row: int, steps: int) -> None:
    replica, out = replica_at(fleet, row), reading_at(fleet, row)
    out.live_tokens += replica.kv + replica.decoding * (steps + 1)
    spared = 0
    for tier in range(fleet.tiers):
        if tier_at(fleet, tier).preemptible:
            spared += share_at(fleet, row, tier).count
    if not spared:
        return
    out.spared_running += spared
    for place in range(replica.decoding):
        request = request_at(fleet, slot_at(fleet, row, place).who)
        if tier_at(fleet, request.tier).preemptible:
            # After every step each sequence is given room for its next token.
            out.spared_blocks += (request.base + replica.steps + steps) // fleet.block + 1


@kernel
def _read_list(fleet: World, row: int, first: int, running: bool) -> None:
    """Those that wait in the engine, or prefill."""
    out = reading_at(fleet, row)
    who = first
    while who >= 0:
        request = request_at(fleet, who)
        out.queued_tokens += request.target - request.kv
        out.live_tokens += request.prompt + request.emitted
        if tier_at(fleet, request.tier).preemptible:
            if running:
                out.spared_running += 1
                out.spared_blocks += -(-request.target // fleet.block)
            else:
                out.spared_waiting += 1
        who = request.next


@kernel
def _read(fleet: World, row: int) -> None:
    replica, out = replica_at(fleet, row), reading_at(fleet, row)
    steps = steps_done(fleet, row, fleet.now_s) if replica.run_steps else 0
    out.preemptions = replica.preemptions
    out.waiting, out.running = replica.waiting, replica.decoding + replica.prefilling
    out.blocks = fleet.blocks - replica.blocks_free + blocks_taken(fleet, row, steps)
    out.busy_s = replica.busy_s + (fleet.now_s - replica.began_s if replica.run_steps else 0.0)
    out.passes, out.passes_s = replica.steps + steps, replica.busy_s + elapsed_s(fleet, row, steps)
    out.prefilled, out.kv_read = replica.prefilled, replica.kv_read + kv_read(fleet, row, steps)
    out.queued_tokens = out.live_tokens = out.spared_waiting = out.spared_running = out.spared_blocks = 0
    _read_decoding(fleet, row, steps)
    _read_list(fleet, row, replica.prefill_head, True)
    _read_list(fleet, row, replica.waiting_head, False)


@kernel
def read_all(fleet: World) -> None:
    """Fill ``readings`` of every live row."""
    for row in range(fleet.rows):
        if replica_at(fleet, row).live:
            _read(fleet, row)
    who = fleet.front_head
    while who >= 0:
        request = request_at(fleet, who)
        reading_at(fleet, request.row).live_tokens += request.prompt
        who = request.next
