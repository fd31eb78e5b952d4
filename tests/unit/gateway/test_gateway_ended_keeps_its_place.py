"""A batch answer that its engine has made gives no place up: it would be made again, and what it holds is free in a moment."""

import asyncio

import pytest

URL = "/v1/chat/completions"
BATCH = {"model": "llama", "messages": [{"role": "user", "content": "long"}], "max_tokens": 50, "service_tier": "batch"}
URGENT = {"model": "llama", "messages": [{"role": "user", "content": "short"}], "max_tokens": 5}
ANSWER = b'{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}'


async def urgent(answer):
    answer.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER))


async def whole_in_parts(seen, answer):
    """The body comes over a second."""
    if b"short" in seen.body:
        await urgent(answer)
        return
    await asyncio.sleep(0.5)
    answer.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER[:40]))
    await asyncio.sleep(1.0)
    answer.raw(ANSWER[40:])


async def stream_that_has_said_stop(seen, answer):
    """Its usage and its end come a second later."""
    if b"short" in seen.body:
        await urgent(answer)
        return
    answer.stream()
    answer.token("x", "stop")
    await asyncio.sleep(1.5)
    answer.done()


@pytest.mark.parametrize(("script", "stream"), [(whole_in_parts, False), (stream_that_has_said_stop, True)])
def test_what_has_ended_at_its_engine_is_not_taken_back_for_what_is_urgent(world, one_slot, script, stream):
    async def test(front):
        client = await front.client()
        client.send(URL, {**BATCH, "stream": stream})
        await front.sleep(1.0)
        assert (await front.ask(URGENT)).status == 200
        answer = await client.read()
        assert answer.complete
        assert b"x" in answer.body
        meter = front.gateway.desk.pools["chat"].meters["batch"]
        assert (meter.requeued, meter.outcomes["completed"]) == (0, 1)
        assert len(front.engines[0].seen) == 2, "each was sent once"

    world(test, script, capacity=one_slot)
