"""The engine client in the virtual world: ends, framing, reuse, abort."""

import asyncio

import pytest

from forebay.adapters.upstream import HttpUpstream
from forebay.adapters.upstream.heads import HEAD_BYTES_MAX
from forebay.ports import End, FetchFailed, fetch, get_request
from forebay.testing.fake_engine import FakeEngine
from forebay.testing.loop import CallbackErrors, network, run

GET = b"GET / HTTP/1.1\r\nhost: e\r\n\r\n"


class Sink:
    """Remembers the calls."""

    answer = None

    def __init__(self):
        self.heads, self.wire, self.body, self.wholes, self.lasts = [], b"", b"", [], []
        self.ended = asyncio.get_running_loop().create_future()
        self.on_data = None

    def head(self, head):
        assert not self.ended.done()
        self.heads.append(head)

    def data(self, wire, body, whole, last):
        assert self.heads
        assert not self.ended.done()
        self.wire += wire
        self.body += body
        self.wholes.append(whole)
        self.lasts.append(last)
        if self.on_data:
            self.on_data()

    def end(self, end, detail):
        self.ended.set_result((end, detail))

    async def outcome(self):
        return (await self.ended)[0]


def with_engine(test, script, seed=None, **options):
    async def main():
        upstream = HttpUpstream(**options)
        engine = FakeEngine(script)
        await engine.start()
        await test(upstream, engine)
        await upstream.close()
        engine.stop()
        await asyncio.sleep(1)
        assert not upstream.live

    run(main, seed)


def says(*pieces, close=False, pause_s=0.01):
    async def script(_, answer):
        for piece in pieces:
            answer.raw(piece)
            await asyncio.sleep(pause_s)
        if close:
            answer.close()

    return script


def answered(*pieces, close=False, request=GET):
    """The sink after one exchange with an engine that says these bytes."""
    sinks = []

    async def test(upstream, engine):
        sink = Sink()
        upstream.send(engine.url, request, sink)
        sinks.append((sink, await sink.outcome(), upstream.idle_connections))

    with_engine(test, says(*pieces, close=close))
    return sinks[0]


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"


def test_a_length_ends_the_response_and_the_connection_is_kept():
    sink, end, idle = answered(OK + b"ok")
    assert (end, sink.body, sink.wire, sink.lasts, idle) == (End.COMPLETE, b"ok", b"ok", [True], 1)
    assert sink.heads[0].headers == ((b"content-length", b"2"),)
    assert sink.heads[0].content_length == 2


def test_the_head_may_come_byte_by_byte():
    sink, end, _ = answered(*[bytes([byte]) for byte in OK], b"o", b"k")
    assert (end, sink.body, sink.lasts) == (End.COMPLETE, b"ok", [False, True])


def test_chunks_are_handed_on_as_they_came_and_decoded():
    wire = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    sink, end, idle = answered(wire, b"5\r\nhello\r\n", b"3\r\nab", b"c\r\n", b"2\r\nxy\r\n1", b"\r\nz\r\n", b"0\r\n\r\n")
    assert (end, sink.body, idle) == (End.COMPLETE, b"helloabcxyz", 1)
    assert sink.wire == b"5\r\nhello\r\n3\r\nabc\r\n2\r\nxy\r\n1\r\nz\r\n0\r\n\r\n"
    assert sink.wholes == [True, False, True, False, True, True]
    assert sink.lasts == [False] * 5 + [True]
    assert sink.heads[0].chunked


@pytest.mark.parametrize("size", [1, 9, 10, 255, 256, 0xFFF, 0x1000, 70_000])
def test_chunks_of_every_size_pass(size):
    body = b"x" * size
    sink, end, _ = answered(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n", b"%x\r\n%b\r\n" % (size, body), b"0\r\n\r\n"
    )
    assert (end, sink.body, sink.wholes) == (End.COMPLETE, b"a" + body, [True, True, True])


