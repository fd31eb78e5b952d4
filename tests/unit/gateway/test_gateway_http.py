"""The client's side of HTTP: order, bounds, and what is refused."""

import asyncio

import pytest

from forebay.gateway.answers import JSON
from forebay.gateway.bounds import BODY_SILENT_TICKS, HEAD_TICKS, KEEP_ALIVE_TICKS
from forebay.gateway.http import HttpServer
from forebay.gateway.request import BODY_PIECES_MAX
from forebay.spec.types import Limits
from forebay.testing.loop import run
from forebay.testing.raw_client import RawClient

LIMITS = Limits(body_bytes_max=10_000, bodies_bytes_max=25_000, head_bytes_max=2_000, connections_max=20)


class Echo:
    """Answers with what it got; ``/slow`` when told to."""

    def __init__(self, limits=LIMITS) -> None:
        self.server = HttpServer(limits, self.handle)
        self.slow = []
        self.gone = 0
        self.handled = []
        self.clients = []

    async def connect(self, port):
        self.clients.append(await RawClient.connect(port))
        return self.clients[-1]

    def handle(self, connection, request):
        self.handled.append((request.method, request.target, bytes(request.body)))
        if request.target == b"/slow":
            connection.reply = self
            self.slow.append(connection)
        else:
            connection.answer(200, JSON, request.target + b" " + request.body)

    def client_gone(self):
        self.gone += 1

    def client_slow(self): ...

    def client_ready(self): ...


def serve(test, limits=LIMITS):
    async def main():
        echo = Echo(limits)
        port = await echo.server.start("127.0.0.1", 0)
        await test(echo, port)
        echo.server.close()
        for client in echo.clients:
            client.close()
        await asyncio.sleep(1)
        assert echo.server.bodies_bytes == 0
        assert not echo.server.connections

    run(main)


