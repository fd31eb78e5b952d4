"""What is refused before it was a whole request: it too says which bound was hit, and what it is called."""

import pytest

from forebay.spec.types import Limits

LIMITS = Limits(body_bytes_max=10_000, streamed_body_bytes_max=40_000, bodies_bytes_max=500_000, head_bytes_max=2_000)
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n"
MINE = b"x-request-id: mine\r\n"
MANY = b"1;" + b"e" * 200 + b"\r\nx\r\n"


async def echo(_, answer):
    answer.json(200, {})


@pytest.mark.parametrize(
    ("status", "request_id", "wire"),
    [
        (400, "req-", b"\x16\x03\x01 this is tls\r\n\r\n"),
        (400, "req-", b"GET / HTTP/1.1\r\n" + MINE + b"bad header\r\n\r\n"),
        (400, "req-", CHAT + MINE + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
        (400, "req-", CHAT + MINE + b"transfer-encoding: gzip\r\n\r\n"),
        (400, "mine", CHAT + MINE + b"transfer-encoding: chunked\r\n\r\nno size\r\n"),
        (413, "mine", CHAT + MINE + b"content-length: 40001\r\n\r\n"),
        (413, "req-", CHAT + b"content-length: 40001\r\n\r\n"),
        (413, "mine", CHAT + MINE + b"transfer-encoding: chunked\r\n\r\n" + (b"1000\r\n" + b" " * 0x1000 + b"\r\n") * 11),
        (413, "mine", b"POST /v1/models HTTP/1.1\r\n" + MINE + b"content-length: 10001\r\n\r\n"),
        (431, "req-", b"GET / HTTP/1.1\r\nx: " + b"y" * 3000),
        (431, "mine", CHAT + MINE + b"a: b\r\n" * 150 + b"\r\n"),
    ],
    ids=["tls", "header", "two-lengths", "coding", "chunk", "length", "unnamed", "chunks", "no-large", "open-head", "many-headers"],
)
def test_what_is_refused_before_it_is_whole_has_the_requests_id(world, status, request_id, wire):
    async def test(front):
        client = await front.client()
        client.writer.write(wire)
        answer = await client.read()
        assert answer.status == status
        assert answer.headers["x-request-id"].startswith(request_id)
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

    world(test, echo, limits=LIMITS)


def test_one_connection_too_many_is_told_an_id_too(world):
    async def test(front):
        clients = [await front.client() for _ in range(3)]
        answer = await clients[2].read()
        assert (answer.status, answer.headers["x-request-id"][:4]) == (503, "req-")

    world(test, echo, limits=Limits(connections_max=2))


def test_what_cannot_be_read_is_not_called_as_the_request_before_it(world):
    async def test(front):
        client = await front.client()
        first = await client.ask("/v1/messages", {"model": "none", "messages": [], "max_tokens": 5}, {"x-request-id": "mine"})
        assert (first.status, first.headers["x-request-id"]) == (404, "mine")
        client.writer.write(b"\x00 garbage\r\n\r\n")
        answer = await client.read()
        assert (answer.status, answer.headers["x-request-id"][:4]) == (400, "req-")
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}, "it is no request of Anthropic's"

    world(test, echo)


@pytest.mark.parametrize(
    ("bound", "target", "more"),
    [
        (40_000, b"/v1/chat/completions", b"content-length: 40001\r\n\r\n"),
        (40_000, b"/v1/chat/completions", b"transfer-encoding: chunked\r\n\r\n" + (b"1000\r\n" + b" " * 0x1000 + b"\r\n") * 11),
        (10_000, b"/v1/models", b"content-length: 10001\r\n\r\n"),
        (10_000, b"/tokenize", b"transfer-encoding: chunked\r\n\r\n" + (b"1000\r\n" + b" " * 0x1000 + b"\r\n") * 11),
    ],
    ids=["length", "chunks", "no-large", "light"],
)
def test_a_413_names_the_bound_that_was_hit(world, bound, target, more):
    """It named that of bodies which are held, 8 MiB, for one over that of bodies which are passed on, 64 MiB."""

    async def test(front):
        client = await front.client()
        client.writer.write(b"POST " + target + b" HTTP/1.1\r\n" + more)
        answer = await client.read()
        assert answer.status == 413
        assert f"larger than {bound} bytes" in answer.json()["error"]["message"]

    world(test, echo, limits=LIMITS)


def test_a_413_for_many_small_chunks_says_that_it_is_they(world):
    async def test(front):
        client = await front.client()
        client.writer.write(b"POST /tokenize HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n" + MANY * 1000)
        answer = await client.read()
        assert answer.status == 413
        assert "chunks" in answer.json()["error"]["message"]

    world(test, echo, limits=LIMITS)
