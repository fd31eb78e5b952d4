import itertools
import math

import msgspec
import numpy as np
import pytest
from slot_fleet import BATCH, INTERACTIVE, OUTPUT, SLOTS, TOKEN_S, Watcher, played, rows, scenario, steady

from forebay.domain.replica import ReplicaState
from forebay.domain.scaling import Alert, AlertKind
from forebay.domain.signal import Known, Unknown
from forebay.simulation.lab import until
from forebay.simulation.scripted import Scripted, Static


def test_decisions_come_each_interval_from_second_0_on():
    watcher = Watcher()
    result, _ = played(scenario(100.0), watcher)
    assert watcher.times == [0.0, 15.0, 30.0, 45.0, 60.0, 75.0, 90.0]
    assert result.decisions == 7
    assert [seen.wall_s - seen.now_s for seen in watcher.seen] == [0.0] * 7


def test_a_policy_is_asked_sooner_where_it_wants_but_not_more_than_once_a_second_nor_later():
    sooner = Watcher(look_s=4.0)
    played(scenario(31.0), sooner)
    assert sooner.times == [0.0, 4.0, 8.0, 12.0, 15.0, 19.0, 23.0, 27.0, 30.0]
    eager = Watcher(look_s=1e-3)
    played(scenario(3.5), eager)
    assert eager.times == [0.0, 1.0, 2.0, 3.0]
    late = Watcher(look_s=500.0)
    played(scenario(50.0), late)
    assert late.times == [0.0, 15.0, 30.0, 45.0]


def test_an_observation_tells_rates_gauges_and_readings_net_of_preemptible_tiers():
    watcher = Watcher(2)
    both = sorted(
        [(at_s, 0) for at_s in np.arange(0.0, 600.0, 0.5)] + [(at_s, 1) for at_s in np.arange(0.25, 600.0, 1.0)],
    )
    chunk = next(rows([at_s for at_s, _ in both]))._replace(tier=np.array([tier for _, tier in both], np.int16))
    played(scenario(601.0, (INTERACTIVE, BATCH), initial_replicas=2), watcher, [chunk], pool="chat")
    first, later = watcher.seen[0], watcher.seen[20]
    assert first.arrival_per_s == Unknown("short")
    assert first.cold_start_s == Unknown("never")
    assert (later.now_s, later.pool, later.desired) == (300.0, "chat", 2)
    assert later.arrival_per_s == Known(2.0, 300.0)
    assert later.arrival_prompt_tokens_per_s == Known(200.0, 300.0)
    assert later.arrival_output_tokens_per_s == Known(2.0 * OUTPUT, 300.0)
    assert later.completed_per_s == Known(2.0, 300.0)
    assert later.completed_output_tokens_per_s == Known(2.0 * OUTPUT, 300.0)
    assert later.lanes_waiting == Known(0.0, 300.0)
    assert later.running == Known(3.0, 300.0), "those of the last 1.1 s"
    assert sum(replica.running.value for replica in later.replicas) == 3, "and not the two of the preemptible tier"
    assert later.ttft_attainment == Known(1.0, 300.0)
    assert later.itl_attainment == Known(1.0, 300.0)
    assert later.ttft_p95_s.value == pytest.approx(0.1)
    assert later.itl_p95_s == Known(TOKEN_S, 300.0)
    one = later.replicas[0]
    assert (one.id, one.state, one.since_s, one.requested_s) == ("chat-1", ReplicaState.READY, 0.0, 0.0)
    assert isinstance(one.running, Known)
    assert one.running.at_s == 300.0
    assert one.live_tokens == one.running.value * 150
    assert 0 < one.gpu_usage.value <= 1
    assert one.queued_tokens == Known(0, 300.0)
    assert (one.expected_ready_s, one.overdue) == (None, False)


def test_rates_are_over_thirty_seconds_whatever_the_interval():
    slow = Watcher()
    played(scenario(301.0, interval_s=60.0), slow, steady(1.0, 301.0))
    assert [seen.arrival_per_s for seen in slow.seen[2:]] == [Known(1.0, at_s) for at_s in (120.0, 180.0, 240.0, 300.0)]
    quick = Watcher()
    played(scenario(41.0, interval_s=2.0), quick, steady(1.0, 20.0))
    assert quick.seen[20].arrival_per_s == Known(9 / 30, 40.0), "those after second 10, which was seen then"
    assert quick.seen[1].arrival_per_s == Unknown("short")


