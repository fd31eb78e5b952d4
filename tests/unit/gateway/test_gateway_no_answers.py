"""What is at an engine's address says nothing, or nothing that is an answer: another is asked, and it leaves routing."""

import asyncio

import pytest
from test_gateway_wrong_engines import ANSWER, BODY, well

from forebay.admission.outliers import FAILURES_IN_A_ROW
from forebay.gateway.whole import HELD_BYTES_MAX

HEAD = b"HTTP/1.1 200 OK\r\n"
JSON = HEAD + b"content-type: application/json\r\n"
EVENTS = HEAD + b"content-type: text/event-stream\r\n"


def says(*wire, ends=False):
    """An engine that answers everything with these bytes, and closes its connection where it ``ends`` so."""

    async def script(seen, answer):
        for part in wire:
            answer.raw(part)
        if ends:
            answer.close()

    return script


def json(body):
    return says(JSON + b"content-length: %d\r\n\r\n%b" % (len(body), body))


def events(body):
    return says(EVENTS + b"content-length: %d\r\n\r\n%b" % (len(body), body))


ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
ANYWAY = {
    "nothing": says(ends=True),
    "another protocol": says(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "garbage": says(b"\x00\xff\x00\xff\r\n\r\n"),
    "half a head": says(b"HTTP/1.1 200 OK\r\ncontent-ty", ends=True),
    "two lengths": says(HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}"),
    "a length that is none": says(HEAD + b"content-length: many\r\n\r\n{}"),
    "a chunk that is none": says(HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"),
    "a protocol that it switches to": says(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"),
}
WHOLE = {
    "an empty body": says(HEAD + b"content-length: 0\r\n\r\n"),
    "an empty body of JSON": says(HEAD + b"content-type: application/json\r\ncontent-length: 0\r\n\r\n"),
    "no chunk": says(HEAD + b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    "spaces": says(HEAD + b"content-length: 3\r\n\r\n \r\n"),
    "text without a type": says(HEAD + b"content-length: 2\r\n\r\nok"),
    "text that is said to be JSON": says(HEAD + b"content-type: application/json\r\ncontent-length: 2\r\n\r\nok"),
    "JSON that ends too soon": json(b'{"choices":[{"index":0,"mess'),
    "JSON that is none": json(b"{oops}"),
    "a list that is none": json(b" \n[oops"),
    "two answers": json(b"{}{}"),
    "much that is none": json(b"{" + b"x" * 100_000),
    "a success without a body": says(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "something accepted": says(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"),
    "events that nobody asked for": events(ROLE + b"data: [DONE]\n\n"),
}
STREAMED = {
    "no event": says(EVENTS + b"content-length: 0\r\n\r\n"),
    "no event, by its end": says(EVENTS + b"\r\n", ends=True),
    "only the end": says(EVENTS + b"content-length: 14\r\n\r\ndata: [DONE]\n\n"),
    "only the end, and it breaks off": says(EVENTS + b"transfer-encoding: chunked\r\n\r\ne\r\ndata: [DONE]\n\n\r\n", ends=True),
    "only who speaks": says(EVENTS + b"content-length: %d\r\n\r\n%bdata: [DONE]\n\n" % (len(ROLE) + 14, ROLE)),
    "only a comment": says(EVENTS + b"content-length: 6\r\n\r\n: hi\n\n"),
    "an event that is no JSON": events(b"data: oops\n\ndata: [DONE]\n\n"),
    "an event that ends too soon": events(b'data: {"choices":[\n\ndata: [DONE]\n\n'),
    "events of nothing": events(b"data: {}\n\ndata: null\n\ndata: [DONE]\n\n"),
    "no events, but an empty body of JSON": json(b""),
    "no events, but JSON that is none": json(b"{oops"),
}
CASES = (
    *((stream, what, script) for stream in (False, True) for what, script in ANYWAY.items()),
    *((False, what, script) for what, script in WHOLE.items()),
    *((True, what, script) for what, script in STREAMED.items()),
)


@pytest.mark.parametrize(("stream", "script"), [case[::2] for case in CASES], ids=[f"{case[1]}-{case[0]}" for case in CASES])
def test_what_is_no_answer_is_asked_of_another_and_who_gives_it_leaves_routing(world, stream, script):
    """Clients were told 502, or that nothing was their answer, for as long as it was there."""

    async def test(front):
        for _ in range(2 * FAILURES_IN_A_ROW + 2):
            answer = await front.ask({**BODY, "stream": stream})
            assert (answer.status, answer.headers["x-forebay-replica"]) == (200, "r1")
            assert b"x" in answer.body
        assert front.gateway.desk.pools["chat"].routed == ("r1",)
        assert front.gateway.desk.pools["chat"].meters["interactive"].outcomes["completed"] == 2 * FAILURES_IN_A_ROW + 2

    world(test, script, well())


@pytest.mark.parametrize(("stream", "script"), [case[::2] for case in CASES], ids=[f"{case[1]}-{case[0]}" for case in CASES])
def test_where_nobody_gives_an_answer_the_client_is_told_so(world, stream, script):
    async def test(front):
        answer = await front.ask({**BODY, "stream": stream})
        assert answer.status == 503
        assert answer.json()["error"]["code"] in {"no_replicas", "engines_failed"}
        assert 3750 <= int(answer.headers["retry-after-ms"]) <= 6250

    world(test, script, script)


def test_an_answer_that_says_it_is_empty_is_one(world):
    async def short(seen, answer):
        answer.stream()
        answer.role()
        answer.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        answer.done()

    async def test(front):
        answer = await front.ask({**BODY, "stream": True})
        assert (answer.status, answer.headers["x-forebay-replica"], answer.events()[-1]) == (200, "r0", "[DONE]")

    world(test, short, well())


@pytest.mark.parametrize("target", ["/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/rerank"])
@pytest.mark.parametrize("script", [json(b""), json(b"{oops}"), json(b"ok")], ids=["empty", "no JSON", "text"])
def test_it_is_so_whatever_is_asked(world, target, script):
    async def answers(seen, answer):
        answer.json(200, ANSWER)

    async def test(front):
        asked = {
            "model": "llama",
            "input": "x",
            "prompt": "x",
            "query": "q",
            "documents": ["x"],
            "messages": BODY["messages"],
            "max_tokens": 4,
        }
        answer = await front.ask(asked, target=target)
        assert (answer.status, answer.headers["x-forebay-replica"], answer.json()) == (200, "r1", ANSWER)

    world(test, script, answers)


@pytest.mark.parametrize("target", ["/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("script", [STREAMED["only the end"], STREAMED["an event that is no JSON"]], ids=["only the end", "no JSON"])
def test_streams_whose_events_have_types_say_something_too(world, target, script):
    async def answers(seen, answer):
        answer.stream()
        answer.chunk(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
        answer.raw(b"0\r\n\r\n")

    async def test(front):
        asked = {"model": "llama", "input": "x", "messages": BODY["messages"], "max_tokens": 4, "stream": True}
        answer = await front.ask(asked, target=target)
        assert (answer.status, answer.headers["x-forebay-replica"]) == (200, "r1")

    world(test, script, answers)


@pytest.mark.parametrize("script", [json(b""), json(b"ok"), json(b"{oops"), says(ends=True), says(b"SSH-2.0-x\r\n"), WHOLE["spaces"]])
def test_tokens_are_counted_by_another_one_where_the_first_says_nothing(world, script):
    async def counts(seen, answer):
        answer.json(200, {"count": 3})

    async def test(front):
        for _ in range(2):  # it begins with another one each time
            answer = await front.ask({"model": "llama", "prompt": "x"}, target="/tokenize")
            assert (answer.status, answer.body) == (200, b'{"count": 3}')

    world(test, script, counts)


def test_a_long_answer_that_begins_as_none_is_asked_of_another(world):
    async def text_of_megabytes(seen, answer):
        answer.raw(JSON + b"content-length: 9000000\r\n\r\n")
        for _ in range(9):
            answer.raw(b"x" * (HELD_BYTES_MAX // 8))
            await asyncio.sleep(0.01)

    async def test(front):
        answer = await front.ask(BODY)
        assert (answer.status, answer.headers["x-forebay-replica"]) == (200, "r1")

    world(test, text_of_megabytes, well())


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices":[{"logprob":NaN}]}',
        b'[{"text":"x"}]',
        b'{"text":"\xff"}',
        b'{"text":"a\nb"}',
        b' {"n":1}\n',
        b'{"n":%b}' % (b"9" * 5000),
    ],
)
def test_what_clients_read_as_json_is_an_answer(world, body):
    async def test(front):
        answer = await front.ask(BODY)
        assert (answer.status, answer.headers["x-forebay-replica"], answer.body) == (200, "r0", body)

    world(test, json(body), well())


def test_an_answer_that_is_compressed_though_nobody_asked_for_that_passes(world):
    async def test(front):
        answer = await front.ask(BODY)
        assert (answer.status, answer.headers["x-forebay-replica"], answer.body) == (200, "r0", b"\x1f\x8b?")

    world(test, says(JSON + b"content-encoding: gzip\r\ncontent-length: 3\r\n\r\n\x1f\x8b?"), well())


def test_a_transcript_may_be_plain_text(world):
    """Its replica was taken for one that answers wrong, and its client was told 503."""
    parts = (("model", "llama"), ("response_format", "text"), ("file", "x"))
    form = (
        b"".join(b'--b\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (n.encode(), v.encode()) for n, v in parts)
        + b"--b--\r\n"
    )

    async def test(front):
        answer = await front.ask(form, {"content-type": "multipart/form-data; boundary=b"}, target="/v1/audio/transcriptions")
        assert (answer.status, answer.body) == (200, b"hello")

    world(test, says(HEAD + b"content-type: text/plain\r\ncontent-length: 5\r\n\r\nhello"))


def test_who_is_to_go_on_with_an_answer_and_only_ends_it_has_not_gone_on(world):
    """The client got the beginning, and ``[DONE]`` behind it, as if that were all."""

    async def begins(seen, answer):
        answer.stream()
        delta = {"index": 0, "delta": {"role": "assistant", "content": "a"}, "logprobs": None, "finish_reason": None, "token_ids": [7]}
        answer.event({"id": "c", "created": 1, "model": "llama", "choices": [delta], "prompt_token_ids": [1, 2, 3]})
        await asyncio.sleep(0.5)
        answer.cut()

    async def goes_on(seen, answer):
        answer.stream()
        answer.event({"choices": [{"index": 0, "text": "b", "finish_reason": "stop", "token_ids": [8]}]})
        answer.done()

    async def test(front):
        answer = await front.ask({**BODY, "stream": True})
        said = [event["choices"][0]["delta"].get("content") for event in answer.events()[:-1] if event.get("choices")]
        assert ("".join(filter(None, said)), answer.events()[-1]) == ("ab", "[DONE]")
        assert [len(engine.seen) for engine in front.engines] == [1, 1, 1]

    world(test, begins, STREAMED["only the end"], goes_on)
