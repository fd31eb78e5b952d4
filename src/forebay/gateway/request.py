"""What passes between a client's connection and whatever answers it."""

from typing import Protocol

from forebay.gateway.heads import HeadFacts

BODY_PIECES_MAX = 64
"""A body in chunks of a few bytes would cost an object each, thirty times what is counted: from here on it is one piece."""


class Request:
    """One request, whole."""

    __slots__ = ("body", "facts", "held_bytes", "keep_alive", "method", "modern", "target")

    facts: HeadFacts
    keep_alive: bool
    method: bytes
    modern: bool
    """HTTP/1.1: chunked framing is understood."""

    def __init__(self, target: bytes = b"", body: bytes = b"", held_bytes: int = 0) -> None:
        self.target = target
        self.body = body
        self.held_bytes = held_bytes
        """Of the body, counted against the budget of all bodies until released."""


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
