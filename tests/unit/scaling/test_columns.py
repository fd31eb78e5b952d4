"""Sums by column are those bucket by bucket, and a memory that comes back as it was told is the one that would be read."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_policy_contract import MODEST, POLICY, any_observation, sane_load, seen

from forebay.domain.signal import Known
from forebay.scaling import arrivals, columns, sustained
from forebay.scaling import memory as memories
from forebay.scaling.economics import misses
from forebay.scaling.memory import BUCKET_S, Bucket, Learnt, Memory
from forebay.scaling.policy import QueueFirst

amount = st.floats(0, 1e4)
bucket = st.builds(Bucket, st.just(0.0), st.floats(0.1, BUCKET_S), amount, st.floats(0, BUCKET_S), amount, amount, amount)


@st.composite
def histories(draw):
    """Buckets in order of time, some with gaps between them, and a moment about their end."""
    start_s, found = draw(st.sampled_from([0.0, 1e6, 1.7e9])), []
    for each in draw(st.lists(bucket, min_size=1, max_size=40)):
        found.append(msgspec.structs.replace(each, start_s=start_s))
        start_s += draw(st.sampled_from([10.0, 10.0, 10.0, 37.0, 400.0]))
    return tuple(found), start_s + draw(st.floats(-60, 60))


@settings(max_examples=60, deadline=None)
@given(histories(), st.floats(1, 1200))
def test_a_window_sums_the_buckets_whose_middle_is_in_it(history, width_s):
    buckets, now_s = history
    inside = [each for each in buckets if each.start_s + BUCKET_S / 2 >= now_s - width_s]
    found = arrivals.summed(buckets, now_s, width_s)
    assert found.seconds == pytest.approx(math.fsum(each.seconds for each in inside))
    assert found.requests == pytest.approx(math.fsum(each.requests for each in inside))


@settings(max_examples=60, deadline=None)
@given(histories(), st.floats(30, 600))
def test_a_slope_that_rises_is_the_least_squares_line_of_the_rates(history, width_s):
    buckets, now_s = history
    run = columns.Run.of(columns.columns(buckets), now_s, now_s - width_s)
    inside = [each for each in buckets if each.start_s >= now_s - width_s]
    points = [(each.start_s - now_s + each.seconds / 2, each.seconds, each.requests) for each in inside]
    seconds = math.fsum(weight for _, weight, _ in points)
    mean_s = math.fsum(at_s * weight for at_s, weight, _ in points) / seconds if points else 0.0
    spread = math.fsum(weight * (at_s - mean_s) ** 2 for at_s, weight, _ in points)
    rise = math.fsum((at_s - mean_s) * requests for at_s, _, requests in points)
    slope, off, rate_per_s = run.climbs(0, len(inside))
    square = math.fsum(at_s**2 * weight for at_s, weight, _ in points)
    lost = 1e-9 * math.fsum(abs(at_s) * requests for at_s, _, requests in points)
    if off:
        assert off == pytest.approx(spread, rel=1e-6, abs=1e-6 * max(1.0, square))
        assert slope == pytest.approx(rise / spread, rel=1e-6, abs=lost / off)
        assert rate_per_s == pytest.approx(math.fsum(requests for _, _, requests in points) / seconds)
    else:
        assert slope == 0
        assert rise <= lost or spread <= 1e-6 * max(1.0, square)


def test_one_bucket_has_no_slope():
    only = (Bucket(1e6, 7.3, 11.0, 7.3, 1.0, 1.0, 1.0),)
    assert columns.Run.of(columns.columns(only), 1e6 + 333.3, 1e6 - 1.0).climbs(0, 1)[0] == 0


def test_what_lies_ahead_of_now_is_in_no_window():
    past, ahead = Bucket(0.0, 10.0, 50.0), Bucket(100.0, 10.0, 9e9)
    assert arrivals._windows((past, ahead), 60.0, True) == arrivals._windows((past,), 60.0, True)


def test_columns_are_of_the_buckets_that_are_asked_for_and_not_of_those_before():
    one, other = (Bucket(0.0, 10.0, 1.0),), (Bucket(0.0, 10.0, 2.0),)
    mutable = [*one]
    assert columns.columns(one).requests == (1.0,)
    assert columns.columns(other).requests == (2.0,)
    assert columns.columns(mutable).requests == (1.0,)
    mutable[0] = other[0]
    assert columns.columns(mutable).requests == (2.0,)


def another():
    """The policy again, that has told nobody anything."""
    return QueueFirst(POLICY._settings, POLICY._capacity, (), "chat")


@MODEST
@given(st.lists(any_observation, min_size=1, max_size=4))
def test_a_policy_remembers_nothing_that_is_not_in_what_it_told(observations):
    kept, memory = another(), b""
    for each in observations:
        observation = msgspec.structs.replace(each, memory=memory)
        decision = kept.decide(observation)
        assert msgspec.msgpack.encode(decision) == msgspec.msgpack.encode(another().decide(observation))
        memory = decision.memory


@MODEST
@given(st.lists(sane_load, min_size=1, max_size=30), st.floats(1, 100))
def test_nor_over_a_stretch_of_sane_looks(loads, step_s):
    kept, memory, now_s, desired = another(), b"", 0.0, 5
    for load in loads:
        now_s += step_s
        observation = msgspec.structs.replace(
            seen(now_s, desired, load, memory),
            arrival_prompt_tokens_per_s=Known(300.0, now_s),
            arrival_output_tokens_per_s=Known(load[2], now_s),
        )
        decision = kept.decide(observation)
        assert msgspec.msgpack.encode(decision) == msgspec.msgpack.encode(another().decide(observation))
        desired, memory = decision.replicas, decision.memory


def test_a_memory_that_was_learned_ill_is_forgotten_though_it_was_kept():
    """What is learned can overflow; reading it back would refuse it, and so does the policy that has just written it."""
    ill = Memory(now_s=5.0, learnt=Learnt(minute_s=5.0, growth=math.inf), buckets=(Bucket(0.0, 5.0, 3.0),))
    well = msgspec.structs.replace(ill, learnt=Learnt(minute_s=5.0, growth=1.5))
    assert memories.proved(ill) == memories.load(memories.dump(ill)) == Memory()
    assert memories.proved(well) == memories.load(memories.dump(well)) == well


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(1, 500), st.floats(0.01, 4)), min_size=2, max_size=40),
    st.floats(1e-5, 0.3),
    st.sampled_from([1e-4, 0.01, 0.05]),
)
def test_the_factor_that_is_fitted_is_the_one_that_halving_finds(parts, missed, allowed):
    requests, uses = (np.array(column) for column in zip(*parts, strict=True))
    low, high = -math.log(sustained.FITTING_MAX), math.log(sustained.FITTING_MAX)
    for _ in range(40):
        middle = (low + high) / 2
        late = float(requests / requests.sum() @ misses(uses * math.exp(middle), allowed))
        low, high = (middle, high) if late < missed else (low, middle)
    # Where a use stands at the bend at which all miss, the secant may end a hundredth off: once in tens of thousands.
    assert math.log(sustained._fitting(sustained.Used(requests, uses, np.ones(len(uses)), False), missed, allowed)) == pytest.approx(
        (low + high) / 2, abs=2e-2
    )
