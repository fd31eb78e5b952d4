"""Recorded arrivals in six formats, read line by line into one kind of row; every broken row is named or counted.

A parser holds one row at a time, so a trace of a week costs no more memory than one of a minute. Strict reading stops
at the first thing that is wrong; lenient reading skips and counts it, and puts rows right that are out of order by
less than ``REORDER_ROWS_MAX`` rows. Opening files, unpacking and decoding bytes is the caller's business.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from forebay.demand.counts import HOUR_S, SUMMER_TIME, Counts
from forebay.demand.prefixes import BLOCK_TOKENS, Prefixes
from forebay.domain.errors import BadInput

TOKENS_MAX = 10_000_000
"""Longest prompt or output a row may have: beyond it, the row is a mistake."""
REORDER_ROWS_MAX = 4096
"""Rows held back in lenient reading to put them in order."""
FOUND_CHARS_MAX = 80
REPEATS_SHARE_MAX = 0.01
"""An Azure trace ticks in microseconds: a row or two in a million come again by chance, more of them are copies."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
SECONDS_MAX = 100_000_000
"""Latest second of a trace, about three years: arrivals are counted by the second when it is opened."""
UNIX_S_MIN = 1e9
"""Seconds from here on look like Unix time (2001)."""
UNIX_MS_MIN, UNIX_MS_MAX = 1e12, 1e14
"""Numbers between them look like Unix time in milliseconds."""
TIME_COLUMNS = ("at_s", "wall_s", "timestamp")
"""Seconds of the trace, Unix time, or seconds or a date: the first of them that a row has."""
ROW_COLUMNS = ("prompt_tokens", "output_tokens", "tier", "group", "shared_tokens")
GROUPS_MAX = 1_000_000_000
WALL_S_MAX = 1e11
BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


class TraceRow(msgspec.Struct, frozen=True, gc=False):
    """One request: when (seconds of the trace), how long its prompt and its answer, and in which tier ("" = not said)."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    tier: str = ""
    group: int = -1
    """Requests of one group share a prefix; -1: none."""
    shared_tokens: int = 0
    """Leading prompt tokens shared with earlier requests of the group."""


class SinceFirst:
    """Dates and Unix times as seconds since the first one read; a date without a zone is taken for UTC."""

    def __init__(self) -> None:
        self.origin_us: int | None = None
        """Unix time of the first, in whole microseconds; None while there was none."""

    def of_us(self, wall_us: int) -> float:
        """Seconds since the first."""
        if self.origin_us is None:
            self.origin_us = wall_us
        return (wall_us - self.origin_us) / 1e6

    def of_date(self, text: str, place: "Place") -> float:
        """The same for a date and time as text."""
        return self.of_us((_moment(text, place) - _EPOCH) // _MICROSECOND)


class Place:
    """Where the reader is (errors name it), and what rows have in common: their origin in time, and prefixes already seen."""

    def __init__(self, name: str, columns: Mapping[str, str] | None = None, prefixes: Prefixes | None = None) -> None:
        self.name = name
        self.line = 0
        self.since = SinceFirst()
        self.columns = dict(columns or {})
        """Of a CSV: what its own columns are called, by Forebay's names for them."""
        self.prefixes = prefixes
        """None: hashes of prefixes are not looked at."""

    def error(self, what: str, found: object, allowed: str) -> BadInput:
        text = str(found)
        if len(text) > FOUND_CHARS_MAX:
            text = text[:FOUND_CHARS_MAX] + "…"
        return BadInput(f"{self.name}:{self.line}: {what}: found {text!r}, allowed: {allowed}")


_RowParser = Callable[[str], TraceRow | None]
_ParserMaker = Callable[[str, Place], tuple[_RowParser, bool]]


def _tokens(text: str, what: str, place: Place, least: int, most: int = TOKENS_MAX) -> int:
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit()) or len(stripped) > 12 or not least <= int(stripped) <= most:
        raise place.error(what, text, f"a whole number from {least} to {most}")
    return int(stripped)


