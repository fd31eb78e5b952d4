"""SageServe's hourly plan and Chiron's share of busy instances, by hand."""

import math
import struct

import pytest

from forebay.domain.scaling import History
from forebay.domain.signal import Unknown
from forebay.scaling.baselines.chiron import Chiron
from forebay.scaling.baselines.sageserve import Sage, SageSettings

WALL_S = 1_790_000_000.0
LAW = Sage(SageSettings(1000.0))


def history(rates, until_s=WALL_S, bucket_s=300.0):
    """Prompt tokens per second of each past bucket, the last ending at ``until_s``."""
    tokens = struct.pack(f"<{len(rates)}f", *(rate * bucket_s for rate in rates))
    return History(until_s - len(rates) * bucket_s, bucket_s, b"", tokens, b"")


def test_the_plan_is_spent_while_memory_is_more_than_half_full(drive):
    pool = drive(LAW, desired=4)
    # 6/s × 1,000 tokens = 6,000/s now and no history: × 1.1 ÷ 1,000 = 6.6 → 7: three more, one every 65 s.
    counts = pool.hold(200, every_s=10.0, rate=6.0, each={"kv": 0.51})
    assert counts[0] == 5
    assert pool.desired == 7
    assert [counts.index(count) * 10 for count in (5, 6, 7)] == [0, 70, 140]
    # At half or less nothing is spent.
    assert set(drive(LAW, desired=4).hold(600, every_s=10.0, rate=6.0, each={"kv": 0.50})) == {4}


def test_a_step_that_the_pools_limit_forbids_is_not_spent(drive):
    pool = drive(LAW, desired=4, most=4)
    assert set(pool.hold(200, every_s=10.0, rate=6.0, each={"kv": 0.9})) == {4}
    pool.policy = drive(LAW, most=20).policy
    assert pool.at(210.0, rate=6.0, each={"kv": 0.9}).replicas == 5


def test_it_gives_back_only_while_memory_is_nearly_empty(drive):
    assert drive(LAW, desired=9).at(0.0, rate=6.0, each={"kv": 0.24}).replicas == 8
    assert drive(LAW, desired=9).at(0.0, rate=6.0, each={"kv": 0.25}).replicas == 9


def test_demand_far_above_the_forecast_adds_one_although_the_plan_is_spent(drive):
    pool = drive(LAW, desired=2)
    pool.at(0.0, rate=1.0, each={"kv": 0.3})  # Forecast 1,000/s: two replicas, nothing left to spend.
    assert pool.at(60.0, rate=5.0, each={"kv": 0.3}).replicas == 2
    assert pool.at(70.0, rate=5.1, each={"kv": 0.3}).reason == "surge"


def test_the_forecast_is_yesterdays_shape_at_todays_level(drive):
    day = [1000.0] * 288
    # Yesterday between 20 and 60 minutes from now: buckets 4 to 11; its highest was 3,000; the hour before now had 1,000.
    day[4:12] = [2000.0] * 4 + [3000.0] * 4
    past = history([1000.0] * 12 + day)
    decision = drive(LAW, desired=4).at(0.0, rate=2.0, each={"kv": 0.6}, history=past)
    assert drive.term(decision, "plan").numbers["forecast_tokens_per_s"] == pytest.approx(6000)  # 3,000 × 2,000 ÷ 1,000


def test_gaps_in_the_history_and_short_ones_fall_back_to_the_last_hour(drive):
    for past in (history([1000.0] * 20), history([math.nan] * 400), history([0.0] * 400)):
        decision = drive(LAW, desired=4).at(0.0, rate=2.0, each={"kv": 0.6}, history=past)
        assert next(term for term in decision.terms if term.numbers).numbers["forecast_tokens_per_s"] == pytest.approx(2000)


@pytest.mark.parametrize("why", ["refused", "missing", "nan"])
def test_without_metrics_it_is_taken_to_hold(drive, why):
    for law in (LAW, Chiron()):
        pool = drive(law, desired=6)
        pool.at(0.0, rate=6.0, each={"kv": 0.4, "running": 0})
        desired = pool.desired
        assert set(pool.hold(3600, **drive.dark(why))) == {desired}


def test_chiron_has_no_dead_band(drive):
    pool = drive(Chiron(), desired=10)
    seven = [pool.replica(index, running=index < 7) for index in range(10)]
    six = [pool.replica(index, running=index < 6) for index in range(10)]
    assert drive(Chiron(), desired=10).at(0.0, replicas=seven).replicas == 11
    assert drive(Chiron(), desired=10).at(0.0, replicas=six).replicas == 9


def test_chiron_waits_for_its_action(drive):
    pool = drive(Chiron(), desired=10)
    assert pool.hold(140, every_s=10.0, each={"running": 3}) == [11] * 7 + [12] * 7


def test_chiron_with_requests_everywhere_grows_without_end(drive):
    pool = drive(Chiron(), desired=2, most=30)
    pool.hold(3600, every_s=10.0, each={"running": 1, "kv": 0.01})
    assert pool.desired == 30


def test_one_silent_instance_holds_chiron(drive):
    pool = drive(Chiron(), desired=2)
    assert pool.at(0.0, replicas=[pool.replica(0, running=1), pool.replica(1, running=Unknown("timeout"))]).replicas == 2