def test_without_a_length_the_close_is_the_end():
    sink, end, idle = answered(b"HTTP/1.1 200 OK\r\n\r\n", b"some", b"thing", close=True)
    assert (end, sink.body, sink.lasts, idle) == (End.COMPLETE, b"something", [False, False, True], 0)


@pytest.mark.parametrize(
    ("head", "request_"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", GET),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", GET),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", GET),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", GET.replace(b"GET", b"HEAD")),
    ],
    ids=["204", "304", "empty", "HEAD"],
)
def test_no_body_is_an_end_too(head, request_):
    sink, end, _ = answered(head, request=request_)
    assert (end, sink.body, sink.lasts) == (End.COMPLETE, b"", [True])


def test_interim_responses_are_swallowed():
    sink, end, _ = answered(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK, b"ok")
    assert (end, sink.body, [head.status for head in sink.heads]) == (End.COMPLETE, b"ok", [200])
    assert sink.heads[0].headers == ((b"content-length", b"2"),)


def test_connection_close_is_obeyed():
    sink, end, idle = answered(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + b"ok")
    assert (end, sink.body, idle) == (End.COMPLETE, b"ok", 0)


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"ok and more",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * HEAD_BYTES_MAX,
    ],
    ids=["not-http", "bad-chunk", "overrun", "upgrade", "endless-head"],
)
def test_what_is_no_answer_is_a_bad_response(wire):
    _, end, idle = answered(wire)
    assert (end, idle) == (End.BAD_RESPONSE, 0)


@pytest.mark.parametrize("pieces", [(), (b"HTTP/1.1 20",), (OK,), (OK, b"o")], ids=["nothing", "head", "no-body", "body"])
def test_a_close_inside_the_response_is_a_cut(pieces):
    _, end, _ = answered(*pieces, close=True)
    assert end is End.CUT


def test_nobody_listens():
    async def test(upstream, engine):
        network().refuse(engine.port)
        sink = Sink()
        upstream.send(engine.url, GET, sink)
        assert await sink.outcome() is End.REFUSED

    with_engine(test, says(OK + b"ok"))


def test_a_name_that_can_be_none_is_no_connection_and_not_waited_for():
    """Its encoding raises UnicodeError, and no OSError: the exchange never ended."""

    async def test():
        upstream, sink = HttpUpstream(), Sink()
        upstream.send("http://engine..example:80", GET, sink)
        async with asyncio.timeout(5):
            assert await sink.outcome() is End.CONNECT_FAILED
        await upstream.close()

    asyncio.run(test())


def test_a_connection_is_used_again_and_ages():
    async def test(upstream, engine):
        for _ in range(5):
            sink = Sink()
            upstream.send(engine.url, GET, sink)
            assert await sink.outcome() is End.COMPLETE
        assert (engine.accepted, upstream.idle_connections) == (1, 1)
        await asyncio.sleep(5)
        assert (len(engine.open), upstream.idle_connections) == (0, 0)

    with_engine(test, says(OK + b"ok"))


def test_idle_connections_are_bounded():
    async def test(upstream, engine):
        sinks = [Sink() for _ in range(10)]
        for sink in sinks:
            upstream.send(engine.url, GET, sink)
        for sink in sinks:
            assert await sink.outcome() is End.COMPLETE
        assert (engine.accepted, upstream.idle_connections) == (10, 3)

    with_engine(test, says(OK + b"ok"), idle_per_origin_max=3)


def test_forget_closes_what_is_idle_and_what_comes_back_later():
    async def test(upstream, engine):
        first, second = Sink(), Sink()
        upstream.send(engine.url, GET, first)
        await first.ended
        upstream.send(engine.url, GET, second)
        upstream.forget(engine.url)
        assert await second.outcome() is End.COMPLETE
        await asyncio.sleep(0.1)
        assert (len(engine.open), upstream.idle_connections) == (0, 0)

    with_engine(test, says(OK + b"ok"))


