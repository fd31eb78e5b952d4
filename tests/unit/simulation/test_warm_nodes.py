"""Warm nodes of the simulated fleet: a start on one skips the node's part, and each is paid at its share until it is taken or given back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slot_fleet import Watcher, played, scenario, steady

from forebay.domain.errors import BadInput
from forebay.domain.replica import ReplicaState
from forebay.domain.signal import Known
from forebay.simulation.accounting import Meter
from forebay.simulation.starts import StageTimes
from forebay.simulation.values import ColdStartModel, Shortage
from forebay.simulation.warm_nodes import WarmNodes

HOUR_GPUS = 2 / 3600
WARM = {"warm_max": 4, "warm_share": 0.5}


def from_s(at_s, more=2):
    """One replica, and ``more`` from ``at_s`` on."""
    return lambda seen: 1 if seen.now_s < at_s else more


def added(fleet):
    return [at_s for at_s, what, _ in fleet.calls if what == "add"]


def test_a_start_takes_two_minutes_cold_and_one_on_a_warm_node():
    """60 s to provision, 30 of weights, 30 to initialise."""
    _, cold = played(scenario(600.0), Watcher(from_s(300.0)))
    watcher = Watcher(from_s(300.0), warm=1)
    _, warm = played(scenario(600.0, **WARM), watcher)
    assert added(cold) == [0.0, 420.0]
    assert added(warm) == [0.0, 360.0]
    assert [seen.warm for seen in watcher.seen[:2]] == [0, 1]
    assert watcher.seen[-1].warm_start_s.value == 60.0
    assert watcher.seen[-1].cold_start_s.value == 120.0, "with the time its node took to come"
    starting = next(replica for seen in watcher.seen if seen.now_s == 315.0 for replica in seen.replicas if replica.id.endswith("2"))
    assert starting.expected_ready_s == 360.0


def test_every_gpu_hour_is_counted_once_and_a_warm_one_at_its_share():
    result, _ = played(scenario(600.0, **WARM), Watcher(from_s(300.0), warm=1))
    # Held from 0 to 300, then the one that replaces it to the end; loading 60 s; ready 600 s, and from 360 on.
    assert result.gpu_hours_by_state == pytest.approx(
        {"starting": 60 * HOUR_GPUS, "ready": 840 * HOUR_GPUS, "draining": 0.0, "failed": 0.0, "warm": 0.5 * 600 * HOUR_GPUS}
    )
    assert result.gpu_hours == pytest.approx(1200 * HOUR_GPUS)
    assert result.cost_usd == pytest.approx(2.0 * result.gpu_hours)
    assert (result.starts, result.replicas_peak) == (2, 3)


def test_a_node_on_its_way_is_taken_where_none_is_there():
    _, fleet = played(scenario(600.0, **WARM), Watcher(from_s(30.0), warm=1))
    assert added(fleet) == [0.0, 120.0], "asked for at 0, there at 60, ready at 120; a new node would have made it 150"


def test_nodes_that_are_not_wanted_any_more_are_given_back():
    class Script:
        def decide(self, observation):
            return Watcher(1, warm=2 if observation.now_s < 90 else 0).decide(observation)

    result, _ = played(scenario(600.0, **WARM), Script())
    assert result.gpu_hours_by_state["warm"] == pytest.approx(0.5 * 2 * 90 * HOUR_GPUS)


def test_warm_nodes_count_against_the_nodes_that_can_be_had():
    watcher = Watcher(from_s(300.0, more=3), warm=4)
    result, fleet = played(scenario(900.0, shortages=(Shortage(0.0, 600.0, 2),), **WARM), watcher)
    assert [seen.warm for seen in watcher.seen if seen.now_s == 285.0] == [1]
    assert added(fleet) == [0.0, 360.0, 720.0], "one on the warm node, the other when nodes can be had again"
    requested = [seen for seen in watcher.seen if any(each.state is ReplicaState.REQUESTED for each in seen.replicas)]
    assert {seen.warm for seen in requested if seen.now_s > 300.0} == {0}, "no node is kept warm while a replica waits for one"
    assert result.replicas_peak == 3 + 4


def test_where_none_may_be_held_a_decision_asks_in_vain():
    result, fleet = played(scenario(600.0), Watcher(from_s(300.0), warm=3))
    assert added(fleet) == [0.0, 420.0]
    assert "warm" not in result.gpu_hours_by_state


def test_what_is_held_changes_no_request_and_the_share_changes_the_bill_alone():
    runs = [played(scenario(1200.0, warm_max=4, warm_share=share), Watcher(1, warm=3), steady(0.1, 1200.0))[0] for share in (0.0, 0.5, 1.0)]
    none, half, whole = (run.gpu_hours for run in runs)
    assert (none, half, whole) == pytest.approx((1200 * HOUR_GPUS, 3000 * HOUR_GPUS, 4800 * HOUR_GPUS))
    assert len({str(run.tiers) for run in runs}) == 1


def test_a_cold_start_stays_unmeasured_until_one_is_over():
    watcher = Watcher(1, warm=2)
    played(scenario(600.0, **WARM), watcher)
    assert not any(isinstance(seen.warm_start_s, Known) or isinstance(seen.cold_start_s, Known) for seen in watcher.seen)


@pytest.mark.parametrize(("changed", "word"), [({"warm_max": -1}, "warm_max"), ({"warm_share": 1.5}, "warm_share")])
def test_an_ill_scenario_is_named(changed, word):
    with pytest.raises(BadInput, match=word):
        played(scenario(600.0, **changed), Watcher(1))


@given(st.lists(st.tuples(st.sampled_from(["ask", "take", "give_back"]), st.floats(0.0, 100.0)), max_size=20), st.integers(0, 9))
@settings(max_examples=15, deadline=None)
def test_nodes_are_conserved_and_each_is_paid_from_asked_to_gone(steps, seed):
    meter = Meter(2, 1e6, 0.25)
    nodes = WarmNodes(StageTimes(ColdStartModel(60.0, 1e9, 30.0, cv=0.5), seed), meter)
    now_s, held, paid_s, asked = 0.0, [], 0.0, 0
    for what, later_s in [*steps, ("end", 0.0)]:
        now_s += later_s
        if what == "ask":
            nodes.ask(now_s)
            asked += 1
            held.append(now_s)
        elif what == "take":
            node = nodes.take(now_s)
            assert (node is None) == (not held)
            if node is not None:
                held.remove(node.asked_s)
                paid_s += now_s - node.asked_s
                assert node.provision_s > 0
        elif what == "give_back":
            nodes.give_back(len(held), now_s)
            paid_s += sum(now_s - at_s for at_s in held)
            held.clear()
        assert nodes.held == len(held)
    assert meter.gpu_seconds["warm"] == pytest.approx(paid_s * 2 * 0.25)
