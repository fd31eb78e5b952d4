"""How many requests miss their promise, by replicas: the guess that a schedule is made from, before the simulator says what is true.

The share that misses rises steeply with the work that a replica is given: ``exp(-STEEPNESS · (1 − u ÷ ceiling))`` for ``u`` seconds
of work a second, and on along its tangent from ``u = ceiling``. That is convex and rising in ``u``, and ``u`` is convex in the replicas,
so misses are too. Only the ceiling has to be found. The steepness is that of fleets of 4 to 14 replicas at a steady load (shares of
0.1 to 16 % missed); schedules made with 8 or 20 in its place cost under 1 % more on days of three traces.
"""

from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np
import numpy.typing as npt

from forebay.simulation.clairvoyant_work import BIN_S, Work

STEEPNESS = 13.0
SMOOTHED_S = 4.0
"""What arrived in so many seconds before weighs on a request as what arrives with it: engines take their time."""


def table(work: Work, ceiling: float, slot_s: float, most: int) -> npt.NDArray[np.float64]:
    """Expected misses, slots × (0 … ``most`` replicas); convex along rows. ``ceiling``: work a second at which all would miss."""
    bins = round(slot_s / BIN_S)
    slots = -(-len(work.requests) // bins)
    window = round(SMOOTHED_S / BIN_S)
    padded = np.zeros((2, slots * bins))
    padded[0, : len(work.requests)] = work.requests
    padded[1, : len(work.work_s)] = np.convolve(work.work_s / BIN_S, np.ones(window) / window)[: len(work.work_s)]
    misses = np.zeros((slots, most + 1))
    _table(padded[0], padded[1], bins, ceiling, STEEPNESS, misses)
    return misses


def carried(ceiling: float, share: float) -> float:
    """Work a second with which ``share`` of the requests miss, by the same guess."""
    return ceiling * max(0.0, 1 + float(np.log(share)) / STEEPNESS)


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
                    over = steepness * (work_per_s[place] / count / ceiling - 1.0)
                    total += requests[place] * (np.exp(over) if over < 0 else 1.0 + over)
            misses[slot, count] = total
        if width > 2:
            misses[slot, 0] = misses[slot, 1] + max(misses[slot, 1] - misses[slot, 2], came)
        elif width == 2:
            misses[slot, 0] = misses[slot, 1] + came
        else:
            misses[slot, 0] = came


_table = cast(Callable[..., None], numba.njit(_fill))
