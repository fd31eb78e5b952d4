"""An answer that is not a stream: held until it is whole, so that a failure can still be tried elsewhere.

Bodies beyond a bound (embeddings of many inputs) flow through from there on and can't be retried any more.
"""

from typing import Final

import msgspec

from forebay.domain.shape import Usage
from forebay.domain.usage import NUMBER_BITS
from forebay.gateway.answers import LAST_CHUNK, chunk
from forebay.gateway.events import PARSED_BYTES_MAX, UNREADABLE, decode_answer, decode_usage
from forebay.gateway.typed import TypedUsage
from forebay.ports.upstream import ResponseHead

HELD_BYTES_MAX: Final = 1024 * 1024
TAIL_BYTES: Final = 4096
"""Of a long body only the end is looked at: usage stands there."""

# In names of their own, that a compiled module need not look up.
_decode: Final = decode_answer
_decode_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_typed: Final = msgspec.json.Decoder(TypedUsage).decode
_usage: Final = Usage


class WholeBody:
    """The parts of one body, until they are all there or too many."""

    __slots__ = ("_parts", "flowing", "framed", "head", "held_bytes", "tail")

    def __init__(self, head: ResponseHead, client_chunked: bool) -> None:
        self.head = head
        self.flowing = False
        self.framed = head.content_length is None and client_chunked
        """Once it flows: whether it is sent in chunks."""
        self.held_bytes = 0
        self.tail = b""
        self._parts: list[bytes] = []

    def add(self, body: bytes) -> bool:
        """Keep ``body``; False once there is too much to hold."""
        self._parts.append(body)
        self.held_bytes += len(body)
        return self.held_bytes <= HELD_BYTES_MAX

    def take(self) -> bytes:
        """All that is held; nothing is afterwards."""
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def ended(self) -> bool:
        """All of it is here, though its engine has not said so: of JSON that can be told."""
        if self.flowing or self.head.content_length is not None or not self._parts or not self._parts[-1].rstrip().endswith(b"}"):
            return False
        body = b"".join(self._parts)
        self._parts = [body]
        try:
            _decode_fields(body)
        except UNREADABLE:
            return False
        return True

    def flow(self, body: bytes, last: bool) -> bytes:
        """``body`` as it goes through, framed for the client."""
        self.flowing = True
        self.tail = (self.tail + body)[-TAIL_BYTES:]
        return chunk(body) + (LAST_CHUNK if last else b"") if self.framed else body


def looked_at(body: bytes) -> tuple[Usage | None, bool]:
    """The usage in a whole body, and whether the engine broke the answer off (``finish_reason: "abort"``)."""
    if len(body) > PARSED_BYTES_MAX:
        return usage_in_tail(body[-TAIL_BYTES:]), b'"abort"' in body and b'"finish_reason":"abort"' in body.replace(b'": "', b'":"')
    try:
        answer = _decode(body)
    except UNREADABLE:
        return None, False
    aborted = False
    for choice in answer.choices:
        if choice.finish_reason == "abort":
            aborted = True
    usage = answer.usage
    if usage is None:
        return None, aborted
    details = usage.prompt_tokens_details
    if details is None:  # as `usage.usage()`, which is a call for every answer
        prompt_tokens, output_tokens = usage.prompt_tokens or 0, usage.completion_tokens or 0
        return (None if (prompt_tokens | output_tokens) >> NUMBER_BITS else _usage(prompt_tokens, output_tokens)), aborted
    return usage.usage(), aborted


def usage_in_tail(tail: bytes) -> Usage | None:
    """The ``usage`` in the end of a body too long to be parsed."""
    told = usage_object(tail)
    try:
        if b'"input_tokens"' in told:  # as `/v1/responses` says it
            return _decode_typed(told).usage()
        return decode_usage(told).usage() if told else None
    except UNREADABLE:
        return None


def usage_object(tail: bytes) -> bytes:
    """The ``usage`` object in the end of a body, as it stands there; empty: there is none."""
    at = tail.rfind(b'"usage"')
    start = tail.find(b"{", at)
    if at < 0 or start < 0:
        return b""
    depth = 0
    for position in range(start, len(tail)):
        byte = tail[position]
        depth += (byte == 0x7B) - (byte == 0x7D)
        if depth == 0:
            return tail[start : position + 1]
    return b""
