"""What gateways in tests serve, and to whom."""

import os

from forebay.domain.roster import Capacity
from forebay.gateway.carrying import Worker
from forebay.spec.types import EngineKind, Model, Pool, Spec, Team, Tier
from forebay.testing.crew import FakeCrew

WORKERS = int(os.environ.get("FOREBAY_TEST_WORKERS", "0"))
"""Relay workers behind the gateways of tests that don't say how many."""

CAPACITY = Capacity(
    kv_tokens=100_000, sequences=8, prefill_tokens=50_000, prefill_tokens_per_s=10_000.0, decode_tokens_per_s=1000.0, context_tokens=8192
)
TIERS = (
    Tier("interactive", rank=0, ttft_s=1.0, longest_wait_s=30.0),
    Tier("standard", rank=1, ttft_s=5.0, longest_wait_s=120.0),
    Tier("batch", rank=2, ttft_s=3600.0, longest_wait_s=86_400.0, preemptible=True),
)
SPEC = Spec(
    pools=(Pool("chat", "llama", EngineKind("attach")),),
    models=(Model("llama", 8192, aliases=("gpt-4o",)),),
    tiers=TIERS,
)
TEAMS = (
    Team("search", keys=(("sk-search", "interactive"), ("sk-search-bulk", "batch"))),
    Team("mail", keys=(("sk-mail", "standard"),), tiers=("standard", "batch")),
)


def crew_of(clock, workers=None):
    """So many relay workers, or none."""
    count = WORKERS if workers is None else workers
    return FakeCrew(count, lambda owner: Worker(clock, owner)) if count else None
