"""An answer that has ended at its engine, though its response has not: it isn't made again, and its client has it whole."""

import asyncio
import json

import msgspec
import pytest
from gateway_values import CAPACITY, SPEC
from several_gateways import several

from forebay.domain.shape import Usage
from forebay.gateway.asking import Wants
from forebay.gateway.emitted import Emitted
from forebay.gateway.shutting import cut
from forebay.gateway.sse import EventStream
from forebay.gateway.told import ToldStream
from forebay.gateway.watched import DONE_REAL_S
from forebay.spec.types import EngineKind, Limits, Pool

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
ASKED = {"model": "llama", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
STREAM = ASKED | {"stream": True}
PROMPT = {"model": "llama", "prompt": "hi", "max_tokens": 5, "stream": True}
RESPONSE = {"model": "llama", "input": "hi", "stream": True}
USAGE = {"stream_options": {"include_usage": True}}
RUNNING = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
TAKES = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
WHOLE = json.dumps({"choices": [{"index": 0, "message": {"content": "{a}"}, "finish_reason": "stop"}], "usage": TAKES}).encode()
DONE = b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
ONE_SLOT = msgspec.structs.replace(CAPACITY, sequences=1)
LIMITS = Limits(body_bytes_max=20_000, streamed_body_bytes_max=400_000, bodies_bytes_max=300_000)


def event(finish="stop", **fields):
    value = {"id": "c-1", "created": 7, "model": "llama", "choices": [{"index": 0, "text": "a", "finish_reason": finish}], **fields}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def typed(kind, **fields):
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode())


def stream_of(*chunks):
    def write(answer):
        answer.stream()
        for each in chunks:
            answer.chunk(each)

    return write


