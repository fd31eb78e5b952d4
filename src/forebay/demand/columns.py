"""Traces as columns: the same rows as `demand.trace` reads, a block of the file at a time, so that a week of them streams.

Plain CSV and JSON lines are read for all rows of a block at once; whatever is not plain goes row by row through the exact
reader, which names the line. Strict reading stops at the first broken row; lenient reading counts and skips, and puts
right what is out of order within a block and ``REORDER_ROWS_MAX`` rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.demand import blocks, named
from forebay.demand.arrays import Arrivals, ArrivalSource, by_time, empty, in_chunks, joined, taken
from forebay.demand.counts import Counts
from forebay.demand.json_blocks import JsonBlocks, since_first
from forebay.demand.prefixes import Prefixes
from forebay.demand.summer_time import SkippedHour
from forebay.demand.synthesis import UNSAID, bare
from forebay.demand.trace import (
    AZURE_COLUMNS,
    BURSTGPT_COLUMNS,
    FORMATS,
    REORDER_ROWS_MAX,
    REPEATS_SHARE_MAX,
    ROW_COLUMNS,
    SECONDS_MAX,
    TOKENS_MAX,
    WALL_S_MAX,
    Place,
    TraceRow,
    backwards,
    beyond,
    columns,
    strictly,
)
from forebay.domain.errors import BadInput

TIERS_MAX = 64
"""Names of tiers that a trace may bring along."""
TIME_KINDS = {"at_s": "seconds", "wall_s": "unix", "timestamp": "either"}
_Fast = Callable[[bytes], Arrivals | None]


class Reader:
    """One reading of one trace: give it blocks of whole lines, take ``Arrivals``; ``place`` and ``counts`` say what came of it."""

    def __init__(
        self,
        trace_format: str,
        name: str,
        tiers: Sequence[str] | None,
        *,
        lenient: bool = False,
        renamed: Mapping[str, str] | None = None,
        counts: Counts | None = None,
    ) -> None:
        """``tiers``: names, most important first (None: those the trace brings, as they come).

        ``renamed``: what a CSV, or JSON lines, call our columns. Raises BadInput for an unknown format.
        """
        if trace_format not in FORMATS:
            raise BadInput(f"trace format {trace_format!r}; allowed: {', '.join(FORMATS)}")
        self.place = Place(name, renamed, Prefixes() if trace_format == "mooncake" else None)
        self.counts = counts or Counts()
        self._format = trace_format
        self._tiers = {tier: number for number, tier in enumerate(tiers or ())}
        self._learning = tiers is None
        self._lenient = lenient
        self._slow: Callable[[str], TraceRow | None] | None = None
        self._fast: _Fast | None = None
        self._last_s = -np.inf
        self._tail = b""

    def read(self, whole_lines: Iterable[bytes]) -> ArrivalSource:
        """Chunks of at most ``CHUNK_ROWS`` rows in order of time, tiers that rows don't name left ``UNSAID``.

        Raises BadInput that names the line for a broken row, one out of order, or a tier that is none, unless lenient.
        """
        raw = (self._block(block) for block in whole_lines)
        ordered = _reordered(raw, self.counts, self.place) if self._lenient else raw
        skipped = SkippedHour(self.place.since, self.counts)
        for chunk in ordered:
            skipped.saw(chunk.at_s)
            yield from in_chunks(chunk)

    @property
    def tiers(self) -> tuple[str, ...]:
        """Names by index: those given, or those that came so far."""
        return tuple(self._tiers)

    @property
    def start_wall_s(self) -> float:
        """Unix time of second 0, once a row was read; 0.0 where the trace has no dates."""
        return 0.0 if self.place.since.origin_us is None else self.place.since.origin_us / 1e6

    def _block(self, block: bytes) -> Arrivals:
        if self._slow is None:
            block = self._begin(block)
        tail, self._tail = self._tail, block[block.rfind(b"\n", 0, len(block) - 1) + 1 :] if block else self._tail
        if self._format == "azure" and self._slow is not None and tail and block.startswith(tail):
            # The row before comes again, over the edge of two blocks: the exact reader must have seen it to say so.
            with suppress(BadInput):
                self._slow(tail.decode("utf-8", "replace").strip())
        elif self._fast is not None:
            before = (self.place.line, self.counts.failures, self.counts.unanswered)
            rows = self._fast(block)
            if rows is not None and self._plain(rows):
                self.counts.rows += len(rows.at_s)
                return rows
            self.place.line, self.counts.failures, self.counts.unanswered = before
        return self._row_by_row(block)

    def _begin(self, block: bytes) -> bytes:
        """Take the header, or see that there is none; what is left of ``block``."""
        while block and self._slow is None:
            line, _, rest = block.partition(b"\n")
            text = line.decode("utf-8", "replace").lstrip("\ufeff").strip()
            self.place.line += 1
            if text:
                self._slow, is_header = FORMATS[self._format](text, self.place)
                self._fast = _fast(self._format, text, self.place, self._tiers, self.counts)
                if not is_header:
                    self.place.line -= 1  # it is read again, as a row
                    return block
            block = rest
        return block

    def _plain(self, rows: Arrivals) -> bool:
        if len(rows.at_s) == 0:
            return True
        if rows.at_s.max() > SECONDS_MAX or (not self._lenient and (rows.at_s[0] < self._last_s or np.any(np.diff(rows.at_s) < 0))):
            return False
        self._last_s = float(rows.at_s[-1])
        return True

    def _row_by_row(self, block: bytes) -> Arrivals:
        rows: list[tuple[float, int, int, int, int, int]] = []
        text = block.decode("utf-8", "replace")
        for raw in text.removesuffix("\n").split("\n") if text else ():
            self.place.line += 1
            line = raw.lstrip("\ufeff").strip()
            if not line:
                continue
            try:
                row = self._row(line)
            except BadInput as error:
                if not self._lenient:
                    raise strictly(error) from None
                self.counts.skip(error)
                continue
            if row is None:
                self.counts.failures += 1
            else:
                rows.append(row)
        self.counts.rows += len(rows)
        if not rows:
            return empty()
        at_s, prompt, output, tier, group, shared = zip(*rows, strict=True)
        return Arrivals(
            np.array(at_s, np.float64),
            np.array(prompt, np.int32),
            np.array(output, np.int32),
            np.array(tier, np.int16),
            np.array(group, np.int64),
            np.array(shared, np.int32),
        )

    def _row(self, line: str) -> tuple[float, int, int, int, int, int] | None:
        assert self._slow is not None
        row = self._slow(line)
        if row is None:
            return None
        if row.at_s > SECONDS_MAX:
            raise beyond(row.at_s, float(self._last_s), self.place)
        tier = self._tiers.get(row.tier, UNSAID)
        if row.tier and tier == UNSAID:
            if not self._learning or len(self._tiers) >= TIERS_MAX:
                allowed = f"at most {TIERS_MAX} names" if self._learning else f"{', '.join(self._tiers)}, or no tier at all"
                raise self.place.error("tier", row.tier, allowed)
            tier = self._tiers[row.tier] = len(self._tiers)
        if not self._lenient and row.at_s < self._last_s:
            raise backwards(row.at_s, float(self._last_s), self.place)
        self._last_s = row.at_s
        self.counts.unanswered += row.output_tokens == 0
        return row.at_s, row.prompt_tokens, max(row.output_tokens, 1), tier, row.group, row.shared_tokens


def _reordered(raw: Iterator[Arrivals], counts: Counts, place: Place) -> ArrivalSource:
    held, given_s = empty(), 0.0  # The first row is second 0 where rows have dates: what is dated before it belongs to no span.
    latest_s = 0.0
    for block in raw:
        before_s = np.maximum.accumulate(np.concatenate(([latest_s], block.at_s)))
        back_s = before_s[:-1] - block.at_s
        late, behind, latest_s = block.at_s < given_s, back_s > 0, float(before_s[-1])
        if np.any(behind):
            counts.went_back(float(back_s.max()), place.since.origin_us is not None)
            counts.sorted += int(np.count_nonzero(behind & ~late))
        if np.any(late):
            counts.late += int(late.sum())
            counts.rows -= int(late.sum())
            block = taken(block, ~late)
        rows = by_time(joined(held, block))
        ready = max(0, len(rows.at_s) - REORDER_ROWS_MAX)
        held = taken(rows, slice(ready, None))
        if ready:
            given_s = float(rows.at_s[ready - 1])
            yield taken(rows, slice(0, ready))
    if len(held.at_s):
        yield held


class _Plan(NamedTuple):
    """Where a plain CSV has what."""

    width: int
    at: int
    kind: str
    """Of the time: ``date``, ``seconds``, ``unix``, or ``either`` of the first two."""
    prompt: int
    output: int
    least_output: int
    failures: bool = False
    """Rows of no output tokens are failures, and left out; else they are taken for one token."""
    tier: int | None = None
    group: int | None = None
    shared: int | None = None


def _fast(trace_format: str, header: str, place: Place, tiers: Mapping[str, int], counts: Counts) -> _Fast | None:
    if trace_format in ("jsonl", "ledger"):
        return JsonBlocks(header, place, tiers, counts).read
    plan = _plan(trace_format, header, place)
    return None if plan is None else lambda block: _plain(block, plan, place, tiers, counts)


def _plan(trace_format: str, header: str, place: Place) -> _Plan | None:
    if trace_format == "azure":
        (at, prompt, output), width = columns(header, AZURE_COLUMNS, place)
        return _Plan(width, at, "date", prompt, output, 1)
    if trace_format == "burstgpt":
        (at, prompt, output), width = columns(header, BURSTGPT_COLUMNS, place)
        return _Plan(width, at, "seconds", prompt, output, 0, failures=True)
    if trace_format != "csv":
        return None
    names = named.header_names(header)
    kind, called = named.time_kind(place.columns, names), named.called(place.columns, names)
    at, prompt, output = (names.index(called[name]) for name in (kind, "prompt_tokens", "output_tokens"))
    tier, group, shared = (names.index(called[name]) if called[name] in names else None for name in ROW_COLUMNS[2:])
    return _Plan(len(names), at, TIME_KINDS[kind], prompt, output, 0, tier=tier, group=group, shared=shared)


def _plain(block: bytes, plan: _Plan, place: Place, tiers: Mapping[str, int], counts: Counts) -> Arrivals | None:
    cells = blocks.split(block, plan.width)
    if cells is None:
        return None
    prompt, output = blocks.integers(cells, plan.prompt), blocks.integers(cells, plan.output)
    if prompt is None or output is None or not len(prompt):
        return None
    if prompt.min() < 1 or prompt.max() > TOKENS_MAX or output.min() < plan.least_output or output.max() > TOKENS_MAX:
        return None
    rows = _with_more(bare(np.empty(len(prompt)), prompt.astype(np.int32), output.astype(np.int32)), cells, plan, tiers)
    if rows is None:
        return None
    at_s = _times(cells, plan, rows, place)
    if at_s is None:
        return None
    place.line += len(prompt)
    rows = rows._replace(at_s=at_s)
    empty_handed = int(np.count_nonzero(output == 0))
    if not empty_handed:
        return rows
    if plan.failures:
        counts.failures += empty_handed
        return taken(rows, output > 0)
    counts.unanswered += empty_handed
    return rows._replace(output_tokens=np.maximum(rows.output_tokens, 1))


def _times(cells: blocks.Cells, plan: _Plan, rows: Arrivals, place: Place) -> npt.NDArray[np.float64] | None:
    numbers = blocks.decimals(cells, plan.at) if plan.kind in ("seconds", "either") else None
    if numbers is not None or plan.kind == "seconds":
        return numbers
    if plan.kind in ("date", "either"):
        wall_us = blocks.dates_us(cells, plan.at)
        _, prompt, output, *_ = rows
        if wall_us is None:
            return None
        place.since.zoneless = place.since.zoneless or not blocks.has_zone(cells, plan.at)
        if plan.kind == "either":
            return since_first(wall_us, place)
        alike = (wall_us[1:] == wall_us[:-1]) & (prompt[1:] == prompt[:-1]) & (output[1:] == output[:-1])
        # Copies, it seems: the exact reader says where they begin.
        if np.count_nonzero(alike) > REPEATS_SHARE_MAX * place.line:
            return None
    else:
        wall_s = blocks.decimals(cells, plan.at)
        if wall_s is None or wall_s.max() > WALL_S_MAX:
            return None
        wall_us = np.rint(wall_s * 1e6).astype(np.int64)
    return since_first(wall_us, place)


def _with_more(rows: Arrivals, cells: blocks.Cells, plan: _Plan, tiers: Mapping[str, int]) -> Arrivals | None:
    if plan.tier is not None:
        tier = blocks.choices(cells, plan.tier, {**tiers, "": UNSAID})
        if tier is None:
            return None
        rows = rows._replace(tier=tier)
    if plan.group is not None:
        group = blocks.integers(cells, plan.group, empty=-1)
        shared = blocks.integers(cells, plan.shared, empty=0) if plan.shared is not None else np.zeros(len(rows.at_s), np.int64)
        if group is None or shared is None or np.any(shared > rows.prompt_tokens):
            return None
        rows = rows._replace(group=group, shared_tokens=np.where(group < 0, 0, shared).astype(np.int32))
    return rows
