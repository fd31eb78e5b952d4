"""Where other autoscalers are tuned for a comparison."""

import numpy as np
import pytest

from forebay.app.lab.training_span import around

BUCKET_S = 300.0
DAY = 288


def day(peak_at=140):
    """Requests by five minutes, a hill around ``peak_at``."""
    return 100.0 + 900.0 * np.exp(-(((np.arange(DAY) - peak_at) / 40.0) ** 2))


def test_it_lies_around_the_busiest_hour_and_keeps_the_bound():
    counts = day()
    first, after = around(counts, BUCKET_S, 30_000.0, 86_400.0)
    assert first < 140 < after
    assert abs((140 - first) - (after - 140)) <= 2
    assert counts[first:after].sum() <= 30_000 < counts[first - 1 : after + 1].sum()


@pytest.mark.parametrize("peak_at", [0, DAY - 1])
def test_at_an_end_it_grows_to_the_other_side(peak_at):
    first, after = around(day(peak_at), BUCKET_S, 1e9, 86_400.0)
    assert (first, after) == (0, DAY)


def test_it_lasts_no_longer_than_said_however_quiet():
    first, after = around(np.ones(3 * DAY), BUCKET_S, 1e9, 86_400.0)
    assert after - first == DAY


def test_one_bucket_there_is_even_where_it_has_too_many():
    first, after = around(np.full(DAY, 5e6), BUCKET_S, 1e6, 86_400.0)
    assert after - first == 1


def test_no_more_is_taken_than_there_is():
    assert around(np.array([3.0]), BUCKET_S, 1e6, 86_400.0) == (0, 1)
