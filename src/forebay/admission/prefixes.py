"""Which replica has how much of a prompt in its cache: guessed from what was sent where, in blocks of bytes.

Engines keep prefixes by blocks of tokens, and evict what was used longest ago. The gateway does the same by blocks of
bytes: a request's blocks are hashed in a chain, so that one hash stands for all bytes up to its block, and a table says
which replicas were sent it. Each replica's part is bounded by what its KV cache holds and evicted in the same order. A
wrong guess costs a prefill that would have been needed anyway, so hashes of 64 bits are trusted without the bytes. But it is
also in the way of others that are sent there as if it were short: what was taken back before its prefill is no guess.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

BLOCK_BYTES = 512
"""About 128 tokens: eight of vLLM's blocks."""
BLOCKS_MAX = 64
"""A longer prompt is known by its first 32 kB: whoever shares those most likely shares what follows, and hashing costs."""
BLOCKS_PER_REPLICA_MAX = 65_536
BYTES_MAX: Final = BLOCKS_MAX * BLOCK_BYTES
REPLICAS_MAX = 4096
_PROMPT_KEYS = (b'"messages"', b'"prompt"', b'"input"')
MANY: Final = -1
"""In place of a request: several were sent it."""
_LOOK_BYTES = 4096
"""How far into a body the prompt's key is looked for."""

Chain = tuple[int, ...]
"""Hashes of a prompt up to the end of each of its blocks."""


class Prefix(NamedTuple):
    """The prompt of one request, as far as it is known where it may be cached."""

    chain: Chain
    block_tokens: int
    """Estimated tokens of one block of it, at least 1."""

    def cached_tokens(self, blocks: int, uncached_tokens: int) -> int:
        """Of ``uncached_tokens`` of its prompt, those in its first ``blocks``; engines prefill at least one token of each prompt."""
        return min(blocks * self.block_tokens, max(0, uncached_tokens - 1))


def prefix_of(body: bytes, body_bytes: int, prompt_tokens: int, model: str, salt: str = "", lead: bytes = b"") -> Prefix | None:
    """Of a request for ``model`` whose body of ``body_bytes`` begins with ``body``; None: less than a block.

    Adapters share no cache, nor do requests with another ``salt``. ``lead``: what the prompt begins with, wherever in the body it stands.
    """
    hashes = chain(body, f"{model}\0{salt}" if salt else model, lead)
    return Prefix(hashes, max(1, BLOCK_BYTES * prompt_tokens // body_bytes)) if hashes else None


def chain(body: bytes, cache: str = "", lead: bytes = b"") -> Chain:
    """The chain of ``lead`` and a request body, from where its prompt begins: fields before it may differ.

    A part of a block counts for nothing. Those of another ``cache`` have no hash in common.
    """
    start = -1
    for key in _PROMPT_KEYS:
        start = body.find(key, 0, _LOOK_BYTES)
        if start >= 0:
            break
    start = max(start, 0)
    if lead:
        body, start = lead[:BYTES_MAX] + body[start : start + BYTES_MAX], 0
    value, hashes = hash(cache), []
    for begin in range(start, min(len(body) - BLOCK_BYTES, start + (BLOCKS_MAX - 1) * BLOCK_BYTES) + 1, BLOCK_BYTES):
        value = hash((value, body[begin : begin + BLOCK_BYTES]))
        hashes.append(value)
    return tuple(hashes)


class PrefixIndex:
    """Of one pool. Replicas are known by their ids; the index forgets one with ``drop``, as when it has left or restarted."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        """Hash → replicas that hold it, a bit each."""
        self._held: dict[str, OrderedDict[int, int]] = {}
        """By replica what it was sent, used longest ago first, with the one request that was sent it, or `MANY`."""
        self.bits: dict[str, int] = {}
        """Of each replica that something was sent to, its bit in what ``levels`` tells."""
        self._free_bits: list[int] = []

    def __len__(self) -> int:
        return len(self._holders)

    def sent(self, replica: str, hashes: Chain, blocks_max: int, request: int = MANY) -> None:
        """``replica`` prefills these now, and keeps at most ``blocks_max`` blocks: those used longest ago are gone.

        ``request``: whose they are, who may yet be taken back.
        """
        if not hashes:
            return
        held = self._held.get(replica)
        if held is None:
            if len(self._held) >= REPLICAS_MAX:
                return
            held = self._held[replica] = OrderedDict()
            self.bits[replica] = 1 << (self._free_bits.pop() if self._free_bits else len(self.bits))
        bit, holders = self.bits[replica], self._holders
        # From the end: of one chain the beginning is used last, so that what is left of it is a beginning.
        for value in reversed(hashes):
            if value in held:
                held[value] = MANY
                held.move_to_end(value)
            else:
                held[value] = request
                holders[value] = holders.get(value, 0) | bit
        for _ in range(len(held) - max(0, min(blocks_max, BLOCKS_PER_REPLICA_MAX))):
            self._unhold(held.popitem(last=False)[0], bit)

    def unsent(self, replica: str, hashes: Chain, request: int) -> None:
        """``request`` is taken back from ``replica`` before it prefilled these: it holds those that no other was sent there with."""
        held = self._held.get(replica)
        if held is None:
            return
        bit = self.bits[replica]
        for value in hashes:
            if held.get(value) == request:
                del held[value]
                self._unhold(value, bit)

    def drop(self, replica: str) -> None:
        """``replica`` holds nothing any more."""
        held = self._held.pop(replica, None)
        if held is None:
            return
        bit = self.bits.pop(replica)
        for value in held:
            self._unhold(value, bit)
        self._free_bits.append(bit.bit_length() - 1)

    def levels(self, hashes: Chain) -> list[tuple[int, int]]:
        """Blocks held from the beginning on, and the bits of all that hold as many or more: deepest first; empty where none is held."""
        holders = self._holders
        levels: list[tuple[int, int]] = []
        mask = -1
        for depth, value in enumerate(hashes):
            further = mask & holders.get(value, 0)
            if further != mask:
                if depth:
                    levels.append((depth, mask))
                mask = further
                if not further:
                    break
        else:
            if hashes:
                levels.append((len(hashes), mask))
        levels.reverse()
        return levels

    def depth(self, hashes: Chain, replica: str) -> int:
        """Blocks of the chain that ``replica`` holds from its beginning on."""
        held = self._held.get(replica, ())
        depth = 0
        for value in hashes:
            if value not in held:
                break
            depth += 1
        return depth

    def replicas(self) -> set[str]:
        """All that something was sent to."""
        return set(self._held)

    def _unhold(self, value: int, bit: int) -> None:
        left = self._holders[value] & ~bit
        if left:
            self._holders[value] = left
        else:
            del self._holders[value]

    def check(self) -> None:
        """Raises AssertionError unless the table is exactly what the replicas hold."""
        told: dict[int, int] = {}
        for replica, held in self._held.items():
            for value in held:
                told[value] = told.get(value, 0) | self.bits[replica]
        assert told == self._holders, "the table and what replicas hold differ"
        bits = list(self.bits.values())
        assert len(set(bits)) == len(bits), "two replicas have one bit"
