"""Fail-static: what isn't known is never read as idle. Each test is a way in which other autoscalers scaled in."""

import msgspec
import pytest

from forebay.domain.replica import ReplicaState
from forebay.domain.scaling import AlertKind, Observation
from forebay.domain.signal import Known, Unknown


def outage(pool, count, **fields):
    return {
        "replicas": [pool.replica(i, known=False) for i in range(count)],
        "lanes_waiting": Unknown("timeout"),
        "arrival_per_s": Unknown("timeout"),
        **fields,
    }


def test_an_outage_of_the_metrics_holds_for_as_long_as_it_lasts(make_pool):
    pool = make_pool(buffer=False)
    pool.desired = 7
    for now_s in range(0, 4 * 3600, 60):
        decision = pool.at(float(now_s), **outage(pool, 7))
        assert (decision.replicas, decision.reason) == (7, "hold_unknown")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_an_ill_number_is_not_known(make_pool, value):
    pool = make_pool(buffer=False)
    pool.desired = 7
    for now_s in range(0, 3000, 60):
        decision = pool.at(float(now_s), lanes_waiting=Known(value, float(now_s)))
        assert (decision.replicas, decision.reason) == (7, "hold_unknown")


def test_a_reading_that_does_not_move_on_is_not_known(make_pool):
    pool = make_pool(buffer=False)
    pool.desired = 7
    for now_s in range(0, 3000, 60):
        decision = pool.at(float(now_s), arrival_per_s=Known(0.0, 0.0))
    assert decision.replicas == 7


def test_one_dead_scrape_in_twenty_does_not_freeze_a_fleet(make_pool):
    """19 of 20 known is 95 %: enough; the silent one counts as full: (19 × 0.1 + 1) ÷ 20 = 14.5 %."""
    pool = make_pool(buffer=False)
    pool.desired = 20
    for now_s in range(0, 960, 30):
        pool.now_s = float(now_s)
        replicas = [*(pool.replica(i, kv=0.1) for i in range(19)), pool.replica(19, known=False)]
        decision = pool.at(float(now_s), replicas=replicas)
    assert pool.desired < 20
    assert decision.alerts[0].kind is AlertKind.SIGNALS_UNKNOWN
    assert "chat-19" in decision.alerts[0].message


def test_a_silent_replica_counts_as_full(make_pool):
    """19 at 48 % and one silent: (19 × 0.48 + 1) ÷ 20 is 50.6 %, which is no calm."""
    pool = make_pool(buffer=False)
    pool.desired = 20
    for now_s in range(0, 3000, 60):
        pool.now_s = float(now_s)
        replicas = [*(pool.replica(i, kv=0.48) for i in range(19)), pool.replica(19, known=False)]
        assert pool.at(float(now_s), replicas=replicas).reason == "hold_calm"


def test_two_dead_scrapes_in_twenty_do(make_pool):
    pool = make_pool(buffer=False)
    pool.desired = 20
    for now_s in range(0, 1800, 60):
        pool.now_s = float(now_s)
        replicas = [*(pool.replica(i, kv=0.1) for i in range(18)), pool.replica(18, known=False), pool.replica(19, known=False)]
        decision = pool.at(float(now_s), replicas=replicas)
    assert (decision.replicas, decision.reason) == (20, "hold_unknown")


def test_known_floors_may_raise_what_is_held(make_pool):
    pool = make_pool(min_replicas=4, buffer=False)
    pool.desired = 2
    assert pool.at(0.0, **outage(pool, 2)).replicas == 4


def test_the_cap_may_lower_what_is_held(make_pool):
    pool = make_pool(max_replicas=3, buffer=False)
    pool.desired = 5
    decision = pool.at(0.0, **outage(pool, 5))
    assert (decision.replicas, decision.reason) == (3, "max")


def test_unknown_alerts_after_a_minute_and_a_half_and_says_since_when(make_pool):
    pool = make_pool()
    pool.at(100.0)
    for now_s in (110.0, 170.0, 199.0):
        assert pool.at(now_s, **outage(pool, 1)).alerts == ()
    decision = pool.at(200.0, **outage(pool, 1))
    assert [(alert.kind, alert.since_s) for alert in decision.alerts] == [(AlertKind.SIGNALS_UNKNOWN, 200.0)]
    assert pool.at(201.0).alerts == ()


def test_a_blip_pauses_the_calm_and_a_long_blindness_ends_it(make_pool):
    pool = make_pool(buffer=False)
    pool.desired = 5
    pool.at(0.0)
    pool.hold(800)
    pool.hold(100, **outage(pool, 5))
    pool.hold(90)
    assert pool.desired == 5
    assert pool.hold(20).replicas == 4
    pool.hold(200, **outage(pool, 4))
    assert pool.hold(890).replicas == 4
    assert pool.hold(20).replicas == 3


def test_all_replicas_crashed_is_not_an_idle_fleet(make_pool):
    """Nothing ready, nothing waiting, nothing in use: that is a disaster, not a calm."""
    pool = make_pool(buffer=False)
    pool.desired = 5
    failed = tuple(pool.replica(i, ReplicaState.FAILED) for i in range(5))
    assert pool.hold(7200, ready=0, others=failed).replicas == 5


def test_a_pool_without_any_gateway_is_held(make_pool):
    pool = make_pool(buffer=False)
    pool.desired = 3
    assert pool.hold(7200, lanes_waiting=Unknown("no_gateway"), arrival_per_s=Unknown("no_gateway")).replicas == 3


def test_garbage_for_memory_only_forgets(make_pool):
    pool = make_pool(buffer=False)
    pool.desired = 5
    pool.at(0.0)
    pool.hold(899)
    pool.memory = b"\xff\x00garbage" * 10
    assert pool.at(900.0).replicas == 5
    assert pool.hold(900).replicas == 4


def test_memory_full_of_nan_is_forgotten(make_pool):
    pool = make_pool(buffer=False)
    pool.desired = 5
    pool.memory = msgspec.msgpack.encode([1, float("nan"), 0.0, [float("-inf"), False], [None, False]])
    assert pool.at(0.0).replicas == 5


@pytest.mark.parametrize("now_s", [float("nan"), float("inf"), float("-inf"), 1e300])
def test_an_ill_clock_holds_and_keeps_the_memory(make_pool, now_s):
    pool = make_pool(buffer=False)
    pool.desired = 5
    pool.at(0.0)
    memory = pool.memory
    decision = pool.policy.decide(Observation("chat", now_s, 0.0, 5, (), memory=memory))
    assert (decision.replicas, decision.reason, decision.memory) == (5, "hold_ill", memory)
    assert "clock" in decision.terms[0].because


def test_what_can_not_be_understood_is_held_with_its_reason(make_pool):
    pool = make_pool(min_replicas=2)
    ill = Observation("chat", 0.0, 0.0, 4, None)
    decision = pool.policy.decide(ill)
    assert (decision.replicas, decision.reason) == (4, "hold_ill")
    assert "TypeError" in decision.terms[0].because


def test_a_replica_listed_twice_counts_once(make_pool):
    pool = make_pool(min_replicas=2, buffer=False)
    twin = pool.replica(0, kv=1.0)
    decision = pool.at(0.0, replicas=[twin, twin, twin, pool.replica(1, kv=0.0)])
    assert pool.term(decision, "kv").numbers == {"kv_usage": 0.5, "ready": 2.0}
