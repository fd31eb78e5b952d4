"""What one replica serves within its promises, measured: a fixed fleet is played at one rate after another, with the lengths that come.

The formula (`engine.capacity.at_slo`) keeps the *mean* pace; a promise to 99 of 100 requests on first token and pace both takes
less of a replica, by how lengths and arrivals vary. A few seconds of simulation find how much.
"""

import functools
import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from forebay.app.traces import DEFAULT_CV
from forebay.demand import intensity, synthesis
from forebay.demand.arrays import ArrivalSource
from forebay.demand.lengths import LengthSampler
from forebay.domain.errors import BadInput
from forebay.engine.capacity import at_slo
from forebay.simulation.fast import FastFleet
from forebay.simulation.lab import play
from forebay.simulation.lab_scenario import scenario_from
from forebay.simulation.scripted import Static
from forebay.simulation.tune import kept
from forebay.simulation.values import Scenario
from forebay.spec.types import Pool, Tier

SPAN_S = 900.0
"""Of one play."""
REPLICAS_MAX = 16
"""A larger fleet shares its bursts no better."""
BOUNDS = (0.05, 1.35)
"""The rate is looked for between these multiples of the formula's."""
HALVINGS = 7
"""They find it to 1 % of the formula's."""


DRAWN = 20_000
"""Lengths whose means the formula is given."""


class ReplicaRate(msgspec.Struct, frozen=True):
    """Requests per second of one replica."""

    measured_per_s: float
    """The highest at which the promise is kept; 0 where not even the lowest that is tried keeps it."""
    formula_per_s: float
    """At the mean ITL, for the same mean lengths."""
    replicas: int
    """Of the fleet that was played."""
    prompt_tokens: int
    output_tokens: int
    """Mean lengths."""
    cv: float = DEFAULT_CV
    """Variation of the gaps between the arrivals that were played."""


def measured(
    pool: Pool, tiers: Sequence[Tier], lengths: LengthSampler, replicas: int, cpu_clock: Callable[[], float], cv: float = DEFAULT_CV
) -> ReplicaRate | None:
    """The rate for ``lengths``, on a fleet of ``replicas`` (at most `REPLICAS_MAX` are played); None where the formula finds none.

    ``cv``: variation of the gaps between arrivals. Raises BadInput for a pool without a profile.
    """
    profile = pool.profile
    if profile is None:
        raise BadInput(f"pools.{pool.name}: found no profile, allowed: one; without it nothing says how fast its engines are")
    prompt, output = _means(lengths, profile.context_tokens)
    formula = at_slo(profile, prompt, output, pool.slo.ttft_s, pool.slo.itl_s).requests_per_s
    if not formula:
        return None
    count = max(1, min(replicas, REPLICAS_MAX))
    # Its gateway's budgets are those of the lengths that come.
    bounds = msgspec.structs.replace(
        pool.scaling, min_replicas=1, max_replicas=max(count, pool.scaling.max_replicas), prompt_tokens=prompt, output_tokens=output
    )
    world = scenario_from(msgspec.structs.replace(pool, scaling=bounds), tiers, duration_s=SPAN_S, initial_replicas=count)
    world = msgspec.structs.replace(world, timeline_s=max(1.0, SPAN_S))
    holds = functools.partial(_holds, world, lengths, count, cv, cpu_clock)
    low, high = (bound * formula for bound in BOUNDS)
    if not holds(low):
        return ReplicaRate(0.0, formula, count, prompt, output, cv)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return ReplicaRate(_short(low), formula, count, prompt, output, cv)


def _holds(world: Scenario, lengths: LengthSampler, replicas: int, cv: float, cpu_clock: Callable[[], float], rate_per_s: float) -> bool:
    chance = np.random.default_rng(world.seed)
    rates = intensity.level(np.full(1, replicas * rate_per_s), SPAN_S)
    times = synthesis.times(rates, cv, chance)
    weights = synthesis.tier_weights([tier.name for tier in world.rules.tiers], None)
    arrivals: ArrivalSource = synthesis.tiered(synthesis.requests(times, lengths, chance), weights, chance)
    run = play(world, Static(replicas), arrivals, name="static", fleet=FastFleet, cpu_clock=cpu_clock)
    return kept(run, world) >= world.promise_attainment


def _means(lengths: LengthSampler, context_tokens: int) -> tuple[int, int]:
    prompts, outputs = lengths.draw(DRAWN, np.random.default_rng(0))
    prompt = max(1, min(round(float(prompts.mean())), context_tokens - 1))
    return prompt, max(1, min(round(float(outputs.mean())), context_tokens - prompt))


def _short(rate_per_s: float) -> float:
    """Rounded down to three digits: more of them would claim what a play can't know."""
    unit = 10.0 ** (math.floor(math.log10(rate_per_s)) - 2)
    return math.floor(rate_per_s / unit) * unit
