"""Some of the worlds of `bench/hostile_fuzz.py`: engines and clients that say what they should not, around one gateway or two."""

import collections
import importlib
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
WORLDS = 12


@pytest.fixture
def fuzz(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("hostile_fuzz")


@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_left_waiting_and_nothing_is_left_inside(fuzz, seed):
    seen = collections.Counter()
    for number in range(WORLDS):
        _, wrong = fuzz.played(seed, number, seen)
        assert not wrong, f"python bench/hostile_fuzz.py --seed {seed} --only {number}: {wrong}"
    assert seen["completed"]
    assert seen["failed"]


def test_ids_held_of_an_answer_that_was_begun_anew_elsewhere_are_held_no_longer(fuzz):
    """They stayed counted, until none could be held any more and no stream be continued."""
    assert not fuzz.played(5, 517, collections.Counter())[1]


def test_the_same_world_is_the_same_again(fuzz):
    first, again = (fuzz.played(3, 5, collections.Counter())[0] for _ in range(2))
    assert fuzz.digest(first) == fuzz.digest(again)
    assert fuzz.digest(first) != fuzz.digest(fuzz.played(3, 6, collections.Counter())[0])


def test_what_goes_wrong_is_told(fuzz, monkeypatch):
    monkeypatch.setattr(fuzz.Gateway, "snapshot", lambda _: 1 / 0)
    assert "ZeroDivisionError" in fuzz.played(3, 5, collections.Counter())[1]
