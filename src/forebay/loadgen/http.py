"""A lean HTTP/1.1 client: one Protocol per connection, one exchange at a time on it, no task and no queue per chunk.

Connections are opened when none is idle, up to a bound; beyond it exchanges wait in order, which the caller sees as
lateness. The parser appends body pieces straight to a list, so a read costs one callback into this code.
"""

import asyncio
import ssl
from collections import deque
from enum import StrEnum
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools
import msgspec

from forebay.domain.errors import BadInput

WAITING_MAX = 100_000
"""Exchanges that may wait for a connection; the next one fails at once."""


class Outcome(StrEnum):
    """How an exchange ended, as far as HTTP goes."""

    COMPLETE = "complete"
    CONNECT_FAILED = "connect_failed"
    NO_RESPONSE = "no_response"
    """The connection ended before the response's head was complete."""
    CUT = "cut"
    """… and inside its body."""
    BAD_RESPONSE = "bad_response"
    TIMEOUT = "timeout"
    FULL = "generator_full"
    """More than ``WAITING_MAX`` exchanges wait for a connection."""
    STOPPED = "stopped"
    """The run was ended."""


class Exchange(Protocol):
    """One request and what is to be told of its response. ``end`` is called once, and last."""

    request: bytes
    done: bool
    """Set by ``Client`` when it calls ``end``, and by whoever gives the exchange up."""
    connection: "Connection | None"

    def sent(self) -> None:
        """A connection was free (or begins to be opened) and the request goes out; called again if it goes out twice."""
        ...

    def head(self, status: int, headers: list[tuple[bytes, bytes]], /) -> None:
        """The response's head; names in lower case."""
        ...

    def body(self, body: bytes) -> None:
        """Decoded bytes of the body, as read."""
        ...

    def end(self, outcome: Outcome, detail: str) -> None:
        """Over."""
        ...


class Target(msgspec.Struct, frozen=True):
    """Where requests go: ``prefix`` is the path before ``/chat/completions``, usually ``/v1``."""

    host: str
    port: int
    tls: bool
    prefix: str

    @property
    def authority(self) -> str:
        """For the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def parse_target(url: str) -> Target:
    """The target in ``url`` (with or without ``/v1`` at its end); raises BadInput."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadInput(f"target {url!r}: {error}") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or any(character <= " " for character in url):
        raise BadInput(f"target {url!r}; allowed: http://HOST:PORT or https://HOST, such as http://127.0.0.1:8080")
    path = parts.path.rstrip("/")
    tls = parts.scheme == "https"
    return Target(parts.hostname, port or (443 if tls else 80), tls, path if path.endswith("/v1") else path + "/v1")


