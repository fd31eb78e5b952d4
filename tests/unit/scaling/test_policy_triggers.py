"""The triggers: held for seconds, sized by the backlog, blind to what is already on its way."""

import pytest

from forebay.domain.replica import ReplicaState
from forebay.domain.roster import Posture
from forebay.domain.scaling import AlertKind
from forebay.domain.signal import Known, Unknown


def test_a_queue_must_last_before_it_pulls(make_pool):
    """More than 3 per ready replica for 60 s: 2 ready, 7 waiting."""
    pool = make_pool(min_replicas=2, buffer=False)
    pool.at(0.0, waiting=7)
    assert pool.at(59.9, waiting=7).replicas == 2
    decision = pool.at(60.0, waiting=7)
    assert (decision.replicas, decision.reason) == (3, "queue")


def test_a_queue_at_the_threshold_does_not_pull(make_pool):
    pool = make_pool(min_replicas=2, buffer=False)
    assert pool.hold(600, waiting=6).replicas == 2


def test_a_pause_in_the_queue_starts_the_wait_anew(make_pool):
    pool = make_pool(min_replicas=2, buffer=False)
    pool.hold(50, waiting=9)
    pool.at(51.0, waiting=0)
    pool.at(52.0, waiting=9)
    assert pool.at(111.0, waiting=9).replicas == 2
    assert pool.at(112.0, waiting=9).replicas == 3


def test_a_blind_moment_pauses_the_wait_and_does_not_start_it_anew(make_pool):
    """The gateway is not heard for ten seconds at 55 s: the queue has been seen for 60 s at 70 s, not at 125 s."""
    pool = make_pool(min_replicas=2, buffer=False)
    pool.at(0.0, waiting=9)
    pool.at(50.0, waiting=9)
    pool.at(55.0, lanes_waiting=Unknown("gateway_lost"))
    assert pool.at(65.0, waiting=9).replicas == 2
    assert pool.at(69.0, waiting=9).replicas == 2
    assert pool.at(70.0, waiting=9).replicas == 3


def test_what_waits_in_engines_counts_like_what_waits_in_lanes(make_pool):
    pool = make_pool(min_replicas=2, buffer=False)
    for now_s in (0.0, 60.0):
        pool.now_s = now_s
        decision = pool.at(now_s, waiting=3, replicas=[pool.replica(0, waiting=4), pool.replica(1, waiting=0)])
    assert decision.reason == "queue"


def test_the_backlog_sizes_the_step(make_pool):
    """100/min arrive and 1000 wait: to work that off within a 300 s start takes 100 + 200 per minute, six of 50/min."""
    pool = make_pool(min_replicas=2, buffer=False)
    pool.hold(900, per_min=100)
    pool.now_s += 10
    pool.at(pool.now_s, per_min=100, waiting=1000)
    decision = pool.at(pool.now_s + 60, per_min=100, waiting=1000)
    assert (decision.replicas, decision.reason) == (6, "queue")


def test_pending_replicas_are_supply_so_the_queue_asks_once(make_pool):
    """A start takes 300 s; the queue stands all the while, and one replica is asked for, not one a minute."""
    pool = make_pool(min_replicas=2, buffer=False)
    pool.at(0.0, waiting=9)
    pool.hold(60, waiting=9)
    assert pool.desired == 3
    for now_s in range(70, 360, 10):
        decision = pool.at(float(now_s), waiting=9, ready=2, others=(pool.replica(9, ReplicaState.LOADING),))
        assert decision.replicas == 3


def test_a_replica_that_became_ready_gets_time_to_relieve(make_pool):
    pool = make_pool(min_replicas=2, buffer=False)
    pool.hold(300, waiting=11, ready=2)
    assert pool.desired == 3
    pool.at(301.0, waiting=11, ready=3)
    assert pool.at(360.0, waiting=11, ready=3).replicas == 3
    assert pool.at(361.0, waiting=11, ready=3).replicas == 4


def test_an_overdue_start_is_no_supply_but_the_queue_does_not_pile_up_starts(make_pool):
    """One of three is stuck: the count wanted stays three while `to_start` replaces it."""
    pool = make_pool(min_replicas=3, buffer=False)
    stuck = pool.replica(9, ReplicaState.LOADING, overdue=True)
    for now_s in range(0, 1200, 10):
        decision = pool.at(float(now_s), waiting=20, ready=2, others=(stuck,))
    assert decision.replicas == 3


def test_full_kv_pulls_at_once_and_is_sized(make_pool):
    """10 ready at 95 %: 9.5 replicas' worth of KV over 85 % is 11.2, so 12."""
    pool = make_pool(min_replicas=10, buffer=False)
    decision = pool.at(0.0, kv=0.95)
    assert (decision.replicas, decision.reason) == (12, "kv")


