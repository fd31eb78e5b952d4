"""Named worlds for the live policy over the fast fleet: what goes wrong, and what must then not."""

import msgspec
import numpy as np
import pytest
from plain_fleet import PlainFleet

from forebay.demand.arrays import Arrivals
from forebay.engine.catalogue import PROFILES
from forebay.scaling.capacity import pool_capacity
from forebay.scaling.policy import QueueFirst
from forebay.simulation.fast import FastFleet
from forebay.simulation.faults import KINDS
from forebay.simulation.lab import play
from forebay.simulation.lab_scenario import scenario_from
from forebay.simulation.scripted import Scripted, Static
from forebay.simulation.values import Actuator, ColdStartModel, MetricFault, Outage, Queueing, Shortage
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Pool, Scaling

pytestmark = pytest.mark.timeout(900)
"""The first test may have to compile the kernel."""

PROMPT, OUTPUT = 1000, 200
HOUR_S = 3600.0


def pool(**scaling):
    settings = {
        "min_replicas": 1,
        "max_replicas": 20,
        "interval_s": 15.0,
        "prompt_tokens": PROMPT,
        "output_tokens": OUTPUT,
        "starts_max": 20,
        "cold_start_s": 90.0,
        "in_calm_s": 120.0,
        **scaling,
    }
    return Pool("chat", "llama", EngineKind("emulated"), profile=PROFILES["llama-3.1-70b-fp8-1xh200"], scaling=Scaling(**settings))


POOL = pool()
REPLICA_PER_S = pool_capacity(POOL).rate_per_s


def forebay(of=POOL):
    return QueueFirst(of.scaling, pool_capacity(of), (), of.name, of.slo)


def world(of=POOL, duration_s=HOUR_S / 2, **changes):
    return msgspec.structs.replace(scenario_from(of, DEFAULT_TIERS, duration_s=duration_s), **changes)


def poisson(*pieces, seed=1, tier=0):
    """Arrivals at each (until_s, replicas' worth) in turn."""
    chance = np.random.default_rng(seed)
    begin_s, times = 0.0, []
    for until_s, worth in pieces:
        count = chance.poisson(worth * REPLICA_PER_S * (until_s - begin_s))
        times.append(np.sort(chance.uniform(begin_s, until_s, count)))
        begin_s = until_s
    at_s = np.concatenate(times)
    count = len(at_s)
    prompts = np.maximum(1, chance.gamma(2.0, PROMPT / 2.0, count)).astype(np.int32)
    outputs = np.maximum(1, chance.gamma(2.0, OUTPUT / 2.0, count)).astype(np.int32)
    yield Arrivals(at_s, prompts, outputs, np.full(count, tier, np.int16), np.full(count, -1, np.int64), np.zeros(count, np.int32))


def played(it, policy, arrivals, **more):
    made = []

    def fleet(rules, source):
        made.append(FastFleet(rules, source))
        return made[0]

    result = play(it, policy, arrivals, name="forebay", fleet=fleet, cpu_clock=lambda: 0.0, pool=POOL.name, **more)
    made[0].check()
    for tier in result.tiers.values():
        totals = tier.totals
        ended = totals.completed + totals.shed + totals.cut
        assert ended == totals.arrived or (ended < totals.arrived and result.notes), "nothing is lost, nothing doubled"
    return result


def top(result):
    return result.tiers["interactive"]


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """The first call compiles."""
    played(world(duration_s=60.0), Static(1), poisson((60.0, 0.1)))


def test_two_of_six_crash_and_the_fleet_is_whole_again():
    world_ = world(initial_replicas=6, outages=(Outage("crash", 600.0, 2),))
    result = played(world_, forebay(pool(min_replicas=6)), poisson((1800.0, 4.0)))
    ready = [row.ready for row in result.timeline]
    assert min(ready[9:14]) == 4
    assert ready[-1] == 6
    assert min(row.desired for row in result.timeline) == 6
    assert top(result).ttft_attainment > 0.97
    assert top(result).totals.completed + top(result).totals.cut == result.requests, "what had no token yet was served by others"


