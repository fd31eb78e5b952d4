"""Capacity in closed form against the engine itself, stepped over random arrivals; the named limits; the review by context."""

import math
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.domain.errors import BadInput
from forebay.domain.profile import Profile
from forebay.engine.batch import Engine, Finished, Token
from forebay.engine.capacity import Binding, at_slo, by_context, falls_over, roster_capacity
from forebay.engine.catalogue import PROFILES
from forebay.engine.steady import Load

CHAT_70B = PROFILES["llama-3.1-70b-fp8-4xh100"]
CHAT_8B = PROFILES["llama-3.1-8b-h100"]
DEMO = PROFILES["demo"]


class Ran(msgspec.Struct):
    ttft_p95_s: float
    tpot_s: float


def length(chance: random.Random, mean: float, scv: float) -> int:
    return max(1, min(round(chance.expovariate(1 / mean)) if scv else round(mean), round(mean * 12)))


def ran(profile: Profile, rate: float, prompt: float, output: float, scv: float, requests: int, seed: int = 1) -> Ran:
    """Poisson arrivals into the engine; the first tenth is warm-up, the last one runs out."""
    chance = random.Random(seed)
    engine = Engine(profile)
    came: list[float] = []
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    tokens: dict[int, int] = {}
    now = 0.0
    for number in range(requests):
        now += chance.expovariate(rate)
        came.append(now)
        size = length(chance, output, scv)
        tokens[number] = size
        engine.submit(number, min(length(chance, prompt, scv), profile.context_tokens - size), size, now)
    for effect in engine.advance(math.inf):
        assert isinstance(effect.sequence, int)
        if isinstance(effect, Token) and effect.first:
            first[effect.sequence] = effect.at_s
        elif isinstance(effect, Finished):
            last[effect.sequence] = effect.at_s
    kept = range(requests // 10, requests * 9 // 10)
    ttfts = sorted(first[number] - came[number] + profile.front_end_s for number in kept)
    between_s = sum(last[number] - first[number] for number in kept)
    return Ran(ttfts[int(0.95 * len(ttfts))], between_s / sum(tokens[number] - 1 for number in kept))


@pytest.mark.parametrize(
    ("profile", "prompt", "output", "scv", "fraction", "requests"),
    [
        (CHAT_70B, 1155, 60, 1.0, 0.7, 3000),
        (CHAT_70B, 1155, 60, 0.0, 0.85, 3000),
        (CHAT_8B, 1000, 60, 1.0, 0.7, 3000),
        (CHAT_8B, 200, 60, 1.0, 0.8, 4000),
        (DEMO, 500, 30, 0.0, 0.7, 4000),
        (DEMO, 500, 30, 1.0, 0.7, 4000),
    ],
)
def test_steady_state_is_what_the_engine_does(
    profile: Profile, prompt: int, output: int, scv: float, fraction: float, requests: int
) -> None:
    load = Load(profile, prompt, output, scv)
    rate = fraction * load.rate_with(load.places)
    found = ran(profile, rate, prompt, output, scv, requests)
    assert load.step_at_rate_s(rate) == pytest.approx(found.tpot_s, rel=0.05)
    assert load.ttft_s(rate) == pytest.approx(found.ttft_p95_s, rel=0.15)


@pytest.mark.parametrize(("share", "kept"), [(0.87, True), (1.15, False)])
@pytest.mark.parametrize(
    ("profile", "prompt", "output", "scv", "ttft_s", "requests"),
    [
        (CHAT_70B, 1155, 100, 1.0, 1.0, 2500),
        (CHAT_8B, 1000, 100, 0.0, 0.2, 2500),
        (CHAT_8B, 4000, 20, 0.0, 1.0, 4000),
        (PROFILES["llama-3.1-70b-fp8-2xh100"], 8192, 128, 0.0, 5.0, 1500),
        (DEMO, 500, 30, 1.0, 10.0, 4000),
    ],
)
def test_the_engine_keeps_the_promise_below_the_rate_and_breaks_it_above(
    profile: Profile, prompt: int, output: int, scv: float, ttft_s: float, requests: int, share: float, kept: bool
) -> None:
    rate = share * at_slo(profile, prompt, output, ttft_s, math.inf, scv).requests_per_s
    assert (ran(profile, rate, prompt, output, scv, requests).ttft_p95_s <= ttft_s) is kept


def test_the_70b_serves_about_twelve_conversations_a_second() -> None:
    state = at_slo(CHAT_70B, 1155, 211, ttft_s=1.0, itl_s=math.inf)
    assert state.requests_per_s == pytest.approx(12, rel=0.05)
    assert state.binding is Binding.SEQUENCES
    assert state.ttft_s == pytest.approx(1.0, abs=0.01)
    # With 256 in flight a step takes 97 ms: 256 ÷ (211 · 0.097) = 12.5 a second is the engine's own limit.
    assert at_slo(CHAT_70B, 1155, 211, math.inf, math.inf).requests_per_s == pytest.approx(12.5, rel=0.01)


def test_the_demo_replica_serves_fifty_a_minute_and_not_a_hair_less() -> None:
    state = at_slo(DEMO, 500, 30, ttft_s=10.0, itl_s=0.5)
    assert 50 <= state.requests_per_s * 60 <= 51
    assert [math.ceil(per_minute / 60 / state.requests_per_s) for per_minute in (100, 400)] == [2, 8]


def test_a_promise_of_itl_binds_at_the_step_it_names() -> None:
    state = at_slo(CHAT_70B, 1155, 211, ttft_s=1.0, itl_s=0.05)
    assert state.binding is Binding.ITL
    assert state.step_s == pytest.approx(0.05)
    assert state.sequences == pytest.approx(state.output_tokens_per_s * state.step_s)
    assert state.prompt_tokens_per_s == pytest.approx(1155 * state.requests_per_s)
    assert "50 ms" in state.because


@pytest.mark.parametrize(
    ("profile", "prompt", "output", "ttft_s", "itl_s", "binding", "says"),
    [
        (CHAT_8B, 1000, 200, math.inf, math.inf, Binding.SEQUENCES, "256 sequence slots"),
        (PROFILES["llama-3.1-70b-fp8-2xh100"], 4096, 1024, math.inf, math.inf, Binding.KV, "Bursts fill the KV"),
        (CHAT_70B, 4000, 20, math.inf, math.inf, Binding.COMPUTE, "Prompts are"),
        (CHAT_8B, 4000, 40, 0.3, math.inf, Binding.TTFT, "behind earlier prompts"),
        (DEMO, 500, 30, 5.0, 1.0, Binding.TTFT, "for one of 8 places"),
        (CHAT_8B, 200, 400, 1.0, 0.010, Binding.ITL, "ITL of 10 ms"),
    ],
)
def test_the_limit_that_binds_is_named(
    profile: Profile, prompt: int, output: int, ttft_s: float, itl_s: float, binding: Binding, says: str
) -> None:
    state = at_slo(profile, prompt, output, ttft_s, itl_s)
    assert state.binding is binding
    assert says in state.because


def test_bandwidth_binds_where_reading_kv_is_all_the_work() -> None:
    slow = msgspec.structs.replace(CHAT_70B, law=msgspec.structs.replace(CHAT_70B.law, base_s=1e-5, per_kv_token_s=1e-6), kv_tokens=10**7)
    state = at_slo(slow, 100, 2000, math.inf, math.inf)
    assert state.binding is Binding.BANDWIDTH
    assert "reading KV" in state.because


def test_promises_that_no_rate_keeps_give_zero_and_the_nearest_that_could() -> None:
    state = at_slo(CHAT_70B, 1000, 200, ttft_s=1.0, itl_s=0.010)
    assert (state.requests_per_s, state.binding) == (0.0, Binding.ITL)
    assert "11.3 ms" in state.because
    state = at_slo(CHAT_70B, 30_000, 200, ttft_s=1.0, itl_s=1.0)
    assert (state.requests_per_s, state.binding) == (0.0, Binding.TTFT)
    assert "to the first token" in state.because
    cramped = msgspec.structs.replace(CHAT_70B, kv_tokens=512)
    state = at_slo(cramped, 1000, 200, ttft_s=math.inf, itl_s=math.inf)
    assert (state.requests_per_s, state.binding) == (0.0, Binding.KV)


@pytest.mark.parametrize(("prompt", "output", "ttft_s"), [(0, 1, 1.0), (8192, 1, 1.0), (1, 0, 1.0), (10, 10, 0.0), (10, 10, math.nan)])
def test_a_shape_that_cannot_be_is_bad_input(prompt: int, output: int, ttft_s: float) -> None:
    with pytest.raises(BadInput):
        at_slo(DEMO, prompt, output, ttft_s, 1.0)


@given(
    name=st.sampled_from(sorted(PROFILES)),
    prompt=st.integers(1, 7000),
    output=st.integers(1, 1000),
    ttft_s=st.sampled_from([0.05, 0.5, 1.0, 10.0, math.inf]),
    itl_s=st.sampled_from([0.001, 0.02, 0.05, 0.5, math.inf]),
    scv=st.sampled_from([0.0, 0.6, 1.0, 3.0]),
)
@settings(max_examples=12, deadline=None)
def test_a_looser_promise_or_a_shorter_request_never_serves_less(
    name: str, prompt: int, output: int, ttft_s: float, itl_s: float, scv: float
) -> None:
    profile = PROFILES[name]
    rate = at_slo(profile, prompt, output, ttft_s, itl_s, scv).requests_per_s
    tolerance = 1e-6 + rate * 0.001
    assert at_slo(profile, prompt, output, ttft_s * 2, itl_s, scv).requests_per_s >= rate - tolerance
    assert at_slo(profile, prompt, output, ttft_s, itl_s * 2, scv).requests_per_s >= rate - tolerance
    assert at_slo(profile, max(1, prompt // 2), output, ttft_s, itl_s, scv).requests_per_s >= rate - tolerance
    assert 0 <= rate < math.inf


def test_admission_gets_budgets_that_leave_the_promised_rate_room() -> None:
    state = at_slo(CHAT_70B, 1000, 200, ttft_s=1.0, itl_s=0.05)
    budgets = roster_capacity(CHAT_70B, ttft_s=1.0, itl_s=0.05)
    load = Load(CHAT_70B, 1000, 200)
    assert state.binding is Binding.ITL
    assert state.sequences < budgets.sequences < CHAT_70B.sequences_max
    assert load.rate_with(budgets.sequences) >= state.requests_per_s * 1.04
    assert budgets.kv_tokens == CHAT_70B.kv_tokens
    # Half a second of full steps beside the decodes of that state.
    assert budgets.prefill_tokens == pytest.approx(0.5 * budgets.prefill_tokens_per_s, abs=1)
    assert budgets.prefill_tokens_per_s > state.prompt_tokens_per_s
    assert budgets.decode_tokens_per_s == pytest.approx(state.output_tokens_per_s)


def test_budgets_are_the_engines_own_where_nothing_can_be_promised() -> None:
    budgets = roster_capacity(DEMO, ttft_s=1.0, itl_s=0.05)  # one step takes 250 ms
    assert budgets.sequences == DEMO.sequences_max
    assert budgets.prefill_tokens >= DEMO.prefill_chunk_tokens
    assert budgets.decode_tokens_per_s > 0


def test_a_tiny_context_still_gets_budgets() -> None:
    small = msgspec.structs.replace(DEMO, context_tokens=64)
    assert roster_capacity(small, 10.0, 0.5).context_tokens == 64


def test_the_review_by_context_says_what_fits_and_what_binds() -> None:
    rows = by_context(CHAT_70B, output_tokens=200, ttft_s=30.0, itl_s=0.2)
    assert [row.context_tokens for row in rows] == [2**power for power in range(10, 18)]
    assert rows[3].sequences_fit == 665_280 // 8192
    assert rows[0].sequences_fit == 256
    rates = [row.requests_per_s for row in rows]
    assert rates == sorted(rates, reverse=True)
    assert all(row.because.endswith(".") for row in rows)
    (row,) = by_context(CHAT_70B, 200, 30.0, 0.2, contexts=[5000])
    assert row.requests_per_s == at_slo(CHAT_70B, 4800, 200, 30.0, 0.2, scv=0.0).requests_per_s


def test_a_fleet_falls_over_at_the_context_where_its_rate_is_gone() -> None:
    fall = falls_over(CHAT_70B, replicas=10, rate_per_s=10.0, output_tokens=200, ttft_s=30.0, itl_s=0.2)
    assert fall.context_tokens is not None
    assert not fall.holds_to_the_end

    def fleet(context: int) -> float:
        return 10 * at_slo(CHAT_70B, context - 200, 200, 30.0, 0.2, scv=0.0).requests_per_s

    assert fleet(fall.context_tokens) >= 10.0 > fleet(fall.context_tokens + 1)


def test_a_fleet_may_hold_to_the_end_or_not_at_all() -> None:
    ends = falls_over(CHAT_70B, replicas=1000, rate_per_s=1.0, output_tokens=200, ttft_s=30.0, itl_s=0.2)
    assert ends.holds_to_the_end
    assert ends.context_tokens == CHAT_70B.context_tokens
    never = falls_over(CHAT_70B, replicas=1, rate_per_s=1000.0, output_tokens=200, ttft_s=30.0, itl_s=0.2)
    assert (never.context_tokens, never.holds_to_the_end) == (None, False)
    with pytest.raises(BadInput):
        falls_over(DEMO, 1, 1.0, 9000, 1.0, 1.0)
