"""Where the state of the fast fleet lies: a few arrays of records, so that one request or replica is one or two lines of cache.

Everything the kernel reads or writes is in `Fleet`. Links between requests are their places in ``requests``; -1 is nobody.
Arrays grow by doubling, in Python, when the kernel says that it needs room.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.demand.arrays import CHUNK_ROWS
from forebay.engine.spread import factors_of
from forebay.simulation.kernel.numbers import BUCKETS, KINDS, RECENT_KINDS
from forebay.simulation.values import Dispatch, FleetRules, Order, Queueing

Records = npt.NDArray[Any]
"""A structured array; in the kernel its records have attributes."""

World = Any
"""The one `WORLD` record, in the kernel."""

FREE, QUEUED, FRONT, WAITING, PREFILLING, DECODING = range(6)
"""States of a request's record: nobody's, in a lane, in the front end of its replica, and the three of its engine."""

ROWS_AT_FIRST = 4
REQUESTS_AT_FIRST = 32
GROUPS_AT_FIRST = 32

_FLOAT, _LONG, _INT = np.float64, np.int64, np.int32


def _record(floats: str, longs: str, ints: str = "") -> "np.dtype[Any]":
    """A record of fields named in words. Whole numbers are long but for bare counts: each kind of argument is compiled for itself."""
    fields = [(name, kind) for names, kind in ((floats, _FLOAT), (longs, _LONG), (ints, _INT)) for name in names.split()]
    return np.dtype(fields, align=True)


REQUEST = _record(
    "at_s first_s last_s due_s least_s",
    "seq group base joined prompt output shared uncached outstanding emitted kv target chunk tier row state line next prev preempted",
)
"""``base + steps of its replica`` is the KV of one that decodes; ``chunk`` what the step under way prefills of it."""

REPLICA = _record(
    "began_s ends_s step_s busy_s pace",
    "run_steps prefill steps decoding kv blocks_free joins preemptions worst_tokens outstanding chosen_seq streams waiting prefilling "
    "waiting_head waiting_tail prefill_head prefill_tail groups newest_group oldest_group listed live freed stream prefilled kv_read",
)
"""A run of ``run_steps`` equal batches began at ``began_s``; ``steps``, ``kv`` and ``blocks_free`` are as of then. ``pace``: what its steps
take of the time of a warm engine's. ``stream``: the state of its chance. ``busy_s``, ``prefilled``, ``kv_read``: seconds, prompt tokens,
and KV tokens read, of all ``steps``."""

COUNTERS = (
    "arrived arrived_prompt_tokens arrived_output_tokens completed completed_output_tokens shed cut retried "
    "ttft_met ttft_missed itl_met itl_missed both_met preempted waiting waiting_tokens cached_tokens"
)
"""As in `TierTotals`."""

TIER = _record("ttft_s itl_s longest_wait_s", f"preemptible {COUNTERS}")
SLOT = _record("", "end who")
"""A decoding sequence: the step of its replica at which it ends."""
COUNT = _record("", "", "count")
PLACE = _record("", "row")
LINE = _record("", "waiting head tail")
ARRIVAL = _record("at_s", "group prompt output shared tier")
CLOCK = _record("at_s", "row")
CHOICE = _record("load", "chosen_seq streams row least_streams least_outstanding")
GROUP = _record("", "group newer older")
KEY = _record("", "group row value")
BUCKET = _record("", "count")
SUM = _record("total_s most_s", "")
BOUND = _record("upto_s", "")
FACTOR = _record("of_law", "")
HELD = _record("", "left held")
LOG = _record("first_s finish_s", "preempted outcome row")
READING = _record(
    "busy_s passes_s",
    "waiting running blocks queued_tokens live_tokens preemptions passes prefilled kv_read spared_waiting spared_running spared_blocks",
)
"""What can be read of a replica; the last three are the preemptible tiers' share of the first three counts."""


