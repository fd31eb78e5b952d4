"""What was consumed, by whom: rows of the ledger, and how they travel from a gateway's journal to the ledger exactly once.

Every request that ends is an entry of its gateway's journal, numbered from 1. A batch sums the entries ``after < number <= upto``;
the ledger adds a batch up in the same step in which it notes ``upto``, and takes none twice. Whatever is sent again, or after a
crash of either side, is told by its numbers.
"""

from enum import IntEnum

import msgspec

SECONDS_PER_DAY = 86_400


class How(IntEnum):
    """How a request ended, as it is billed. The values are places in `UsageRow.counts`, and stand in journals: none is ever reused."""

    COMPLETED = 0
    REFUSED = 1
    """By its engine: the request was wrong."""
    SHED = 2
    """By the gateway: no room in time, or over a limit of its team."""
    FAILED = 3
    TRUNCATED = 4
    """Broken off by engines after its first content; the client was told so."""
    LEFT = 5
    """Its client left, or read nothing for too long."""


PROMPT, CACHED, OUTPUT, COUNTED, QUEUE_MS = range(len(How), len(How) + 5)
"""Further places: prompt tokens, those of them that were cached, output tokens, and world milliseconds in the lane; COUNTED: the prompt
and output tokens of answers whose engine did not tell, so that they were estimated and counted on the way."""
COUNTS = QUEUE_MS + 1
COUNT_NAMES = (*(how.name.lower() for how in How), "prompt_tokens", "cached_tokens", "output_tokens", "counted_tokens", "queue_ms")
NUMBER_BITS = 31
NUMBER_MAX = (1 << NUMBER_BITS) - 1
"""Of one request's tokens and milliseconds: what an engine tells beyond that is nonsense, and is cut."""

UsageKey = tuple[str, str, str, str]
"""Team, model, tier, pool."""


class UsageRow(msgspec.Struct, frozen=True, array_like=True):
    """Sums of one key over one day."""

    day: int
    """Days since 1970-01-01, UTC, of the requests' ends; 0: days too long ago to be kept apart."""
    key: UsageKey
    counts: tuple[int, ...]
    """By COUNT_NAMES."""


class UsageBatch(msgspec.Struct, frozen=True, tag="usage"):
    """Sums of a journal's entries ``after < number <= upto``."""

    gateway: str
    journal: str
    """A fresh name for each start of a gateway."""
    after: int
    upto: int
    rows: tuple[UsageRow, ...]


class UsageMark(msgspec.Struct, frozen=True, tag="usage_mark"):
    """The ledger has the entries up to ``upto`` of this journal, and has them on disk."""

    journal: str
    upto: int


class UsageTaken(msgspec.Struct, frozen=True):
    """What became of a batch in the ledger."""

    upto: int
    """Up to here it has the journal's entries now; not the batch's own where that did not begin at what was there."""
    missing: int = 0
    """Entries before the batch that another ledger acknowledged, and this one never got."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One request in a journal."""

    number: int
    unix_s: int
    key: UsageKey
    how: How
    exact: bool
    """Its tokens are the engine's own count."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_ms: int


class Leftover(msgspec.Struct, frozen=True):
    """What is in the journal of an earlier start of a gateway."""

    gateway: str
    journal: str
    blocks: tuple[UsageBatch, ...]
    """The journal's beginning: what was not acknowledged when the file was begun, already summed, in order."""
    entries: tuple[Entry, ...]
    """What was counted after, in order; where the disk refused, some are missing."""
    unread_bytes: int = 0
    """After a place that can't be read: more than the torn entry that a crash leaves."""


class Folded:
    """Sums entries into rows, by day and key."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, UsageKey], list[int]] = {}

    def __len__(self) -> int:
        return len(self._sums)

    def add(self, entry: Entry) -> None:
        """One more request."""
        sums = self._sums.setdefault((entry.unix_s // SECONDS_PER_DAY, entry.key), [0] * COUNTS)
        sums[entry.how] += 1
        sums[PROMPT] += entry.prompt_tokens
        sums[CACHED] += entry.cached_tokens
        sums[OUTPUT] += entry.output_tokens
        sums[QUEUE_MS] += entry.queue_ms
        if not entry.exact:
            sums[COUNTED] += entry.prompt_tokens + entry.output_tokens

    def take(self, row: UsageRow) -> None:
        """Another row's sums."""
        sums = self._sums.setdefault((row.day, row.key), [0] * COUNTS)
        for place, count in enumerate(row.counts):
            sums[place] += count

    def rows(self) -> tuple[UsageRow, ...]:
        """In the order in which they were first met."""
        return tuple(UsageRow(day, key, tuple(sums)) for (day, key), sums in self._sums.items())
