"""The measured drain: in seconds, only while backlogged, and Unknown until it means something."""

import pytest

from forebay.admission.lanes import Lane
from forebay.admission.pace import PACE_AGE_S_MAX, PACE_BUSY_S_MIN, Pace
from forebay.admission.waits import declared_wait_s, measured_wait_s
from forebay.domain.roster import Capacity
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
    lanes[1].pace.move(0.0, False)
    drained(lanes[1].pace, 0.0, 10, 1, 330)
    lanes[1].waiting = 1
    account = lanes[1].order.account("t")
    assert measured_wait_s(lanes, lanes[1], account, 10.0, most_s=60.0) == pytest.approx(10.0, rel=0.02)
    assert measured_wait_s(lanes, lanes[2], account, 10.0) is None, "each lane has a pace of its own"
    two = [Capacity(1, 1, 1, 100.0, 50.0, 1)] * 2
    assert declared_wait_s(lanes, lanes[1], 1.0, two) == pytest.approx(22.0)
    assert declared_wait_s(lanes, lanes[1], 0.5, two) == pytest.approx(12.0)
    assert declared_wait_s(lanes, lanes[1], 1.0, []) is None
