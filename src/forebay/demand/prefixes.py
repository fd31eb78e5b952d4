"""Which earlier requests a prompt shares its beginning with: hashes of blocks of the prompt, made into groups.

A hash stands for a block and all before it (Mooncake's ``hash_ids``), so the part already seen is the leading run of known hashes.
A request belongs to the group of the deepest block it shares, if that is at least two deep; the first block alone
(a system prompt that everybody has) doesn't make a conversation.
"""

from collections.abc import Sequence

BLOCK_TOKENS = 512
"""Tokens of one block in Mooncake's traces."""
BLOCKS_MAX = 4_000_000
"""Blocks remembered; beyond it the one seen first is forgotten."""
DEPTH_MIN = 2


class Prefixes:
    """Blocks seen so far and the group that brought each of them."""

    def __init__(self) -> None:
        self._group_of: dict[int, int] = {}
        self._groups = 0

    def place(self, hashes: Sequence[int]) -> tuple[int, int]:
        """The group of a request and how many of its leading blocks an earlier request of that group had; remembers its blocks."""
        known = 0
        while known < len(hashes) and hashes[known] in self._group_of:
            known += 1
        if known >= DEPTH_MIN:
            group = self._group_of[hashes[known - 1]]
        else:
            group, known = self._groups, 0
            self._groups += 1
        for one in hashes[known:]:
            self._group_of.setdefault(one, group)
        while len(self._group_of) > BLOCKS_MAX:
            del self._group_of[next(iter(self._group_of))]
        return group, known
