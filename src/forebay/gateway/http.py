"""The client's side of HTTP/1.1: keep-alive, pipelining in order, and a bound on everything a client can make us hold.

While a request is answered the connection goes on reading, since that is how a client that leaves is noticed; what
arrives then waits, bounded. Times are counted in ticks of one coarse timer, so that a request sets none of its own.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, cast

from forebay.gateway import bounds
from forebay.gateway.answers import JSON, TOO_MANY_CONNECTIONS, ErrorReply, simple_head
from forebay.gateway.dialects import error_body
from forebay.gateway.intake import Intake, as_it_is, no_peek, own_or_none
from forebay.gateway.reader import BETWEEN, BODY, HEAD, RequestReader
from forebay.gateway.repeats import SeenHead, SeenHeads
from forebay.gateway.request import Peek, Reply, Request
from forebay.spec.types import Limits


class HttpServer(Intake):
    """All connections, their limits, and the timer. ``handle(connection, request)`` answers at once or sets ``connection.reply``.

    ``peek``: how to look into a body over the limit; what is found then is for ``handle_large``. ``tls``: connections are encrypted by it.
    ``spread``: a refusal with its ``Retry-After`` jittered. ``request_id(own)``: what a request is called that is refused before it
    was whole; empty: nothing. ``own`` is the client's name for it, where it told one.
    """

    def __init__(
        self,
        limits: Limits,
        handle: "Callable[[ClientConnection, Request], None]",
        peek: Callable[[Request], Peek | None] = no_peek,
        handle_large: "Callable[[ClientConnection, Request], None] | None" = None,
        tls: ssl.SSLContext | None = None,
        spread: Callable[[ErrorReply], ErrorReply] = as_it_is,
        request_id: Callable[[bytes], bytes] = own_or_none,
        admits: Callable[[Request], ErrorReply | None] | None = None,
    ) -> None:
        super().__init__(limits, peek, admits)
        self.handle = handle
        self.handle_large = handle_large or handle
        self.spread = spread
        self.request_id = request_id
        self.connections: set[ClientConnection] = set()
        self.tls = tls
        self.heads = SeenHeads()
        self.usual: SeenHead | None = None
        """The head that was last found to come again, on any connection: the first of a new one is mostly that too."""
        self.by_peer = False
        """Only other gateways connect: what they send is counted where it came in."""
        self.closing = False
        """No connection is kept alive any more."""
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError where it can't."""
        listening = await self._listen(host=host, port=port)
        return int(listening.sockets[0].getsockname()[1])

    async def start_on(self, listening: socket.socket) -> None:
        """Listen on a socket that is already open: a supervisor's, which outlives this process."""
        await self._listen(sock=listening)

    async def _listen(self, **where: Any) -> Any:
        """The asyncio server, whose sockets are a tuple, and a list to uvloop."""
        loop = asyncio.get_running_loop()
        shake_s = bounds.HANDSHAKE_S if self.tls is not None else None
        self._server = await loop.create_server(
            self._connection, backlog=bounds.BACKLOG, ssl=self.tls, ssl_handshake_timeout=shake_s, **where
        )
        self._timer = loop.call_later(bounds.TICK_S, self._sweep)
        return self._server

    def _connection(self) -> asyncio.Protocol:
        return cast("asyncio.Protocol", ClientConnection(self))

    def forget_heads(self) -> None:
        """Whose they are may be different from now on."""
        self.heads, self.usual = SeenHeads(), None
        for connection in self.connections:
            connection._seen = None

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
            if connection.request is None or connection._reader.phase != BETWEEN:  # else its reply has times of its own
                connection.sweep(self.tick)


