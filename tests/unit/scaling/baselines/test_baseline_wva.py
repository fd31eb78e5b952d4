"""llm-d's WVA by hand: spare percentages, tokens, the freeze, and the HPA in between."""

import pytest

from forebay.domain.signal import Unknown
from forebay.scaling.baselines.hpa import HpaSettings
from forebay.scaling.baselines.wva import SaturationV1, SaturationV2, WvaV1, WvaV2

EXACT = HpaSettings(tolerance=0.0, down_stabilisation_s=0.0)


def test_v1_adds_one_when_spare_kv_or_queue_runs_out(drive):
    # Spare KV: mean(0.80 − 0.72) = 0.08 < 0.10.
    assert drive(WvaV1(), desired=5).at(0.0, each={"kv": 0.72}).replicas == 6
    # Spare queue: 5 − 3 = 2 < 3.
    assert drive(WvaV1(), desired=5).at(0.0, each={"waiting": 3}).replicas == 6
    # All saturated: nothing is spare.
    assert drive(WvaV1(), desired=5).at(0.0, each={"kv": 0.95, "waiting": 9}).replicas == 6


def test_v1_removes_one_where_the_rest_would_keep_enough(drive):
    law = WvaV1(SaturationV1(hpa=EXACT))
    # 4 replicas at 0.50: spare 0.30; on three: 0.80 − 0.50 × 4 ÷ 3 = 0.133 ≥ 0.10: one fewer.
    decision = drive(law, desired=4).at(0.0, each={"kv": 0.50})
    assert decision.replicas == 3
    assert drive.term(decision, "spare").numbers["spare_kv"] == pytest.approx(0.30)
    # 3 replicas at 0.50: on two 0.80 − 0.75 = 0.05 < 0.10: it stays.
    assert drive(law, desired=3).at(0.0, each={"kv": 0.50}).replicas == 3


def test_v1_is_frozen_while_anything_is_pending_or_not_yet_carried_out(drive):
    pool = drive(WvaV1(), desired=5)
    assert pool.at(0.0, ready=4, pending=1, each={"kv": 0.79, "waiting": 4}).reason == "transition"
    # Ten replicas: eleven is within the HPA's tenth, so it is swallowed, and the law waits for it for ever.
    stuck = drive(WvaV1(), desired=10)
    assert set(stuck.hold(3600, each={"kv": 0.95, "waiting": 50})) == {10}
    free = drive(WvaV1(SaturationV1(hpa=HpaSettings(tolerance=0.0))), desired=10)
    assert free.hold(60, each={"kv": 0.95, "waiting": 50}) == [11, 12, 13, 14]


def test_v1_sees_the_worst_of_the_last_minute(drive):
    pool = drive(WvaV1(SaturationV1(hpa=EXACT)), desired=5)
    pool.at(0.0, ready=4, pending=1, each={"kv": 0.79})
    assert pool.at(45.0, each={"kv": 0.10}).reason == "steady"  # Spare: (4 × 0.01 + 0.70) ÷ 5 = 0.148.
    calm = drive(WvaV1(SaturationV1(hpa=EXACT)), desired=5)
    calm.at(0.0, ready=4, pending=1, each={"kv": 0.79})
    assert calm.at(60.0, each={"kv": 0.10}).reason == "spare"


def test_v1_what_waits_in_lanes_is_shared_evenly(drive):
    assert drive(WvaV1(), desired=5).at(0.0, lanes=15).replicas == 6  # 3 each: 5 − 3 = 2 < 3


