"""The cheapest schedule of replicas where misses have a price: solved exactly, one level of the count at a time.

Time is cut into slots. ``misses[t, k]`` is how many requests miss their promise in slot ``t`` with ``k`` replicas ready; in ``k``
it falls, by less and less (convex): the next replica never helps more than the one before. A schedule ``M`` (replicas
ready in each slot) costs

    Σ M(t)  +  Σ up(t) · min(t, start)  +  Σ down(t) · min(T − t, stop)  +  price · Σ misses[t, M(t)]

in replica slots: a replica that becomes ready at ``t`` was paid for ``start`` slots before (or since slot 0, where the fleet begins
with what it likes), and one that is let go drains for ``stop`` slots, or to the end.

**Level by level.** Level ``k`` of ``M`` is the set of slots with ``M(t) ≥ k``. The count is the sum of its levels, a rise by n is n levels
that begin, a fall n levels that end, and ``misses[t, M] = misses[t, 0] − Σ_{k ≤ M} (misses[t, k−1] − misses[t, k])``. So the cost of
``M`` is a sum over levels of the cost of that level's set alone, and no schedule costs less than every level's own cheapest set. That
sum is attained: let ``M`` count the cheapest sets that hold ``t``. A rise of ``M`` is at most the number of sets that begin, and the
``M(t)`` lowest levels gain no less than whichever ``M(t)`` sets hold ``t``, gains falling with ``k``. One level is
a chain of two states, on and off: its cheapest set follows by dynamic programming. (Without misses, all needed slots being
forced, this is ski rental with the future known: a gap is bridged exactly where it is shorter than ``start + stop``.)

**The bound.** For any price, this minimum less ``price · budget`` is at most the cost of the cheapest schedule with at most ``budget``
misses (weak duality), so the largest over prices is a lower bound on it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numba
import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Misses = npt.NDArray[np.float64]

PRICES_MAX = 48
"""Prices tried: halvings of a range that doublings have found."""
PRICE_RATIO = 1.0005
"""Prices so near to each other are one."""


class Charges(NamedTuple):
    """What a change of the count costs, and the fewest replicas that may ever run."""

    start_slots: int
    stop_slots: int
    least: int = 0


class Schedule(NamedTuple):
    """Replicas ready in each slot, and what that comes to by the model."""

    replicas: Counts
    cost_slots: float
    """Replica slots paid for, starts and drains included."""
    misses: float
    lower_bound_slots: float
    """No schedule within the budget costs less, by the model."""


def cost_slots(replicas: Counts, charges: Charges) -> float:
    """Replica slots that ``replicas`` (ready in each slot) are paid for, starts and drains included."""
    slots = np.arange(1, len(replicas))
    change = np.diff(replicas)
    up = np.maximum(change, 0) * np.minimum(slots, charges.start_slots)
    down = np.maximum(-change, 0) * np.minimum(len(replicas) - slots, charges.stop_slots)
    return float(replicas.sum() + up.sum() + down.sum())


def missed(misses: Misses, replicas: Counts) -> float:
    """Requests that miss with ``replicas``."""
    return float(misses[np.arange(len(replicas)), replicas].sum())


def at_price(misses: Misses, price: float, charges: Charges) -> tuple[Counts, float]:
    """The schedule of least cost plus ``price`` × misses, and that sum. ``misses``: slots × (0 … most replicas), convex along rows."""
    slots = len(misses)
    replicas = np.full(slots, charges.least, np.int64)
    total = charges.least * slots + price * float(misses[:, charges.least].sum())
    total += _levels(misses, price, charges.start_slots, charges.stop_slots, charges.least, replicas)
    return replicas, total


def within(misses: Misses, budget: float, charges: Charges) -> Schedule | None:
    """A schedule with at most ``budget`` misses, the cheapest of those that some price makes best, beside the lower bound.

    None where even the most replicas miss more.
    """
    if float(misses[:, -1].sum()) > budget:
        return None
    fewest = np.full(len(misses), charges.least, np.int64)
    if missed(misses, fewest) <= budget:
        cost = cost_slots(fewest, charges)
        return Schedule(fewest, cost, missed(misses, fewest), cost)
    best: Schedule | None = None
    bound = 0.0
    low, high = 0.0, 1.0
    for _ in range(PRICES_MAX):
        price = high if best is None else (low + high) / 2
        replicas, total = at_price(misses, price, charges)
        bound = max(bound, total - price * budget)
        count = missed(misses, replicas)
        if count <= budget:
            cost = cost_slots(replicas, charges)
            if best is None or cost < best.cost_slots:
                best = Schedule(replicas, cost, count, 0.0)
            high = price
        elif best is None:
            low, high = high, high * 4
        else:
            low = price
        if best is not None and high <= low * PRICE_RATIO:
            break
    if best is None:
        full = np.full(len(misses), misses.shape[1] - 1, np.int64)
        best = Schedule(full, cost_slots(full, charges), missed(misses, full), 0.0)
    return best._replace(lower_bound_slots=min(bound, best.cost_slots))


def wanted(replicas: Counts, charges: Charges) -> Counts:
    """Replicas to have asked for in each slot so that ``replicas`` are ready in each: starts begin ``start_slots`` ahead, or in slot 0."""
    asked = replicas.astype(np.int64).copy()
    for slot in np.flatnonzero(np.diff(replicas) > 0) + 1:
        asked[max(0, slot - charges.start_slots) : slot] += replicas[slot] - replicas[slot - 1]
    return asked


def _solve_levels(misses: Any, price: float, start: int, stop: int, least: int, replicas: Any) -> float:
    """Add each level's cheapest set to ``replicas``; the sum of their costs. Kept to loops that numba compiles."""
    slots, width = misses.shape
    stayed_on = np.empty(slots, np.bool_)
    stayed_off = np.empty(slots, np.bool_)
    total = 0.0
    for level in range(least + 1, width):
        on, off = 0.0, 0.0
        for t in range(slots):
            cost = 1.0 - price * (misses[t, level - 1] - misses[t, level])
            if t == 0:
                on, off = cost, 0.0
                continue
            begin, end = off + min(t, start), on + min(slots - t, stop)
            stayed_on[t], stayed_off[t] = on <= begin, off <= end
            on, off = min(on, begin) + cost, min(off, end)
        total += min(on, off)
        state = on < off
        used = state
        for t in range(slots - 1, -1, -1):
            if state:
                replicas[t] += 1
            if t:
                state = stayed_on[t] if state else not stayed_off[t]
                used = used or state
        if not used:
            break
    return total


_levels = cast(Callable[..., float], numba.njit(cache=False)(_solve_levels))