def test_kv_counts_pending_replicas_and_waits_for_new_ones_to_show_effect(make_pool):
    pool = make_pool(min_replicas=2, buffer=False)
    pool.at(0.0, kv=0.9)
    assert pool.desired == 3
    assert pool.at(100.0, kv=0.9, ready=2, others=(pool.replica(9, ReplicaState.LOADING),)).replicas == 3
    assert pool.at(200.0, kv=0.9, ready=3).replicas == 3
    assert pool.at(259.0, kv=0.9, ready=3).replicas == 3
    assert pool.at(260.0, kv=0.9, ready=3).replicas == 4


def test_silent_replicas_are_no_evidence_for_more(make_pool):
    """One of four tells 100 %: the known mean is 25 %."""
    pool = make_pool(min_replicas=4, buffer=False)
    replicas = [pool.replica(0, kv=1.0), *(pool.replica(i, known=False) for i in (1, 2, 3))]
    assert pool.at(0.0, replicas=replicas).replicas == 4


def test_a_queue_known_in_part_pulls_if_that_part_is_enough(make_pool):
    """The lanes are not heard of, and the engines alone hold 10 per replica."""
    pool = make_pool(min_replicas=2, buffer=False)
    for now_s in (0.0, 60.0):
        pool.now_s = now_s
        decision = pool.at(
            now_s, lanes_waiting=Unknown("gateway_lost"), replicas=[pool.replica(0, waiting=10), pool.replica(1, waiting=10)]
        )
    assert decision.reason == "queue"


def test_from_zero_the_first_waiting_request_pulls_at_once(make_pool):
    pool = make_pool(min_replicas=0, buffer=False)
    assert pool.at(0.0, waiting=0).replicas == 0
    decision = pool.at(1.0, waiting=1)
    assert (decision.replicas, decision.reason) == (1, "queue")


def test_at_the_maximum_a_pulled_queue_sheds_what_is_preemptible_and_alerts(make_pool):
    pool = make_pool(min_replicas=2, max_replicas=2, buffer=False)
    assert pool.at(0.0, waiting=50).posture is Posture.OPEN
    decision = pool.at(60.0, waiting=50)
    assert (decision.replicas, decision.reason, decision.posture) == (2, "max", Posture.SHED_PREEMPTIBLE)
    assert [alert.kind for alert in decision.alerts] == [AlertKind.POOL_EXHAUSTED]
    later = pool.at(120.0, waiting=50)
    assert later.alerts[0].since_s == 60.0
    over = pool.at(121.0, waiting=0)
    assert (over.posture, over.alerts) == (Posture.OPEN, ())


def test_a_pool_of_given_size_that_is_full_says_so_within_seconds_and_where_they_wait(make_pool):
    """Attached engines took 44 requests into queues of their own: the alert came after a minute, and nothing said where they wait."""
    pool = make_pool(min_replicas=1, max_replicas=1, buffer=False)

    def at(now_s, in_engine, lanes=0.0):
        pool.now_s = now_s
        return pool.at(now_s, waiting=lanes, replicas=(pool.replica(0, waiting=in_engine),))

    assert at(0.0, 44).alerts == ()
    decision = at(10.0, 44)
    (alert,) = decision.alerts
    assert (alert.kind, alert.since_s, decision.posture) == (AlertKind.POOL_EXHAUSTED, 10.0, Posture.OPEN)
    assert "44 requests wait, and there are never more than 1 replica" in alert.message
    assert "44 wait inside the engines" in alert.message
    assert "44 waiting (44 of them in engines)" in pool.term(decision, "queue").because
    assert "inside the engines" not in at(11.0, 4, lanes=40.0).alerts[0].message
    assert at(12.0, 0).alerts == ()


def test_a_pool_that_can_grow_is_not_called_full_while_it_may(make_pool):
    pool = make_pool(min_replicas=1, max_replicas=2, buffer=False)
    pool.at(0.0, waiting=44)
    assert pool.at(30.0, waiting=44).alerts == ()


def test_when_all_starts_are_overdue_the_pool_is_exhausted(make_pool):
    pool = make_pool(min_replicas=3, buffer=False)
    stuck = tuple(pool.replica(i, ReplicaState.PROVISIONING, overdue=True) for i in (8, 9))
    decision = pool.at(200.0, ready=1, others=stuck)
    assert decision.posture is Posture.SHED_PREEMPTIBLE
    assert [alert.kind for alert in decision.alerts] == [AlertKind.POOL_EXHAUSTED]
    kinds = [alert.kind for alert in pool.at(301.0, ready=1, others=stuck).alerts]
    assert kinds == [AlertKind.PENDING_TOO_LONG, AlertKind.POOL_EXHAUSTED]
    on_time = pool.replica(7, ReplicaState.LOADING)
    decision = pool.at(302.0, ready=1, others=(stuck[0], on_time))
    assert decision.posture is Posture.OPEN


