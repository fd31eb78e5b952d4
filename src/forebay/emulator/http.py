"""One HTTP/1.1 server connection as an asyncio Protocol: requests in order, one answer at a time, nothing per chunk.

It answers by callback and never awaits, so a streamed chunk costs one ``write``. Pipelined requests wait behind the
one being answered, in a bounded line: past the bound the connection is not read, and the client's own buffers fill.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol, cast

import httptools

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 64 * 2**20
"""What a gateway lets through by default; uvicorn, on which vLLM runs, has no bound."""
PIPELINED_MAX = 32
"""Whole requests that may wait on one connection before it is no longer read (one read may overshoot it)."""

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\nserver: uvicorn\r\n".encode() for status in HTTPStatus}
JSON = b"application/json"


class Request:
    """One request, complete. Header names are in lower case; of repeated headers the last counts."""

    __slots__ = ("body", "headers", "keep_alive", "method", "path", "version")

    def __init__(self, method: str, path: str, headers: dict[bytes, bytes], version: str, keep_alive: bool) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.version = version
        self.keep_alive = keep_alive
        self.body = b""


class Service(Protocol):
    """What a connection needs of the engine behind it."""

    def handle(self, exchange: "Exchange") -> None:
        """Answer ``exchange``, now or later."""
        ...

    def opened(self, connection: "Connection") -> bool:
        """A client connected; False turns it away."""
        ...

    def closed(self, connection: "Connection") -> None:
        """It is gone."""
        ...

    def idle(self, connection: "Connection", is_idle: bool) -> None:
        """The connection has nothing to answer (or has something again)."""
        ...


class Exchange:
    """One request and its answer. After ``closed`` or the end of the answer, writes are ignored."""

    __slots__ = ("_connection", "chunked", "done", "on_closed", "on_done", "on_writable", "request", "status")

    def __init__(self, connection: "Connection", request: Request) -> None:
        self._connection = connection
        self.request = request
        self.chunked = request.version != "1.0"
        """Whether a stream must be framed; HTTP/1.0 ends it by closing."""
        self.status = 0
        self.done = False
        self.on_closed: Callable[[], None] | None = None
        """Called once if the client leaves before the answer's end."""
        self.on_writable: Callable[[], None] | None = None
        """Called when the client reads again after ``writable`` was False."""
        self.on_done: Callable[[int, int], None] | None = None
        """Called once at the end with (status, content length; 0 for a stream)."""

    @property
    def writable(self) -> bool:
        """False while the client reads slower than we write."""
        return self._connection.writable

    def respond(self, status: int, body: bytes = b"", content_type: bytes | None = JSON, headers: bytes = b"") -> None:
        """A whole answer; ``headers`` are further complete lines."""
        if self.done:
            return
        self.status = status
        kind = b"content-type: " + content_type + b"\r\n" if content_type is not None else b""
        close = b"" if self.request.keep_alive else b"connection: close\r\n"
        head = b"%bcontent-length: %d\r\n%b%b%b\r\n" % (_STATUS_LINES[status], len(body), kind, close, headers)
        self._connection.write(head if self.request.method == "HEAD" else head + body)
        self._finish(len(body))

    def begin_stream(self, content_type: bytes) -> None:
        """Status 200 and the head of a stream; raw writes follow, framed by the caller where ``chunked``."""
        self.status = 200
        framing = b"transfer-encoding: chunked\r\n" if self.chunked else b""
        close = b"" if self.request.keep_alive else b"connection: close\r\n"
        self._connection.write(_STATUS_LINES[200] + b"content-type: " + content_type + b"\r\n" + framing + close + b"\r\n")

    def write(self, data: bytes) -> None:
        """Bytes of the stream, framing included."""
        if not self.done:
            self._connection.write(data)

    def end_stream(self, data: bytes) -> None:
        """The last bytes of the stream, without the terminal chunk."""
        if self.done:
            return
        self._connection.write(data + b"0\r\n\r\n" if self.chunked else data)
        self._finish(0)

    def cut(self) -> None:
        """End the connection without an answer's end, as a crash does."""
        self._connection.abort()

    def client_left(self) -> None:
        """Called by the connection when it is lost under this exchange."""
        if self.done:
            return
        self.done = True
        if self.on_closed is not None:
            self.on_closed()
        self._release()

    def _finish(self, content_length: int) -> None:
        self.done = True
        if self.on_done is not None:
            self.on_done(self.status, content_length)
        keep = self.request.keep_alive and self.chunked
        self._release()
        self._connection.answered(keep)

    def _release(self) -> None:
        self.on_closed = self.on_writable = self.on_done = None


