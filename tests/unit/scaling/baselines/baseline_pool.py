"""The pool that other autoscalers are asked about: its numbers are round."""

from forebay.domain.profile import ColdStart, Profile, StepLaw
from forebay.spec.types import EngineKind, Pool, Scaling, Slo

PROFILE = Profile(
    name="round",
    model="m",
    hardware="h",
    gpus=1,
    law=StepLaw(base_s=0.010, per_sequence_s=0.0001, per_kv_token_s=1e-7, per_prefill_token_s=1e-5),
    sequences_max=256,
    kv_tokens=100_000,
    block_tokens=16,
    prefill_chunk_tokens=2000,
    kv_bytes_per_token=1000,
    context_tokens=32_768,
    cold_start=ColdStart(270.0, 7e10, 1.5e9, 43.0),
)
POOL = Pool(
    "chat",
    "m",
    EngineKind("emulated"),
    PROFILE,
    Slo(ttft_s=1.0, itl_s=0.05),
    Scaling(min_replicas=1, max_replicas=100, prompt_tokens=1000, output_tokens=200),
)
