"""What a gateway keeps for its next process, in a file of the state folder which only its owner may read; read and written in a thread."""

import asyncio
from pathlib import Path

from forebay.app.files import write_whole
from forebay.domain.errors import ForebayError

ROSTER_BYTES_MAX = 9 * 2**20
"""A roster comes in a line of at most 8 MB (`gateway.link`); and what is said of it."""


class KeptFile:
    """`gateway.keeping.Shelf` at ``path``, for ``what``, of so many bytes at most."""

    def __init__(self, path: Path, what: str, bytes_max: int) -> None:
        self._path = path
        self._what = what
        self._bytes_max = bytes_max

    async def load(self) -> bytes:
        """See `gateway.keeping.Shelf`."""
        return await asyncio.to_thread(self._read)

    async def save(self, content: bytes) -> None:
        """See `gateway.keeping.Shelf`."""
        if len(content) > self._bytes_max:
            raise ForebayError(f"{self._path}: {self._what} of {len(content)} bytes is not kept; allowed: {self._bytes_max}")
        # Not synced: what it says is worth nothing after the machine itself has ended.
        await asyncio.to_thread(write_whole, self._path, content, 0o600)

    async def drop(self) -> None:
        """See `gateway.keeping.Shelf`."""
        await asyncio.to_thread(self._unlink)

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                content = file.read(self._bytes_max + 1)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise ForebayError(f"{self._path}: {error.strerror}") from None
        if len(content) > self._bytes_max:
            raise ForebayError(f"{self._path}: more than {self._bytes_max} bytes")
        return content

    def _unlink(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise ForebayError(f"can't remove {self._path}: {error.strerror}") from None
