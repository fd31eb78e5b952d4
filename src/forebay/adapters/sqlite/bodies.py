"""Bodies of rows: MessagePack, compressed. In a decision's, the policy's memory is written as what changed since the pool's row before.

Memory is most of a decision (15 kB with forecasts, 9 of them compressed) and a minute later much the same: compressed with the
memory of the row before as the dictionary it is an eighth of that. A chain of such rows is short, so that any row is read
through few others, and what is lost with a damaged or pruned one is bounded.
"""

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from forebay.ports.store import DecisionRecord

CHAIN_MAX = 16
"""Rows that are read for one, itself included. Longer chains save little: 16 rows cost a third of what each by itself does."""
KNOWN_MAX = 4 * CHAIN_MAX
"""Memories kept while rows are read, newest first: a chain's are used one after the other."""
_DICTIONARY_BYTES_MAX = 2**15
"""zlib looks no further back."""
_COMPRESSION = 1
_OLD = b"\x78"
"""First byte of a body from before schema version 3: zlib's, over the whole record."""


class _Body(msgspec.Struct, frozen=True, array_like=True):
    base: int
    """The row whose memory is the dictionary; 0: none is."""
    record: bytes
    """Without memories."""
    memories: bytes
    """The observation's and the decision's."""


_decode = msgspec.msgpack.Decoder(_Body).decode
_decode_record = msgspec.msgpack.Decoder(DecisionRecord).decode
_decode_memories = msgspec.msgpack.Decoder(tuple[bytes, bytes]).decode


class _Last(NamedTuple):
    seq: int
    memory: bytes
    chained: int
    """Rows of its chain, itself included."""


class DecisionPacker:
    """Packs the decisions of a writer, who says with ``written`` which rows they became."""

    def __init__(self) -> None:
        self._last: dict[str, _Last] = {}

    def packed(self, record: DecisionRecord) -> bytes:
        """The body of the pool's next row."""
        last = self._base(record)
        memories = msgspec.msgpack.encode((record.observation.memory, record.decision.memory))
        base, dictionary = (last.seq, last.memory) if last is not None else (0, b"")
        return msgspec.msgpack.encode(_Body(base, packed(_with(record, b"", b"")), _squeezed(memories, dictionary)))

    def written(self, record: DecisionRecord, seq: int) -> None:
        """What ``packed`` gave for ``record`` is row ``seq``."""
        last = self._base(record)
        self._last[record.decision.pool] = _Last(seq, record.decision.memory, 1 if last is None else last.chained + 1)

    def _base(self, record: DecisionRecord) -> _Last | None:
        last = self._last.get(record.decision.pool)
        return last if last is not None and last.chained < CHAIN_MAX else None


class DecisionUnpacker:
    """Unpacks rows of one pool; ``body_of`` finds the body of another row, None where there is none."""

    def __init__(self, body_of: Callable[[int], bytes | None]) -> None:
        self._body_of = body_of
        self._known: dict[int, bytes] = {}
        """The decision's memory by row."""

    def record(self, body: bytes) -> DecisionRecord:
        """The record, its memories empty where a row that they were written upon is gone or damaged.

        Raises zlib.error or msgspec.MsgspecError where the row itself can't be read.
        """
        if body.startswith(_OLD):
            return _decode_record(zlib.decompress(body))
        told = _decode(body)
        record = _decode_record(zlib.decompress(told.record))
        try:
            dictionary = self._memory(told.base)
        except (zlib.error, msgspec.MsgspecError, LookupError):
            return record
        return _with(record, *_decode_memories(_unsqueezed(told.memories, dictionary)))

    def _memory(self, seq: int) -> bytes:
        """The memory after row ``seq``: from the nearest row before it of which that is known."""
        chain: list[tuple[int, bytes]] = []
        while seq and seq not in self._known:
            body = self._body_of(seq)
            if body is None or len(chain) >= CHAIN_MAX:
                raise LookupError(seq)
            told = _decode(body)
            chain.append((seq, told.memories))
            seq = told.base
        memory = self._known.get(seq, b"")
        for row, memories in reversed(chain):
            memory = self._known[row] = _decode_memories(_unsqueezed(memories, memory))[1]
        while len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
        return memory


def packed_bytes(value: bytes) -> bytes:
    """Bytes that are encoded already."""
    return zlib.compress(value, _COMPRESSION)


def unpacked_bytes(body: bytes) -> bytes:
    """What ``packed_bytes`` was given. Raises zlib.error."""
    return zlib.decompress(body)


def packed(value: msgspec.Struct) -> bytes:
    """``value`` by itself."""
    return zlib.compress(msgspec.msgpack.encode(value), _COMPRESSION)


def unpacked(body: bytes, kind: Any) -> Any:
    """What ``packed`` was given. Raises zlib.error or msgspec.MsgspecError."""
    return msgspec.msgpack.decode(zlib.decompress(body), type=kind)


def _with(record: DecisionRecord, before: bytes, after: bytes) -> DecisionRecord:
    return DecisionRecord(
        record.at_wall_s,
        msgspec.structs.replace(record.observation, memory=before),
        msgspec.structs.replace(record.decision, memory=after),
    )


def _squeezed(data: bytes, dictionary: bytes) -> bytes:
    zipped = zlib.compressobj(_COMPRESSION, zdict=dictionary[-_DICTIONARY_BYTES_MAX:])
    return zipped.compress(data) + zipped.flush()


def _unsqueezed(data: bytes, dictionary: bytes) -> bytes:
    plain = zlib.decompressobj(zdict=dictionary[-_DICTIONARY_BYTES_MAX:])
    return plain.decompress(data) + plain.flush()
