"""What leads and what only confirms: starts count from when they will serve, tokens in flight before KV is full, late answers never alone."""

import msgspec
import pytest

from forebay.domain.replica import ReplicaState
from forebay.domain.roster import Posture
from forebay.domain.signal import Known, Unknown
from forebay.engine.catalogue import PROFILES
from forebay.scaling.arrivals import Demand
from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.sight import look
from forebay.scaling.triggers import worked_off_s

H200 = PROFILES["llama-3.1-70b-fp8-1xh200"]
PROMISED = PoolCapacity(rate_per_s=1.0, cold_start_s=300.0, origin="test", profile=H200, tokens_in_flight=0.4 * H200.kv_tokens)
"""A replica keeps the promise with 40 % of its KV in use."""


def coming(pool, *in_s, **fields):
    return [pool.replica(90 + place, ReplicaState.LOADING, expected_ready_s=pool.now_s + each, **fields) for place, each in enumerate(in_s)]


@pytest.mark.parametrize(
    ("proven", "in_s", "wanted"),
    [
        (2.0, (100.0, 250.0), 150 * 1 + 50 * 2),
        (3.0, (100.0, 250.0), 150 * 0 + 50 * 1),
        (0.5, (100.0, 250.0), 150 * 1 + 50 * 2),
        (2.0, (250.0, 100.0), 250),
        (2.0, (300.0, 900.0), 0),
        (2.0, (-1.0, 0.0), 0),
        (2.0, (), 0),
    ],
)
def test_a_start_works_off_a_backlog_from_when_it_is_expected(make_pool, proven, in_s, wanted):
    """Two ready, a new start would take 300 s: one expected in 100 s serves for 200 of them, less what present demand lacks."""
    pool = make_pool()
    sight = look(pool.observation(ready=2, others=coming(pool, *in_s)), pool.settings)
    assert worked_off_s(sight, Demand(proven, proven, 1.0, 60.0, "requests"), 300.0) == wanted


def backlog(pool, **fields):
    """100/min arrive on two ready replicas of 50/min, and 1000 wait for a minute: 1200 replica-seconds, six to work them off in 300 s."""
    pool.hold(900, per_min=100, ready=2)
    pool.now_s += 10
    pool.at(pool.now_s, per_min=100, waiting=1000, ready=2)
    pool.now_s += 60
    return pool.at(pool.now_s, per_min=100, waiting=1000, ready=2, others=coming(pool, 150.0, 150.0, 150.0, 150.0, **fields))


def test_four_starts_half_way_work_off_half(make_pool):
    """Four × 150 s are 600 of the 1200 replica-seconds: 2 + 600 ÷ 300."""
    term = make_pool.term(backlog(make_pool(min_replicas=2, buffer=False)), "queue")
    assert term.replicas == 4
    assert term.numbers["worked_off_replica_s"] == 600
    assert "4 starting, which will have worked off 50%" in term.because


def test_overdue_starts_work_off_nothing_and_the_pool_is_exhausted(make_pool):
    pool = make_pool(min_replicas=2, buffer=False)
    assert make_pool.term(backlog(pool, overdue=True), "queue").replicas == 6
    decision = pool.at(pool.now_s + 1, per_min=100, waiting=1000, ready=2, others=coming(pool, 150.0, overdue=True))
    assert decision.posture is Posture.SHED_PREEMPTIBLE


def served(pool, kvs, ttft=0.9, for_s=60.0):
    """The same KV usages and share of first tokens in time for a while; the last decision."""
    for now_s in (pool.now_s, pool.now_s + for_s):
        pool.now_s = now_s
        replicas = [pool.replica(place, kv=kv) for place, kv in enumerate(kvs)]
        attainment = Known(ttft, now_s) if ttft is not None else Unknown("few")
        decision = pool.at(now_s, per_min=1, replicas=replicas, ttft_attainment=attainment)
    return decision


@pytest.mark.parametrize(
    ("kv", "wanted"),
    [(0.3, 0), (0.5, 0), (0.51, 6), (0.6, 6), (0.8, 6)],
)
def test_tokens_in_flight_say_how_many_are_missing(make_pool, kv, wanted):
    """Four ready: at 60 % of KV there are 1.5 times the tokens of the promise; more than 1.25 pulls, and at most 1.5 times as many are asked for."""
    term = make_pool.term(served(make_pool(capacity=PROMISED, min_replicas=4, buffer=False), [kv] * 4), "tokens")
    assert term.replicas == wanted


@pytest.mark.parametrize(
    ("kvs", "ttft", "for_s"),
    [
        ([0.1] * 4, 0.2, 600.0),
        ([0.6] * 4, 0.995, 600.0),
        ([0.6] * 4, 0.9, 59.0),
        ([0.8, 0.8, 0.3, 0.3, 0.3], 0.9, 60.0),
    ],
    ids=["late alone", "tokens alone", "late for too short", "long contexts on two of five"],
)
def test_one_sign_alone_does_not_pull(make_pool, kvs, ttft, for_s):
    decision = served(make_pool(capacity=PROMISED, min_replicas=len(kvs), buffer=False), kvs, ttft, for_s)
    assert (decision.replicas, make_pool.term(decision, "tokens").replicas) == (len(kvs), 0)


def test_without_ttft_or_a_profile_there_is_no_such_trigger(make_pool):
    assert make_pool.term(served(make_pool(capacity=PROMISED, min_replicas=4), [0.6] * 4, ttft=None), "tokens") is None
    bare = msgspec.structs.replace(PROMISED, profile=None)
    assert make_pool.term(served(make_pool(capacity=bare, min_replicas=4), [0.6] * 4), "tokens") is None


def test_silent_replicas_count_as_empty(make_pool):
    """Three of five tell 60 %, two nothing: the middle one is still full; with three silent it is not known to be."""
    pool = make_pool()
    for silent, middle in ((0, 0.6), (2, 0.6), (3, 0.0)):
        replicas = [pool.replica(place, kv=0.6, known=place >= silent) for place in range(5)]
        assert look(pool.observation(replicas=replicas), pool.settings).kv_middle == middle
