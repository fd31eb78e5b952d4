"""Long streams over real sockets: read in turns they end, pause and fail as others do, and their connections are used again."""

import asyncio
import contextlib
import socket

import pytest
import uvloop

from forebay.adapters.upstream import HttpUpstream
from forebay.adapters.upstream.turns import Turns
from forebay.native import POLLS
from forebay.ports import End

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nhost: e\r\n\r\n"


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


class Engine:
    """Real sockets; the test writes on them."""

    async def start(self):
        self.came = asyncio.Queue()
        self._clients = []
        self._server = await asyncio.start_server(self._client, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _client(self, reader, writer):
        self._clients.append((asyncio.current_task(), writer))
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.came.put_nowait(writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def answers(self):
        """The next request's writer, with the head of its answer sent."""
        writer = await self.came.get()
        writer.write(HEAD)
        return writer

    async def stop(self):
        self._server.close()
        for task, writer in self._clients:
            writer.close()
            await task


class Sink:
    """What a stream was; ``on_data`` may do something in the middle of it."""

    answer = None

    def __init__(self, takes=False):
        self.body, self.taken = b"", b""
        self.on_data = None
        self.ended = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()
        self._takes = takes

    def head(self, head):
        assert head.status == 200

    def data(self, wire, body, whole, last):
        self.body += body
        self._changed.set()
        if self.on_data:
            self.on_data()
        return self._take if self._takes else None

    def _take(self, wire):
        if wire == chunk(b"usual"):
            self.taken += b"usual"
            self._changed.set()
            return True
        return False

    def end(self, end, detail):
        self.ended.set_result(end)

    async def has(self, body):
        async with asyncio.timeout(5):
            while self.body + self.taken != body:
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request):
    def go(test):
        async def main():
            upstream, engine = HttpUpstream(), Engine()
            upstream.turns = Turns(upstream.loop, polls=True)
            url = await engine.start()
            await test(upstream, engine, url)
            await upstream.close()
            await engine.stop()
            assert not upstream.live

        factory = uvloop.new_event_loop if request.param == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())

    return go


async def seated(upstream, engine, url, takes=False):
    """A stream with its first chunk read, that is read in turns from now on."""
    sink = Sink(takes)
    exchange = upstream.send(url, GET, sink)
    writer = await engine.answers()
    writer.write(chunk(b"first"))
    await sink.has(b"first")
    exchange.flows()
    exchange.flows()
    assert upstream.turns.seated == 1
    return sink, exchange, writer


def test_a_long_stream_is_whole_and_its_connection_is_used_again(run):
    async def test(upstream, engine, url):
        for _ in range(3):
            sink, _, writer = await seated(upstream, engine, url)
            for text in (b"a", b"b", b"c"):
                writer.write(chunk(text))
                await asyncio.sleep(0)
            writer.write(LAST)
            assert await sink.ended is End.COMPLETE
            assert sink.body == b"firstabc"
            assert (upstream.turns.seated, upstream.idle_connections) == (0, 1)

    run(test)


def test_what_the_taker_takes_is_asked_of_it_first(run):
    async def test(upstream, engine, url):
        sink, _, writer = await seated(upstream, engine, url, takes=True)
        writer.write(chunk(b"usual"))
        await sink.has(b"firstusual")
        writer.write(chunk(b"other"))
        await sink.has(b"firstotherusual")
        writer.write(chunk(b"usual"))
        await sink.has(b"firstotherusualusual")
        writer.write(LAST)
        assert await sink.ended is End.COMPLETE

    run(test)


def test_chunks_that_come_in_parts_are_put_together(run):
    async def test(upstream, engine, url):
        sink, _, writer = await seated(upstream, engine, url)
        for part in (b"5\r\nse", b"con", b"\r\n0\r", b"\n\r\n"):
            writer.write(part)
            await asyncio.sleep(0.002)
        assert await sink.ended is End.COMPLETE
        assert sink.body == b"firstsecon"

    run(test)


def test_an_engine_that_dies_cuts_its_streams(run):
    async def test(upstream, engine, url):
        sink, _, writer = await seated(upstream, engine, url)
        writer.write(chunk(b"more"))
        writer.close()
        assert await sink.ended is End.CUT
        assert (sink.body, upstream.turns.seated) == (b"firstmore", 0)

    run(test)


