"""One HTTP exchange with one engine, by callback: an async iterator would cost a task switch per chunk.

The sink gets bytes twice over at no cost: ``wire`` as they were read (framing included, to be passed through as they
are) and ``body``, the decoded part of them, to be looked at on the side.
"""

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

import msgspec


class End(StrEnum):
    """How an exchange ended. Only COMPLETE means that the whole response was received."""

    COMPLETE = "complete"
    CONNECT_FAILED = "connect_failed"
    REFUSED = "refused"
    """Nobody listens there: nothing was sent."""
    STALE = "stale"
    """A kept-alive connection was closed by the engine before any byte of the response: safe to send again.

    No other idle connection to that engine is left, so that sending again opens a fresh one."""
    CUT = "cut"
    """The connection ended inside the response."""
    BAD_RESPONSE = "bad_response"
    TIMEOUT = "timeout"
    ABORTED = "aborted"
    """By our own side."""


ASKS_KEY = frozenset({401, 403})
"""Statuses by which an engine says that it asks for a key, and was shown none, or another: that is nothing a client can mend."""


class ResponseHead(msgspec.Struct, frozen=True):
    """Status and headers as received (names in lower case), hop-by-hop ones included."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    chunked: bool
    content_length: int | None
    alike: bytes = b""
    """Equal for heads that differ in nothing but their ``content-length``; empty where that isn't known."""


Taker = Callable[[bytes], bool]
"""Takes a read as it came, if it is one whole chunk like those before it; else False, and nothing was done."""


class ResponseSink(Protocol):
    """Called in this order: head, data*, end; end is called exactly once, and last. Or ``answer`` alone, where it has one.

    ``data`` is looked up once per exchange, after ``head`` was called: a sink may choose there what takes the bytes.
    ``end(COMPLETE)`` always follows a ``data`` call with ``last``, which is empty where the response has no body or
    ended with its connection.
    """

    @property
    def answer(self) -> Callable[[ResponseHead, bytes], None] | None:
        """Takes a whole response that was one read, as a short one mostly is: the exchange is over by then, and nothing else is called,
        but `end` where this raises."""
        ...

    def head(self, head: ResponseHead) -> None:
        """The response's head is complete (1xx are swallowed)."""
        ...

    def data(self, wire: bytes, body: bytes, whole: bool, last: bool) -> Taker | None:
        """Bytes as read after the head, and the decoded body in them.

        ``whole``: ``wire`` ends between two chunks (always true when not chunked). ``last``: it ends the response,
        and with chunked framing its last bytes are the terminal chunk. Returned may be what is asked to take the next
        reads first, as long as they begin and end between two chunks; any other call of ``data`` names it anew.
        """
        ...

    def end(self, end: End, detail: str) -> None:
        """No more calls follow."""
        ...


class BodySource(Protocol):
    """Whoever has the rest of a request's body, and sends it with ``Exchange.write``."""

    def wanted(self) -> None:
        """The engine takes some: send it. Called once when the request so far has been written, and after each ``unwanted``."""
        ...

    def unwanted(self) -> None:
        """It takes no more for now (back-pressure)."""
        ...


class Exchange(Protocol):
    """The sender's handle on a running exchange."""

    def pause(self) -> None:
        """Stop reading from the engine (back-pressure)."""
        ...

    def resume(self) -> None:
        """Read again."""
        ...

    def write(self, data: bytes) -> None:
        """More of a request that was begun with a ``BodySource``, framed as its head says."""
        ...

    def written(self) -> None:
        """All of it has been: only then can the connection be kept."""
        ...

    def lendable(self) -> asyncio.Transport | None:
        """The connection, where all that was read of it ends between two chunks, for somebody else to read on; None: not now."""
        ...

    def reclaimed(self, data: bytes, reclaim: Callable[[asyncio.Transport], None]) -> None:
        """Somebody else has read on and handed whole chunks on; ``data`` came after those. ``reclaim`` reads from the connection again."""
        ...

    def flows(self) -> None:
        """It is a long stream of usual reads: have them in the cheapest way there is. Said again where it is so again."""
        ...

    def abort(self) -> None:
        """Close the connection at once: the engine notices and frees the KV. The sink gets ``end(ABORTED)``; idempotent."""
        ...


