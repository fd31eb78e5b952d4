"""The three budgets of one replica of a pool, from its profile, or from what the engine told of itself.

An attached engine without a profile says its KV tokens on its metrics page and nothing of its pace, so the rest are
permissive defaults: such a pool is queued by KV and slots, and its ``Retry-After`` comes from measured drain alone.
"""

from forebay.domain.roster import Capacity
from forebay.engine.capacity import roster_capacity
from forebay.spec.types import Pool

UNKNOWN_KV_TOKENS = 1_000_000
UNKNOWN_SEQUENCES = 256
UNKNOWN_PREFILL_TOKENS = 65_536
UNKNOWN_PREFILL_TOKENS_PER_S = 10_000.0
UNKNOWN_DECODE_TOKENS_PER_S = 1_000.0


def replica_capacity(pool: Pool, context_tokens: int, kv_tokens: int | None = None, sequences: int | None = None) -> Capacity:
    """What a replica of ``pool`` can hold; ``kv_tokens`` and ``sequences`` as the engine told them, if it did."""
    if pool.profile is not None:
        shape = pool.scaling
        return roster_capacity(pool.profile, pool.slo.ttft_s, pool.slo.itl_s, shape.prompt_tokens, shape.output_tokens)
    return Capacity(
        kv_tokens=kv_tokens or UNKNOWN_KV_TOKENS,
        sequences=sequences or UNKNOWN_SEQUENCES,
        prefill_tokens=UNKNOWN_PREFILL_TOKENS,
        prefill_tokens_per_s=UNKNOWN_PREFILL_TOKENS_PER_S,
        decode_tokens_per_s=UNKNOWN_DECODE_TOKENS_PER_S,
        context_tokens=context_tokens,
        paced=False,
    )