def test_a_start_in_time_alerts_nobody_however_long_it_takes(make_pool):
    """A ten-minute cold start is no emergency while it isn't overdue."""
    pool = make_pool(min_replicas=3, buffer=False)
    assert pool.at(599.0, ready=2, others=(pool.replica(9, ReplicaState.LOADING),)).alerts == ()


@pytest.mark.parametrize(("attainment", "kinds"), [(0.95, [AlertKind.SLO_BREACH]), (0.995, [])])
def test_a_broken_promise_alerts_after_a_minute(make_pool, attainment, kinds):
    pool = make_pool()
    for now_s in (0.0, 30.0, 60.0):
        decision = pool.at(now_s, ttft_attainment=Known(attainment, now_s))
        assert bool(decision.alerts) is (bool(kinds) and now_s >= 60)
    assert [alert.kind for alert in decision.alerts] == kinds


def test_a_pool_of_which_every_engine_is_gone_says_so_though_nobody_asks(make_pool):
    """Six attached engines were gone for five minutes, idle, and no alert told of it."""
    pool = make_pool(min_replicas=2, max_replicas=2, buffer=False)

    def at(now_s, *states):
        pool.now_s = now_s
        replicas = [pool.replica(index, state, known=state is ReplicaState.READY) for index, state in enumerate(states)]
        return {alert.kind: alert for alert in pool.at(now_s, replicas=replicas).alerts}

    failed, ready = ReplicaState.FAILED, ReplicaState.READY
    assert at(5.0, failed, ready) == at(59.0, failed, ready) == at(9.0, failed, failed) == {}
    assert at(10.0, failed, failed)[AlertKind.NO_REPLICAS].since_s == 10.0
    assert at(30.0, failed, ReplicaState.LOADING) == {}, "one is on its way"
    one = at(60.0, failed, ready)
    assert (one[AlertKind.REPLICAS_FAILED].message, one[AlertKind.REPLICAS_FAILED].since_s) == ("1 of 2 failed: chat-0", 60.0)
    assert set(one) == {AlertKind.REPLICAS_FAILED}
    assert {AlertKind.REPLICAS_FAILED, AlertKind.NO_REPLICAS} <= set(at(70.0, failed, failed)), "who was told of one hears of the last one"


def test_a_broken_promise_is_over_once_nothing_late_is_left_in_the_minutes_looked_at(make_pool):
    """A burst of five seconds was told of as a breach for as long as nobody asked: eight minutes, and over a restart."""
    pool = make_pool()

    def told(now_s, attainment, missed):
        decision = pool.at(now_s, ttft_attainment=attainment, ttft_missed=missed)
        return [alert.message for alert in decision.alerts if alert.kind is AlertKind.SLO_BREACH]

    for now_s in (0.0, 30.0, 60.0):
        before = told(now_s, Known(0.5, now_s), Known(60.0, now_s))
    assert before == ["50.0% of first tokens in time, promised are 99.0%"]
    assert told(300.0, Unknown("few"), Known(5.0, 300.0)) == ["5 first tokens late, too few for a share, promised are 99.0%"]
    assert told(310.0, Unknown("gateway_lost"), Unknown("gateway_lost")) == ["first tokens late when last seen, promised are 99.0%"]
    assert told(320.0, Unknown("few"), Known(0.0, 320.0)) == []
    assert told(330.0, Unknown("gateway_lost"), Unknown("gateway_lost")) == []


def test_a_breach_of_an_earlier_life_is_not_told_before_somebody_has_seen_it_in_this_one(make_pool):
    pool = make_pool()
    for now_s in (0.0, 30.0, 60.0):
        pool.at(now_s, ttft_attainment=Known(0.5, now_s), ttft_missed=Known(60.0, now_s))
    for why in ("no_gateway", "short"):
        decision = pool.at(70.0, ttft_attainment=Unknown(why), ttft_missed=Unknown(why))
        assert AlertKind.SLO_BREACH not in [alert.kind for alert in decision.alerts]
    still = pool.at(80.0, ttft_attainment=Known(0.5, 80.0), ttft_missed=Known(60.0, 80.0))
    assert AlertKind.SLO_BREACH in [alert.kind for alert in still.alerts], "it goes on, and its minute need not be waited for again"
