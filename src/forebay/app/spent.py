"""What other people's engines were paid in the last hour, in a file: a gateway that crashes and starts again goes on within the budget."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from forebay.app.files import write_whole
from forebay.domain.errors import ForebayError
from forebay.gateway.overflow import Spent

SPENT_FILE = "spent.json"
READ_BYTES_MAX = 2**20


class SpentFile:
    """`gateway.overflow.Ledger` at ``path``. ``say`` hears, once, that it can't be read or written."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._said = False

    def load(self) -> Spent:
        """As it was saved last; empty where it is not there."""
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

    def _trouble(self, words: str) -> None:
        if not self._said:
            self._said = True
            self._say(f"{words}: a gateway that starts again will not know what it has spent this hour")
