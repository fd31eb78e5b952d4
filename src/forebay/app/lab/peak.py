"""The smallest fixed fleet that keeps the promise through the busiest hour, found by playing that hour: what "static for peak" costs.

A formula would do for a mean rate; an hour of real arrivals has bursts, and a yardstick that breaks the promise is none.
"""

import math
from collections.abc import Callable

import msgspec

from forebay.demand.arrays import ArrivalSource
from forebay.simulation.fast import FastFleet
from forebay.simulation.lab import play
from forebay.simulation.scripted import Static
from forebay.simulation.tune import kept
from forebay.simulation.values import Actuator, Scenario

HOUR_S = 3600.0


def smallest_fleet(
    world: Scenario, make_arrivals: Callable[[], ArrivalSource], guess: int, cpu_clock: Callable[[], float]
) -> tuple[int, bool]:
    """(replicas, whether they keep the promise of ``world``): the pool's most where not even those do.

    Faults are left out. ``guess`` is where the search begins: it gallops from there, then halves.
    """
    calm = msgspec.structs.replace(
        world, actuator=Actuator(), metric_faults=(), outages=(), shortages=(), crashes_per_replica_day=0.0, timeline_s=HOUR_S
    )
    most = world.max_replicas
    known: dict[int, bool] = {}

    def holds(count: int) -> bool:
        if count not in known:
            fixed = msgspec.structs.replace(calm, initial_replicas=count, min_replicas=min(count, calm.min_replicas))
            run = play(fixed, Static(count), make_arrivals(), name="static", fleet=FastFleet, cpu_clock=cpu_clock)
            known[count] = kept(run, calm) >= world.promise_attainment
        return known[count]

    high = low = min(max(1, guess), most)
    step = max(1, math.ceil(high / 16))
    while not holds(high):
        if high == most:
            return most, False
        low, high, step = high, min(most, high + step), 2 * step
    while low > 1 and low == high:
        # It may be too many: gallop down to one that is not enough.
        following = max(1, low - step)
        if not holds(following):
            low = following
        else:
            low = high = following
            step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high, True
