"""A scheduled event is told to admission: from a minute before it begins until its replicas serve, preemptible work waits."""

import math
from datetime import UTC, datetime

import pytest

from forebay.domain.roster import Posture
from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.policy import QueueFirst
from forebay.scaling.postures import EVENT_LATE_S, EVENT_LEAD_S, held_for
from forebay.scaling.schedule import Schedule
from forebay.spec.types import CalendarEntry, Scaling, Slo

START_S = datetime(2026, 6, 1, 9, tzinfo=UTC).timestamp()
ENTRY = CalendarEntry("launch", ("chat",), (0,), 9 * 3600.0, 10 * 3600.0, "UTC", 6)
SCHEDULE = Schedule((ENTRY,), "chat")


@pytest.mark.parametrize(
    ("from_start_s", "ready", "held"),
    [
        (-EVENT_LEAD_S - 1, 2, False),
        (-EVENT_LEAD_S, 2, True),
        (-1, 6, True),
        (0, 6, False),
        (0, 5, True),
        (EVENT_LATE_S, 5, True),
        (EVENT_LATE_S + 1, 5, False),
        (3600, 2, False),
    ],
)
def test_it_holds_from_a_minute_before_until_the_replicas_serve_but_not_for_ever(from_start_s, ready, held):
    because = held_for(SCHEDULE, ready, START_S + from_start_s)
    assert bool(because) is held
    if held:
        assert because.startswith("launch ")


def test_without_a_calendar_or_a_clock_nothing_is_held():
    assert held_for(Schedule((), "chat"), 1, START_S) == ""
    for wall_s in (math.nan, math.inf, -1.0, 1e300):
        assert held_for(SCHEDULE, 1, wall_s) == ""


def test_the_decision_says_so_and_why(make_pool):
    pool = make_pool()
    policy = QueueFirst(Scaling(min_replicas=2, max_replicas=9), PoolCapacity(rate_per_s=1.0, cold_start_s=90.0), (ENTRY,), "chat", Slo())
    pool.policy, pool.desired = policy, 2
    decision = pool.at(0.0, ready=2, wall_s=START_S - 30.0)
    assert decision.posture is Posture.HOLD_PREEMPTIBLE
    assert decision.posture_because == "launch begins in 30 s: what is preemptible waits"
    decision = pool.at(40.0, ready=2, wall_s=START_S + 10.0)
    assert decision.posture_because == "launch has begun with 2 of 6 replicas ready: what is preemptible waits"
    decision = pool.at(60.0, ready=6, wall_s=START_S + 30.0)
    assert (decision.posture, decision.posture_because) == (Posture.OPEN, "")


def test_what_is_exhausted_refuses_even_before_an_event(make_pool):
    pool = make_pool()
    pool.policy = QueueFirst(
        Scaling(min_replicas=2, max_replicas=3), PoolCapacity(rate_per_s=1.0, cold_start_s=90.0), (ENTRY,), "chat", Slo()
    )
    pool.desired = 3
    for at_s in (0.0, 30.0, 61.0, 90.0):
        decision = pool.at(at_s, ready=3, waiting=500, wall_s=START_S - 50.0 + at_s / 10)
    assert decision.posture is Posture.SHED_PREEMPTIBLE
    assert decision.posture_because
