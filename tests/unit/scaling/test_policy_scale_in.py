"""Fewer replicas: after a long calm, by small steps, never below what holds the load."""

import pytest

from forebay.domain.replica import ReplicaState


def test_scale_in_waits_for_fifteen_calm_minutes_and_then_takes_one(make_pool):
    pool = make_pool(min_replicas=1, buffer=False)
    pool.desired = 5
    pool.at(0.0)
    assert pool.hold(899).replicas == 5
    decision = pool.at(900.0)
    assert (decision.replicas, decision.reason) == (4, "scale_in")


def test_steps_are_a_tenth_and_spaced(make_pool):
    """35 → 32 (a tenth, rounded down) → 29 a minute later."""
    pool = make_pool(max_replicas=40, buffer=False)
    pool.desired = 35
    pool.at(0.0)
    assert pool.hold(900).replicas == 32
    assert pool.at(959.0).reason == "hold_step"
    assert pool.at(960.0).replicas == 29


def test_a_calm_broken_for_one_instant_starts_anew(make_pool):
    pool = make_pool(buffer=False)
    pool.desired = 5
    pool.at(0.0)
    pool.hold(890)
    pool.at(895.0, waiting=1)
    assert pool.hold(890).replicas == 5
    assert pool.hold(20).replicas == 4


def test_kv_above_the_lower_threshold_is_no_calm(make_pool):
    pool = make_pool(buffer=False)
    pool.desired = 5
    assert pool.hold(3600, kv=0.5).replicas == 5
    assert pool.hold(960, kv=0.49).replicas == 4


@pytest.mark.parametrize(("per_min", "replicas"), [(170, 4), (171, 5)])
def test_those_that_stay_must_hold_the_load_with_margin(make_pool, per_min, replicas):
    """4 × 50/min less 15 % is 170/min."""
    pool = make_pool(buffer=False)
    pool.desired = 5
    decision = pool.hold(1200, per_min=per_min)
    assert decision.replicas == replicas
    hold = pool.term(decision, "hold_load")
    assert (hold is None) if replicas == 4 else (hold.binding and hold.numbers["holding"] == 5)


def test_two_do_not_become_one_and_two_again(make_pool):
    """KV at 45 % on two is 90 % on one: under the threshold before, over it after."""
    pool = make_pool(buffer=False)
    pool.desired = 2
    assert pool.hold(3600, kv=0.45).replicas == 2
    assert pool.hold(3600, kv=0.30).replicas == 1


def test_never_below_the_floors(make_pool):
    pool = make_pool(min_replicas=3, buffer=False)
    pool.desired = 6
    assert pool.hold(7200).replicas == 3


def test_not_while_a_start_is_pending(make_pool):
    pool = make_pool(buffer=False)
    pool.desired = 6
    decision = pool.hold(1800, ready=5, others=(pool.replica(9, ReplicaState.LOADING),))
    assert (decision.replicas, decision.reason) == (6, "hold_start")


def test_a_start_that_never_comes_does_not_freeze_scale_in(make_pool):
    pool = make_pool(buffer=False)
    pool.desired = 6
    decision = pool.hold(920, ready=5, others=(pool.replica(9, ReplicaState.LOADING, overdue=True),))
    assert decision.replicas == 5


def test_not_while_the_last_step_still_drains(make_pool):
    pool = make_pool(buffer=False)
    pool.desired = 6
    draining = pool.replica(9, ReplicaState.DRAINING)
    assert pool.hold(1800, ready=6, others=(draining,)).reason == "hold_drain"
    assert pool.at(pool.now_s + 1, ready=6).replicas == 5


def test_a_floor_that_wants_all_there_is_is_no_calm(make_pool):
    """After the peak the fleet stays for the whole calm, even where the queue was empty all along."""
    pool = make_pool(buffer=False)
    pool.hold(1200, per_min=400)
    assert pool.desired == 8
    pool.hold(880, per_min=100)
    assert pool.desired == 8
    pool.hold(300, per_min=100)
    assert pool.desired < 8


def test_more_is_asked_for_at_once_in_the_middle_of_a_scale_in(make_pool):
    pool = make_pool(max_replicas=40, buffer=False)
    pool.desired = 35
    pool.hold(910)
    assert pool.desired < 35
    decision = pool.at(pool.now_s + 1, kv=0.95)
    assert decision.replicas > 35


def test_to_zero_only_where_the_minimum_allows_and_nothing_is_in_use(make_pool):
    pool = make_pool(min_replicas=0, buffer=False)
    pool.desired = 1
    assert pool.hold(3600, kv=0.01).replicas == 1
    assert pool.hold(3600, kv=0.0).replicas == 0


def test_an_outage_of_the_controller_is_no_calm(make_pool):
    """Ten calm minutes, an hour unseen, ten calm minutes: only seen ones count."""
    pool = make_pool(buffer=False)
    pool.desired = 5
    pool.at(0.0)
    pool.hold(600)
    pool.now_s += 3600
    pool.at(pool.now_s)
    assert pool.hold(290).replicas == 5
    assert pool.hold(20).replicas == 4


def test_a_controller_whose_clock_starts_at_zero_again_keeps_its_calm(make_pool):
    """The process restarts and loses ten seconds: world time restarts, wall time tells."""
    pool = make_pool(buffer=False)
    pool.desired = 5
    pool.at(5000.0, wall_s=1e9)
    for step in range(1, 81):
        pool.at(5000.0 + 10 * step, wall_s=1e9 + 10 * step)
    for step in range(9):
        decision = pool.at(10.0 * step, wall_s=1e9 + 810 + 10 * step)
    assert decision.replicas == 5
    decision = pool.at(90.0, wall_s=1e9 + 900)
    assert decision.replicas == 4
