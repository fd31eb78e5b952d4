"""Bug reports of other gateways that concern the surface, each as a test that fails on the naive build of it."""

import asyncio
import itertools
import json
import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.gateway.sse import Trouble
from forebay.gateway.typed import TypedStream
from forebay.spec.types import Limits

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
MESSAGE = {"model": "llama", "messages": [], "max_tokens": 9, "stream": True}


def event(kind, **fields):
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode())


START = event("message_start", message={"id": "m", "usage": {"input_tokens": 40, "output_tokens": 0}})
DELTA = event("content_block_delta", index=0, delta={"type": "text_delta", "text": " w"})
LAST = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 3})
STOP = event("message_stop")
WHOLE = START + event("content_block_start", index=0, content_block={"type": "text", "text": ""}) + DELTA * 3 + LAST + STOP


async def never(seen, answer):
    await answer.gone.wait()


@pytest.mark.parametrize(
    ("target", "body"),
    [(RESPONSES, {"model": "llama", "input": "a"}), (MESSAGES, {**MESSAGE, "stream": False}), ("/tokenize", {"prompt": "a"})],
)
def test_report_1_leaving_an_answer_that_is_no_stream_stops_the_engine(world, target, body):
    """production-stack #634, LiteLLM #37140: the engine worked on for nobody."""

    async def test(front):
        client = await front.client()
        client.send(target, body)
        await front.sleep(0.1)
        assert len(front.engines[0].open) == 1
        client.close()
        await front.sleep(0.1)
        assert not front.engines[0].open

    world(test, never)


def test_report_2_a_permit_lasts_to_the_last_byte_of_a_body_that_flows(world):
    """SMG #2240: permits were given back at the headers."""

    async def test(front):
        client = await front.client()
        client.send("/v1/audio/speech", {"model": "llama", "input": "a"})
        assert "200" in await client.head()
        assert (await client.event(), front.permits) == (b"\1", 1)
        client.close()
        await front.sleep(0.1)
        assert front.permits == 0

    async def script(seen, answer):
        answer.raw(b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ntransfer-encoding: chunked\r\n\r\n1\r\n\1\r\n")
        await answer.gone.wait()

    world(test, script)


def test_report_9_a_large_prompt_is_held_once_and_not_copied_to_be_sent(world):
    """GIE #2928: bodies grown by appending, decoded twice and written anew: 130 requests a second."""
    size = 4 * 2**20
    body = b'{"model":"llama","messages":[{"role":"user","content":"%b"}]}' % (b"x" * size)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)

    async def test(front):
        client = await front.client()
        (connection,) = front.gateway.http.connections
        taken = []
        upstream, front.gateway.upstream = front.gateway.upstream, Taking(taken)
        connection.data_received(head)
        tracemalloc.start()
        connection.data_received(body)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert taken[0] == body
        assert peak < 0.1 * len(body), f"{peak / len(body):.1f} copies"
        front.gateway.upstream = upstream
        client.close()
        await front.sleep(0.1)

    class Nothing:
        def abort(self): ...

    class Taking:
        def __init__(self, taken):
            self.taken = taken

        def send(self, _url, _request, _sink, _timeout_s=None, _more=None, body=b""):
            self.taken.append(body)
            return Nothing()

    world(test, never)


def test_report_10_an_event_is_passed_on_before_the_next_is_made(world):
    """dstack #4269: nothing for 16 KB, since a proxy gathered the events."""

    async def test(front):
        client = await front.client()
        client.send(MESSAGES, MESSAGE)
        head = await client.head()
        assert "x-accel-buffering: no" in head
        assert "cache-control: no-cache" in head
        assert "content-length" not in head
        await client.event()
        for _ in range(3):
            go.set()
            assert await client.event() == DELTA

    go = asyncio.Event()

    async def script(seen, answer):
        answer.stream()
        answer.chunk(WHOLE[: WHOLE.index(DELTA)])
        while not answer.gone.is_set():
            await go.wait()
            go.clear()
            answer.chunk(DELTA)

    world(test, script)


def test_report_12_usage_of_a_message_whose_reader_left_is_what_was_sent(world):
    """LiteLLM #14457: it was billed by the usage told last, which is nothing before the end."""

    async def test(front):
        client = await front.client()
        client.send(MESSAGES, MESSAGE)
        await client.head()
        await front.sleep(0.2)
        client.close()
        await front.sleep(0.2)
        meter = front.gateway.desk.pools["chat"].meters["interactive"]
        assert meter.prompt_tokens == 40
        assert meter.output_tokens == 8

    async def script(seen, answer):
        answer.stream()
        answer.chunk(WHOLE[: WHOLE.index(DELTA)])
        for _ in range(7):
            answer.chunk(DELTA)
        await answer.gone.wait()

    world(test, script)


