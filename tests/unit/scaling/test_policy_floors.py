"""The floors, with numbers worked by hand."""

import re

import msgspec
import pytest

from forebay.domain.errors import BadInput
from forebay.domain.profile import WarmUp
from forebay.domain.signal import Known
from forebay.engine.capacity import at_slo
from forebay.engine.catalogue import PROFILES
from forebay.scaling.arrivals import demand, present_ramp_per_s2, recorded
from forebay.scaling.capacity import PoolCapacity, pool_capacity, whole_replicas
from forebay.scaling.floors import quantile
from forebay.scaling.policy import QueueFirst
from forebay.spec.types import CalendarEntry, EngineKind, Pool, Scaling

RAMP = 30 / 3600
"""30 requests per minute per minute, per second per second."""


@pytest.mark.parametrize(("per_min", "demand_replicas", "total"), [(100, 2, 5), (400, 8, 11)])
def test_the_worked_example_comes_out_exactly(make_pool, per_min, demand_replicas, total):
    """One replica serves 50/min, the ramp is 30/min/min, a start takes 5 min: 2 + 3 = 5 overnight, 8 + 3 = 11 at the peak."""
    pool = make_pool(ramp_per_s2=RAMP)
    for now_s in (0.0, 1.0, 30.0, 60.0, 300.0, 1800.0):
        decision = pool.at(now_s, per_min=per_min)
        assert decision.replicas == total
        assert decision.reason == "buffer"
        assert pool.term(decision, "demand").replicas == demand_replicas
        assert pool.term(decision, "buffer").numbers["added"] == 3


@pytest.mark.parametrize(("per_min", "total"), [(100, 2), (400, 8)])
def test_with_the_buffer_off_demand_alone_counts(make_pool, per_min, total):
    decision = make_pool(ramp_per_s2=RAMP, buffer=False).at(0.0, per_min=per_min)
    assert (decision.replicas, decision.reason) == (total, "demand")


@pytest.mark.parametrize("measured_s", [299.6, 300.0, 300.4])
def test_noise_in_the_cold_start_does_not_turn_three_into_four(make_pool, measured_s):
    """300.4 s unrounded would be ⌈3.004⌉ = 4."""
    decision = make_pool(ramp_per_s2=RAMP).at(0.0, per_min=100, cold_start_s=Known(measured_s, 0.0))
    assert decision.replicas == 5
    assert make_pool.term(decision, "buffer").numbers["cold_start_s"] == 300.0


def test_the_measured_cold_start_goes_before_the_assumed_one(make_pool):
    """30/min/min × 106 s ÷ 50/min = 1.06: two."""
    decision = make_pool(ramp_per_s2=RAMP).at(0.0, per_min=100, cold_start_s=Known(106.2, 0.0))
    assert make_pool.term(decision, "buffer").numbers["added"] == 2


def test_a_start_is_over_for_the_policy_when_its_engine_is_warm(make_pool):
    """30/min/min × (300 + 60 s) ÷ 50/min = 3.6: four."""
    capacity = PoolCapacity(rate_per_s=50 / 60, cold_start_s=300.0, origin="declared", warm_up_s=60.2)
    for measured in ({}, {"cold_start_s": Known(300.0, 0.0)}):
        numbers = make_pool(ramp_per_s2=RAMP, capacity=capacity).at(0.0, per_min=100, **measured).terms
        assert next(term for term in numbers if term.name == "buffer").numbers["added"] == 4


@pytest.mark.parametrize(
    ("ratio", "whole"), [(3.0000000001, 3), (3.001, 4), (0.0, 0), (-2.0, 0), (float("nan"), 0), (1e30, 1_000_000), (1e-12, 0)]
)
def test_float_dust_is_gone_before_a_ratio_is_rounded_up(ratio, whole):
    assert whole_replicas(ratio) == whole


def test_the_buffer_takes_the_steepest_of_declared_and_past_ramps(make_pool):
    """The 0.95 quantile of twenty ramps is the nineteenth: 40/min/min × 5 min ÷ 50/min = 4."""
    past = tuple([10 / 3600] * 18 + [40 / 3600, 400 / 3600])
    decision = make_pool(ramp_per_s2=RAMP).at(0.0, per_min=100, past_ramps_per_s2=past)
    assert decision.replicas == 2 + 4
    assert "past" in make_pool.term(decision, "buffer").because


def test_ill_past_ramps_do_not_count():
    assert quantile((float("nan"), float("inf"), -1.0, 2.0), 0.95) == 2.0
    assert quantile((), 0.95) == 0.0


def test_an_undeclared_ramp_is_seen_and_buys_a_buffer(make_pool):
    """From 100/min by 30/min/min, nothing declared: after ten minutes at least half of the ramp is proven."""
    pool = make_pool(ramp_per_s2=0.0)
    pool.hold(600, per_min=100)
    for minute in range(60):
        decision = pool.at(pool.now_s + 10, per_min=100 + 5 * minute)
    assert 15 / 3600 < pool.term(decision, "buffer").numbers["present_ramp_per_s2"] <= RAMP * 1.0001


def test_a_step_up_is_no_ramp(make_pool):
    """100 → 400/min at once: eight replicas for it, and no buffer as if it went on rising."""
    pool = make_pool(ramp_per_s2=0.0)
    pool.hold(900, per_min=100)
    for _ in range(90):
        decision = pool.hold(10, per_min=400)
        assert pool.term(decision, "buffer").numbers["added"] <= 1
    assert decision.replicas == 8


def test_spares_come_on_top_and_the_binding_term_says_so(make_pool):
    decision = make_pool(ramp_per_s2=RAMP, spare_replicas=2).at(0.0, per_min=100)
    assert (decision.replicas, decision.reason) == (7, "spare")


