"""AIBrix's law by hand, with its faults, and without them."""

import pytest

from forebay.scaling.baselines.aibrix import Apa, ApaSettings


def test_apa_by_hand(drive):
    # 0.65 ÷ 0.5 = 1.3 > 1.1: ceil(10 × 1.3) = 13.
    assert drive(Apa(), desired=10).at(0.0, each={"kv": 0.65}).replicas == 13
    # 0.54 ÷ 0.5 = 1.08: within the tolerance.
    assert drive(Apa(), desired=10).at(0.0, each={"kv": 0.54}).replicas == 10
    # 0.40 ÷ 0.5 = 0.8 < 0.9: 8, at once: its window has nothing lower.
    assert drive(Apa(), desired=10).at(0.0, each={"kv": 0.40}).replicas == 8
    # At most double, at least half.
    assert drive(Apa(ApaSettings(target=0.2)), desired=10).at(0.0, each={"kv": 0.9}).replicas == 20
    assert drive(Apa(), desired=10).at(0.0, each={"kv": 0.01}).replicas == 5


def test_one_low_sample_wins_for_five_minutes(drive):
    """The least of the window, where an HPA takes the most: a dip of 10 s decides what is done minutes later."""
    counts = {}
    for fixed in (False, True):
        pool = drive(Apa(ApaSettings(window_s=10.0, fixed=fixed)), desired=20)
        pool.at(0.0, each={"kv": 0.20})  # Wants 10.
        pool.desired = 20
        pool.at(60.0, each={"kv": 0.44})  # Wants 18.
        counts[fixed] = pool.desired
    assert counts == {False: 10, True: 18}


def test_a_failed_fetch_is_no_load(drive):
    for why in ("refused", "missing"):
        pool = drive(Apa(), desired=16)
        pool.at(0.0, each={"kv": 0.5})
        pool.hold(600, every_s=10.0, **drive.dark(why))
        assert pool.desired == 1, why


@pytest.mark.parametrize("why", ["nan", "frozen"])
def test_a_nan_is_above_and_below_nothing(drive, why):
    pool = drive(Apa(), desired=16)
    pool.at(0.0, each={"kv": 0.5})
    assert set(pool.hold(600, every_s=10.0, **drive.dark(why))) == {16}


def test_fixed_holds_without_metrics_and_leaves_silent_pods_out(drive):
    law = Apa(ApaSettings(fixed=True))
    pool = drive(law, desired=16)
    pool.at(0.0, each={"kv": 0.5})
    assert set(pool.hold(1200, every_s=10.0, **drive.dark("refused"))) == {16}
    half = drive(law, desired=2)
    gone = drive.dark("refused")["each"]
    assert half.at(0.0, replicas=[half.replica(0, kv=0.5), half.replica(1, **gone)]).replicas == 2


def test_replicas_that_start_hold_nothing_back(drive):
    """Every tick adds more while the first ones load: the cascade of its users' complaints."""
    pool = drive(Apa(), desired=4)
    counts = [pool.at(10.0 * look, ready=4, pending=pool.desired - 4, each={"kv": 0.9}).replicas for look in range(3)]
    assert counts == [8, 15, 27]
