"""A gateway's journal on disk: one file for each start, written at once, synced a little later, folded small now and then.

**What a crash loses.** An entry is in the file (the kernel's copy of it) when ``append`` returns: a process killed at any
moment after it loses nothing. A machine that loses power loses what ``keep`` had not synced: the last fraction of a second.

**How it stays small.** A file of `FOLD_AFTER_ENTRIES` is replaced by one that begins with the sums of all that no ledger
has acknowledged: a few rows. The new one takes its name only when all is in it, and the old one goes only when that is on the disk.
The same heals a file that could not be written: what was in memory only is in the sums.

**Whose it is.** Each gateway locks a folder, the first of its name that nobody holds, and takes what lies in all that nobody
holds: so no journal is read that is still written, and none waits for a gateway that never comes back.
"""

import asyncio
import contextlib
import fcntl
import os
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path

from forebay.adapters.journal.frames import CRC, ENTRY, ENTRY_BYTES, ENTRY_PAYLOAD_BYTES, FORMAT, Head, Key, Kind, frame, read
from forebay.domain.usage import How, Leftover, UsageBatch, UsageKey
from forebay.ports.journal import Blocks

SUFFIX = ".usage"
FOLD_AFTER_ENTRIES = 16_384
"""0.7 MB: read back in a tenth of a second."""
FILE_BYTES_MAX = 16 * 2**20
"""Where no new file can be begun, the old one is written on to here; after it, entries are in memory only."""
LEFTOVERS_MAX = 1024
"""Journals of earlier starts that no ledger took; the oldest beyond that are lost, which is said."""
FOLDERS_MAX = 64
"""Gateways of one name that may write below one root."""
ADOPTED_MAX = 1024
"""Folders looked at for what gateways left that are gone."""
_ENTRY_KIND = int(Kind.ENTRY)


