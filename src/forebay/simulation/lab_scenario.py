"""From a pool that a user declared to the world that its policy is played in. Nothing is guessed: what a spec can't say is a parameter.

The pool has one inter-token promise (its sequences decode in lockstep), so every tier gets ``slo.itl_s``. The pool's
TTFT is the most important tier's, which is what its capacity is computed for; the other tiers keep their own.
"""

import math
from collections.abc import Iterator, Sequence

import msgspec

from forebay.domain.errors import BadInput
from forebay.domain.profile import Profile
from forebay.engine.capacity import at_slo, roster_capacity
from forebay.simulation.actuators import PERIOD_S, TOLERANCE_MAX, WINDOW_S_MAX
from forebay.simulation.values import Actuator, ColdStartModel, FleetRules, Scenario, TierRules
from forebay.spec.types import Pool, Tier

INTERVAL_S_MIN = 1.0
"""The live loop's own pace."""
SCRAPE_DELAY_S_MAX = 900.0
"""Snapshots that are not old enough to be seen are kept, a second apart at most."""


def scenario_from(
    pool: Pool,
    tiers: Sequence[Tier],
    *,
    duration_s: float,
    start_wall_s: float = 0.0,
    initial_replicas: int | None = None,
    cold_start_s: float | None = None,
    seed: int = 0,
) -> Scenario:
    """``pool`` for ``duration_s``, beginning with ``initial_replicas`` (default: its minimum, at least one).

    ``cold_start_s``: the total of an unshared start, its stages in the profile's proportions; default: the pool's
    ``scaling.cold_start_s``, else the profile's own. Everything else (faults, actuator, shared bandwidth, ways of
    queueing) has a default that `msgspec.structs.replace` changes. Raises BadInput for a pool without a profile, or one
    whose promises no rate keeps: it names the limit that binds.
    """
    profile = pool.profile
    if profile is None:
        raise BadInput(f"pool {pool.name}: it has no profile, so nothing says how fast its engines are; add `profile:` to simulate it")
    scaling, slo = pool.scaling, pool.slo
    state = at_slo(profile, scaling.prompt_tokens, scaling.output_tokens, slo.ttft_s, slo.itl_s)
    if not state.requests_per_s:
        raise BadInput(f"pool {pool.name}: no number of replicas keeps its promises ({state.binding.value} binds). {state.because}")
    total_s = scaling.cold_start_s if cold_start_s is None else cold_start_s
    rules = FleetRules(
        profile=profile,
        capacity=roster_capacity(profile, slo.ttft_s, slo.itl_s, scaling.prompt_tokens, scaling.output_tokens),
        tiers=tier_rules(pool, tiers),
        queued_max=pool.queued_max,
        seed=seed,
    )
    return Scenario(
        rules=rules,
        cold_start=cold_start_model(profile, total_s, scaling.starts_max),
        duration_s=duration_s,
        start_wall_s=start_wall_s,
        interval_s=scaling.interval_s,
        initial_replicas=max(1, scaling.min_replicas) if initial_replicas is None else initial_replicas,
        min_replicas=scaling.min_replicas,
        max_replicas=scaling.max_replicas,
        drain_s_max=scaling.drain_s_max,
        promise_attainment=slo.attainment,
        gpu_hour_usd=profile.gpu_hour_usd,
        seed=seed,
        warm_max=scaling.warm_max,
        warm_share=scaling.warm_share,
    )


def tier_rules(pool: Pool, tiers: Sequence[Tier]) -> tuple[TierRules, ...]:
    """The tiers as ``pool`` keeps them, most important first. Raises BadInput where there is none."""
    if not tiers:
        raise BadInput("tiers: found none; at least one is needed to say what is promised")
    ranked = sorted(tiers, key=lambda tier: tier.rank)
    rules = [TierRules(tier.name, tier.ttft_s, pool.slo.itl_s, tier.longest_wait_s, tier.preemptible) for tier in ranked]
    return (msgspec.structs.replace(rules[0], ttft_s=pool.slo.ttft_s), *rules[1:])


