"""An engine's output goes straight into a file, bounded from outside; its last lines are what explains a crash.

The engine writes with O_APPEND, so cutting the file to nothing while it writes is safe; a few lines written between the
copy and the cut are lost, which is the price of having no process between the engine and its log.
"""

import contextlib
import os
import shutil
from pathlib import Path

BYTES_MAX = 8 * 2**20
"""One generation of one replica's log; two are kept."""
TAIL_LINES = 8
TAIL_CHARS_MAX = 800
_TAIL_BYTES = 8192


class LogFile:
    """``DIR/REPLICA.log``, and ``DIR/REPLICA.log.1`` with what was before."""

    def __init__(self, directory: Path, replica_id: str, bytes_max: int = BYTES_MAX) -> None:
        self.path = directory / f"{replica_id}.log"
        self.older = directory / f"{replica_id}.log.1"
        self.bytes_max = bytes_max

    def open_new(self) -> int:
        """A descriptor to append to; the log of the last attempt becomes the older one. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.replace(self.path, self.older)
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)

    def bound(self) -> bool:
        """Move what is there aside if it is too much; True if it did. A log that cannot be bounded is left alone."""
        try:
            if self.path.stat().st_size <= self.bytes_max:
                return False
            shutil.copyfile(self.path, self.older)
            os.truncate(self.path, 0)
        except OSError:
            return False
        return True

    def tail(self) -> str:
        """The last lines that say something, joined by `` | ``, for people."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, self.path.stat().st_size - _TAIL_BYTES))
                text = file.read(_TAIL_BYTES).decode(errors="replace")
        except OSError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return " | ".join(lines[-TAIL_LINES:])[-TAIL_CHARS_MAX:]
