"""Shapes learned online: they converge to what is seen, stay within limits, and cost bounded memory."""

import random

import msgspec
import pytest

from forebay.admission import estimate
from forebay.admission.estimate import BYTES_PER_TOKEN_START, Estimator
from forebay.domain.shape import Sized, Usage


def test_starts_safe_and_within_the_limits() -> None:
    first = Estimator().shape("t", "m", body_bytes=3500, max_tokens=100, n=1, context_tokens=8192)
    assert first.prompt_tokens == 3500 / BYTES_PER_TOKEN_START
    assert (first.output_tokens, first.output_tokens_max, first.sequences) == (100, 100, 1)
    unlimited = Estimator().shape("t", "m", 3500, None, 1, 8192)
    assert unlimited.output_tokens_max == 8192 - unlimited.prompt_tokens
    assert unlimited.output_tokens < unlimited.output_tokens_max


def test_is_clamped_to_the_context_and_never_refuses_on_a_guess() -> None:
    shape = Estimator().shape("t", "m", body_bytes=10_000_000, max_tokens=None, n=1, context_tokens=4096)
    assert shape.total_tokens == 4096
    assert shape.output_tokens >= 1


def test_several_answers_multiply_the_output_alone() -> None:
    shape = Estimator().shape("t", "m", 350, max_tokens=50, n=3, context_tokens=8192)
    assert (shape.prompt_tokens, shape.output_tokens, shape.output_tokens_max, shape.sequences) == (100, 150, 150, 3)


def test_each_prompt_of_a_list_has_its_own_context_and_its_own_answers() -> None:
    """All of them together were taken for one of the context's length."""
    shape = Estimator().shape("t", "m", 35_000, max_tokens=None, n=2, context_tokens=4096, prompts=5)
    assert (shape.prompt_tokens, shape.prompts, shape.sequences) == (10_000, 5, 10)
    assert shape.output_tokens_max == 10 * (4096 - 2000)
    assert shape.longest_tokens <= 4096
    crowded = Estimator().shape("t", "m", 350_000, max_tokens=None, n=1, context_tokens=4096, prompts=5)
    assert (crowded.prompt_tokens, crowded.output_tokens_max, crowded.longest_tokens) == (5 * 4095, 5, 4096)
    tiny = Estimator().shape("t", "m", 35, max_tokens=7, n=1, context_tokens=4096, prompts=500)
    assert (tiny.prompt_tokens, tiny.output_tokens, tiny.longest_tokens) == (500, 3500, 8), "a prompt has at least a token"


def test_what_is_learned_of_a_list_is_what_each_answer_took() -> None:
    estimator = Estimator()
    for _ in range(300):
        estimator.learn("t", "m", 4000, Usage(1000, 4 * 30), n=4)
    assert estimator.shape("t", "m", 4000, None, 1, 8192, prompts=4).output_tokens == pytest.approx(4 * 30, rel=0.1)


def test_inputs_that_are_only_read_are_prefilled_as_a_whole_and_held_one_context_at_a_time() -> None:
    estimator = Estimator()
    few = estimator.inputs("t", "m", 3500, 8192)
    assert few == estimator.shape("t", "m", 3500, 1, 1, 8192)
    many = estimator.inputs("t", "m", 350_000, 8192)
    assert (many.prompt_tokens, many.uncached_tokens, many.sequences) == (100_000, 100_000, 1)
    assert many.prompt_tokens - many.passing_tokens == 8191
    assert many.longest_tokens <= 8192


def test_learns_the_ratio_and_follows_a_change() -> None:
    estimator = Estimator()
    for bytes_per_token in (4.5, 2.0):
        for _ in range(200):
            estimator.learn("t", "m", int(1000 * bytes_per_token), Usage(1000, 100))
        assert estimator.shape("t", "m", int(500 * bytes_per_token), None, 1, 8192).prompt_tokens == pytest.approx(500, rel=0.02)


def test_learns_a_high_quantile_of_each_answer() -> None:
    estimator, chance = Estimator(), random.Random(7)
    lengths = [chance.lognormvariate(5.0, 0.8) for _ in range(3000)]
    for length in lengths:
        estimator.learn("t", "m", 4000, Usage(1000, 2 * round(length)), n=2)
    estimated = estimator.shape("t", "m", 4000, None, 1, 100_000).output_tokens
    below = sum(length <= estimated for length in lengths) / len(lengths)
    assert 0.64 < below < 0.76