def cold_start_model(profile: Profile, total_s: float | None = None, starts_max: int | None = None) -> ColdStartModel:
    """The profile's stages, stretched so that an unshared start takes ``total_s`` (None: as they are).

    A profile whose stages take no time has nothing to stretch: then all of ``total_s`` is one stage.
    """
    stages = profile.cold_start
    own_s = stages.total_s
    if total_s is None:
        total_s = own_s
    if total_s <= 0 or own_s <= 0:
        return ColdStartModel(provision_s=0.0, weights_bytes=0.0, init_s=max(0.0, total_s), starts_max=starts_max)
    stretch = total_s / own_s
    return ColdStartModel(
        provision_s=stages.provision_s * stretch,
        weights_bytes=stages.weights_bytes,
        init_s=stages.init_s * stretch,
        node_bandwidth_bytes_per_s=stages.weights_bandwidth_bytes_per_s / stretch,
        starts_max=starts_max,
    )


def check_scenario(scenario: Scenario) -> None:
    """Raises BadInput for a world that can't be played, naming what is wrong with it."""
    most = scenario.rules.replicas_max
    numbers: tuple[tuple[str, float, bool, str], ...] = (
        ("duration_s", scenario.duration_s, 0 < scenario.duration_s < math.inf, "more than 0"),
        ("interval_s", scenario.interval_s, scenario.interval_s >= INTERVAL_S_MIN, f"{INTERVAL_S_MIN:g} or more"),
        ("timeline_s", scenario.timeline_s, scenario.timeline_s >= INTERVAL_S_MIN, f"{INTERVAL_S_MIN:g} or more"),
        ("history_bucket_s", scenario.history_bucket_s, scenario.history_bucket_s >= INTERVAL_S_MIN, f"{INTERVAL_S_MIN:g} or more"),
        ("scrape_delay_s", scenario.scrape_delay_s, 0 <= scenario.scrape_delay_s <= SCRAPE_DELAY_S_MAX, f"0 to {SCRAPE_DELAY_S_MAX:g}"),
        ("drain_s_max", scenario.drain_s_max, 0 <= scenario.drain_s_max < math.inf, "0 or more"),
        ("warm_max", scenario.warm_max, 0 <= scenario.warm_max <= most, f"0 to the fleet's {most}"),
        ("warm_share", scenario.warm_share, 0 <= scenario.warm_share <= 1, "0 to 1"),
        ("crashes_per_replica_day", scenario.crashes_per_replica_day, scenario.crashes_per_replica_day >= 0, "0 or more"),
        ("min_replicas", scenario.min_replicas, 0 <= scenario.min_replicas <= scenario.max_replicas, "0 to max_replicas"),
        ("max_replicas", scenario.max_replicas, scenario.max_replicas <= most, f"up to the fleet's {most}"),
        ("initial_replicas", scenario.initial_replicas, 0 <= scenario.initial_replicas <= most, f"0 to the fleet's {most}"),
        ("cold_start.node_bandwidth_bytes_per_s", *_positive(scenario.cold_start.node_bandwidth_bytes_per_s)),
        *_of_actuator(scenario.actuator),
    )
    for name, found, good, allowed in numbers:
        if not good:
            raise BadInput(f"scenario: {name}: found {found:g}; allowed: {allowed}")
    for place, shortage in enumerate(scenario.shortages):
        if shortage.from_s >= shortage.until_s or shortage.replicas_max < 0:
            span = f"{shortage.from_s:g} s to {shortage.until_s:g} s with {shortage.replicas_max} nodes"
            raise BadInput(f"shortage {place + 1}: found {span}; allowed: a span that ends after it begins, with 0 nodes or more")


def _of_actuator(actuator: Actuator) -> Iterator[tuple[str, float, bool, str]]:
    least_s, most_s = PERIOD_S
    for name in ("sync_s", "polling_s"):
        yield f"actuator.{name}", getattr(actuator, name), least_s <= getattr(actuator, name) <= most_s, f"{least_s:g} to {most_s:g}"
    for name in ("up_stabilisation_s", "down_stabilisation_s"):
        yield f"actuator.{name}", getattr(actuator, name), 0 <= getattr(actuator, name) <= WINDOW_S_MAX, f"0 to {WINDOW_S_MAX:g}"
    yield "actuator.tolerance", actuator.tolerance, 0 <= actuator.tolerance <= TOLERANCE_MAX, f"0 to {TOLERANCE_MAX:g}"
    yield "actuator.cooldown_s", actuator.cooldown_s, 0 <= actuator.cooldown_s < math.inf, "0 or more"


def _positive(value: float) -> tuple[float, bool, str]:
    return value, value > 0, "more than 0"
