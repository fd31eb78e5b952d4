"""With an hour of history the forecast's worth takes the place of margins and long calms; what is unknown still lowers nothing."""

import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.domain.scaling import MEMORY_BYTES_MAX, History, TermKind
from forebay.domain.signal import Known, Unknown
from forebay.engine.catalogue import PROFILES
from forebay.engine.steady import Load
from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.memory import load

BUCKET_S = 300.0
WALL_S = 1_790_000_000.0
MODEST = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def history(now_s, per_min, hours=3):
    """The same rate for ``hours`` up to the last whole bucket."""
    count = int(hours * 3600 / BUCKET_S)
    end_s = now_s // BUCKET_S * BUCKET_S
    column = struct.pack(f"<{count}f", *[per_min * BUCKET_S / 60] * count)
    return History(WALL_S + end_s - count * BUCKET_S, BUCKET_S, column, column, column)


def steady(pool, per_min, for_s, every_s=30.0, past_per_min=None, **load_fields):
    """``per_min`` for a stretch of time, with a past of the same."""
    until_s = pool.now_s + for_s
    while pool.now_s < until_s:
        now_s = pool.now_s + every_s
        decision = pool.at(now_s, per_min=per_min, history=history(now_s, past_per_min or per_min), **load_fields)
    return decision


@pytest.fixture
def learned_pool(make_pool):
    """Twenty minutes at 500/min, which is ten replicas' worth."""
    pool = make_pool(max_replicas=60, buffer=False)
    pool.desired = 12
    steady(pool, 500, 1200)
    return pool


def test_there_is_no_forecast_without_an_hour_of_history(make_pool):
    pool = make_pool(buffer=False)
    for hours in (None, 0.5):
        for _ in range(4):
            now_s = pool.now_s + 60
            decision = pool.at(now_s, per_min=100, history=None if hours is None else history(now_s, 100, hours))
        assert pool.term(decision, "forecast") is None


def test_the_forecast_floor_says_what_it_is_made_of(learned_pool):
    decision = steady(learned_pool, 500, 60)
    term = learned_pool.term(decision, "forecast")
    assert term.kind is TermKind.FLOOR
    assert term.numbers["expected_replicas"] == pytest.approx(10.0, rel=0.05)
    assert 9 <= term.replicas <= 11
    assert "500/min" in term.because
    assert "× idle" in term.because


def test_a_calm_of_minutes_is_enough_where_the_forecast_sees_as_far_as_a_start(learned_pool):
    """Demand halves: without a forecast the first of twelve would go after fifteen minutes."""
    before = learned_pool.desired
    steady(learned_pool, 250, 720)
    assert learned_pool.desired < before - 2


def test_what_was_worth_keeping_in_the_calm_stays(learned_pool):
    before = learned_pool.desired
    steady(learned_pool, 250, 240)
    assert learned_pool.desired == before


def test_a_step_up_is_answered_at_once_and_in_full(learned_pool):
    """From 500 to 1000/min: within four minutes everything that takes is asked for, not one replica after the other."""
    steady(learned_pool, 1000, 240, past_per_min=500)
    assert learned_pool.desired >= 20


def test_while_nothing_is_known_the_forecast_goes_on_and_nothing_is_let_go(learned_pool):
    before = learned_pool.desired
    silent = {"arrival_per_s": Unknown("timeout"), "lanes_waiting": Unknown("timeout")}
    decision = steady(learned_pool, 500, 1200, **silent)
    assert decision.replicas >= before
    assert decision.reason in {"hold_unknown", "forecast"}
    assert learned_pool.term(decision, "forecast") is not None


def test_errors_of_the_forecast_are_learned_at_the_horizon(make_pool):
    """Every second ten minutes are half as busy again: what is held above the expectation grows from what steady demand had."""
    calm, restless = make_pool(max_replicas=60, buffer=False), make_pool(max_replicas=60, buffer=False)
    for index in range(10):
        steady(calm, 500, 600, every_s=60)
        steady(restless, 750 if index % 2 else 500, 600, every_s=60, past_per_min=500)
    held = [pool.term(steady(pool, 500, 60), "forecast").numbers["headroom"] for pool in (calm, restless)]
    assert held[1] > held[0] + 0.1


