"""What replicas sustain is learned from steady minutes alone; an overload and what it leaves late teach neither capacity nor floor."""

import msgspec
import pytest

from forebay.domain.replica import ReplicaState
from forebay.domain.scaling import Observation, ReplicaObservation
from forebay.engine.catalogue import PROFILES
from forebay.scaling import sustained
from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.irreducible import BINS, alone
from forebay.scaling.memory import Bucket, Learnt, Memory
from forebay.scaling.sight import Sight
from forebay.spec.types import Slo

PROFILE = PROFILES["llama-3.1-70b-fp8-1xh200"]
CAPACITY = PoolCapacity(rate_per_s=3.5, profile=PROFILE)
SLO = Slo(ttft_s=1.0, itl_s=0.05, attainment=0.99)
REPLICAS = 10
NOW_S = 960.0


def remembered(use_at, prompt_tokens=1155.0, **fields):
    """Sixteen minutes at ``use_at(seconds ago)`` of the capacity."""

    def bucket(start_s):
        requests = 10.0 * use_at(NOW_S - start_s) * REPLICAS * 3.5
        return Bucket(start_s, 10.0, requests, 10.0, requests * prompt_tokens, requests * 200.0, 10.0 * REPLICAS)

    buckets = tuple(bucket(10.0 * place) for place in range(96))
    return Memory(buckets=buckets, learnt=Learnt(known_s=1e6), usual_per_s=35.0, **fields)


def sight(attainment, itl_attainment=1.0):
    return Sight(NOW_S, REPLICAS, REPLICAS, 0, 0, 0, 0.0, 0.3, 0.3, (), "", 35.0, None, attainment, None, None, itl_attainment)


def steady(_ago_s):
    return 0.95


def overrun(ago_s):
    return 1.5 if 360 < ago_s <= 480 else 0.95


def test_more_misses_than_allowed_mean_less_is_sustained_and_fewer_mean_more():
    memory = remembered(steady)
    assert 0.9 < sustained.learned(memory, sight(0.97), CAPACITY, SLO) < 1.0
    assert 1.0 < sustained.learned(memory, sight(0.999), CAPACITY, SLO) < 1.05


def test_for_ten_minutes_an_overload_leaves_late_what_says_nothing_about_a_replica():
    """A lost region's traffic arrives at once: six minutes later the fleet is large enough, and still everything was late."""
    memory = remembered(overrun)
    assert sustained.learned(memory, sight(0.80), CAPACITY, SLO) == 1.0
    assert sustained.learned(memory, sight(0.999), CAPACITY, SLO) == 1.0
    bins, _ = sustained.unpreventable(memory, sight(0.80), CAPACITY, SLO)
    assert bins == ()
    long_ago = remembered(lambda ago_s: overrun(ago_s - 300.0))
    assert sustained.learned(long_ago, sight(0.97), CAPACITY, SLO) < 1.0


def test_an_engine_that_is_not_warm_yet_says_nothing_about_the_others():
    """A minute of warm-up, and the five minutes that what was late then is still told of."""

    def seen(since_s, state=ReplicaState.READY):
        replicas = (ReplicaObservation("old", ReplicaState.READY, 0.0, 0.0), ReplicaObservation("new", state, since_s, since_s))
        return Observation("chat", 1000.0, 0.0, 2, replicas)

    assert sustained.cold(seen(640.1), warm_up_s=60.0)
    assert not sustained.cold(seen(640.0), warm_up_s=60.0)
    assert not sustained.cold(seen(999.0), warm_up_s=0.0), "without a warm-up it is as warm as any"
    assert not sustained.cold(seen(999.0, ReplicaState.LOADING), warm_up_s=60.0), "it serves nobody yet"


def test_few_requests_overrun_by_chance_and_are_learned_from_all_the_same():
    many = remembered(lambda ago_s: 1.4 if 360 < ago_s <= 420 else 0.95)
    small = msgspec.structs.replace(many, buckets=tuple(msgspec.structs.replace(b, requests=b.requests / 100) for b in many.buckets))
    slow = msgspec.structs.replace(CAPACITY, rate_per_s=0.035)
    assert sustained.learned(small, sight(0.97), slow, SLO) < 1.0
    assert sustained.learned(many, sight(0.97), CAPACITY, SLO) == 1.0


def test_longer_prompts_raise_the_floor_to_what_physics_says_within_minutes():
    memory = remembered(steady, prompt_tokens=1732.0)
    for _ in range(8):
        uses, floor = sustained.unpreventable(memory, sight(0.987), CAPACITY, SLO)
        memory = msgspec.structs.replace(memory, uses=uses, irreducible=floor)
    assert memory.irreducible == pytest.approx(alone(PROFILE, 1732.0, 1.0), rel=0.25)
    assert len(memory.uses) == 2 * BINS + 1
    assert memory.uses[-1] == pytest.approx(1732.0)


def test_minutes_in_which_nearly_all_were_late_hide_no_floor():
    """Lengths change: the fleet is too small for some minutes, though no more requests come than before."""
    memory = remembered(steady, prompt_tokens=1732.0)
    for attainment in (0.6, 0.7, *[0.987] * 10):
        uses, floor = sustained.unpreventable(memory, sight(attainment), CAPACITY, SLO)
        memory = msgspec.structs.replace(memory, uses=uses, irreducible=floor)
    assert memory.irreducible > 0.009


def test_misses_that_the_floor_explains_are_not_blamed_on_load():
    floor = 0.0112
    blamed = sustained.learned(remembered(steady), sight(0.986), CAPACITY, SLO)
    known = sustained.learned(remembered(steady, irreducible=floor), sight(0.986), CAPACITY, SLO)
    assert blamed < known


def test_none_missed_beside_a_floor_that_leaves_little_teaches_less():
    free = sustained.learned(remembered(steady), sight(0.9995), CAPACITY, SLO)
    little = sustained.learned(remembered(steady, irreducible=0.0075), sight(0.9935), CAPACITY, SLO)
    assert 1.0 < little < free


def test_nothing_is_learned_without_a_profile_or_an_attainment():
    memory = remembered(steady)
    assert sustained.learned(memory, sight(0.9), PoolCapacity(rate_per_s=3.5), SLO) == 1.0
    assert sustained.learned(memory, sight(None), CAPACITY, SLO) == 1.0
    assert sustained.unpreventable(memory, sight(None), CAPACITY, SLO) == ((), 0.0)