def test_a_new_team_starts_from_what_the_model_showed_and_then_goes_its_own_way() -> None:
    estimator = Estimator()
    for _ in range(300):
        estimator.learn("old", "m", 4000, Usage(1000, 20))
    assert estimator.shape("new", "m", 4000, None, 1, 8192).output_tokens == pytest.approx(20, abs=3)
    for _ in range(300):
        estimator.learn("new", "m", 4000, Usage(1000, 2000))
    assert estimator.shape("new", "m", 4000, None, 1, 8192).output_tokens > 1000
    assert estimator.shape("old", "m", 4000, None, 1, 8192).output_tokens < 250


def test_inexact_counts_teach_nothing() -> None:
    estimator = Estimator()
    before = estimator.shape("t", "m", 4000, None, 1, 8192)
    estimator.learn("t", "m", 4000, Usage(1, 1, exact=False))
    assert estimator.shape("t", "m", 4000, None, 1, 8192) == before


def test_the_table_is_bounded_and_forgets_who_learned_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "TABLE_MAX", 4)
    estimator = Estimator()
    for team in ("a", "b", "c", "a", "d"):
        estimator.learn(team, "m", 4000, Usage(1000, 10))
    assert set(estimator._table) == {("", "m"), ("a", "m"), ("c", "m"), ("d", "m")}


def test_the_longer_an_answer_has_run_the_longer_it_is_expected_to_be() -> None:
    """Chat answers are short or long: one past the short ones is a long one."""
    estimator = Estimator()
    for number in range(400):
        estimator.learn("t", "m", 400, Usage(100, 40 if number % 5 else 900))
    assert estimator.shape("t", "m", 400, None, 1, 8192).output_tokens < 250
    assert estimator.expected_output("t", "m", 10) == 46, "of all of them, as without knowing"
    assert estimator.expected_output("t", "m", 64) == 1024, "rounded up to the half-octave"
    assert estimator.expected_output("t", "m", 2000) is None, "none was so long"
    assert estimator.expected_output("new", "m", 64) == 1024, "the model's other teams say"
    assert estimator.expected_output("t", "other", 64) is None


def test_old_lengths_are_forgotten() -> None:
    estimator = Estimator()
    for _ in range(500):
        estimator.learn("t", "m", 400, Usage(100, 900))
    for _ in range(8000):
        estimator.learn("t", "m", 400, Usage(100, 200))
    assert estimator.expected_output("t", "m", 64) == 256
    assert estimator.expected_output("t", "m", 300) is None


def test_what_is_counted_is_taken_as_it_is_with_what_its_template_puts_around_it() -> None:
    estimator = Estimator()
    sized = Sized(text_bytes=4000, media_tokens=0, counted_tokens=1000, messages=2)
    assert estimator.shape("t", "m", 4000, None, 1, 8192, sized).prompt_tokens == 1010
    for _ in range(200):
        estimator.learn("t", "m", 4000, Usage(1024, 10), 1, sized)
    assert estimator.shape("t", "m", 4000, None, 1, 8192, sized).prompt_tokens == 1024
    longer = msgspec.structs.replace(sized, counted_tokens=3000, messages=1)
    assert estimator.shape("t", "m", 0, None, 1, 8192, longer).prompt_tokens == 3012


def test_media_cost_what_is_configured_on_top_of_text() -> None:
    estimator = Estimator()
    sized = Sized(text_bytes=350, media_tokens=576, counted_tokens=None, messages=0)
    assert estimator.shape("t", "m", 10**6, None, 1, 8192, sized).prompt_tokens == 676
    for _ in range(50):
        estimator.learn("t", "m", 10**6, Usage(2000, 10), 1, sized)
    assert estimator.shape("t", "m", 10**6, None, 1, 8192, sized).prompt_tokens == 676


def test_a_wrong_tokenizer_can_not_run_away() -> None:
    estimator = Estimator()
    sized = Sized(text_bytes=4000, media_tokens=0, counted_tokens=1000, messages=1)
    for _ in range(200):
        estimator.learn("t", "m", 4000, Usage(900, 10), 1, sized)
    assert estimator.shape("t", "m", 4000, None, 1, 8192, sized).prompt_tokens == 1000
    for _ in range(200):
        estimator.learn("t", "m", 4000, Usage(90_000, 10), 1, sized)
    assert estimator.shape("t", "m", 4000, None, 1, 8192, sized).prompt_tokens == 2000
