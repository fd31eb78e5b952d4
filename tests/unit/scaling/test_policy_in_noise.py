"""Chance is neither demand nor a ramp: under Poisson arrivals a fleet sits still, and under a real ramp it doesn't lag."""

import random
from collections import deque

import pytest

PER_MIN = 1 / 60
RAMP = 30 / 3600


def readings(poisson, seed, every_s, rate_per_min, seconds):
    """(time, arrivals per minute over the last 30 s), one per ``every_s``, of a Poisson process of a rate that may move."""
    chance = random.Random(seed)
    slots = int(30 / every_s)
    recent = deque((poisson(chance, rate_per_min(0.0) * PER_MIN * every_s) for _ in range(slots)), maxlen=slots)
    for index in range(int(seconds / every_s)):
        at_s = index * every_s
        yield at_s, sum(recent) * 60 / 30
        recent.append(poisson(chance, rate_per_min(at_s) * PER_MIN * every_s))


@pytest.mark.parametrize(("per_min", "replicas"), [(100, 5), (400, 11)])
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_two_hours_at_one_rate_are_one_count(make_pool, poisson, per_min, replicas, seed):
    """The demand is a whole number of replicas' worth, so the smallest excess would be one more: none is bought."""
    pool = make_pool(ramp_per_s2=RAMP)
    counts = set()
    for at_s, reading in readings(poisson, seed, 30.0, lambda _: per_min, 7200):
        decision = pool.at(at_s, per_min=reading)
        if at_s > 900:
            counts.add(decision.replicas)
    assert counts == {replicas}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_chance_is_no_ramp(make_pool, poisson, seed):
    """Nothing declared, nothing rising: no buffer in two hours."""
    pool = make_pool(ramp_per_s2=0.0)
    for at_s, reading in readings(poisson, seed, 30.0, lambda _: 100, 7200):
        assert pool.term(pool.at(at_s, per_min=reading), "buffer").numbers["added"] == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_ramp_of_the_worked_example_is_followed_to_eleven(make_pool, poisson, seed):
    """100 → 400/min in ten minutes: eleven, no more, each within three minutes of when its demand began (the last: four)."""
    pool = make_pool(ramp_per_s2=RAMP)
    reached_s = {}
    start_s = 900.0
    for at_s, reading in readings(poisson, seed, 10.0, lambda t: min(400.0, 100 + max(0.0, t - start_s) * 0.5), 2400):
        decision = pool.at(at_s, per_min=reading)
        reached_s.setdefault(decision.replicas, at_s)
    assert pool.desired == 11
    assert max(reached_s) == 11
    for replicas in range(6, 11):
        assert reached_s[replicas] <= start_s + 100 * (replicas - 6) + 180
    assert reached_s[11] <= start_s + 500 + 240


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_random_walk_of_loads_does_not_flap(make_pool, seed):
    """1,000 looks at arrivals, waiting and KV that wander: between two steps down or a turn from down to up lies time."""
    chance = random.Random(seed)
    pool = make_pool(ramp_per_s2=RAMP)
    per_min, kv, rose_s, count = 100.0, 0.3, 0.0, 0
    for index in range(500):
        per_min = min(600.0, max(0.0, per_min + chance.gauss(0, 4)))
        kv = min(0.84, max(0.0, kv + chance.gauss(0, 0.02)))
        before = pool.desired
        decision = pool.at(index * 20.0, per_min=per_min, kv=kv)
        if decision.replicas > before:
            rose_s = pool.now_s
            count += 1
        elif decision.replicas < before:
            assert before - decision.replicas == 1
            assert pool.now_s - rose_s >= pool.settings.in_calm_s
            count += 1
    assert count <= 40
