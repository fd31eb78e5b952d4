"""Scaling keeps the order and the rate asked for; a window is half open and counted from its start."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.demand.span import COPY_JITTER_S, HELD_MAX, scaled, tiered, window
from forebay.demand.trace import TraceRow
from forebay.domain.errors import BadInput


def every_second(count: int) -> list[TraceRow]:
    return [TraceRow(float(second), second + 1, 1) for second in range(count)]


@settings(max_examples=30, deadline=None)
@given(st.floats(0.05, 4.0), st.integers(0, 5))
def test_scaled_rows_are_ordered_repeatable_and_as_many_as_asked(factor, seed):
    rows = every_second(400)
    found = list(scaled(rows, factor, random.Random(seed)))
    assert found == list(scaled(rows, factor, random.Random(seed)))
    assert [row.at_s for row in found] == sorted(row.at_s for row in found)
    assert abs(len(found) - 400 * factor) < 60


def test_copies_come_within_the_jitter_of_their_original():
    for row in scaled(every_second(50), 3.0, random.Random(1)):
        assert 0 <= row.at_s - (row.prompt_tokens - 1) <= COPY_JITTER_S


def test_the_factor_one_changes_nothing():
    rows = every_second(5)
    assert list(scaled(rows, 1.0, random.Random(1))) == rows


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_factor_that_is_no_rate_is_refused(factor):
    with pytest.raises(ValueError, match="positive"):
        scaled([], factor, random.Random(1))


@pytest.mark.parametrize("factor", [1e9, HELD_MAX + 1.0, 1e300])
def test_more_copies_than_memory_holds_are_refused_before_they_are_made(factor):
    """A billion copies of one row were held before the first was counted."""
    with pytest.raises(BadInput, match="scale it by less"):
        next(scaled([TraceRow(0.0, 1, 1)], factor, random.Random(1)))


def test_a_window_is_half_open_and_reads_no_further():
    source = iter(every_second(100))
    assert [(row.at_s, row.prompt_tokens) for row in window(source, 10.0, 3.0)] == [(0.0, 11), (1.0, 12), (2.0, 13)]
    assert next(source).at_s == 14.0


def test_tiers_are_drawn_by_weight_and_named_ones_kept():
    rows = [TraceRow(0.0, 1, 1, "mine"), *every_second(1000)]
    found = [row.tier for row in tiered(rows, {"a": 3.0, "b": 1.0}, random.Random(1))]
    assert found[0] == "mine"
    assert 700 < found.count("a") < 800
    assert found.count("a") + found.count("b") == 1000
