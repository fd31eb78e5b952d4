"""What other people's engines were paid in the last hour, in a file: a gateway that crashes and starts again goes on within the budget.

Gateways that share a state folder have a budget each, so each has a file: the first that no other one holds.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from forebay.app.files import write_whole
from forebay.domain.errors import ForebayError
from forebay.gateway.overflow import Spent

SPENT_FILE = "spent.json"
READ_BYTES_MAX = 2**20
FILES_MAX = 64
"""Gateways that may share a folder."""


class SpentFile:
    """`gateway.overflow.Ledger` at ``path``. ``say`` hears, once, that it can't be read or written."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._said = False
        self._lock = -1

    def load(self) -> Spent:
        """As the last process saved it that held this file, which is this one's from now on; empty where it is not there."""
        self._hold()
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(READ_BYTES_MAX), type=Spent)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            self._trouble(f"{self._path} can't be read ({error})")
            return {}

    def save(self, spent: Spent) -> None:
        """Replace it in one step: what is reserved must be on disk before it is spent."""
        try:
            write_whole(self._path, msgspec.json.encode(spent), 0o600)
        except ForebayError as error:
            self._trouble(str(error))

    def _hold(self) -> None:
        """Lock the first file that is free; the kernel lets go of it when this process ends, however that is."""
        path = self._path
        for number in range(FILES_MAX if self._lock < 0 else 0):
            own = path if not number else path.with_name(f"{path.stem}.{number}{path.suffix}")
            try:
                lock = os.open(own.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                self._trouble(f"{own.with_suffix('.lock')} can't be made ({error.strerror})")
                return
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._path, self._lock = own, lock
                return
            os.close(lock)

    def _trouble(self, words: str) -> None:
        if not self._said:
            self._said = True
            self._say(f"{words}: a gateway that starts again will not know what it has spent this hour")