class Connection(asyncio.Protocol):
    """The protocol object of one client connection."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Exchange] = deque()
        self._current: Exchange | None = None
        self._reading = True
        self._last_request = False
        self.writable = True
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._request: Request | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0

    # The transport's calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is here."""
        self._transport = cast("asyncio.Transport", transport)
        if self._service.opened(self):
            self._service.idle(self, True)
        else:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Feed the parser; what it finds comes back as the ``on_…`` calls below."""
        if self._last_request:
            return
        try:
            self._parser.feed_data(data)
        except _TooLarge as error:
            self._refuse(error.status)
        except httptools.HttpParserUpgrade:
            self._last_request = True
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause.status if isinstance(cause, _TooLarge) else 400)

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self.writable = False

    def resume_writing(self) -> None:
        """It has caught up."""
        self.writable = True
        if self._current is not None and self._current.on_writable is not None:
            self._current.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever is being answered, at once."""
        del exc
        self._transport = None
        current, self._current = self._current, None
        self._waiting.clear()
        if current is not None:
            current.client_left()
        self._service.closed(self)

    # The parser's calls.

    def on_url(self, url: bytes) -> None:
        """A piece of the request's target."""
        self._count_head(len(url))
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._count_head(len(name) + len(value))
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head is whole; a client that waits for leave to send the body gets it."""
        parser = self._parser
        path = self._url.partition(b"?")[0].decode("latin-1")
        method = parser.get_method().decode("latin-1")
        self._request = Request(method, path, self._headers, parser.get_http_version(), parser.should_keep_alive())
        if self._headers.get(b"expect", b"").lower() == b"100-continue" and self._current is None:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """A piece of the body, whatever its framing."""
        self._body_bytes += len(body)
        if self._body_bytes > BODY_BYTES_MAX:
            raise _TooLarge(413)
        self._body.append(body)

    def on_message_complete(self) -> None:
        """A request is whole: answer it, or let it wait its turn."""
        request = self._request
        assert request is not None
        request.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._begin()
        self._take(Exchange(self, request))

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES_MAX:
            raise _TooLarge(431)

    # Answers.

    def _take(self, exchange: Exchange) -> None:
        if self._current is None and not self._waiting:
            self._start(exchange)
            return
        self._waiting.append(exchange)
        if len(self._waiting) >= PIPELINED_MAX and self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()

    def _start(self, exchange: Exchange) -> None:
        self._current = exchange
        self._service.idle(self, False)
        self._service.handle(exchange)

    def answered(self, keep_alive: bool) -> None:
        """Called by the exchange at its end: the next one's turn, or the end of the connection."""
        self._current = None
        if not keep_alive or (self._last_request and not self._waiting):
            self.close()
            return
        if self._waiting:
            # By way of the loop, so that a long line of quick answers doesn't become a deep stack.
            asyncio.get_running_loop().call_soon(self._next)
            return
        self._service.idle(self, True)

    def _next(self) -> None:
        if self._current is not None or not self._waiting or self._transport is None:
            return
        exchange = self._waiting.popleft()
        if not self._reading and len(self._waiting) < PIPELINED_MAX:
            self._reading = True
            self._transport.resume_reading()
        self._start(exchange)

    def write(self, data: bytes) -> None:
        """Send ``data``, if anybody is there."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Flush and close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Drop the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, status: int) -> None:
        self._last_request = True
        if self._current is not None or self._transport is None:
            self.abort()
            return
        body = b"Invalid HTTP request received."
        line = _STATUS_LINES[status] + b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
        self.write(line + b"content-length: %d\r\n\r\n" % len(body) + body)
        self.close()


class _TooLarge(Exception):
    """A bound of this server was passed."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status
