"""What ends an answer is counted before its client has it: a gateway that is killed in between has lost nothing that anybody saw end."""

import asyncio
import json

import pytest

CHAT = {"model": "llama", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 50}
USAGE = {"prompt_tokens": 20, "completion_tokens": 2}
LONG = "x" * (3 * 1024 * 1024)


async def whole(_, answer):
    answer.json(200, {"choices": [{"finish_reason": "stop"}], "usage": USAGE})


async def in_parts(_, answer):
    """Longer than what is held."""
    body = json.dumps({"choices": [{"finish_reason": "stop", "message": {"content": LONG}}], "usage": USAGE}).encode()
    answer.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body))
    for at in range(0, len(body), 300_000):
        answer.raw(body[at : at + 300_000])
        await asyncio.sleep(0.001)


async def streams(_, answer):
    answer.stream()
    answer.role()
    for text, finish in (("a", None), ("b", "stop")):
        await asyncio.sleep(0.01)
        answer.token(text, finish)
    await asyncio.sleep(0.01)
    answer.done()


class Gathers:
    """A transport of which all goes on in one write."""

    def __init__(self):
        self.sent = b""

    def write(self, data):
        self.sent += data

    def is_closing(self):
        return False


async def streams_at_once(seen, answer):
    gathers, transport = Gathers(), answer.transport
    answer.transport = gathers
    await streams(seen, answer)
    answer.transport = transport
    answer.raw(gathers.sent)


async def closes_after_done(_, answer):
    """Without the last chunk: nothing of the answer is missing."""
    answer.stream()
    answer.role()
    answer.token("a", "stop")
    answer.chunk(b"data: [DONE]\n\n")
    await asyncio.sleep(0.01)
    answer.cut()


async def is_wrong(_, answer):
    answer.json(404, {"error": {"message": "no such thing"}})


@pytest.mark.parametrize("script", [whole, in_parts, streams, streams_at_once, closes_after_done, is_wrong])
def test_what_ends_an_answer_is_counted_before_its_client_has_it(world, script):
    """The journal's entry came after the last write: of two hundred answers under a killed gateway one was in no ledger."""
    seen = []

    async def test(front):
        keeps = front.gateway.usage._append

        def append(*entry):
            (connection,) = front.gateway.http.connections
            peer = connection.transport.peer
            seen.append(b"".join(item for item in peer._inbox if isinstance(item, bytes)))
            keeps(*entry)

        front.gateway.usage._append = append
        answer = await front.ask({**CHAT, "stream": script in (streams, streams_at_once, closes_after_done)})
        assert answer.status == (404 if script is is_wrong else 200)
        (before,) = seen
        assert b"[DONE]" not in before
        assert b'"usage"' not in before
        assert b"no such thing" not in before

    world(test, script)
