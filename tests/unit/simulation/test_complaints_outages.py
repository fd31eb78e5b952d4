"""Complaints 1, 2, 13 and 14: an outage read as idle, a number in place of what was wanted, a renamed metric, and the trap at zero."""

import msgspec
import pytest
from complaint_worlds import apa, between, keda, rival
from test_scenarios import POOL, compiled, forebay, played, poisson, pool, top, world  # noqa: F401 (an autouse fixture)

from forebay.scaling.capacity import pool_capacity
from forebay.scaling.policy import QueueFirst
from forebay.simulation.values import MetricFault

pytestmark = pytest.mark.timeout(900)
"""The first test may have to compile the kernel."""

FROM_S, UNTIL_S, END_S = 600.0, 1800.0, 2400.0
"""Twenty minutes."""
REPLICAS, WORTH = 6, 4.0


def steady(policy, *faults, **changes):
    it = world(initial_replicas=REPLICAS, duration_s=END_S, metric_faults=faults, **changes)
    return played(it, policy, poisson((END_S, WORTH)))


@pytest.fixture(scope="module")
def sound(compiled):  # noqa: F811
    """Each policy in the same world without an outage."""
    return {"ray": steady(rival("ray", POOL)), "keda": steady(keda(POOL)), "apa": steady(apa(POOL)), "forebay": steady(forebay())}


def fewest(result):
    return min(row.desired for row in between(result, FROM_S + 60.0, UNTIL_S))


def assert_held(ill, sound):
    """Nothing is let go while nothing is known, a person is told within two minutes, and nobody's answer suffers."""
    held = [row.desired for row in between(ill, FROM_S + 60.0, UNTIL_S)]
    assert held == sorted(held)
    assert held[0] >= REPLICAS
    assert ill.first_alert_s["signals_unknown"] <= FROM_S + 120.0
    assert top(ill).both_attainment >= top(sound).both_attainment - 0.002


@pytest.mark.parametrize("kind", ["error", "empty", "nan"])
def test_complaint_1_an_outage_is_not_idleness(kind, sound):
    outage = MetricFault(kind, FROM_S, UNTIL_S)
    ray = steady(rival("ray", POOL), outage)
    assert fewest(ray) == 1
    assert top(ray).both_attainment < top(sound["ray"]).both_attainment - 0.2
    if kind != "error":
        with_keda = steady(keda(POOL), outage)
        assert fewest(with_keda) == 1
        assert top(with_keda).both_attainment < top(sound["keda"]).both_attainment - 0.2
    assert_held(steady(forebay(), outage), sound["forebay"])


def test_complaint_2_what_was_wanted_stands_and_still_comes():
    """The metrics go a minute after load doubled: what was asked for is not taken back, and nothing is made up in its place."""
    outage = MetricFault("error", 330.0, 1500.0)

    def after_a_step(policy):
        it = world(initial_replicas=3, duration_s=END_S, metric_faults=(outage,))
        return played(it, policy, poisson((240.0, 2.0), (END_S, 4.0)))

    ray = after_a_step(rival("ray", POOL))
    assert min(row.desired for row in between(ray, 330.0, 1500.0)) == 1, "the floor of the configuration, in the busiest minutes"
    assert top(ray).ttft_attainment < 0.8
    held = after_a_step(forebay())
    rows = between(held, 360.0, 1500.0)
    assert len({row.desired for row in rows}) == 1
    assert rows[0].ready < rows[0].desired == rows[-1].ready
    assert top(held).ttft_attainment > 0.97


def test_complaint_13_a_renamed_metric_is_missing_and_not_zero(sound):
    renamed = MetricFault("renamed", FROM_S, UNTIL_S)
    with_apa = steady(apa(POOL), renamed)
    assert {row.desired for row in between(with_apa, FROM_S + 420.0, UNTIL_S)} == {1}
    assert top(with_apa).both_attainment < top(sound["apa"]).both_attainment - 0.1
    assert_held(steady(forebay(), renamed), sound["forebay"])


SLEEPY = pool(min_replicas=0, cold_start_s=60.0)


def sleepy(policy, pieces, **changes):
    base = world(SLEEPY, duration_s=1800.0, **changes)
    patient = tuple(msgspec.structs.replace(tier, longest_wait_s=300.0) for tier in base.rules.tiers)
    it = msgspec.structs.replace(base, rules=msgspec.structs.replace(base.rules, tiers=patient))
    return played(it, policy, poisson(*pieces))


def forebay_asleep():
    return QueueFirst(SLEEPY.scaling, pool_capacity(SLEEPY), (), SLEEPY.name, SLEEPY.slo, wake_s=300.0)


@pytest.mark.parametrize("name", ["hpa-queue", "aibrix-apa", "dynamo-sla"])
def test_complaint_14_the_first_request_wakes_a_pool_at_zero(name):
    burst = ((300.0, 0.0), (600.0, 0.3), (1800.0, 0.0))
    asleep = sleepy(rival(name, SLEEPY), burst, initial_replicas=0)
    assert top(asleep).totals.shed == asleep.requests > 0, "at zero there is no series, and nothing ever wakes"
    woken = sleepy(forebay_asleep(), burst, initial_replicas=0)
    assert top(woken).totals.completed == woken.requests
    assert next(row.at_s for row in woken.timeline if row.ready) <= 300.0 + 60.0 + 60.0
    assert woken.timeline[-1].desired == 0, "too few samples for a percentile, all night long, are no reason to stay awake"


@pytest.mark.parametrize("kind", ["error", "empty", "nan"])
def test_complaint_14_an_outage_never_puts_a_busy_pool_to_sleep(kind):
    outage = MetricFault(kind, 200.0, 1400.0)
    load = ((1800.0, 1.2),)
    gone = sleepy(rival("keda-queue-running", SLEEPY), load, initial_replicas=2, metric_faults=(outage,))
    assert min(row.ready for row in between(gone, 600.0, 1400.0)) == 0
    assert top(gone).totals.shed > gone.requests / 4
    held = sleepy(forebay_asleep(), load, initial_replicas=2, metric_faults=(outage,))
    assert {row.ready for row in between(held, 60.0, 1400.0)} == {2}
    assert top(held).totals.completed == held.requests