def test_a_kept_connection_that_closes_before_any_byte_is_stale_and_leaves_no_other():
    async def test(upstream, engine):
        first, other = Sink(), Sink()
        upstream.send(engine.url, GET, first)
        upstream.send(engine.url, GET, other)
        await first.ended
        await other.ended

        async def closes(_, answer):
            answer.close()

        engine.script = closes
        sink = Sink()
        upstream.send(engine.url, GET, sink)
        assert await sink.outcome() is End.STALE
        assert upstream.idle_connections == 0
        again = Sink()
        upstream.send(engine.url, GET, again)
        assert await again.outcome() is End.CUT

    with_engine(test, says(OK + b"ok"))


@pytest.mark.parametrize("when_s", [0.0, 0.00005, 0.005, 0.015, 0.025], ids=str)
def test_abort_ends_once_and_the_engine_notices(when_s):
    async def test(upstream, engine):
        sink = Sink()
        exchange = upstream.send(engine.url, GET, sink)
        if when_s:
            await asyncio.sleep(when_s)
        exchange.abort()
        exchange.abort()
        assert sink.ended.result()[0] is End.ABORTED
        await asyncio.sleep(1)
        assert not engine.open

    with_engine(test, says(OK, b"o", b"", b"", b""))


def test_abort_from_inside_data_stops_the_calls():
    async def test(upstream, engine):
        sink = Sink()
        exchange = upstream.send(engine.url, GET, sink)
        sink.on_data = exchange.abort
        assert await sink.outcome() is End.ABORTED
        assert sink.body == b"o"

    with_engine(test, says(OK + b"o", b"k"))


def test_a_timeout_covers_connect_to_end():
    async def test(upstream, engine):
        sink = Sink()
        upstream.send(engine.url, GET, sink, timeout_s=0.5)
        assert await sink.outcome() is End.TIMEOUT
        assert asyncio.get_running_loop().time() < 0.6

    with_engine(test, says(OK, pause_s=10))


def test_pause_holds_the_engine_back_and_resume_goes_on():
    async def test(upstream, engine):
        sink = Sink()
        exchange = upstream.send(engine.url, GET, sink)
        exchange.pause()
        await asyncio.sleep(1)
        assert sink.heads == []
        exchange.resume()
        await asyncio.sleep(0.001)
        assert sink.body == b"o"
        exchange.pause()
        await asyncio.sleep(1)
        assert sink.body == b"o"
        exchange.resume()
        assert await sink.outcome() is End.COMPLETE

    with_engine(test, says(OK + b"o", b"k", pause_s=1.5))


def test_bytes_on_an_idle_connection_close_it():
    async def test(upstream, engine):
        sink = Sink()
        upstream.send(engine.url, GET, sink)
        await sink.ended
        for transport in engine.open:
            transport.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.sleep(0.1)
        assert upstream.idle_connections == 0

    with_engine(test, says(OK + b"ok"))


def test_close_aborts_what_runs():
    async def test(upstream, engine):
        sinks = [Sink(), Sink()]
        upstream.send(engine.url, GET, sinks[0])
        await asyncio.sleep(0.001)
        upstream.send(engine.url, GET, sinks[1])
        await upstream.close()
        assert [await sink.outcome() for sink in sinks] == [End.ABORTED, End.ABORTED]

    with_engine(test, says(OK))


def test_an_address_that_is_none_is_said_at_once():
    async def test(upstream, _):
        for url in ("10.0.0.1:80", "ftp://a:1", "http://"):
            with pytest.raises(ValueError, match="http://host:port"):
                upstream.send(url, GET, Sink())

    with_engine(test, says())


def test_fetch_collects_and_tries_a_stale_connection_again():
    async def test(upstream, engine):
        assert await fetch(upstream, engine.url, get_request(engine.url, "/metrics"), 100, 1.0) == (200, b"ok")
        assert engine.seen[-1].line == b"GET /metrics HTTP/1.1"

        fine = engine.script

        async def closes_once(_, answer):
            engine.script = fine
            answer.close()

        engine.script = closes_once
        assert await fetch(upstream, engine.url, GET, 100, 1.0) == (200, b"ok")

    with_engine(test, says(OK + b"ok"))


