"""The step law on numbers worked by hand from its published coefficients, and its closed forms against plain sums."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.domain.profile import StepLaw
from forebay.engine.catalogue import ms_law
from forebay.engine.steptime import decode_run_s, prefill_s, step_s, tpot_s

H100_TP4 = ms_law(11.02, 0.055, 27.9, 44.6)


def test_a_step_worked_by_hand() -> None:
    # 11.02 + 0.055·64 + 27.9·(100,000/1,000)/1,000 + 44.6·1,000/1,000 ms
    assert step_s(H100_TP4, decoding=64, kv_tokens=100_000, prefill_tokens=1000) == pytest.approx((11.02 + 3.52 + 2.79 + 44.6) * 1e-3)


@pytest.mark.parametrize(
    ("law", "concurrency", "prompt", "output", "measured_ms"),
    [
        (ms_law(16.53, 0.039, 58.6, 70.0), 16, 1024, 1024, 19.74),
        (ms_law(16.53, 0.039, 58.6, 70.0), 64, 1024, 1024, 28.77),
        (H100_TP4, 4, 1024, 1024, 11.78),
        (H100_TP4, 64, 1024, 1024, 19.51),
        (H100_TP4, 64, 8192, 1024, 53.49),
        (ms_law(8.82, 0.063, 11.5, 29.8), 64, 8192, 1024, 34.48),
        (ms_law(19.99, 0.062, 87.5, 110.3), 64, 1024, 1024, 37.44),
        (ms_law(7.74, 0.047, 9.0, 26.2), 64, 1024, 1024, 12.73),
    ],
)
def test_time_per_token_is_near_what_was_measured(law: StepLaw, concurrency: int, prompt: int, output: int, measured_ms: float) -> None:
    assert tpot_s(law, concurrency, prompt, output) * 1e3 == pytest.approx(measured_ms, rel=0.06)


@given(sequences=st.integers(1, 300), kv=st.integers(0, 10**6), steps=st.integers(0, 50))
@settings(max_examples=50, deadline=None)
def test_a_run_of_decodes_is_the_sum_of_its_steps(sequences: int, kv: int, steps: int) -> None:
    one_by_one = sum(step_s(H100_TP4, sequences, kv + sequences * step, 0) for step in range(steps))
    assert decode_run_s(H100_TP4, sequences, kv, steps) == pytest.approx(one_by_one)


def test_a_prompt_goes_in_chunks_beside_the_decodes() -> None:
    law = StepLaw(base_s=1.0, per_sequence_s=0.5, per_kv_token_s=0.25, per_prefill_token_s=0.125)
    assert prefill_s(law, prompt_tokens=16, chunk_tokens=8) == 2 * 1.0 + 2.0
    assert prefill_s(law, prompt_tokens=16, chunk_tokens=8, decoding=2, kv_tokens=4) == 3 * (1.0 + 1.0 + 1.0) + 2.0
    with pytest.raises(ValueError, match="leave nothing"):
        prefill_s(law, 16, chunk_tokens=8, decoding=8)
