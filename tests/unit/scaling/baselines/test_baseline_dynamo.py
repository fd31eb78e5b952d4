"""Dynamo's planner by hand: thresholds of the easy mode, estimates of the SLA mode, the forecast floor and its zero."""

import pytest

from forebay.domain.signal import Unknown
from forebay.scaling.baselines import ar, dynamo_model
from forebay.scaling.baselines.dynamo import DynamoEasy, DynamoSla
from forebay.scaling.baselines.dynamo_model import Shape

SHAPE = Shape(1000.0, 200.0)


def test_easy_up_if_any_engine_is_above_down_if_all_are_below(drive, make_targets):
    law = DynamoEasy(make_targets())
    pool = drive(law, desired=3)
    # 95,000 in use and 6,000 queued of 100,000: 1.01 > 1.0.
    above = [pool.replica(0, kv=0.95, queued_tokens=6000), pool.replica(1, kv=0.2), pool.replica(2, kv=0.2)]
    assert pool.at(0.0, replicas=above).replicas == 4
    assert drive(law, desired=3).at(0.0, each={"kv": 0.59}).replicas == 2
    assert drive(law, desired=3).at(0.0, each={"kv": 0.60}).replicas == 3
    assert drive(law, desired=1).at(0.0, each={"kv": 0.0}).replicas == 1


def test_easy_knows_what_waits_in_lanes_as_queued_prompts(drive, make_targets):
    # 90 wait over 3 engines: 30 × 1,000 tokens each, 0.80 + 0.30 > 1.
    assert drive(DynamoEasy(make_targets()), desired=3).at(0.0, rate=1.0, lanes=90, each={"kv": 0.8}).replicas == 4


@pytest.mark.parametrize("law", [DynamoEasy, DynamoSla])
def test_it_only_observes_while_a_start_is_under_way_even_for_ever(drive, make_targets, law):
    pool = drive(law(make_targets()), desired=5)
    assert set(pool.hold(7200, ready=4, pending=1, rate=1.0, each={"kv": 0.99, "queued_tokens": 9e5})) == {5}
    assert pool.at(7300.0, ready=4, pending=1).reason == "scaling_in_progress"


@pytest.mark.parametrize("law", [DynamoEasy, DynamoSla])
def test_one_silent_engine_makes_it_observe(drive, make_targets, law):
    pool = drive(law(make_targets()), desired=2)
    assert pool.at(0.0, replicas=[pool.replica(0), pool.replica(1, kv=Unknown("timeout"))]).reason == "worker_count_mismatch"


def test_model_of_a_pass_and_of_a_queue(round_pool):
    profile = round_pool.profile
    plane, chunk = dynamo_model.given(profile, SHAPE), profile.prefill_chunk_tokens
    # 10 ms + 1000 × 10 µs + 11,000 × (0.1 µs + 100 µs ÷ 1,100) = 10 + 10 + 2.1 ms.
    assert plane.pass_s(1000, 11_000) == pytest.approx(0.0221)
    # 4,500 queued + 1,000 own, chunks of 2,000: 2 × 30 ms + (10 + 15) ms = 85 ms on an idle engine.
    assert dynamo_model.ttft_s(plane, chunk, SHAPE, 4500, 0) == pytest.approx(0.085)
    # One more sequence of 1,100 tokens: 10 + 1.1 × 0.19… ms.
    assert dynamo_model.itl_s(plane, SHAPE, 0, 0) == pytest.approx(0.010 + 1100 * 1e-7 + 1e-4)


def test_best_rate_is_the_largest_batch_within_both_promises(round_pool):
    profile = round_pool.profile
    plane = dynamo_model.given(profile, SHAPE)
    # Batch b: step = 10 ms + 5b × 10 µs + b × 1,100 × 0.1 µs + b × 0.1 ms = 10 + 0.26 b ms. 256 slots but KV for 90: 33.4 ms.
    assert dynamo_model.best_rate(plane, profile, SHAPE, 1.0, 0.05) == pytest.approx(90 / (200 * 0.0334))
    # ITL 20 ms: b = 38 (19.88 ms).
    assert dynamo_model.best_rate(plane, profile, SHAPE, 1.0, 0.02) == pytest.approx(38 / (200 * 0.01988))
    # Not even one fits: the rate at batch 1 all the same.
    assert dynamo_model.best_rate(plane, profile, SHAPE, 1.0, 0.001) == pytest.approx(1 / (200 * 0.01026))


def test_sla_up_only_if_every_engine_would_break(drive, make_targets):
    law = DynamoSla(make_targets(ttft_s=0.5))
    pool = drive(law, desired=2)
    # 40,000 queued + 1,000: 20 × 30 ms + 20 ms = 620 ms > 500; the other is idle.
    one = [pool.replica(0, queued_tokens=40_000), pool.replica(1)]
    assert pool.at(0.0, rate=1.0, replicas=one).replicas == 2
    assert drive(law, desired=2).at(0.0, rate=1.0, each={"queued_tokens": 40_000}).replicas == 3


def test_sla_down_only_if_the_survivors_would_hold(drive, make_targets):
    # ITL after 2 → 1: KV 30,000 × 2 + 1,100; prefill 27.27 sequences × 5 = 136 tokens. 10 + 1.36 + 61,100 × 0.1909 µs = 23.0 ms.
    loose = DynamoSla(make_targets(itl_s=0.030))  # × 0.8 = 24 ms
    tight = DynamoSla(make_targets(itl_s=0.028))  # × 0.8 = 22.4 ms
    assert drive(loose, desired=2).at(0.0, rate=1.0, each={"kv": 0.30}).replicas == 1
    assert drive(tight, desired=2).at(0.0, rate=1.0, each={"kv": 0.30}).replicas == 2
    # KV would not fit: 60,000 × 2 ≥ 100,000, whatever the promise.
    assert drive(DynamoSla(make_targets(itl_s=9.0)), desired=2).at(0.0, rate=1.0, each={"kv": 0.60}).replicas == 2


def test_the_throughput_floor_holds_what_the_load_would_let_go(drive, make_targets):
    pool = drive(DynamoSla(make_targets()), desired=6)
    # 45/s, best rate 90 ÷ 6.68 = 13.47/s: ceil(3.34) = 4 replicas, from the first whole interval on.
    counts = pool.hold(600, every_s=5.0, rate=45.0, each={"kv": 0.01})
    assert counts[0] == 5
    assert pool.desired == 4
    assert drive.term(pool.at(605.0, rate=45.0, each={"kv": 0.01}), "throughput_floor").replicas == 4


def test_a_failed_read_of_the_traffic_is_zero_requests(drive, make_targets):
    pool = drive(DynamoSla(make_targets()), desired=4)
    pool.hold(400, every_s=5.0, rate=45.0, each={"kv": 0.01})
    assert pool.desired == 4
    gone = Unknown("timeout")
    pool.hold(600, every_s=5.0, rate=gone, each={"kv": 0.01})
    assert pool.desired == 1


def test_one_ahead_is_the_last_value_until_there_is_a_trend():
    assert ar.one_ahead([]) == 0
    assert ar.one_ahead([3.0, 9.0]) == 9
    assert ar.one_ahead([5.0] * 8) == 5
    assert ar.one_ahead([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(6.0)
    assert ar.one_ahead([100.0, 80.0, 60.0, 40.0, 10.0]) >= 0
