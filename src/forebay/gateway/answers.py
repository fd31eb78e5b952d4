"""What the gateway itself says to clients: OpenAI's four-field error shape, and the one place heads are built.

429 means contended, 503 that there is nothing to run on; ``Retry-After`` is real seconds, jittered here, since clients of
the OpenAI SDK obey it to the millisecond and would all come back at one instant.
"""

import math
import random
from http import HTTPStatus
from typing import final

import msgspec

from forebay.admission.outcomes import jittered

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

JSON = b"application/json"


@final
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
LOOPED = ErrorReply(
    508, "server_error", "loop_detected", "This request came from this gateway: an address that is attached as an engine leads back here."
)
BODIES_FULL = ErrorReply(
    503, "service_unavailable", "overloaded", "Too many request bodies are held. Please retry.", retry_after_s=RETRY_AFTER_OVERLOAD_S
)
TEAM_BODIES_FULL = ErrorReply(
    503,
    "service_unavailable",
    "overloaded",
    "The bodies of your team's requests that are held take as much as is left for all others. Please retry.",
    retry_after_s=RETRY_AFTER_OVERLOAD_S,
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


def too_many_fields(limit_bytes: int) -> ErrorReply:
    """The body is so large that it is passed on as it comes, and where to is not said early enough."""
    message = f"The request's body is larger than {limit_bytes} bytes, and `model` is not among its first fields. Send `model` first."
    return bad_request(message, "model")


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


def chunk(data: bytes) -> bytes:
    """``data`` as one HTTP chunk; nothing for nothing, since an empty chunk is the end."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


LAST_CHUNK = b"0\r\n\r\n"
DONE_EVENT = b"data: [DONE]\n\n"
