"""The cheapest schedule within a budget of misses, exactly: for cases small enough to count every way the budget can be spent.

A price on misses (`clairvoyant_levels`) reaches only schedules that are best at some price; between two of those the budget may be
left half spent. Here the state is (replicas, misses spent so far), slot by slot, so nothing is left out; its size is why cases are small.
"""

import numpy as np
import numpy.typing as npt

from forebay.simulation.clairvoyant_levels import Charges, Counts, Schedule

WORK_MAX = 8_000_000
"""Transitions looked at, at most: slots × replicas² × (budget + 1)."""


def affordable(slots: int, most: int, budget: int) -> bool:
    """Whether a case of this size is small."""
    return slots * (most + 1) ** 2 * (budget + 1) <= WORK_MAX


def cheapest(misses: npt.NDArray[np.int64], budget: int, charges: Charges) -> Schedule | None:
    """The cheapest schedule with at most ``budget`` misses, costs as in `clairvoyant_levels`; None where there is none.

    ``misses``: slots × (0 … most replicas), whole numbers, of any shape along rows.
    """
    slots, width = misses.shape
    best = np.full((width, budget + 1), np.inf)
    came = np.zeros((slots, width, budget + 1), np.int16)
    for t in range(slots):
        before = best
        best = np.full((width, budget + 1), np.inf)
        for count in range(charges.least, width):
            spent = int(misses[t, count])
            if spent > budget:
                continue
            room = budget + 1 - spent
            if t == 0:
                best[count, spent] = count
                continue
            reached = before[:, :room] + _change(width, count, t, slots, charges)[:, None]
            came[t, count, spent:] = reached.argmin(axis=0)
            best[count, spent:] = reached.min(axis=0) + count
    count, spent = (int(place) for place in np.unravel_index(int(best.argmin()), best.shape))
    cost = float(best[count, spent])
    if not np.isfinite(cost):
        return None
    replicas = np.zeros(slots, np.int64)
    total = spent
    for t in range(slots - 1, -1, -1):
        replicas[t] = count
        previous = int(came[t, count, spent])
        spent -= int(misses[t, count])
        count = previous
    return Schedule(replicas, cost, float(total), cost)


def _change(width: int, count: int, t: int, slots: int, charges: Charges) -> Counts:
    """What it costs to have ``count`` from ``t`` on, by the count before."""
    step = count - np.arange(width)
    return np.where(step > 0, step * min(t, charges.start_slots), -step * min(slots - t, charges.stop_slots))
