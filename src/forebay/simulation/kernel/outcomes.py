"""What first tokens and ends mean to the gateway: promises kept or not, budgets given back, rows where something was freed."""

from forebay.simulation.kernel.compiling import kernel
from forebay.simulation.kernel.lanes import free, log_end
from forebay.simulation.kernel.layout import World
from forebay.simulation.kernel.memory import freed_at, replica_at, request_at, tier_at
from forebay.simulation.kernel.numbers import COMPLETED, TPOT, TTFT
from forebay.simulation.kernel.sketches import observe


@kernel
def mark_freed(fleet: World, row: int) -> None:
    """Something was freed on ``row`` at this instant."""
    replica = replica_at(fleet, row)
    if not replica.freed:
        replica.freed = 1
        freed_at(fleet, fleet.freed).row = row
        fleet.freed += 1


@kernel
def first_token(fleet: World, row: int, who: int) -> None:
    """Its first token came: its share of the prefill budget is free."""
    request, replica = request_at(fleet, who), replica_at(fleet, row)
    request.first_s = fleet.now_s
    ttft_s = fleet.now_s - request.at_s
    observe(fleet, request.tier, TTFT, ttft_s)
    tier = tier_at(fleet, request.tier)
    if ttft_s <= tier.ttft_s:
        tier.ttft_met += 1
    else:
        tier.ttft_missed += 1
    replica.outstanding -= request.outstanding
    request.outstanding = 0
    fleet.unstarted -= 1
    mark_freed(fleet, row)


@kernel
def release(fleet: World, row: int, who: int) -> None:
    """Its permit ends."""
    request, replica = request_at(fleet, who), replica_at(fleet, row)
    replica.streams -= 1
    replica.worst_tokens -= request.prompt + request.output
    replica.outstanding -= request.outstanding
    request.outstanding = 0
    fleet.in_flight -= 1
    if replica.listed:
        fleet.listed_streams -= 1


@kernel
def finished(fleet: World, row: int, who: int) -> None:
    """It has all its tokens."""
    request = request_at(fleet, who)
    tier = tier_at(fleet, request.tier)
    tier.completed += 1
    tier.completed_output_tokens += request.output
    kept = True
    if request.output > 1:
        tpot_s = (fleet.now_s - request.first_s) / (request.output - 1)
        observe(fleet, request.tier, TPOT, tpot_s)
        kept = tpot_s <= tier.itl_s
    if kept:
        tier.itl_met += 1
        if request.first_s - request.at_s <= tier.ttft_s:
            tier.both_met += 1
    else:
        tier.itl_missed += 1
    release(fleet, row, who)
    mark_freed(fleet, row)
    log_end(fleet, who, COMPLETED)
    free(fleet, who)
