"""What is at an engine's address says nothing, or nothing that is an answer: another is asked, and it leaves routing."""

import pytest
from test_gateway_wrong_engines import BODY, well

from forebay.admission.outliers import FAILURES_IN_A_ROW

HEAD = b"HTTP/1.1 200 OK\r\n"
EVENTS = HEAD + b"content-type: text/event-stream\r\n"


def says(*wire, ends=False):
    """An engine that answers everything with these bytes, and closes its connection where it ``ends`` so."""

    async def script(seen, answer):
        for part in wire:
            answer.raw(part)
        if ends:
            answer.close()

    return script


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
}
STREAMED = {
    "no event": says(EVENTS + b"content-length: 0\r\n\r\n"),
    "no event, by its end": says(EVENTS + b"\r\n", ends=True),
    "only the end": says(EVENTS + b"content-length: 14\r\n\r\ndata: [DONE]\n\n"),
    "only the end, and it breaks off": says(EVENTS + b"transfer-encoding: chunked\r\n\r\ne\r\ndata: [DONE]\n\n\r\n", ends=True),
    "only who speaks": says(EVENTS + b"content-length: %d\r\n\r\n%bdata: [DONE]\n\n" % (len(ROLE) + 14, ROLE)),
    "only a comment": says(EVENTS + b"content-length: 6\r\n\r\n: hi\n\n"),
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
        assert "retry-after" in answer.headers

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
