"""What the gateway itself says to clients: OpenAI's four-field error shape, and the one place heads are built.

429 means contended, 503 that there is nothing to run on; ``Retry-After`` is real seconds, jittered here, since clients of
the OpenAI SDK obey it to the millisecond and would all come back at one instant.
"""

import math
import random
from http import HTTPStatus

import msgspec

from forebay.admission.outcomes import jittered
from forebay.ports.upstream import ResponseHead

STATUS_LINES: dict[int, bytes] = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


def status_line(status: int) -> bytes:
    """Engines and proxies before them have statuses without a name too, such as 499."""
    return STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""RFC 9110 §7.6.1, and the names in use before it."""

LIMITS_LEFT = frozenset(b"x-ratelimit-%b-%b" % (what, of) for what in (b"limit", b"remaining", b"reset") for of in (b"requests", b"tokens"))
NOT_TO_CLIENTS = (
    HOP_BY_HOP | LIMITS_LEFT | {b"content-length", b"x-forebay-pool", b"x-forebay-queue-ms", b"x-forebay-replica", b"x-request-id"}
)
"""Framing, the request's id, where it was, and what is left of a limit are the gateway's own."""

FOREIGN_HEADERS = frozenset({b"content-type", b"content-encoding", b"cache-control"})
"""Of other people's engines: their cookies, limits, and names of our account are no business of a client's."""
EVENTS_UNBUFFERED = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
"""Told with every stream of events: proxies before us would gather sixteen kilobytes of it first."""
JSON = b"application/json"
PASSED_HEADS_MAX = 256
"""Remembered; all are forgotten at once then, since a new one comes with each second's date."""


class ErrorReply(msgspec.Struct, frozen=True):
    """One error as a client sees it. ``retry_after_s``: real seconds, None where coming back would not help."""

    status: int
    type: str
    code: str | None
    message: str
    param: str | None = None
    retry_after_s: float | None = None

    def body(self) -> bytes:
        """All four fields, always: clients' types require them."""
        fields = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": fields})

    def event(self) -> bytes:
        """The same inside a stream whose status is already 200. The blank line ends whatever event was open."""
        return b"data: " + self.body() + b"\n\n"

    def headers(self) -> bytes:
        """``Retry-After`` in whole seconds, and in milliseconds for those who read it first."""
        if self.retry_after_s is None:
            return b""
        return b"retry-after: %d\r\nretry-after-ms: %d\r\n" % (math.ceil(self.retry_after_s), round(self.retry_after_s * 1000))


RETRY_AFTER_OVERLOAD_S = 5.0
BAD_HTTP = ErrorReply(400, "invalid_request_error", None, "This is not an HTTP/1.1 request.")
HEAD_TOO_LARGE = ErrorReply(431, "invalid_request_error", None, "The request's headers are too large.")
BODIES_FULL = ErrorReply(
    503, "service_unavailable", "overloaded", "Too many request bodies are held. Please retry.", retry_after_s=RETRY_AFTER_OVERLOAD_S
)
TOO_MANY_CONNECTIONS = ErrorReply(
    503, "service_unavailable", "overloaded", "Too many connections. Please retry.", retry_after_s=RETRY_AFTER_OVERLOAD_S
)


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ErrorReply:
    """400: the request is wrong."""
    return ErrorReply(400, "invalid_request_error", code, message, param)


def body_too_large(limit_bytes: int) -> ErrorReply:
    """The body is over its bound, whether it was said or seen."""
    return ErrorReply(413, "invalid_request_error", None, f"The request's body is larger than {limit_bytes} bytes.")


def too_much_framing(limit_bytes: int) -> ErrorReply:
    """The body is not over its bound, but comes in so many chunks that they are."""
    return ErrorReply(413, "invalid_request_error", None, f"The request's body comes in chunks of more than {limit_bytes} bytes together.")


def unavailable(message: str, code: str, retry_after_s: float, status: int = 503) -> ErrorReply:
    """503: there is nothing to run it on now."""
    return ErrorReply(status, "service_unavailable", code, message, retry_after_s=retry_after_s)


def retry_after_real_s(world_s: float, speed: float, chance: random.Random) -> float:
    """World seconds as a client's wait: real, spread, within what clients obey."""
    return jittered(world_s / speed, chance.random())


def simple_head(status: int, content_type: bytes, length: int, extra: bytes, keep_alive: bool) -> bytes:
    """The head of an answer of the gateway's own."""
    return b"%bcontent-type: %b\r\ncontent-length: %d\r\n%b%b\r\n" % (
        status_line(status),
        content_type,
        length,
        extra,
        b"" if keep_alive else b"connection: close\r\n",
    )


class PassedHead:
    """What a client is told of an engine's head: the lines that pass, and whether a stream of events follows."""

    __slots__ = ("events", "json", "lines")

    def __init__(self, head: ResponseHead, foreign: bool = False) -> None:
        """``foreign``: nothing of the head passes but what the body is."""
        kind = None
        told = set()
        parts = [status_line(head.status)]
        for name, value in head.headers:
            if name not in NOT_TO_CLIENTS and (not foreign or name in FOREIGN_HEADERS):
                parts.append(b"%b: %b\r\n" % (name, value))
                told.add(name)
            if name == b"content-type" and kind is None:
                kind = value.lower()
        self.json = kind is not None and kind.startswith(JSON)
        self.events = kind is not None and kind.startswith(b"text/event-stream")
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
    return b"%bx-request-id: %b\r\ncontent-length: %d\r\n%b\r\n%b" % (passed.lines, request_id, length, more, first)


def chunk(data: bytes) -> bytes:
    """``data`` as one HTTP chunk; nothing for nothing, since an empty chunk is the end."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


LAST_CHUNK = b"0\r\n\r\n"
DONE_EVENT = b"data: [DONE]\n\n"