def test_the_minimum_stands_without_any_demand(make_pool):
    decision = make_pool(min_replicas=3).at(0.0)
    assert (decision.replicas, decision.reason) == (3, "min")


def test_the_cap_holds_and_is_named(make_pool):
    decision = make_pool(max_replicas=4, ramp_per_s2=RAMP).at(0.0, per_min=400)
    assert (decision.replicas, decision.reason) == (4, "max")


def test_a_lowered_maximum_is_obeyed_at_once(make_pool):
    pool = make_pool(max_replicas=4)
    pool.desired = 9
    assert pool.at(0.0).replicas == 4


def test_demand_is_the_largest_of_requests_and_tokens(make_pool):
    """60 requests/min of 10 × the declared prompt: 1.2 by requests, 12 by prompt tokens."""
    capacity = PoolCapacity(rate_per_s=50 / 60, prompt_tokens_per_s=1000 * 50 / 60, output_tokens_per_s=200 * 50 / 60)
    pool = make_pool(capacity=capacity, buffer=False)
    tokens = {"arrival_prompt_tokens_per_s": Known(10_000 * 1.0, 0.0), "arrival_output_tokens_per_s": Known(200 * 1.0, 0.0)}
    decision = pool.at(0.0, per_min=60, **tokens)
    assert decision.replicas == 12
    assert "prompt tokens" in pool.term(decision, "demand").because


def test_without_a_capacity_the_demand_floor_says_that_it_is_none(make_pool):
    decision = make_pool(capacity=PoolCapacity(origin="not known: no profile")).at(0.0, per_min=100_000)
    assert decision.replicas == 1
    assert "only the triggers act" in make_pool.term(decision, "demand").because


def test_a_sustained_small_rise_is_proven_by_the_long_windows(make_pool):
    """130/min is 2.6 replicas' worth: less than a minute's chance above 2, but a third replica within ten minutes."""
    pool = make_pool(buffer=False)
    pool.hold(1200, per_min=100)
    assert pool.desired == 2
    assert pool.hold(600, per_min=130).replicas == 3


def test_demand_falls_as_soon_as_the_short_windows_show_less():
    capacity = PoolCapacity(rate_per_s=50 / 60)
    buckets, now_s = (), 0.0
    for rate_per_min, seconds in ((400, 1200), (100, 240)):
        for _ in range(seconds // 10):
            now_s += 10
            buckets = recorded(buckets, now_s, 10.0, rate_per_min / 60, None)
    found = demand(buckets, now_s, capacity, 3.7)
    assert found.proven <= 2.0 + 1e-9
    assert present_ramp_per_s2(buckets, now_s, 3.7) == 0.0


def test_capacity_is_what_the_user_declared_or_else_the_profile():
    engine = EngineKind(kind="attach", attach=("http://127.0.0.1:9100",))
    declared = pool_capacity(Pool("chat", "m", engine, scaling=Scaling(replica_rate_per_s=0.5, cold_start_s=90.0)))
    assert (declared.rate_per_s, declared.prompt_tokens_per_s, declared.cold_start_s) == (0.5, None, 90.0)
    unknown = pool_capacity(Pool("chat", "m", engine))
    assert unknown.rate_per_s is None
    assert "not known" in unknown.origin


def test_capacity_of_a_profile_is_its_rate_at_the_slo():
    profile = next(iter(PROFILES.values()))
    capacity = pool_capacity(Pool("chat", profile.model, EngineKind(kind="emulated"), profile=profile))
    assert capacity.rate_per_s > 0
    assert capacity.prompt_tokens_per_s == pytest.approx(1000 * capacity.rate_per_s)
    assert capacity.cold_start_s == profile.cold_start.total_s
    assert capacity.warm_up_s == 0.0


def test_a_warm_up_lasts_as_its_passes_do_in_a_full_engine():
    profile = msgspec.structs.replace(PROFILES["llama-3.1-8b-h100"], warm_up=WarmUp(200, 8.0))
    pool = Pool("chat", profile.model, EngineKind(kind="emulated"), profile=profile)
    step_s = at_slo(profile, 1000, 200, pool.slo.ttft_s, pool.slo.itl_s).step_s
    assert 0 < step_s <= pool.slo.itl_s
    assert pool_capacity(pool).warm_up_s == pytest.approx(200 * 8 * step_s)
    declared = msgspec.structs.replace(pool, scaling=Scaling(replica_rate_per_s=0.5))
    assert pool_capacity(declared).warm_up_s == pytest.approx(200 * 8 * pool.slo.itl_s)


def test_a_time_zone_that_does_not_exist_is_refused_before_anything_starts():
    entry = CalendarEntry("day", ("chat",), (0,), 0.0, 3600.0, "Europe/Atlantis", 3)
    with pytest.raises(BadInput, match=r"day.*Europe/Atlantis"):
        QueueFirst(Scaling(), PoolCapacity(rate_per_s=1.0), (entry,), "chat")


@pytest.mark.parametrize("per_min", [3.0, 100.0, 4_000.0, 60_000.0])
def test_an_explanation_says_every_rate_per_minute_and_no_time_in_milliseconds(make_pool, per_min):
    """12/s beside 300/min, and 0ms beside 30s, can't be compared at a glance."""
    pool = make_pool(ramp_per_s2=RAMP, max_replicas=2_000)
    for now_s in (0.0, 1.0, 60.0):
        said = " ".join(term.because for term in pool.at(now_s, per_min=per_min).terms)
        assert re.search(rf"{per_min:.0f}/min arrived over [0-9]+[sm], one replica serves 50/min", said), said
        assert not re.search(r"[0-9]/s|[0-9]ms", said), said
