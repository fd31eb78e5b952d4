"""A gateway that must go before its requests have ended says so to each of them, in the form of its API."""

import asyncio
import json

import pytest
from test_gateway_surface import ASK, BLOCK, BLOCK_DELTA, CREATED, DELTA, MESSAGE, START, typed

from forebay.admission.outcomes import Refusal
from forebay.gateway.meters import Outcome
from forebay.gateway.shutting import cut
from forebay.spec.types import Limits

DRAIN_S = 30.0
LIMITS = Limits(drain_s=DRAIN_S)
CHAT = {"model": "llama", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}
COMPLETION = {"model": "llama", "prompt": "hi", "max_tokens": 20, "stream": True}


def begins(*events):
    """An engine that streams these and then hangs."""

    async def script(seen, answer):
        answer.stream()
        for event in events:
            name = b"event: %b\n" % event["type"].encode() if "type" in event else b""
            answer.chunk(b"%bdata: %b\n\n" % (name, json.dumps(event).encode()))
        await asyncio.Event().wait()

    return script


async def hangs(seen, answer):
    await asyncio.Event().wait()


async def drained(front, target, body):
    """The answer to a request that is inside when the deadline comes; and that it came then."""
    client = await front.client()
    client.send(target, body)
    await front.sleep(0.1)
    assert front.gateway.desk.live == 1
    await front.gateway.drain()
    assert DRAIN_S <= front.clock.now_s() < DRAIN_S + 1
    answer = await client.read()
    assert await client.reader.read() == b"", "the connection is closed in order"
    assert front.gateway.desk.live == 0
    assert [event.message for event in front.sink.events if event.kind == "gateway_drained"] == ["1 requests were cut"]
    return answer


CHUNKS = {
    "/v1/chat/completions": {"id": "a", "choices": [{"index": 0, "delta": {"content": "wa"}, "finish_reason": None}]},
    "/v1/completions": {"id": "a", "choices": [{"index": 0, "text": "wa", "finish_reason": None}]},
}


@pytest.mark.parametrize("target", CHUNKS)
def test_a_stream_that_is_open_at_the_deadline_ends_with_openais_error_event(world, target):
    async def test(front):
        body = {**CHAT, "stream": True} if "chat" in target else COMPLETION
        answer = await drained(front, target, body)
        events = answer.events()
        assert events[0]["choices"][0].get("text", "wa") == "wa"
        assert events[-2]["error"]["code"] == "stream_truncated"
        assert "shutting down" in events[-2]["error"]["message"]
        assert events[-1] == "[DONE]"
        meter = front.gateway.desk.pools["chat"].meters["interactive"]
        assert meter.outcomes[Outcome.TRUNCATED] == 1
        assert meter.output_tokens == 1, "what was sent is metered"

    world(test, begins(CHUNKS[target]), limits=LIMITS)


def test_a_responses_stream_that_is_open_at_the_deadline_fails(world):
    async def test(front):
        events = typed(await drained(front, "/v1/responses", ASK))
        name, failed = events[-1]
        assert (name, failed["response"]["status"], failed["sequence_number"]) == ("response.failed", "failed", 2)
        assert "shutting down" in failed["response"]["error"]["message"]

    world(test, begins(CREATED, DELTA), limits=LIMITS)


def test_a_messages_stream_that_is_open_at_the_deadline_ends_with_anthropics_error_event(world):
    async def test(front):
        name, error = typed(await drained(front, "/v1/messages", MESSAGE))[-1]
        assert (name, error["type"], error["error"]["type"]) == ("error", "error", "api_error")
        assert "shutting down" in error["error"]["message"]

    world(test, begins(START, BLOCK, BLOCK_DELTA), limits=LIMITS)


@pytest.mark.parametrize("stream", [True, False])
def test_what_is_not_answered_by_the_deadline_is_503_and_worth_another_try(world, stream):
    async def test(front):
        answer = await drained(front, "/v1/chat/completions", {**CHAT, "stream": stream})
        assert (answer.status, answer.json()["error"]["code"]) == (503, "shutting_down")
        assert 1 <= int(answer.headers["retry-after"]) <= 3
        assert answer.headers["connection"] == "close"
        await asyncio.sleep(1.0)
        assert not front.engines[0].open, "its engine is stopped"

    world(test, hangs, limits=LIMITS)


def test_what_waits_at_the_deadline_is_refused_before_a_permit_ends(world, one_slot):
    """A permit that ends starts the next one: nothing may be started only to be cut."""

    async def test(front):
        clients = [await front.client() for _ in range(3)]
        for client in clients:
            client.send("/v1/chat/completions", CHAT)
            await front.sleep(0.1)
        assert (front.permits, front.waiting) == (1, 2)
        await front.gateway.drain()
        assert [(await client.read()).status for client in clients] == [503, 503, 503]
        assert len(front.engines[0].seen) == 1
        assert front.gateway.desk.pools["chat"].meters["interactive"].shed[Refusal.SHUTTING_DOWN] == 3

    world(test, hangs, limits=Limits(drain_s=20.0), capacity=one_slot)


def test_an_anthropic_client_that_waits_is_refused_in_its_form(world):
    async def test(front):
        answer = await drained(front, "/v1/messages", {**MESSAGE, "stream": False})
        assert (answer.status, answer.json()["error"]["type"]) == (503, "overloaded_error")

    world(test, hangs, limits=LIMITS)


def test_what_needs_no_permit_is_told_too(world):
    async def test(front):
        client = await front.client()
        client.send("/tokenize", {"model": "llama", "prompt": "hi"})
        await front.sleep(0.1)
        await front.gateway.drain()
        answer = await client.read()
        assert (answer.status, answer.json()["error"]["code"]) == (503, "shutting_down")
        assert "retry-after" in answer.headers

    world(test, hangs, limits=Limits(drain_s=2.0))


def test_a_request_on_a_kept_connection_after_the_deadline_is_refused(world):
    async def test(front):
        kept, busy = await front.client(), await front.client()
        assert (await kept.ask("/health")).status == 200
        busy.send("/v1/chat/completions", CHAT)
        await front.sleep(0.1)
        assert await cut(front.gateway) == 1
        answer = await kept.ask("/v1/chat/completions", CHAT)
        assert (answer.status, answer.json()["error"]["code"]) == (503, "shutting_down")
        assert len(front.engines[0].seen) == 1

    world(test, hangs)
