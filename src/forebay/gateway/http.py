"""The client's side of HTTP/1.1: keep-alive, pipelining in order, and a bound on everything a client can make us hold.

While a request is answered the connection goes on reading, since that is how a client that leaves is noticed; what
arrives then waits, bounded. Times are counted in ticks of one coarse timer, so that a request sets none of its own.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable

import httptools

from forebay.gateway import bounds
from forebay.gateway.answers import (
    BAD_HTTP,
    BODIES_FULL,
    HEAD_TOO_LARGE,
    JSON,
    TOO_MANY_CONNECTIONS,
    ErrorReply,
    body_too_large,
    simple_head,
)
from forebay.gateway.heads import HeadFacts, without_upgrade
from forebay.gateway.repeats import SeenHead, seen_head
from forebay.gateway.request import Reply, Request, hold, whole
from forebay.spec.types import Limits


class HttpServer:
    """All connections, their limits, and the timer. ``handle(connection, request)`` answers at once or sets ``connection.reply``."""

    def __init__(self, limits: Limits, handle: "Callable[[ClientConnection, Request], None]") -> None:
        self.limits = limits
        self.request_bytes_max = limits.head_bytes_max + bounds.FRAMING_FACTOR_MAX * limits.body_bytes_max
        """As read: chunk sizes, extensions and trailers cost no more than this."""
        self.handle = handle
        self.connections: set[ClientConnection] = set()
        self.bodies_bytes = 0
        self.tick = 0
        self.closing = False
        """No connection is kept alive any more."""
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError where it can't."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: ClientConnection(self), host, port, backlog=bounds.BACKLOG)
        self._timer = loop.call_later(bounds.TICK_S, self._sweep)
        return int(self._server.sockets[0].getsockname()[1])

    async def start_on(self, listening: socket.socket) -> None:
        """Listen on a socket that is already open: a supervisor's, which outlives this process."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: ClientConnection(self), sock=listening, backlog=bounds.BACKLOG)
        self._timer = loop.call_later(bounds.TICK_S, self._sweep)

    def stop_listening(self) -> None:
        """Accept no more; connections that are open live on."""
        if self._server is not None:
            self._server.close()

    def unsent_bytes(self) -> int:
        """Written, and not yet taken by the clients."""
        return sum(connection.transport.get_write_buffer_size() for connection in self.connections)

    def close(self) -> None:
        """Close everything now."""
        self.stop_listening()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self.connections):
            if connection.request is None:
                connection.transport.close()  # idle: it ends as TCP ends, not with a reset
            else:
                connection.abort()

    def _sweep(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(bounds.TICK_S, self._sweep)
        self.tick += 1
        for connection in list(self.connections):
            connection.sweep(self.tick)


class ClientConnection(asyncio.Protocol):
    """Also the parser's listener: the ``on_…`` methods are llhttp's callbacks."""

    __slots__ = (
        "_advancing",
        "_body",
        "_clogged",
        "_fed_bytes",
        "_headers",
        "_known",
        "_known_headers",
        "_length",
        "_lingering",
        "_parser",
        "_paused",
        "_reading",
        "_ready",
        "_refused",
        "_repeats",
        "_request",
        "_seen",
        "_server",
        "_since",
        "_started",
        "_unread",
        "reply",
        "request",
        "transport",
        "write",
    )

    transport: asyncio.Transport

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._request = Request()  # being read
        self._body: list[bytes | bytearray] = []
        self._headers: list[tuple[bytes, bytes]] = []
        self._length = 0
        # Of the last request, and what they mean. A list of its own: the first head is read into the other one.
        self._known_headers: list[tuple[bytes, bytes]] = []
        self._known = HeadFacts(self._known_headers)
        self._repeats = False  # the headers being read are those
        self._seen: SeenHead | None = None
        self._reading = 0  # 0: between requests, 1: in a head, 2: in a body
        self._fed_bytes = 0  # since the present request began, about
        self._ready: deque[Request] = deque()
        self._unread = b""
        self._paused = False
        self._refused: ErrorReply | None = None  # answered when its turn comes; nothing is parsed after it
        self._lingering = False
        self._advancing = False
        self._clogged = False  # more is written than the client has read
        self._since = server.tick  # of the last progress
        self._started = server.tick  # of the request being read
        self.request: Request | None = None
        """The one being answered."""
        self.reply: Reply | None = None
        """What answers it."""

    # -- life ---------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the client in, unless there are too many."""
        self.transport = transport  # type: ignore[assignment]
        self.write = self.transport.write
        server = self._server
        server.connections.add(self)
        self.transport.set_write_buffer_limits(high=server.limits.client_buffer_bytes_max)
        if len(server.connections) > server.limits.connections_max:
            self._refused = TOO_MANY_CONNECTIONS
            self._advance()

    def connection_lost(self, _: Exception | None) -> None:
        """The client is gone, or we closed."""
        self._server.connections.discard(self)
        reply, self.reply = self.reply, None
        self._lingering = True
        if reply is not None:
            reply.client_gone()
        for request in (self.request, self._request, *self._ready):
            if request is not None:
                self.release(request)
        self.request = None
        self._ready.clear()
        self._body = []  # the parser and this know each other: what is held would wait for the garbage collector

    def abort(self) -> None:
        """Close without a word: an answer that can't be finished must not look finished."""
        self.transport.abort()

    def pause_writing(self) -> None:
        """The client reads slower than we write: nothing further is begun either."""
        self._clogged = True
        if self.reply is not None:
            self.reply.client_slow()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._clogged = False
        if self.reply is not None:
            self.reply.client_ready()
        elif not self._advancing:
            self._advance()

    def sweep(self, tick: int) -> None:
        """Close what has been silent for too long."""
        silent = tick - self._since
        if self._lingering:
            over = silent > (bounds.KEEP_ALIVE_TICKS if self.transport.get_write_buffer_size() else bounds.LINGER_TICKS)
        elif self.request is not None:
            return  # its reply has times of its own
        elif self._reading == 1:
            over = tick - self._started > bounds.HEAD_TICKS
        elif self._reading == 2:
            over = silent > bounds.BODY_SILENT_TICKS or tick - self._started > bounds.BODY_TICKS
        else:
            over = silent > bounds.KEEP_ALIVE_TICKS
        if over:
            self.transport.abort()

    # -- answers ------------------------------------------------------------------------------------------------------

    @property
    def keep_alive(self) -> bool:
        """Whether the connection lives on after the present answer."""
        return self.request is not None and self.request.keep_alive and not self._server.closing

    def answer(self, status: int, content_type: bytes, body: bytes, extra: bytes = b"") -> None:
        """Answer the present request, whole."""
        keep_alive = self.keep_alive
        said = b"" if self.request is not None and self.request.method == b"HEAD" else body
        self.write(simple_head(status, content_type, len(body), extra, keep_alive) + said)
        self.finish(keep_alive)

    def refuse(self, error: ErrorReply, extra: bytes = b"") -> None:
        """Answer the present request with an error."""
        self.answer(error.status, JSON, error.body(), error.headers() + extra)

    def finish(self, keep_alive: bool) -> None:
        """The present answer has been written to its end; ``keep_alive`` as its head said, and it may not be by now."""
        server = self._server
        request = self.request
        self.reply = self.request = None
        if request is None or server.closing or not request.keep_alive:
            keep_alive = False
        if request is not None and request.held_bytes:
            self.release(request)
        self._since = server.tick
        if not keep_alive:
            self._lingering = True
            self.transport.close()
        elif not self._advancing and (self._ready or self._unread or self._refused or self._paused):
            self._advance()

    def release(self, request: Request) -> None:
        """Let go of the body: it will not be sent again."""
        request.body = b""
        self._server.bodies_bytes -= request.held_bytes
        request.held_bytes = 0

    def _advance(self) -> None:
        """Answer what is ready, in order; then read on."""
        self._advancing = True
        while self.request is None and not self._lingering and not self._clogged:
            if self._ready:
                self.request = self._ready.popleft()
                self._server.handle(self, self.request)
            elif self._refused is not None:
                self._refuse_and_linger(self._refused)
            elif self._unread:
                unread, self._unread = self._unread, b""
                self._feed(unread)
            else:
                if self._paused:
                    self._paused = False
                    self.transport.resume_reading()
                break
        self._advancing = False

    def _refuse_and_linger(self, error: ErrorReply) -> None:
        """The rest of the request is not read, so the connection can't go on; the client gets time to read the answer."""
        body = error.body()
        self.write(simple_head(error.status, JSON, len(body), error.headers(), keep_alive=False) + body)
        self._lingering = True
        self._since = self._server.tick
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    # -- bytes --------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse, or keep for later while a request is being answered."""
        if self._lingering or self._refused is not None:
            return
        server = self._server
        self._since = server.tick
        if self.request is not None or self._ready or self._clogged:
            self._unread += data
            if len(self._unread) > bounds.PIPELINED_BYTES_MAX and not self._paused:
                self._paused = True
                self.transport.pause_reading()
            return
        if self._seen is not None and not self._reading:
            request = self._seen.again(data, server.limits, server.limits.bodies_bytes_max - server.bodies_bytes)
            if request is not None:
                server.bodies_bytes += request.held_bytes
                self.request = request
                server.handle(self, request)
                return
        fresh = not self._reading
        self._feed(data)
        if self._ready or self._refused is not None:
            if fresh and self._repeats and not self._reading and len(self._ready) == 1 and self._refused is None:
                self._seen = seen_head(data, self._ready[0], server.limits)
            self._advance()

    def _feed(self, data: bytes) -> None:
        self._fed_bytes += len(data)
        if not self._reading:
            data = without_upgrade(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # asked for in a head that came in pieces: it is answered as it stands, and the connection ends after it
        except httptools.HttpParserError:
            self._refuse_later(BAD_HTTP)
        if self._fed_bytes > self._server.limits.head_bytes_max:
            if self._reading == 1:
                self._refuse_later(HEAD_TOO_LARGE)
            elif self._reading == 2 and self._fed_bytes > self._server.request_bytes_max:
                self._refuse_later(body_too_large(self._server.limits.body_bytes_max))

    def _refuse_later(self, error: ErrorReply) -> None:
        if self._refused is None:
            self._refused = error
            self._body = []
            self.release(self._request)

    # -- llhttp's callbacks -------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        self._reading = 1
        self._started = self._server.tick
        self._length = 0
        if self._headers:
            self._headers = []

    def on_url(self, url: bytes) -> None:
        """The target may come in pieces."""
        self._request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep it; the body's length apart, since the rest is mostly what it was the last time."""
        if len(name) == 14 and name.lower() == b"content-length":
            self._length = int(value)
        else:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Judge the head before any of the body is read. What comes as trailers later is in no head, and is dropped."""
        request, parser, headers = self._request, self._parser, self._headers
        self._repeats = headers == self._known_headers
        if not self._repeats:
            self._known_headers, self._known = headers, HeadFacts(headers)
        self._headers = []
        facts = request.facts = self._known
        request.method = parser.get_method()
        request.modern = parser.get_http_version() == "1.1"
        request.keep_alive = parser.should_keep_alive() and not facts.upgrades
        self._reading = 2
        limits = self._server.limits
        if self._fed_bytes > limits.head_bytes_max or len(headers) > bounds.HEADERS_MAX:
            size = len(request.target) + sum(len(name) + len(value) + 4 for name, value in headers)
            if size > limits.head_bytes_max or len(headers) > bounds.HEADERS_MAX:
                self._refuse_later(HEAD_TOO_LARGE)
        if self._length > limits.body_bytes_max:
            self._refuse_later(body_too_large(limits.body_bytes_max))
        elif facts.expects and self._refused is None and self.request is None:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Keep it within the bounds."""
        if self._refused is not None:
            return
        server, request, size = self._server, self._request, len(body)
        hold(self._body, body)
        server.bodies_bytes += size
        request.held_bytes += size
        if request.held_bytes > server.limits.body_bytes_max:
            self._refuse_later(body_too_large(server.limits.body_bytes_max))
        elif server.bodies_bytes > server.limits.bodies_bytes_max:
            self._refuse_later(BODIES_FULL)

    def on_message_complete(self) -> None:
        """The request is whole, and waits for its turn."""
        if self._refused is not None:
            return
        request = self._request
        if self._body:
            request.body = whole(self._body)
            self._body = []
        self._ready.append(request)
        self._request = Request()
        self._reading = 0
        self._fed_bytes = 0
        if len(self._ready) > bounds.PIPELINED_MAX:
            self._refuse_later(BAD_HTTP)