def test_report_13_clients_turned_away_at_one_instant_come_back_at_many(world):
    """hermes-agent #109234: 19 of 20 retries at exactly 600.0 s; no refusal has a constant Retry-After."""

    async def test(front):
        kept = [await front.client() for _ in range(3)]
        for client in kept:
            await client.ask("/health")
        turned_away = []
        for _ in range(20):
            answer = await (await front.client()).read()
            assert answer.status == 503
            turned_away.append(int(answer.headers["retry-after-ms"]))
        assert len(set(turned_away)) > 10
        assert 1000 <= min(turned_away) <= max(turned_away) <= 60_000

    world(test, never, limits=Limits(connections_max=3))


def test_report_15_a_drain_waits_for_a_kept_answer_that_streams(world):
    """kthena #1589: a deploy cut what it did not count."""

    async def test(front):
        client = await front.client()
        client.send(f"{RESPONSES}/resp_a?stream=true")
        await client.head()
        await client.event()
        draining = asyncio.create_task(front.gateway.drain())
        await asyncio.sleep(5)
        assert not draining.done()
        go.set()
        assert await client.event() == STOP
        assert await client.event() == b""
        await draining

    go = asyncio.Event()

    async def script(seen, answer):
        answer.stream()
        answer.chunk(DELTA)
        await go.wait()
        answer.chunk(STOP)
        answer.raw(b"0\r\n\r\n")

    world(test, script)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, len(WHOLE) - 1), max_size=8), st.booleans())
def test_runner_up_events_that_are_split_over_reads_are_not_parsed_as_whole_ones(cuts, client_chunked):
    """AIBrix #2266: each read was decoded as one JSON."""
    edges = [0, *sorted(set(cuts)), len(WHOLE)]
    stream, sent, attended = TypedStream(False, client_chunked), [], []
    stream.report_at = 1000
    data = stream.attach(sent.append, lambda *args: attended.append(args) or sent.append(stream.feed(*args)), lambda: None)
    for start, end in itertools.pairwise(edges):
        data(WHOLE[start:end], WHOLE[start:end], True, end == len(WHOLE))
    got = b"".join(sent)
    if client_chunked:
        got, rest = b"", got
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            got, rest = got + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    assert got == WHOLE
    assert stream.trouble is None
    assert (stream.usage.prompt_tokens, stream.usage.output_tokens) == (40, 3)


@pytest.mark.parametrize("missing", [STOP, LAST + STOP, DELTA + LAST + STOP])
def test_report_11_a_message_without_its_end_is_no_message(missing):
    """open-webui #29628: whatever ended cleanly passed for an answer."""
    stream = TypedStream(True, True)
    cut = WHOLE.removesuffix(missing)
    stream.attach(lambda _: None, lambda *_: None, lambda: None)
    stream.feed(cut, cut, True, True)
    assert stream.trouble is Trouble.UNFINISHED


@pytest.mark.parametrize("size", [40_000, 300_000, 2_000_000])
def test_runner_up_a_body_over_a_proxys_buffer_is_no_error(world, size):
    """Envoy AI gateway #828: 413 from 32 KB on."""

    async def test(front):
        body = {"model": "llama", "input": "x" * size}
        assert (await front.ask(body, target="/v1/embeddings")).json()["bytes"] == len(json.dumps(body))

    async def script(seen, answer):
        answer.json(200, {"bytes": len(seen.body)})

    world(test, script)


def test_runner_up_a_model_named_in_a_prompt_is_not_the_requests(world, spec):
    """vLLM's router looked for ``"user":"…"`` anywhere in the body, prompts included."""
    body = b'{"messages":[{"role":"user","content":"\\"model\\":\\"other\\"","model":"other"}],"model":"gpt-4o"}'

    async def test(front):
        for size in (0, 2000):  # read whole, and looked into
            padded = body.replace(b"other", b"other" + b"x" * size)
            assert (await front.ask(padded)).status == 200
            assert front.engines[0].seen[-1].body == padded.replace(b"gpt-4o", b"llama")

    async def script(seen, answer):
        answer.json(200, {})

    world(test, script, limits=msgspec.structs.replace(spec.limits, body_bytes_max=1000))


def test_runner_up_a_light_request_that_was_left_holds_nothing(world):
    """Bifrost #6802: an abandoned stream held its slot."""

    async def test(front):
        for _ in range(5):
            client = await front.client()
            client.send(f"{RESPONSES}/resp_a")
            await front.sleep(0.1)
            client.close()
        await front.sleep(0.1)
        assert not front.gateway._light.live
        assert not front.engines[0].open

    world(test, never)
