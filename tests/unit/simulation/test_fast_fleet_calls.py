"""What the fast fleet says to its driver: its edges, its refusals, and the memory it keeps."""

import math

import msgspec
import numpy as np
import pytest
from fleet_cases import arrivals_of

from forebay.domain.errors import BadInput
from forebay.domain.profile import ColdStart, Profile, StepLaw, WarmUp
from forebay.domain.roster import Capacity
from forebay.simulation.fast import FastFleet
from forebay.simulation.kernel.numbers import COMPLETED, CUT, SHED
from forebay.simulation.kernel.sketches import bounds, quantile_s
from forebay.simulation.values import Dispatch, FleetRules, Queueing, TierRules

pytestmark = pytest.mark.timeout(300)

PROFILE = Profile(
    name="round",
    model="model",
    hardware="none",
    gpus=1,
    law=StepLaw(base_s=0.25, per_sequence_s=0.0, per_kv_token_s=0.0, per_prefill_token_s=0.0),
    sequences_max=4,
    kv_tokens=400,
    block_tokens=4,
    prefill_chunk_tokens=16,
    kv_bytes_per_token=1,
    context_tokens=100,
    cold_start=ColdStart(1, 1, 1, 1),
)
"""A step takes a quarter of a second, whatever it does."""
TIER = TierRules("standard", ttft_s=1.0, itl_s=0.5, longest_wait_s=10.0)
RULES = FleetRules(PROFILE, Capacity(400, 4, 100, 0.0, 0.0, 100), (TIER,))


def fleet_of(*rows, rules=RULES, replicas=1, **options):
    fleet = FastFleet(rules, iter([arrivals_of([(*row, 0, -1, 0)[:6] if len(row) == 3 else row for row in rows])]), **options)
    for _ in range(replicas):
        fleet.add()
    return fleet


def test_one_request_by_hand():
    fleet = fleet_of((0.5, 20, 3), log=True)
    fleet.run_until(100.0)
    # Twenty tokens are two chunks of 16; then two more tokens.
    entry = fleet.log()[0]
    assert (entry["first_s"], entry["finish_s"], entry["outcome"], entry["row"]) == (1.0, 1.5, COMPLETED, 0)
    result = fleet.results(0)
    assert result.totals.both_met == result.totals.completed == 1
    assert result.ttft_s["mean"] == 0.5
    assert result.tpot_s["max"] == result.itl_s["mean"] == 0.25
    assert fleet.exhausted


def test_a_request_in_the_middle_of_a_step_waits_for_its_end():
    fleet = fleet_of((0.0, 4, 40), (1.1, 4, 1), (2.0, 4, 1), log=True)
    fleet.run_until(100.0)
    # One that comes at the very instant a step ends comes after it: the next step has begun without it.
    assert fleet.log()["first_s"].tolist() == [0.25, 1.5, 2.5]


def test_readings_in_the_middle_of_a_run():
    fleet = fleet_of((0.0, 8, 40))
    fleet.run_until(1.1)
    found = fleet.read(0)
    # Four steps have ended: the prompt's eight tokens and three in the cache, four given.
    assert (found.waiting, found.running, found.live_tokens) == (0, 1, 12)
    assert found.kv_usage == 3 / 100
    assert found.busy_s == 1.1
    assert not fleet.idle(0)


def test_nobody_is_served_without_a_replica_and_waits_end():
    fleet = fleet_of((0.0, 4, 4), replicas=0, log=True)
    fleet.run_until(9.0)
    assert fleet.totals(0).waiting == 1
    assert fleet.totals(0).waiting_tokens == 8
    fleet.run_until(11.0)
    totals = fleet.totals(0)
    assert (totals.shed, totals.ttft_missed, totals.waiting) == (1, 1, 0)
    assert fleet.log()[0]["outcome"] == SHED
    assert fleet.log()[0]["finish_s"] == 10.0
    assert fleet.exhausted


def test_what_can_never_fit_is_shed_at_once():
    fleet = fleet_of((0.0, 90, 11), (0.0, 90, 10))
    fleet.run_until(0.0)
    assert fleet.totals(0).shed == 1


def test_a_stop_cuts_answers_and_gives_the_rest_back():
    fleet = fleet_of((0.0, 4, 40), (0.6, 4, 4), log=True)
    fleet.run_until(0.7)
    assert fleet.stop(0) == 1
    totals = fleet.totals(0)
    assert (totals.cut, totals.retried, totals.waiting) == (1, 1, 1)
    assert fleet.add() == 0
    fleet.run_until(5.0)
    assert fleet.log()["outcome"].tolist() == [CUT, COMPLETED]
    assert fleet.results(0).both_attainment == 0.5
    fleet.check()


def test_a_draining_replica_gets_nothing_new_until_the_drain_is_cancelled():
    fleet = fleet_of((0.0, 4, 4), (1.0, 4, 4))
    fleet.run_until(0.1)
    fleet.drain(0)
    fleet.run_until(2.0)
    assert fleet.idle(0)
    assert fleet.totals(0).waiting == 1
    fleet.cancel_drain(0)
    assert not fleet.idle(0)


