"""What waits of preemptible tiers gets replicas where it would expire else. One replica serves 50/min; a start takes 300 s."""

import pytest

from forebay.domain.due import DUE_SLOTS_MAX, Due, gathered, of_slots, slot_of, slot_width_s
from forebay.domain.replica import ReplicaState
from forebay.domain.signal import Unknown
from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.explain import rows


def floor(pool, decision):
    term = pool.term(decision, "deadlines")
    return None if term is None else (term.replicas, round(term.numbers["needed_replicas"], 6))


@pytest.fixture
def full(make_pool):
    """One replica, and interactive work for just that one, seen for so long that no chance is in it."""
    pool = make_pool(buffer=False)
    pool.hold(1800.0, per_min=50)
    return pool


def test_400_due_in_20_minutes_take_half_a_replica_that_serves_for_15_of_them(full):
    """400 ÷ (50/60 per s × 900 s) = 0.533, beside 1."""
    decision = full.at(1810.0, per_min=50, preemptible_due=(Due(1200.0, 400),))
    assert floor(full, decision) == (2, round(1 + 480 / 900, 6))
    assert (decision.replicas, decision.reason) == (2, "deadlines")
    told = next(row for row in rows(decision) if row.binding)
    assert told.because == "400 preemptible requests that wait must have begun in 20m: that takes 0.53 replicas beside 1.00 for the rest"
    assert full.term(decision, "deadlines").numbers == {
        "requests": 400.0,
        "in_s": 1200.0,
        "replica_rate_per_s": pytest.approx(50 / 60),
        "load_replicas": pytest.approx(1.0),
        "needed_replicas": pytest.approx(1 + 480 / 900),
        "cold_start_s": 300.0,
    }


def test_what_interactive_work_leaves_is_taken_first(make_pool):
    """At 40/min 0.2 × 1200 s = 240 of the 480 replica-seconds are there; the other 240 are 0.267 of one that serves for 900 s."""
    pool = make_pool(buffer=False)
    pool.hold(1800.0, per_min=40)
    assert floor(pool, pool.at(1810.0, per_min=40, preemptible_due=(Due(1200.0, 400),))) == (2, round(1 + 240 / 900, 6))
    pool.desired = 1
    assert floor(pool, pool.at(1820.0, per_min=40, preemptible_due=(Due(1200.0, 100),))) == (1, 0.9)
    pool = make_pool(buffer=False)
    pool.hold(1800.0, per_min=20)
    assert floor(pool, pool.at(1810.0, per_min=20, preemptible_due=(Due(1200.0, 400),))) == (1, 0.8)


def test_the_count_stands_while_a_start_loads_and_when_it_serves(full):
    """1600 due in 20 min take 1920 ÷ 900 = 2.13 more. So they do 200 s later, of those under way, and when they serve and 15 min are left."""
    needed = (4, round(1 + 1920 / 900, 6))
    assert floor(full, full.at(1810.0, per_min=50, preemptible_due=(Due(1200.0, 1600),))) == needed
    starts = [full.replica(i, ReplicaState.LOADING, expected_ready_s=2110.0) for i in range(1, 4)]
    decision = full.at(2010.0, per_min=50, ready=1, others=starts, preemptible_due=(Due(1000.0, 1600),))
    assert floor(full, decision) == needed
    assert floor(full, full.at(2110.0, per_min=50, ready=4, preemptible_due=(Due(900.0, 1600),))) == needed
    late = full.at(2112.0, per_min=50, ready=1, others=starts, preemptible_due=(Due(898.0, 1600),))
    assert floor(full, late) == (4, round(1 + 1920 / 898, 6)), "late starts serve any moment: none is asked for in their place"


def test_nothing_is_let_go_while_it_binds_and_then_it_is(full):
    full.at(1810.0, per_min=50, preemptible_due=(Due(36_000.0, 30_000),))
    assert (full.desired, full.hold(3600.0, per_min=1, preemptible_due=(Due(36_000.0, 60_000),)).reason) == (3, "deadlines")
    assert full.hold(3600.0, per_min=1).replicas == 1


@pytest.mark.parametrize(("in_s", "count", "expected"), [(0.0, 400, 1), (299.0, 400, 1), (301.0, 400, 8), (375.0, 400, 8)])
def test_no_start_is_made_that_would_come_too_late_and_no_crowd_at_the_last_moment(full, in_s, count, expected):
    """480 replica-seconds within 1 s would be 480 replicas: no more are started than as if they had 75 s, 6.4 beside 1."""
    decision = full.at(1810.0, per_min=50, preemptible_due=(Due(in_s, count),))
    assert decision.replicas == expected
    if expected == 1:
        assert decision.reason != "deadlines" or "no start would be in time" in full.term(decision, "deadlines").because