def _cells(line: str, count: int, place: Place) -> list[str]:
    cells = line.split(",")
    if len(cells) != count:
        raise place.error(f"a row of {len(cells)} fields", line, f"{count} fields, as in the header")
    return cells


def columns(header: str, wanted: tuple[str, ...], place: Place) -> tuple[list[int], int]:
    """Where the ``wanted`` columns stand, and how many there are; raises BadInput where one is missing."""
    names = [name.strip().strip('"') for name in header.split(",")]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise place.error(f"the header lacks {', '.join(missing)}", header, f"a first line with the columns {', '.join(wanted)}")
    return [names.index(name) for name in wanted], len(names)


def _moment(text: str, place: Place) -> datetime:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise place.error("timestamp", text, "a date and time such as 2023-11-16 18:17:03.9799600 or 2024-05-10 00:00:00+00:00") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _azure(header: str, place: Place) -> tuple[_RowParser, bool]:
    (at, prompt, output), width = columns(header, AZURE_COLUMNS, place)
    before: tuple[str, str, str] | None = None
    repeats = 0

    def parse(line: str) -> TraceRow:
        nonlocal before, repeats
        cells = _cells(line, width, place)
        prompt_tokens = _tokens(cells[prompt], AZURE_COLUMNS[1], place, 1)
        output_tokens = _tokens(cells[output], AZURE_COLUMNS[2], place, 1)
        at_s = place.since.of_date(cells[at], place)
        before, last = (cells[at], cells[prompt], cells[output]), before
        repeats += before == last
        if before == last and repeats > REPEATS_SHARE_MAX * place.line:
            raise place.error("the row before comes again", line, "each request once")
        return TraceRow(at_s, prompt_tokens, output_tokens)

    return parse, True


def _seconds(value: object, what: str, place: Place) -> float:
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if isinstance(value, bool) or not math.isfinite(seconds) or seconds < 0:
        raise place.error(what, value, "a number of at least 0")
    return seconds


def _burstgpt(header: str, place: Place) -> tuple[_RowParser, bool]:
    (at, prompt, output), width = columns(header, BURSTGPT_COLUMNS, place)

    def parse(line: str) -> TraceRow | None:
        cells = _cells(line, width, place)
        at_s = _seconds(cells[at].strip(), BURSTGPT_COLUMNS[0], place)
        output_tokens = _tokens(cells[output], BURSTGPT_COLUMNS[2], place, 0)
        if output_tokens == 0:
            return None
        return TraceRow(at_s, _tokens(cells[prompt], BURSTGPT_COLUMNS[1], place, 1), output_tokens)

    return parse, True


def _object(line: str, place: Place) -> dict[str, Any]:
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise place.error("not a JSON object", line, "one JSON object a line") from None


def _count(item: dict[str, Any], key: str, place: Place) -> int:
    value = item.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= TOKENS_MAX:
        raise place.error(key, "nothing" if value is None else value, f"a whole number from 1 to {TOKENS_MAX}")
    return value


def _mooncake(_: str, place: Place) -> tuple[_RowParser, bool]:
    def parse(line: str) -> TraceRow:
        item = _object(line, place)
        at_s = _seconds(item.get("timestamp"), "timestamp", place) / 1000
        row = TraceRow(at_s, _count(item, "input_length", place), _count(item, "output_length", place))
        hashes = item.get("hash_ids")
        if place.prefixes is None or not hashes:
            return row
        if not isinstance(hashes, list) or not all(type(one) is int for one in hashes):
            raise place.error("hash_ids", hashes, "a list of whole numbers")
        group, blocks = place.prefixes.place(hashes)
        # The last token of a prompt is always computed.
        return TraceRow(at_s, row.prompt_tokens, row.output_tokens, "", group, min(blocks * BLOCK_TOKENS, row.prompt_tokens - 1))

    return parse, False


