"""Each method on numbers worked by hand, at an origin with a little more than three weeks behind it."""

import math

import numpy as np
import pytest

from forebay.demand.forecast_learning import Outcome, learn
from forebay.demand.forecast_methods import FEATURES, FIXED, METHODS, said
from forebay.demand.forecast_past import Past, framed, level_weight
from forebay.demand.forecast_state import ERROR_FIRST, State, steps_of

HOUR_S = 3600.0
STEPS = np.array([1, 2])
LAST = METHODS.index("last value")


def at_the_end(values) -> dict[str, list[float]]:
    """What the methods say for the next hour and the one after it, as rates."""
    frame = framed(Past(0.0, HOUR_S, np.asarray(values, np.float64)))
    logs = said(frame, np.array([len(values)]), STEPS).logs[0]
    return {name: (np.exp(logs[:, column]) - frame.floor).tolist() for column, name in enumerate(METHODS[:FIXED])}


def test_with_an_hour_of_history_every_method_is_the_last_value_but_the_weekday_which_has_nothing_to_go_by():
    found = at_the_end([10.0])
    assert all(found[name] == pytest.approx([10, 10]) for name in METHODS[: FIXED - 1])
    assert all(math.isnan(value) for value in found["weekday"])


def test_blend_is_the_last_value_now_and_yesterdays_shape_at_todays_level_after_two_hours():
    """Yesterday 10, 20, 40 and today twice that at the first of these hours: 40 is expected, then 80."""
    yesterday = [10.0, 20.0, 40.0, *[15.0] * 21]
    found = at_the_end([*yesterday, 20.0])
    assert found["last value"] == pytest.approx([20, 20])
    assert found["blend"][0] == pytest.approx(math.sqrt(20 * 40), rel=0.02)
    assert found["blend"][1] == pytest.approx(80, rel=0.02)


def test_the_level_of_today_counts_for_three_times_yesterdays_at_most():
    found = at_the_end([10.0, 20.0, 40.0, *[15.0] * 21, 200.0])
    assert found["blend"][1] == pytest.approx(3 * 40, rel=0.05)


def test_the_shape_of_the_week_is_the_mean_growth_of_past_days():
    """One day doubles at this hour, the day before that stays level: the mean of the logs is a factor of √2."""
    found = at_the_end([10.0, *[10.0] * 23, 10.0, 20.0, *[10.0] * 22, 30.0])
    assert found["shape of the week"][0] == pytest.approx(30 * math.sqrt(2), rel=0.02)


@pytest.mark.parametrize(("weeks", "known"), [(2, False), (3, True), (4, True)])
def test_the_weekday_needs_three_weeks_and_takes_their_median(weeks, known):
    growths = [2.0, 3.0, 1.0, 3.0][4 - weeks :]
    values = np.full(weeks * 168 + 1, 10.0)
    values[1 + 168 * np.arange(weeks)] *= growths
    found = at_the_end(values)["weekday"][0]
    if not known:
        assert math.isnan(found)
    else:
        expected = 10 * math.exp(float(np.median(np.log(growths))))
        assert found == pytest.approx(expected, rel=0.02)


def test_an_unknown_bucket_is_no_zero():
    values = np.full(48, 10.0)
    values[[20, 46]] = math.nan
    found = at_the_end(values)
    assert all(found[name] == pytest.approx([10, 10], rel=1e-3) for name in METHODS[: FIXED - 1])


def test_the_newest_bucket_has_half_the_level_at_ten_minutes():
    assert level_weight(600.0) == 0.5


def test_the_learned_horizons_are_whole_buckets_and_none_comes_twice():
    assert steps_of(300.0).tolist() == [1, 2, 4, 6, 9, 12, 18, 24, 48]
    assert steps_of(3600.0).tolist() == [1, 2, 4]


class TestState:
    def test_it_comes_back_from_its_bytes(self):
        state = State(300.0)
        assert State(300.0, state.packed()).packed() == state.packed()
        assert len(state.packed()) < 7_500

    def test_bytes_of_another_shape_and_ill_ones_are_refused(self):
        packed = State(300.0).packed()
        for damaged in (packed[:-4], packed + b"\0\0\0\0", np.full(len(packed) // 4, -1.0, "<f4").tobytes()):
            with pytest.raises(ValueError, match="what was learned is"):
                State(300.0, damaged)

    def test_an_outcome_moves_errors_quantiles_and_coverage_and_an_unknown_one_moves_nothing(self):
        state = State(3600.0)
        count = len(state.steps)
        state.open[:] = [2.0, 2.0, 0.1, 2.0, 2.2, 2.2]
        errors, quantiles = state.errors.copy(), state.quantiles.copy()
        outcome = Outcome(
            2.5, np.full(count, 2.5), np.full(count, 2.0), np.full((count, FIXED), 2.4), np.zeros((count, FEATURES)), np.zeros(count)
        )
        learn(state, outcome._replace(log=math.nan))
        assert (state.errors == errors).all()
        assert state.seen[0] == 1
        learn(state, outcome)
        assert (state.errors[:, LAST] < ERROR_FIRST).all()
        assert (state.errors[:, FIXED] > ERROR_FIRST).all()
        below = quantiles < 5.0  # the outcome was five scales above what had been said
        assert (state.quantiles[below] > quantiles[below]).all()
        assert (state.quantiles[~below] < quantiles[~below]).all()
        assert (state.tries == 1).all()
        assert (state.hits == 0).all()
