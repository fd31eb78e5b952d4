"""The caps: the budget is obeyed at once, growth that nobody approved is held and asked for, and a domain that fails is spared for."""

import pytest

from forebay.domain.roster import Posture
from forebay.domain.scaling import AlertKind
from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.policy import QueueFirst

PRICED = PoolCapacity(rate_per_s=50 / 60, cold_start_s=300.0, origin="declared", replica_hour_usd=4.0)


def test_the_budget_caps_like_the_maximum(make_pool):
    """$30 an hour pay for seven replicas at $4; 500/min want ten."""
    pool = make_pool(capacity=PRICED, buffer=False, budget_usd_per_hour=30.0)
    decision = pool.at(0.0, per_min=500)
    assert (decision.replicas, decision.reason) == (7, "budget")
    pool.desired = 12
    assert pool.at(1.0, per_min=500).replicas == 7


def test_a_queue_that_the_budget_can_not_pay_for_sheds_what_is_preemptible(make_pool):
    pool = make_pool(capacity=PRICED, buffer=False, budget_usd_per_hour=30.0)
    pool.desired = 7
    pool.at(0.0, per_min=500, waiting=99)
    decision = pool.at(60.0, per_min=500, waiting=99)
    assert decision.posture is Posture.SHED_PREEMPTIBLE
    assert "(budget)" in decision.alerts[0].message


@pytest.mark.parametrize("settings", [{"ask_above": 3}, {"ask_above_usd": 13.0}])
def test_growth_beyond_what_is_approved_is_held_with_an_alert(make_pool, settings):
    """Three replicas, or $13 at $4 each: from two to five, and no more until somebody agrees."""
    pool = make_pool(capacity=PRICED, buffer=False, **settings)
    pool.hold(900, per_min=100)
    assert pool.desired == 2
    decision = pool.hold(600, per_min=500)
    assert (decision.replicas, decision.reason) == (5, "ask")
    (alert,) = (alert for alert in decision.alerts if alert.kind is AlertKind.APPROVAL_WANTED)
    assert alert.since_s <= 960.0
    assert "approved" in alert.message


def test_what_is_approved_or_scheduled_is_not_asked_for(make_pool):
    pool = make_pool(capacity=PRICED, buffer=False, ask_above=3, approved_replicas=10)
    pool.hold(900, per_min=100)
    decision = pool.hold(600, per_min=500)
    assert (decision.replicas, decision.reason) == (10, "demand")
    assert decision.alerts == ()


def test_an_hour_later_as_much_again_is_allowed(make_pool):
    pool = make_pool(capacity=PRICED, buffer=False, ask_above=3)
    pool.hold(600, per_min=100)
    pool.hold(4200, every_s=60.0, per_min=500)
    assert pool.desired == 8


def test_asking_never_lowers_what_there_is(make_pool):
    pool = make_pool(capacity=PRICED, buffer=False, ask_above=1)
    pool.at(0.0, per_min=50)
    pool.desired = 9
    assert pool.at(10.0, per_min=450).replicas == 9


def test_one_failure_domain_of_three_may_fail(make_pool):
    """Ten for demand: fifteen, of which five go with their domain."""
    pool = make_pool(buffer=False, max_replicas=40, domains=3)
    decision = pool.at(0.0, per_min=500)
    assert (decision.replicas, decision.reason) == (15, "spare")
    assert "one of 3 failure domains" in pool.term(decision, "spare").because


def test_a_pool_sleeps_only_where_its_first_request_would_wait_for_the_start(make_pool):
    pool = make_pool(min_replicas=0, buffer=False)
    pool.policy = QueueFirst(pool.settings, pool.capacity, (), "chat", wake_s=30.0)
    decision = pool.at(0.0)
    assert (decision.replicas, decision.reason) == (1, "awake")
    pool.policy = QueueFirst(pool.settings, pool.capacity, (), "chat", wake_s=600.0)
    pool.desired = 0
    assert pool.at(1.0).replicas == 0