def test_memory_with_everything_learned_stays_small(learned_pool):
    assert 0 < len(learned_pool.memory) <= MEMORY_BYTES_MAX / 2
    assert load(learned_pool.memory).learnt.spread


@MODEST
@given(
    st.tuples(st.integers(0, 90), st.floats(0, 1), st.floats(0, 3000)), st.tuples(st.integers(0, 90), st.floats(0, 1), st.floats(0, 3000))
)
def test_more_load_never_gets_fewer_at_once(learned_pool, one, other):
    now_s = learned_pool.now_s + 30
    learned_pool.now_s = now_s
    replicas = []
    for pick in (min, max):
        waiting, kv, per_min = (pick(pair) for pair in zip(one, other, strict=True))
        observation = learned_pool.observation(per_min=per_min, waiting=waiting, kv=kv, history=history(now_s, 500))
        decision = learned_pool.policy.decide(observation)
        assert [term.binding for term in decision.terms].count(True) == 1
        assert 1 <= decision.replicas <= 60
        replicas.append(decision.replicas)
    learned_pool.now_s = now_s - 30
    assert replicas[0] <= replicas[1]


def test_only_a_declared_ramp_buys_a_buffer_beside_a_forecast(make_pool):
    """Past ramps are in the forecast's errors already: counted twice they would be paid for twice."""
    pool = make_pool(max_replicas=60)
    steady(pool, 500, 1200, past_ramps_per_s2=(400 / 3600,) * 20)
    assert pool.term(pool.at(pool.now_s + 30, per_min=500, history=history(pool.now_s, 500)), "buffer") is None


@pytest.mark.parametrize("prompt_tokens", [300, 1000, 2500, 4000, 8000])
def test_the_capacity_follows_the_lengths_that_come(make_pool, prompt_tokens):
    """Longer prompts are fewer per replica, in proportion to their work, even where a lone replica could not keep its TTFT."""
    profile = PROFILES["llama-3.1-70b-fp8-1xh200"]
    capacity = PoolCapacity(rate_per_s=3.5, prompt_tokens_per_s=3500.0, output_tokens_per_s=700.0, origin="declared shape", profile=profile)
    pool = make_pool(capacity=capacity, max_replicas=2000, buffer=False)
    for now_s in range(0, 300, 30):
        tokens = {
            "arrival_prompt_tokens_per_s": Known(prompt_tokens * 200.0, float(now_s)),
            "arrival_output_tokens_per_s": Known(200.0 * 200, float(now_s)),
        }
        decision = pool.at(float(now_s), per_min=12_000, **tokens)
    found = pool.term(decision, "demand").numbers["replica_rate_per_s"]
    work = Load(profile, 1000, 200).work_s / Load(profile, prompt_tokens, 200).work_s
    assert found == pytest.approx(3.5 * work, rel=0.3)
    assert prompt_tokens != 1000 or found == 3.5


SPRING_S = 1_773_615_600.0
"""Monday 2026-03-16 00:00 in Berlin, where clocks go forward in the morning of Sunday the 29th."""


@pytest.mark.parametrize(("timezone", "foreseen"), [("Europe/Berlin", True), ("UTC", False)])
def test_the_clock_that_users_live_by_is_followed_when_summer_time_begins(make_pool, timezone, foreseen):
    """Work begins at nine. At eight on the Monday after the change it is an hour until then; days of 24 hours have it two."""
    local = [100.0] * 9 + [300.0] * 15
    hours = [*(local * 13), *(local[:2] + local[3:]), *local[:8]]
    column = struct.pack(f"<{len(hours)}f", *(60 * per_min for per_min in hours))
    past = History(SPRING_S, 3600.0, column, column, column)
    begin_s = SPRING_S + 3600.0 * len(hours)
    cold = PoolCapacity(rate_per_s=50 / 60, cold_start_s=5400.0, origin="declared")
    pool = make_pool(max_replicas=60, buffer=False, forecast_timezone=timezone, capacity=cold)
    for minute in range(4):
        decision = pool.at(60.0 * minute, per_min=100, history=past, wall_s=begin_s + 60.0 * minute)
    expected_per_min = 60 * pool.term(decision, "forecast").numbers["expected_per_s"]
    assert (expected_per_min > 160) == foreseen
