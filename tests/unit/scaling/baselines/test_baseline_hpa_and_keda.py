"""The HPA's arithmetic worked by hand, KEDA's nulls, and the reflex on GPU utilisation."""

import pytest

from forebay.domain.replica import ReplicaState
from forebay.domain.signal import Unknown
from forebay.scaling.baselines.hpa import GpuHpa, HpaSettings, QueueHpa, average_value, per_pod, plain_value
from forebay.scaling.baselines.keda import Keda, KedaSettings
from forebay.scaling.baselines.reading import Gap


def test_average_value_is_shared_out_and_a_tenth_is_tolerated():
    assert average_value(57, 5, 10, 0.1) == 12  # 57 ÷ 5 = 11.4; 1.14 is outside the tolerance
    assert average_value(54, 5, 10, 0.1) == 10  # 1.08 is within
    assert average_value(44, 5, 10, 0.1) == 9  # 8.8
    assert average_value(11, 1, 10, 0.1) == 10  # the trap: one more wanted at ten is exactly a tenth


def test_plain_value_multiplies_the_ready_replicas_only():
    assert plain_value(500, 250, 12, 10, 0.1) == 20  # twice the target, ten of twelve ready
    assert plain_value(260, 250, 12, 10, 0.1) == 12
    assert plain_value(0, 250, 12, 10, 0.1) == 0


def test_a_missing_pod_is_at_its_target_going_down_and_at_zero_going_up():
    # Going up: (9 + 9) ÷ 2 ÷ 5 = 1.8; with the third at 0: 18 ÷ 3 ÷ 5 = 1.2, 1.2 × 3 = 3.6.
    assert per_pod([9.0, 9.0, Gap.ERROR], 5.0, 3, 0, 0, 0.1) == 4
    # Going down: 1 ÷ 5 = 0.2; with the third at 5: 7 ÷ 3 ÷ 5 = 0.47, × 3 = 1.4.
    assert per_pod([1.0, 1.0, Gap.ERROR], 5.0, 3, 0, 0, 0.1) == 2
    # The guess turns the direction: 1.2 × 2 ÷ 3 = 0.8, so nothing is done.
    assert per_pod([6.0, 6.0], 5.0, 3, 0, 1, 0.1) == 3
    assert per_pod([Gap.ERROR, Gap.EMPTY], 5.0, 2, 0, 0, 0.1) is None


def test_pods_not_scheduled_yet_count_as_idle_going_up():
    # 10 ÷ 5 = 2; two pods pending at 0: 20 ÷ 4 ÷ 5 = 1, within the tolerance: hold. Without them: 4.
    assert per_pod([10.0, 10.0], 5.0, 4, 2, 0, 0.1) == 4
    assert per_pod([10.0, 10.0], 5.0, 2, 0, 0, 0.1) == 4


def test_up_at_once_but_at_most_double_or_four_more_each_period(drive):
    pool = drive(QueueHpa(), desired=10)
    assert pool.at(0.0, lanes=400).replicas == 20  # 80 are wanted; 100 % or 4 more, whichever is larger
    assert pool.at(15.0, lanes=400).replicas == 40
    small = drive(QueueHpa(), desired=2)
    assert small.at(0.0, lanes=400).replicas == 6


def test_two_changes_within_one_period_share_its_limit(drive):
    pool = drive(QueueHpa(settings=HpaSettings(up_period_s=60.0)), desired=10)
    assert pool.at(0.0, lanes=400).replicas == 20
    assert pool.at(15.0, lanes=400).replicas == 20
    assert pool.at(60.0, lanes=400).replicas == 40


def test_down_only_to_the_most_of_five_minutes(drive):
    pool = drive(QueueHpa(), desired=10)
    pool.at(0.0, lanes=50)
    assert pool.hold(285, lanes=0) == [10] * 19
    assert pool.at(300.0, lanes=0).replicas == 1


@pytest.mark.parametrize("law", [QueueHpa(), GpuHpa()])
def test_an_hpa_stops_at_one_although_the_pool_may_be_empty_and_never_leaves_zero(drive, law):
    pool = drive(law, desired=2, least=0)
    assert pool.hold(400)[-1] == 1
    assert drive(law, desired=0, least=0).at(0.0, lanes=50).replicas == 0


def test_what_waits_in_lanes_and_engines_is_added(drive):
    decision = drive(QueueHpa(), desired=10).at(0.0, lanes=17, each={"waiting": 4})
    assert drive.term(decision, "queue").replicas == 12  # 17 + 10 × 4 = 57


@pytest.mark.parametrize("why", ["refused", "missing", "nan", "frozen"])
def test_a_bare_hpa_holds_without_its_metric(drive, why):
    pool = drive(QueueHpa(), desired=10)
    pool.at(0.0, lanes=50)
    assert pool.hold(1200, **drive.dark(why)) == [10] * 80


def test_gpu_utilisation_is_near_one_at_almost_any_load_so_it_only_grows(drive):
    pool = drive(GpuHpa(), desired=4, most=40)
    counts = pool.hold(90, each={"gpu": 0.99, "kv": 0.05})
    # 0.99 ÷ 0.8 = 1.2375: 4 → 5 → 7 → 9 → 12 → 15 → 19, without end.
    assert counts == [5, 7, 9, 12, 15, 19]


def test_a_gpu_that_loads_a_model_counts_as_idle_going_up(drive):
    pool = drive(GpuHpa(), desired=5)
    replicas = [pool.replica(index, gpu=0.99) for index in range(4)] + [pool.replica(4, ReplicaState.LOADING)]
    assert pool.at(0.0, replicas=replicas).replicas == 5  # 3.96 ÷ 5 ÷ 0.8 = 0.99: the direction turns


def test_keda_takes_the_larger_of_queue_and_running(drive):
    pool = drive(Keda(), desired=10)
    # Queue: 500 ÷ 250 = 2 × 10 ready = 20. Running: 3,000 ÷ 250 = 12.
    decision = pool.at(0.0, lanes=500, running=3000)
    assert (drive.term(decision, "queue").replicas, drive.term(decision, "running").replicas) == (20, 12)
    assert decision.replicas == 20


def test_keda_reads_an_empty_answer_as_zero_and_an_error_as_an_error(drive):
    for why, last in (("missing", 1), ("nan", 1), ("timeout", 10)):
        pool = drive(Keda(KedaSettings(running_target=25.0)), desired=10)
        pool.at(0.0, running=250)
        assert pool.hold(330, **drive.dark(why))[-1] == last, why


def test_keda_with_one_metric_in_error_may_rise_but_not_fall(drive):
    gone = Unknown("timeout")
    pool = drive(Keda(KedaSettings(running_target=25.0)), desired=10)
    assert pool.at(0.0, lanes=gone, each={"waiting": gone}, running=0).replicas == 10
    assert pool.at(400.0, lanes=gone, each={"waiting": gone}, running=300).replicas == 12


def test_keda_goes_to_zero_after_its_cooldown_and_wakes_on_a_metric(drive):
    pool = drive(Keda(), desired=1, least=0)
    assert pool.at(0.0, lanes=0).replicas == 1
    assert pool.hold(285, lanes=0)[-1] == 1
    assert pool.at(300.0, lanes=0).replicas == 0
    assert pool.at(330.0, lanes=3).replicas == 1


def test_zero_is_a_trap_where_an_empty_answer_is_zero(drive):
    pool = drive(Keda(), desired=0, least=0)
    assert set(pool.hold(600, **drive.dark("missing"))) == {0}
