"""The exact KV peak of a replica with one more request (`admission.kv`), from lists that are sorted already.

Those that decode are kept by when they end, so only the few others are sorted, and the two are merged.
"""

from forebay.simulation.kernel.compiling import kernel
from forebay.simulation.kernel.layout import World
from forebay.simulation.kernel.memory import replica_at, request_at, scratch_at, slot_at
from forebay.simulation.kernel.runs import steps_done


@kernel
def _add(fleet: World, count: int, who: int) -> int:
    """Into the sorted scratch: what is left and what is held of one that does not decode."""
    request = request_at(fleet, who)
    left, held = request.output - request.emitted, request.prompt + request.emitted
    place = count
    while place and scratch_at(fleet, place - 1).left < left:
        here, before = scratch_at(fleet, place), scratch_at(fleet, place - 1)
        here.left, here.held = before.left, before.held
        place -= 1
    here = scratch_at(fleet, place)
    here.left, here.held = left, held
    return count + 1


@kernel
def _gather(fleet: World, who: int, row: int) -> int:
    """The candidate and all on ``row`` that do not decode, sorted into the scratch; returns how many."""
    count = _add(fleet, 0, who)
    replica = replica_at(fleet, row)
    for first in (replica.waiting_head, replica.prefill_head):
        other = first
        while other >= 0:
            count = _add(fleet, count, other)
            other = request_at(fleet, other).next
    other = fleet.front_head
    while other >= 0:
        if request_at(fleet, other).row == row:
            count = _add(fleet, count, other)
        other = request_at(fleet, other).next
    return count


@kernel
def fits_at_peak(fleet: World, who: int, row: int) -> bool:
    """Whether ``row`` would never hold more KV than its budget with the request ``who``, all decoding in lockstep."""
    replica = replica_at(fleet, row)
    others = _gather(fleet, who, row)
    steps = replica.steps + steps_done(fleet, row, fleet.now_s)
    held = place = 0
    for count in range(1, replica.decoding + others + 1):
        decoding = count - 1 - place
        left = slot_at(fleet, row, decoding).end - steps if decoding < replica.decoding else -1
        if place < others and scratch_at(fleet, place).left >= left:
            left = scratch_at(fleet, place).left
            held += scratch_at(fleet, place).held
            place += 1
        else:
            held += request_at(fleet, slot_at(fleet, row, decoding).who).base + steps + 1
        if left * count + held > fleet.kv_budget:
            return False
    return True
