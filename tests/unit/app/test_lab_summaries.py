"""Runs become lines of a comparison, and one sentence."""

import pytest
from lab_runs import run, tier

from forebay.app.lab.comparing import _limit_is_lower
from forebay.app.lab.summaries import Yardstick, as_json, attained, half_width, ordered, summary, verdict
from forebay.simulation.clairvoyant import Bound

YARDSTICK = Yardstick(bound_gpu_hours=80.0, static_usd=1000.0, promise=0.99, promised_tiers=("interactive", "standard"))


def test_one_run_is_its_own_mean():
    one = summary([run(gpu_hours=100.0, cost_usd=350.0, reversals=6, duration_s=43200.0)], YARDSTICK)
    assert (one.gpu_hours, one.vs_clairvoyant, one.cost_usd, one.saved_vs_static_usd) == (100.0, 1.25, 350.0, 650.0)
    assert one.reversals_per_day == 12.0
    assert one.confidence == {}
    assert one.holds_slo


def test_a_policy_holds_if_its_worst_promised_tier_does():
    tiers = {"interactive": tier(0.999), "standard": tier(0.98), "batch": tier(0.1)}
    assert attained(run(tiers=tiers), ("interactive", "standard")) == 0.98
    assert not summary([run(tiers=tiers)], YARDSTICK).holds_slo
    idle = {"interactive": tier(0.999), "standard": tier(0.0, arrived=0)}
    assert summary([run(tiers=idle)], YARDSTICK).holds_slo
    assert "standard" not in summary([run(tiers=idle)], YARDSTICK).both_attainment


def test_the_judgement_is_of_the_mean_over_seeds():
    runs = [run(seed=seed, tiers={"interactive": tier(both)}) for seed, both in enumerate((0.995, 0.986))]
    assert summary(runs, YARDSTICK).holds_slo
    assert not summary(runs[1:], YARDSTICK).holds_slo


def test_confidence_is_student_s():
    # Three values 1, 2, 3: mean 2, s = 1, t(0.975, 2) = 4.302653; half-width 4.302653 ÷ √3.
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(2.484138, abs=1e-6)
    many = summary([run(gpu_hours=hours) for hours in (99.0, 100.0, 101.0)], YARDSTICK)
    assert many.confidence["gpu_hours"] == pytest.approx(2.484138, abs=1e-6)
    assert many.confidence["vs_clairvoyant"] == pytest.approx(2.484138 / 80, abs=1e-6)


def test_counts_are_sums_over_tiers_and_means_over_seeds():
    two = [run(tiers={"interactive": tier(shed=4, cut=1), "batch": tier(shed=2)}), run(tiers={"interactive": tier(), "batch": tier()})]
    assert (summary(two, YARDSTICK).shed, summary(two, YARDSTICK).truncated) == (3, 0)


def test_nothing_to_save_against_is_said():
    assert summary([run()], Yardstick(None, None, 0.99, ())).saved_vs_static_usd is None


def test_cheapest_first_and_of_equals_the_better():
    lines = [
        summary([run(name, gpu_hours=hours, tiers={"interactive": tier(both)})], YARDSTICK)
        for name, hours, both in (("b", 5.0, 0.9), ("a", 5.0, 0.8), ("c", 4.0, 0.1))
    ]
    assert [line.name for line in ordered(lines)] == ["c", "b", "a"]


def test_scripts_get_the_keys_they_were_promised():
    runs = [run()]
    row = as_json(summary(runs, YARDSTICK), runs)
    assert {
        "name",
        "gpu_hours",
        "vs_clairvoyant",
        "ttft_attainment",
        "itl_attainment",
        "shed",
        "truncated",
        "scale_actions",
        "reversals_per_day",
        "breaches",
        "cost_usd",
        "saved_vs_static_usd",
    } <= set(row)
    assert row["ttft_attainment"] == {"interactive": 1.0}


def told(*policies):
    lines = [summary([run(name, gpu_hours=hours, tiers={"interactive": tier(both)})], YARDSTICK) for name, hours, both in policies]
    return verdict(lines, {name: both for name, _, both in policies}, 0.99)


@pytest.mark.parametrize(
    ("policies", "said"),
    [
        ([("x", 100.0, 0.995)], "x keeps the promise (99.5 % of 99 %) with 100.0 GPU-hours, 1.250 × the clairvoyant schedule."),
        ([("x", 100.0, 0.98)], "x does not keep the promise: 98 % of the 99 %, with 100.0 GPU-hours, 1.250 × the clairvoyant schedule."),
        (
            [("forebay", 100.0, 0.995), ("hpa", 150.0, 0.999), ("keda", 90.0, 0.5)],
            "hpa is the only other policy that does, with 50.0% more GPU-hours.",
        ),
        (
            [("forebay", 100.0, 0.995), ("hpa", 80.0, 0.999), ("kpa", 90.0, 0.999)],
            "2 others do, of which hpa is the cheapest, with 20.0% fewer GPU-hours.",
        ),
        ([("forebay", 100.0, 0.995), ("hpa", 100.01, 0.999)], "hpa is the only other policy that does, with just as many GPU-hours."),
        ([("forebay", 100.0, 0.995), ("hpa", 80.0, 0.5)], "No other policy does."),
        ([("forebay", 100.0, 0.5), ("hpa", 80.0, 0.999)], "hpa does, with 80 GPU-hours."),
        ([("keda", 100.0, 0.5), ("hpa", 80.0, 0.7)], "No policy keeps the promise of 99 %; hpa comes nearest with 70 %."),
        ([("keda", 100.0, 0.995), ("hpa", 80.0, 0.995)], "It is the cheapest of 2 that do."),
    ],
)
def test_the_verdict_is_one_that_can_be_read_aloud(policies, said):
    assert said in told(*policies)


def test_a_limit_that_a_policy_undercuts_is_said_to_be_none():
    played = (("static-peak", 90.0, 1.0), ("kpa", 80.0, 0.9), ("forebay", 99.99, 1.0), ("hpa-gpu", 400.0, 1.0))
    yardstick = Yardstick(100.0, None, 0.99, ("interactive",))
    lines = [summary([run(name, gpu_hours=hours, tiers={"interactive": tier(both)})], yardstick) for name, hours, both in played]
    bound = Bound(100.0, 50.0, (), 0.99, 1.0, False, "")
    assert _limit_is_lower(bound, lines).startswith("static-peak keeps the promise with 90 GPU-hours, fewer than the schedule")
    assert _limit_is_lower(bound, [line for line in lines if line.name != "static-peak"]) == ""
    assert _limit_is_lower(None, lines) == ""


def test_what_keeps_the_promise_and_costs_more_than_a_fixed_fleet_is_told_so():
    dear = [summary([run("forebay", gpu_hours=100.0, cost_usd=YARDSTICK.static_usd + 50.0, tiers={"interactive": tier(0.995)})], YARDSTICK)]
    cheap = [
        summary([run("forebay", gpu_hours=100.0, cost_usd=YARDSTICK.static_usd - 50.0, tiers={"interactive": tier(0.995)})], YARDSTICK)
    ]
    assert "It saves nothing: it costs $" in verdict(dear, {"forebay": 0.995}, 0.99)
    assert "saves nothing" not in verdict(cheap, {"forebay": 0.995}, 0.99)
