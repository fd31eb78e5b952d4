"""The shorter a start, the sooner a wrong decision is put right, and the nearer to the promise the policy may go."""

import pytest

from forebay.scaling import economics, outlook
from forebay.spec.types import Scaling, Slo


def at(cold_start_s: float, **settings: float) -> economics.Prices:
    return economics.prices(Scaling(**settings), Slo(attainment=0.99), 1.0, cold_start_s)


def test_misses_are_steered_nearer_to_the_promise_the_shorter_starts_are():
    found = [at(cold_start_s).aim for cold_start_s in (10.0, 90.0, 200.0, 360.0, 900.0)]
    assert found == sorted(found, reverse=True)
    assert found[0] == found[1] == economics.AIM_QUICK < 1
    assert found[3] == found[4] == economics.AIM_SLOW


def test_the_fair_price_is_lowered_more_the_shorter_starts_are():
    found = [at(cold_start_s).moved_min for cold_start_s in (10.0, 90.0, 200.0, 360.0, 900.0)]
    assert found == sorted(found)
    assert found[0] == economics.MOVED_MIN_QUICK < found[-1] == economics.MOVED_MIN_SLOW < 1


@pytest.mark.parametrize(("cold_start_s", "share"), [(5.0, 0.42), (90.0, 0.42), (225.0, 0.46), (360.0, 0.5), (450.0, 0.55), (900.0, 0.6)])
def test_the_band_is_widest_where_a_start_is_dear(cold_start_s, share):
    found = at(cold_start_s)
    assert found.keep / found.start == pytest.approx((1 - share) ** -2)


def test_a_declared_band_is_taken_as_it_is():
    found = at(90.0, start_share=0.2)
    assert found.keep / found.start == pytest.approx(0.8**-2)


def test_the_level_is_of_as_long_as_the_horizon_within_a_minute_and_three():
    strays = economics.SWING_RESTLESS
    assert outlook.level_s(20.0, strays) == outlook.LEVEL_S_MIN == 60.0
    assert outlook.level_s(105.0, strays) < outlook.level_s(150.0, strays)
    assert outlook.level_s(370.0, strays) == outlook.LEVEL_S_MAX == 180.0
    assert outlook.ahead_s(370.0, strays) == 120.0


@pytest.mark.parametrize("horizon_s", [20.0, 105.0, 370.0])
def test_where_the_forecast_hardly_strays_the_level_is_of_the_longest_time(horizon_s):
    swings = (0.3, economics.SWING_RESTLESS, 0.125, economics.SWING_STILL, 0.01)
    widths = [outlook.level_s(horizon_s, swing) for swing in swings]
    assert widths == sorted(widths)
    assert widths[-2] == widths[-1] == outlook.LEVEL_S_MAX
    assert outlook.ahead_s(horizon_s, 0.01) == outlook.LEVEL_S_MAX / 2 + outlook.OUTCOME_S / 2