def _jsonl(_: str, place: Place) -> tuple[_RowParser, bool]:
    def parse(line: str) -> TraceRow:
        item = _object(line, place)
        prompt_tokens, output_tokens = _count(item, "prompt_tokens", place), _count(item, "output_tokens", place)
        tier = item.get("tier", "")
        if not isinstance(tier, str):
            raise place.error("tier", tier, "a text, or no tier at all")
        group, shared = item.get("group", -1), item.get("shared_tokens", 0)
        if type(group) is not int or not -1 <= group < GROUPS_MAX:
            raise place.error("group", group, f"a whole number from -1 to {GROUPS_MAX}, or no group at all")
        if type(shared) is not int or not 0 <= shared <= prompt_tokens:
            raise place.error("shared_tokens", shared, "a whole number from 0 to the prompt_tokens, or none at all")
        key = next((key for key in TIME_COLUMNS if key in item), TIME_COLUMNS[0])
        return TraceRow(_when(item.get(key), key, place), prompt_tokens, output_tokens, tier, group, shared)

    return parse, False


def _when(value: object, key: str, place: Place) -> float:
    if key == "timestamp" and isinstance(value, str):
        return place.since.of_date(value, place)
    seconds = _seconds(value, "at_s (or wall_s, or timestamp)" if value is None else key, place)
    if key == "wall_s":
        if seconds > WALL_S_MAX:
            hint = "; milliseconds, divided by 1000, are seconds" if UNIX_MS_MIN <= seconds <= UNIX_MS_MAX else ""
            raise place.error(key, value, f"Unix time in seconds, up to {WALL_S_MAX:.0f}{hint}")
        return place.since.of_us(round(seconds * 1e6))
    return seconds


def _csv(header: str, place: Place) -> tuple[_RowParser, bool]:
    names = [name.strip().strip('"') for name in header.split(",")]
    wanted = {name: place.columns.get(name, name) for name in (*TIME_COLUMNS, *ROW_COLUMNS)}
    at = next((name for name in TIME_COLUMNS if wanted[name] in names), None)
    if at is None:
        raise place.error("the header lacks a time", header, f"a first line with one of {', '.join(wanted[name] for name in TIME_COLUMNS)}")
    (when, prompt, output), width = columns(header, (wanted[at], wanted["prompt_tokens"], wanted["output_tokens"]), place)
    tier, group, shared = (names.index(wanted[name]) if wanted[name] in names else None for name in ROW_COLUMNS[2:])

    def parse(line: str) -> TraceRow:
        cells = [cell.strip().strip('"') for cell in _cells(line, width, place)]
        prompt_tokens = _tokens(cells[prompt], wanted["prompt_tokens"], place, 1)
        output_tokens = _tokens(cells[output], wanted["output_tokens"], place, 1)
        at_s = _when(_date_or_number(cells[when]), at, place)
        group_id, shared_tokens = -1, 0
        if group is not None and cells[group] not in ("", "-1"):
            group_id = _tokens(cells[group], wanted["group"], place, 0, GROUPS_MAX)
            shared_tokens = _tokens(cells[shared], wanted["shared_tokens"], place, 0, prompt_tokens) if shared is not None else 0
        return TraceRow(at_s, prompt_tokens, output_tokens, cells[tier] if tier is not None else "", group_id, shared_tokens)

    return parse, True


def _date_or_number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


FORMATS: dict[str, _ParserMaker] = {
    "azure": _azure,
    "mooncake": _mooncake,
    "burstgpt": _burstgpt,
    "jsonl": _jsonl,
    "csv": _csv,
    "ledger": _jsonl,
}
"""By name. A maker gets the first line (a header or not) and says whether it took it for a header."""
RATE_FORMATS = ("azure2024-rate", "o365", "servegen", "prometheus")
"""Rates over time, without requests: see `demand.series` and `demand.servegen`."""


