"""kthena by hand: ratios with missing pods, steps, windows, and the panic."""

import pytest

from forebay.scaling.baselines.kthena import Kthena, KthenaSettings, recommended
from forebay.scaling.baselines.reading import Gap


def test_ratios_as_an_hpas():
    assert recommended([8.0, 8.0], 5.0, 2, 0, 0.1) == 4  # 1.6 × 2 = 3.2
    assert recommended([5.4, 5.4], 5.0, 2, 0, 0.1) == 2
    assert recommended([9.0, 9.0, Gap.ERROR], 5.0, 3, 0, 0.1) == 4  # 18 ÷ 3 ÷ 5 = 1.2, × 3 = 3.6
    assert recommended([1.0, 1.0, Gap.ERROR], 5.0, 3, 0, 0.1) == 2  # (2 + 5) ÷ 3 ÷ 5 = 0.47, × 3 = 1.4
    assert recommended([10.0, 10.0], 5.0, 4, 2, 0.1) == 4  # 20 ÷ 4 ÷ 5 = 1
    assert recommended([], 5.0, 4, 0, 0.1) is None


def test_up_by_one_or_double_a_period_and_panic_without_bound(drive):
    pool = drive(Kthena(), desired=4)
    assert pool.at(0.0, each={"waiting": 9}).replicas == 8  # 1.8 × 4 = 7.2, below twice: stable, at most 8
    wild = drive(Kthena(), desired=4)
    decision = wild.at(0.0, each={"waiting": 50})
    assert (decision.replicas, decision.reason) == (40, "waiting")
    assert drive.term(decision, "panic").replicas == 40


def test_panic_only_grows_for_a_minute_then_five_minutes_hold(drive):
    pool = drive(Kthena(), desired=4)
    pool.at(0.0, each={"waiting": 10})
    assert pool.desired == 8
    assert set(pool.hold(60, each={"waiting": 0})) == {8}
    assert pool.at(75.0, each={"waiting": 0}).reason == "stable"
    assert pool.desired == 8
    pool.hold(210, each={"waiting": 0})
    assert pool.desired == 8  # 8 was wanted at 0 s
    pool.at(300.0, each={"waiting": 0})
    assert pool.desired == 1


def test_a_panic_period_bounds_the_growth(drive):
    law = Kthena(KthenaSettings(panic_period_s=30.0, panic_fraction=1.0))
    assert drive(law, desired=4).at(0.0, each={"waiting": 50}).replicas == 8


@pytest.mark.parametrize("why", ["refused", "missing", "nan"])
def test_no_metric_at_all_skips_the_tick(drive, why):
    pool = drive(Kthena(), desired=9)
    pool.at(0.0, each={"waiting": 5})
    assert set(pool.hold(1800, **drive.dark(why))) == {9}
