"""What is worth holding: more where demand is uncertain, nothing where it isn't, and never fewer for more demand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.scaling import economics, spread
from forebay.scaling.economics import STEEPNESS, late_by_headroom, misses, prices, whole
from forebay.spec.types import Scaling, Slo

SLO = Slo(attainment=0.99)
SWING = 0.2
"""At which bins of remainders are as wide as those of ratios."""


def seen(*ratios):
    """A histogram of these outcomes alone."""
    counts = np.zeros(spread.BINS)
    for ratio in ratios:
        counts = spread.learned(counts, math.log(ratio) / SWING)
    return spread.of_ratios(counts, SWING)


def headrooms(counts, found):
    return economics.headrooms(late_by_headroom(counts, found.allowed), found)


def test_misses_are_the_allowed_share_at_capacity_and_everything_far_beyond():
    use = np.array([0.5, 1.0, 1.5, 3.0])
    found = misses(use, 0.01)
    assert found[1] == pytest.approx(0.01, rel=0.01)
    assert found[0] == pytest.approx(0.01 * math.exp(-3.5), rel=0.01)
    assert 0.25 < found[2] < 0.35
    assert found[3] > 0.999


def test_at_the_default_price_a_demand_without_surprises_is_held_at_a_use_of_about_one():
    found = prices(Scaling(), SLO, 3.2, 0.0)
    assert found.miss_usd / found.idle_usd == pytest.approx(1 / (STEEPNESS * 0.01))
    start, keep = headrooms(seen(*[1.0] * 50), found)
    assert start < 1.0 < keep
    assert math.sqrt(start * keep) == pytest.approx(1.0, abs=0.05)


def test_uncertainty_and_a_dearer_miss_are_worth_more():
    sure, unsure = seen(*[1.0] * 50), seen(*[0.8, 1.2] * 25)
    usual, dear = prices(Scaling(), SLO, 3.2, 0.0), prices(Scaling(idle_usd=1.0, miss_usd=100.0), SLO, 3.2, 0.0)
    assert headrooms(unsure, usual)[0] > headrooms(sure, usual)[0] + 0.05
    assert headrooms(unsure, dear)[0] > headrooms(unsure, usual)[0]


def test_a_spike_too_rare_to_pay_for_is_not_paid_for():
    """One minute in a thousand at four times the demand: to hold four times as much would cost a thousand idle minutes for it."""
    assert headrooms(seen(*[1.0] * 999, 4.0), prices(Scaling(), SLO, 3.2, 0.0))[0] < 1.2


def test_a_longer_start_widens_the_band_between_starting_and_keeping():
    counts = seen(*[0.9, 1.1] * 25)
    widths = []
    for cold_start_s in (150.0, 360.0, 450.0, 3600.0):
        start, keep = headrooms(counts, prices(Scaling(), SLO, 3.2, cold_start_s))
        widths.append(keep - start)
    assert 0 < widths[0] <= widths[1] < widths[2] <= widths[3]


def test_a_band_that_is_set_stands_for_the_usual_one_and_a_wider_one_starts_later_and_keeps_longer():
    counts, before = seen(*[0.9, 1.1] * 25), None
    for band in (0.0, 0.2, 0.4, 0.6, 0.8, 0.95):
        found = prices(Scaling(start_share=band), SLO, 3.2, 900.0)
        assert found.keep / found.start == pytest.approx((1 - band) ** -2)
        start, keep = headrooms(counts, found)
        assert before is None or (start <= before[0] and keep >= before[1])
        before = start, keep
    assert prices(Scaling(start_share=0.5), SLO, 3.2, 360.0) == prices(Scaling(), SLO, 3.2, 360.0)


@pytest.mark.parametrize("band", [0.0, 0.3, 0.5, 0.8])
def test_over_the_band_as_much_misses_as_at_the_price_itself(band):
    """Misses held are in inverse proportion to the price, and prices spread evenly in their logarithm: nothing else is assumed of the band."""
    found = prices(Scaling(start_share=band), SLO, 3.2, 360.0)
    held = np.exp(np.linspace(math.log(found.start), math.log(found.keep), 10_001))
    assert float((1 / held).mean()) == pytest.approx(found.idle_usd / found.miss_usd, rel=1e-4)


def test_where_changes_go_to_the_middle_and_serve_at_once_as_much_misses_as_at_the_price_itself():
    """As above, weighed by how near to the middle a price is: highest there, nothing at the edges."""
    found = prices(Scaling(start_share=0.6), SLO, 3.2, economics.QUICK_S, swing=economics.SWING_STILL)
    places = np.linspace(-1.0, 1.0, 10_001)
    held = np.exp((math.log(found.start * found.keep) + places * math.log(found.keep / found.start)) / 2)
    assert float(np.average(1 / held, weights=1 - abs(places))) == pytest.approx(found.idle_usd / found.miss_usd, rel=1e-4)


def test_the_band_is_wider_the_less_the_forecast_strays_and_the_longer_a_start_takes():
    swings = (0.3, economics.SWING_RESTLESS, 0.125, economics.SWING_STILL, 0.01)
    for cold_start_s, still in ((30.0, 0.55), (90.0, 0.55), (225.0, 0.6), (360.0, 0.65), (900.0, 0.65)):
        shares = [economics.start_share(cold_start_s, swing) for swing in swings]
        assert shares == sorted(shares)
        assert shares[0] == shares[1] < shares[2] < shares[3] == shares[4] == pytest.approx(still)
    assert economics.start_share(90.0, 0.3) < economics.start_share(900.0, 0.3)


def test_a_declared_band_is_the_same_however_the_forecast_strays():
    settled = Scaling(start_share=0.4)
    assert prices(settled, SLO, 3.2, 360.0, swing=0.05) == prices(settled, SLO, 3.2, 360.0, swing=0.5)


@pytest.mark.parametrize(
    ("replicas", "held"), [(0.0, 0), (0.04, 0), (0.06, 1), (1.0, 1), (1.3, 2), (13.4, 13), (13.5, 14), (float("nan"), 0)]
)
def test_fractions_are_rounded_up_sooner_where_there_are_few(replicas, held):
    assert whole(replicas) == held


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 300), st.floats(0, 300))
def test_more_demand_is_never_worth_fewer(one, other):
    assert whole(min(one, other)) <= whole(max(one, other))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.3, 3.0), min_size=1, max_size=40), st.floats(0.1, 30.0), st.floats(0, 3600))
def test_headrooms_are_sane_whatever_came(ratios, moved, cold_start_s):
    start, keep = headrooms(seen(*ratios), prices(Scaling(), SLO, 1.0, cold_start_s, moved))
    assert 0.7 < start <= keep < 5.0


def test_old_outcomes_fade():
    counts = spread.prior()
    for remainder in (2.0,) * 6000 + (0.0,) * 6000:
        counts = spread.learned(counts, remainder)
    assert counts.sum() == pytest.approx(spread.OUTCOMES_KEPT, rel=0.01)
    assert spread.of_ratios(counts, SWING)[spread.RATIOS > 1.3].sum() < 0.3 * counts.sum()


def test_what_is_no_number_teaches_nothing_and_ill_bytes_are_forgotten():
    counts = spread.prior()
    assert spread.learned(counts, math.nan) is counts
    assert spread.unpacked(b"") is None
    assert spread.unpacked(spread.packed(np.full(spread.BINS, np.nan))) is None
    assert spread.unpacked(spread.packed(counts)) == pytest.approx(counts, rel=1e-6)