def test_fetch_keeps_the_end_of_what_is_longer_than_was_asked_for():
    async def test(upstream, engine):
        status, body = await fetch(upstream, engine.url, GET, 1000, 1.0, only_end=True)
        assert status == 200
        assert whole.endswith(body)
        assert 1000 <= len(body) <= 2000 + 64 * 1024
        assert await fetch(upstream, engine.url, GET, len(whole), 1.0) == (200, whole)

    whole = b"".join(b"%d " % number for number in range(100_000))
    with_engine(test, says(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(whole), whole)))


def test_fetch_says_how_it_failed():
    async def test(upstream, engine):
        with pytest.raises(FetchFailed) as failed:
            await fetch(upstream, engine.url, GET, 1, 1.0)
        assert failed.value.end is End.BAD_RESPONSE
        network().hold(engine.port)
        with pytest.raises(FetchFailed) as failed:
            await fetch(upstream, engine.url, GET, 100, 0.2)
        assert failed.value.end is End.TIMEOUT

    with_engine(test, says(OK + b"ok"))


def test_fetch_that_is_cancelled_aborts():
    async def test(upstream, engine):
        task = asyncio.ensure_future(fetch(upstream, engine.url, GET, 100, 60.0))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not upstream.live

    with_engine(test, says(pause_s=60))


HEAD = b"HTTP/1.1 200 OK\r\ndate: now\r\n"
LENGTH = HEAD + b"content-length: 4\r\nx-a: b\r\n\r\n"
CHUNKS = HEAD + b"transfer-encoding: chunked\r\n\r\n"
ANSWERS = {
    "whole": [LENGTH + b"body"],
    "empty": [LENGTH.replace(b"4", b"0")],
    "body apart": [LENGTH, b"body"],
    "body in parts": [LENGTH + b"bo", b"dy"],
    "head in parts": [LENGTH[:50], LENGTH[50:] + b"body"],
    "too much": [LENGTH + b"bodyX"],
    "no number": [LENGTH.replace(b"4", b"4x") + b"body"],
    "capitals": [LENGTH.replace(b"content-length", b"Content-Length") + b"body"],
    "both framings": [LENGTH.replace(b"x-a: b", b"transfer-encoding: chunked") + b"4\r\nbody\r\n0\r\n\r\n"],
    "closes": [LENGTH.replace(b"x-a: b", b"connection: close") + b"body"],
    "length inside a value": [LENGTH.replace(b"x-a: b", b"x-a: content-length: 9") + b"body"],
    "chunks at once": [CHUNKS + b"4\r\nbody\r\n2\r\nx\n\r\n0\r\n\r\n"],
    "chunks apart": [CHUNKS, b"4\r\nbody\r\n", b"A\r\n0123456789\r\n1\r\nx\r\n", b"0\r\n\r\n"],
    "end with the last": [CHUNKS + b"4\r\nbody\r\n", b"4\r\nmore\r\n0\r\n\r\n"],
    "nothing in chunks": [CHUNKS + b"0\r\n\r\n"],
    "half a chunk": [CHUNKS + b"4\r\nbody\r\n4\r\nmo", b"re\r\n", b"1\r\ny\r\n", b"0\r\n\r\n"],
    "half a size": [CHUNKS, b"1", b"0\r\n0123456789abcdef\r\n0\r\n\r\n"],
    "half an end": [CHUNKS, b"4\r\nbody\r\n0\r\n", b"\r\n"],
    "leading zeros": [CHUNKS, b"004\r\nbody\r\n0\r\n\r\n"],
    "trailers": [CHUNKS, b"4\r\nbody\r\n0\r\nx-t: 1\r\n\r\n"],
    "extensions": [CHUNKS, b"4;a=b\r\nbody\r\n", b"0\r\n\r\n"],
    "long chunk": [CHUNKS, b"1000\r\n" + b"x" * 0x1000 + b"\r\n4\r\nbody\r\n", b"4\r\nbody\r\n", b"0\r\n\r\n"],
    "wrong size": [CHUNKS, b"4\r\nbody\r\n", b"3\r\nbody\r\n0\r\n\r\n"],
    "bad size": [CHUNKS, b"4\r\nbody\r\n", b"zz\r\nbody\r\n"],
    "after the end": [CHUNKS + b"4\r\nbody\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"],
    "interim first": [b"HTTP/1.1 103 Early\r\n\r\n" + LENGTH + b"body"],
    "no content": [b"HTTP/1.1 204 No\r\ncontent-length: 0\r\n\r\n"],
    "refused": [LENGTH.replace(b"200 OK", b"400 No") + b"body"],
}


