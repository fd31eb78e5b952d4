"""A law put in comes out of its own measurements; noise widens the interval; what was not varied is said to be unknown."""

import msgspec
import numpy as np
import pytest

from forebay.domain.errors import BadInput
from forebay.domain.profile import StepLaw, StepSpread
from forebay.engine import fitting
from forebay.engine.fitting import DecodeRow, PrefillRow, fit
from forebay.engine.spread import factors_of
from forebay.engine.steptime import step_s

LAW = StepLaw(0.010, 50e-6, 60e-9, 45e-6)


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(fitting, "DRAWS", 40)


def measured(law=LAW, sequences=(1, 2, 4, 8, 16, 32), contexts=(200, 1000, 3000), noise=0.0, front_s=0.015):
    chance = np.random.default_rng(1)

    def noisy(seconds):
        return float(seconds * (1 + noise * chance.standard_normal()))

    decode = [
        DecodeRow(place, many, many * context, noisy(step_s(law, many, many * context, 0)))
        for place, (many, context) in enumerate((many, context) for many in sequences for context in contexts)
    ]
    prefill = [PrefillRow(place, tokens, noisy(front_s + step_s(law, 0, 0, tokens))) for place, tokens in enumerate((64, 512, 1500) * 3)]
    return decode, prefill


def test_an_exact_law_comes_back():
    found = fit(*measured(), 2048, np.random.default_rng(0))
    for name in fitting.COEFFICIENTS:
        assert getattr(found.law, name) == pytest.approx(getattr(LAW, name), rel=1e-6)
    assert found.front_end_s == pytest.approx(0.015, rel=1e-6)
    assert all(coefficient.identified for coefficient in found.coefficients)
    assert found.error_worst < 1e-6
    assert found.coverage.sequences == (1, 32)


def test_noise_of_two_percent_leaves_every_coefficient_inside_its_interval_or_near():
    found = fit(*measured(noise=0.02), 2048, np.random.default_rng(0))
    for coefficient in found.coefficients:
        truth = getattr(LAW, coefficient.name)
        assert coefficient.low * 0.9 <= truth <= coefficient.high * 1.1
    assert 0.001 < found.error_median < 0.03


def test_a_coefficient_that_was_not_varied_is_said_to_be_unknown():
    found = fit(*measured(sequences=(1, 2), contexts=(40, 50, 60, 70)), 2048, np.random.default_rng(0))
    unknown = {coefficient.name for coefficient in found.coefficients if not coefficient.identified}
    assert "per_kv_token_s" in unknown
    assert all(coefficient.because for coefficient in found.coefficients if not coefficient.identified)


@pytest.mark.parametrize(
    ("low", "high", "identified", "loose"),
    [(0.8, 1.31, False, False), (0.684, 1.438, False, False), (0.9, 1.3, True, True), (0.9, 1.1, True, False), (0.0, 1.1, False, False)],
)
def test_an_interval_wider_than_half_of_a_coefficient_identifies_nothing(low, high, identified, loose):
    """One of 75 % of its coefficient was taken without a word, as neither end was further than half from it."""
    spread = (high - low) / 0.9
    draws = np.linspace(low - 0.05 * spread, high + 0.05 * spread, 2001)
    found = fitting._coefficient("per_sequence_s", 1.0, draws, 0.5)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))
    assert (found.identified, found.loose) == (identified, loose)
    assert ("wider than half of it" in found.because) is not identified


def test_a_pause_of_the_machine_does_not_bend_the_law():
    decode, prefill = measured(noise=0.002)
    decode[4] = DecodeRow(decode[4].cell, decode[4].sequences, decode[4].kv_tokens, decode[4].step_s * 5)
    found = fit(decode, prefill, 2048, np.random.default_rng(0))
    assert found.law.base_s == pytest.approx(LAW.base_s, rel=0.02)


def test_too_little_is_refused_with_what_it_takes():
    decode, prefill = measured()
    with pytest.raises(BadInput, match="three decode cells"):
        fit([row for row in decode if row.cell < 2], prefill, 2048, np.random.default_rng(0))


def test_a_first_token_that_shows_a_step_late_does_not_bend_the_law():
    decode, prefill = measured()
    late = prefill[3]
    prefill[3] = PrefillRow(late.cell, late.prompt_tokens, late.ttft_s + 3 * LAW.base_s)
    prefill = [PrefillRow(place % 3, row.prompt_tokens, row.ttft_s) for place, row in enumerate(prefill)]
    found = fit(decode, prefill, 2048, np.random.default_rng(0))
    assert found.law.per_prefill_token_s == pytest.approx(LAW.per_prefill_token_s, rel=1e-6)
    assert found.front_end_s == pytest.approx(0.015, rel=1e-6)


def with_gaps(spread, gaps=40):
    """Rows whose single gaps scatter as ``spread``, evenly over its factors."""
    chance = np.random.default_rng(2)
    table = factors_of(spread) or (1.0,)
    decode, prefill = measured()
    return [msgspec.structs.replace(row, gaps_s=tuple(row.step_s * chance.choice(table, gaps))) for row in decode], prefill


def test_the_spread_of_single_steps_comes_back_and_its_mean_is_the_law():
    spread = StepSpread(0.85, 0.9, 0.95, 1.0, 1.15, 1.3, 1.7)
    found = fit(*with_gaps(spread, 400), 2048, np.random.default_rng(0)).spread
    mean = np.mean(factors_of(spread))
    for name, value in msgspec.to_builtins(spread).items():
        assert getattr(found, name) == pytest.approx(value / mean, rel=0.04), name
    assert np.mean(factors_of(found)) == pytest.approx(1.0, abs=0.002)


def test_tokens_that_come_late_and_together_are_no_spread_of_steps():
    """A busy client of an engine with steady steps of 6 ms saw gaps from 0 to twice that, and a profile was made of them."""
    chance = np.random.default_rng(2)
    decode, prefill = measured()

    def seen(row):
        late_s = row.step_s * chance.exponential(0.5, 41)
        return msgspec.structs.replace(row, gaps_s=tuple(np.maximum(0.0, row.step_s + np.diff(late_s)).tolist()))

    assert fit([seen(row) for row in decode], prefill, 2048, np.random.default_rng(0)).spread.steady


@pytest.mark.parametrize(
    ("spread", "gaps"), [(StepSpread(0.97, 0.99, 1.0, 1.01, 1.02, 1.03, 1.04), 40), (StepSpread(0.5, 1, 1, 1, 1, 2, 3), 5)]
)
def test_steps_that_hardly_scatter_or_were_hardly_seen_are_taken_for_steady(spread, gaps):
    assert fit(*with_gaps(spread, gaps), 2048, np.random.default_rng(0)).spread.steady
