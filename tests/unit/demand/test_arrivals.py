"""Made-up arrivals have the rate, the variation and the order that were declared, from the seed alone."""

import random
import statistics
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.demand.arrivals import arrivals, piecewise_linear, sized


def test_a_ramp_brings_as_many_as_its_area_and_more_at_its_end():
    rate_at = piecewise_linear([(0.0, 100 / 60), (600.0, 400 / 60)])
    times = list(arrivals(rate_at, 600.0, random.Random(3)))
    assert len(times) == pytest.approx(2500, abs=150)
    first, last = sum(at_s < 60 for at_s in times), sum(at_s >= 540 for at_s in times)
    assert first == pytest.approx(115, abs=35)
    assert last == pytest.approx(385, abs=60)


def test_without_variation_they_come_exactly_where_the_integral_says():
    times = list(arrivals(piecewise_linear([(0.0, 0.0), (10.0, 10.0)]), 10.0, random.Random(0), cv=0.0))
    assert times == pytest.approx([(2 * number) ** 0.5 for number in range(1, 50)])


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_gaps_vary_as_asked(cv):
    times = list(arrivals(lambda _: 10.0, 600.0, random.Random(5), cv=cv))
    gaps = [later - sooner for sooner, later in pairwise(times)]
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(cv, rel=0.15)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10), st.lists(st.floats(0.0, 20.0), min_size=2, max_size=6), st.floats(0.1, 50.0))
def test_times_rise_stay_inside_and_repeat(seed, rates, until_s):
    rate_at = piecewise_linear([(10.0 * number, rate) for number, rate in enumerate(rates)])
    times = list(arrivals(rate_at, until_s, random.Random(seed)))
    assert times == sorted(times)
    assert all(0 <= at_s < until_s for at_s in times)
    assert times == list(arrivals(rate_at, until_s, random.Random(seed)))


def test_nothing_comes_where_the_rate_is_zero():
    rate_at = piecewise_linear([(0.0, 0.0), (100.0, 0.0), (101.0, 50.0), (110.0, 50.0)])
    times = list(arrivals(rate_at, 110.0, random.Random(1)))
    assert times
    assert min(times) > 100.0


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_an_impossible_rate_is_refused(rate):
    with pytest.raises(ValueError, match="rate"):
        list(arrivals(lambda _: rate, 10.0, random.Random(1)))


def test_bad_corners_and_variations_are_refused():
    with pytest.raises(ValueError, match="rising"):
        piecewise_linear([(1.0, 1.0), (1.0, 2.0)])
    with pytest.raises(ValueError, match="variation"):
        list(arrivals(lambda _: 1.0, 1.0, random.Random(1), cv=-1.0))


def test_lengths_have_the_declared_means():
    fixed = list(sized([0.0, 1.0], 100, 20, random.Random(1), tier="a"))
    assert [(row.prompt_tokens, row.output_tokens, row.tier) for row in fixed] == [(100, 20, "a")] * 2
    varied = list(sized([0.0] * 4000, 100, 20, random.Random(1), cv=1.0))
    assert statistics.mean(row.prompt_tokens for row in varied) == pytest.approx(100, rel=0.08)
    assert statistics.mean(row.output_tokens for row in varied) == pytest.approx(20, rel=0.08)
    assert len({row.prompt_tokens for row in varied}) > 100
