"""What befalls replicas: drains and their ends, crashes, reclaims, shortages, and who pays for how long."""

import pytest
from slot_fleet import SERVICE_S, SLOTS, Watcher, played, scenario, steady

from forebay.domain.errors import BadInput
from forebay.domain.replica import ReplicaState
from forebay.domain.signal import Known
from forebay.simulation.accounting import Meter
from forebay.simulation.faults import befallen
from forebay.simulation.lab_agenda import Agenda, Turn
from forebay.simulation.lab_life import Lives
from forebay.simulation.scripted import Scripted, Static
from forebay.simulation.values import Outage, Shortage

HOUR_GPUS = 2 / 3600
LONG = 5000
"""Tokens of an answer that takes 100 s."""


def whats(fleet):
    return [(at_s, what) for at_s, what, _ in fleet.calls if what != "add"]


def test_an_idle_replica_is_drained_and_stopped_at_the_next_look():
    result, fleet = played(scenario(200.0, initial_replicas=2), Scripted([(0.0, 2), (60.0, 1)]))
    assert whats(fleet) == [(60.0, "drain"), (65.0, "stop")]
    assert result.gpu_hours_by_state["draining"] == pytest.approx(5 * HOUR_GPUS)
    assert result.gpu_hours == pytest.approx((200 + 65) * HOUR_GPUS)


def test_a_drain_waits_for_its_streams_and_cuts_none():
    arrivals = steady(1.0, 59.0, output=LONG, from_s=52.0)
    result, fleet = played(scenario(400.0, initial_replicas=2), Scripted([(0.0, 2), (60.0, 1)]), arrivals)
    at_s = {what: at_s for at_s, what in whats(fleet)}["stop"]
    assert 150.0 < at_s < 165.0
    totals = result.tiers["interactive"].totals
    assert (totals.cut, totals.completed) == (0, totals.arrived)


def test_a_drain_ends_at_its_deadline_whatever_is_on_it():
    arrivals = steady(1.0, 59.0, output=LONG, from_s=52.0)
    result, fleet = played(scenario(400.0, initial_replicas=2, drain_s_max=31.0), Scripted([(0.0, 2), (60.0, 1)]), arrivals)
    assert whats(fleet) == [(60.0, "drain"), (91.0, "stop")]
    assert result.tiers["interactive"].totals.cut > 0


def test_the_victim_is_the_one_with_the_fewest_live_tokens():
    arrivals = steady(10.0, 59.5, output=LONG, from_s=59.2)
    _, fleet = played(scenario(100.0, initial_replicas=2), Scripted([(0.0, 2), (60.0, 1)]), arrivals)
    assert [row for _, what, row in fleet.calls if what == "drain"] == [1], "the first two of three went to row 0 and 1, the third to 0"


def test_a_drain_is_called_off_before_anything_is_started():
    arrivals = steady(1.0, 59.0, output=LONG, from_s=52.0)
    result, fleet = played(scenario(400.0, initial_replicas=2), Scripted([(0.0, 2), (60.0, 1), (90.0, 2)]), arrivals)
    assert whats(fleet) == [(60.0, "drain"), (90.0, "cancel_drain")]
    assert result.starts == 0
    assert result.gpu_hours_by_state["draining"] == pytest.approx(30 * HOUR_GPUS)


def test_starts_that_are_not_needed_any_more_are_given_up_at_once():
    result, fleet = played(scenario(300.0), Scripted([(0.0, 1), (30.0, 4), (60.0, 1)]))
    assert whats(fleet) == []
    assert result.starts == 3
    assert result.gpu_hours_by_state["starting"] == pytest.approx(3 * 30 * HOUR_GPUS)


def test_a_start_given_up_while_it_pulls_frees_the_bandwidth():
    world = scenario(400.0)
    world = type(world)(
        **{name: getattr(world, name) for name in world.__struct_fields__ if name != "cold_start"},
        cold_start=type(world.cold_start)(60.0, 30e9, 30.0, node_bandwidth_bytes_per_s=1e9, shared_bandwidth_bytes_per_s=1e9),
    )
    _, fleet = played(world, Scripted([(0.0, 1), (30.0, 3), (105.0, 2)]))
    # Two halves from 90 on: 7.5 GB each by 105, the other 22.5 GB alone, then 30 s.
    assert [at_s for at_s, what, _ in fleet.calls if what == "add"] == pytest.approx([0.0, 157.5])


def test_a_crashed_replica_is_restarted_where_it_was_without_a_new_node():
    watcher = Watcher(2)
    world = scenario(400.0, initial_replicas=2, outages=(Outage("crash", 100.0, 1),))
    result, fleet = played(world, watcher, steady(2.0, 400.0))
    stopped = next(at_s for at_s, what in whats(fleet) if what == "stop")
    assert stopped == 100.0
    assert [at_s for at_s, what, _ in fleet.calls if what == "add"] == [0.0, 0.0, 170.0], "10 s, 30 of weights, 30 to initialise"
    assert result.starts == 0
    assert result.gpu_hours == pytest.approx(2 * 400 * HOUR_GPUS)
    assert result.gpu_hours_by_state["failed"] == pytest.approx(10 * HOUR_GPUS)
    assert result.tiers["interactive"].totals.cut > 0
    by_time = {seen.now_s: sorted(replica.state for replica in seen.replicas) for seen in watcher.seen}
    assert ReplicaState.FAILED in by_time[105.0]
    assert ReplicaState.LOADING in by_time[120.0]
    assert by_time[180.0] == [ReplicaState.READY] * 2
    assert not any(replica.overdue for seen in watcher.seen for replica in seen.replicas)
    assert not isinstance(watcher.seen[-1].cold_start_s, Known), "a restart in place is no cold start"


