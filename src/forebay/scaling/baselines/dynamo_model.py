"""What Dynamo's planner believes of an aggregated engine: step time linear in prefill tokens and KV tokens.

Dynamo fits it online from the passes that its engines report. Here it is given the profile's law, as if the fit were
perfect, which is more than it has. Formulas: ai-dynamo/dynamo, planner/core/perf_model/agg.py, 518a7027.
"""

import math
from typing import NamedTuple

from forebay.domain.profile import Profile


class Shape(NamedTuple):
    """Mean lengths of what is served."""

    prompt_tokens: float
    output_tokens: float

    @property
    def context_tokens(self) -> float:
        """KV of a sequence in mid-answer."""
        return self.prompt_tokens + self.output_tokens / 2


def step_s(profile: Profile, shape: Shape, prefill_tokens: float, kv_tokens: float) -> float:
    """One pass. Sequences are as many as the KV says, so the plane in two variables is exact where all are of the mean shape."""
    law = profile.law
    per_kv_s = law.per_kv_token_s + law.per_sequence_s / shape.context_tokens
    return max(1e-6, law.base_s + law.per_prefill_token_s * prefill_tokens + per_kv_s * kv_tokens)


def ttft_s(profile: Profile, shape: Shape, queued_tokens: float, kv_tokens: float) -> float:
    """The next request's time to first token: what is queued and its own prompt, a chunk a pass."""
    left = queued_tokens + shape.prompt_tokens
    whole, rest = divmod(left, profile.prefill_chunk_tokens)
    total = whole * step_s(profile, shape, profile.prefill_chunk_tokens, kv_tokens)
    return total + (step_s(profile, shape, rest, kv_tokens) if rest else 0.0)


def itl_s(profile: Profile, shape: Shape, mean_prefill_tokens: float, kv_tokens: float) -> float:
    """The next request's inter-token time, beside what runs."""
    return step_s(profile, shape, mean_prefill_tokens, kv_tokens + shape.context_tokens)


def best_rate(profile: Profile, shape: Shape, ttft_max_s: float, itl_max_s: float) -> float:
    """Requests per second of one engine at the largest batch that keeps both promises; at batch 1 if none does."""
    prompt, output, context = shape.prompt_tokens, shape.output_tokens, shape.context_tokens
    chunk = profile.prefill_chunk_tokens
    most = min(max(1, int(profile.kv_tokens / context)), profile.sequences_max, chunk - 1)
    # Prefill must admit as fast as decode finishes: prompt ÷ (chunk − batch) ≤ output.
    most = max(1, min(most, math.floor(chunk - prompt / output)))
    best = 0.0
    for batch in range(1, most + 1):
        kv, prefill = batch * context, min(batch * prompt / output, float(chunk))
        step = step_s(profile, shape, prefill, kv)
        if batch > 1 and (step > itl_max_s or ttft_s(profile, shape, prefill, kv) > ttft_max_s):
            break
        best = batch / (output * step)
    return best