def test_v2_demand_against_supply_in_tokens(drive, make_targets):
    # KV 100,000 tokens: k1 = 80,000. Derived k2: min(2000 × 200 ÷ 1200, 256) = 256 × 1100 = 281,600. Capacity 80,000.
    law = WvaV2(make_targets(), SaturationV2(hpa=EXACT))
    # 4 × 75,000 = 300,000 in use and 20 × 1,200 = 24,000 in lanes; ÷ 0.85 = 381,176 − 320,000 = 61,176 → 1 more.
    decision = drive(law, desired=4).at(0.0, rate=1.0, lanes=20, each={"kv": 0.75})
    assert decision.replicas == 5
    assert drive.term(decision, "required_capacity").numbers["demand_tokens"] == 324_000
    # 10 × 30,000 = 300,000; 800,000 − 300,000 ÷ 0.70 = 371,429: four whole replicas are spare.
    assert drive(law, desired=10).at(0.0, rate=1.0, each={"kv": 0.30}).replicas == 6


def test_v2_counts_pending_replicas_as_supply(drive, make_targets):
    law = WvaV2(make_targets(), SaturationV2(hpa=EXACT))
    load = {"rate": 1.0, "each": {"kv": 0.79}}
    # 4 × 79,000 ÷ 0.85 = 371,765 − 320,000: one more; with one on its way 400,000 is there.
    assert drive(law, desired=4).at(0.0, **load).replicas == 5
    assert drive(law, desired=5).at(0.0, ready=4, pending=1, **load).replicas == 5


def test_v2_learns_from_a_queue_what_a_replica_really_holds(drive, make_targets):
    pool = drive(WvaV2(make_targets(), SaturationV2(hpa=EXACT)), desired=4)
    # Queues of 6 at 40,000 tokens: that is what fits. (160,000 + 24 × 1,200) ÷ 0.85 = 222,118 − 160,000 → ÷ 40,000 → 2 more.
    assert pool.at(0.0, rate=1.0, each={"kv": 0.40, "waiting": 6}).replicas == 6
    # An hour later, without a queue, it still counts 40,000: 6 × 36,000 ÷ 0.85 = 254,118 − 240,000 → one more.
    pool.desired = 6
    decision = pool.at(3600.0, rate=1.0, each={"kv": 0.36})
    assert drive.term(decision, "required_capacity").numbers["per_replica_tokens"] == pytest.approx(40_000)
    assert decision.replicas == 7
    # And forgets it after a day.
    pool.desired = 6
    assert pool.at(90_000.0, rate=1.0, each={"kv": 0.36}).reason != "required_capacity"


def test_v2_behind_the_samples_hpa_goes_down_after_a_minute(drive, make_targets):
    pool = drive(WvaV2(make_targets()), desired=10)
    pool.at(0.0, rate=1.0, each={"kv": 0.70})
    assert pool.hold(45, rate=1.0, each={"kv": 0.01}) == [10, 10, 10]


@pytest.mark.parametrize("make", [lambda targets: WvaV1(), WvaV2])
@pytest.mark.parametrize("why", ["refused", "missing", "nan"])
def test_without_metrics_what_was_wanted_stands(drive, make_targets, make, why):
    pool = drive(make(make_targets()), desired=5)
    pool.at(0.0, rate=1.0, each={"kv": 0.60})
    assert set(pool.hold(3600, **drive.dark(why))) == {5}


def test_v2_a_replica_that_is_silent_is_neither_demand_nor_supply(drive, make_targets):
    pool = drive(WvaV2(make_targets(), SaturationV2(hpa=EXACT)), desired=2)
    replicas = [pool.replica(0, kv=0.79), pool.replica(1, kv=Unknown("timeout"))]
    # 79,000 ÷ 0.85 = 92,941 − 80,000: one more, beside the two.
    assert pool.at(0.0, rate=1.0, replicas=replicas).replicas == 3


@pytest.mark.parametrize("make", [lambda targets: WvaV1(SaturationV1(hpa=EXACT)), lambda targets: WvaV2(targets, SaturationV2(hpa=EXACT))])
def test_at_the_pools_limit_it_wants_no_more_and_so_does_not_wait_for_it(drive, make_targets, make):
    pool = drive(make(make_targets()), desired=4, most=5)
    assert pool.hold(45, rate=1.0, each={"kv": 0.99}) == [5, 5, 5]
    assert pool.at(200.0, rate=1.0, each={"kv": 0.05}).replicas < 5
