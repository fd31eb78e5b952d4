"""The measured drain: in seconds, only while backlogged, and Unknown until it means something."""

import pytest

from forebay.admission.lanes import Lane
from forebay.admission.pace import PACE_AGE_S_MAX, PACE_BUSY_S_MIN, PACE_CALM_S, Pace
from forebay.admission.tickets import Ticket
from forebay.admission.waits import declared_wait_s, measured_wait_s
from forebay.domain.roster import Capacity
from forebay.domain.shape import Shape
from forebay.domain.signal import Known, Unknown
from forebay.spec.types import Tier


def drained(pace: Pace, start_s: float, seconds: int, per_s: int, tokens: int) -> None:
    for number in range(1, seconds * per_s + 1):
        pace.move(start_s + number / per_s, True)
        dispatched(pace, tokens)


def dispatched(pace: Pace, tokens: int) -> None:
    pace.tokens += tokens
    pace.dispatches += 1


def value(pace: Pace, now_s: float, backlogged: bool = True) -> float:
    rate = pace.tokens_per_s(now_s, backlogged)
    assert isinstance(rate, Known)
    return rate.value


def test_unknown_until_it_has_seen_enough_seconds_and_enough_dispatches() -> None:
    pace = Pace()
    assert isinstance(pace.tokens_per_s(0.0, False), Unknown)
    drained(pace, 0.0, int(PACE_BUSY_S_MIN) - 2, 10, 100)
    assert isinstance(pace.tokens_per_s(3.0, True), Unknown), "too short"
    drained(pace, 3.0, 10, 10, 100)
    assert value(pace, 13.0) == pytest.approx(1000, rel=0.01)
    few = Pace()
    few.move(0.0, False)
    few.move(20.0, True)
    dispatched(few, 1_000_000)
    assert isinstance(few.tokens_per_s(20.0, True), Unknown), "one dispatch is no pace"


