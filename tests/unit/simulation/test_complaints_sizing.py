"""Complaints 7, 8 and 10 to 12: a count that swings, a cascade while pods load, no lead, a queue nobody sees, a pod that never comes."""

import pytest
from complaint_worlds import apa, between, rival
from test_scenarios import (  # noqa: F401 (an autouse fixture)
    HOUR_S,
    POOL,
    REPLICA_PER_S,
    compiled,
    forebay,
    played,
    poisson,
    pool,
    top,
    world,
)

from forebay.scaling.capacity import pool_capacity
from forebay.simulation.values import Queueing, Shortage

pytestmark = pytest.mark.timeout(900)
"""The first test may have to compile the kernel."""

COLD = pool(cold_start_s=360.0)


@pytest.mark.parametrize("name", ["hpa-queue", "wva-v1", "kpa"])
def test_complaint_7_a_load_between_one_and_two_does_not_swing(name):
    """One replica fewer would not hold: that is asked before the step, not found out after it."""

    def steady(policy):
        it = world(initial_replicas=2, duration_s=HOUR_S)
        return played(it, policy, poisson((HOUR_S, 1.25)))

    swinging = steady(rival(name, POOL))
    assert swinging.reversals >= 10
    assert top(swinging).both_attainment < 0.95
    still = steady(forebay())
    assert still.reversals == 0
    assert still.scale_actions <= 1
    assert top(still).both_attainment > 0.99


@pytest.mark.parametrize("name", ["hpa-queue", "aibrix-apa", "kthena"])
def test_complaint_8_what_loads_already_is_not_asked_for_again(name):
    """Load doubles once, a start takes six minutes, and the queue stands for as long."""

    def doubled(policy):
        it = world(COLD, initial_replicas=3, duration_s=2400.0)
        return played(it, policy, poisson((600.0, 2.0), (2400.0, 4.0)))

    law = apa(COLD, fixed=True) if name == "aibrix-apa" else rival(name, COLD)
    cascade = doubled(law)
    assert cascade.replicas_peak == COLD.scaling.max_replicas
    counted = doubled(forebay(COLD))
    assert counted.replicas_peak <= 9
    assert counted.starts == counted.replicas_peak - 3, "none was started in vain"
    assert counted.reversals == 0


def morning(policy, of, per_minute):
    """From two replicas' worth to eight, at a rise of ``per_minute`` of one each minute, after ten minutes."""
    rise_s = 6.0 / per_minute * 60.0
    pieces = [(600.0, 2.0)]
    pieces += [(600.0 + at_s, 2.0 + 6.0 * (at_s - 15.0) / rise_s) for at_s in range(30, int(rise_s) + 1, 30)]
    end_s = 600.0 + rise_s + 600.0
    it = world(of, initial_replicas=3, duration_s=end_s)
    return played(it, policy, poisson(*pieces, (end_s, 8.0)))


@pytest.mark.parametrize("name", ["hpa-queue", "dynamo-sla", "wva-v2", "kpa"])
def test_complaint_10_replicas_are_asked_for_a_cold_start_ahead(name):
    """A rise whose steepness is declared: with the measured length of a start it is a number of replicas."""
    steep = 0.25
    knowing = pool(cold_start_s=360.0, ramp_per_s2=steep * REPLICA_PER_S / 60.0)
    late = morning(rival(name, knowing), knowing, steep)
    assert top(late).both_attainment < 0.85
    ahead = morning(forebay(knowing), knowing, steep)
    assert top(ahead).both_attainment > 0.97
    ready_of = {row.at_s: row.ready for row in ahead.timeline}
    worth_at = {at_s: 2.0 + 6.0 * (at_s - 600.0) / 1440.0 for at_s in range(900, 1980, 60)}
    assert all(ready_of[at_s] >= worth for at_s, worth in worth_at.items()), "there before the load is"


def test_complaint_10_the_lead_is_as_long_as_the_start():
    quick, slow = (pool(cold_start_s=cold_s, ramp_per_s2=0.25 * REPLICA_PER_S / 60.0) for cold_s in (60.0, 720.0))
    mornings = [morning(forebay(of), of, 0.25) for of in (quick, slow)]
    early = [next(row.desired for row in each.timeline if row.at_s == 660.0) for each in mornings]
    assert early[1] - early[0] >= 2, "of the same rise, eleven minutes more have to be held"
    assert all(top(each).both_attainment > 0.96 for each in mornings)


def test_complaint_11_a_queue_at_the_gateway_is_seen():
    """A law that reads engines alone is blind to what waits in front of them."""

    def tripled(policy):
        it = world(initial_replicas=3, duration_s=HOUR_S / 2)
        assert it.rules.queueing is Queueing.GATEWAY
        return played(it, policy, poisson((300.0, 2.0), (HOUR_S / 2, 5.0)))

    blind = tripled(rival("aibrix-apa-fixed", POOL))
    rows = between(blind, 600.0, HOUR_S / 2)
    assert min(row.lanes_waiting for row in rows) > 300
    assert max(row.engines_waiting for row in rows) < 10
    assert {row.desired for row in rows} == {1}
    seeing = tripled(forebay())
    assert max(row.engines_waiting for row in seeing.timeline) < 10
    assert seeing.timeline[-1].ready >= 5
    assert max(row.lanes_waiting for row in between(seeing, 900.0, HOUR_S / 2)) < 20


@pytest.mark.parametrize("name", ["dynamo-sla", "wva-v1"])
def test_complaint_12_a_pod_that_never_schedules_blocks_nothing(name):
    """Three nodes are all there is. Load wants more, and later far less: what is wanted too much is let go all the same."""

    def exhausted(policy):
        it = world(initial_replicas=3, duration_s=HOUR_S, shortages=(Shortage(0.0, HOUR_S, 3),))
        return played(it, policy, poisson((300.0, 2.0), (900.0, 5.0), (HOUR_S, 0.6)))

    frozen = exhausted(rival(name, POOL))
    assert {row.ready for row in between(frozen, 1800.0, HOUR_S)} == {3}
    assert frozen.alerts == {}
    moving = exhausted(forebay())
    assert moving.timeline[-1].ready == 1
    assert {"pool_exhausted", "pending_too_long"} <= set(moving.alerts)
    assert moving.replicas_peak == 3
    assert moving.gpu_hours < 0.7 * frozen.gpu_hours


def test_the_capacity_behind_these_worlds():
    """Worths are of what one replica serves: the worlds above are sized by it."""
    assert pool_capacity(COLD).rate_per_s == pytest.approx(REPLICA_PER_S)
    assert 3.0 < REPLICA_PER_S < 5.0