class Fleet(NamedTuple):
    """The whole state. R rows, P a power of two ≥ R, S sequences per replica, T tiers."""

    world: Records
    """One record: rules, clock, cursors, and where the other arrays are."""
    requests: Records
    replicas: Records
    """(R,)"""
    slots: Records
    """(R, S): who decodes, who ends latest first."""
    residues: Records
    """(R, block): decoding sequences by ``base`` modulo the block: who needs a block at which step."""
    shares: Records
    """(R, T): decoding sequences by tier."""
    promises: Records
    """(T,): rules and counters of each tier."""
    lines: Records
    """(2·T,): of each tier those that can still meet their TTFT, and the late."""
    arrivals: Records
    clock: Records
    """(2·P,): a tournament over the ends of runs; 1 is the winner."""
    choice: Records
    """(2·P,): a tournament over loads, with the least of two budgets below each node."""
    freed_rows: Records
    """(R,): rows where something was freed at this instant."""
    groups: Records
    """Prefix groups that replicas remember: per replica a list from newest to oldest."""
    keys: Records
    """A hash table with open addressing: (group, row) → place in ``groups``; (group, -1) → the row that served it last."""
    old_keys: Records
    """What was in ``keys`` before it grew."""
    readings: Records
    """(R,): what a scrape would show, filled on demand."""
    sketches: Records
    """(T, kinds, buckets)"""
    sums: Records
    """(T, kinds)"""
    recent: Records
    """(2, buckets): TTFT and TPOT since the last reset, tiers that aren't preemptible."""
    bounds: Records
    """(buckets,): the upper bound of each bucket, s."""
    factors: Records
    """(FACTORS,): what a step may take of the law's time, equally likely; empty where steps are steady."""
    scratch: Records
    """For sorting."""
    log: Records
    """By row of the trace; empty where nobody asked for it."""


def address_of(array: str) -> str:
    """The field of `WORLD` that holds the address of ``array``."""
    return f"at_{array}"


WORLD = _record(
    "base_s per_sequence_s per_kv_token_s per_prefill_token_s front_end_s now_s expiry_s cold_pace",
    "sequences_max blocks block chunk_tokens context_tokens kv_budget sequences_budget prefill_budget context_budget "
    "gateway_queues dispatch by_deadline queued_max posture groups_max tiers buckets "
    "waiting blocked unstarted in_flight listed listed_streams chosen_seq last_row "
    "seq place filled ended free_request free_group groups_free keys_mask old_keys_count "
    "front_head front_tail freed rows leaves logged cut version factors_count cold_steps " + " ".join(map(address_of, Fleet._fields[1:])),
)


def attach(fleet: Fleet) -> Fleet:
    """Write into the world where the arrays are, and how long."""
    world = fleet.world[0]
    for name in Fleet._fields[1:]:
        world[address_of(name)] = getattr(fleet, name).ctypes.data
    world["leaves"] = len(fleet.clock) // 2
    world["keys_mask"] = len(fleet.keys) - 1
    world["old_keys_count"] = len(fleet.old_keys)
    world["logged"] = len(fleet.log)
    world["factors_count"] = len(fleet.factors)
    return fleet


def _world(rules: FleetRules) -> Records:
    profile, capacity = rules.profile, rules.capacity
    world = np.zeros(1, WORLD)
    w = world[0]
    for name in ("base_s", "per_sequence_s", "per_kv_token_s", "per_prefill_token_s"):
        w[name] = getattr(profile.law, name)
    w["front_end_s"] = profile.front_end_s
    w["cold_steps"], w["cold_pace"] = profile.warm_up.passes, profile.warm_up.factor
    w["expiry_s"] = math.inf
    w["sequences_max"], w["chunk_tokens"] = profile.sequences_max, profile.prefill_chunk_tokens
    w["block"], w["blocks"] = profile.block_tokens, profile.kv_tokens // profile.block_tokens
    w["context_tokens"], w["context_budget"] = profile.context_tokens, capacity.context_tokens
    w["kv_budget"], w["sequences_budget"], w["prefill_budget"] = capacity.kv_tokens, capacity.sequences, capacity.prefill_tokens
    w["gateway_queues"] = rules.queueing is Queueing.GATEWAY
    w["dispatch"] = list(Dispatch).index(rules.dispatch)
    w["by_deadline"] = rules.order is Order.DEADLINE
    w["queued_max"], w["groups_max"], w["tiers"], w["buckets"] = rules.queued_max, rules.prefix_groups_max, len(rules.tiers), BUCKETS
    for name in ("blocked", "last_row", "free_request", "free_group", "front_head", "front_tail"):
        w[name] = -1
    return world


def _promises(rules: FleetRules) -> Records:
    tiers = np.zeros(len(rules.tiers), TIER)
    for place, tier in enumerate(rules.tiers):
        for name in ("ttft_s", "itl_s", "longest_wait_s", "preemptible"):
            tiers[place][name] = getattr(tier, name)
    return tiers


