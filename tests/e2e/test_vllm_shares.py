"""A real vLLM that tells what it found cached: many prompts with one long beginning run at once where few would fit, and it preempts none.

Those of the first part have a `cache_salt` each, so that the engine shares nothing of them: so many fit where each counts in full. Then
the same prompts come without.
"""

import asyncio
import random
from dataclasses import dataclass

import pytest

CONFIG = """
models: {{tiny: {{context: 2048}}}}
profiles:
  small:
    model: tiny
    hardware: one CPU core
    gpus: 1
    step: {{base: 6.1ms, per_sequence: 150us, per_kv_token: 20ns, per_prefill_token: 40us}}
    sequences: 48
    kv: 8192
    block: 32
    prefill_chunk: 2048
    kv_per_token: 6144B
    context: 2048
    cold_start: {{provision: 0s, weights: 9.2MB, bandwidth: 1GB/s, init: 50s}}
tiers: {{patient: {{rank: 0, ttft: 10m, longest_wait: 10m}}}}
pools:
  chat: {{model: tiny, profile: small, attach: ["{url}"], slo: {{ttft: 30s, itl: 500ms, attainment: 0.9}}}}
gateway: {{listen: "127.0.0.1:0"}}
admin: {{listen: "127.0.0.1:0"}}
"""
BLOCKS = 256
OPTIONS = ("--enable-prompt-tokens-details", "--max-num-seqs", "48", "--kv-cache-memory-bytes", str(BLOCKS * 32 * 6144))
WORDS = (
    "gate",
    "water",
    "level",
    "spill",
    "turbine",
    "queue",
    "token",
    "lane",
    "tier",
    "team",
    "permit",
    "prefix",
    "block",
    "memory",
    "answer",
)
SYSTEM = " ".join(random.Random(5).choice(WORDS) for _ in range(560))
"""About 1,140 tokens of the tiny model's."""
LEARNING, SALTED, SHARED = 3, 24, 200
TOKENS = (60, 100)
IN_FULL_MAX = 8
"""Seven fit by 1,160 tokens each, and before the answers grow one more may."""
TIMES_MIN = 2.5
"""Seen: 3.9 to 4.8 times as many."""

pytestmark = [pytest.mark.e2e, pytest.mark.vllm, pytest.mark.timeout(1200)]


@dataclass
class Part:
    """What was seen while some requests were answered."""

    whole: int = 0
    cached_tokens: int = 0
    permits: float = 0.0
    running: float = 0.0
    kv: float = 0.0
    preempted: float = 0.0
    found_tokens: float = 0.0


async def asked(client, number, tokens, extra, part):
    """One stream, to its end; its tokens are counted by their ids."""
    chance = random.Random(number)
    user = " ".join(chance.choice(WORDS) for _ in range(chance.randint(4, 16)))
    stream = await client.chat.completions.create(
        model="tiny",
        messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}],
        max_tokens=tokens,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True, "return_token_ids": True, **extra},
    )
    ids, finish, usage = 0, None, None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            ids += len((choice.model_extra or {}).get("token_ids") or ())
            finish = choice.finish_reason or finish
    part.whole += (ids, finish, usage.completion_tokens) == (tokens, "length", tokens)
    part.cached_tokens += usage.prompt_tokens_details.cached_tokens


def test_a_real_vllm_runs_many_prompts_with_one_beginning_and_preempts_none(up, real_vllm, sums):
    vllm = real_vllm(*OPTIONS)
    fleet = up(CONFIG.format(url=vllm)).until_ready()
    fleet.ready(1)

    async def watched(part, over):
        while not over.is_set():
            (permits,) = await asyncio.to_thread(sums, fleet.gateway, "forebay_permits")
            running, kv = await asyncio.to_thread(sums, vllm, "vllm:num_requests_running", "vllm:kv_cache_usage_perc")
            part.permits, part.running, part.kv = max(part.permits, permits), max(part.running, running), max(part.kv, kv)
            await asyncio.sleep(0.15)

    async def played(name, count, salted):
        part, over, chance = Part(), asyncio.Event(), random.Random(count)
        before = sums(vllm, "vllm:num_preemptions", "vllm:prefix_cache_hits")
        watcher = asyncio.create_task(watched(part, over))
        async with fleet.client("none").with_options(timeout=600) as client:
            salts = [{"cache_salt": f"{name}-{number}"} if salted else {} for number in range(count)]
            await asyncio.gather(*(asked(client, number, chance.randint(*TOKENS), salt, part) for number, salt in enumerate(salts)))
        over.set()
        await watcher
        after = sums(vllm, "vllm:num_preemptions", "vllm:prefix_cache_hits")
        part.preempted, part.found_tokens = after[0] - before[0], after[1] - before[1]
        print(f"{name}: {count} requests, {part}")
        return part

    async def story():
        await played("learning", LEARNING, salted=True)
        return await played("salted", SALTED, salted=True), await played("shared", SHARED, salted=False)

    salted, shared = asyncio.run(story())
    assert (salted.whole, shared.whole) == (SALTED, SHARED)
    assert (salted.preempted, shared.preempted) == (0, 0)
    assert (salted.found_tokens, salted.cached_tokens) == (0, 0), "a salt of its own shares nothing"
    assert shared.cached_tokens == shared.found_tokens > 0, "what it tells of each is what it counts"
    assert salted.permits <= IN_FULL_MAX
    assert shared.permits >= TIMES_MIN * salted.permits
    assert shared.running >= TIMES_MIN * salted.running
