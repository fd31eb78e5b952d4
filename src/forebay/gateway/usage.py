"""What the gateway has counted and no ledger has acknowledged yet: sums by team, model, tier and pool, sealed into numbered batches.

Each request that ends is counted here and in the journal, under one number. What is counted since the last batch is open; it is
sealed when the ledger is ready for more, and sent as it is until the ledger acknowledges it: so a batch that is sent twice is the
very same one. What earlier starts left goes before (`Past`).
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

from forebay.domain.shape import Usage
from forebay.domain.usage import (
    CACHED,
    COUNTED,
    COUNTS,
    NUMBER_BITS,
    NUMBER_MAX,
    OUTPUT,
    PROMPT,
    QUEUE_MS,
    SECONDS_PER_DAY,
    Folded,
    How,
    Leftover,
    UsageBatch,
    UsageKey,
    UsageMark,
    UsageRow,
)
from forebay.ports.journal import Journal

BATCH_ROWS_MAX = 8_192
"""Of one batch: it travels as one line, and its rows take a few hundred bytes each."""
SEALED_MAX = 64
"""Batches that wait for a ledger: half a million rows. What comes beyond that is counted as lost, and said."""
_MS: Final = 1000.0
# In names of their own, that a compiled module need not look up.
_PROMPT: Final = PROMPT
_CACHED: Final = CACHED
_OUTPUT: Final = OUTPUT
_COUNTED: Final = COUNTED
_QUEUE_MS: Final = QUEUE_MS
_COUNTS: Final = COUNTS
_BITS: Final = NUMBER_BITS


class UsageBook:
    """One gateway's. ``count`` is called from the data path; times are Unix seconds of the world."""

    def __init__(self, gateway: str, journal: Journal) -> None:
        self.journal = journal
        self.lost_requests = 0
        """Counted nowhere: there was no room any more."""
        self.unwritten_requests = 0
        """Counted while the journal could not be written, and not acknowledged yet: a crash would lose them."""
        self.totals: dict[UsageKey, list[int]] = {}
        """Of this start, up to the last batch that was sealed; by `domain.usage.COUNT_NAMES`."""
        self._gateway = gateway
        self._number = 0
        self._sealed: deque[UsageBatch] = deque()
        self._sealed_upto = 0
        self._rows: list[UsageRow] = []
        """Of the open batch: days that are over."""
        self._cells: dict[UsageKey, list[int]] = {}
        """Of the open batch: today's sums, and at the end the number by which the journal names the key."""
        self._day = 0
        self._begins_s = self._ends_s = 0.0
        self._append = journal.append
        self._unwritten_from = 0

    def count(self, key: UsageKey, how: How, usage: Usage | None, queue_s: float, unix_s: float) -> None:
        """A request has ended."""
        cell = self._cells.get(key)
        if cell is None or unix_s >= self._ends_s or unix_s < self._begins_s:
            cell = self._cell(key, unix_s)
        prompt = cached = output = 0
        exact = True
        if usage is not None:
            prompt, cached, output, exact = usage.prompt_tokens, usage.cached_tokens, usage.output_tokens, usage.exact
            if (prompt | cached | output) >> _BITS or cached > prompt:  # one is too large, or negative
                prompt, output = _cut(prompt), _cut(output)
                cached = min(_cut(cached), prompt)
            cell[_PROMPT] += prompt
            cell[_OUTPUT] += output
            if cached:
                cell[_CACHED] += cached
            if not exact:
                cell[_COUNTED] += prompt + output
        queue_ms = 0
        if queue_s:
            queue_ms = _cut(int(queue_s * _MS + 0.5))
            cell[_QUEUE_MS] += queue_ms
        cell[how] += 1
        self._number = number = self._number + 1
        self._append(number, cell[_COUNTS], int(unix_s), how, exact, prompt, cached, output, queue_ms)

    @property
    def unreported_requests(self) -> int:
        """Counted and not acknowledged."""
        return self._number - (self._sealed[0].after if self._sealed else self._sealed_upto)

    def unreported_tokens(self) -> tuple[int, int]:
        """Of prompts and answers, in what is counted and not acknowledged."""
        rows = [row.counts for block in self.blocks() for row in block.rows]
        return sum(counts[PROMPT] for counts in rows), sum(counts[OUTPUT] for counts in rows)

    def blocks(self) -> list[UsageBatch]:
        """Everything that is not acknowledged, in order: what a new file of the journal begins with."""
        blocks = list(self._sealed)
        if self._number > self._sealed_upto:
            blocks.append(UsageBatch(self._gateway, self.journal.name, self._sealed_upto, self._number, tuple(self._open())))
        return blocks

    def outgoing(self) -> UsageBatch | None:
        """The batch to send now: the earliest that is not acknowledged; None: there is nothing to tell."""
        if not self._sealed:
            self._seal()
        return self._sealed[0] if self._sealed else None

    def acknowledged(self, mark: UsageMark) -> bool:
        """The ledger said what it has; False where that is none of this start's journal."""
        if mark.journal != self.journal.name:
            return False
        sealed = self._sealed
        while sealed and sealed[0].upto <= mark.upto:
            sealed.popleft()
        if sealed and sealed[0].after < mark.upto:
            # No ledger can have half of a batch: a damaged one is not told the same for ever.
            lost = sealed.popleft()
            self.lost_requests += lost.upto - mark.upto
        self.look()
        return True

    def look(self) -> None:
        """Note from where on the journal lacks entries."""
        if not self.journal.problem:
            self._unwritten_from = self._number
        self.unwritten_requests = self._number - max(self._unwritten_from, self._number - self.unreported_requests)

    def shown(self) -> Iterator[tuple[UsageKey, list[int]]]:
        """Sums of this start by key."""
        totals = {key: list(sums) for key, sums in self.totals.items()}
        for row in self._open():
            _add(totals, row)
        return iter(totals.items())

    def _cell(self, key: UsageKey, unix_s: float) -> list[int]:
        if not self._begins_s <= unix_s < self._ends_s:
            self._rows.extend(self._today())
            self._cells.clear()
            self._day = int(unix_s // SECONDS_PER_DAY)
            self._begins_s = float(self._day * SECONDS_PER_DAY)
            self._ends_s = self._begins_s + SECONDS_PER_DAY
        if len(self._rows) + len(self._cells) >= BATCH_ROWS_MAX:
            self._seal()
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = [0] * (COUNTS + 1)
            cell[COUNTS] = self.journal.index_of(key)
        return cell

    def _today(self) -> Iterator[UsageRow]:
        return (UsageRow(self._day, key, tuple(cell[:COUNTS])) for key, cell in self._cells.items())

    def _open(self) -> Iterator[UsageRow]:
        yield from self._rows
        yield from self._today()

    def _seal(self) -> None:
        if self._number == self._sealed_upto:
            return
        batch = UsageBatch(self._gateway, self.journal.name, self._sealed_upto, self._number, tuple(self._open()))
        self._rows.clear()
        self._cells.clear()
        self._sealed_upto = self._number
        for row in batch.rows:
            _add(self.totals, row)
        if len(self._sealed) >= SEALED_MAX:
            self.lost_requests += batch.upto - batch.after
        else:
            self._sealed.append(batch)


class Past:
    """What one earlier start left, told to the ledger from where it has it; ``upto`` is where it ends."""

    def __init__(self, left: Leftover) -> None:
        self.journal = left.journal
        self._left = left
        self._has = left.blocks[0].after if left.blocks else left.entries[0].number - 1 if left.entries else 0
        """What the ledger has, as far as is known: it was told by the one who began the file, or tells now."""
        self.upto = left.entries[-1].number if left.entries else left.blocks[-1].upto if left.blocks else 0
        self.lost_requests = 0
        """Numbers that were given and are found nowhere."""
        self._batch = self._made()

    @property
    def requests(self) -> int:
        """That the ledger may not have."""
        return self.upto - self._has

    @property
    def done(self) -> bool:
        """The ledger has everything."""
        return self._has >= self.upto

    def outgoing(self) -> UsageBatch | None:
        """The batch to send now; None: there is nothing more."""
        return None if self.done else self._batch

    def acknowledged(self, mark: UsageMark) -> bool:
        """The ledger said what it has; False where that is none of this journal."""
        if mark.journal != self.journal:
            return False
        if mark.upto > self._has:
            if mark.upto == self._batch.upto:
                self.lost_requests += self._missing
            self._has = mark.upto
            self._batch = self._made()
        return True

    def _made(self) -> UsageBatch:
        """From what the ledger has on, as many as go into one batch."""
        folded, left, upto, found = Folded(), self._left, self._has, 0
        for block in left.blocks:
            if block.after < upto:
                continue  # the ledger has it
            if folded and len(folded) + len(block.rows) > BATCH_ROWS_MAX:
                break
            for row in block.rows:
                folded.take(row)
            found += block.upto - block.after
            upto = block.upto
        else:
            summed_upto = left.blocks[-1].upto if left.blocks else 0
            for entry in left.entries:
                if entry.number > max(upto, summed_upto) and len(folded) < BATCH_ROWS_MAX:
                    folded.add(entry)
                    found += 1
                    upto = entry.number
        self._missing = upto - self._has - found
        return UsageBatch(left.gateway, left.journal, self._has, upto, folded.rows())


def _add(totals: dict[UsageKey, list[int]], row: UsageRow) -> None:
    sums = totals.setdefault(row.key, [0] * COUNTS)
    for place, count in enumerate(row.counts):
        sums[place] += count


def _cut(number: int) -> int:
    """What is no number of tokens is none."""
    return max(0, min(NUMBER_MAX, number))