def _factors(rules: FleetRules) -> Records:
    found = factors_of(rules.profile.spread)
    table = np.zeros(len(found), FACTOR)
    table["of_law"] = found
    return table


def allocate(rules: FleetRules, log: bool) -> Fleet:
    """An empty fleet with room for a few replicas and requests. Its trees and bounds are to be filled."""
    tiers, slots = len(rules.tiers), rules.profile.sequences_max
    rows, places = ROWS_AT_FIRST, tree_places(ROWS_AT_FIRST)
    lines = np.zeros(2 * tiers, LINE)
    lines["head"] = lines["tail"] = -1
    empty = Fleet(
        world=_world(rules),
        requests=np.zeros(0, REQUEST),
        replicas=np.zeros(rows, REPLICA),
        slots=np.zeros((rows, slots), SLOT),
        residues=np.zeros((rows, rules.profile.block_tokens), COUNT),
        shares=np.zeros((rows, tiers), COUNT),
        promises=_promises(rules),
        lines=lines,
        arrivals=np.zeros(CHUNK_ROWS, ARRIVAL),
        clock=np.zeros(2 * places, CLOCK),
        choice=np.zeros(2 * places, CHOICE),
        freed_rows=np.zeros(rows, PLACE),
        groups=np.zeros(0, GROUP),
        keys=np.zeros(0, KEY),
        old_keys=np.zeros(0, KEY),
        readings=np.zeros(rows, READING),
        sketches=np.zeros((tiers, KINDS, BUCKETS), BUCKET),
        sums=np.zeros((tiers, KINDS), SUM),
        recent=np.zeros((RECENT_KINDS, BUCKETS), BUCKET),
        bounds=np.zeros(BUCKETS, BOUND),
        factors=_factors(rules),
        scratch=np.zeros(slots + max(0, rules.capacity.sequences) + 2, HELD),
        log=np.zeros(1 if log else 0, LOG),
    )
    return more_groups(more_requests(empty, REQUESTS_AT_FIRST), GROUPS_AT_FIRST)


def tree_places(rows: int) -> int:
    """Leaves of a tournament over ``rows``."""
    return max(2, 1 << (rows - 1).bit_length())


def _longer(array: Records, rows: int) -> Records:
    more = np.zeros((rows, *array.shape[1:]), array.dtype)
    more[: len(array)] = array
    return more


def more_rows(fleet: Fleet) -> Fleet:
    """Twice the replicas; the trees are to be rebuilt."""
    rows = 2 * len(fleet.replicas)
    places = tree_places(rows)
    per_row = ("replicas", "slots", "residues", "shares", "freed_rows", "readings")
    longer = {name: _longer(getattr(fleet, name), rows) for name in per_row}
    return attach(fleet._replace(**longer, clock=np.zeros(2 * places, CLOCK), choice=np.zeros(2 * places, CHOICE)))


def more_requests(fleet: Fleet, at_least: int = 0) -> Fleet:
    """Room for twice the requests in flight or waiting, the new places being the first to be taken."""
    old = len(fleet.requests)
    new = max(2 * old, at_least)
    requests = _longer(fleet.requests, new)
    requests["next"][old:] = np.arange(old + 1, new + 1)
    requests["next"][-1] = fleet.world[0]["free_request"]
    fleet.world[0]["free_request"] = old
    return attach(fleet._replace(requests=requests))


def more_groups(fleet: Fleet, at_least: int) -> Fleet:
    """Room for twice the prefix groups and for ``at_least``; the hash table is to be filled from the old one, and is at most half full."""
    old = len(fleet.groups)
    new = max(2 * old, at_least)
    groups = _longer(fleet.groups, new)
    groups["older"][old:] = np.arange(old + 1, new + 1)
    groups["older"][-1] = fleet.world[0]["free_group"]
    fleet.world[0]["free_group"] = old
    fleet.world[0]["groups_free"] += new - old
    keys = np.zeros(1 << (4 * new - 1).bit_length(), KEY)
    keys["value"] = -1
    return attach(fleet._replace(groups=groups, keys=keys, old_keys=fleet.keys))


def more_log(fleet: Fleet, at_least: int) -> Fleet:
    """Room for twice the log and for ``at_least``."""
    log = np.zeros(max(2 * len(fleet.log), at_least), LOG)
    log["first_s"] = log["finish_s"] = math.nan
    log[: len(fleet.log)] = fleet.log
    return attach(fleet._replace(log=log))
