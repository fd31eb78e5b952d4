"""An engine's head as its client gets it: the lines that pass, with framing of our own.

Engines repeat their heads, so each is worked out once for all that differ in nothing but the length.
"""

from typing import Final

from forebay.gateway.answers import HOP_BY_HOP, JSON, status_line
from forebay.ports.upstream import ResponseHead

LIMITS_LEFT = frozenset(b"x-ratelimit-%b-%b" % (what, of) for what in (b"limit", b"remaining", b"reset") for of in (b"requests", b"tokens"))
NOT_TO_CLIENTS: Final = (
    HOP_BY_HOP
    | LIMITS_LEFT
    | {b"content-length", b"x-forebay-pool", b"x-forebay-queue-ms", b"x-forebay-replica", b"x-forebay-tier", b"x-request-id"}
)
"""Framing, the request's id, where it was, and what is left of a limit are the gateway's own."""

FOREIGN_HEADERS: Final = frozenset({b"content-type", b"content-encoding", b"cache-control"})
"""Of other people's engines: their cookies, limits, and names of our account are no business of a client's."""
HTML: Final = (b"text/html", b"application/xhtml")
EVENTS_UNBUFFERED: Final = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
"""Told with every stream of events: proxies before us would gather sixteen kilobytes of it first."""
TOLD_BYTES_MAX: Final = 200
PASSED_HEADS_MAX: Final = 256
"""Remembered; all are forgotten at once then, since a new one comes with each second's date."""


class PassedHead:
    """What a client is told of an engine's head: the lines that pass, and whether a stream of events follows."""

    __slots__ = ("coded", "events", "html", "json", "lines", "odd")

    def __init__(self, head: ResponseHead, foreign: bool = False) -> None:
        """``foreign``: nothing of the head passes but what the body is."""
        kind = None
        told = set()
        self.coded = False
        """Its body is compressed, which nobody asked for: what is in it can't be told."""
        parts = [status_line(head.status)]
        for name, value in head.headers:
            if name not in NOT_TO_CLIENTS and (not foreign or name in FOREIGN_HEADERS):
                parts.append(b"%b: %b\r\n" % (name, value))
                told.add(name)
            if name == b"content-encoding" and value.lower() != b"identity":
                self.coded = True
            if name == b"content-type" and kind is None:
                kind = value.lower()
        self.json = kind is not None and kind.startswith(JSON)
        self.events = kind is not None and kind.startswith(b"text/event-stream")
        self.html = kind is not None and kind.startswith(HTML)
        """A page for people, as of a login, or of a proxy's own: that is no engine's answer."""
        self.odd = kind is not None and not (self.json or self.events)
        """It says what it is, and that is neither."""
        if self.events:
            parts += [b"%b: %b\r\n" % line for line in EVENTS_UNBUFFERED if line[0] not in told]
        self.lines = b"".join(parts)


class PassedHeads:
    """Engines repeat their heads: each is turned into a client's once for all that differ in nothing but the length."""

    __slots__ = ("_foreign", "_known")

    def __init__(self, foreign: bool = False) -> None:
        self._foreign = foreign
        self._known: dict[bytes, PassedHead] = {}

    def of(self, head: ResponseHead) -> PassedHead:
        """What is told of ``head``."""
        passed = self._known.get(head.alike)
        if passed is None:
            passed = PassedHead(head, self._foreign)
            if head.alike:
                if len(self._known) >= PASSED_HEADS_MAX:
                    self._known.clear()
                self._known[head.alike] = passed
        return passed


def passed_answer(
    passed: PassedHead, request_id: bytes, length: int | None, chunked: bool, keep_alive: bool, first: bytes, more: bytes = b""
) -> bytes:
    """An engine's head for a client, with our framing and ``more`` header lines of ours, and the ``first`` bytes after it."""
    if not keep_alive:
        more += b"connection: close\r\n"
    if chunked:
        return b"%bx-request-id: %b\r\ntransfer-encoding: chunked\r\n%b\r\n%b" % (passed.lines, request_id, more, first)
    if length is None:
        return b"%bx-request-id: %b\r\n%b\r\n%b" % (passed.lines, request_id, more, first)
    size = str(length).encode()
    return b"%bx-request-id: %b\r\ncontent-length: %b\r\n%b\r\n%b" % (passed.lines, request_id, size, more, first)


def found_in(head: ResponseHead | None) -> str:
    """For the operator, beside its status: what kind of thing it is that came in place of an answer."""
    said = dict(head.headers) if head is not None else {}
    told = [f"{name.decode()}: {said[name][:TOLD_BYTES_MAX].decode('latin-1')}" for name in (b"content-type", b"location") if name in said]
    return f"({', '.join(told)})" if head is not None and head.status < 400 and told else ""