def test_seconds_count_and_calls_do_not() -> None:
    often, seldom = Pace(), Pace()
    for pace, per_s in ((often, 50), (seldom, 1)):
        pace.move(0.0, False)
        drained(pace, 0.0, 20, per_s, 1000 // per_s)
    assert value(often, 20.0) == pytest.approx(value(seldom, 20.0), rel=0.02)


def test_time_without_a_backlog_does_not_dilute_it_but_makes_it_old() -> None:
    pace = Pace()
    pace.move(0.0, False)
    drained(pace, 0.0, 20, 2, 50)
    before = value(pace, 20.0)
    assert value(pace, 100.0, backlogged=False) == before
    assert isinstance(pace.tokens_per_s(20.0 + PACE_AGE_S_MAX + 1, False), Unknown)


def test_a_stalled_backlog_slows_the_pace() -> None:
    pace = Pace()
    pace.move(0.0, False)
    drained(pace, 0.0, 60, 2, 50)
    assert value(pace, 80.0) < 0.6 * 100


def test_waits_count_the_lane_and_those_before_it() -> None:
    tiers = (Tier("interactive", 0, 1, 30), Tier("standard", 1, 5, 120), Tier("batch", 2, 60, 999, True))
    lanes = [Lane(tier, index, {}) for index, tier in enumerate(tiers)]
    for lane, tokens in zip(lanes, (100, 1000, 10_000), strict=True):
        lane.prompt_tokens, lane.output_tokens, lane.cost_tokens = tokens, 2 * tokens, 3 * tokens
    lanes[1].serve(1, 0.0)
    drained(lanes[1].pace, 0.0, 10, 1, 330)
    lanes[1].waiting = 1
    account = lanes[1].order.account("t")
    assert measured_wait_s(lanes, lanes[1], account, 10.0, most_s=60.0) == pytest.approx(10.0, rel=0.02)
    assert measured_wait_s(lanes, lanes[2], account, 10.0) is None, "each lane has a pace of its own"
    two = [Capacity(1, 1, 1, 100.0, 50.0, 1)] * 2
    assert declared_wait_s(lanes, lanes[1], 1.0, two) == pytest.approx(22.0)
    assert declared_wait_s(lanes, lanes[1], 0.5, two) == pytest.approx(12.0)
    assert declared_wait_s(lanes, lanes[1], 1.0, []) is None


def test_time_without_a_replica_is_no_pace() -> None:
    pace = Pace(0)
    pace.move(0.0, False)
    pace.move(60.0, True)
    pace.replicas = 1
    drained(pace, 60.0, 10, 2, 50)
    assert value(pace, 70.0) == pytest.approx(100, rel=0.02)
    pace.replicas = 0
    assert value(pace, 130.0) == pytest.approx(100, rel=0.02), "it stands still, and is that of those there were"


def test_it_is_a_pace_for_each_replica() -> None:
    pace = Pace(1)
    pace.move(0.0, False)
    drained(pace, 0.0, 30, 2, 50)
    pace.replicas = 4
    assert value(pace, 30.0) == pytest.approx(400, rel=0.02)
    drained(pace, 30.0, 30, 8, 50)
    assert value(pace, 60.0) == pytest.approx(400, rel=0.02)
    pace.replicas = 1
    assert value(pace, 60.0) == pytest.approx(100, rel=0.02)


def test_what_a_roster_lets_start_at_once_fills_replicas_and_is_no_pace() -> None:
    lane = Lane(Tier("interactive", 0, 1, 30), 0, {})
    lane.serve(1, 0.0)
    for number in range(8):
        lane.join(waiting(number, lane), number + 1, 0.0)
    started = lane.order.live()
    lane.serve(2, 9.0)
    for ticket in started[:4]:
        lane.leave(ticket, 9.0, started=True)
    assert lane.pace.dispatches == 0
    lane.serve(2, 9.5)
    lane.leave(started[4], 9.5, started=True)
    assert lane.pace.dispatches == 1, "there are no more than before"


def waiting(number: int, lane: Lane) -> Ticket:
    ticket = Ticket(number, lane, lane.order.account("t"), Shape(100, 100), 0.0)
    ticket.late_at_s = 1.0
    return ticket


def test_a_fast_lane_follows_within_seconds() -> None:
    pace = Pace()
    pace.move(0.0, False)
    drained(pace, 0.0, 60, 20, 50)
    drained(pace, 60.0, 10, 20, 500)
    assert value(pace, 70.0) > 0.75 * 10_000


def test_after_a_calm_a_backlog_soon_tells_its_own_pace() -> None:
    pace = Pace()
    pace.move(0.0, False)
    drained(pace, 0.0, 60, 2, 50)
    pace.begin(60.0 + PACE_CALM_S - 1)
    drained(pace, 60.0 + PACE_CALM_S - 1, 5, 2, 500)
    soon = value(pace, 60.0 + PACE_CALM_S + 4)
    pace.begin(200.0)
    assert value(pace, 200.0) == pytest.approx(soon, rel=0.01), "until then it is like the last one"
    drained(pace, 200.0, 5, 2, 5000)
    assert value(pace, 205.0) > 0.45 * 10_000
    assert soon < 0.3 * 1000


def test_those_on_time_have_ended_coming_where_three_should_have_come_and_none_has() -> None:
    pace = Pace()
    pace.move(0.0, False)
    drained(pace, 0.0, 20, 2, 50)
    pace.on_time = 0.75 * pace.tokens
    assert pace.on_time_share(100.0, 1.0) == pytest.approx(0.75, rel=0.02)
    assert pace.on_time_share(200.0, 1.0) == pytest.approx(0.375, rel=0.02), "a fleet twice as fast has more left for the late"
    assert pace.on_time_share(100.0, 2.1) == 0.0
    assert Pace().on_time_share(100.0, 0.0) == 0.0