def test_a_reset_cuts_a_stream_too(run):
    async def test(upstream, engine, url):
        sink, _, writer = await seated(upstream, engine, url)
        own = writer.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()
        assert await sink.ended is End.CUT
        assert upstream.turns.seated == 0

    run(test)


def test_a_paused_stream_is_not_read_and_goes_on(run):
    async def test(upstream, engine, url):
        sink, exchange, writer = await seated(upstream, engine, url)
        exchange.pause()
        exchange.pause()
        assert upstream.turns.seated == 0
        exchange.flows()
        assert upstream.turns.seated == 0
        writer.write(chunk(b"later"))
        await asyncio.sleep(0.01)
        assert sink.body == b"first"
        exchange.resume()
        await sink.has(b"firstlater")
        exchange.flows()
        assert upstream.turns.seated == 1
        writer.write(chunk(b"more") + LAST)
        assert await sink.ended is End.COMPLETE
        assert sink.body == b"firstlatermore"

    run(test)


def test_paused_by_what_it_reads_and_abandoned_it_is_gone(run):
    async def test(upstream, engine, url):
        sink, exchange, writer = await seated(upstream, engine, url)
        sink.on_data = exchange.pause
        writer.write(chunk(b"more"))
        await sink.has(b"firstmore")
        exchange.abort()
        assert await sink.ended is End.ABORTED
        assert upstream.turns.seated == 0

    run(test)


def test_aborted_in_the_middle_of_a_turn_nothing_more_is_heard(run):
    async def test(upstream, engine, url):
        sink, exchange, writer = await seated(upstream, engine, url)
        other, _, far = await seated_beside(upstream, engine, url)
        sink.on_data = exchange.abort
        writer.write(chunk(b"more"))
        far.write(chunk(b"alive"))
        assert await sink.ended is End.ABORTED
        await other.has(b"firstalive")
        assert upstream.turns.seated == 1
        far.write(LAST)
        assert await other.ended is End.COMPLETE

    async def seated_beside(upstream, engine, url):
        sink = Sink()
        exchange = upstream.send(url, GET, sink)
        writer = await engine.answers()
        writer.write(chunk(b"first"))
        await sink.has(b"first")
        exchange.flows()
        return sink, exchange, writer

    run(test)


def test_a_lent_stream_is_read_by_the_event_loop_again(run):
    async def test(upstream, engine, url):
        sink, exchange, writer = await seated(upstream, engine, url)
        transport = exchange.lendable()
        assert transport.is_reading()
        assert upstream.turns.seated == 0
        writer.write(chunk(b"on") + LAST)
        assert await sink.ended is End.COMPLETE
        assert sink.body == b"firston"

    run(test)


def test_a_sink_that_fails_loses_its_connection_and_the_operator_hears(run):
    async def test(upstream, engine, url):
        told = []
        upstream.loop.set_exception_handler(lambda _, context: told.append(repr(context["exception"])))
        sink, _, writer = await seated(upstream, engine, url)

        def fail():
            raise KeyError("no such ticket")

        sink.on_data = fail
        writer.write(chunk(b"more"))
        assert await sink.ended is End.CUT
        assert told == ["KeyError('no such ticket')"]
        assert (upstream.turns.seated, upstream.idle_connections) == (0, 0)

    run(test)


def test_what_is_no_stream_or_over_is_not_read_in_turns(run):
    async def test(upstream, engine, url):
        sink = Sink()
        exchange = upstream.send(url, GET, sink)
        exchange.flows()
        writer = await engine.answers()
        exchange.flows()
        writer.write(b"5\r\nfir")
        await asyncio.sleep(0.01)
        exchange.flows()
        assert upstream.turns.seated == 0
        writer.write(b"st\r\n" + LAST)
        assert await sink.ended is End.COMPLETE
        exchange.flows()
        assert upstream.turns.seated == 0

    run(test)


def test_the_gateway_reads_in_turns_where_c_does(run):
    async def test(upstream, engine, url):
        own = HttpUpstream()
        sink = Sink()
        exchange = own.send(url, GET, sink)
        writer = await engine.answers()
        writer.write(chunk(b"first"))
        await sink.has(b"first")
        exchange.flows()
        assert own.turns.seated == int(POLLS)
        await own.close()
        assert await sink.ended is End.ABORTED
        assert own.turns.seated == 0

    run(test)
