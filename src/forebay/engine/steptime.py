"""How long an engine step takes: one linear law, and the closed forms that follow from it.

A step reads the weights once, adds a little per decoding sequence, reads the KV cache of what it decodes, and
computes the prompt tokens it prefills. Attention inside a prefill grows with the square of the prompt, which the law
leaves out: ``per_prefill_token_s`` holds for prompts near the length it was fitted at, and is too low far beyond.
"""

import math

from forebay.domain.profile import StepLaw


def step_s(law: StepLaw, decoding: int, kv_tokens: float, prefill_tokens: int) -> float:
    """Seconds of one step that decodes ``decoding`` sequences holding ``kv_tokens`` in all, and prefills ``prefill_tokens``."""
    return law.base_s + law.per_sequence_s * decoding + law.per_kv_token_s * kv_tokens + law.per_prefill_token_s * prefill_tokens


def decode_run_s(law: StepLaw, sequences: int, kv_tokens: int, steps: int) -> float:
    """Seconds of ``steps`` decode steps of a fixed batch that holds ``kv_tokens`` before the first of them.

    The KV grows by one token per sequence and step, so the sum is arithmetic:
    ``steps·(base + b·sequences + c·kv_tokens) + c·sequences·steps·(steps-1)/2``.
    """
    grown = sequences * steps * (steps - 1) // 2
    return steps * step_s(law, sequences, kv_tokens, 0) + law.per_kv_token_s * grown


def prefill_s(law: StepLaw, prompt_tokens: int, chunk_tokens: int, decoding: int = 0, kv_tokens: int = 0) -> float:
    """Seconds to prefill one prompt in chunks, beside ``decoding`` sequences that hold ``kv_tokens`` (their growth meanwhile is left out).

    Decodes take their tokens of the step's budget ``chunk_tokens`` first. Raises ValueError where they leave none.
    """
    room = chunk_tokens - decoding
    if room < 1:
        raise ValueError(f"{decoding} decodes leave nothing of a step's {chunk_tokens} tokens for a prompt")
    return math.ceil(prompt_tokens / room) * step_s(law, decoding, kv_tokens, 0) + law.per_prefill_token_s * prompt_tokens


def tpot_s(law: StepLaw, sequences: int, prompt_tokens: int, output_tokens: int) -> float:
    """Mean seconds per output token in a closed loop of ``sequences`` requests of one shape, prefill of the next ones included.

    Each sequence holds its prompt and, on average, half its output; per step, ``sequences ÷ output_tokens`` of them are
    replaced, each bringing a prompt. This is the form in which the law's coefficients are fitted to measured runs.
    """
    kv_tokens = sequences * (prompt_tokens + output_tokens / 2)
    prefill_tokens = sequences * prompt_tokens / output_tokens
    return law.base_s + law.per_sequence_s * sequences + law.per_kv_token_s * kv_tokens + law.per_prefill_token_s * prefill_tokens
