"""Where a gateway notes each request that ended, before it reports it: what a crash of the gateway must not lose."""

from collections.abc import Callable, Sequence
from typing import Protocol

from forebay.domain.usage import How, Leftover, UsageBatch, UsageKey

Blocks = Callable[[], Sequence[UsageBatch]]
"""Everything that no ledger has acknowledged, summed, in order: what a new file of the journal begins with."""


class Journal(Protocol):
    """One start's entries, and what earlier starts left. Nothing here raises: what can't be written is said by ``problem``."""

    name: str
    """Fresh for each start."""
    problem: str
    """Why entries are in memory only at present, in words for people; empty while they are written."""
    lost_files: int
    """Of earlier starts, that could not be read or were too many."""

    def index_of(self, key: UsageKey) -> int:
        """The number by which entries name this key."""
        ...

    def append(
        self, number: int, index: int, unix_s: int, how: How, exact: bool, prompt: int, cached: int, output: int, queue_ms: int
    ) -> None:
        """Note one request, called from the data path; a crash of the process after it loses nothing of it."""
        ...

    async def keep(self, blocks: Blocks) -> None:
        """Now and then: have what was appended survive a power loss too, keep the file small, and begin a new one where one failed."""
        ...

    async def leftover(self) -> Leftover | None:
        """What the earliest other start left, or None."""
        ...

    async def forget(self, journal: str) -> None:
        """The ledger has all of this one's entries."""
        ...

    def close(self, acknowledged: bool) -> None:
        """No more entries; ``acknowledged``: the ledger has all of them."""
        ...


class NoJournal:
    """Keeps nothing: a crash loses what no ledger has acknowledged."""

    def __init__(self, name: str, problem: str = "") -> None:
        self.name = name
        self.problem = problem
        self.lost_files = 0

    def index_of(self, key: UsageKey) -> int:
        """There is nothing to name it in."""
        del key
        return 0

    def append(
        self, number: int, index: int, unix_s: int, how: How, exact: bool, prompt: int, cached: int, output: int, queue_ms: int
    ) -> None:
        """Not noted."""

    async def keep(self, blocks: Blocks) -> None:
        """Nothing to keep."""

    async def leftover(self) -> Leftover | None:
        """None was left."""
        return None

    async def forget(self, journal: str) -> None:
        """Nothing to forget."""

    def close(self, acknowledged: bool) -> None:
        """Nothing to close."""