def test_two_of_six_crash_and_six_serve_again():
    world = scenario(600.0, initial_replicas=6, outages=(Outage("crash", 100.0, 2),))
    result, fleet = played(world, Static(6), steady(6.0, 600.0))
    assert sum(what == "stop" for _, what in whats(fleet)) == 2
    assert sum(what == "add" for _, what, _ in fleet.calls) == 8
    assert result.timeline[-1].ready == 6


def test_a_reclaim_drains_for_its_notice_and_the_node_is_replaced():
    arrivals = steady(1.0, 99.0, output=LONG, from_s=92.0)
    world = scenario(400.0, initial_replicas=2, outages=(Outage("reclaim", 100.0, 1, notice_s=30.0),))
    result, fleet = played(world, Static(2), arrivals)
    assert whats(fleet) == [(100.0, "drain"), (130.0, "stop")]
    assert result.starts == 1, "what is taken away is missing from the first look on, and its drain can't be called off"
    assert [at_s for at_s, what, _ in fleet.calls if what == "add"][-1] == pytest.approx(105.0 + 120.0)


def test_a_reclaim_without_notice_cuts():
    world = scenario(400.0, initial_replicas=2, outages=(Outage("reclaim", 100.0, 0.5),))
    result, fleet = played(world, Static(2), steady(4.0, 400.0))
    assert whats(fleet)[0] == (100.0, "stop")
    assert result.tiers["interactive"].totals.cut > 0


def test_a_shortage_leaves_starts_requested_unpaid_and_overdue():
    watcher = Watcher(lambda seen: 1 if seen.now_s < 30 else 3)
    world = scenario(900.0, shortages=(Shortage(0.0, 600.0, 2),))
    result, fleet = played(world, watcher)
    assert [at_s for at_s, what, _ in fleet.calls if what == "add"][:2] == [0.0, 150.0]
    waiting = [replica for seen in watcher.seen for replica in seen.replicas if replica.state is ReplicaState.REQUESTED]
    assert {replica.requested_s for replica in waiting} >= {30.0}
    overdue = [seen.now_s for seen in watcher.seen if any(replica.overdue for replica in seen.replicas)]
    assert overdue[0] == 225.0, "half as long again as it should take: after 180 s"
    assert [at_s for at_s, what, _ in fleet.calls if what == "add"][2] == pytest.approx(720.0), "the shortage over, a start as any"
    assert watcher.seen[-1].cold_start_s.value == 120.0, "time without a node is no part of a cold start"
    assert result.gpu_hours_by_state["starting"] < 500 * HOUR_GPUS


def test_crashes_come_at_their_rate_and_hit_loading_replicas_too():
    world = scenario(43_200.0, initial_replicas=10, crashes_per_replica_day=40.0, interval_s=300.0, timeline_s=3600.0)
    _, fleet = played(world, Static(10))
    crashes = sum(what == "stop" for _, what in whats(fleet))
    assert 150 < crashes < 220, "200, less the time that is spent starting"


def test_outages_take_the_ready_first_and_then_those_that_load():
    class Chance:
        def sample(self, among, count):
            return list(among)[:count]

    world = scenario(100.0)
    lives = Lives(world, None, Agenda(), Meter(1, 100.0), "pool")
    for _ in range(4):
        lives.request(1, 0.0)
    one, two, three, four = lives.replicas.values()
    one.state = two.state = ReplicaState.READY
    three.state, four.state = ReplicaState.LOADING, ReplicaState.PROVISIONING
    everyone = [one, two, three, four]
    assert befallen(Outage("crash", 0.0, 0.5), everyone, Chance()) == [one]
    assert befallen(Outage("crash", 0.0, 0.1), everyone, Chance()) == [one]
    assert befallen(Outage("crash", 0.0, 2), everyone, Chance()) == [one, two]
    assert befallen(Outage("crash", 0.0, 9), everyone, Chance()) == [one, two, three]


@pytest.mark.parametrize(
    ("outage", "words"),
    [(Outage("flood", 0.0, 1), "crash, reclaim"), (Outage("crash", 0.0, 0.0), "more than 0"), (Outage("reclaim", 0.0, 1, -1.0), "0 s")],
)
def test_an_ill_outage_is_refused(outage, words):
    with pytest.raises(BadInput, match=words):
        played(scenario(10.0, outages=(outage,)), Static(1))


def test_an_agenda_keeps_turns_within_an_instant_and_takes_what_is_added_meanwhile():
    agenda, done = Agenda(), []
    agenda.at(1.0, Turn.DECIDE, lambda now_s: done.append("decide"))
    agenda.at(1.0, Turn.STAGE, lambda now_s: (done.append("stage"), agenda.at(1.0, Turn.DRAIN, lambda now_s: done.append("drain"))))
    agenda.at(2.0, Turn.STAGE, lambda now_s: done.append("later"))
    agenda.at(float("inf"), Turn.STAGE, lambda now_s: done.append("never"))
    agenda.run(1.0)
    assert done == ["stage", "drain", "decide"]
    assert agenda.next_s == 2.0


def test_a_fleet_of_the_right_size_serves_what_it_can():
    per_s = 2 * SLOTS / SERVICE_S
    result, _ = played(scenario(600.0, initial_replicas=2), Static(2), steady(0.9 * per_s, 600.0))
    assert result.tiers["interactive"].ttft_attainment == 1.0
