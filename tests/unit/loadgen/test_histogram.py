"""Quantiles are within 0.5 % of the exact ones, and histograms add up."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.loadgen.histogram import LEAST_S, MOST_S, Histogram

DURATIONS = st.lists(st.floats(LEAST_S, MOST_S), min_size=1, max_size=60)


@settings(max_examples=50, deadline=None)
@given(DURATIONS, st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_a_quantile_is_that_of_the_sorted_list(values, fraction):
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[math.ceil(fraction * len(values)) - 1]
    assert histogram.quantile(fraction) == pytest.approx(exact, rel=0.0051)
    assert histogram.total_s == pytest.approx(sum(values))


@settings(max_examples=20, deadline=None)
@given(DURATIONS, DURATIONS)
def test_merging_is_adding(left, right):
    parts, whole = [Histogram(), Histogram()], Histogram()
    for part, values in zip(parts, (left, right), strict=True):
        for value in values:
            part.add(value)
            whole.add(value)
    parts[0].merge(parts[1])
    assert parts[0].counts == whole.counts
    assert (parts[0].count, parts[0].least_s, parts[0].most_s) == (whole.count, whole.least_s, whole.most_s)


def test_weights_count():
    histogram = Histogram()
    histogram.add(1.0, 99)
    histogram.add(100.0)
    assert histogram.count == 100
    assert histogram.quantile(0.99) == pytest.approx(1.0, rel=0.0051)
    assert histogram.quantile(1.0) == pytest.approx(100.0, rel=0.0051)


def test_the_empty_and_the_extreme():
    histogram = Histogram()
    assert histogram.quantile(0.5) is None
    histogram.add(0.0)
    assert histogram.quantile(0.5) == 0.0
    histogram.add(1e12)
    assert histogram.quantile(1.0) == pytest.approx(MOST_S, rel=0.02)