def exchange(*pieces, limits=LIMITS, pause_s=0.01):
    """What the server says to these bytes, to the end of the connection or of patience."""
    got = []

    async def test(_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(pause_s)
        try:
            async with asyncio.timeout(1):
                got.append(await reader.read())
        except TimeoutError:
            got.append(bytes(reader._buffer) + b"<open>")
        writer.close()

    serve(test, limits)
    return got[0]


def test_a_connection_is_kept_alive():
    async def test(echo, port):
        client = await echo.connect(port)
        for number in range(3):
            assert (await client.ask(f"/{number}", b"body")).body == b"/%d body" % number

    serve(test)


def test_pipelined_requests_are_answered_in_order():
    async def test(echo, port):
        client = await echo.connect(port)
        for target in ("/slow", "/b", "/c"):
            client.send(target, b"x")
        await asyncio.sleep(0.1)
        client.send("/d", b"y")
        await asyncio.sleep(0.1)
        assert [target for _, target, _ in echo.handled] == [b"/slow"]
        echo.slow[0].answer(200, JSON, b"slow")
        assert [(await client.read()).body for _ in range(4)] == [b"slow", b"/b x", b"/c x", b"/d y"]

    serve(test)


def test_any_number_of_pipelined_requests_is_answered_and_none_is_parsed_before_its_turn():
    said = exchange(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" * 500 + b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")
    assert said.count(b"HTTP/1.1 200") == 501


def test_pipelined_bytes_are_bounded_and_all_read_in_the_end():
    async def test(echo, port):
        client = await echo.connect(port)
        client.send("/slow", b"x")
        for _ in range(30):
            client.send("/b", b"y" * 9_000)
            await asyncio.sleep(0.01)
        connection = echo.slow[0]
        assert len(connection._unread) < 150_000
        connection.answer(200, JSON, b"slow")
        answers = [await client.read() for _ in range(31)]
        assert all(answer.status == 200 for answer in answers)

    serve(test, Limits())


def test_a_client_that_asks_and_never_reads_is_not_served_for_ever():
    async def test(echo, port):
        big = b"z" * 20_000
        echo.server.handle = lambda connection, request: (echo.handled.append(request), connection.answer(200, JSON, big))
        client = await echo.connect(port)
        client.writer.transport.pause_reading()
        for _ in range(100):
            client.send("/x", b"y" * 5_000)
            await asyncio.sleep(0.01)
        assert len(echo.handled) < 20
        client.writer.transport.resume_reading()
        for _ in range(100):
            assert (await client.read()).body == big
        assert len(echo.handled) == 100

    serve(test, Limits(client_buffer_bytes_max=65_536))


def test_a_client_that_leaves_is_noticed_while_its_request_is_answered():
    async def test(echo, port):
        client = await echo.connect(port)
        client.send("/slow", b"x")
        await asyncio.sleep(0.1)
        assert echo.gone == 0
        client.close()
        await asyncio.sleep(0.1)
        assert echo.gone == 1

    serve(test)


def test_a_chunked_body_is_read():
    said = exchange(
        b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n"
    )
    assert said.endswith(b"/x abcde")


def test_trailers_are_no_headers():
    async def test(echo, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        seen = []
        echo.server.handle = lambda connection, request: (seen.append(request.facts.forwarded), connection.answer(200, JSON, b""))
        writer.write(b"POST /x HTTP/1.1\r\nx-a: 1\r\ntransfer-encoding: chunked\r\n\r\n2\r\nde\r\n0\r\nx-admin: 1\r\n\r\n")
        await asyncio.sleep(0.1)
        writer.write(b"GET /y HTTP/1.1\r\nx-b: 2\r\n\r\n")
        await asyncio.sleep(0.1)
        assert seen == [b"x-a: 1\r\n", b"x-b: 2\r\n"]
        writer.close()

    serve(test)


def test_expect_continue_is_answered_before_the_body():
    async def test(echo, port):
        client = await echo.connect(port)
        client.writer.write(b"POST /x HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        assert (await client.read()).status == 100
        client.writer.write(b"ok")
        assert (await client.read()).body == b"/x ok"

    serve(test)


def test_expect_continue_of_a_body_too_large_is_refused_unsent():
    said = exchange(b"POST /x HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 20000\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("status", "wire"),
    [
        (400, b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
        (400, b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nabc"),
        (400, b"\x16\x03\x01 this is tls\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\nbad header\r\n\r\n"),
        (413, b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 10001\r\n\r\n"),
        (413, b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n4000\r\n" + b"x" * 0x4000),
        (431, b"GET / HTTP/1.1\r\nx: " + b"y" * 3000),
        (431, b"GET / HTTP/1.1\r\nx: " + b"y" * 3000 + b"\r\n\r\n"),
        (431, b"GET /" + b"y" * 3000),
        (431, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 150 + b"\r\n"),
    ],
    ids=["both-lengths", "two-lengths", "garbage", "bad-header", "length", "chunked", "open-head", "head", "target", "many"],
)
def test_what_is_refused_and_ends_the_connection(status, wire):
    said = exchange(wire, b"GET /next HTTP/1.1\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 %d " % status)
    assert b"connection: close" in said
    assert said.count(b"HTTP/1.1 4") == 1
    assert not said.endswith(b"<open>")


def test_a_refusal_waits_for_the_answer_before_it():
    said = exchange(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n\x00garbage\r\n\r\n")
    assert said.index(b"HTTP/1.1 200") < said.index(b"HTTP/1.1 400")


def test_all_bodies_together_are_bounded():
    async def test(echo, port):
        clients = [await echo.connect(port) for _ in range(4)]
        for client in clients:
            client.send("/slow", b"x" * 9_000)
            await asyncio.sleep(0.05)
        assert echo.server.bodies_bytes == 18_000
        for client in clients[2:]:
            answer = await client.read()
            assert answer.status == 503
            assert int(answer.headers["retry-after"]) >= 1
        clients[0].close()
        await asyncio.sleep(0.05)
        assert echo.server.bodies_bytes == 9_000

    serve(test)


def test_too_many_connections_are_told_so():
    async def test(echo, port):
        clients = [await echo.connect(port) for _ in range(21)]
        await asyncio.sleep(0.01)
        assert (await clients[20].read()).status == 503
        assert (await clients[0].ask("/x", b"")).status == 200

    serve(test)


def test_clients_beyond_the_open_files_are_told_so_and_hold_none():
    async def test(echo, port):
        echo.server.clients_max, echo.server.refused_max = 5, 2
        clients = [await echo.connect(port) for _ in range(5)]
        beyond = [await echo.connect(port) for _ in range(9)]
        await asyncio.sleep(0.01)
        assert len(echo.server.connections) == 7, "two may read their refusal in peace"
        assert [(await client.read()).status for client in beyond] == [503] * 9
        assert echo.server.turned_away == {(503, "overloaded"): 9}
        assert (await clients[0].ask("/x", b"")).status == 200

    serve(test)


@pytest.mark.parametrize("wire", [b"GET /x HTTP/1.0\r\n\r\n", b"GET /x HTTP/1.1\r\nconnection: close\r\n\r\n"], ids=["http10", "close"])
def test_a_connection_that_is_not_kept_is_closed(wire):
    said = exchange(wire)
    assert b"connection: close" in said
    assert said.endswith(b"/x ")


@pytest.mark.parametrize("name", [b"upgrade", b"Upgrade", b"UPGRADE"])
def test_an_upgrade_is_ignored_and_the_body_is_the_requests(name):
    """As Java's HTTP client asks for h2c with every first request; what is not offered is to be ignored."""
    post = b"POST /x HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\n" + name + b": h2c\r\ncontent-length: 4\r\n\r\nbody"
    last = b"POST /y HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 10\r\n\r\n\nupgrade: "
    said = exchange(post + last)
    assert said.count(b"HTTP/1.1 200 ") == 2
    assert b"/x body" in said
    assert said.endswith(b"/y \nupgrade: ")


def test_a_body_in_tiny_chunks_is_kept_in_few_pieces_and_whole():
    chunks = b"".join(b"2\r\n%02d\r\n" % (number % 100) for number in range(1000))
    head = b"POST /x HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    said = exchange(head + chunks + b"0\r\n\r\n")
    assert said.endswith(b"/x " + b"".join(b"%02d" % (number % 100) for number in range(1000)))

    async def test(echo, port):
        client = await echo.connect(port)
        client.writer.write(head + chunks)
        await asyncio.sleep(0.5)
        (connection,) = echo.server.connections
        assert echo.server.bodies_bytes == 2000
        assert len(connection._reader._pieces) == BODY_PIECES_MAX + 1

    serve(test)


@pytest.mark.parametrize(
    ("first", "ticks"),
    [
        (b"GET /x HTTP/1.1\r\nx: ", HEAD_TICKS),
        (b"POST /x HTTP/1.1\r\ncontent-length: 10\r\n\r\nabc", BODY_SILENT_TICKS),
        (b"", KEEP_ALIVE_TICKS),
    ],
    ids=["head", "body", "idle"],
)
def test_a_client_that_dawdles_is_dropped(first, ticks):
    async def test(echo, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(first)
        await asyncio.sleep(ticks - 1)
        assert len(echo.server.connections) == 1
        await asyncio.sleep(3)
        assert not echo.server.connections
        writer.close()

    serve(test)


def test_a_head_that_drips_is_dropped_too():
    async def test(echo, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(HEAD_TICKS + 2):
            if not writer.is_closing():
                writer.write(b"x")
            await asyncio.sleep(1)
        assert not echo.server.connections
        writer.close()

    serve(test)
