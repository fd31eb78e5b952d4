"""Ten times the load is answered while it still climbs; what merely doubles by chance, or has been there for long, is no surge."""

import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.domain.scaling import History
from forebay.scaling import spread
from forebay.scaling.memory import Bucket
from forebay.scaling.surge import FACTOR, seen

SWING = 0.3
SIGMAS = 3.7
REPLICA_PER_S = 3.5


def buckets(rate_at, now_s, last_s=900.0):
    """Readings of half a minute, looked at each ten seconds, as buckets have them; and the newest one."""

    def reading(at_s):
        return sum(rate_at(at_s - 30.0 + second + 0.5) for second in range(30)) / 30

    starts = [now_s - last_s + 10.0 * place for place in range(int(last_s / 10))]
    return [Bucket(start, 10.0, 10.0 * reading(start + 10.0)) for start in starts], reading(now_s)


def ramp(at_s):
    """From 40/s to ten times that within two minutes of the second 0."""
    return 40.0 * (1 + 9 * min(1.0, max(0.0, at_s / 120.0)))


def surge(rate_at, now_s, replica_per_s=REPLICA_PER_S):
    told, reading = buckets(rate_at, now_s)
    return seen(told, now_s, reading, replica_per_s, SIGMAS)


def test_ten_times_the_load_is_known_for_what_it_becomes_before_it_is_there():
    assert surge(ramp, 15.0) is None
    assert surge(ramp, 45.0).now_per_s > 80
    assert surge(ramp, 75.0).ahead_per_s > 320
    assert max(surge(ramp, at_s).ahead_per_s for at_s in range(45, 300, 5)) < 600


def test_a_jump_is_no_climb():
    """Never taken for much more than it is; known as what it is within a minute."""
    found = [surge(lambda at_s: 200.0 if at_s >= 0 else 40.0, at_s) for at_s in (30.0, 45.0, 60.0, 75.0, 120.0)]
    assert max(each.ahead_per_s for each in found) < 330
    assert found[-1].climb_per_s2 == pytest.approx(0.0, abs=0.01)
    assert found[-1].ahead_per_s == pytest.approx(200.0)


def test_half_as_much_again_is_left_to_the_forecast():
    assert surge(lambda at_s: 60.0 if at_s >= 0 else 40.0, 60.0) is None


def test_few_requests_prove_nothing_and_one_replica_is_no_surge():
    assert surge(lambda at_s: 0.5 if at_s >= 0 else 0.2, 60.0) is None
    assert surge(lambda at_s: 6.0 if at_s >= 0 else 1.0, 60.0) is None


def test_what_has_lasted_is_the_forecasts():
    assert surge(lambda at_s: 400.0 if at_s >= 0 else 40.0, 700.0) is None


def test_nothing_known_of_before_is_no_surge():
    assert seen([], 0.0, 400.0, REPLICA_PER_S, SIGMAS) is None
    assert seen(buckets(ramp, 60.0)[0], 60.0, None, REPLICA_PER_S, SIGMAS) is None


def test_where_demand_jumps_many_times_a_day_the_forecast_weighs_it():
    told, reading = buckets(ramp, 75.0)
    counts = spread.prior()
    for _ in range(1000):
        counts = spread.learned(counts, 0.0)
    assert seen(told, 75.0, reading, REPLICA_PER_S, SIGMAS, spread.packed(counts), SWING) is not None
    for _ in range(10):
        counts = spread.learned(counts, math.log(8.0) / SWING)
    assert seen(told, 75.0, reading, REPLICA_PER_S, SIGMAS, spread.packed(counts), SWING) is None


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 2000), st.floats(0, 2000), st.floats(0, 300))
def test_more_load_never_means_a_smaller_surge(one, other, then):
    told, _ = buckets(lambda at_s: then if at_s > 40 else 40.0, 60.0)
    less, more = (seen(told, 60.0, reading, REPLICA_PER_S, SIGMAS) for reading in sorted((one, other)))
    assert less is None or more is not None
    assert less is None or less.ahead_per_s <= more.ahead_per_s
    assert more is None or more.now_per_s >= FACTOR * more.before_per_s


def test_a_surge_is_asked_for_at_once_and_says_why(make_pool):
    """20 replicas' worth comes within a minute to a pool of ten minutes' two: the forecast alone would see it minutes later."""
    pool = make_pool(max_replicas=60, buffer=False)
    pool.desired = 3
    for _ in range(40):
        now_s = pool.now_s + 30.0
        column = struct.pack("<36f", *[500.0] * 36)
        told = History(1_790_000_000.0 + now_s // 300 * 300 - 36 * 300, 300.0, column, column, column)
        decision = pool.at(now_s, per_min=100, history=told)
    assert pool.term(decision, "forecast") is not None
    assert pool.term(decision, "surge") is None
    decision = pool.at(pool.now_s + 30.0, per_min=1000, history=told)
    term = pool.term(decision, "surge")
    assert (decision.reason, term.binding) == ("surge", True)
    assert 15 <= decision.replicas <= 22
    assert "times what came 5m ago" in term.because
