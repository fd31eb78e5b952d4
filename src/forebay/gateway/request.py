"""What passes between a client's connection and whatever answers it."""

from typing import Protocol

from forebay.gateway.answers import ErrorReply
from forebay.gateway.heads import HeadFacts
from forebay.gateway.holding import Holding

BODY_PIECES_MAX = 64
"""A body in chunks of a few bytes would cost an object each, thirty times what is counted: from here on it is one piece."""


class Request:
    """One request, whole."""

    __slots__ = ("body", "facts", "held_bytes", "holding", "keep_alive", "method", "modern", "refusal", "target")

    facts: HeadFacts
    keep_alive: bool
    method: bytes
    modern: bool
    """HTTP/1.1: chunked framing is understood."""

    def __init__(self, target: bytes = b"", body: bytes = b"", held_bytes: int = 0) -> None:
        self.target = target
        self.body = body
        self.held_bytes = held_bytes
        """Of the body, counted against the budget of all bodies until released…"""
        self.holding: Holding | None = None
        """…and against what its team may hold of that."""
        self.refusal: ErrorReply | None = None
        """What it is answered with, whatever it asks for; none of its body is held."""

    @property
    def size_bytes(self) -> int:
        """Of the body."""
        return len(self.body)


class Peek(Protocol):
    """Holds the beginning of a large body, and looks in it for what must be known before the rest can be passed on."""

    held: bytearray
    found: bool
    """It is known."""
    prompts: int
    """How many there are, once that is."""
    too_many: bool
    """It has more fields than are looked at; where it isn't `found` it never will be."""

    def feed(self, part: bytes) -> None:
        """The next part."""
        ...

    def fields(self) -> bytes:
        """What is known of the body, as an object of JSON."""
        ...

    def with_model(self, name: str) -> bytes:
        """What is held, with another model."""
        ...


class BodyTaker(Protocol):
    """Where the rest of a large body goes."""

    def body_part(self, part: bytes) -> None:
        """Some of it."""
        ...

    def body_end(self) -> None:
        """That was all."""
        ...

    def body_refused(self, error: ErrorReply) -> None:
        """The rest will not come: it is malformed, or more than was allowed."""
        ...


class LargeRequest(Request):
    """One whose body is over the bound of what is held for everybody: it may be handed over before it is whole."""

    __slots__ = ("ended", "length", "peek", "received_bytes", "stays_alive", "taker")

    def __init__(self, request: Request, peek: Peek, length: int | None) -> None:
        super().__init__(request.target, b"", request.held_bytes)
        self.holding = request.holding
        self.facts = request.facts
        self.method = request.method
        self.modern = request.modern
        self.keep_alive = request.keep_alive
        self.stays_alive = request.keep_alive
        """What ``keep_alive`` is again once the body has ended."""
        self.received_bytes = request.held_bytes
        self.peek = peek
        self.length = length
        """Of the whole body; None where it comes in chunks."""
        self.ended = False
        """``body`` is all of it; else the first part, and the rest goes to the ``taker``."""
        self.taker: BodyTaker | None = None

    @property
    def size_bytes(self) -> int:
        """Of the body: all of it where that is known, else what has come."""
        return self.length if self.length is not None else self.received_bytes

    def hand_over(self) -> None:
        """It is answered from now on, though not whole: an answer before its end leaves the connection in the middle of it."""
        self.keep_alive = False


class Reply(Protocol):
    """What answers a request that isn't answered at once."""

    def client_gone(self) -> None:
        """The connection was lost; write no more."""
        ...

    def client_slow(self) -> None:
        """More is buffered than should be: stop producing."""
        ...

    def client_ready(self) -> None:
        """Produce again."""
        ...


def hold(pieces: list[bytes | bytearray], body: bytes) -> None:
    """Add the next part of a body to ``pieces``, whose number is bounded."""
    if len(pieces) < BODY_PIECES_MAX:
        pieces.append(body)
        return
    if len(pieces) == BODY_PIECES_MAX:
        pieces.append(bytearray())
    pieces[-1] += body


def whole(pieces: list[bytes | bytearray]) -> bytes:
    """The body that ``pieces`` are of; no copy where it is one."""
    return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
