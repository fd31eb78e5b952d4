"""The HPA and KEDA by their published rules, worked by hand, and what they make of decisions in a run."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slot_fleet import Watcher, played, scenario

from forebay.domain.errors import BadInput
from forebay.simulation.actuators import Hpa, actuator
from forebay.simulation.scripted import Scripted, Static
from forebay.simulation.values import Actuator

HPA = Actuator("hpa")


def hpa(target, least=1, most=100, **settings):
    return Hpa(Actuator("hpa", **settings), target, least, most)


def synced(it, decided, from_s=15.0, present=None):
    """Targets after each sync, one decision each, 15 s apart."""
    told = []
    for place, replicas in enumerate(decided):
        now_s = from_s + 15.0 * place
        it.decided(replicas, now_s)
        it.sync(0, now_s, it.target if present is None else present)
        told.append(it.target)
    return told


def test_within_the_tolerance_nothing_changes():
    assert synced(hpa(20), [21, 22, 18, 19]) == [20, 20, 20, 20], "22 ÷ 20 is 1.1, and 0.1 is tolerated"
    assert synced(hpa(20), [23]) == [23]
    assert synced(hpa(9), [10]) == [10], "a change by one of nine is 11 %"
    assert synced(hpa(11), [12]) == [11], "of eleven it is swallowed"


def test_up_by_the_larger_of_double_and_four_each_period():
    assert synced(hpa(1), [50] * 4) == [5, 10, 20, 40]
    assert synced(hpa(10), [50] * 3) == [20, 40, 50]


def test_what_was_added_within_the_period_counts_against_it():
    it = hpa(10, sync_s=5.0)
    for now_s in (5.0, 10.0, 15.0):
        it.decided(50, now_s)
        it.sync(0, now_s, it.target)
    assert it.target == 20
    it.sync(0, 20.0, it.target)
    assert it.target == 40, "the step at 5 s is 15 s old"


def test_down_only_to_the_highest_recommendation_of_five_minutes():
    it = hpa(10)
    told = synced(it, [10] + [2] * 25)
    assert told[:20] == [10] * 20, "the 10 of the first sync is less than 300 s old"
    assert told[20] == 2
    held = hpa(10)
    assert synced(held, [2] * 25)[0] == 2, "with nothing on record there is nothing to hold"


def test_up_only_to_the_lowest_recommendation_of_its_window():
    told = synced(hpa(4, up_stabilisation_s=60.0), [4] + [8] * 6)
    assert told == [4, 4, 4, 4, 8, 8, 8], "the 4 is held for four syncs of 15 s"
    assert synced(hpa(4, up_stabilisation_s=60.0), [4, 8, 6, 8, 8, 8, 8]) == [4, 4, 4, 4, 6, 6, 8]
    assert synced(hpa(6, up_stabilisation_s=60.0), [6] * 4 + [2, 9] * 2) == [6] * 8, "between the two windows it stays where it is"


def test_a_peak_in_between_is_what_it_comes_down_to():
    it = hpa(10)
    told = synced(it, [10, 10, 6] + [3] * 30)
    assert told[20:23] == [10, 6, 3]


def test_never_below_one_nor_beyond_its_bounds():
    assert synced(hpa(3, down_stabilisation_s=0.0), [0]) == [1]
    assert synced(hpa(3, least=2, down_stabilisation_s=0.0), [0]) == [2]
    assert synced(hpa(3, most=5), [50]) == [5]


@settings(max_examples=40)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=60), st.integers(1, 40))
def test_it_stays_within_its_rules_whatever_is_decided(decided, start):
    it = hpa(start, most=40)
    before = [start]
    for target in synced(it, decided):
        assert 1 <= target <= 40
        assert target <= max(2 * before[-1], before[-1] + 4)
        before.append(target)


def test_keda_wakes_from_zero_at_its_poll_and_sleeps_after_the_cooldown():
    it = hpa(1, least=0)
    assert it.syncs_s == (15.0, 30.0)
    it.decided(0, 0.0)
    told = {}
    for now_s in range(30, 420, 30):
        it.sync(0, float(now_s), it.target)
        it.sync(1, float(now_s), it.target)
        told[now_s] = it.target
    assert (told[270], told[300]) == (1, 0)
    it.decided(3, 421.0)
    it.sync(0, 425.0, 0)
    assert it.target == 0, "an HPA of a scale of zero does nothing"
    it.sync(1, 450.0, 0)
    assert it.target == 1
    it.sync(0, 455.0, 1)
    assert it.target == 3


def test_without_zero_there_is_no_poll():
    assert hpa(1, least=1).syncs_s == (15.0,)


def test_behind_an_hpa_a_run_moves_at_syncs_and_never_calls_a_drain_off():
    watcher = Watcher(lambda seen: 2 if seen.now_s < 60 else 20)
    world = scenario(300.0, initial_replicas=2, max_replicas=30, actuator=HPA)
    result, _ = played(world, watcher)
    assert [seen.desired for seen in watcher.seen if seen.now_s in (60.0, 75.0)] == [2, 20], "the policy's own last word"
    counts = {seen.now_s: len(seen.replicas) for seen in watcher.seen}
    assert [counts[at_s] for at_s in (60.0, 75.0, 90.0, 105.0)] == [2, 6, 12, 20]
    assert result.scale_actions == 3
    steps = [(0.0, 3), (60.0, 1), (75.0, 3)]
    quick = Actuator("hpa", down_stabilisation_s=0.0)
    arrivals_cut, fleet = played(scenario(120.0, initial_replicas=3, drain_s_max=600.0, actuator=quick), Scripted(steps))
    assert "cancel_drain" not in [what for _, what, _ in fleet.calls]
    assert arrivals_cut.starts == 2


def test_an_unknown_actuator_is_refused():
    with pytest.raises(BadInput, match="direct, hpa"):
        played(scenario(10.0, actuator=Actuator("vpa")), Static(1))
    assert actuator(scenario()).target == 1
