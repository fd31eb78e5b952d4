"""The clairvoyant limit: the fewest GPU-hours with which the promise can be kept by someone who knows the future.

Two numbers. The *bound* is a schedule that really keeps the promise: it is made from the true work of every second
(`clairvoyant_work`), each start and drain paid for, the allowed share of misses spent where it saves most
(`clairvoyant_levels`), and then played by the simulator like any policy. What one replica can carry is not taken from a formula
but found by those plays: the most at which the promise still holds. No cheaper schedule is known, but none is ruled out.
The *lower bound* is proven: no schedule whatever needs less. The truth lies between the two.

The world of the plays is the policies' own without its mishaps: no faults, no crashes, no shortage, no actuator in between, and
starts that take their mean time. A policy that pays for mishaps is compared with what perfect knowledge and perfect luck need.
"""

import math
from collections.abc import Callable

import msgspec

from forebay.demand.arrays import Arrivals, ArrivalSource
from forebay.domain.units import format_share
from forebay.simulation.clairvoyant_levels import Counts
from forebay.simulation.clairvoyant_plan import SLOT_S, Planned, Planner
from forebay.simulation.clairvoyant_sample import ROWS_MAX, Sampler, Window
from forebay.simulation.clairvoyant_work import Gatherer, Work
from forebay.simulation.lab import FleetFactory, play
from forebay.simulation.scripted import Scripted
from forebay.simulation.values import Actuator, RunResult, Scenario

TOLERANCE = 0.02
"""The schedule misses at most this fraction more than it may (0.0102 for 0.01), or the bound is said to be loose.

A share of misses as little below the allowed one is as good as it gets.
"""
FULL_PLAYS_MAX = 4
SAFER = 0.1
"""The last play, where none has kept the promise, aims at a logarithm of the missed share so much smaller."""
SAMPLE_PLAYS_MAX = 10
SAMPLE_ERROR = 0.06
"""Samples tell the missed share no better than this fraction of it."""
CEILINGS = (0.02, 4.0)
FIRST_CEILING = 1.0
GROWTH = 9.0
"""The missed share grows with so high a power of the ceiling, until two plays have shown it (measured near a share of 1 %)."""
MISSED_LEAST = 1e-6
PLANS_MAX = 40
NEAR_CEILINGS = 1.0005
"""Ceilings nearer to each other than this are one."""
READING, TRYING = 0.1, 0.4
"""Progress when the trace has been read, and when the samples have been tried."""


class Bound(msgspec.Struct, frozen=True):
    """The limit, and how far to trust it."""

    gpu_hours: float
    """Of the schedule, counted as for every policy; failure spares included."""
    lower_bound_gpu_hours: float
    """No schedule that keeps the promise needs less (spares included): the work of the lightest requests that suffice, on full engines."""
    schedule: tuple[tuple[float, int], ...]
    """Replicas to have asked for from each time on."""
    attainment: float
    """Share of requests of the worst promised tier with both promises kept, as simulated, without the help of spares."""
    capacity_per_replica: float
    """Requests per second and ready replica, on average over the schedule (spares left out); 0 where it has no replica."""
    loose: bool
    """The promise could not be held within ``TOLERANCE``: it takes more than these hours, if it can be held at all."""
    note: str
    """In words for people."""
    plays: int = 0
    """Of the whole trace."""


class _Trial(msgspec.Struct, frozen=True):
    """One schedule and what its play came to."""

    planned: Planned
    attained: float
    gpu_hours: float = math.inf

    @property
    def log_ceiling(self) -> float:
        return math.log(self.planned.ceiling)

    @property
    def log_missed(self) -> float:
        return math.log(max(MISSED_LEAST, 1 - self.attained))


def clairvoyant(
    scenario: Scenario,
    make_arrivals: Callable[[], ArrivalSource],
    *,
    fleet: FleetFactory,
    cpu_clock: Callable[[], float],
    attainment: float | None = None,
    spares: int = 0,
    sample_rows: int = ROWS_MAX,
    progress: Callable[[float], None] | None = None,
) -> Bound:
    """The limit for the arrivals that each call of ``make_arrivals`` gives anew, always the same.

    ``attainment``: share of requests that must have both promises kept (default: the scenario's); ``spares``: replicas
    held beyond the schedule throughout, as policies hold them for failures; a trace of more than ``sample_rows`` requests is
    sampled first, so that the whole of it is played a few times at most. Raises BadInput where nothing arrives, or not in order.
    """
    promise = scenario.promise_attainment if attainment is None else attainment
    told = _Told(progress)
    gatherer = Gatherer(scenario.rules, scenario.duration_s, promise)
    sampler = Sampler(scenario.duration_s, sample_rows)
    for chunk in make_arrivals():
        if len(chunk.at_s) and chunk.at_s[0] >= scenario.duration_s:
            break
        gatherer.take(chunk)
        sampler.take(chunk)
        told.reading(chunk, scenario.duration_s)
    return _Search(calm(scenario), gatherer.done(), promise, fleet, cpu_clock).run(sampler, make_arrivals, spares, told)


