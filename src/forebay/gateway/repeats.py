"""Requests that come again with the same head: known by their bytes, so that no parser has to find what it found before.

A kept-alive client repeats its head byte for byte but for the digits of ``content-length``. A read that is such a head and
the whole body it announces leaves the parser where it was, between two requests, so it isn't asked. Anything else, a head
in two reads as well as one byte that differs, is the parser's.
"""

import re
from typing import Final

from forebay.gateway.request import Request
from forebay.native import framed
from forebay.native.pure import LENGTH_DIGITS_MAX
from forebay.spec.types import Limits

SHARED_MAX = 256
"""Heads that connections share; with so many they are all forgotten, though not by the connections that have them."""
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,10})\r\n", re.IGNORECASE)

# In names of their own, that a compiled module need not look up.
_framed: Final = framed


class SeenHead:
    """The bytes of one head around the digits of its ``content-length``, and what the parser made of them."""

    __slots__ = ("after", "before", "first")

    def __init__(self, before: bytes, after: bytes, first: Request) -> None:
        self.before = before
        self.after = after
        self.first = first
        """The request it was known from; its body is gone when it has been answered."""

    def again(self, read: bytes, limits: Limits, room_bytes: int) -> Request | None:
        """The whole request in ``read``, if that is one with this head and a body within the limits and ``room_bytes``."""
        body = _framed(read, self.before, self.after)
        if body is None or (size := len(body)) > limits.body_bytes_max or size > room_bytes:
            return None
        first = self.first
        request = Request(first.target, body, size)
        holding = first.holding
        if holding is not None:
            if holding.crowds(0, size, room_bytes):
                return None
            holding.held_bytes += size
            request.holding = holding
        request.facts = first.facts
        request.method = first.method
        request.modern = first.modern
        request.keep_alive = first.keep_alive
        return request


class SeenHeads:
    """What the connections of one server know heads by: clients of one kind send the same, and share it."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes], SeenHead] = {}

    def of(self, read: bytes, request: Request, limits: Limits) -> SeenHead | None:
        """How to know the head of ``request`` again; see `seen_head`."""
        seen = seen_head(read, request, limits)
        if seen is None:
            return None
        known = self._known
        shared = known.get((seen.before, seen.after))
        if shared is None:
            if len(known) >= SHARED_MAX:
                known.clear()
            shared = known[seen.before, seen.after] = seen
        return shared


def seen_head(read: bytes, request: Request, limits: Limits) -> SeenHead | None:
    """How to know the head of ``request`` again, if ``read`` is exactly that request, framed by ``content-length``.

    A body of that very length was decoded from what follows the head, so it is not framed in chunks.
    """
    head_end = read.find(b"\r\n\r\n") + 4
    if head_end + LENGTH_DIGITS_MAX > limits.head_bytes_max or request.facts.expects:
        return None
    length = _LENGTH.search(read, 0, head_end)
    if length is None or int(length[1]) != len(request.body) or len(read) - head_end != len(request.body):
        return None
    return SeenHead(read[: length.start(1)], read[length.end(1) : head_end], request)