@pytest.mark.parametrize("pieces", ANSWERS.values(), ids=ANSWERS.keys())
def test_a_head_known_before_means_what_it_meant(pieces):
    """Asked three times, and the third answer follows others whose heads are alike, on the same connection where it is kept."""

    async def test(upstream, engine):
        records = []
        for _ in range(3):
            sink = Sink()
            upstream.send(engine.url, GET, sink)
            end = await sink.outcome()
            heads = [(head.status, head.headers, head.chunked, head.content_length) for head in sink.heads]
            records.append((end, heads, sink.wire, sink.body, sink.wholes, sink.lasts, upstream.idle_connections))
            for other in (LENGTH.replace(b"4", b"12") + b"another body", CHUNKS + b"2\r\nhi\r\n0\r\n\r\n"):
                script["pieces"] = [other]
                filler = Sink()
                upstream.send(engine.url, GET, filler)
                assert await filler.outcome() is End.COMPLETE
                head = filler.heads[0]
                assert (head.content_length, dict(head.headers).get(b"content-length")) == ((None, None) if head.chunked else (12, b"12"))
            script["pieces"] = pieces
        assert records[1:] == records[:-1]

    script = {"pieces": pieces}

    async def say(_, answer):
        for piece in script["pieces"]:
            answer.raw(piece)
            await asyncio.sleep(0.01)

    with_engine(test, say)


def test_a_whole_answer_is_one_call_to_whoever_takes_such_and_leaves_the_connection_free():
    class Whole(Sink):
        def answer(self, head, body):
            self.taken = (head.status, body, upstreams[0].idle_connections)
            self.ended.set_result((End.COMPLETE, ""))

    upstreams = []

    async def test(upstream, engine):
        upstreams[:] = [upstream]
        for number in range(3):
            sink = Whole()
            exchange = upstream.send(engine.url, GET, sink)
            assert await sink.outcome() is End.COMPLETE
            if number:
                assert sink.taken == (200, b"body", 1)
                assert not sink.heads
                exchange.abort()  # it is over
            else:
                assert sink.body == b"body"  # its head was new
            assert upstream.idle_connections == 1
        assert engine.accepted == 1

    with_engine(test, says(LENGTH + b"body"))


def test_a_sink_that_aborts_at_a_known_head_gets_no_data():
    async def test(upstream, engine):
        for number in range(3):
            sink = Sink()
            exchange = upstream.send(engine.url, GET, sink)
            if number:
                sink.heads = Abort(exchange)
            assert await sink.outcome() is (End.ABORTED if number else End.COMPLETE)
            assert sink.body == (b"" if number else b"body")

    class Abort(list):
        def __init__(self, exchange):
            self.exchange = exchange

        def append(self, head):
            self.exchange.abort()

    for answer in (LENGTH + b"body", CHUNKS + b"4\r\nbody\r\n0\r\n\r\n"):
        with_engine(test, says(answer))