def test_the_important_go_first_and_the_late_go_last():
    tiers = (TIER, TierRules("batch", 100.0, 1.0, 100.0, preemptible=True))
    rules = FleetRules(PROFILE, Capacity(400, 1, 100, 0.0, 0.0, 100), tiers)
    rows = [(0.0, 4, 8, 0, -1, 0), (0.0, 4, 1, 1, -1, 0), (0.5, 4, 1, 0, -1, 0), (1.5, 4, 1, 0, -1, 0)]
    fleet = fleet_of(*rows, rules=rules, log=True)
    fleet.run_until(60.0)
    # The one of 0.5 s can't be met any more when the first ends at 2 s, the one of 1.5 s can; batch is last.
    assert fleet.log()["first_s"].tolist() == [0.25, 2.75, 2.5, 2.25]
    assert math.isnan(fleet.recent_quantile_s("tpot", 0.5)) is False
    fleet.forget_recent()
    assert math.isnan(fleet.recent_quantile_s("ttft", 0.5))


def test_a_prefix_group_finds_its_cache_and_its_replica():
    rules = FleetRules(PROFILE, Capacity(400, 4, 100, 0.0, 0.0, 100), (TIER,), dispatch=Dispatch.PREFIX)
    rows = [(0.0, 64, 1, 0, 7, 0), (5.0, 64, 1, 0, 7, 60), (10.0, 64, 1, 0, 8, 60)]
    fleet = fleet_of(*rows, rules=rules, replicas=3, log=True)
    fleet.run_until(60.0)
    log = fleet.log()
    assert log["row"].tolist() == [0, 0, 1]
    assert log["first_s"].tolist() == [1.0, 5.25, 11.0]


@pytest.mark.parametrize("queueing", list(Queueing))
def test_memory_grows_with_what_is_in_flight_not_with_the_trace(queueing):
    rules = FleetRules(PROFILE, Capacity(400, 4, 100, 0.0, 0.0, 100), (TIER,), queueing=queueing)
    chunks = (arrivals_of([(10.0 * chunk + place / 100, 4, 2, 0, -1, 0) for place in range(500)]) for chunk in range(20))
    fleet = FastFleet(rules, chunks)
    for _ in range(40):
        fleet.add()
    fleet.run_until(300.0)
    assert fleet.results(0).totals.completed == 10_000
    assert len(fleet._fleet.requests) < 2_000
    assert len(fleet._fleet.replicas) == 64
    fleet.check()


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ((0.5, 4, 4, 0, -1, 0), r"arrival 1: 0.5 is a time before"),
        ((math.nan, 4, 4, 0, -1, 0), "no number"),
        ((2.0, 0, 4, 0, -1, 0), "a prompt of less than one token"),
        ((2.0, 4, 0, 0, -1, 0), "an output of less than one token"),
        ((2.0, 4, 4, 1, -1, 0), r"a tier outside 0\.\.0"),
        ((2.0, 4, 4, 0, -1, -3), "a shared prefix of less than nothing"),
    ],
)
def test_ill_arrivals_are_named_by_their_row(row, what):
    fleet = fleet_of((1.0, 4, 4, 0, -1, 0), row)
    with pytest.raises(BadInput, match=what):
        fleet.run_until(10.0)


def test_order_holds_from_chunk_to_chunk_and_before_zero():
    fleet = FastFleet(RULES, iter([arrivals_of([(1.0, 4, 4, 0, -1, 0)]), arrivals_of([]), arrivals_of([(0.9, 4, 4, 0, -1, 0)])]))
    with pytest.raises(BadInput, match="arrival 1"):
        fleet.run_until(10.0)
    with pytest.raises(BadInput, match="arrival 0"):
        fleet_of((-0.1, 4, 4)).run_until(1.0)


def test_what_the_driver_must_not_ask():
    fleet = fleet_of(rules=FleetRules(PROFILE, RULES.capacity, (TIER,), replicas_max=2), replicas=2)
    with pytest.raises(ValueError, match="2 replicas are the most"):
        fleet.add()
    fleet.run_until(5.0)
    with pytest.raises(ValueError, match="time does not go back"):
        fleet.run_until(4.0)
    fleet.stop(1)
    for call in (fleet.drain, fleet.cancel_drain, fleet.stop, fleet.idle, fleet.read):
        with pytest.raises(ValueError, match="no replica in row 1"):
            call(1)
    with pytest.raises(ValueError, match="at least one tier"):
        FastFleet(FleetRules(PROFILE, RULES.capacity, ()), iter(()))
    quick = msgspec.structs.replace(PROFILE, warm_up=WarmUp(10, 0.5))
    with pytest.raises(ValueError, match="at least 1 times as long"):
        FastFleet(FleetRules(quick, RULES.capacity, (TIER,)), iter(()))


def test_quantiles_are_right_to_one_percent():
    values = np.random.default_rng(1).lognormal(-2, 2, 10_000)
    counts = np.bincount(np.searchsorted(bounds(), values), minlength=len(bounds()))
    ranked = np.sort(values)
    for quantile in (0.01, 0.5, 0.9, 0.99, 1.0):
        assert quantile_s(counts, quantile) == pytest.approx(ranked[math.ceil(quantile * len(values)) - 1], rel=0.01001)
    assert math.isnan(quantile_s(np.zeros_like(counts), 0.5))


def test_the_same_arrivals_give_the_same_bytes():
    rows = [(place / 7, 1 + place % 30, 1 + place % 11, 0, -1, 0) for place in range(300)]
    states = []
    for _ in range(2):
        fleet = fleet_of(*rows, replicas=3)
        fleet.run_until(200.0)
        states.append((fleet.results(0), fleet.sketch(0, 2).tobytes()))
    assert states[0] == states[1]
