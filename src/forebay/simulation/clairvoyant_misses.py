"""How many requests miss their promise, by replicas: the guess that a schedule is made from, before the simulator says what is true.

A replica with ``u`` seconds of work a second keeps nearly every promise until ``u`` comes near what its engine can do; there the share
that misses rises steeply, for the work of single seconds and of single replicas is spread by chance. ``miss(u) = exp(steepness ·
(u − ceiling))``, and on along its tangent from there: convex and rising, so that misses are convex in the replicas.
"""

from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np
import numpy.typing as npt

from forebay.simulation.clairvoyant_work import BIN_S, Work

STEEPNESS = 25.0
"""At one more hundredth of a second of work a second, 28 % more miss."""


def table(work: Work, ceiling: float, slot_s: float, most: int) -> npt.NDArray[np.float64]:
    """Expected misses, slots × (0 … ``most`` replicas); convex along rows. ``ceiling``: work a second at which all would miss."""
    bins = round(slot_s / BIN_S)
    slots = -(-len(work.requests) // bins)
    padded = np.zeros((2, slots * bins))
    padded[0, : len(work.requests)] = work.requests
    padded[1, : len(work.work_s)] = work.work_s / BIN_S
    misses = np.zeros((slots, most + 1))
    _table(padded[0], padded[1], bins, ceiling, STEEPNESS, misses)
    return misses


def _fill(requests: Any, work_per_s: Any, bins: int, ceiling: float, steepness: float, misses: Any) -> None:
    """Kept to loops that numba compiles. With no replica all miss, and at least as many more than with one as convexity asks for."""
    slots, width = misses.shape
    for slot in range(slots):
        came = 0.0
        for place in range(slot * bins, (slot + 1) * bins):
            came += requests[place]
        for count in range(1, width):
            total = 0.0
            for place in range(slot * bins, (slot + 1) * bins):
                if requests[place] > 0:
                    over = steepness * (work_per_s[place] / count - ceiling)
                    total += requests[place] * (np.exp(over) if over < 0 else 1.0 + over)
            misses[slot, count] = total
        if width > 2:
            misses[slot, 0] = misses[slot, 1] + max(misses[slot, 1] - misses[slot, 2], came)
        elif width == 2:
            misses[slot, 0] = misses[slot, 1] + came
        else:
            misses[slot, 0] = came


_table = cast(Callable[..., None], numba.njit(_fill))
