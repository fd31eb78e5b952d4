"""Timelines as columns: sums and means stay right, peaks survive, what isn't known stays so."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_runs import minute

from forebay.app.report.columns import breaches, sampled_bound, timeline
from forebay.app.report.content import BoundDrawn


def test_few_rows_are_drawn_as_they_are():
    lines = timeline([minute(0, arrived=120), minute(1, reason="queue", lanes_waiting=7)])
    assert lines["at_s"] == [60, 120]
    assert lines["rate"] == [2, 1]
    assert lines["lanes"] == [0, 7]
    assert [lines["reasons"][index] for index in lines["reason"]] == ["demand", "queue"]
    assert lines["reason_share"] == [0.5, 0.5]


@given(st.lists(st.integers(0, 500), min_size=1, max_size=80), st.integers(1, 12))
def test_no_arrival_and_no_peak_is_lost(counts, points):
    rows = [minute(number, arrived=count, lanes_waiting=count, ready=count) for number, count in enumerate(counts)]
    lines = timeline(rows, points)
    assert len(lines["at_s"]) <= points
    widths = [until - since for since, until in zip([0, *lines["at_s"]], lines["at_s"], strict=False)]
    assert sum(rate * width for rate, width in zip(lines["rate"], widths, strict=True)) == pytest.approx(sum(counts), rel=1e-3, abs=1e-6)
    assert sum(ready * width for ready, width in zip(lines["ready"], widths, strict=True)) == pytest.approx(60 * sum(counts), rel=1e-3)
    assert max(lines["lanes"]) == max(counts)


def test_what_is_not_known_stays_so_and_does_not_hide_what_is():
    rows = [minute(0, ttft_p95_s=math.nan), minute(1, ttft_p95_s=math.nan), minute(2, ttft_p95_s=math.nan), minute(3, ttft_p95_s=3.0)]
    assert timeline(rows, 2)["ttft"] == [None, 3]


def test_what_is_kept_is_drawn_of_the_worst_minute_as_breaches_are():
    """A mean over the minutes of a point lay above the promise under a red band."""
    rows = [minute(0), minute(1, both_met=50, missed=10), minute(2), minute(3, both_met=0, missed=0)]
    lines = timeline(rows, 1)
    assert lines["kept"] == [pytest.approx(50 / 60, abs=1e-5)]
    assert breaches(rows, 0.99) == [(60, 120)]
    assert timeline(rows[3:])["kept"] == [None]


def test_no_timeline_draws_nothing():
    assert timeline([])["at_s"] == []
    assert breaches([], 0.99) == []


def test_breaches_are_runs_of_rows_under_the_promise():
    kept, broken, idle = {"both_met": 99, "missed": 1}, {"both_met": 98, "missed": 2}, {"both_met": 0, "missed": 0}
    rows = [minute(number, **row) for number, row in enumerate([kept, broken, broken, idle, kept, broken])]
    assert breaches(rows, 0.99) == [(60, 180), (300, 360)]


def test_the_bound_is_what_was_paid_for_at_each_moment():
    bound = BoundDrawn(1.0, ((30.0, 2), (60.0, 5), (90.0, 1)))
    assert sampled_bound(bound, [15.0, 30.0, 75.0, 600.0]) == [None, 2, 5, 1]


def test_why_is_kept_once_for_each_form_and_its_numbers_at_each_point():
    said = ["798.1/min arrive, 1,200 wait", "801/min arrive, 3 wait", "801/min arrive, 3 wait", "never fewer than 1"]
    lines = timeline([minute(number, because=because) for number, because in enumerate(said)])
    assert lines["forms"] == ["#/min arrive, # wait", "never fewer than #"]
    assert lines["because"] == [[0, "798.1", "1,200"], [0, "801", "3"], 0, [1, "1"]]


def test_of_several_minutes_the_sentence_is_of_the_reason_that_is_drawn():
    rows = [minute(0, reason="demand", because="a"), minute(1, reason="demand", because="b"), minute(2, reason="queue", because="c")]
    lines = timeline(rows, 1)
    assert (lines["reasons"][lines["reason"][0]], lines["forms"], lines["because"]) == ("demand", ["b"], [[0]])


def test_a_week_s_sentences_stay_small():
    rows = [
        minute(number, because=f"{number * 1.7:.1f}/min arrive, one replica serves {number}/min: at least 2 over 16m")
        for number in range(10_080)
    ]
    lines = timeline(rows)
    assert len(json.dumps({name: lines[name] for name in ("forms", "because")})) < 80_000
