"""From the work of every second to the cheapest schedule for one guess of what a replica carries."""

import math

import msgspec
import numpy as np

from forebay.simulation import clairvoyant_exact as exact
from forebay.simulation import clairvoyant_levels as levels
from forebay.simulation.clairvoyant_levels import Charges, Counts, Misses, Schedule
from forebay.simulation.clairvoyant_misses import carried, table
from forebay.simulation.clairvoyant_work import BIN_S, Floats, Work
from forebay.simulation.values import Scenario

SLOT_S = 15.0
"""A schedule changes its count at most so often: about as often as policies decide."""
CELLS_MAX = 48_000_000
"""Slots × replicas of the table of misses; slots are made longer where it would be larger."""
EXACT_SCALE = 20
"""Where every way to spend the budget is counted out, misses are counted in twentieths of a request."""
ROOM = 1.3
"""The first guess of the most replicas that are of use, above what the busiest slot's work comes to."""


class Planned(msgspec.Struct, frozen=True):
    """The schedule for one ceiling (see `clairvoyant_misses`)."""

    ceiling: float
    schedule: Schedule
    slot_s: float


class Planner:
    """Makes schedules for one world and its work."""

    def __init__(self, world: Scenario, work: Work, allowed: float) -> None:
        """``allowed``: share of requests that may miss, above 0."""
        self._world = world
        self._work = work
        self._allowed = allowed
        self._budget = allowed * float(work.requests.sum())
        self._slot_s = SLOT_S

    def plan(self, ceiling: float) -> Planned:
        """The cheapest schedule that, if ``ceiling`` is right, misses no more than is allowed; with all replicas where none does."""
        most = self._world.max_replicas
        carries = max(carried(ceiling, self._allowed), 0.1 * ceiling)
        busiest = _busiest(self._work.work_s, self._slot_s) / carries
        enough = min(most, max(2, self._world.min_replicas, math.ceil(ROOM * busiest) + 2))
        while True:
            while len(self._work.requests) * BIN_S / self._slot_s * (enough + 1) > CELLS_MAX:
                self._slot_s *= 2
            misses = table(self._work, ceiling, self._slot_s, enough)
            found = self._cheapest(misses)
            if found is not None and (found.replicas.max() < enough or enough == most):
                return Planned(ceiling, found, self._slot_s)
            if enough == most:
                full = np.full(len(misses), most, np.int64)
                schedule = Schedule(full, levels.cost_slots(full, self._charges()), levels.missed(misses, full), 0.0)
                return Planned(ceiling, schedule, self._slot_s)
            enough = min(most, 2 * enough)

    def steps(self, replicas: Counts, slot_s: float) -> list[tuple[float, int]]:
        """(time, count to have asked for) wherever that count changes, so that ``replicas`` are ready in each slot."""
        asked = levels.wanted(replicas, self._charges(slot_s))
        places = [0, *(np.flatnonzero(np.diff(asked)) + 1).tolist()]
        return [(place * slot_s, int(asked[place])) for place in places]

    def _cheapest(self, misses: Misses) -> Schedule | None:
        budget = math.floor(self._budget * EXACT_SCALE)
        if exact.affordable(len(misses), misses.shape[1] - 1, budget):
            found = exact.cheapest(np.rint(misses * EXACT_SCALE).astype(np.int64), budget, self._charges())
            return None if found is None else found._replace(misses=found.misses / EXACT_SCALE)
        return levels.within(misses, self._budget, self._charges())

    def _charges(self, slot_s: float | None = None) -> Charges:
        """Drains last about as long as an answer, a slot at most; starts are known."""
        slot_s = slot_s or self._slot_s
        starts = math.ceil(self._world.cold_start.unshared_s / slot_s - 1e-9)
        return Charges(starts, 1 if self._world.drain_s_max > 0 else 0, self._world.min_replicas)


def _busiest(work_s: Floats, slot_s: float) -> float:
    """The most work a second in any slot."""
    bins = round(slot_s / BIN_S)
    starts = np.arange(0, len(work_s), bins)
    widths = np.minimum(bins, len(work_s) - starts) * BIN_S
    return float((np.add.reduceat(work_s, starts) / widths).max())
