"""Drift and swing: what the shape of demand tells about where it will be, once outcomes have proven it; nothing before."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.scaling import drift
from forebay.scaling.memory import BUCKET_S, Bucket

CALM = drift.Traits((0.0,) * drift.TRAITS, 0.0)
ABOVE = drift.Traits((0.4, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0)


def taught(outcomes, traits=ABOVE):
    """Regressions after these ratios of what came to what was expected *without* drift, each of demand with ``traits``."""
    found = drift.Regressions()
    for ratio in outcomes:
        told, _, noted = found.told(traits)
        found.learn(ratio / math.exp(told), noted, 1.0)
    return found


def test_without_outcomes_there_is_no_drift_and_the_usual_swing():
    told, swing, _ = drift.Regressions().told(ABOVE)
    assert told == 0.0
    assert swing == pytest.approx(drift.SWING_FIRST)


def test_a_level_above_its_mean_that_always_falls_back_is_expected_to():
    found = taught([0.7] * 600)
    assert found.told(ABOVE)[0] == pytest.approx(math.log(0.7), abs=0.05)
    assert found.told(CALM)[0] == pytest.approx(0.0, abs=0.01)


def test_a_level_that_goes_on_climbing_is_expected_to_climb():
    assert taught([1.3] * 600).told(ABOVE)[0] > 0.2


def test_slight_moves_that_fall_back_are_noise_while_large_ones_stay():
    """A level that moved by 5 % is back at the horizon, one that moved by 40 % is not: one slope could not say both."""
    slight, large = (drift.Traits((0.0, 0.0, moved, 0.0, 0.0, drift.STRETCH * min(moved, drift.SLIGHT)), 0.0) for moved in (0.05, 0.4))
    found = drift.Regressions()
    for _ in range(600):
        for traits, strayed in ((slight, -0.05), (large, 0.0)):
            told, _, noted = found.told(traits)
            found.learn(math.exp(strayed - told), noted, 1.0)
    assert -0.05 < found.told(slight)[0] < -0.03
    assert found.told(large)[0] == pytest.approx(0.0, abs=0.02)


def test_a_level_that_moved_far_is_less_sure_than_one_that_stood():
    found = drift.Regressions()
    stood, moved = CALM, drift.Traits((0.0, 0.0, 0.4, 0.0, 0.0, drift.STRETCH * drift.SLIGHT), 0.0)
    for _ in range(300):
        for traits, strayed in ((stood, 0.03), (moved, 0.3), (stood, -0.03), (moved, -0.3)):
            told, _, noted = found.told(traits)
            found.learn(math.exp(strayed - told), noted, 1.0)
    assert found.told(moved)[1] > 1.5 * found.told(stood)[1]


def test_restless_outcomes_widen_the_swing_and_steady_ones_narrow_it():
    restless, steady = taught([0.6, 1.6] * 300, CALM).told(CALM)[1], taught([0.98, 1.02] * 300, CALM).told(CALM)[1]
    assert restless > 2 * drift.SWING_FIRST
    assert steady < 0.6 * drift.SWING_FIRST


def test_remainders_come_in_units_of_the_swing_that_was_told():
    found = drift.Regressions()
    _, swing, noted = found.told(CALM)
    assert found.learn(math.exp(2 * swing), noted, 1.0) == pytest.approx(2.0, rel=1e-3)


def test_it_travels_as_bytes_and_ill_bytes_are_forgotten():
    found = taught([0.7] * 50)
    assert drift.Regressions(found.packed()).told(ABOVE)[:2] == found.told(ABOVE)[:2]
    for ill in (b"x", np.full(drift._COUNT, np.nan).tobytes()):
        assert drift.Regressions(ill).told(ABOVE) == drift.Regressions().told(ABOVE)


@pytest.mark.parametrize("noted", [b"", b"short", np.full(2 * drift.TRAITS + 2, np.nan, "<f4").tobytes()])
def test_what_is_no_outcome_teaches_nothing(noted):
    found = drift.Regressions()
    before = found.packed()
    assert found.learn(1.0, noted, 1.0) is None
    assert found.learn(math.nan, found.told(CALM)[2], 1.0) is None
    assert found.packed() == before


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.lists(st.floats(-1.5, 1.5), min_size=drift.TRAITS, max_size=drift.TRAITS))
def test_drift_and_swing_are_bounded_whatever_came(ratios, shape):
    traits = drift.Traits(tuple(shape), shape[0])
    told, swing, _ = taught(ratios, traits).told(traits)
    assert abs(told) <= drift.DRIFT_MAX
    assert drift.SWING_MIN <= swing <= drift.SWING_MAX


def test_the_shape_is_read_off_the_last_minutes_and_hours():
    buckets = [Bucket(at * BUCKET_S, BUCKET_S, BUCKET_S * (10.0 if at < 72 else 20.0)) for at in range(90)]
    found = drift.traits(20.0, 1.0, buckets, 900.0, np.full(288, 10.0), 300.0)
    level, hour, before, minute, growth, slight = found.drift
    assert level == pytest.approx(math.log(20 / 12), abs=0.02)
    assert hour == pytest.approx(math.log(1.2), abs=0.02)
    assert before == pytest.approx(math.log(2.0), abs=0.02)
    assert slight == drift.STRETCH * drift.SLIGHT
    assert minute == growth == 0.0
    assert found.above_usual == pytest.approx(math.log(2.0))


def test_what_is_not_known_of_the_past_is_level():
    assert drift.traits(20.0, 1.0, [], 900.0, np.full(288, np.nan), 300.0) == CALM