def cold(**changes):
    return ColdStartModel(20.0, 60e9, 30.0, node_bandwidth_bytes_per_s=1.5e9, **changes)


def full_at(result, replicas):
    return next((row.at_s for row in result.timeline if row.ready >= replicas), float("inf"))


def test_a_storm_of_starts_shares_the_registry_and_peers_relieve_it():
    def storm(cold_start):
        it = world(initial_replicas=2, cold_start=cold_start, duration_s=1500.0)
        return played(it, Scripted([(0.0, 2), (60.0, 10)]), poisson((1500.0, 3.0)))

    cache, registry, peers = (
        storm(cold()),
        storm(cold(shared_bandwidth_bytes_per_s=1.5e9)),
        storm(cold(shared_bandwidth_bytes_per_s=1.5e9, peer_to_peer=True)),
    )
    assert full_at(cache, 10) < full_at(peers, 10) < full_at(registry, 10)
    paid = [result.gpu_hours_by_state["starting"] for result in (cache, peers, registry)]
    assert paid == sorted(paid), "a slow start is paid for"
    assert top(registry).ttft_attainment < top(peers).ttft_attainment <= top(cache).ttft_attainment


def test_an_exhausted_pool_makes_starts_overdue_and_tells():
    it = world(initial_replicas=3, shortages=(Shortage(0.0, HOUR_S, 3),))
    result = played(it, forebay(), poisson((300.0, 2.0), (1800.0, 5.0)))
    assert result.replicas_peak == 3, "none is paid for that never came"
    assert max(row.desired for row in result.timeline) >= 5
    assert max(row.starting for row in result.timeline) >= 2
    assert {"pool_exhausted", "pending_too_long"} <= set(result.alerts)
    assert 300.0 < result.first_alert_s["pool_exhausted"] < 900.0
    assert "slo_breach" in result.alerts


FROM_S, UNTIL_S = 300.0, 900.0


def at_peak(**changes):
    return played(world(initial_replicas=6, duration_s=1200.0, **changes), forebay(), poisson((1200.0, 4.0)))


@pytest.fixture(scope="module")
def sound(compiled):
    """The same seed without an outage."""
    return at_peak()


@pytest.mark.parametrize("kind", KINDS)
def test_a_metrics_outage_at_peak_holds_what_is_wanted_and_tells(kind, sound):
    ill = at_peak(metric_faults=(MetricFault(kind, FROM_S, UNTIL_S),))
    held = [row.desired for row in ill.timeline if FROM_S + 60.0 <= row.at_s <= UNTIL_S]
    assert held == sorted(held), "never fewer"
    # A frozen page takes half a minute to give itself away: that is part of the two minutes.
    assert ill.first_alert_s["signals_unknown"] <= FROM_S + 120.0
    assert top(ill).both_attainment >= top(sound).both_attainment - 0.002


def test_load_that_falls_is_followed_by_drains_that_cut_nothing():
    result = played(world(initial_replicas=6, duration_s=2400.0), forebay(), poisson((300.0, 4.0), (2400.0, 1.2)))
    assert result.timeline[-1].ready <= 4
    assert result.gpu_hours_by_state["draining"] > 0
    assert top(result).totals.cut == 0
    assert top(result).totals.completed == result.requests


def test_a_reclaim_with_notice_cuts_nothing_that_ends_in_time():
    it = world(initial_replicas=5, outages=(Outage("reclaim", 600.0, 2, notice_s=120.0),))
    result = played(it, forebay(pool(min_replicas=5)), poisson((1800.0, 2.0)))
    assert top(result).totals.cut == 0
    assert result.timeline[-1].ready == 5


def test_the_same_seed_gives_the_same_bytes_whatever_befalls():
    it = world(
        initial_replicas=4,
        duration_s=900.0,
        crashes_per_replica_day=100.0,
        cold_start=cold(cv=0.3, shared_bandwidth_bytes_per_s=3e9),
        metric_faults=(MetricFault("error", 300.0, 500.0, 0.5),),
        outages=(Outage("reclaim", 200.0, 0.5, 20.0),),
    )
    first, again = (msgspec.json.encode(played(it, forebay(), poisson((900.0, 3.0)))) for _ in range(2))
    other = msgspec.json.encode(played(msgspec.structs.replace(it, seed=5), forebay(), poisson((900.0, 3.0))))
    assert first == again != other