MESSAGE = (
    typed("message_start", message={"usage": {"input_tokens": 3, "output_tokens": 0}}),
    typed("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    typed("content_block_delta", index=0, delta={"type": "text_delta", "text": "a"}),
    typed("content_block_stop", index=0),
    typed("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 1}),
)
RESPONDED = (
    typed("response.created", response={"id": "resp_1"}),
    typed("response.output_text.delta", delta="a"),
    typed("response.completed", response={"id": "resp_1", "usage": {"input_tokens": 3, "output_tokens": 1}}),
)


def in_one_chunk(answer):
    answer.raw(HEAD + b"transfer-encoding: chunked\r\n\r\n")
    answer.chunk(WHOLE)


def until_close(answer):
    answer.raw(HEAD + b"connection: close\r\n\r\n" + WHOLE)


def half_of_it(answer):
    answer.raw(HEAD + b"content-length: %d\r\n\r\n%b" % (len(WHOLE), WHOLE[:20]))


def its_length(answer):
    answer.raw(HEAD + b"content-length: %d\r\n\r\n" % len(WHOLE))


ENDED = {
    "one event": (COMPLETIONS, PROMPT, stream_of(event())),
    "one event, with usage": (COMPLETIONS, PROMPT | USAGE, stream_of(event())),
    "one event, with running usage": (COMPLETIONS, PROMPT | RUNNING, stream_of(event(usage=TAKES))),
    "half of a usage": (COMPLETIONS, PROMPT | USAGE, stream_of(event(), b'data: {"choices":[],"usage":{"prom')),
    "half of DONE": (COMPLETIONS, PROMPT, stream_of(event(), b"data: [DO")),
    "DONE at once": (COMPLETIONS, PROMPT, stream_of(event() + DONE)),
    "DONE without a reason": (COMPLETIONS, PROMPT, stream_of(event(None) + DONE)),
    "an event that can't be read": (COMPLETIONS, PROMPT, stream_of(event(), event(token_ids="?").replace(b'": "', b'":"'))),
    "a message": (MESSAGES, STREAM, stream_of(*MESSAGE)),
    "a message at once": (MESSAGES, STREAM, stream_of(b"".join(MESSAGE))),
    "a response": (RESPONSES, RESPONSE, stream_of(*RESPONDED)),
    "a response at once": (RESPONSES, RESPONSE, stream_of(b"".join(RESPONDED))),
    "a body in chunks": (CHAT, ASKED, in_one_chunk),
    "a body until the end": (CHAT, ASKED, until_close),
}
ends = pytest.mark.parametrize(("target", "body", "write"), ENDED.values(), ids=ENDED)


def is_whole(answer, target, body):
    """It is, and the client is told so by the last that it reads."""
    assert answer.status == 200
    assert answer.complete
    assert b"error" not in answer.body
    if not body.get("stream"):
        assert answer.body == WHOLE
    elif target == MESSAGES:
        assert answer.body.count(b'"message_stop"') == 1
        assert answer.body.endswith(b'{"type":"message_stop"}\n\n')
    elif target == RESPONSES:
        assert answer.body == b"".join(RESPONDED)
    else:
        events = answer.events()
        assert events[-1] == "[DONE]"
        assert sum(len(each["choices"]) for each in events[:-1]) >= 1
        told = [each["usage"] for each in events[:-1] if not each["choices"]]
        assert len(told) == bool(body.get("stream_options"))
        assert all(usage["completion_tokens"] == 1 for usage in told)


def once(front):
    """Nothing was asked for a second time, and all of it is billed."""
    assert sum(len(engine.seen) for engine in front.engines) == 1
    assert (front.counts().completed, front.counts().truncated, front.permits) == (1, 0, 0)


@ends
@pytest.mark.parametrize("how", ["cut", "close"])
def test_an_answer_that_has_ended_is_whole_though_its_connection_breaks(world, target, body, write, how):
    async def breaks(_, answer):
        write(answer)
        await asyncio.sleep(0.01)
        getattr(answer, how)()

    async def test(front):
        is_whole(await front.ask(body, target=target), target, body)
        once(front)

    world(test, breaks, breaks)


async def _left_alone(front):
    await front.sleep(DONE_REAL_S + 2)


async def _moved(front):
    """Its replica has hung, or has left."""
    for call in list(front.gateway.desk.pools["chat"].calls.values()):
        call.moved_from("r0", "it hangs")


async def _shut(front):
    await cut(front.gateway)


@ends
@pytest.mark.parametrize("what", [_left_alone, _moved, _shut])
def test_an_answer_that_has_ended_is_whole_though_its_response_never_ends(world, target, body, write, what):
    async def hangs(_, answer):
        write(answer)
        await answer.gone.wait()

    async def test(front):
        task = asyncio.create_task(front.ask(body, target=target))
        await front.sleep(0.05)
        await what(front)
        await asyncio.sleep(0.05)
        assert task.done()
        is_whole(await task, target, body)
        once(front)

    world(test, hangs, hangs)


@pytest.mark.parametrize("body", [PROMPT | USAGE, PROMPT | RUNNING, PROMPT], ids=["usage", "running usage", "no usage"])
def test_usage_that_was_asked_for_is_told_where_the_engine_tells_no_ids(world, body):
    """It is in the form of the answer's own chunks."""
    running = body.get("stream_options", {}).get("continuous_usage_stats")

    async def breaks(_, answer):
        stream_of(event(usage=TAKES) if running else event())(answer)
        await asyncio.sleep(0.01)
        answer.cut()

    async def test(front):
        answer = await front.ask(body, target=COMPLETIONS)
        is_whole(answer, COMPLETIONS, body)
        if body is not PROMPT:
            told = answer.events()[-2]
            assert (told["id"], told["created"], told["model"], told["object"]) == ("c-1", 7, "llama", "text_completion")
        once(front)

    pool = Pool("chat", "llama", EngineKind("attach", metrics="llamacpp"))
    world(test, breaks, breaks, spec=msgspec.structs.replace(SPEC, pools=(pool,)))


@pytest.mark.parametrize("hangs", [False, True], ids=["cut", "hangs"])
@ends
def test_an_answer_that_has_ended_behind_another_gateway_is_whole_and_billed_once(target, body, write, hangs):
    async def breaks(_, answer):
        write(answer)
        await asyncio.sleep(0.01)
        if not hangs:
            answer.cut()
        await answer.gone.wait()

    async def test(world):
        world.lease("b", "b")
        client = await world.client("a")
        task = asyncio.create_task(client.ask(target, body))
        await world.sleep(DONE_REAL_S + 3 if hangs else 0.1)
        assert task.done()
        is_whole(await task, target, body)
        assert sum(len(engine.seen) for engine in world.engines) == 1
        ended = [world.gateways[name].desk.pools["chat"].meters["interactive"].output_tokens for name in "ab"]
        outcomes = [world.outcomes(name) for name in "ab"]
        assert sum(each.get("completed", 0) for each in outcomes) == 1, (outcomes, ended)
        assert sum(each.get("client_gone", 0) + each.get("truncated", 0) for each in outcomes) == 0

    several(test, breaks, breaks)


def test_what_has_not_ended_is_not_taken_for_whole(world):
    """Half of a body, and a message of which the reason is not told."""

    async def breaks(_, answer):
        answer.raw(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        answer.chunk(WHOLE[: WHOLE.index(b"}") + 1])
        await asyncio.sleep(0.01)
        answer.cut()

    async def halts(_, answer):
        stream_of(*MESSAGE[:-1], typed("message_delta", delta={"stop_reason": None}))(answer)
        await asyncio.sleep(0.01)
        answer.cut()

    async def test(front):
        assert (await front.ask(ASKED)).status == 503
        for engine in front.engines:
            engine.script = halts
        answer = await front.ask(STREAM, target=MESSAGES)
        assert b'"type":"error"' in answer.body
        assert b"message_stop" not in answer.body

    world(test, breaks, breaks)


# -- places that are not given up --------------------------------------------------------------------------------------

KEEPS = ENDED | {"half of a body": (CHAT, ASKED, half_of_it), "the length of a body": (CHAT, ASKED, its_length)}


def keeps_its_place(world, target, body, write, rest, **options):
    """Something urgent comes while a batch line is ``write``ten, and waits until it is over."""
    release = asyncio.Event()

    async def serves(seen, answer):
        if b"urgent" in seen.body:
            answer.json(200, json.loads(WHOLE))
            return
        write(answer)
        await release.wait()
        rest(answer)

    async def test(front):
        client = await front.client()
        data = json.dumps({"service_tier": "batch"} | body).encode()
        client.writer.write(b"POST %b HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (target.encode(), len(data), data[:-9]))
        await front.sleep(0.05)
        client.writer.write(data[-9:])
        await front.sleep(0.05)
        urgent = asyncio.create_task(front.ask(ASKED | {"user": "urgent"}))
        await front.sleep(0.05)
        assert len(front.engines[0].seen) == 1
        assert front.gateway.desk.pools["chat"].meters["batch"].requeued == 0
        release.set()
        answer = await client.read()
        assert (answer.status, answer.complete) == (200, True)
        assert (await urgent).status == 200
        assert front.counts("batch").completed == 1
        assert len(front.engines[0].seen) == 2

    world(test, serves, capacity=ONE_SLOT, **options)


@pytest.mark.parametrize(("target", "body", "write"), KEEPS.values(), ids=KEEPS)
def test_an_ended_answer_gives_up_no_place(world, target, body, write):
    def rest(answer):
        if write in (half_of_it, its_length):
            answer.raw(WHOLE[20 if write is half_of_it else 0 :])
        else:
            answer.close()

    keeps_its_place(world, target, body, write, rest)


def test_a_body_that_was_passed_on_can_not_be_sent_again_and_gives_up_no_place(world):
    """The engine that it was sent to next waited for what was gone."""
    long = ASKED | {"messages": [{"role": "user", "content": "x" * 60_000}]}
    keeps_its_place(world, CHAT, long, lambda _: None, lambda answer: answer.json(200, json.loads(WHOLE)), limits=LIMITS)


def test_a_background_response_whose_id_is_not_known_gives_up_no_place(world):
    """To hang up does not stop it: it would be made twice."""
    asked = {"model": "llama", "input": "hi", "background": True}
    done = {"id": "resp_1", "status": "completed", "usage": {"input_tokens": 3, "output_tokens": 1}}
    keeps_its_place(world, RESPONSES, asked, lambda _: None, lambda answer: answer.json(200, done))


# -- what is remembered of a stream ------------------------------------------------------------------------------------


def test_an_answer_with_an_event_that_can_not_be_read_is_not_continued():
    """What it said is in no log: another engine would have gone on from before it."""
    emitted = Emitted()
    stream = ToldStream(True, True, Wants(ids=True), emitted)
    first = event(None, prompt_token_ids=[1, 2]).replace(b'"text": "a"', b'"text": "a", "token_ids": [5]')
    stream.feed(first, first, True, False)
    assert emitted.place() == 1
    odd = event(None, usage="?")
    stream.feed(odd, odd, True, False)
    assert emitted.place() == "one of its events could not be read"
    assert emitted.counted(0) == Usage(2, 1)


@pytest.mark.parametrize(("reason", "ended"), [("stop", True), ("length", True), ("abort", False)])
def test_an_event_that_can_not_be_read_may_end_an_answer(reason, ended):
    odd = event(reason, usage="?")
    stream = EventStream(True, True)
    stream.feed(odd, odd, True, False)
    assert stream.has_all is ended


def test_an_answer_that_is_over_without_a_reason_says_so():
    """All of it was read at once: whoever asks within that turn must not have it made again."""
    stream = EventStream(True, True)
    text = event(None) + DONE
    stream.feed(b"", text, True, True)
    assert (stream.good, stream.says_all) == (True, True)