@pytest.mark.parametrize("head", [LENGTH, CHUNKS], ids=["length", "chunks"])
def test_a_known_head_of_a_head_request_has_no_body(head):
    async def test(upstream, engine):
        for number in range(4):
            script["answer"] = head if number % 2 else {LENGTH: LENGTH + b"body", CHUNKS: CHUNKS + b"2\r\nhi\r\n0\r\n\r\n"}[head]
            sink = Sink()
            upstream.send(engine.url, b"HEAD / HTTP/1.1\r\nhost: e\r\n\r\n" if number % 2 else GET, sink, timeout_s=5.0)
            assert await sink.outcome() is End.COMPLETE
            assert bool(sink.body) is not bool(number % 2)

    script = {}

    async def say(_, answer):
        answer.raw(script["answer"])

    with_engine(test, say)


class Body:
    """The rest of a request."""

    def __init__(self):
        self.calls = []

    def wanted(self):
        self.calls.append("wanted")

    def unwanted(self):
        self.calls.append("unwanted")


def test_a_body_that_comes_later_goes_over_a_connection_of_its_own_at_the_engines_pace():
    async def test(upstream, engine):
        sink = Sink()
        upstream.send(engine.url, GET, sink)
        await sink.outcome()
        body, sink = Body(), Sink()
        exchange = upstream.send(engine.url, b"POST / HTTP/1.1\r\ncontent-length: 300000\r\n\r\n", sink, more=body)
        await asyncio.sleep(0.1)
        assert (body.calls, engine.accepted) == (["wanted"], 2)
        next(iter(engine.open))  # both connections are open
        for transport in engine.open:
            transport.pause_reading()
        exchange.write(b"x" * 200_000)
        await asyncio.sleep(0.1)
        assert body.calls == ["wanted", "unwanted"]
        for transport in engine.open:
            transport.resume_reading()
        await asyncio.sleep(0.1)
        assert body.calls == ["wanted", "unwanted", "wanted"]
        exchange.write(b"x" * 100_000)
        exchange.written()
        assert await sink.outcome() is End.COMPLETE
        assert engine.seen[-1].body == b"x" * 300_000
        assert upstream.idle_connections == 2

    with_engine(test, says(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"))


def test_a_connection_whose_request_was_answered_before_its_end_is_not_kept():
    async def test(upstream, engine):
        sink, body = Sink(), Body()
        upstream.send(engine.url, b"POST / HTTP/1.1\r\ncontent-length: 0\r\nx-more: to come\r\n\r\n", sink, more=body)
        assert await sink.outcome() is End.COMPLETE
        assert upstream.idle_connections == 0

    with_engine(test, says(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"))


def test_whole_chunks_are_offered_first_to_what_the_sink_named():
    """…and to nobody else while they are taken; what isn't whole chunks goes to the sink again, and so does the end."""
    taken = []

    class Choosing(Sink):
        def data(self, wire, body, whole, last):
            super().data(wire, body, whole, last)
            return lambda read: read.startswith(b"2\r\nb") and not taken.append(read)

    async def test(upstream, engine):
        sink = Choosing()
        upstream.send(engine.url, GET, sink)
        assert await sink.outcome() == End.COMPLETE
        assert taken == [b"2\r\nb1\r\n", b"2\r\nb2\r\n", b"2\r\nb3\r\n"]
        assert sink.body == b"anohalfno"
        assert upstream.idle_connections == 1

    pieces = [b"1\r\na\r\n", b"2\r\nb1\r\n", b"2\r\nno\r\n", b"2\r\nb2\r\n", b"4\r\nha", b"lf\r\n", b"2\r\nb3\r\n", b"2\r\nno\r\n0\r\n\r\n"]
    with_engine(test, says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *pieces))


def test_a_body_beside_its_head_is_sent_after_it():
    async def test(upstream, engine):
        sink = Sink()
        upstream.send(engine.url, b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 300000\r\n\r\n", sink, body=b"x" * 300_000)
        assert await sink.outcome() == End.COMPLETE
        assert sink.body == b"300000"

    async def script(request, answer):
        answer.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n%d" % len(request.body))

    with_engine(test, script)


def test_who_fails_at_a_whole_answer_hears_that_the_exchange_is_over():
    """It was told nothing any more, and waited for ever: a connection that has been let go of tells nobody that it ends."""

    class Fails(Sink):
        def answer(self, head, body):
            raise KeyError(body)

    ends = []

    async def test(upstream, engine):
        for _ in range(2):
            sink = Fails()
            upstream.send(engine.url, GET, sink)
            ends.append(await sink.outcome())

    with pytest.raises(CallbackErrors, match="1, the first"):
        with_engine(test, says(LENGTH + b"body"))
    assert ends == [End.COMPLETE, End.CUT]


@pytest.mark.parametrize("method", [b"GET", b"POST", b"HEAD"])
def test_an_engine_that_asks_for_a_key_is_shown_it_and_the_others_are_not(method):
    async def script(seen, answer):
        answer.json(200, {})

    async def main():
        upstream, engines = HttpUpstream(), [FakeEngine(script) for _ in range(2)]
        urls = [await engine.start() for engine in engines]
        request = method + b" / HTTP/1.1\r\nhost: e\r\ncontent-length: 4\r\n\r\nbody"

        async def ask(url, sent=request, **more):
            sink = Sink()
            upstream.send(url, sent, sink, **more)
            await sink.outcome()

        await ask(urls[0])
        upstream.authorize(urls[0], b"sk-one")  # of a connection that is kept, too
        for url in urls:
            await ask(url)
        await ask(urls[0], request[:-4], body=b"more")
        upstream.authorize(urls[0], b"sk-two")
        await ask(urls[0])
        upstream.authorize(urls[0], b"")
        await ask(urls[0])
        shown = [seen.headers.get(b"authorization") for seen in engines[0].seen]
        assert shown == [None, b"Bearer sk-one", b"Bearer sk-one", b"Bearer sk-two", None]
        assert [seen.headers.get(b"authorization") for seen in engines[1].seen] == [None]
        assert {seen.body for seen in engines[0].seen} == {b"body", b"more"}
        assert all(seen.line == method + b" / HTTP/1.1" for seen in engines[0].seen)
        await upstream.close()
        for engine in engines:
            engine.stop()

    run(main)


def test_a_request_with_a_key_of_its_own_keeps_that_and_gets_no_second():
    """A pool may spill to an address that another is attached to."""

    async def script(seen, answer):
        answer.json(200, {})

    async def test(upstream, engine):
        upstream.authorize(engine.url, b"sk-engine")
        for head in (b"", b"authorization: Bearer sk-spill\r\n"):
            sink = Sink()
            body = b"\r\nauthorization: Bearer in-the-body\r\n"
            upstream.send(engine.url, b"POST / HTTP/1.1\r\nhost: e\r\n%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body), sink)
            await sink.outcome()
        assert [seen.headers[b"authorization"] for seen in engine.seen] == [b"Bearer sk-engine", b"Bearer sk-spill"]
        assert all(seen.head.count(b"authorization") == 1 for seen in engine.seen)

    with_engine(test, script)


def test_a_connection_that_ends_before_anything_is_asked_over_it_is_a_cut_one():
    """As of a server that speaks first, so that it is closed: whoever had asked heard of nothing more."""

    class Late:
        """The event loop, whose new connections are handed over when they have ended."""

        def __init__(self):
            self._loop = asyncio.get_running_loop()

        def __getattr__(self, name):
            return getattr(self._loop, name)

        async def create_connection(self, *args, **named):
            transport, protocol = await self._loop.create_connection(*args, **named)
            transport.abort()
            await asyncio.sleep(0.1)
            return transport, protocol

    async def main():
        upstream, engine = HttpUpstream(Late()), FakeEngine(says(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"))
        await engine.start()
        sink = Sink()
        upstream.send(engine.url, GET, sink)
        assert await asyncio.wait_for(sink.outcome(), 5) is End.CUT
        assert not upstream.live
        await upstream.close()
        engine.stop()

    run(main)