class ClientConnection:
    """One client: what it sends goes to the reader, what the reader finds is handled, one request at a time.

    An `asyncio.Protocol` in all but its base: a class that is compiled has none in Python.
    """

    __slots__ = (
        "_advancing",
        "_clogged",
        "_held_back",
        "_lingering",
        "_paused",
        "_reader",
        "_refused",
        "_seen",
        "_server",
        "_since",
        "_unread",
        "by_peer",
        "reply",
        "request",
        "transport",
        "write",
    )

    transport: asyncio.Transport

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self.by_peer = server.by_peer
        self._reader = RequestReader(server)
        self._seen: SeenHead | None = None
        self._unread = b""
        self._paused = False
        self._held_back = False  # the rest of a large body is not wanted yet
        self._refused: ErrorReply | None = None  # answered when its turn comes; nothing is read after it
        self._lingering = False
        self._advancing = False
        self._clogged = False  # more is written than the client has read
        self._since = server.tick  # of the last progress
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
        if len(server.connections) > server.clients_most():
            self._refused = TOO_MANY_CONNECTIONS
            self._advance()

    def connection_lost(self, _: Exception | None) -> None:
        """The client is gone, or we closed."""
        self._server.connections.discard(self)
        reply, self.reply = self.reply, None
        self._lingering = True
        if reply is not None:
            reply.client_gone()
        self._reader.close()
        if self.request is not None:
            self.release(self.request)
        self.request = None
        self._unread = b""

    def eof_received(self) -> None:
        """The client says no more: the transport closes."""

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
        reader = self._reader
        if self._lingering:
            unsent = self.transport.get_write_buffer_size()
            over = silent > (bounds.KEEP_ALIVE_TICKS if unsent else bounds.LINGER_TICKS)
            drained = tick - reader.started > (bounds.KEEP_ALIVE_TICKS if unsent else bounds.DRAIN_TICKS)
            over = over or (drained and reader.phase == BODY)
        elif self._held_back or (self.request is not None and reader.phase == BETWEEN):
            return  # its reply has times of its own
        elif reader.phase == BETWEEN:
            over = silent > bounds.KEEP_ALIVE_TICKS
        elif reader.phase == HEAD:
            over = tick - reader.started > bounds.HEAD_TICKS
        else:
            over = silent > bounds.BODY_SILENT_TICKS or reader.dawdles(tick)
        if over:
            self.transport.abort()

    def lendable(self) -> asyncio.Transport | None:
        """Its transport, where all that was written is sent, and nothing but the present request has come; None: not now."""
        transport = self.transport
        idle = self._reader.phase == BETWEEN and self._reader.whole is None and not (self._unread or self._refused)
        if not idle or self._clogged or self._paused or self._lingering or self._server.tls is not None:
            return None
        return None if transport.is_closing() or transport.get_write_buffer_size() else transport

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
        """Answer the present request with an error. One without a reply is no pool's yet."""
        if self.reply is None:
            self._server.turns_away(error)
        target = b"" if self.request is None else self.request.target
        self.answer(error.status, JSON, error_body(error, target), error.headers() + extra)

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
            if self._reader.phase == BETWEEN:
                self.transport.close()
            else:
                self._close_with_grace()  # in the middle of a body
        elif not self._advancing and (self._unread or self._refused or self._paused):
            self._advance()

    def release(self, request: Request) -> None:
        """Let go of the body: it will not be sent again."""
        request.body = b""
        self._server.let_go(request)

    def hold_back(self, hold: bool) -> None:
        """Read no more of the present request's body, or read again."""
        if hold != self._held_back and not self._lingering:
            self._held_back = hold
            self._since = self._server.tick
            if hold:
                self.transport.pause_reading()
            else:
                self._paused = False
                self._reader.goes_on(self._since)
                self.transport.resume_reading()
                if self._unread:
                    self._take_unread()

    def _advance(self) -> None:
        """Handle what is whole, in order; then read on."""
        self._advancing = True
        reader = self._reader
        while self.request is None and not self._lingering and not self._clogged:
            if reader.whole is not None:
                request = self.request = reader.whole
                reader.whole = None
                if request.refusal is not None:
                    self.refuse(request.refusal, self._named(request.facts.request_id))
                    continue
                handle = self._server.handle if type(request) is Request else self._server.handle_large
                handle(self, request)
            elif self._refused is not None:
                self._refuse_and_linger(self._refused)
            elif self._unread:
                self._take_unread()
            else:
                if self._paused:
                    self._paused = False
                    self.transport.resume_reading()
                break
        self._advancing = False

    def _take_unread(self) -> None:
        unread, self._unread = self._unread, b""
        self._feed(unread)

    def _refuse_and_linger(self, error: ErrorReply) -> None:
        """The rest of the request is not read, so the connection can't go on; the client gets time to read the answer."""
        if self.reply is None:
            self._server.turns_away(error)
        error = self._server.spread(error)
        reader = self._reader
        body = error_body(error, reader.target)
        extra = error.headers() + self._named(reader.facts.request_id if reader.facts is not None else b"")
        self.write(simple_head(error.status, JSON, len(body), extra, keep_alive=False) + body)
        self._lingering = True
        self._close_with_grace()

    def _named(self, own: bytes) -> bytes:
        request_id = self._server.request_id(own)
        return b"x-request-id: %b\r\n" % request_id if request_id else b""

    def _close_with_grace(self) -> None:
        """Say that no more comes, and go on reading for a while: closed at once, the client might never see what was written."""
        reader = self._reader
        self._since = reader.started = self._server.tick
        if self._held_back:
            self._held_back = False
            self.transport.resume_reading()
        if self._server.crowded(len(self._server.connections)):
            self.transport.close()
        elif self.transport.can_write_eof():
            self.transport.write_eof()
        elif reader.phase != BODY:  # TLS can't say so, and the client has been told that the connection ends
            self.transport.close()

    # -- bytes --------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Hand to the reader, or keep for later while a request is being answered."""
        server = self._server
        reader = self._reader
        if self._lingering or self._refused is not None:
            if reader.phase == BODY:
                self._since = server.tick
            return
        self._since = server.tick
        if self.request is not None or self._clogged:
            if reader.phase and not self._held_back and not self._unread:  # the rest of a large body, on its way through
                self._feed(data)
                return
            self._unread += data
            if len(self._unread) > bounds.PIPELINED_BYTES_MAX and not self._paused:
                self._paused = True
                self.transport.pause_reading()
            return
        fresh = not reader.phase
        seen = self._seen or server.usual
        if fresh and seen is not None:
            request = seen.again(data, server.limits, server.limits.bodies_bytes_max - server.bodies_bytes)
            if request is not None:
                self._seen = seen
                server.bodies_bytes += request.held_bytes
                self.request = request
                server.handle(self, request)
                return
        self._feed(data)
        whole = reader.whole
        if whole is not None or reader.refused is not None:  # `self._refused` is None to a type checker here, and so to C
            if fresh and whole is not None and reader.repeats and not reader.phase and not self._unread:
                self._seen = server.usual = server.heads.of(data, whole, server.limits)
            self._advance()

    def _feed(self, data: bytes) -> None:
        reader = self._reader
        self._unread = reader.feed(data)
        if reader.refused is not None:
            self._refused = reader.refused
        elif reader.waits_for_leave:
            reader.waits_for_leave = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
