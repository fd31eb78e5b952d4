"""Who is started, who leaves, who is taken back."""

import pytest

from forebay.domain.replica import ReplicaState as S
from forebay.domain.scaling import ReplicaObservation
from forebay.scaling.starts import to_start
from forebay.scaling.victims import pick, restorable, surplus


def replica(name, state=S.READY, tokens=0.0, asked_s=0.0, overdue=False):
    return ReplicaObservation(id=name, state=state, since_s=0.0, requested_s=asked_s, live_tokens=tokens, overdue=overdue)


def fleet(**counts):
    """``fleet(ready=3, stuck=1)``: stuck is a start that is overdue."""
    return [
        replica(f"{name}-{index}", S.LOADING if name == "stuck" else S(name), overdue=name == "stuck")
        for name, count in counts.items()
        for index in range(count)
    ]


@pytest.mark.parametrize(
    ("counts", "desired", "starts"),
    [
        ({}, 3, 3),
        ({"ready": 3}, 3, 0),
        ({"ready": 5}, 3, 0),
        ({"ready": 2, "loading": 1}, 3, 0),
        ({"ready": 2}, 20, 4),
        ({"ready": 2, "requested": 1, "provisioning": 1, "loading": 1}, 20, 1),
        ({"ready": 2, "loading": 4}, 20, 0),
        ({"ready": 2, "stopped": 1}, 3, 1),
        ({"ready": 2, "failed": 1}, 3, 0),
        ({"ready": 2, "draining": 1}, 3, 1),
        ({"ready": 2, "stuck": 1}, 3, 1),
        ({"stuck": 4}, 5, 0),
        ({"ready": 2, "stuck": 2}, 5, 2),
    ],
)
def test_starts_are_few_at_a_time_and_count_what_is_on_its_way(counts, desired, starts):
    assert to_start(desired, fleet(**counts), starts_max=4) == starts


def test_the_maximum_bounds_everything_that_holds_hardware():
    """Six draining of ten: four ready are wanted to be eight, and there is no room yet."""
    assert to_start(8, fleet(ready=4, draining=6), starts_max=4, replicas_max=10) == 0
    assert to_start(8, fleet(ready=4, draining=4), starts_max=4, replicas_max=10) == 2


@pytest.mark.parametrize(
    ("counts", "desired", "more"),
    [
        ({"ready": 5}, 3, 2),
        ({"ready": 3}, 3, 0),
        ({"ready": 3, "draining": 2}, 3, 0),
        ({"ready": 3, "loading": 1}, 3, 1),
        ({"ready": 2, "failed": 2}, 3, 1),
        ({"ready": 2, "stuck": 1, "loading": 1}, 3, 0),
        ({"ready": 3, "stuck": 1}, 3, 1),
    ],
)
def test_surplus(counts, desired, more):
    assert surplus(desired, fleet(**counts)) == more


def test_starting_and_stopping_agree():
    """Never both at once, or the fleet would churn for ever."""
    for ready in range(5):
        for stuck in range(3):
            for loading in range(3):
                for desired in range(6):
                    replicas = fleet(ready=ready, stuck=stuck, loading=loading)
                    assert not (to_start(desired, replicas, 4) and surplus(desired, replicas))


def test_the_fewest_live_tokens_go_first_and_ties_take_the_newest():
    replicas = [
        replica("busy", tokens=900),
        replica("old", tokens=100, asked_s=1),
        replica("new", tokens=100, asked_s=2),
        replica("idle", tokens=5),
    ]
    assert pick(replicas, 3) == ("idle", "new", "old")


def test_what_serves_nothing_goes_before_what_serves():
    replicas = [
        replica("ready"),
        replica("loading", S.LOADING, asked_s=1),
        replica("newer", S.REQUESTED, asked_s=9),
        replica("stuck", S.LOADING, overdue=True),
        replica("crashed", S.FAILED),
        replica("gone", S.STOPPED),
        replica("leaving", S.DRAINING),
    ]
    assert pick(replicas, 99) == ("crashed", "stuck", "newer", "loading", "ready")
    assert pick(replicas, 0) == pick(replicas, -1) == ()


def test_the_fullest_draining_replica_is_taken_back_first():
    replicas = [replica("ready"), replica("light", S.DRAINING, tokens=1), replica("full", S.DRAINING, tokens=9)]
    assert restorable(replicas, 1) == ("full",)


def test_the_order_does_not_depend_on_the_order_observed():
    replicas = [replica(name, tokens=1.0, asked_s=1.0) for name in "abcd"]
    assert pick(replicas, 2) == pick(list(reversed(replicas)), 2)
