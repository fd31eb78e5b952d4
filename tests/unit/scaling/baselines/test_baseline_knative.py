"""Knative's windows, panic and limits, by hand: target 70 in flight per replica unless told otherwise."""

from forebay.domain.signal import Unknown
from forebay.scaling.baselines.knative import Knative, KnativeSettings


def test_the_stable_window_divided_by_the_target(drive):
    pool = drive(Knative(), desired=1)
    # 35 in flight for 60 s: ceil(35 ÷ 70) = 1; then 210 in the last sample of two.
    assert pool.at(0.0, running=35).replicas == 1
    # Mean over 60 s: (35 + 175) ÷ 2 = 105 → 2; panic window (6 s): 175 → 3, and 3 ÷ 1 ready ≥ 2: panic.
    decision = pool.at(30.0, running=175)
    assert drive.term(decision, "stable").replicas == 2
    assert decision.replicas == 3
    assert decision.reason == "panic"


def test_panic_never_falls_until_it_was_below_for_a_whole_window(drive):
    pool = drive(Knative(), desired=1)
    pool.at(0.0, running=700)
    assert pool.desired == 10
    counts = pool.hold(60, every_s=2.0, running=70)
    assert set(counts) == {10}
    # At 62 s: below for more than 60 s, and the stable window holds 70 only: 1, but not below floor(10 ready ÷ 2) = 5.
    assert pool.at(62.0, running=70).replicas == 5


def test_a_scaler_that_starts_over_several_replicas_starts_in_panic(drive):
    pool = drive(Knative(), desired=8)
    assert pool.at(0.0, running=0).replicas == 8
    assert pool.at(61.0, running=0).replicas == 4


def test_pending_replicas_count_for_nothing(drive):
    pool = drive(Knative(), desired=10)
    pool.at(0.0, ready=4, pending=6, running=700)
    assert pool.at(2.0, ready=4, pending=6, running=700).replicas == 10  # 700 ÷ 70, however many are on their way


def test_what_waits_counts_as_the_activators_would(drive):
    pool = drive(Knative(), desired=1)
    assert pool.at(0.0, running=35, lanes=70).replicas == 2


def test_no_data_holds(drive):
    pool = drive(Knative(), desired=10)
    pool.at(0.0, running=700)
    assert set(pool.hold(3600, **drive.dark("refused"))) == {10}


def test_a_delay_keeps_the_most_of_its_window(drive):
    pool = drive(Knative(KnativeSettings(scale_down_delay_s=120.0)), desired=2)
    pool.at(0.0, running=140)
    pool.hold(118, every_s=2.0, running=0)
    assert pool.desired == 2
    pool.hold(70, every_s=2.0, running=0)
    assert pool.desired == 1


def test_one_gap_is_bridged_by_the_window(drive):
    pool = drive(Knative(), desired=3)
    pool.at(0.0, running=210)
    gone = Unknown("timeout")
    assert pool.at(10.0, running=gone, lanes=gone, each={"waiting": gone, "running": gone}).replicas == 3
