"""Recorded arrivals in four formats, read line by line into one kind of row; every broken row is named or counted.

A parser holds one row at a time, so a trace of a week costs no more memory than one of a minute. Strict reading stops
at the first thing that is wrong; lenient reading skips and counts it, and puts rows right that are out of order by
less than ``REORDER_ROWS_MAX`` rows. Opening files, unpacking and decoding bytes is the caller's business.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from forebay.domain.errors import BadInput

TOKENS_MAX = 10_000_000
"""Longest prompt or output a row may have: beyond it, the row is a mistake."""
REORDER_ROWS_MAX = 4096
"""Rows held back in lenient reading to put them in order."""
FOUND_CHARS_MAX = 80
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


class TraceRow(msgspec.Struct, frozen=True, gc=False):
    """One request: when (seconds of the trace), how long its prompt and its answer, and in which tier ("" = not said)."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    tier: str = ""


class Counts:
    """What reading a trace came to; kept up to date while rows are read."""

    def __init__(self) -> None:
        self.rows = 0
        self.failures = 0
        """Requests that the trace itself says had failed (BurstGPT: no response tokens); skipped."""
        self.broken = 0
        """Rows skipped in lenient reading."""
        self.late = 0
        """Rows skipped in lenient reading since they were out of order by more than the window."""
        self.first_problem = ""


