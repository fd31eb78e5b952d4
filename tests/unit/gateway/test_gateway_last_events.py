"""The end of a stream whose chunk of usage nobody asked for: vLLM says there, and only there, by what engine it was answered."""

import asyncio

import pytest

from forebay.domain.shape import Usage
from forebay.gateway.asking import Wants
from forebay.gateway.emitted import Emitted
from forebay.gateway.sse import EventStream
from forebay.gateway.told import ToldStream
from forebay.gateway.watched import DONE_REAL_S

STREAM = {"model": "llama", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "stream": True}
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null,"token_ids":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop","token_ids":null}]}\n\n'
STAMPED = LAST[:-3] + b',"system_fingerprint":"vllm-0.32-ab"}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2},"system_fingerprint":"vllm-0.32-ab"}\n\n'
BARE_USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
OTHERS = b'data: {"choices":[{"index":1,"delta":{"content":"c"},"finish_reason":null,"token_ids":null}]}\n\n'


def through(stream, pieces):
    """What a client without chunks gets of these reads."""
    out = [stream.feed(piece, piece, True, at == len(pieces) - 1) for at, piece in enumerate(pieces)]
    assert stream.trouble is None
    return b"".join(out)


def streams():
    return EventStream(True, False, True), ToldStream(True, False, Wants(usage=True, ids=True), Emitted())


@pytest.mark.parametrize("apart", [True, False])
def test_the_fingerprint_that_only_the_dropped_usage_tells_is_in_the_last_chunk(apart):
    pieces = [TOKEN, LAST, USAGE, DONE]
    for stream in streams():
        assert through(stream, pieces if apart else [b"".join(pieces)]) == TOKEN + STAMPED + DONE
        assert stream.usage == Usage(7, 2)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([TOKEN, STAMPED, BARE_USAGE, DONE], TOKEN + STAMPED + DONE),  # it is said already
        ([TOKEN, LAST, BARE_USAGE, DONE], TOKEN + LAST + DONE),  # nobody says it
        ([TOKEN, LAST, DONE], TOKEN + LAST + DONE),
        ([TOKEN, LAST], TOKEN + LAST),
        ([TOKEN, LAST, OTHERS, OTHERS, LAST, USAGE, DONE], TOKEN + LAST + OTHERS + OTHERS + STAMPED + DONE),
        ([TOKEN, LAST, LAST, USAGE, DONE], TOKEN + LAST + STAMPED + DONE),
    ],
)
def test_nothing_is_lost_or_out_of_order_where_the_last_chunk_waits_for_the_next(pieces, expected):
    for stream in streams():
        assert through(stream, pieces) == expected


def test_who_asked_for_usage_gets_the_very_bytes():
    stream = EventStream(True, False, False)
    assert through(stream, [TOKEN, LAST, USAGE, DONE]) == TOKEN + LAST + USAGE + DONE


async def _cut(answer):
    answer.cut()


async def _fails(answer):
    answer.event({"error": {"message": "late", "type": "x", "param": None, "code": 500}})
    answer.done()


@pytest.mark.parametrize("after", [_cut, _fails])
def test_a_failure_after_the_finish_takes_nothing_from_the_client(world, after):
    """It has every token and is told the reason that it ended: neither an error, nor more tokens from elsewhere, may follow."""

    async def breaks(_, answer):
        answer.stream()
        answer.token("a")
        answer.token("b", "stop")
        await after(answer)

    async def test(front):
        answer = await front.ask(STREAM)
        events = answer.events()
        assert answer.complete
        assert events[-1] == "[DONE]"
        assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None, "stop"]
        assert sum(len(engine.seen) for engine in front.engines) == 1

    world(test, breaks, breaks)


@pytest.mark.parametrize("finish", ["stop", None])
def test_an_engine_that_says_done_and_never_ends_its_response_keeps_no_client(world, finish):
    """A proxy before it that lost its last chunk, say: client and permit waited for the tier's longest silence, ten minutes."""

    async def hangs(_, answer):
        answer.stream()
        answer.role()
        answer.token("a")
        answer.token("b", finish)
        answer.chunk(DONE)
        await answer.gone.wait()

    async def test(front):
        begun_s = front.clock.now_s()
        answer = await front.ask(STREAM)
        assert DONE_REAL_S < front.clock.now_s() - begun_s < DONE_REAL_S + 3
        assert answer.complete
        assert answer.events()[-1] == "[DONE]"
        assert sum("error" in event for event in answer.events()) == 0
        assert front.counts().completed == 1
        assert front.permits == 0

    world(test, hangs)


def test_ids_held_of_a_stream_that_is_refused_in_the_end_are_held_no_longer(world):
    """They stayed counted against the bound of all, beyond which no stream is continued."""
    tokens = b"".join(LAST.replace(b'"stop","token_ids":null', b'null,"token_ids":[%d]' % number) for number in range(40))
    held = []

    async def wrong_behind_its_end(_, answer):
        answer.stream()
        answer.chunk(tokens + DONE)
        await asyncio.sleep(0.1)
        held.append(fronts[0].gateway.held_ids.held_bytes)
        answer.chunk(b'data: {"error":{"message":"no","code":500}}\n\n')
        await answer.gone.wait()

    async def test(front):
        fronts.append(front)
        assert (await front.ask(STREAM)).status == 503
        assert held[0] > 0
        assert front.gateway.held_ids.held_bytes == 0

    fronts = []
    world(test, wrong_behind_its_end)
