"""Misses that stay however low the use are told from those that load causes: at once by physics, in the end by a range of load."""

import random

import pytest

from forebay.engine.catalogue import PROFILES
from forebay.scaling.economics import misses
from forebay.scaling.irreducible import BINS, LEFT_MIN, alone, floor, noted, of_load

ALLOWED = 0.01
PROMPT = 1000.0
H200 = PROFILES["llama-3.1-70b-fp8-1xh200"]


def played(share_at, uses, minutes=400, seed=0, idle=None, bins=(), found=0.0, prompt=PROMPT):
    chance = random.Random(seed)
    for _ in range(minutes):
        use = chance.uniform(*uses)
        bins = noted(bins, use, 1.0, max(0.0, share_at(use) * chance.uniform(0.7, 1.3)), prompt)
        found = floor(found, bins, ALLOWED, idle)
    return found


def test_the_same_share_at_every_use_is_a_floor():
    assert played(lambda use: 0.012, (0.4, 1.0)) == pytest.approx(0.012, rel=0.25)


def test_a_share_that_vanishes_with_use_is_none():
    assert played(lambda use: float(misses(use, ALLOWED)), (0.4, 1.1)) < 0.001


def test_a_floor_under_a_slope_is_found():
    assert played(lambda use: 0.006 + float(misses(use * 1.2, ALLOWED)), (0.4, 1.0)) == pytest.approx(0.006, rel=0.35)


def test_one_level_of_use_tells_nothing():
    assert played(lambda use: 0.02, (0.92, 0.98)) == 0.0


def test_what_is_left_for_load_is_never_nothing():
    assert of_load(0.0105, ALLOWED, 0.0095) == (pytest.approx(0.001), ALLOWED * LEFT_MIN)
    assert of_load(0.004, ALLOWED, 0.006) == (0.0, pytest.approx(0.004))


def test_a_promise_out_of_reach_leaves_as_much_for_load_as_one_within_it():
    left = [of_load(0.05, ALLOWED, floor_share)[1] / ALLOWED for floor_share in (0.0, 0.008, 0.01, 0.012, 0.02, 0.05)]
    assert left == pytest.approx([1.0, 0.25, 0.25, 0.55, 1.0, 1.0])


def test_ill_bins_are_begun_anew():
    assert len(noted((1.0, 2.0), 0.5, 1.0, 0.1, PROMPT)) == 2 * BINS + 1
    assert floor(0.003, (1.0,), ALLOWED) == 0.003


def test_an_idle_replica_prefills_eight_thousand_tokens_in_a_second_and_no_longer_prompt():
    """Worked by hand: a chunk of 2,048 takes 20 + 226 ms; 984 ms hold four of them, less 8 tokens: 8,184. ln(8184 ÷ 1732) ÷ 0.8326 + 0.4163 is 2.28 σ."""
    assert alone(H200, 1732.0, 1.0) == pytest.approx(0.0112, abs=2e-4)
    assert alone(H200, 1155.0, 1.0) == pytest.approx(0.0028, abs=2e-4)


def test_longer_prompts_and_shorter_promises_miss_more_and_ill_ones_do_not_fail():
    shares = [alone(H200, prompt, 1.0) for prompt in (100.0, 1000.0, 10_000.0, 1e9)]
    assert shares == sorted(shares)
    assert alone(H200, 1000.0, 0.5) > alone(H200, 1000.0, 1.0)
    assert alone(H200, 1000.0, 0.001) == 1.0
    assert alone(H200, 0.0, 1.0) == 0.0


def test_physics_tells_within_minutes_where_one_level_of_use_could_not():
    assert played(lambda use: 0.013, (0.92, 0.98), minutes=10, idle=0.0112) == pytest.approx(0.0112, rel=0.25)


def test_what_really_happens_outweighs_physics():
    """The lengths have no such tail: at a use of a half to one hardly anything misses."""
    assert played(lambda use: float(misses(use, ALLOWED)) / 4, (0.5, 1.0), idle=0.02) < 0.006


def test_lengths_that_change_make_what_was_seen_worthless():
    bins = ()
    for _ in range(90):
        bins = noted(bins, 0.9, 1.0, 0.009, PROMPT)
    same = noted(bins, 0.9, 1.0, 0.009, PROMPT * 1.1)
    assert sum(same[:BINS]) > 50
    assert sum(noted(bins, 0.9, 1.0, 0.02, PROMPT * 1.5)[:BINS]) == pytest.approx(1.0)
    assert sum(noted(bins, 0.9, 1.0, 0.02, PROMPT * 1.5, band=0.5)[:BINS]) > 50
    assert played(lambda use: 0.015, (0.6, 0.9), minutes=20, idle=0.0112, bins=bins, prompt=PROMPT * 1.5) > 0.01