def calm(scenario: Scenario) -> Scenario:
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
        timeline_s=3600.0,
    )


class _Told:
    """Progress as one number that never falls."""

    def __init__(self, progress: Callable[[float], None] | None) -> None:
        self._progress = progress
        self._last = 0.0

    def at(self, share: float) -> None:
        if self._progress is not None and share > self._last:
            self._last = share
            self._progress(min(1.0, share))

    def reading(self, chunk: Arrivals, duration_s: float) -> None:
        if len(chunk.at_s):
            self.at(READING * float(chunk.at_s[-1]) / duration_s)


class _Search:
    """Looks for the highest ceiling at which the simulated schedule keeps the promise."""

    def __init__(self, world: Scenario, work: Work, promise: float, fleet: FleetFactory, cpu_clock: Callable[[], float]) -> None:
        self._world = world
        self._work = work
        self._promise = promise
        self._allowed = max(MISSED_LEAST, 1 - promise)
        self._planner = Planner(world, work, self._allowed)
        self._fleet = fleet
        self._cpu_clock = cpu_clock
        self._plays = 0

    def run(self, sampler: Sampler, make_arrivals: Callable[[], ArrivalSource], spares: int, told: _Told) -> Bound:
        """The bound: by plays of the whole trace where it is held in memory, else by samples first and a few plays of the whole."""
        windows, near = sampler.windows(), math.log1p(TOLERANCE)
        if sampler.whole:
            chunks = windows[0].chunks
            trials = self._tried(lambda planned: self._whole(planned, iter(chunks)), SAMPLE_PLAYS_MAX, [], near, told, (READING, 1.0))
        else:
            samples = self._tried(
                lambda planned: self._sampled(planned, windows), SAMPLE_PLAYS_MAX, [], SAMPLE_ERROR, told, (READING, TRYING)
            )
            trials = self._tried(lambda planned: self._whole(planned, make_arrivals()), FULL_PLAYS_MAX, samples, near, told, (TRYING, 1.0))
        told.at(1.0)
        held = [trial for trial in trials if 1 - trial.attained <= self._allowed * (1 + TOLERANCE)]
        best = min(held, key=lambda trial: trial.gpu_hours) if held else max(trials, key=lambda trial: trial.attained)
        return self._bound(best, spares, loose=not held)

    def _tried(
        self, attempt: Callable[[Planned], _Trial], most: int, before: list[_Trial], near: float, told: _Told, shares: tuple[float, float]
    ) -> list[_Trial]:
        """Trials, ceiling by ceiling, until the allowed share of misses is met: by secants of logarithms, kept within brackets.

        ``most``: of trials; ``before``: trials of a part of the trace, which tell where to begin and how misses grow with the ceiling.
        """
        wanted = math.log(self._allowed)
        at = min(before, key=lambda trial: abs(trial.log_missed - wanted)).log_ceiling if before else math.log(FIRST_CEILING)
        growth = _growth(before, GROWTH)
        low, high = (math.log(ceiling) for ceiling in CEILINGS)
        trials: dict[bytes, _Trial] = {}
        stale = 0
        for _ in range(PLANS_MAX):
            planned = self._planner.plan(math.exp(at))
            name = planned.schedule.replicas.tobytes()
            stale = stale + 1 if name in trials else 0
            if not stale and len(trials) >= most:
                break
            if not stale:
                trials[name] = attempt(planned)
                told.at(shares[0] + (shares[1] - shares[0]) * len(trials) / most)
            # Where nothing at all may be missed and nothing was, it may be far too much: a share of 0 has no logarithm to tell.
            gap = math.inf if self._promise >= 1 <= trials[name].attained else wanted - trials[name].log_missed
            if abs(gap) <= near or (gap > 0 and planned.schedule.replicas.max() <= self._world.min_replicas):
                break
            low, high = (at, high) if gap > 0 else (low, at)
            if high - low < math.log(NEAR_CEILINGS):
                break
            growth = _growth(list(trials.values()), growth)
            safer = len(trials) == most - 1 and all(trial.log_missed > wanted for trial in trials.values())
            # Where the secant only finds a known schedule again, it takes a bolder step.
            following = at + (gap - SAFER if safer else gap) / growth * 2**stale
            at = following if low < following < high else (low + high) / 2
        return list(trials.values())

    def _whole(self, planned: Planned, arrivals: ArrivalSource) -> _Trial:
        self._plays += 1
        run = self._play(planned.schedule.replicas, planned.slot_s, arrivals, self._world.duration_s)
        met, arrived = _kept(run, self._world)
        return _Trial(planned, met / max(1, arrived), run.gpu_hours)

    def _sampled(self, planned: Planned, windows: list[Window]) -> _Trial:
        met = arrived = 0
        for window in windows:
            first, last = round(window.start_s / planned.slot_s), math.ceil(window.end_s / planned.slot_s)
            replicas = planned.schedule.replicas[first:last]
            run = self._play(replicas, planned.slot_s, iter(window.chunks), window.end_s - window.start_s)
            kept = _kept(run, self._world)
            met, arrived = met + kept[0], arrived + kept[1]
        return _Trial(planned, met / max(1, arrived))

    def _play(self, replicas: Counts, slot_s: float, arrivals: ArrivalSource, duration_s: float) -> RunResult:
        steps = self._planner.steps(replicas, slot_s)
        # It looks again when its count changes, so nothing is gained by asking it in between.
        world = msgspec.structs.replace(
            self._world, duration_s=duration_s, initial_replicas=steps[0][1], interval_s=max(SLOT_S, duration_s)
        )
        return play(world, Scripted(steps, "clairvoyant"), arrivals, name="clairvoyant", fleet=self._fleet, cpu_clock=self._cpu_clock)

    def _bound(self, best: _Trial, spares: int, *, loose: bool) -> Bound:
        world, work, planned = self._world, self._work, best.planned
        hours = world.rules.profile.gpus / 3600.0
        spare_hours = spares * world.duration_s * hours
        least_s = max(work.least_s, world.min_replicas * world.duration_s)
        ready_s = float(planned.schedule.replicas.sum()) * planned.slot_s
        steps = self._planner.steps(planned.schedule.replicas, planned.slot_s)
        return Bound(
            gpu_hours=best.gpu_hours + spare_hours,
            lower_bound_gpu_hours=least_s * hours + spare_hours,
            schedule=tuple((at_s, count + spares) for at_s, count in steps),
            attainment=best.attained,
            capacity_per_replica=float(work.requests.sum()) / ready_s if ready_s else 0.0,
            loose=loose,
            note=self._note(best, spares, loose),
            plays=self._plays,
        )

    def _note(self, best: _Trial, spares: int, loose: bool) -> str:
        share = format_share(best.attained, self._promise, 3).replace("%", " %")
        kept = f"{share} of the requests had both promises kept, {100 * self._promise:.4g} % are promised"
        if loose and best.planned.schedule.replicas.max() >= self._world.max_replicas:
            return f"Even with the most replicas allowed, {self._world.max_replicas}, the promise is not kept: {kept}."
        if loose:
            return f"The clairvoyant schedule is loose, it takes more than these hours if it can be done at all: {kept}."
        short = "" if best.attained >= self._promise else f"≈ as near to the promise as replicas come in whole numbers: {kept}. "
        spared = f"The clairvoyant schedule includes {spares} spare{'' if spares == 1 else 's'} throughout." if spares else ""
        return f"{short}{spared}".rstrip()


def _kept(run: RunResult, world: Scenario) -> tuple[int, int]:
    """(requests with both promises kept, requests that arrived) of the promised tier that fares worst."""
    tiers = [run.tiers[tier.name].totals for tier in world.rules.tiers if not tier.preemptible]
    shares = [(tier.both_met, tier.arrived) for tier in tiers if tier.arrived]
    return min(shares, key=lambda share: share[0] / share[1], default=(0, 0))


def _growth(trials: list[_Trial], otherwise: float) -> float:
    """How the logarithm of the missed share grows with that of the ceiling, by the last two trials."""
    if len(trials) < 2:
        return otherwise
    sooner, later = trials[-2:]
    step = later.log_ceiling - sooner.log_ceiling
    growth = (later.log_missed - sooner.log_missed) / step if step else 0.0
    return min(max(growth, GROWTH / 3), GROWTH * 3) if growth > 0 else otherwise
