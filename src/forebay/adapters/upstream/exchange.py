"""One request to an engine under way: what its sender holds of it."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from forebay.ports.upstream import BodySource, End, ResponseSink

if TYPE_CHECKING:
    from forebay.adapters.upstream.client import HttpUpstream, Origin
    from forebay.adapters.upstream.connection import EngineConnection


class HttpExchange:
    """One request under way, from ``send`` to ``end``: while connecting it has a task, then a connection."""

    __slots__ = ("body", "connection", "head_only", "more", "origin", "paused", "request", "sink", "task", "timer", "upstream")

    def __init__(self, upstream: "HttpUpstream", origin: "Origin", request: bytes, sink: ResponseSink, body: bytes) -> None:
        self.upstream = upstream
        self.origin = origin
        self.request = request
        self.body = body
        """What of the request is not in it."""
        self.sink: ResponseSink | None = sink
        self.connection: EngineConnection | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.paused = False
        self.more: BodySource | None = None
        """Whoever has the rest of the request, until all of it is written."""
        self.head_only = request.startswith(b"HEAD ")

    def pause(self) -> None:
        """Stop reading from the engine."""
        if self.connection is not None and not self.paused:
            self.upstream.turns.rise(self.connection, False)
            self.connection.transport.pause_reading()
        self.paused = True

    def resume(self) -> None:
        """Read again."""
        if self.connection is not None and self.paused:
            self.connection.transport.resume_reading()
        self.paused = False

    def write(self, data: bytes) -> None:
        """More of the request."""
        if self.connection is not None:
            self.connection.transport.write(data)

    def written(self) -> None:
        """All of it has been."""
        self.more = None

    def lendable(self) -> asyncio.Transport | None:
        """The connection, for somebody else to read on."""
        connection = self.connection
        if connection is None or self.paused or self.more is not None or self.timer is not None or self.origin.tls is not None:
            return None
        if not connection.between_chunks:
            return None
        self.upstream.turns.rise(connection, True)
        return connection.transport

    def flows(self) -> None:
        """It is a long stream: read it in turns with others."""
        if self.connection is not None and not self.paused:
            self.connection.sit()

    def reclaimed(self, data: bytes, reclaim: Callable[[asyncio.Transport], None]) -> None:
        """Read on from a connection that was lent."""
        if self.connection is not None:
            reclaim(self.connection.transport)
            self.connection.go_on(data)

    def abort(self) -> None:
        """Close the connection at once."""
        self.drop(End.ABORTED, "")

    def expire(self) -> None:
        """The time the sender gave is over."""
        self.drop(End.TIMEOUT, "no whole answer in time")

    def drop(self, end: End, detail: str) -> None:
        """End without a whole response: the connection can't be used again."""
        connection, task = self.connection, self.task
        if self.sink is None:
            return
        if connection is not None:
            connection.detach()
            connection.transport.abort()
        elif task is not None:
            task.cancel()
        self.finish(end, detail)

    def finish(self, end: End, detail: str) -> None:
        """Tell the sink, once."""
        sink = self.sink
        if sink is None:
            return
        self.let_go()
        sink.end(end, detail)

    def let_go(self) -> None:
        """It is over: nothing of it is held, and nobody hears of it any more."""
        self.sink = self.connection = self.task = None
        self.request = self.body = b""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.upstream.live.discard(self)