def guess(first_line: str) -> str:
    """The name of the format that ``first_line`` looks like, or ""."""
    line = first_line.lstrip("\ufeff").strip()
    for name, sign in (
        ("azure", AZURE_COLUMNS[1]),
        ("burstgpt", BURSTGPT_COLUMNS[1]),
        ("mooncake", '"input_length"'),
        ("ledger", '"wall_s"'),
        ("jsonl", '"prompt_tokens"'),
        ("csv", "prompt_tokens,"),
    ):
        if sign in line:
            return name
    return ""


def read(
    lines: Iterable[str],
    trace_format: str,
    name: str,
    *,
    lenient: bool = False,
    counts: Counts | None = None,
    columns: Mapping[str, str] | None = None,
) -> Iterator[TraceRow]:
    """Rows of the trace ``name`` in time order; ``columns``: what a CSV calls our columns.

    Raises BadInput naming file, line, what was found and what is allowed: for an unknown format or header always, for a
    broken or unsorted row unless ``lenient``, which counts it in ``counts`` and goes on.
    """
    if trace_format not in FORMATS:
        raise BadInput(f"trace format {trace_format!r}; allowed: {', '.join(FORMATS)}")
    counts = counts or Counts()
    place = Place(name, columns)
    parsed = _parsed(lines, FORMATS[trace_format], place, lenient, counts)
    return _reordered(parsed, counts, place) if lenient else parsed


def beyond(at_s: float, place: Place) -> BadInput:
    """What is wrong with a row at ``at_s``, later than any trace lasts."""
    hint = f"; Unix time is a column {TIME_COLUMNS[1]}" if UNIX_S_MIN <= at_s <= WALL_S_MAX else ""
    if UNIX_MS_MIN <= at_s <= UNIX_MS_MAX:
        hint = f"; is it Unix time in milliseconds? Divide it by 1000, and call the column {TIME_COLUMNS[1]}"
    return place.error("time", at_s, f"at most {SECONDS_MAX} s after the beginning ({SECONDS_MAX // 86_400} days){hint}")


def backwards(at_s: float, last_s: float, place: Place) -> BadInput:
    """What is wrong with a row at ``at_s`` after one at ``last_s``."""
    hour = place.since.origin_us is not None and 0 < last_s - at_s <= HOUR_S
    hint = SUMMER_TIME if hour else ""
    return place.error("time goes back", at_s, f"rows in order of time: {last_s} s or later{hint}")


def strictly(error: BadInput) -> BadInput:
    """``error`` of one row, with what else can be done about it."""
    return BadInput(f"{error}; --lenient skips and counts such rows")


def _parsed(lines: Iterable[str], maker: _ParserMaker, place: Place, lenient: bool, counts: Counts) -> Iterator[TraceRow]:
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
            if row is not None and row.at_s > SECONDS_MAX:
                raise beyond(row.at_s, place)
            if row is not None and row.at_s < last_s and not lenient:
                raise backwards(row.at_s, last_s, place)
        except BadInput as error:
            if not lenient:
                raise strictly(error) from None
            counts.skip(error)
            continue
        if row is None:
            counts.failures += 1
            continue
        last_s = row.at_s
        counts.rows += 1
        yield row


def _reordered(rows: Iterable[TraceRow], counts: Counts, place: Place) -> Iterator[TraceRow]:
    held: list[tuple[float, int, TraceRow]] = []
    given_s = latest_s = 0.0  # The first row is second 0 where rows have dates: what is dated before it belongs to no span.
    for number, row in enumerate(rows):
        if row.at_s < latest_s:
            counts.went_back(latest_s - row.at_s, place.since.origin_us is not None)
        latest_s, behind = max(latest_s, row.at_s), row.at_s < latest_s
        if row.at_s < given_s:
            counts.late += 1
            counts.rows -= 1
            continue
        counts.sorted += behind
        heapq.heappush(held, (row.at_s, number, row))
        if len(held) > REORDER_ROWS_MAX:
            given_s, _, first = heapq.heappop(held)
            yield first
    while held:
        yield heapq.heappop(held)[2]