class Upstream(Protocol):
    """Sends requests to engines, over connections kept alive per engine within a bound."""

    def send(
        self,
        url: str,
        request: bytes,
        sink: ResponseSink,
        timeout_s: float | None = None,
        more: BodySource | None = None,
        body: bytes = b"",
    ) -> Exchange:
        """Send a whole HTTP/1.1 ``request`` (head and body) to the engine at ``url`` (``http://host:port``).

        ``body``: a large one, that is not copied behind its head; ``request`` is only the head then.
        ``timeout_s`` (real seconds) bounds connect to end; None leaves the time to the caller. ``more``: the request is
        only the beginning of one. It goes over a connection of its own, so that it is never begun on one that has gone stale.
        """
        ...

    def forget(self, url: str) -> None:
        """Close idle connections to ``url``: the replica is leaving."""
        ...

    async def close(self) -> None:
        """Abort what runs and close every connection."""
        ...


class FetchFailed(Exception):
    """A small request to an engine got no whole answer; ``end`` says how (low cardinality)."""

    def __init__(self, end: End, detail: str) -> None:
        super().__init__(f"{end}: {detail}" if detail else str(end))
        self.end = end


class _Collect:
    """Keeps a small response whole."""

    answer = None

    def __init__(self, limit_bytes: int, only_end: bool) -> None:
        self.done: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self.exchange: Exchange | None = None
        self._limit_bytes, self._only_end = limit_bytes, only_end
        self._status = 0
        self._body = bytearray()

    def head(self, head: ResponseHead) -> None:
        self._status = head.status

    def data(self, wire: bytes, body: bytes, whole: bool, last: bool) -> None:
        del wire, whole, last
        self._body += body
        if self._only_end:
            if len(self._body) > 2 * self._limit_bytes:
                del self._body[: -self._limit_bytes]
        elif len(self._body) > self._limit_bytes:
            self._fail(End.BAD_RESPONSE, f"the answer is longer than {self._limit_bytes} bytes")
            if self.exchange is not None:
                self.exchange.abort()

    def end(self, end: End, detail: str) -> None:
        if end is not End.COMPLETE:
            self._fail(end, detail)
        elif not self.done.done():
            self.done.set_result((self._status, bytes(self._body)))

    def _fail(self, end: End, detail: str) -> None:
        if not self.done.done():
            self.done.set_exception(FetchFailed(end, detail))


async def fetch(
    upstream: Upstream, url: str, request: bytes, limit_bytes: int, timeout_s: float, *, only_end: bool = False
) -> tuple[int, bytes]:
    """Status and body of one small exchange (a scrape, a health check); cancelling it aborts the exchange.

    ``timeout_s`` is real seconds. A stale connection is tried again once. Raises FetchFailed. ``only_end``: of a body over the limit
    the end is returned, at least so many bytes; else that is a failure.
    """
    for attempt in (0, 1):
        sink = _Collect(limit_bytes, only_end)
        sink.exchange = upstream.send(url, request, sink, timeout_s)
        try:
            return await sink.done
        except FetchFailed as failed:
            if failed.end is not End.STALE or attempt:
                raise
        except asyncio.CancelledError:
            sink.exchange.abort()
            raise
    raise AssertionError("unreachable")


def get_request(url: str, path: str) -> bytes:
    """The bytes of a plain ``GET path`` to ``url`` (``http://host:port``)."""
    return f"GET {path} HTTP/1.1\r\nhost: {url.partition('//')[2]}\r\naccept: */*\r\n\r\n".encode()
