"""The clairvoyant limit: the fewest GPU-hours with which the promise can be kept by someone who knows the future.

Two numbers. The *bound* is a schedule that really keeps the promise: it is made from the true work of every second
(`clairvoyant_work`), each start and drain paid for, the allowed share of misses spent where it saves most
(`clairvoyant_levels`), and then played by the simulator like any policy. What one replica can carry is not taken from a formula
but found by those plays: the most at which the promise still holds. No cleverer schedule is known, but none is ruled out.
The *lower bound* is proven: no schedule whatever needs less. The truth lies between the two.

The world of the plays is the policies' own without its mishaps: no faults, no crashes, no shortage, no actuator in between, and
starts that take their mean time. A policy that pays for mishaps is compared with what perfect knowledge and perfect luck need.
"""

import math
from collections.abc import Callable

import msgspec
import numpy as np

from forebay.demand.arrays import Arrivals, ArrivalSource
from forebay.simulation import clairvoyant_exact as exact
from forebay.simulation import clairvoyant_levels as levels
from forebay.simulation.clairvoyant_levels import Charges, Counts, Schedule
from forebay.simulation.clairvoyant_misses import table
from forebay.simulation.clairvoyant_sample import Sampler, Window
from forebay.simulation.clairvoyant_work import Gatherer, Work
from forebay.simulation.lab import FleetFactory, play
from forebay.simulation.scripted import Scripted
from forebay.simulation.values import Actuator, RunResult, Scenario

SLOT_S = 15.0
"""A schedule changes its count so often at most: policies decide as often."""
CELLS_MAX = 48_000_000
"""Slots × replicas of the table of misses; slots are made longer where it would be larger."""
TOLERANCE = 0.0005
"""The schedule keeps the promise within this much, or the bound is said to be loose."""
FULL_PLAYS_MAX = 4
SAMPLE_PLAYS_MAX = 10
CEILINGS = (0.3, 1.6)
"""Work a second that one replica is tried with; a second of work a second is the most that an engine could do."""
FIRST_CEILING = 0.95
STEEPNESS_OF_MISSES = 12.0
"""Growth of the logarithm of the missed share with the ceiling, until two plays have shown it."""
NEAR_SHARE = 0.04
"""A share of misses within this fraction of the allowed one is met."""


class Bound(msgspec.Struct, frozen=True):
    """The limit, and how far to trust it."""

    gpu_hours: float
    """Of the schedule, counted as for every policy; failure spares included."""
    lower_bound_gpu_hours: float
    """No schedule that keeps the promise needs less (spares included): work of the lightest requests that suffice, on full engines."""
    schedule: tuple[tuple[float, int], ...]
    """Replicas to have asked for from each time on."""
    attainment: float
    """Share of requests of the worst promised tier with both promises kept, as simulated, without the help of spares."""
    capacity_per_replica: float
    """Requests per second, of this trace's mean work, that one replica carries in this schedule at most."""
    loose: bool
    """The promise could not be held within ``TOLERANCE``: more hours may be needed than these."""
    note: str
    """In words for people."""
    plays: int = 0
    """Of the whole trace."""


class _Trial(msgspec.Struct, frozen=True):
    """One schedule and what its play came to."""

    ceiling: float
    schedule: Schedule
    attained: float
    gpu_hours: float = math.inf


