"""What the driver of a simulated fleet does next, and in which order within one instant.

Equal instants are common (everything hangs on whole multiples of the interval), so the order is part of the result.
"""

import math
from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush


class Turn(IntEnum):
    """Who goes first within one instant."""

    STAGE = 0
    TROUBLE = 1
    DRAIN = 2
    SENSE = 3
    ROW = 4
    DECIDE = 5
    ACTUATE = 6


class Agenda:
    """A heap of actions. Its size is bounded by a few for each replica, trouble and clock."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, int, Callable[[float], None]]] = []
        self._count = 0

    def at(self, at_s: float, turn: Turn, action: Callable[[float], None]) -> None:
        """Do ``action`` at ``at_s`` (it is given that time). What can never be due is dropped."""
        if math.isfinite(at_s):
            self._count += 1
            heappush(self._due, (at_s, turn, self._count, action))

    @property
    def next_s(self) -> float:
        """When something is due; infinity where nothing is."""
        return self._due[0][0] if self._due else math.inf

    def run(self, now_s: float) -> None:
        """Do all that is due by ``now_s``, what is added meanwhile for the same instant included."""
        while self._due and self._due[0][0] <= now_s:
            at_s, _, _, action = heappop(self._due)
            action(at_s)
