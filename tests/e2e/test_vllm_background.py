"""A real vLLM with its store of responses on: what goes on in the background takes its places one after the other, and every token is metered."""

import asyncio

import pytest

CONFIG = """
models: {{tiny: {{context: 2048}}}}
profiles:
  four-places:
    model: tiny
    hardware: one CPU core
    gpus: 1
    step: {{base: 6.1ms, per_sequence: 150us, per_kv_token: 20ns, per_prefill_token: 40us}}
    sequences: 4
    kv: 4096
    block: 32
    prefill_chunk: 2048
    kv_per_token: 6144B
    context: 2048
    cold_start: {{provision: 0s, weights: 9.2MB, bandwidth: 1GB/s, init: 50s}}
pools:
  chat: {{model: tiny, profile: four-places, attach: ["{url}"]}}
gateway: {{listen: "127.0.0.1:0"}}
admin: {{listen: "127.0.0.1:0"}}
"""
ASKED = 12
TOKENS = 200
WAIT_MAX = 2
"""What has just come counts as waiting until the engine's next step; past the gateway it was eight."""
SOON_S = 120.0

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.vllm,
    pytest.mark.timeout(1200),
]


def test_a_real_vllm_works_in_the_background_within_its_places_and_is_metered(up, real_vllm, sums):
    vllm = real_vllm(VLLM_ENABLE_RESPONSES_API_STORE="1")
    fleet = up(CONFIG.format(url=vllm)).until_ready()
    fleet.ready(1)
    waiting = []

    async def watched(over):
        while not over.is_set():
            waiting.append((await asyncio.to_thread(sums, vllm, "vllm:num_requests_waiting"))[0])
            await asyncio.sleep(0.1)

    async def asked(client, number):
        begun = await client.responses.create(model="tiny", input=f"Hello {number}", background=True, max_output_tokens=TOKENS)
        assert begun.status == "queued"
        return begun.id

    async def ended(client, name):
        async with asyncio.timeout(SOON_S):
            while (told := await client.responses.retrieve(name)).status in {"queued", "in_progress"}:
                await asyncio.sleep(0.2)
        return told

    async def story():
        over = asyncio.Event()
        watcher = asyncio.create_task(watched(over))
        async with fleet.client() as client:
            names = await asyncio.gather(*(asked(client, number) for number in range(ASKED)))
            told = [await ended(client, name) for name in names]
            stream = await client.responses.create(model="tiny", input="Hello", background=True, stream=True, max_output_tokens=TOKENS)
            async for event in stream:
                if event.type == "response.created":
                    left = event.response.id
                if event.type == "response.output_text.delta":
                    break
            await stream.close()
            told.append(await ended(client, left))
            dropped = await asked(client, ASKED)
            assert (await client.responses.cancel(dropped)).status == "cancelled"
        over.set()
        await watcher
        await asyncio.sleep(7.0)  # the gateway asks every five seconds at most
        return told

    told = asyncio.run(story())
    assert {each.status for each in told} <= {"completed", "incomplete"}
    assert max(waiting) <= WAIT_MAX, "what waits, waits at the gateway"
    made = sum(each.usage.output_tokens for each in told)
    assert sums(fleet.gateway, "forebay_output_tokens", "forebay_permits") == [made, 0]
