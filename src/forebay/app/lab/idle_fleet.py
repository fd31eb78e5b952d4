"""Misses that no number of replicas prevents: the busiest hour's requests, so few at a time that each finds the fleet all but idle.

Where even those miss the promise, prompts take longer than a TTFT's worth of prefill, or a lone batch steps more slowly than
the ITL. `max` is then not what is too small, and the nearest promise is what can be said.
"""

import functools
import math
from collections.abc import Callable

import msgspec
import numpy as np

from forebay.app.lab.feasible import smallest
from forebay.demand.arrays import ArrivalSource
from forebay.demand.transform import resampled
from forebay.domain.units import format_duration
from forebay.simulation.fast import FastFleet
from forebay.simulation.lab import play
from forebay.simulation.scripted import Static
from forebay.simulation.tune import kept
from forebay.simulation.values import RunResult, Scenario

IDLE_USE = 0.02
"""Share of the fleet's capacity that is used: next to nobody waits for anybody."""
REQUESTS_PER_S = 2.0
"""So many tell a share of one in a hundred within an hour."""
REPLICAS_MAX = 512


class IdleFleet:
    """Plays some of ``make_arrivals`` in ``world``, which has no mishaps, on so many replicas that they are all but idle."""

    def __init__(
        self,
        world: Scenario,
        make_arrivals: Callable[[], ArrivalSource],
        rate_per_s: float,
        replica_rate_per_s: float,
        cpu_clock: Callable[[], float],
    ) -> None:
        """``rate_per_s``: of the arrivals; ``replica_rate_per_s``: what one replica serves."""
        wanted_per_s = min(rate_per_s, REQUESTS_PER_S)
        self._replicas = min(REPLICAS_MAX, max(1, math.ceil(wanted_per_s / (IDLE_USE * replica_rate_per_s))))
        self._share = min(1.0, wanted_per_s / rate_per_s)
        self._world = msgspec.structs.replace(
            world, initial_replicas=self._replicas, max_replicas=max(world.max_replicas, self._replicas), timeline_s=3600.0
        )
        self._make_arrivals = make_arrivals
        self._cpu_clock = cpu_clock

    def attained(self) -> float:
        """Share of requests with both promises kept: what no number of replicas betters."""
        return kept(self._run(self._world), self._world)

    def nearest(self) -> str:
        """In words: the promise that an idle fleet does keep, by TTFT if that is what is missed, else by ITL; "" where neither helps."""
        for name in ("ttft", "itl"):
            first = self._world.rules.tiers[0]
            found_s = smallest(functools.partial(self._keeps, name), first.ttft_s if name == "ttft" else first.itl_s)
            if found_s is not None:
                return f"{name}: {format_duration(found_s)}"
        return ""

    def _keeps(self, name: str, value_s: float) -> bool:
        tiers = self._world.rules.tiers
        if name == "ttft":
            looser = tuple(msgspec.structs.replace(tier, ttft_s=max(tier.ttft_s, value_s)) for tier in tiers)
        else:
            looser = tuple(msgspec.structs.replace(tier, itl_s=max(tier.itl_s, value_s)) for tier in tiers)
        world = msgspec.structs.replace(self._world, rules=msgspec.structs.replace(self._world.rules, tiers=looser))
        return kept(self._run(world), world) >= world.promise_attainment

    def _run(self, world: Scenario) -> RunResult:
        some = resampled(self._make_arrivals(), self._share, np.random.default_rng(world.seed))
        return play(world, Static(self._replicas), some, name="idle", fleet=FastFleet, cpu_clock=self._cpu_clock)
