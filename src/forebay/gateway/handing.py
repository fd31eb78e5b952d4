"""What the owner of the queue and its relay workers tell each other, in packets.

A worker tells differences: so many more events, bytes and tokens than it told before. So what the owner knows of a stream is true up
to the last packet, and a stream that comes back goes on from there.
"""

import msgspec

from forebay.ports.crew import PACKET_BYTES_MAX

PIECE_BYTES_MAX = PACKET_BYTES_MAX * 3 // 8
"""Of token ids, of an event, or of bytes that nobody has handled yet, in one packet: two of them find room, and a little more."""
COUNT_BYTES = 64
"""About what a count takes beside tokens and usage."""


class Take(msgspec.Struct, array_like=True, tag="take"):
    """Go on with this stream; its two connections come with the packet."""

    number: int
    client_buffer_bytes_max: int
    told: bool = False
    """Its engine tells what the client did not ask for (`told.ToldStream`); else it passes as it comes."""
    typed: bool = False
    """Its events name their type (`typed.TypedStream`)."""
    wants_running_usage: bool = False
    wants_ids: bool = False
    pending: bytes = b""
    exact: bool = False
    reasons: str = ""
    unsure: bytes = b""
    prompt_tokens: int = 0
    """These as in `emitted.Emitted`."""


class Recall(msgspec.Struct, array_like=True, tag="recall", frozen=True):
    """Give it back."""

    number: int


class Drop(msgspec.Struct, array_like=True, tag="drop", frozen=True):
    """It is over: let go of it, and tell nothing more of it."""

    number: int


class Ready(msgspec.Struct, array_like=True, tag="ready", frozen=True):
    """The worker has started."""


class Count(msgspec.Struct, array_like=True, frozen=True):
    """How far a stream has come since it was last counted."""

    number: int
    events: int = 0
    wire_bytes: int = 0
    tokens: bytes = b""
    """Ids in decimal, a comma after each…"""
    pending_bytes: int = 0
    """…and so many bytes at the end of all are those of tokens whose text is not out, or that are reasoning."""
    running: bytes = b""
    """The last event that told usage; empty: none since."""


class Report(msgspec.Struct, array_like=True, tag="report", frozen=True):
    """How streams go on; an empty one says that the worker lives."""

    counts: list[Count]


class Slow(msgspec.Struct, array_like=True, tag="slow", frozen=True):
    """The client reads slower than its engine writes, or no longer so."""

    number: int
    slow: bool


class Piece(msgspec.Struct, array_like=True, tag="piece", frozen=True):
    """Bytes that were read and not handled, before a stream comes back: from its client, or from its engine."""

    number: int
    from_client: bool
    data: bytes


class Back(msgspec.Struct, array_like=True, tag="back", frozen=True):
    """Something came that isn't usual, or it was recalled: the owner goes on with it."""

    count: Count
    exact: bool = False
    reasons: str = ""
    unsure: bytes = b""
    last: bytes = b""
    """The last event, of a stream whose events name their type."""


class Gone(msgspec.Struct, array_like=True, tag="gone", frozen=True):
    """Its client has left."""

    count: Count


encode = msgspec.msgpack.Encoder().encode
decode_order = msgspec.msgpack.Decoder(Take | Recall | Drop).decode
decode_news = msgspec.msgpack.Decoder(Ready | Report | Slow | Piece | Back | Gone).decode


def reports(counts: list[Count]) -> list[bytes]:
    """Packets that tell ``counts``, none of them too long."""
    packets: list[bytes] = []
    batch: list[Count] = []
    size = 0
    for count in counts:
        more = COUNT_BYTES + len(count.tokens) + len(count.running)
        if batch and size + more > PACKET_BYTES_MAX - COUNT_BYTES:
            packets.append(encode(Report(batch)))
            batch, size = [], 0
        batch.append(count)
        size += more
    if batch:
        packets.append(encode(Report(batch)))
    return packets
