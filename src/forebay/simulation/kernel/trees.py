"""Two tournaments over the rows: whose run of steps ends next, and who is least loaded. A change costs one path to the root.

A node holds a copy of its winner's key, so two siblings are compared without looking at the replicas.
"""

import math

from forebay.simulation.kernel.compiling import kernel
from forebay.simulation.kernel.layout import World
from forebay.simulation.kernel.memory import choice_at, clock_at, replica_at

NOBODY = -1
PLENTY = 2**31 - 1


@kernel
def set_clock(fleet: World, row: int) -> None:
    """The end of the run on ``row`` has changed. Among equal ends the lowest row is first."""
    node = fleet.leaves + row
    clock_at(fleet, node).at_s = replica_at(fleet, row).ends_s
    node >>= 1
    while node:
        left, right = clock_at(fleet, 2 * node), clock_at(fleet, 2 * node + 1)
        winner = left if left.at_s <= right.at_s else right
        mine = clock_at(fleet, node)
        if mine.row == winner.row and mine.at_s == winner.at_s and mine.row != row:
            break
        mine.at_s, mine.row = winner.at_s, winner.row
        node >>= 1


@kernel
def _precedes(left, right) -> bool:  # type: ignore[no-untyped-def]
    """Whether the left node's winner is the less loaded: by load, streams, when it was last chosen, and row."""
    if left.row < 0 or right.row < 0:
        return bool(left.row >= 0)
    if left.load != right.load:
        return bool(left.load < right.load)
    if left.streams != right.streams:
        return bool(left.streams < right.streams)
    return bool(left.chosen_seq <= right.chosen_seq)


@kernel
def load_of(fleet: World, row: int) -> float:
    """The share of its tightest budget that is taken; 0 where there are no budgets."""
    replica = replica_at(fleet, row)
    load = 0.0
    if fleet.gateway_queues:
        load = max(replica.worst_tokens / fleet.kv_budget, replica.streams / fleet.sequences_budget)
        if fleet.prefill_budget:
            load = max(load, replica.outstanding / fleet.prefill_budget)
    return load


@kernel
def set_load(fleet: World, row: int) -> None:
    """What is in flight on ``row`` has changed, or whether it may be chosen."""
    replica = replica_at(fleet, row)
    node = fleet.leaves + row
    leaf = choice_at(fleet, node)
    leaf.row = NOBODY
    leaf.least_streams = leaf.least_outstanding = PLENTY
    if replica.listed:
        leaf.row = row
        leaf.load, leaf.chosen_seq = load_of(fleet, row), replica.chosen_seq
        leaf.streams = leaf.least_streams = replica.streams
        leaf.least_outstanding = replica.outstanding
    node >>= 1
    while node:
        _play(fleet, node)
        node >>= 1


@kernel
def _play(fleet: World, node: int) -> None:
    left, right, mine = choice_at(fleet, 2 * node), choice_at(fleet, 2 * node + 1), choice_at(fleet, node)
    winner = left if _precedes(left, right) else right
    mine.load, mine.chosen_seq, mine.streams, mine.row = winner.load, winner.chosen_seq, winner.streams, winner.row
    mine.least_streams = min(left.least_streams, right.least_streams)
    mine.least_outstanding = min(left.least_outstanding, right.least_outstanding)


@kernel
def less_loaded(fleet: World, left: int, right: int) -> bool:
    """Whether the row ``left`` goes before ``right``."""
    leaves = fleet.leaves
    a, b = choice_at(fleet, leaves + left), choice_at(fleet, leaves + right)
    if a.load == b.load and a.streams == b.streams and a.chosen_seq == b.chosen_seq:
        return left < right
    return bool(_precedes(a, b))


@kernel
def rebuild(fleet: World) -> None:
    """Fill both tournaments from the replicas."""
    leaves = fleet.leaves
    for node in range(2 * leaves):
        clock_at(fleet, node).at_s = math.inf
        clock_at(fleet, node).row = max(0, node - leaves)
        leaf = choice_at(fleet, node)
        leaf.row = NOBODY
        leaf.least_streams = leaf.least_outstanding = PLENTY
    for row in range(fleet.rows):
        if replica_at(fleet, row).live:
            set_clock(fleet, row)
            set_load(fleet, row)