class Connection(asyncio.Protocol):
    """One connection; it belongs to ``client`` and serves one exchange at a time."""

    __slots__ = (
        "_begun",
        "_chunked",
        "_client",
        "_complete",
        "_exchange",
        "_headers",
        "_keep",
        "_length",
        "_parser",
        "_status",
        "_used",
        "on_body",
        "pieces",
        "transport",
    )

    def __init__(self, client: "Client") -> None:
        self._client = client
        self.transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._used = False
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append
        self._parser = httptools.HttpResponseParser(self)
        self._reset()

    def _reset(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._status = 0
        self._chunked = False
        self._length = False
        self._begun = False
        self._complete = False
        self._keep = False

    def start(self, exchange: Exchange) -> None:
        """Send ``exchange``'s request."""
        assert self.transport is not None
        self._reset()
        self._exchange = exchange
        exchange.connection = self
        self.transport.write(exchange.request)

    def abort(self, outcome: Outcome, detail: str) -> None:
        """End the exchange and close, so that the server notices."""
        if self.transport is not None:
            self.transport.abort()
        self._finish(outcome, detail, reusable=False)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.abort(Outcome.BAD_RESPONSE, str(error))
            return
        pieces = self.pieces
        if pieces:
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            exchange.body(body)
        if self._complete:
            self._finish(Outcome.COMPLETE, "", reusable=self._keep)

    def on_message_begin(self) -> None:
        self._begun = True
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        lowered = name.lower()
        self._headers.append((lowered, value))
        if lowered == b"content-length":
            self._length = True
        elif lowered == b"transfer-encoding":
            self._chunked = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        self._status = status
        if self._exchange is not None:
            self._exchange.head(status, self._headers)

    def on_message_complete(self) -> None:
        if self._status:
            self._complete = True
            self._keep = self._parser.should_keep_alive()

    def connection_lost(self, error: Exception | None) -> None:
        exchange = self._exchange
        self.transport = None
        if exchange is None:
            self._client.closed(self)
            return
        detail = str(error or "the connection was closed")
        if self._status and not self._chunked and not self._length and error is None:
            self._finish(Outcome.COMPLETE, "", reusable=False)
        elif self._status:
            self._finish(Outcome.CUT, detail, reusable=False)
        elif self._used and not self._begun:
            self._exchange = None
            self._client.closed(self)
            self._client.resend(exchange)
        else:
            self._finish(Outcome.NO_RESPONSE, detail, reusable=False)

    def close(self) -> None:
        """Close politely; nothing is under way."""
        if self.transport is not None:
            self.transport.close()

    def _finish(self, outcome: Outcome, detail: str, *, reusable: bool) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        exchange.connection = None
        self._used = True
        transport = self.transport
        if reusable and transport is not None and not transport.is_closing():
            self._client.free(self)
        else:
            self.close()
            self._client.closed(self)
        _end(exchange, outcome, detail)


def _end(exchange: Exchange, outcome: Outcome, detail: str) -> None:
    if not exchange.done:
        exchange.done = True
        exchange.end(outcome, detail)


class Client:
    """Connections to one target."""

    def __init__(self, target: Target, connections_max: int) -> None:
        self._target = target
        self._connections_max = connections_max
        self._loop = asyncio.get_running_loop()
        self._tls = ssl.create_default_context() if target.tls else None
        self._idle: dict[Connection, None] = {}
        self._open: set[Connection] = set()
        self._connecting: dict[asyncio.Task[None], Exchange] = {}
        self._waiting: deque[Exchange] = deque()
        self._closed = False
        self.opened_total = 0
        self.resent_total = 0
        """Requests sent again since a kept-alive connection turned out to be closed."""
        self.bound_total = 0
        """Exchanges that had to wait for a connection."""

    def send(self, exchange: Exchange) -> None:
        """Send on an idle connection, on a new one, or when one becomes free."""
        if self._closed:
            _end(exchange, Outcome.STOPPED, "")
        elif self._idle:
            connection, _ = self._idle.popitem()
            exchange.sent()
            connection.start(exchange)
        elif len(self._open) + len(self._connecting) < self._connections_max:
            self._connect_for(exchange)
        elif len(self._waiting) < WAITING_MAX:
            self.bound_total += 1
            self._waiting.append(exchange)
        else:
            _end(exchange, Outcome.FULL, f"{WAITING_MAX} requests wait for one of {self._connections_max} connections")

    def resend(self, exchange: Exchange) -> None:
        """Send again on a connection of its own: the kept-alive one was closed before any byte of a response."""
        self.resent_total += 1
        exchange.connection = None
        if self._closed:
            _end(exchange, Outcome.STOPPED, "")
        elif not exchange.done:
            self._connect_for(exchange)

    def _connect_for(self, exchange: Exchange) -> None:
        exchange.sent()
        task = self._loop.create_task(self._connect(exchange))
        self._connecting[task] = exchange

    async def _connect(self, exchange: Exchange) -> None:
        target = self._target
        task = cast("asyncio.Task[None]", asyncio.current_task())
        try:
            transport, connection = await self._loop.create_connection(lambda: Connection(self), target.host, target.port, ssl=self._tls)
        except OSError as error:
            self._connecting.pop(task, None)
            _end(exchange, Outcome.CONNECT_FAILED, str(error))
            self._next()
            return
        self._connecting.pop(task, None)
        connection.transport = transport
        self.opened_total += 1
        self._open.add(connection)
        if exchange.done:
            self.free(connection)
        else:
            connection.start(exchange)

    def free(self, connection: Connection) -> None:
        """``connection`` can take the next exchange."""
        while self._waiting:
            exchange = self._waiting.popleft()
            if not exchange.done:
                exchange.sent()
                connection.start(exchange)
                return
        self._idle[connection] = None

    def closed(self, connection: Connection) -> None:
        """``connection`` is gone; idempotent."""
        self._idle.pop(connection, None)
        self._open.discard(connection)
        self._next()

    def _next(self) -> None:
        while self._waiting and not self._closed and len(self._open) + len(self._connecting) < self._connections_max:
            exchange = self._waiting.popleft()
            if not exchange.done:
                self._connect_for(exchange)

    async def close(self) -> None:
        """End what runs (``STOPPED``) and close every connection."""
        self._closed = True
        for exchange in self._waiting:
            _end(exchange, Outcome.STOPPED, "")
        self._waiting.clear()
        for connection in list(self._open):
            connection.abort(Outcome.STOPPED, "")
        connecting = dict(self._connecting)
        for task, exchange in connecting.items():
            task.cancel()
            _end(exchange, Outcome.STOPPED, "")
        await asyncio.gather(*connecting, return_exceptions=True)
        self._connecting.clear()
        self._idle.clear()
        self._open.clear()
