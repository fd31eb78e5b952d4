"""The bytes of a journal's file: frames, each with a checksum, read up to the first that is not whole.

A frame is the CRC-32 of what follows, the length of its payload, its kind, the payload. An entry's payload has a fixed form;
the others' are MessagePack: the head, a key with the number by which entries name it, and a block of sums.
"""

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum

import msgspec

from forebay.domain.usage import Entry, How, Leftover, UsageBatch, UsageKey

FORMAT = 1
ENTRY = struct.Struct("<IBQIIBBIIII")
"""Length and kind; number, Unix seconds, key, how, exact, prompt, cached and output tokens, milliseconds in the lane."""
CRC = struct.Struct("<I")
_HEADER = struct.Struct("<IB")
ENTRY_BYTES = CRC.size + ENTRY.size
ENTRY_PAYLOAD_BYTES = ENTRY.size - _HEADER.size
_ENTRY_PAYLOAD = struct.Struct("<QIIBBIIII")
TORN_BYTES_MAX = 4096
"""A write that was cut short leaves less than this: an entry, or an entry with its key."""


class Kind(IntEnum):
    """Of frames."""

    HEAD = 1
    KEY = 2
    BLOCK = 3
    ENTRY = 4


class Head(msgspec.Struct, frozen=True, array_like=True):
    """Who wrote the file."""

    format: int
    gateway: str
    journal: str


class Key(msgspec.Struct, frozen=True, array_like=True):
    """What entries mean by ``index``."""

    index: int
    key: UsageKey


_KINDS = {Kind.HEAD: Head, Kind.KEY: Key, Kind.BLOCK: UsageBatch}
_DECODERS = {kind: msgspec.msgpack.Decoder(each).decode for kind, each in _KINDS.items()}
_encode = msgspec.msgpack.Encoder().encode
_HOWS = tuple(How)


def frame(value: Head | Key | UsageBatch) -> bytes:
    """The frame of anything but an entry."""
    kind = Kind.HEAD if isinstance(value, Head) else Kind.KEY if isinstance(value, Key) else Kind.BLOCK
    payload = _encode(value)
    checked = _HEADER.pack(len(payload), kind) + payload
    return CRC.pack(zlib.crc32(checked)) + checked


def read(data: bytes, journal: str) -> Leftover | None:
    """What a file holds; None where it does not even hold its head, or is of another format: nothing can be told from it."""
    head: Head | None = None
    keys: dict[int, UsageKey] = {}
    blocks: list[UsageBatch] = []
    entries: list[Entry] = []
    at = 0
    try:
        for kind, payload, end in _frames(data):
            if kind == Kind.ENTRY:
                entries.append(_entry(payload, keys))
            else:
                value = _DECODERS[Kind(kind)](payload)
                if isinstance(value, Key):
                    keys[value.index] = value.key
                elif isinstance(value, UsageBatch):
                    blocks.append(value)
                else:
                    head = value
            at = end
    except (ValueError, LookupError, struct.error, msgspec.MsgspecError):
        pass  # the checksum held and yet it makes no sense: as unreadable as the rest after it
    if head is None or head.format != FORMAT or head.journal != journal:
        return None
    unread = len(data) - at
    # What one write could leave torn is what a crash does; more is damage.
    return Leftover(head.gateway, journal, tuple(blocks), tuple(entries), unread if unread > TORN_BYTES_MAX else 0)


def _frames(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Kind, payload and end of each whole frame."""
    at, header = 0, CRC.size + _HEADER.size
    while at + header <= len(data):
        length, kind = _HEADER.unpack_from(data, at + CRC.size)
        end = at + header + length
        if end > len(data) or CRC.unpack_from(data, at)[0] != zlib.crc32(memoryview(data)[at + CRC.size : end]):
            return
        yield kind, data[at + header : end], end
        at = end


def _entry(payload: bytes, keys: dict[int, UsageKey]) -> Entry:
    number, unix_s, index, how, exact, prompt, cached, output, queue_ms = _ENTRY_PAYLOAD.unpack(payload)
    return Entry(number, unix_s, keys[index], _HOWS[how], bool(exact), prompt, cached, output, queue_ms)
