"""Which replica a request goes to, and whether it fits there: the three budgets of admission, and the engine's queue without them.

The least loaded has most of its tightest budget free; among equals the fewest streams, then the one chosen longest ago, then
the lowest row. It is the root of a tournament; only where it does not fit, the others are looked at one by one.
"""

from forebay.simulation.kernel.batches import submit
from forebay.simulation.kernel.compiling import kernel
from forebay.simulation.kernel.lanes import NOBODY, enqueue, head, leave
from forebay.simulation.kernel.layout import FRONT, World
from forebay.simulation.kernel.memory import choice_at, freed_at, replica_at, request_at, tier_at
from forebay.simulation.kernel.numbers import PREFIX_LOAD_DENOMINATOR, PREFIX_LOAD_NUMERATOR, PREFIX_STREAMS_SPARE, WAIT
from forebay.simulation.kernel.peaks import fits_at_peak
from forebay.simulation.kernel.prefixes import home_of, remember, remembers
from forebay.simulation.kernel.sketches import observe
from forebay.simulation.kernel.trees import less_loaded, set_load
from forebay.simulation.values import Dispatch

_ROUND_ROBIN = list(Dispatch).index(Dispatch.ROUND_ROBIN)
_PREFIX = list(Dispatch).index(Dispatch.PREFIX)


@kernel
def _uncached(fleet: World, who: int, row: int) -> int:
    """Prompt tokens that ``row`` would have to prefill."""
    request = request_at(fleet, who)
    return int(request.prompt - (request.shared if remembers(fleet, request.group, row) else 0))


@kernel
def fits(fleet: World, who: int, row: int) -> bool:
    """Whether all three budgets hold with it. A prompt larger than the whole prefill budget is let in where no prefill is outstanding."""
    replica = replica_at(fleet, row)
    if not fleet.gateway_queues:
        return True
    if replica.streams >= fleet.sequences_budget:
        return False
    if replica.outstanding and replica.outstanding + _uncached(fleet, who, row) > fleet.prefill_budget:
        return False
    request = request_at(fleet, who)
    if replica.worst_tokens + request.prompt + request.output <= fleet.kv_budget:
        return True
    return fits_at_peak(fleet, who, row)


@kernel
def _hopeless(fleet: World, who: int) -> bool:
    """Whether every row's slots or prefill budget are taken."""
    root, request = choice_at(fleet, 1), request_at(fleet, who)
    if not fleet.gateway_queues:
        return False
    if root.least_streams >= fleet.sequences_budget:
        return True
    return bool(root.least_outstanding and root.least_outstanding + request.prompt - request.shared > fleet.prefill_budget)


@kernel
def _least_loaded(fleet: World, who: int) -> int:
    best = int(choice_at(fleet, 1).row)
    if best < 0 or fits(fleet, who, best):
        return best
    if _hopeless(fleet, who):
        return NOBODY
    best = NOBODY
    for row in range(fleet.rows):
        if replica_at(fleet, row).listed and (best < 0 or less_loaded(fleet, row, best)) and fits(fleet, who, row):
            best = row
    return best


@kernel
def _least_loaded_freed(fleet: World, who: int) -> int:
    best = NOBODY
    for place in range(fleet.freed):
        row = freed_at(fleet, place).row
        if replica_at(fleet, row).listed and (best < 0 or less_loaded(fleet, row, best)) and fits(fleet, who, row):
            best = row
    return best


@kernel
def _next_in_turn(fleet: World, who: int, freed_only: bool) -> int:
    """The first that fits after the row chosen last."""
    if not fleet.rows or not fleet.listed or _hopeless(fleet, who):
        return NOBODY
    row = fleet.last_row
    for _ in range(fleet.rows):
        row = row + 1 if row + 1 < fleet.rows else 0
        replica = replica_at(fleet, row)
        if replica.listed and (replica.freed or not freed_only) and fits(fleet, who, row):
            return int(row)
    return NOBODY


@kernel
def _home(fleet: World, who: int, freed_only: bool) -> int:
    """The row that served its prefix group last, if that is not loaded well above the mean and it fits there; -1 if not."""
    row = home_of(fleet, request_at(fleet, who).group)
    if row < 0:
        return NOBODY
    replica = replica_at(fleet, row)
    if not replica.listed or (freed_only and not replica.freed):
        return NOBODY
    if PREFIX_LOAD_DENOMINATOR * (replica.streams - PREFIX_STREAMS_SPARE) * fleet.listed > PREFIX_LOAD_NUMERATOR * fleet.listed_streams:
        return NOBODY
    return row if fits(fleet, who, row) else NOBODY


@kernel
def _choose(fleet: World, who: int, freed_only: bool) -> int:
    dispatch = fleet.dispatch
    if dispatch == _ROUND_ROBIN:
        return _next_in_turn(fleet, who, freed_only)
    if dispatch == _PREFIX:
        row = _home(fleet, who, freed_only)
        if row >= 0:
            return row
    return _least_loaded_freed(fleet, who) if freed_only else _least_loaded(fleet, who)


@kernel
def _grant(fleet: World, who: int, row: int) -> None:
    request, replica = request_at(fleet, who), replica_at(fleet, row)
    fleet.chosen_seq += 1
    replica.chosen_seq = fleet.chosen_seq
    fleet.last_row = row
    request.row = row
    request.uncached = request.outstanding = _uncached(fleet, who, row)
    tier_at(fleet, request.tier).cached_tokens += request.prompt - request.uncached
    replica.streams += 1
    replica.worst_tokens += request.prompt + request.output
    replica.outstanding += request.outstanding
    fleet.listed_streams += 1
    fleet.in_flight += 1
    fleet.unstarted += 1
    remember(fleet, request.group, row)
    observe(fleet, request.tier, WAIT, fleet.now_s - request.at_s)
    set_load(fleet, row)
    if fleet.front_end_s > 0:
        _to_front(fleet, who)
    else:
        submit(fleet, who)


@kernel
def _to_front(fleet: World, who: int) -> None:
    """It is in the front end for as long as any other, so they leave it in the order they came."""
    request = request_at(fleet, who)
    request.state = FRONT
    request.due_s = fleet.now_s + fleet.front_end_s
    request.prev, request.next = fleet.front_tail, NOBODY
    if fleet.front_tail < 0:
        fleet.front_head = who
    else:
        request_at(fleet, fleet.front_tail).next = who
    fleet.front_tail = who


@kernel
def leave_front(fleet: World, who: int) -> None:
    """It is through, or its replica is gone."""
    request = request_at(fleet, who)
    if request.prev < 0:
        fleet.front_head = request.next
    else:
        request_at(fleet, request.prev).next = request.next
    if request.next < 0:
        fleet.front_tail = request.prev
    else:
        request_at(fleet, request.next).prev = request.prev


@kernel
def pump(fleet: World) -> None:
    """Dispatch heads for as long as they fit somewhere; one that was found to fit nowhere is tried where something was freed since."""
    while fleet.waiting:
        who = head(fleet)
        row = _choose(fleet, who, who == fleet.blocked)
        if row < 0:
            fleet.blocked = who
            break
        leave(fleet, who)
        _grant(fleet, who, row)
    for place in range(fleet.freed):
        replica_at(fleet, freed_at(fleet, place).row).freed = 0
    fleet.freed = 0


@kernel
def take_in(fleet: World, who: int) -> None:
    """A new request waits, or goes at once."""
    enqueue(fleet, who, False)
    pump(fleet)
