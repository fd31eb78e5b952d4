"""From a pool's declaration to a world: promises, cold starts, and what can't be simulated is said."""

import msgspec
import pytest

from forebay.domain.errors import BadInput
from forebay.engine.capacity import roster_capacity
from forebay.engine.catalogue import PROFILES
from forebay.scaling.capacity import pool_capacity
from forebay.simulation.lab_scenario import check_scenario, cold_start_model, scenario_from, tier_rules
from forebay.simulation.values import Actuator, Shortage
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Pool, Scaling, Slo

PROFILE = PROFILES["llama-3.1-70b-fp8-1xh200"]


def pool(**changes):
    settings = {"scaling": Scaling(min_replicas=2, max_replicas=30, interval_s=10.0, starts_max=5, drain_s_max=300.0), **changes}
    return Pool("chat", "llama", EngineKind("emulated"), **{"profile": PROFILE, **settings})


def test_a_pool_becomes_a_world():
    world = scenario_from(pool(slo=Slo(0.8, 0.04, 0.98)), DEFAULT_TIERS, duration_s=60.0, start_wall_s=5.0, seed=3)
    assert (world.interval_s, world.min_replicas, world.max_replicas, world.initial_replicas) == (10.0, 2, 30, 2)
    assert (world.drain_s_max, world.promise_attainment, world.gpu_hour_usd) == (300.0, 0.98, PROFILE.gpu_hour_usd)
    assert (world.duration_s, world.start_wall_s, world.seed, world.rules.seed) == (60.0, 5.0, 3, 3)
    assert world.rules.capacity == roster_capacity(PROFILE, 0.8, 0.04, 1000, 200)
    assert world.rules.queued_max == pool().queued_max
    assert world.cold_start.starts_max == 5


def test_the_top_tier_takes_the_pool_s_ttft_and_all_its_itl():
    rules = tier_rules(pool(slo=Slo(0.8, 0.04)), list(reversed(DEFAULT_TIERS)))
    assert [tier.name for tier in rules] == ["interactive", "standard", "batch"]
    assert [tier.ttft_s for tier in rules] == [0.8, 5.0, 3600.0]
    assert {tier.itl_s for tier in rules} == {0.04}
    assert [tier.preemptible for tier in rules] == [False, False, True]


def test_a_cold_start_is_the_profile_s_or_stretched_to_the_total_given():
    own = cold_start_model(PROFILE)
    assert own.unshared_s == pytest.approx(PROFILE.cold_start.total_s)
    short = cold_start_model(PROFILE, 90.0)
    assert short.unshared_s == pytest.approx(90.0)
    assert short.provision_s / short.init_s == pytest.approx(own.provision_s / own.init_s)
    assert short.weights_bytes == own.weights_bytes
    assert cold_start_model(PROFILE, 0.0).unshared_s == 0.0
    instant = msgspec.structs.replace(PROFILE, cold_start=type(PROFILE.cold_start)(0.0, 0.0, 1.0, 0.0))
    assert cold_start_model(instant, 90.0).unshared_s == 90.0


def test_the_world_s_cold_start_is_what_the_policy_assumes():
    declared = pool(scaling=Scaling(cold_start_s=120.0))
    assert scenario_from(declared, DEFAULT_TIERS, duration_s=1.0).cold_start.unshared_s == pytest.approx(120.0)
    assert scenario_from(declared, DEFAULT_TIERS, duration_s=1.0, cold_start_s=90.0).cold_start.unshared_s == pytest.approx(90.0)
    assert scenario_from(pool(), DEFAULT_TIERS, duration_s=1.0).cold_start.unshared_s == pytest.approx(pool_capacity(pool()).cold_start_s)


def test_a_pool_that_can_t_be_simulated_says_why():
    with pytest.raises(BadInput, match="no profile"):
        scenario_from(pool(profile=None), DEFAULT_TIERS, duration_s=1.0)
    with pytest.raises(BadInput, match=r"itl binds.*One sequence alone makes steps"):
        scenario_from(pool(slo=Slo(1.0, 0.001)), DEFAULT_TIERS, duration_s=1.0)
    with pytest.raises(BadInput, match=r"ttft binds.*idle replica needs"):
        scenario_from(pool(slo=Slo(0.001, 0.05)), DEFAULT_TIERS, duration_s=1.0)
    with pytest.raises(BadInput, match="at least one"):
        scenario_from(pool(), (), duration_s=1.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"duration_s": 0.0}, "duration_s: found 0"),
        ({"duration_s": float("nan")}, "duration_s: found nan"),
        ({"interval_s": 0.1}, "interval_s: found 0.1; allowed: 1 or more"),
        ({"timeline_s": 0.0}, "timeline_s"),
        ({"history_bucket_s": -1.0}, "history_bucket_s"),
        ({"scrape_delay_s": 901.0}, "scrape_delay_s: found 901; allowed: 0 to 900"),
        ({"min_replicas": 40}, "min_replicas: found 40"),
        ({"max_replicas": 5000}, "up to the fleet's 4096"),
        ({"initial_replicas": -1}, "initial_replicas: found -1"),
        ({"actuator": Actuator(sync_s=0.0)}, "actuator.sync_s"),
        ({"actuator": Actuator(polling_s=0.5)}, "actuator.polling_s: found 0.5; allowed: 1 to 3600"),
        ({"actuator": Actuator(up_stabilisation_s=-1.0)}, "actuator.up_stabilisation_s: found -1; allowed: 0 to 3600"),
        ({"actuator": Actuator(down_stabilisation_s=3601.0)}, "actuator.down_stabilisation_s"),
        ({"actuator": Actuator(tolerance=1.0)}, "actuator.tolerance: found 1; allowed: 0 to 0.99"),
        ({"actuator": Actuator(cooldown_s=float("nan"))}, "actuator.cooldown_s"),
        ({"shortages": (Shortage(5.0, 1.0, 3),)}, "shortage 1: found 5 s to 1 s with 3 nodes"),
    ],
)
def test_a_world_that_can_t_be_played_is_refused(changes, words):
    world = scenario_from(pool(), DEFAULT_TIERS, duration_s=60.0)
    check_scenario(world)
    with pytest.raises(BadInput) as refused:
        check_scenario(msgspec.structs.replace(world, **changes))
    assert words in str(refused.value)