class _Place:
    """Where the reader is: errors name it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.line = 0

    def error(self, what: str, found: object, allowed: str) -> BadInput:
        text = str(found)
        if len(text) > FOUND_CHARS_MAX:
            text = text[:FOUND_CHARS_MAX] + "…"
        return BadInput(f"{self.name}:{self.line}: {what}: found {text!r}, allowed: {allowed}")


_RowParser = Callable[[str], TraceRow | None]
_ParserMaker = Callable[[str, _Place], tuple[_RowParser, bool]]


def _tokens(text: str, what: str, place: _Place, least: int) -> int:
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit()) or len(stripped) > 12 or not least <= int(stripped) <= TOKENS_MAX:
        raise place.error(what, text, f"a whole number from {least} to {TOKENS_MAX}")
    return int(stripped)


def _cells(line: str, count: int, place: _Place) -> list[str]:
    cells = line.split(",")
    if len(cells) != count:
        raise place.error(f"a row of {len(cells)} fields", line, f"{count} fields, as in the header")
    return cells


def _columns(header: str, wanted: tuple[str, ...], place: _Place) -> tuple[list[int], int]:
    names = [name.strip().strip('"') for name in header.split(",")]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise place.error(f"the header lacks {', '.join(missing)}", header, f"a first line with the columns {', '.join(wanted)}")
    return [names.index(name) for name in wanted], len(names)


def _moment(text: str, place: _Place) -> datetime:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise place.error("timestamp", text, "a date and time such as 2023-11-16 18:17:03.9799600 or 2024-05-10 00:00:00+00:00") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


class _SinceFirst:
    """Dates as seconds since the first one read; a date without a zone is taken for UTC."""

    def __init__(self) -> None:
        self._first: datetime | None = None

    def seconds(self, text: str, place: _Place) -> float:
        moment = _moment(text, place)
        if self._first is None:
            self._first = moment
        return (moment - self._first).total_seconds()


def _azure(header: str, place: _Place) -> tuple[_RowParser, bool]:
    (at, prompt, output), width = _columns(header, AZURE_COLUMNS, place)
    clock = _SinceFirst()

    def parse(line: str) -> TraceRow:
        cells = _cells(line, width, place)
        prompt_tokens = _tokens(cells[prompt], AZURE_COLUMNS[1], place, 1)
        output_tokens = _tokens(cells[output], AZURE_COLUMNS[2], place, 1)
        return TraceRow(clock.seconds(cells[at], place), prompt_tokens, output_tokens)

    return parse, True


def _seconds(value: object, what: str, place: _Place) -> float:
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if isinstance(value, bool) or not math.isfinite(seconds) or seconds < 0:
        raise place.error(what, value, "a number of at least 0")
    return seconds


def _burstgpt(header: str, place: _Place) -> tuple[_RowParser, bool]:
    (at, prompt, output), width = _columns(header, BURSTGPT_COLUMNS, place)

    def parse(line: str) -> TraceRow | None:
        cells = _cells(line, width, place)
        at_s = _seconds(cells[at].strip(), BURSTGPT_COLUMNS[0], place)
        output_tokens = _tokens(cells[output], BURSTGPT_COLUMNS[2], place, 0)
        if output_tokens == 0:
            return None
        return TraceRow(at_s, _tokens(cells[prompt], BURSTGPT_COLUMNS[1], place, 1), output_tokens)

    return parse, True


def _object(line: str, place: _Place) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise place.error("not a JSON object", line, "one JSON object a line") from None


def _count(item: dict[str, Any], key: str, place: _Place) -> int:
    value = item.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= TOKENS_MAX:
        raise place.error(key, "nothing" if value is None else value, f"a whole number from 1 to {TOKENS_MAX}")
    return value


def _mooncake(_: str, place: _Place) -> tuple[_RowParser, bool]:
    def parse(line: str) -> TraceRow:
        item = _object(line, place)
        at_s = _seconds(item.get("timestamp"), "timestamp", place) / 1000
        return TraceRow(at_s, _count(item, "input_length", place), _count(item, "output_length", place))

    return parse, False


def _jsonl(_: str, place: _Place) -> tuple[_RowParser, bool]:
    clock = _SinceFirst()

    def parse(line: str) -> TraceRow:
        item = _object(line, place)
        prompt_tokens, output_tokens = _count(item, "prompt_tokens", place), _count(item, "output_tokens", place)
        tier = item.get("tier", "")
        if not isinstance(tier, str):
            raise place.error("tier", tier, "a text, or no tier at all")
        at = item.get("at_s", item.get("timestamp"))
        at_s = clock.seconds(at, place) if isinstance(at, str) else _seconds(at, "at_s (or timestamp)", place)
        return TraceRow(at_s, prompt_tokens, output_tokens, tier)

    return parse, False


FORMATS: dict[str, _ParserMaker] = {"azure": _azure, "mooncake": _mooncake, "burstgpt": _burstgpt, "jsonl": _jsonl}
"""By name. A maker gets the first line (a header or not) and says whether it took it for a header."""


def guess(first_line: str) -> str:
    """The name of the format that ``first_line`` looks like, or ""."""
    line = first_line.lstrip("\ufeff").strip()
    for name, sign in (
        ("azure", AZURE_COLUMNS[1]),
        ("burstgpt", BURSTGPT_COLUMNS[1]),
        ("mooncake", '"input_length"'),
        ("jsonl", '"prompt_tokens"'),
    ):
        if sign in line:
            return name
    return ""


def read(lines: Iterable[str], trace_format: str, name: str, *, lenient: bool = False, counts: Counts | None = None) -> Iterator[TraceRow]:
    """Rows of the trace ``name`` in time order.

    Raises BadInput naming file, line, what was found and what is allowed: for an unknown format or header always, for a
    broken or unsorted row unless ``lenient``, which counts it in ``counts`` and goes on.
    """
    if trace_format not in FORMATS:
        raise BadInput(f"trace format {trace_format!r}; allowed: {', '.join(FORMATS)}")
    counts = counts or Counts()
    parsed = _parsed(lines, FORMATS[trace_format], _Place(name), lenient, counts)
    return _reordered(parsed, counts) if lenient else parsed


def _parsed(lines: Iterable[str], maker: _ParserMaker, place: _Place, lenient: bool, counts: Counts) -> Iterator[TraceRow]:
    parse: _RowParser | None = None
    last_s = -math.inf
    for raw in lines:
        place.line += 1
        line = raw.lstrip("\ufeff") if place.line == 1 else raw
        line = line.strip()
        if not line:
            continue
        if parse is None:
            parse, is_header = maker(line, place)
            if is_header:
                continue
        try:
            row = parse(line)
            if row is not None and row.at_s < last_s and not lenient:
                raise place.error("time goes back", row.at_s, f"rows in order of time: {last_s} s or later (or read leniently)")
        except BadInput as error:
            if not lenient:
                raise
            counts.broken += 1
            counts.first_problem = counts.first_problem or str(error)
            continue
        if row is None:
            counts.failures += 1
            continue
        last_s = row.at_s
        counts.rows += 1
        yield row


def _reordered(rows: Iterable[TraceRow], counts: Counts) -> Iterator[TraceRow]:
    held: list[tuple[float, int, TraceRow]] = []
    given_s = -math.inf
    for number, row in enumerate(rows):
        if row.at_s < given_s:
            counts.late += 1
            counts.rows -= 1
            continue
        heapq.heappush(held, (row.at_s, number, row))
        if len(held) > REORDER_ROWS_MAX:
            given_s, _, first = heapq.heappop(held)
            yield first
    while held:
        yield heapq.heappop(held)[2]
