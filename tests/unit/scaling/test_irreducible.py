"""Misses that stay however low the use are told from those that load causes."""

import random

import pytest

from forebay.scaling.economics import misses
from forebay.scaling.irreducible import BINS, LEFT_MIN, floor, noted, of_load

ALLOWED = 0.01


def played(share_at, uses, minutes=400, seed=0):
    chance = random.Random(seed)
    bins, found = (), 0.0
    for _ in range(minutes):
        use = chance.uniform(*uses)
        bins = noted(bins, use, 1.0, max(0.0, share_at(use) * chance.uniform(0.7, 1.3)))
        found = floor(found, bins, ALLOWED)
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
    assert of_load(0.013, ALLOWED, 0.012) == (pytest.approx(0.001), ALLOWED * LEFT_MIN)
    assert of_load(0.004, ALLOWED, 0.006) == (0.0, pytest.approx(0.004))


def test_ill_bins_are_begun_anew():
    assert len(noted((1.0, 2.0), 0.5, 1.0, 0.1)) == 2 * BINS
    assert floor(0.003, (1.0,), ALLOWED) == 0.003