@pytest.mark.parametrize("queueing", list(Queueing))
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_in_a_world_of_troubles(seed, queueing):
    base = world(duration_s=900.0)
    it = msgspec.structs.replace(
        base,
        rules=msgspec.structs.replace(base.rules, queueing=queueing),
        seed=seed,
        initial_replicas=3,
        drain_s_max=40.0,
        crashes_per_replica_day=300.0,
        cold_start=cold(cv=0.5, shared_bandwidth_bytes_per_s=2e9, starts_max=2),
        outages=(Outage("crash", 100.0, 0.5), Outage("reclaim", 300.0, 2, 5.0), Outage("reclaim", 500.0, 1)),
        shortages=(Shortage(200.0, 600.0, 3),),
        actuator=Actuator("hpa") if seed % 2 else Actuator(),
    )
    script = Scripted([(0.0, 3), (150.0, 6), (400.0, 2), (430.0, 5), (700.0, 1)])
    result = played(it, script, poisson((900.0, 2.5), seed=seed))
    assert top(result).totals.cut + top(result).totals.retried > 0
    assert sum(result.gpu_hours_by_state.values()) == pytest.approx(result.gpu_hours)


def test_the_plain_fleet_judges_the_fast_one_under_the_driver_too():
    base = world(duration_s=300.0)
    it = msgspec.structs.replace(
        base,
        rules=msgspec.structs.replace(base.rules, tiers=base.rules.tiers[:2]),
        initial_replicas=2,
        crashes_per_replica_day=300.0,
        cold_start=cold(cv=0.3),
        outages=(Outage("crash", 60.0, 1), Outage("reclaim", 150.0, 1, 20.0)),
    )

    def by(fleet):
        script = Scripted([(0.0, 2), (30.0, 3), (200.0, 1)])
        return play(it, script, poisson((300.0, 1.0)), name="it", fleet=fleet, cpu_clock=lambda: 0.0)

    fast, plain = by(FastFleet), by(PlainFleet)
    assert top(fast).totals == top(plain).totals
    assert fast.gpu_hours_by_state == plain.gpu_hours_by_state
    assert [row.lanes_waiting for row in fast.timeline] == [row.lanes_waiting for row in plain.timeline]
    assert top(fast).totals.cut > 0


def test_behind_an_hpa_a_change_by_one_of_twenty_is_swallowed():
    it = world(initial_replicas=18, duration_s=600.0, actuator=Actuator("hpa"))
    steps = [(0.0, 18), (120.0, 19)]
    behind = played(it, Scripted(steps), poisson((600.0, 2.0)))
    direct = played(msgspec.structs.replace(it, actuator=Actuator()), Scripted(steps), poisson((600.0, 2.0)))
    assert (behind.timeline[-1].desired, direct.timeline[-1].desired) == (18, 19)


def test_a_sleeping_fleet_is_woken_by_the_first_request_which_is_held():
    sleepy = pool(min_replicas=0, cold_start_s=60.0)
    base = world(sleepy, duration_s=900.0, initial_replicas=0)
    patient = tuple(msgspec.structs.replace(tier, longest_wait_s=300.0) for tier in base.rules.tiers)
    it = msgspec.structs.replace(base, rules=msgspec.structs.replace(base.rules, tiers=patient))
    policy = QueueFirst(sleepy.scaling, pool_capacity(sleepy), (), sleepy.name, sleepy.slo, wake_s=300.0)
    result = played(it, policy, poisson((300.0, 0.0), (320.0, 0.05)))
    assert result.requests > 0
    assert top(result).totals.completed == result.requests
    assert [row.ready for row in result.timeline[:5]] == [0] * 5
    assert max(row.ready for row in result.timeline) == 1
    assert result.gpu_hours < 600.0 / HOUR_S
