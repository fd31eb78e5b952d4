"""A configuration file that is edited while it is served by: when it is read again.

It is looked at each second, and read once it has stood still for a second, so that no half written file counts; SIGHUP has it
read at once.
"""

import asyncio
import stat
from abc import ABC, abstractmethod
from pathlib import Path

from forebay.app.files import TEAM_FILES_MAX, TEAMS_FOLDER

LOOK_EVERY_REAL_S = 1.0
Stamp = tuple[tuple[str, int, int, int], ...]
"""Of each file: name, time of its last change, size, inode."""


class WatchedFile(ABC):
    """The one at ``path``, with the teams' files beside it."""

    def __init__(self, path: Path, kept: Path | None = None) -> None:
        """``kept``: what is served by was read from there, where that is not the file at ``path`` itself."""
        self._path = path
        self._at_once = asyncio.Event()
        self._seen = self._stamp()
        self._read: Stamp = self._seen if kept is None or self._is_older(kept) else ()

    def ask(self) -> None:
        """Read it at once, changed or not."""
        self._at_once.set()

    async def run(self) -> None:
        """Look after it for ever."""
        while True:
            try:
                await asyncio.wait_for(self._at_once.wait(), LOOK_EVERY_REAL_S)
            except TimeoutError:
                stamp, before = await asyncio.to_thread(self._stamp), self._seen
                self._seen = stamp
                if stamp == self._read or stamp != before:
                    continue
            self._at_once.clear()
            self._read = await asyncio.to_thread(self._stamp)
            await self.reload()

    @abstractmethod
    async def reload(self) -> None:
        """Read it, and serve by it if it is right."""

    def _is_older(self, kept: Path) -> bool:
        """Whether all of the configuration was there when it was kept: an edit that a crash came before is taken by who starts then."""
        try:
            kept_ns = kept.stat().st_mtime_ns
        except OSError:
            return False
        return all(changed_ns < kept_ns for _, changed_ns, _, _ in self._seen)

    def _stamp(self) -> Stamp:
        folder = self._path.parent / TEAMS_FOLDER
        try:
            teams = sorted(folder.iterdir())[:TEAM_FILES_MAX] if folder.is_dir() else []
        except OSError:
            teams = []
        found = []
        for path in (self._path, *teams):
            try:
                told = path.stat()
                # A pipe that the configuration came by changes while it is read, and says nothing by that.
                changed = (told.st_mtime_ns, told.st_size) if stat.S_ISREG(told.st_mode) else (0, 0)
                found.append((path.name, *changed, told.st_ino))
            except OSError:
                found.append((path.name, 0, 0, 0))
        return tuple(found)
