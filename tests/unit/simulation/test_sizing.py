"""The arithmetic of a pool's size: exact, so that no dust of floating point ever buys a replica."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.simulation import sizing
from forebay.simulation.sizing import Facts


def worked(**changes) -> sizing.Plan:
    """The worked case: 12 requests/s per replica at 70 %."""
    facts = {
        "replica_per_s": Fraction(12),
        "target": Fraction("0.7"),
        "peak_per_s": Fraction(400),
        "trough_per_s": Fraction(80),
        "average_replicas": Fraction(25),
        "gpus_per_replica": 4,
        "gpu_hour_usd": Fraction("2.5"),
        "ramp_per_s2": Fraction(7, 60),
        "cold_start_s": Fraction(360),
    }
    return sizing.plan(Facts(**{**facts, **changes}))


def test_peak_and_trough_and_the_bill():
    planned = worked()
    assert (planned.peak_replicas, planned.peak_gpus) == (48, 192)
    assert (planned.trough_replicas, planned.trough_gpus) == (10, 40)
    assert (planned.static_month_usd, planned.autoscaled_month_usd, planned.saved_month_usd) == (350_400, 182_500, 167_900)


@pytest.mark.parametrize(("cold_start_s", "qps", "ratio", "buffer"), [(360, 42, 5.0, 5), (90, 10.5, 1.25, 2)])
def test_headroom_is_what_arrives_during_a_cold_start(cold_start_s, qps, ratio, buffer):
    planned = worked(cold_start_s=Fraction(cold_start_s))
    assert (planned.headroom_qps, planned.headroom_ratio, planned.buffer_replicas) == (qps, ratio, buffer)


def test_the_same_in_floating_point_would_buy_a_replica_too_many():
    assert math.ceil(42 / (12 * 0.7)) == 6


def test_a_rise_by_the_minute():
    planned = sizing.plan(
        Facts(replica_per_s=Fraction(50, 60), ramp_per_s2=Fraction(300, 60 * 600), cold_start_s=Fraction(300), gpu_hour_usd=Fraction(3))
    )
    assert (planned.buffer_replicas, planned.buffer_hour_usd, planned.buffer_day_usd) == (3, 9, 216)
    assert (planned.peak_replicas, planned.static_month_usd, planned.saved_month_usd, planned.floor_replicas) == (None, None, None, None)


def test_spares_are_paid_for_and_stand_in_min_and_max():
    planned = worked(spares=3)
    assert (planned.floor_replicas, planned.ceiling_replicas) == (13, 48 + 5 + 3)
    assert planned.static_month_usd == (48 + 3) * 4 * 2.5 * 730


@given(peak=st.integers(0, 500), domains=st.integers(2, 9))
def test_spares_for_a_lost_domain_are_the_fewest(peak, domains):
    def left(replicas: int) -> int:
        return replicas - math.ceil(replicas / domains)

    spares = sizing.spares_over(peak, domains)
    assert left(peak + spares) >= peak
    assert spares == 0 or left(peak + spares - 1) < peak


def test_one_domain_has_no_spares():
    with pytest.raises(ValueError, match="loses everything"):
        sizing.spares_over(10, 1)


@given(
    rate=st.fractions(min_value=Fraction(1, 100), max_value=1000, max_denominator=1000),
    peak=st.fractions(min_value=0, max_value=100_000, max_denominator=1000),
)
def test_the_peak_fits_and_one_replica_fewer_would_not_hold_it(rate, peak):
    replicas = sizing.plan(Facts(replica_per_s=rate, peak_per_s=peak)).peak_replicas
    assert replicas is not None
    assert replicas * rate >= peak
    assert replicas == 0 or (replicas - 1) * rate < peak


@pytest.mark.parametrize(
    "ill",
    [
        {"replica_per_s": Fraction(0)},
        {"target": Fraction(0)},
        {"target": Fraction(11, 10)},
        {"gpus_per_replica": 0},
        {"peak_per_s": Fraction(-1)},
        {"spares": -1},
        {"gpu_hour_usd": Fraction(-1)},
    ],
)
def test_what_cannot_be_is_refused(ill):
    with pytest.raises(ValueError, match=next(iter(ill))):
        worked(**ill)


def test_a_trace_gives_peak_trough_average_and_the_rise_within_a_cold_start():
    found = sizing.demand([1.0, 1.0, 2.0, 5.0, math.nan, 5.0, 1.0], Fraction(60), Fraction(2), Fraction(90))
    assert (found.peak_per_s, found.trough_per_s, found.mean_per_s) == (5, 1, Fraction(15, 6))
    # 90 s are two buckets: from 1/s to 5/s in two minutes.
    assert found.ramp_per_s2 == Fraction(4, 120)
    assert found.mean_replicas == Fraction(1 + 1 + 1 + 3 + 3 + 1, 6)


def test_one_steep_moment_in_a_thousand_is_chance():
    rates = [*[1.0] * 998, 100.0, 1.0]
    assert sizing.demand(rates, Fraction(60), Fraction(1), Fraction(60)).ramp_per_s2 == 0
    assert sizing.demand(rates[900:], Fraction(60), Fraction(1), Fraction(60)).ramp_per_s2 == Fraction(99, 60)


def test_a_trace_of_which_nothing_is_known_has_no_demand():
    with pytest.raises(ValueError, match="no bucket"):
        sizing.demand([math.nan], Fraction(60), Fraction(1), Fraction(60))


def test_dust_of_floating_point_is_dropped():
    assert sizing.exactly(0.1 + 0.2) == Fraction("0.3")
