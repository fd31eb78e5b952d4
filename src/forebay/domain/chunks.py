"""HTTP chunks that come one to a read, as those of a stream mostly do: known by the length of the read, without parsing."""

FRAMES_END = 0x1000
"""Reads of so many bytes and more have no entry in `FRAMES`."""


_NONE = bytes(FRAMES_END)  # longer than any of these reads


def _frame(read_bytes: int) -> tuple[bytes, int]:
    for digits in (1, 2, 3):
        size = read_bytes - digits - 4
        if size > 0 and len(b"%x" % size) == digits:
            return b"%x\r\n" % size, digits + 2
    return _NONE, 0


FRAMES = tuple(_frame(read_bytes) for read_bytes in range(FRAMES_END))
"""By the bytes of a read: how it begins if it is one whole chunk, and where the chunk's data begin in it.

Where it can be none, that is longer than the read. Engines that write sizes in capitals are left to a parser."""
HEADS = tuple(b"%x\r\n" % size for size in range(FRAMES_END))
"""How a chunk of so many bytes begins."""
CHUNK_SIZES = {form % size: size for size in range(1, FRAMES_END) for form in (b"%x", b"%X")}
"""Sizes of usual chunks as they are written; anything else is a parser's to read."""
