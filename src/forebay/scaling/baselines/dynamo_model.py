"""What Dynamo's planner believes of an aggregated engine: the time of a pass is linear in its prefill tokens and its KV tokens.

Dynamo fits that plane online from the passes that its engines report (`dynamo_fit`). Unless told otherwise it is given the
profile's law, as if the fit were perfect, which is more than it has. Formulas: ai-dynamo/dynamo, planner/core/perf_model/agg.py, 518a7027.
"""

import math
from typing import NamedTuple

from forebay.domain.profile import Profile

PASS_S_MIN = 1e-6


class Shape(NamedTuple):
    """Mean lengths of what is served."""

    prompt_tokens: float
    output_tokens: float

    @property
    def context_tokens(self) -> float:
        """KV of a sequence in mid-answer."""
        return self.prompt_tokens + self.output_tokens / 2


class Plane(NamedTuple):
    """Seconds of a pass, of each of its prefill tokens, and of each KV token that it reads."""

    base_s: float
    per_prefill_token_s: float
    per_kv_token_s: float

    def pass_s(self, prefill_tokens: float, kv_tokens: float) -> float:
        """One pass."""
        return max(PASS_S_MIN, self.base_s + self.per_prefill_token_s * prefill_tokens + self.per_kv_token_s * kv_tokens)


def given(profile: Profile, shape: Shape) -> Plane:
    """The profile's law. Sequences are as many as the KV says, so the plane in two variables is exact where all are of the mean shape."""
    law = profile.law
    return Plane(law.base_s, law.per_prefill_token_s, law.per_kv_token_s + law.per_sequence_s / shape.context_tokens)


def ttft_s(plane: Plane, chunk_tokens: int, shape: Shape, queued_tokens: float, kv_tokens: float) -> float:
    """The next request's time to first token: what is queued and its own prompt, a chunk a pass."""
    left = queued_tokens + shape.prompt_tokens
    whole, rest = divmod(left, chunk_tokens)
    total = whole * plane.pass_s(chunk_tokens, kv_tokens)
    return total + (plane.pass_s(rest, kv_tokens) if rest else 0.0)


def itl_s(plane: Plane, shape: Shape, mean_prefill_tokens: float, kv_tokens: float) -> float:
    """The next request's inter-token time, beside what runs."""
    return plane.pass_s(mean_prefill_tokens, kv_tokens + shape.context_tokens)


def best_rate(plane: Plane, profile: Profile, shape: Shape, ttft_max_s: float, itl_max_s: float) -> float:
    """Requests per second of one engine at the largest batch that keeps both promises; at batch 1 if none does.

    Of ``profile`` only the limits are looked at.
    """
    prompt, output, context = shape.prompt_tokens, shape.output_tokens, shape.context_tokens
    chunk = profile.prefill_chunk_tokens
    most = min(max(1, int(profile.kv_tokens / context)), profile.sequences_max, chunk - 1)
    # Prefill must admit as fast as decode finishes: prompt ÷ (chunk − batch) ≤ output.
    most = max(1, min(most, math.floor(chunk - prompt / output)))
    best = 0.0
    for batch in range(1, most + 1):
        kv, prefill = batch * context, min(batch * prompt / output, float(chunk))
        step = plane.pass_s(prefill, kv)
        if batch > 1 and (step > itl_max_s or ttft_s(plane, chunk, shape, prefill, kv) > ttft_max_s):
            break
        best = batch / (output * step)
    return best
