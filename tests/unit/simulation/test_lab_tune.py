"""Which setting is taken, where the training span ends, and what an hour needs."""

import numpy as np
import pytest
from slot_fleet import BATCH, INTERACTIVE, SLOTS, SlotFleet, counting, played, rows, scenario, steady

from forebay.domain.errors import BadInput
from forebay.simulation.scripted import Static
from forebay.simulation.tune import Row, best, hourly_need, kept, row, training, tuned

H = 3600.0


def test_the_cheapest_that_keeps_the_promise_is_taken():
    rows_ = [Row("dear", 90.0, 0.999), Row("good", 60.0, 0.991), Row("cheap", 40.0, 0.985)]
    choice = best(rows_, 0.99)
    assert (choice.index, choice.because) == (1, "the cheapest of 2 of 3 that keep 99.00%")


def test_where_none_keeps_it_the_nearest_is_taken_and_of_equals_the_cheapest():
    choice = best([Row("a", 90.0, 0.95), Row("b", 60.0, 0.97), Row("c", 50.0, 0.97)], 0.99)
    assert choice.index == 2
    assert "none of 3 keeps 99.00%" in choice.because
    with pytest.raises(ValueError, match="nothing"):
        best([], 0.99)


def test_the_span_is_cut_where_the_bound_on_requests_is_reached():
    world = scenario(1000.0)
    assert training(world, steady(2.0, 2000.0), 10_000) == world
    assert training(world, steady(2.0, 2000.0), 600).duration_s == 300.0
    chunks = (chunk for from_s in range(0, 900, 100) for chunk in steady(2.0, from_s + 100.0, from_s=float(from_s)))
    assert training(world, chunks, 600).duration_s == 300.0


def test_each_candidate_is_played_on_the_same_span_and_told():
    # 3.2 requests/s of 1.1 s: a replica of four places serves 3.6/s; one is enough, five are five times as dear.
    told, fleets = [], []

    def fleet(rules, source):
        fleets.append(SlotFleet(rules, source))
        return fleets[-1]

    def fixed(replicas):
        return lambda: Static(replicas)

    choice = tuned(
        lambda: scenario(600.0, initial_replicas=1, max_replicas=5),
        lambda: steady(3.2, 600.0),
        [("five", fixed(5)), ("one", fixed(1)), ("two", fixed(2))],
        fleet=fleet,
        cpu_clock=counting(),
        requests_max=1000,
        progress=told.append,
    )
    assert [each.label for each in choice.rows] == ["five", "one", "two"]
    assert choice.rows[choice.index].label == "one"
    assert [fleet.totals(0).arrived for fleet in fleets] == [1000] * 3
    assert told == pytest.approx([1 / 3, 2 / 3, 1.0])


def test_a_row_leaves_preemptible_tiers_out_of_what_was_kept():
    world = scenario(120.0, (INTERACTIVE, BATCH), initial_replicas=1)
    both = sorted([(at_s, 0) for at_s in np.arange(0.0, 120.0, 1.0)] + [(at_s, 1) for at_s in np.arange(0.0, 120.0, 0.1)])
    chunk = next(rows([at_s for at_s, _ in both]))._replace(tier=np.array([tier for _, tier in both], np.int16))
    found = row("x", world, Static(1), iter([chunk]), fleet=SlotFleet, cpu_clock=counting())
    # Ten of eleven are batch; the line is first come first served, so interactive ones are late as well.
    assert 0 < found.attainment < 0.5
    assert found.gpu_hours > 0


def test_nothing_that_arrived_was_kept():
    world = scenario(60.0, initial_replicas=1)
    result, _ = played(world, Static(1))
    assert kept(result, world) == 1.0


def test_the_need_of_an_hour_is_its_busiest_five_minutes_on_any_day():
    # Monday 2026-06-01, 00:00 UTC. Hour 0: 3 requests in one five minutes; hour 1: 6; the next day hour 0 has 9.
    start = 1_780_272_000.0
    at_s = [10.0, 20.0, 30.0, *[H + 310.0 + step for step in range(6)], *[24 * H + 900.0 + step for step in range(9)]]
    need = hourly_need(scenario(48 * H, start_wall_s=start), rows(at_s), 0.01)
    assert len(need) == 24
    assert need[:3] == pytest.approx([9 / 300 / 0.01, 6 / 300 / 0.01, 0.0])
    week = hourly_need(scenario(7 * 24 * H, start_wall_s=start), rows(at_s), 0.01)
    assert len(week) == 168
    assert (week[0], week[24]) == pytest.approx((1.0, 3.0))


def test_hours_that_the_span_does_not_touch_get_the_most():
    need = hourly_need(scenario(H, start_wall_s=1_780_272_000.0), rows([1.0, 2.0, 3.0]), 0.01)
    assert need == pytest.approx([1.0] * 24)


def test_an_ill_trace_is_refused_by_the_run():
    def ill(rules, source):
        raise BadInput("row 7: it is before row 6")

    with pytest.raises(BadInput, match="row 7"):
        tuned(lambda: scenario(60.0), lambda: rows([1.0]), [("a", lambda: Static(SLOTS))], fleet=ill, cpu_clock=counting())