class FileJournal:
    """`ports.Journal` in the folder ``root``/``gateway``, or the next that is free. It makes the folder and begins its file at once."""

    def __init__(self, root: Path, gateway: str, name: str) -> None:
        """``name``: fresh for each start, and safe in a file name."""
        self.name = name
        self.problem = ""
        self.lost_files = 0
        self._gateway = gateway
        self._root = self._folder = root
        self._lock = -1
        self._keys: dict[UsageKey, int] = {}
        self._fd = -1
        self._at = 0
        self._entries = 0
        self._generation = 0
        self._path: Path | None = None
        self._dirty = False
        self._making = threading.Lock()
        self._since: list[bytes] | None = None
        """What is appended while a new file is made from the sums of a moment before."""
        try:
            self._take(self._begin(()), b"")
        except OSError as error:
            self._failed(error)

    # -- the data path ------------------------------------------------------------------------------------------------

    def index_of(self, key: UsageKey) -> int:
        """Each key is written once, before the first entry that names it."""
        index = self._keys.get(key)
        if index is None:
            index = self._keys[key] = len(self._keys)
            self._write(frame(Key(index, key)))
        return index

    def append(
        self, number: int, index: int, unix_s: int, how: How, exact: bool, prompt: int, cached: int, output: int, queue_ms: int
    ) -> None:
        """One write of `ENTRY_BYTES`."""
        entry = ENTRY.pack(ENTRY_PAYLOAD_BYTES, _ENTRY_KIND, number, unix_s, index, how, exact, prompt, cached, output, queue_ms)
        self._entries += 1
        at = self._at
        if self._since is None and not self.problem and at <= FILE_BYTES_MAX:
            try:
                if os.pwrite(self._fd, CRC.pack(zlib.crc32(entry)) + entry, at) == ENTRY_BYTES:
                    self._at = at + ENTRY_BYTES
                    self._dirty = True
                    return
            except OSError as error:
                self._failed(error)
                return
        self._write(CRC.pack(zlib.crc32(entry)) + entry)

    def _write(self, data: bytes) -> None:
        if self._since is not None:
            self._since.append(data)
        if self.problem:
            return
        try:
            at = self._at
            if at > FILE_BYTES_MAX:
                raise OSError(0, "it is full, and no new one could be begun")
            written = os.pwrite(self._fd, data, at)
            self._at = at + written
            self._dirty = True
            if written != len(data):
                raise OSError(0, "a write was cut short")
        except OSError as error:
            # After a hole nothing would be read: a new file is begun instead, by `keep`.
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        self.problem = f"{self._path or self._folder}: {error.strerror or error}; usage is counted in memory only until it can be written"

    # -- now and then -------------------------------------------------------------------------------------------------

    async def keep(self, blocks: Blocks) -> None:
        """Sync in a thread; begin a new file where the present one is long or failed."""
        if self._dirty and not self.problem:
            self._dirty = False
            try:
                await asyncio.to_thread(os.fdatasync, self._fd)
            except OSError as error:
                self._failed(error)
        if self.problem or self._entries >= FOLD_AFTER_ENTRIES:
            await self._renew(blocks())

    async def _renew(self, blocks: Sequence[UsageBatch]) -> None:
        self._since = []
        try:
            made = await asyncio.to_thread(self._begin_alone, blocks)
        except OSError as error:
            if self.problem:
                self._failed(error)
            return  # the one there is goes on, and the next look tries again
        finally:
            since, self._since = b"".join(self._since), None
        try:
            old_fd, old_path = self._fd, self._path
            self._take(made, since)
        except OSError as error:
            self._failed(error)
            return
        with contextlib.suppress(OSError):
            await asyncio.to_thread(_retire, self._folder, self._fd, old_fd, old_path)

    def _begin_alone(self, blocks: Sequence[UsageBatch]) -> tuple[int, Path, int]:
        """`_begin`, once another thread is done with it: one can't be stopped, though whoever waited for it was."""
        with self._making:
            return self._begin(blocks)

    def _begin(self, blocks: Sequence[UsageBatch]) -> tuple[int, Path, int]:
        """Descriptor, path and size of a file that has no name yet but ``….part``: head, keys and ``blocks`` are in it, on the disk."""
        if self._lock < 0:
            self._folder, self._lock = _own_folder(self._root, self._gateway)
            _adopt(self._root, self._folder)
        path = self._folder / f"{self.name}-{self._generation:06d}{SUFFIX}"
        begun = frame(Head(FORMAT, self._gateway, self.name))
        begun += b"".join(frame(Key(index, key)) for key, index in list(self._keys.items()))
        begun += b"".join(map(frame, blocks))
        fd = os.open(_part(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(fd, begun, 0)
            os.fdatasync(fd)
        except OSError:
            _discard(fd, _part(path))
            raise
        return fd, path, len(begun)

    def _take(self, made: tuple[int, Path, int], since: bytes) -> None:
        """From now on entries go into this file, ``since`` first."""
        fd, path, size = made
        try:
            _write_all(fd, since, size)
            os.replace(_part(path), path)
        except OSError:
            _discard(fd, _part(path))
            raise
        self._fd, self._path, self._at = fd, path, size + len(since)
        self._entries = len(since) // ENTRY_BYTES
        self._generation += 1
        self._dirty = True
        self.problem = ""

    # -- earlier starts -----------------------------------------------------------------------------------------------

    async def leftover(self) -> Leftover | None:
        """The earliest other journal of this folder."""
        return await asyncio.to_thread(self._leftover)

    def _leftover(self) -> Leftover | None:
        if self._lock < 0:
            return None
        journals = _journals(self._folder)
        journals.pop(self.name, None)
        names = sorted(journals, key=lambda name: (_changed_s(journals[name][-1]), name))
        for name in names[: max(0, len(names) - LEFTOVERS_MAX)]:
            self.lost_files += 1
            _remove(journals[name])
        for name in names[max(0, len(names) - LEFTOVERS_MAX) :]:
            # The last that was begun has all that those before it have.
            found = _read(journals[name][-1], name)
            if found is not None:
                return found
            self.lost_files += 1
            for path in journals[name]:
                with contextlib.suppress(OSError):
                    path.rename(path.with_suffix(".unreadable"))
        return None

    async def forget(self, journal: str) -> None:
        """Its files go."""
        await asyncio.to_thread(self._forget, journal)

    def _forget(self, journal: str) -> None:
        _remove(_journals(self._folder).get(journal, []))

    def close(self, acknowledged: bool) -> None:
        """Leave nothing where nothing is needed any more."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.fdatasync(self._fd)
            os.close(self._fd)
            self._fd = -1
            if acknowledged:
                self._forget(self.name)
        self.problem = "closed"
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _own_folder(root: Path, gateway: str) -> tuple[Path, int]:
    """The first folder of this gateway's name that nobody holds, locked. Raises OSError."""
    for count in range(FOLDERS_MAX):
        folder = root / (gateway if not count else f"{gateway}.{count}")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        return folder, lock
    raise OSError(0, f"{FOLDERS_MAX} gateways write there already")


def _adopt(root: Path, own: Path) -> None:
    """Take over the files in every folder that no gateway holds, and drop what was never finished here."""
    _remove(list(own.glob("*.part")))
    for folder in sorted(root.iterdir())[:ADOPTED_MAX]:
        if folder == own or not (folder / "lock").is_file():
            continue
        with (folder / "lock").open("rb") as lock, contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in folder.glob(f"*{SUFFIX}"):
                path.replace(own / path.name)


def _journals(folder: Path) -> dict[str, list[Path]]:
    """The files of each journal, in the order they were begun."""
    found: dict[str, list[Path]] = {}
    with contextlib.suppress(OSError):
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            found.setdefault(path.name.rpartition("-")[0], []).append(path)
    return found


def _read(path: Path, journal: str) -> Leftover | None:
    try:
        return read(path.read_bytes(), journal)
    except OSError:
        return None


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _retire(folder: Path, fd: int, old_fd: int, old_path: Path | None) -> None:
    """The old file goes once the new one, under its name, is on the disk."""
    os.fdatasync(fd)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    if old_path is not None:
        old_path.unlink(missing_ok=True)
    if old_fd >= 0:
        os.close(old_fd)


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _discard(fd: int, path: Path) -> None:
    os.close(fd)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _write_all(fd: int, data: bytes, at: int) -> None:
    while data:
        written = os.pwrite(fd, data, at)
        data, at = data[written:], at + written
