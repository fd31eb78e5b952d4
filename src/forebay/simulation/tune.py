"""Tries settings of one autoscaler on a training span and takes the cheapest that kept the promise there.

So that nobody can say they were set up to lose: each law is compared with its source's defaults, and once more as tuned here.
A run is bounded in requests; the span is cut where the bound is reached, the same for all. `row` is one run, for whoever
spreads runs over cores; `tuned` does them one after another.
"""

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from forebay.demand.arrays import ArrivalSource
from forebay.domain.scaling import Policy
from forebay.simulation.lab import FleetFactory, play
from forebay.simulation.values import RunResult, Scenario

REQUESTS_MAX = 1_000_000
"""Requests of one training run at most."""
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
WEEK_S = 7 * DAY_S
MONDAY_S = 4 * DAY_S
"""Unix time began on a Thursday; the first Monday was four days later."""
PLAN_S = 300.0
"""An hour's need is its busiest five minutes'."""


class Row(msgspec.Struct, frozen=True):
    """One setting on the training span. ``attainment``: requests of tiers that are promised something, both promises kept ÷ all."""

    label: str
    gpu_hours: float
    attainment: float
    scale_actions: int = 0


class Tuned(msgspec.Struct, frozen=True):
    """The setting to take: its place among those tried, why, and everything that was tried."""

    index: int
    because: str
    rows: tuple[Row, ...]


def training(scenario: Scenario, arrivals: ArrivalSource, requests_max: int = REQUESTS_MAX) -> Scenario:
    """``scenario`` cut so that at most ``requests_max`` of ``arrivals`` (which are read up to there) fall within it."""
    seen = 0
    for chunk in arrivals:
        if seen + len(chunk.at_s) > requests_max:
            cut_s = float(chunk.at_s[requests_max - seen])
            return msgspec.structs.replace(scenario, duration_s=min(scenario.duration_s, max(scenario.interval_s, cut_s)))
        seen += len(chunk.at_s)
        if len(chunk.at_s) and chunk.at_s[-1] >= scenario.duration_s:
            break
    return scenario


def row(
    label: str, scenario: Scenario, policy: Policy, arrivals: ArrivalSource, *, fleet: FleetFactory, cpu_clock: Callable[[], float]
) -> Row:
    """One run on the training span."""
    result = play(scenario, policy, arrivals, name=label, fleet=fleet, cpu_clock=cpu_clock)
    return Row(label, result.gpu_hours, kept(result, scenario), result.scale_actions)


def kept(result: RunResult, scenario: Scenario) -> float:
    """Share of the requests that arrived in promised tiers whose answer kept both promises; 1 where none arrived."""
    promised = [result.tiers[tier.name].totals for tier in scenario.rules.tiers if not tier.preemptible]
    arrived = sum(totals.arrived for totals in promised)
    return sum(totals.both_met for totals in promised) / arrived if arrived else 1.0


def best(rows: Sequence[Row], promise: float) -> Tuned:
    """The cheapest row that reaches ``promise``, else the one nearest to it, of equal ones the cheapest. Raises ValueError for none."""
    if not rows:
        raise ValueError("there is nothing to choose from")
    holding = [index for index, each in enumerate(rows) if each.attainment >= promise]
    if holding:
        index = min(holding, key=lambda place: (rows[place].gpu_hours, -rows[place].attainment, place))
        because = f"the cheapest of {len(holding)} of {len(rows)} that keep {promise:.2%}"
    else:
        index = min(range(len(rows)), key=lambda place: (-rows[place].attainment, rows[place].gpu_hours, place))
        because = f"none of {len(rows)} keeps {promise:.2%}: the one that comes nearest, {rows[index].attainment:.2%}"
    return Tuned(index, because, tuple(rows))


def tuned(
    make_scenario: Callable[[], Scenario],
    make_arrivals: Callable[[], ArrivalSource],
    candidates: Sequence[tuple[str, Callable[[], Policy]]],
    *,
    fleet: FleetFactory,
    cpu_clock: Callable[[], float],
    requests_max: int = REQUESTS_MAX,
    progress: Callable[[float], None] | None = None,
) -> Tuned:
    """Plays each of ``candidates`` (label, maker) on the same training span, and says which to take.

    The makers are called once per run, so runs share nothing. Raises ValueError for no candidates, BadInput for an ill trace.
    """
    scenario = training(make_scenario(), make_arrivals(), requests_max)
    rows = []
    for place, (label, make) in enumerate(candidates):
        rows.append(row(label, scenario, make(), make_arrivals(), fleet=fleet, cpu_clock=cpu_clock))
        if progress is not None:
            progress((place + 1) / len(candidates))
    return best(rows, scenario.promise_attainment)


def hourly_need(scenario: Scenario, arrivals: ArrivalSource, replica_rate_per_s: float) -> list[float]:
    """Replicas needed in each hour of the day (UTC), 24 numbers, or of the week from Monday, 168, where the span covers one.

    The largest of the busiest five minutes of that hour on any day of the span ÷ ``replica_rate_per_s``, not rounded. Hours
    that the span does not touch get the largest of all: nothing is known of them.
    """
    buckets = max(1, math.ceil(scenario.duration_s / PLAN_S))
    counts = np.zeros(buckets)
    for chunk in arrivals:
        within = chunk.at_s[chunk.at_s < scenario.duration_s]
        counts += np.bincount((within // PLAN_S).astype(np.int64), minlength=buckets)[:buckets]
        if len(within) < len(chunk.at_s):
            break
    hours = 168 if scenario.duration_s >= WEEK_S else 24
    return by_hour(counts, scenario.start_wall_s, replica_rate_per_s, hours)


def by_hour(counts: npt.NDArray[np.float64], start_wall_s: float, replica_rate_per_s: float, hours: int) -> list[float]:
    """The same from requests in each ``PLAN_S``, shape (buckets,), of which the first begins at ``start_wall_s``; ``hours``: 24 or 168."""
    wall_s = start_wall_s - MONDAY_S + np.arange(len(counts)) * PLAN_S
    places = (wall_s // HOUR_S).astype(np.int64) % hours
    need = np.full(hours, -1.0)
    np.maximum.at(need, places, counts / PLAN_S / replica_rate_per_s)
    return [float(each) if each >= 0 else float(need.max()) for each in need]
