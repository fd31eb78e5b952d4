"""A team's limits: what is taken, what is given back, and what is told."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from forebay.admission.quotas import Cap, Quota
from forebay.domain.shape import Usage
from forebay.spec.types import TeamLimits


def test_requests_per_minute_are_a_full_bucket_that_fills_evenly() -> None:
    quota = Quota(TeamLimits(requests_per_minute=60))
    assert [quota.take(10, 0.0) for _ in range(60)] == [None] * 60
    over = quota.take(10, 0.0)
    assert over is not None
    assert (over.cap, over.limit, over.retry_after_s) == (Cap.REQUESTS_PER_MINUTE, 60, 1.0)
    assert quota.take(10, 1.0) is None
    assert quota.refused[Cap.REQUESTS_PER_MINUTE] == 1


def test_tokens_are_taken_as_estimated_and_settled_by_usage() -> None:
    quota = Quota(TeamLimits(tokens_per_minute=1000))
    assert quota.take(800, 0.0) is None
    over = quota.take(300, 0.0)
    assert over is not None
    assert over.retry_after_s == pytest.approx(6.0), "100 more at 1000 a minute"
    quota.give_back(800, Usage(150, 50), 2.0, 0.0, served=True)
    assert quota.take(800, 0.0) is None


def test_what_never_started_gives_its_tokens_back_and_counts_as_a_request() -> None:
    quota = Quota(TeamLimits(requests_per_minute=2, tokens_per_minute=1000))
    quota.take(1000, 0.0)
    quota.give_back(1000, None, 0.0, 0.0, served=False)
    assert quota.take(1000, 0.0) is None
    over = quota.take(1, 0.0)
    assert over is not None
    assert over.cap is Cap.REQUESTS_PER_MINUTE


def test_in_flight_limits_count_what_is_inside() -> None:
    quota = Quota(TeamLimits(requests_in_flight=2, tokens_in_flight=1000))
    assert quota.take(400, 0.0) is None
    over = quota.take(700, 0.0)
    assert over is not None
    assert over.cap is Cap.TOKENS_IN_FLIGHT
    assert quota.take(100, 0.0) is None
    over = quota.take(1, 0.0)
    assert over is not None
    assert over.cap is Cap.REQUESTS_IN_FLIGHT
    quota.give_back(400, Usage(1, 1), 20.0, 20.0, served=True)
    assert quota.take(700, 20.0) is None
    over = quota.take(1, 20.0)
    assert over is not None
    assert over.retry_after_s == 10.0, "they are held for 20 s, and there are two"


@pytest.mark.parametrize("limits", [TeamLimits(tokens_per_minute=100), TeamLimits(tokens_in_flight=100)])
def test_what_is_larger_than_a_limit_alone_is_told_not_to_come_back(limits: TeamLimits) -> None:
    over = Quota(limits).take(101, 0.0)
    assert over is not None
    assert over.retry_after_s is None


def test_header_lines_are_openais() -> None:
    quota = Quota(TeamLimits(requests_per_minute=60, tokens_per_minute=120_000))
    quota.take(90_001, 0.0)
    assert quota.headers(0.5, speed=1.0) == (
        b"x-ratelimit-limit-requests: 60\r\nx-ratelimit-remaining-requests: 59\r\nx-ratelimit-reset-requests: 500ms\r\n"
        b"x-ratelimit-limit-tokens: 120000\r\nx-ratelimit-remaining-tokens: 30999\r\nx-ratelimit-reset-tokens: 44.501s\r\n"
    )
    assert b"x-ratelimit-reset-tokens: 2.226s\r\n" in quota.headers(0.5, speed=20.0), "real seconds"
    assert Quota(TeamLimits(requests_in_flight=1)).headers(0.0, 1.0) == b""
    slow = Quota(TeamLimits(requests_per_minute=1))
    slow.take(1, 0.0)
    assert b"reset-requests: 1m0s" in slow.headers(0.0, 1.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 60), st.booleans(), st.integers(0, 80)), max_size=60))
def test_no_more_than_the_limits_is_ever_let_in(moves: list[tuple[int, int, bool, int]]) -> None:
    limits = TeamLimits(requests_per_minute=10, tokens_per_minute=200, requests_in_flight=4, tokens_in_flight=150)
    quota = Quota(limits)
    inside: list[int] = []
    let_in: list[float] = []
    now_s = 0.0
    for wait_s, tokens, ends, used in moves:
        now_s += wait_s
        if ends and inside:
            quota.give_back(inside.pop(0), Usage(used, 0), 1.0, now_s, served=True)
        elif quota.take(tokens, now_s) is None:
            inside.append(tokens)
            let_in.append(now_s)
        assert quota.in_flight == len(inside) <= 4
        assert quota.tokens_in_flight == sum(inside) <= 150
        assert sum(at_s > now_s - 60 for at_s in let_in) <= 20, "a full bucket and a minute's refill"
