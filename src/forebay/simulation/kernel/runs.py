"""Arithmetic of a run: equal decode steps in a row, or one step that prefills, with everything that has a closed form.

After ``j`` steps of a run of ``B`` sequences that began with ``K`` tokens of KV: ``j·(base + b·B + c·K) + c·B·j·(j-1)/2`` seconds
have passed (`engine.steptime.decode_run_s`), times the pace of an engine that isn't warm yet: no run goes beyond the last
step of its warm-up. A sequence takes a block at each step after which its KV is a whole number of
blocks, which is after every step that is congruent to minus its ``base``: counts per residue give the blocks of all.
"""

import math

from forebay.engine.spread import FACTORS, MIX_1, MIX_2, STRIDE
from forebay.simulation.kernel.compiling import kernel
from forebay.simulation.kernel.layout import World
from forebay.simulation.kernel.memory import factor_at, replica_at, residue_at, slot_at

_SIGNED_STRIDE, _SIGNED_MIX_1, _SIGNED_MIX_2 = (number - (1 << 64) for number in (STRIDE, MIX_1, MIX_2))
"""The kernel counts in signed 64 bits, whose products have the same bits."""


@kernel
def step_s(fleet: World, decoding: int, kv: int, prefill: int) -> float:
    """As `engine.steptime.step_s`."""
    return float(fleet.base_s + fleet.per_sequence_s * decoding + fleet.per_kv_token_s * kv + fleet.per_prefill_token_s * prefill)


@kernel
def _next_place(fleet: World, row: int) -> int:
    """As `engine.spread.Places.next`: shifting a signed number brings its sign along, which the masks take off."""
    replica = replica_at(fleet, row)
    replica.stream += _SIGNED_STRIDE
    mixed = replica.stream
    mixed = (mixed ^ ((mixed >> 30) & ((1 << 34) - 1))) * _SIGNED_MIX_1
    mixed = (mixed ^ ((mixed >> 27) & ((1 << 37) - 1))) * _SIGNED_MIX_2
    return int((mixed ^ ((mixed >> 31) & ((1 << 33) - 1))) & (FACTORS - 1))


@kernel
def elapsed_s(fleet: World, row: int, steps: int) -> float:
    """Seconds of the first ``steps`` steps of the run under way."""
    replica = replica_at(fleet, row)
    if steps <= 1:
        return float(steps * replica.step_s)
    return float(steps * replica.step_s + replica.pace * (fleet.per_kv_token_s * (replica.decoding * (steps * (steps - 1) // 2))))


@kernel
def growth_s(fleet: World, row: int) -> float:
    """By how much longer each step of the run under way takes than the one before."""
    replica = replica_at(fleet, row)
    return float(replica.pace * (fleet.per_kv_token_s * replica.decoding))


@kernel
def kv_read(fleet: World, row: int, steps: int) -> int:
    """KV tokens that the first ``steps`` steps of the run under way read."""
    replica = replica_at(fleet, row)
    return int(steps * replica.kv + replica.decoding * (steps * (steps - 1) // 2))


@kernel
def steps_done(fleet: World, row: int, at_s: float) -> int:
    """Steps of the run under way that have ended by ``at_s``, which is before the end of all of them."""
    replica = replica_at(fleet, row)
    if replica.run_steps <= 1:
        return 0
    growth = growth_s(fleet, row)
    passed_s = max(0.0, at_s - replica.began_s)
    linear_s = replica.step_s - growth / 2
    steps = int(2 * passed_s / (linear_s + math.sqrt(linear_s * linear_s + 2 * growth * passed_s)))
    # The root is a float: the sums decide.
    while steps > 0 and replica.began_s + elapsed_s(fleet, row, steps) > at_s:
        steps -= 1
    while replica.began_s + elapsed_s(fleet, row, steps + 1) <= at_s:
        steps += 1
    return steps


@kernel
def hungry_after(fleet: World, row: int, step: int) -> int:
    """Decoding sequences that need one more block after the replica's step ``step``."""
    block = fleet.block
    return int(residue_at(fleet, row, (block - step % block) % block).count)


@kernel
def blocks_taken(fleet: World, row: int, steps: int) -> int:
    """Blocks that the run's sequences take after its first ``steps`` steps."""
    replica = replica_at(fleet, row)
    block = fleet.block
    whole = steps // block
    taken = whole * replica.decoding
    for step in range(whole * block + 1, steps + 1):
        taken += hungry_after(fleet, row, replica.steps + step)
    return int(taken)


@kernel
def steps_within_blocks(fleet: World, row: int, steps: int) -> int:
    """How many of ``steps`` steps can run before more blocks are needed than are free; the end of the last is looked at singly."""
    replica = replica_at(fleet, row)
    block = fleet.block
    if replica.decoding * ((steps + block - 2) // block) <= replica.blocks_free:
        return steps
    whole = replica.blocks_free // replica.decoding
    free = replica.blocks_free - whole * replica.decoding
    for step in range(whole * block + 1, steps):
        free -= hungry_after(fleet, row, replica.steps + step)
        if free < 0:
            return step
    return steps


@kernel
def plan_run(fleet: World, row: int, start_s: float, prefill: int) -> None:
    """The replica's next run begins: one step if it prefills, else as many as nobody ends, joins or lacks a block in."""
    replica = replica_at(fleet, row)
    replica.began_s, replica.prefill = start_s, prefill
    if not prefill and not replica.decoding:
        replica.run_steps = 0
        replica.ends_s = math.inf
        return
    cold = fleet.cold_steps - replica.steps
    replica.pace = fleet.cold_pace if cold > 0 else 1.0
    replica.step_s = replica.pace * step_s(fleet, replica.decoding, replica.kv, prefill)
    steps = 1
    if not prefill:
        first_end = slot_at(fleet, row, replica.decoding - 1).end - replica.steps
        steps = steps_within_blocks(fleet, row, min(first_end, cold) if cold > 0 else first_end)
    replica.run_steps = steps
    replica.ends_s = start_s + elapsed_s(fleet, row, steps)


@kernel
def scatter(fleet: World, row: int) -> None:
    """Where steps scatter, the run just planned is one step, and takes what is drawn, as in `engine.batch`."""
    replica = replica_at(fleet, row)
    if replica.run_steps:
        factor = factor_at(fleet, _next_place(fleet, row)).of_law
        without_prompts_s = step_s(fleet, replica.decoding, replica.kv, 0)
        replica.step_s = replica.pace * (without_prompts_s * factor + fleet.per_prefill_token_s * replica.prefill)
        replica.run_steps = 1
        replica.ends_s = replica.began_s + replica.step_s
