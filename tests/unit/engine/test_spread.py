"""Steps scatter as the profile's quantiles say, from a stream of their own, and what their prompts cost does not."""

import math
from collections import Counter

import msgspec
import numpy as np
import pytest

from forebay.domain.profile import StepSpread
from forebay.engine.batch import Engine, Token
from forebay.engine.catalogue import PROFILES
from forebay.engine.spread import FACTORS, GRAIN, LEVELS, Places, factors_of, mean_of
from forebay.engine.steptime import step_s

SPREAD = StepSpread(0.8, 0.9, 0.95, 1.05, 1.2, 1.4, 2.0)
PROFILE = msgspec.structs.replace(PROFILES["llama-3.1-8b-h100"], spread=SPREAD)


def test_the_stream_is_splitmix64() -> None:
    # The generator's published first numbers for the seed 1234567.
    published = (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821)
    places = Places(1234567)
    assert [places.next() for _ in published] == [number % FACTORS for number in published]


def test_places_are_equally_likely() -> None:
    places = Places(7)
    counts = Counter(places.next() for _ in range(64 * FACTORS))
    assert len(counts) == FACTORS
    assert sum((count - 64) ** 2 / 64 for count in counts.values()) == pytest.approx(FACTORS - 1, abs=6 * math.sqrt(2 * FACTORS))


def test_steady_steps_have_no_table() -> None:
    assert StepSpread().steady
    assert factors_of(StepSpread()) == ()
    assert mean_of(StepSpread()) == 1.0


def test_the_mean_is_that_of_the_quantiles_joined_by_lines() -> None:
    # By hand: 5 % at 0.8, 20 % between 0.8 and 0.9, …, 4 % between 1.4 and 2.0, 1 % at 2.0.
    by_hand = 0.05 * 0.8 + 0.2 * 0.85 + 0.25 * 0.925 + 0.25 * 1.0 + 0.15 * 1.125 + 0.05 * 1.3 + 0.04 * 1.7 + 0.01 * 2.0
    assert mean_of(SPREAD) == pytest.approx(by_hand, abs=0.002)


def test_factors_have_the_quantiles_and_are_whole_grains() -> None:
    table = factors_of(SPREAD)
    assert len(table) == FACTORS
    assert list(table) == sorted(table)
    assert np.quantile(table, LEVELS) == pytest.approx(msgspec.structs.astuple(SPREAD), rel=0.01)
    assert (table[0], table[-1]) == pytest.approx((0.8, 2.0), abs=GRAIN)
    assert all((factor / GRAIN).is_integer() for factor in table)


def test_a_step_always_takes_time() -> None:
    assert min(factors_of(StepSpread(*[1e-9] * 7))) > 0


def tokens_of(stream: int, prompt: int = 100, output: int = 50) -> list[float]:
    engine = Engine(PROFILE, stream=stream)
    engine.submit("a", prompt, output, 0.0)
    return [effect.at_s for effect in engine.advance(1e9) if isinstance(effect, Token)]


def test_a_stream_gives_the_same_steps_each_time_and_another_gives_others() -> None:
    assert tokens_of(3) == tokens_of(3)
    assert tokens_of(3) != tokens_of(4)


def test_each_step_is_the_law_times_its_factor_and_prompts_cost_what_they_cost() -> None:
    places, table, law = Places(3), factors_of(SPREAD), PROFILE.law
    at_s = law.base_s * table[places.next()] + law.per_prefill_token_s * 100
    expected = [at_s]
    for kv_tokens in range(100, 149):
        at_s += step_s(law, 1, kv_tokens, 0) * table[places.next()]
        expected.append(at_s)
    assert tokens_of(3) == pytest.approx(expected)