def clairvoyant(
    scenario: Scenario,
    make_arrivals: Callable[[], ArrivalSource],
    *,
    fleet: FleetFactory,
    cpu_clock: Callable[[], float],
    attainment: float | None = None,
    spares: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Bound:
    """The limit for the arrivals that each call of ``make_arrivals`` gives anew, always the same.

    ``attainment``: share of requests that must have both promises kept (default: the scenario's); ``spares``: replicas
    held beyond the schedule throughout, as policies hold them for failures. Raises BadInput where nothing arrives.
    """
    promise = scenario.promise_attainment if attainment is None else attainment
    told = _Told(progress)
    gatherer, sampler = Gatherer(scenario.rules, scenario.duration_s, promise), Sampler(scenario.duration_s)
    for chunk in make_arrivals():
        if len(chunk.at_s) and chunk.at_s[0] >= scenario.duration_s:
            break
        gatherer.take(chunk)
        sampler.take(chunk)
        told.reading(chunk, scenario.duration_s)
    search = _Search(_calm(scenario), gatherer.done(), promise, fleet, cpu_clock)
    return search.run(sampler, make_arrivals, spares, told)


class _Told:
    """Progress as one number that never falls: reading is a tenth, trying samples three, playing the whole the rest."""

    def __init__(self, progress: Callable[[float], None] | None) -> None:
        self._progress = progress
        self._last = 0.0

    def at(self, share: float) -> None:
        if self._progress is not None and share > self._last:
            self._last = share
            self._progress(min(1.0, share))

    def reading(self, chunk: Arrivals, duration_s: float) -> None:
        if len(chunk.at_s):
            self.at(0.1 * float(chunk.at_s[-1]) / duration_s)


def _calm(scenario: Scenario) -> Scenario:
    """``scenario`` without its mishaps."""
    cold = msgspec.structs.replace(scenario.cold_start, cv=0.0, shared_bandwidth_bytes_per_s=None, starts_max=None)
    return msgspec.structs.replace(
        scenario,
        cold_start=cold,
        actuator=Actuator(),
        metric_faults=(),
        outages=(),
        shortages=(),
        crashes_per_replica_day=0.0,
        interval_s=SLOT_S,
        timeline_s=3600.0,
    )


class _Search:
    """Looks for the highest ceiling at which the simulated schedule keeps the promise."""

    def __init__(self, world: Scenario, work: Work, promise: float, fleet: FleetFactory, cpu_clock: Callable[[], float]) -> None:
        self._world = world
        self._work = work
        self._promise = promise
        self._fleet = fleet
        self._cpu_clock = cpu_clock
        self._budget = (1 - promise) * float(work.requests.sum())
        self._slot_s = SLOT_S
        self._plays = 0

    def run(self, sampler: Sampler, make_arrivals: Callable[[], ArrivalSource], spares: int, told: _Told) -> Bound:
        windows = sampler.windows()
        if sampler.whole:
            chunks = windows[0].chunks
            trials = self._solve(lambda ceiling: self._whole(ceiling, lambda: iter(chunks)), SAMPLE_PLAYS_MAX, [], told, (0.1, 0.9))
        else:
            tried = self._solve(lambda ceiling: self._sampled(ceiling, windows), SAMPLE_PLAYS_MAX, [], told, (0.1, 0.3))
            trials = self._solve(lambda ceiling: self._whole(ceiling, make_arrivals), FULL_PLAYS_MAX, tried, told, (0.4, 0.6))
        told.at(1.0)
        held = [trial for trial in trials if trial.attained >= self._promise - TOLERANCE]
        best = min(held, key=lambda trial: trial.gpu_hours) if held else max(trials, key=lambda trial: trial.attained)
        return self._bound(best, spares, loose=not held)

    def _solve(
        self, attempt: Callable[[float], _Trial], most: int, before: list[_Trial], told: _Told, share: tuple[float, float]
    ) -> list[_Trial]:
        """Trials, ceiling by ceiling, until the allowed share of misses is met: by the secant on its logarithm, kept within brackets.

        ``before``: trials of a smaller world, which tell where to begin and how misses grow with the ceiling.
        """
        allowed = max(1e-9, 1 - self._promise)
        known = [(trial.ceiling, _log_missed(trial)) for trial in before]
        ceiling = _nearest(known, math.log(allowed)) if known else FIRST_CEILING
        slope = _slope(known)
        low, high = CEILINGS
        trials: list[_Trial] = []
        for number in range(most):
            trial = attempt(ceiling)
            trials.append(trial)
            told.at(share[0] + share[1] * (number + 1) / most)
            gap = math.log(allowed) - _log_missed(trial)
            if abs(gap) <= NEAR_SHARE:
                break
            low, high = (max(low, ceiling), high) if gap > 0 else (low, min(high, ceiling))
            if len(trials) > 1:
                slope = _slope([(each.ceiling, _log_missed(each)) for each in trials[-2:]]) or slope
            following = ceiling + gap / slope
            if not low < following < high:
                following = (low + high) / 2
            if abs(following - ceiling) < 1e-3 or high - low < 1e-3:
                break
            ceiling = following
        return trials

    def _schedule(self, ceiling: float) -> Schedule:
        most = self._world.max_replicas
        enough = min(most, max(2, self._world.min_replicas, math.ceil(1.3 * _peak(self._work.work_s, SLOT_S) / ceiling) + 2))
        while True:
            while len(self._work.requests) / self._slot_s * (enough + 1) > CELLS_MAX:
                self._slot_s *= 2
            misses = table(self._work, ceiling, self._slot_s, enough)
            found = self._within(misses)
            if found is not None:
                return found
            if enough >= most:
                full = np.full(len(misses), most, np.int64)
                return Schedule(full, levels.cost_slots(full, self._charges()), levels.missed(misses, full), 0.0)
            enough = min(most, 2 * enough)

    def _within(self, misses: levels.Misses) -> Schedule | None:
        charges = self._charges()
        budget = math.floor(self._budget)
        if exact.affordable(len(misses), misses.shape[1] - 1, budget):
            return exact.cheapest(np.ceil(misses - 0.5).astype(np.int64), budget, charges)
        return levels.within(misses, self._budget, charges)

    def _charges(self) -> Charges:
        drain_s = min(self._world.drain_s_max, self._slot_s)
        starts = math.ceil(self._world.cold_start.unshared_s / self._slot_s - 1e-9)
        return Charges(starts, math.ceil(drain_s / self._slot_s), self._world.min_replicas)

    def _whole(self, ceiling: float, make_arrivals: Callable[[], ArrivalSource]) -> _Trial:
        schedule = self._schedule(ceiling)
        self._plays += 1
        run = self._play(schedule.replicas, make_arrivals(), self._world.duration_s)
        met, arrived = _kept(run, self._world)
        return _Trial(ceiling, schedule, met / max(1, arrived), run.gpu_hours)

    def _sampled(self, ceiling: float, windows: list[Window]) -> _Trial:
        schedule = self._schedule(ceiling)
        met = arrived = 0
        for window in windows:
            first, last = round(window.start_s / self._slot_s), math.ceil(window.end_s / self._slot_s)
            run = self._play(schedule.replicas[first:last], iter(window.chunks), window.end_s - window.start_s)
            kept = _kept(run, self._world)
            met, arrived = met + kept[0], arrived + kept[1]
        return _Trial(ceiling, schedule, met / max(1, arrived))

    def _play(self, replicas: Counts, arrivals: ArrivalSource, duration_s: float) -> RunResult:
        steps = _steps(levels.wanted(replicas, self._charges()), self._slot_s)
        world = msgspec.structs.replace(self._world, duration_s=duration_s, initial_replicas=steps[0][1])
        return play(world, Scripted(steps, "clairvoyant"), arrivals, name="clairvoyant", fleet=self._fleet, cpu_clock=self._cpu_clock)

    def _bound(self, best: _Trial, spares: int, *, loose: bool) -> Bound:
        world = self._world
        spare_hours = spares * world.rules.profile.gpus * world.duration_s / 3600.0
        least = max(self._work.least_s, world.min_replicas * world.duration_s)
        each = best.ceiling * float(self._work.requests.sum()) / float(self._work.work_s.sum())
        steps = _steps(levels.wanted(best.schedule.replicas, self._charges()), self._slot_s)
        return Bound(
            gpu_hours=best.gpu_hours + spare_hours,
            lower_bound_gpu_hours=least * world.rules.profile.gpus / 3600.0 + spare_hours,
            schedule=tuple((at_s, count + spares) for at_s, count in steps),
            attainment=best.attained,
            capacity_per_replica=each,
            loose=loose,
            note="",
            plays=self._plays,
        )


def _steps(asked: Counts, slot_s: float) -> list[tuple[float, int]]:
    """(time, count) wherever the count changes."""
    places = [0, *(np.flatnonzero(np.diff(asked)) + 1).tolist()]
    return [(place * slot_s, int(asked[place])) for place in places]


def _kept(run: RunResult, world: Scenario) -> tuple[int, int]:
    """(requests with both promises kept, requests that arrived) of the promised tier that fares worst."""
    tiers = [run.tiers[tier.name].totals for tier in world.rules.tiers if not tier.preemptible]
    shares = [(tier.both_met, tier.arrived) for tier in tiers if tier.arrived]
    return min(shares, key=lambda share: share[0] / share[1], default=(0, 0))


def _log_missed(trial: _Trial) -> float:
    return math.log(max(1e-7, 1 - trial.attained))


def _slope(known: list[tuple[float, float]]) -> float:
    """How the logarithm of the misses grows with the ceiling, by the last two; the usual growth where they say nothing."""
    if len(known) > 1:
        (sooner, missed), (later, missed_later) = known[-2:]
        if later != sooner and (missed_later - missed) / (later - sooner) > 1.0:
            return (missed_later - missed) / (later - sooner)
    return STEEPNESS_OF_MISSES


def _nearest(known: list[tuple[float, float]], wanted: float) -> float:
    return min(known, key=lambda each: abs(each[1] - wanted))[0]


def _peak(work_s: "np.ndarray[tuple[int], np.dtype[np.float64]]", over_s: float) -> float:
    """The largest mean of ``work_s`` a second over slots of ``over_s``."""
    bins = int(over_s)
    whole = len(work_s) // bins * bins
    return float(max(work_s[:whole].reshape(-1, bins).mean(axis=1).max(initial=0.0), work_s[whole:].mean() if whole < len(work_s) else 0.0))


