"""One HTTP exchange with one engine, by callback: an async iterator would cost a task switch per chunk.

The sink gets bytes twice over at no cost: ``wire`` as they were read (framing included, to be passed through as they
are) and ``body``, the decoded part of them, to be looked at on the side.
"""

from enum import StrEnum
from typing import Protocol

import msgspec


class End(StrEnum):
    """How an exchange ended. Only COMPLETE means that the whole response was received."""

    COMPLETE = "complete"
    CONNECT_FAILED = "connect_failed"
    STALE = "stale"
    """A kept-alive connection was closed by the engine before any byte of the response: safe to send again."""
    CUT = "cut"
    """The connection ended inside the response."""
    BAD_RESPONSE = "bad_response"
    TIMEOUT = "timeout"
    ABORTED = "aborted"
    """By our own side."""


class ResponseHead(msgspec.Struct, frozen=True):
    """Status and headers as received (names in lower case), hop-by-hop ones included."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    chunked: bool
    content_length: int | None


class ResponseSink(Protocol):
    """Called in this order: head, data*, end; end is called exactly once, and last."""

    def head(self, head: ResponseHead) -> None:
        """The response's head is complete (1xx are swallowed)."""
        ...

    def data(self, wire: bytes, body: bytes, whole: bool, last: bool) -> None:
        """Bytes as read after the head, and the decoded body in them.

        ``whole``: ``wire`` ends between two chunks (always true when not chunked). ``last``: it ends the response,
        and with chunked framing its last bytes are the terminal chunk.
        """
        ...

    def end(self, end: End, detail: str) -> None:
        """No more calls follow."""
        ...


class Exchange(Protocol):
    """The sender's handle on a running exchange."""

    def pause(self) -> None:
        """Stop reading from the engine (back-pressure)."""
        ...

    def resume(self) -> None:
        """Read again."""
        ...

    def abort(self) -> None:
        """Close the connection at once: the engine notices and frees the KV. The sink gets ``end(ABORTED)``; idempotent."""
        ...


class Upstream(Protocol):
    """Sends requests to engines, over connections kept alive per engine within a bound."""

    def send(self, url: str, request: bytes, sink: ResponseSink, timeout_s: float | None = None) -> Exchange:
        """Send a whole HTTP/1.1 ``request`` (head and body) to the engine at ``url`` (``http://host:port``).

        ``timeout_s`` (real seconds) bounds connect to end; None leaves the time to the caller.
        """
        ...

    def forget(self, url: str) -> None:
        """Close idle connections to ``url``: the replica is leaving."""
        ...

    async def close(self) -> None:
        """Abort what runs and close every connection."""
        ...