def test_late_first_tokens_show_in_attainment_and_percentiles():
    watcher = Watcher()
    played(scenario(400.0), watcher, steady(2.0 * SLOTS, 300.0))
    late = watcher.seen[-6]
    assert late.ttft_attainment.value < 0.2
    assert late.ttft_p95_s.value > INTERACTIVE.ttft_s
    assert late.lanes_waiting.value > 0


def test_readings_are_as_old_as_the_scrape_delay():
    watcher = Watcher()
    played(scenario(200.0, scrape_delay_s=20.0), watcher, steady(2.0, 200.0))
    assert watcher.seen[1].arrival_per_s == Unknown("no_gateway")
    assert watcher.seen[1].replicas[0].running == Unknown()
    for seen in watcher.seen[3:]:
        assert seen.arrival_per_s.at_s == seen.now_s - 20.0
        assert seen.replicas[0].running.at_s == seen.now_s - 20.0


def test_memory_and_desired_come_back_and_desired_is_kept_within_bounds():
    watcher = Watcher(lambda seen: [0, 3, 9][int(seen.now_s) // 15 % 3], memory=b"mine")
    played(scenario(60.0, min_replicas=1, max_replicas=5, initial_replicas=2), watcher)
    assert [seen.desired for seen in watcher.seen] == [2, 1, 3, 5]
    assert [seen.memory for seen in watcher.seen] == [b"", b"mine", b"mine", b"mine"]


def test_the_largest_ramp_of_each_past_day_is_handed_on():
    class Ramp(Watcher):
        def decide(self, observation):
            self.decision["numbers"] = {"present_ramp_per_s2": observation.now_s / 1000.0}
            return super().decide(observation)

    watcher = Ramp()
    midnight = 20_000 * 86_400.0
    played(scenario(120.0, start_wall_s=midnight - 60.0), watcher)
    assert watcher.seen[3].past_ramps_per_s2 == ()
    assert watcher.seen[-1].past_ramps_per_s2 == (0.045,)


def test_a_cold_start_takes_its_stages_and_is_measured_and_expected():
    watcher = Watcher(lambda seen: 1 if seen.now_s < 30 else 2)
    result, fleet = played(scenario(400.0), watcher)
    assert fleet.calls == [(0.0, "add", 0), (150.0, "add", 1)]
    pending = [seen.replicas[1] for seen in watcher.seen if 30 < seen.now_s < 150]
    assert {replica.expected_ready_s for replica in pending} == {150.0}
    assert [replica.state for replica in pending] == [ReplicaState.PROVISIONING] * 3 + [ReplicaState.LOADING] * 4
    assert all(replica.waiting == Unknown() and not replica.overdue for replica in pending)
    assert watcher.seen[-1].cold_start_s == Known(120.0, 390.0)
    assert (result.starts, result.replicas_peak, result.scale_actions) == (1, 2, 1)
    assert result.gpu_hours_by_state == {"starting": 240 / 3600, "ready": 2 * (400 + 250) / 3600, "draining": 0.0, "failed": 0.0}
    assert result.gpu_hours == pytest.approx(sum(result.gpu_hours_by_state.values()))
    assert result.cost_usd == pytest.approx(2.0 * result.gpu_hours)
    assert result.replicas_mean == pytest.approx((400 + 370) / 400)


def test_nothing_is_paid_for_after_the_end_and_what_is_in_flight_runs_to_its_end():
    result, fleet = played(scenario(100.0), Static(1), steady(1.0, 500.0))
    assert result.gpu_hours == pytest.approx(2 * 100 / 3600)
    totals = result.tiers["interactive"].totals
    assert (totals.arrived, totals.completed) == (100, 100)
    assert result.notes == ()
    assert fleet.exhausted


def test_what_never_ends_is_told():
    result, _ = played(scenario(100.0, drain_s_max=10.0), Static(1), steady(1.0, 100.0, output=5000))
    assert any("had not ended" in note for note in result.notes)


def test_actions_reversals_and_alerts_are_counted():
    alerts = (Alert(AlertKind.SLO_BREACH, "pool", "", 0.0),)

    class Alarming(Scripted):
        def decide(self, observation):
            decision = super().decide(observation)
            ringing = 100 <= observation.now_s < 200 or observation.now_s >= 300
            return msgspec.structs.replace(decision, alerts=alerts if ringing else ())

    steps = [(0.0, 1), (60.0, 2), (120.0, 1), (2400.0, 3), (2460.0, 4)]
    result, _ = played(scenario(3000.0), Alarming(steps))
    assert (result.scale_actions, result.reversals) == (4, 1), "the third change came 38 minutes after the second"
    assert result.alerts == {"slo_breach": 2}
    assert result.first_alert_s == {"slo_breach": 105.0}


def test_breaches_are_runs_of_minutes_under_the_promise():
    busy = np.concatenate([np.arange(0, 600, 0.5), np.arange(600, 660, 0.05), np.arange(660, 1200, 0.5)])
    result, _ = played(scenario(1200.0, initial_replicas=1), Static(1), rows(busy))
    assert result.breaches == 1
    assert 60.0 <= result.longest_breach_s <= 180.0
    calm, _ = played(scenario(1200.0), Static(1), steady(1.0, 1200.0))
    assert (calm.breaches, calm.longest_breach_s) == (0, 0.0)


def test_the_timeline_has_a_row_a_minute_whose_sums_are_the_totals():
    result, _ = played(scenario(600.0), Scripted([(0.0, 1), (120.0, 2)]), steady(2.0, 600.0))
    assert [row.at_s for row in result.timeline] == [60.0 * n for n in range(1, 11)]
    assert sum(row.arrived for row in result.timeline) == result.requests == 1200
    assert sum(row.both_met + row.missed for row in result.timeline) == pytest.approx(1200, abs=5)
    third = result.timeline[2]
    assert (third.desired, third.ready, third.starting, third.draining, third.reason) == (2, 1, 1, 0, "scripted")
    assert third.because == "by the script"
    assert third.ttft_p95_s == pytest.approx(0.1)
    assert 0 < third.kv_usage < 1
    assert 0 < third.gpu_usage <= 1


def test_longer_rows_tell_their_worst_minute():
    burst = np.concatenate([np.arange(0, 60, 1.0), np.arange(60, 75, 0.1), np.arange(200, 300, 1.0)])
    result, _ = played(scenario(300.0, timeline_s=300.0), Static(1), rows(burst))
    assert len(result.timeline) == 1
    assert result.timeline[0].ttft_p95_s > 1.0


def test_progress_is_told_in_fractions():
    told = []
    played(scenario(600.0), Static(1), progress=told.append)
    assert told == pytest.approx([n / 10 for n in range(1, 11)])


def test_cpu_time_of_decisions_is_kept_apart():
    result, _ = played(scenario(100.0), Static(1))
    assert result.decide_s == 7.0, "each decision is a tick between two looks"
    assert result.wall_s > 0


def test_a_trace_is_cut_at_the_end_and_read_no_further():
    def endless():
        for start in itertools.count():
            yield next(rows(np.arange(10.0 * start, 10.0 * start + 10.0)))

    chunks = list(until(endless(), 25.0))
    assert np.concatenate([chunk.at_s for chunk in chunks]).tolist() == list(range(25))
    assert all(len(column) == len(chunk.at_s) for chunk in chunks for column in chunk)


def test_the_same_seed_gives_the_same_bytes():
    world = scenario(900.0, crashes_per_replica_day=200.0, max_replicas=8, initial_replicas=3)
    policy = [(0.0, 3), (200.0, 6), (600.0, 2)]
    first, _ = played(world, Scripted(policy), steady(2.0, 900.0))
    again, _ = played(world, Scripted(policy), steady(2.0, 900.0))
    other, _ = played(msgspec.structs.replace(world, seed=1), Scripted(policy), steady(2.0, 900.0))

    def encoded(result):
        return msgspec.json.encode(msgspec.structs.replace(result, decide_s=0.0, wall_s=0.0))

    assert encoded(first) == encoded(again)
    assert encoded(first) != encoded(other)


@pytest.mark.parametrize("steps", [[], [(0.0, 1), (0.0, 2)], [(5.0, 1), (1.0, 2)], [(0.0, -1)]])
def test_an_ill_script_is_refused(steps):
    with pytest.raises(ValueError, match="script"):
        Scripted(steps)


def test_a_script_holds_its_first_step_before_it_and_says_when_it_changes():
    script = Scripted([(100.0, 2), (200.0, 3)])
    watcher = Watcher()
    played(scenario(20.0), watcher)
    seen = watcher.seen[0]
    before, during, after = (script.decide(msgspec.structs.replace(seen, now_s=at_s)) for at_s in (0.0, 100.0, 999.0))
    assert (before.replicas, before.look_again_at_s) == (2, 100.0)
    assert (during.replicas, during.look_again_at_s) == (2, 200.0)
    assert after.replicas == 3
    assert math.isfinite(after.look_again_at_s)
    assert [term.binding for term in during.terms] == [True]