def test_the_slot_that_takes_most_decides_and_each_has_what_is_due_before(full):
    """600 by 1500 s: 720 ÷ 1200 = 0.6; the 300 of them by 900 s: 360 ÷ 600 = 0.6 as well; 301 are a little more."""
    dues = (Due(900.0, 301), Due(1500.0, 299))
    term = full.term(full.at(1810.0, per_min=50, preemptible_due=dues), "deadlines")
    assert (term.numbers["in_s"], term.numbers["requests"]) == (900.0, 301.0)
    term = full.term(full.at(1820.0, per_min=50, preemptible_due=(Due(900.0, 299), Due(1500.0, 302))), "deadlines")
    assert (term.numbers["in_s"], term.numbers["requests"]) == (1500.0, 601.0)


def test_a_few_that_are_due_at_night_do_not_hold_a_replica_by_day(full):
    """3000 in 22 h are 0.046 of a replica: there will be room. In ten minutes a single one gets its replica."""
    assert full.term(full.at(1810.0, per_min=50, preemptible_due=(Due(79_200.0, 3000),)), "deadlines") is None
    assert floor(full, full.at(1820.0, per_min=50, preemptible_due=(Due(600.0, 1),)))[0] == 2


def test_spares_are_not_added_and_the_cap_holds(make_pool):
    pool = make_pool(buffer=False, spare_replicas=2, max_replicas=5)
    pool.hold(1800.0, per_min=50)
    decision = pool.at(1810.0, per_min=50, preemptible_due=(Due(1200.0, 400),))
    assert (decision.reason, decision.replicas, floor(pool, decision)[0]) == ("spare", 3, 2)
    assert pool.at(1820.0, per_min=50, preemptible_due=(Due(400.0, 9000),)).reason == "max"


def test_where_nothing_is_due_or_no_rate_is_known_there_is_no_such_term(make_pool, full):
    assert full.term(full.at(1810.0, per_min=50), "deadlines") is None
    blind = make_pool(capacity=PoolCapacity(cold_start_s=300.0))
    assert blind.term(blind.at(0.0, per_min=50, preemptible_due=(Due(600.0, 900),)), "deadlines") is None


def test_a_silent_gateway_lets_nothing_go_that_its_deadlines_hold(full):
    full.at(1810.0, per_min=50, preemptible_due=(Due(36_000.0, 30_000),))
    silent = {"lanes_waiting": Unknown("gateway_lost"), "arrival_per_s": Unknown("gateway_lost")}
    assert full.hold(7200.0, **silent).replicas == 3


def test_deadlines_are_told_in_few_slots_and_never_too_late():
    width_s = slot_width_s(1200.0)
    assert width_s == 100.0
    assert [slot_of(at_s, 1200.0, width_s) for at_s in (1299.0, 1200.0, 1199.0)] == [1200.0, 1200.0, 1100.0]
    assert of_slots({1200.0: 3, 1100.0: 2, 1000.0: 1}, 1050.0) == (Due(0.0, 1), Due(50.0, 2), Due(150.0, 3))
    assert slot_of(float("inf"), 1200.0, width_s) == 1e12
    assert (slot_width_s(float("inf")), slot_width_s(0.0)) == (0.0, 0.0)


def test_the_deadline_of_a_client_in_a_hurry_is_told_in_slots_of_its_own():
    """Of a tier that may wait for a day, what an SDK waits ten minutes for was due at once: no start would be in time, ever."""
    width_s = slot_width_s(86_400.0)
    for now_s in (0.0, 7_000.0, 1e6 + 1):
        for left_s in (12.0, 40.0, 600.0, 3_600.0, 86_400.0):
            told_s = slot_of(now_s + left_s, left_s, width_s) - now_s
            assert left_s * (11 / 12) - 1e-3 <= told_s <= left_s
        assert slot_of(now_s + 2.0, 2.0, width_s) - now_s > 2.0 - 1.0, "of hardly anything the narrowest slot may take half"


def test_what_is_told_together_is_near_to_each_other_for_how_far_it_is():
    """Few slots are near and fine, and few far and wide: what has a day is not due as soon as what has ten minutes."""
    mixed = [(float(in_s), 1) for in_s in (*range(20, 600, 15), *range(7_200, 93_600, 7_200))]
    told = gathered(reversed(mixed))
    assert DUE_SLOTS_MAX / 2 < len(told) <= DUE_SLOTS_MAX < len(mixed)
    assert sum(due.requests for due in told) == len(mixed)
    for in_s, _ in mixed:
        assert max(due.in_s for due in told if due.in_s <= in_s) > 0.8 * in_s
    assert gathered([(0.0, 5), *mixed])[0] == Due(0.0, 5), "what is due now stands alone"
    assert len(gathered((float(number), 1) for number in range(5_000))) <= DUE_SLOTS_MAX
