"""Recorded arrivals in six formats, read line by line into one kind of row; every broken row is named or counted.

A parser holds one row at a time, so a trace of a week costs no more memory than one of a minute. Strict reading stops
at the first thing that is wrong; lenient reading skips and counts it, and puts rows right that are out of order by
less than ``REORDER_ROWS_MAX`` rows. Opening files, unpacking and decoding bytes is the caller's business.
"""

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from forebay.demand import named
from forebay.demand.counts import HOUR_S, SUMMER_TIME, Counts
from forebay.demand.prefixes import BLOCK_TOKENS
from forebay.demand.rows import (
    FOUND_CHARS_MAX,
    GROUPS_MAX,
    ROW_COLUMNS,
    SECONDS_MAX,
    TIME_COLUMNS,
    TOKENS_MAX,
    UNIX_MS_MAX,
    UNIX_MS_MIN,
    UNIX_S_MIN,
    WALL_S_MAX,
    ParserMaker,
    Place,
    RowParser,
    TraceRow,
    cells_of,
    columns,
    count_of,
    json_object,
    seconds_of,
    tokens_of,
)
from forebay.domain.errors import BadInput

__all__ = [
    "FORMATS",
    "FOUND_CHARS_MAX",
    "GROUPS_MAX",
    "RATE_FORMATS",
    "ROW_COLUMNS",
    "SECONDS_MAX",
    "TIME_COLUMNS",
    "TOKENS_MAX",
    "WALL_S_MAX",
    "Place",
    "TraceRow",
    "columns",
    "guess",
    "in_order",
    "read",
    "unknown",
]

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
INPUT, OUTPUT = "input_length", "output_length"
"""Keys of a Mooncake row."""
REORDER_ROWS_MAX = 4096
"""Rows held back in lenient reading to put them in order."""
REPEATS_SHARE_MAX = 0.01
"""An Azure trace ticks in microseconds: a row or two in a million come again by chance, more of them are copies."""


def _azure(header: str, place: Place) -> tuple[RowParser, bool]:
    (at, prompt, output), width = columns(header, AZURE_COLUMNS, place)
    before: tuple[str, str, str] | None = None
    repeats = 0

    def parse(line: str) -> TraceRow:
        nonlocal before, repeats
        cells = cells_of(line, width, place)
        prompt_tokens = tokens_of(cells[prompt], AZURE_COLUMNS[1], place, 1)
        output_tokens = tokens_of(cells[output], AZURE_COLUMNS[2], place, 1)
        at_s = place.since.of_date(cells[at], place)
        before, last = (cells[at], cells[prompt], cells[output]), before
        repeats += before == last
        if before == last and repeats > REPEATS_SHARE_MAX * place.line:
            raise place.error("the row before comes again", line, "each request once")
        return TraceRow(at_s, prompt_tokens, output_tokens)

    return parse, True


def _burstgpt(header: str, place: Place) -> tuple[RowParser, bool]:
    (at, prompt, output), width = columns(header, BURSTGPT_COLUMNS, place)

    def parse(line: str) -> TraceRow | None:
        cells = cells_of(line, width, place)
        at_s = seconds_of(cells[at].strip(), BURSTGPT_COLUMNS[0], place)
        output_tokens = tokens_of(cells[output], BURSTGPT_COLUMNS[2], place, 0)
        if output_tokens == 0:
            return None
        return TraceRow(at_s, tokens_of(cells[prompt], BURSTGPT_COLUMNS[1], place, 1), output_tokens)

    return parse, True


def _mooncake(_: str, place: Place) -> tuple[RowParser, bool]:
    def parse(line: str) -> TraceRow:
        item = json_object(line, place)
        at_s = seconds_of(item.get("timestamp"), "timestamp", place) / 1000
        row = TraceRow(at_s, count_of(item.get(INPUT), INPUT, place), count_of(item.get(OUTPUT), OUTPUT, place))
        hashes = item.get("hash_ids")
        if place.prefixes is None or not hashes:
            return row
        if not isinstance(hashes, list) or not all(type(one) is int for one in hashes):
            raise place.error("hash_ids", hashes, "a list of whole numbers")
        group, blocks = place.prefixes.place(hashes)
        # The last token of a prompt is always computed.
        return TraceRow(at_s, row.prompt_tokens, row.output_tokens, "", group, min(blocks * BLOCK_TOKENS, row.prompt_tokens - 1))

    return parse, False


FORMATS: dict[str, ParserMaker] = {
    "azure": _azure,
    "mooncake": _mooncake,
    "burstgpt": _burstgpt,
    "jsonl": named.json_lines,
    "csv": named.csv,
    "ledger": named.json_lines,
}
"""By name. A maker gets the first line (a header or not) and says whether it took it for a header."""
RATE_FORMATS = ("azure2024-rate", "o365", "servegen", "prometheus")
"""Rates over time, without requests: see `demand.series` and `demand.servegen`."""


def guess(first_line: str, renamed: Mapping[str, str] | None = None) -> str:
    """The name of the format that ``first_line`` looks like, or "". ``renamed``: what a file of one's own calls our columns."""
    line = first_line.lstrip("\ufeff").strip()
    for name, sign in (("azure", AZURE_COLUMNS[1]), ("burstgpt", BURSTGPT_COLUMNS[1]), ("mooncake", '"input_length"')):
        if sign in line:
            return name
    if not line.startswith("{"):
        return "csv" if renamed or named.in_header(line) else ""
    if '"wall_s"' in line:
        return "ledger"
    return "jsonl" if renamed or any(f'"{name}"' in line for name in named.LENGTHS) else ""


def unknown(line: str, formats: Iterable[str]) -> str:
    """What to say of a first line that no format is known by: what it lacks to be a CSV or JSON lines of one's own."""
    what, allowed = named.json_problem(line) if line.lstrip().startswith("{") else named.header_problem(line, {}) or ("", "")
    found = line[:FOUND_CHARS_MAX]
    other = f"or say what else it is: --trace-format {', '.join(formats)}"
    return f"not a trace format that is known: {what}: found {found!r}, allowed: {allowed}; {other}"


def read(
    lines: Iterable[str],
    trace_format: str,
    name: str,
    *,
    lenient: bool = False,
    counts: Counts | None = None,
    columns: Mapping[str, str] | None = None,
) -> Iterator[TraceRow]:
    """Rows of the trace ``name`` in time order; ``columns``: what a CSV, or JSON lines, call our columns.

    Raises BadInput naming file, line, what was found and what is allowed: for an unknown format or header always, for a
    broken or unsorted row unless ``lenient``, which counts it in ``counts`` and goes on.
    """
    return in_order(lines, trace_format, name, counts or Counts(), lenient=lenient, columns=columns)[0]


def in_order(
    lines: Iterable[str], trace_format: str, name: str, counts: Counts, *, lenient: bool, columns: Mapping[str, str] | None
) -> tuple[Iterator[TraceRow], Place]:
    """`read`, and the place at which it is, which knows whether there were dates once rows were read."""
    if trace_format not in FORMATS:
        raise BadInput(f"trace format {trace_format!r}; allowed: {', '.join(FORMATS)}")
    place = Place(name, columns)
    parsed = _parsed(lines, FORMATS[trace_format], place, lenient, counts)
    return (_reordered(parsed, counts, place) if lenient else parsed), place


def beyond(at_s: float, last_s: float, place: Place) -> BadInput:
    """What is wrong with a row at ``at_s``, later than any trace lasts; ``last_s`` is the time of the row before it, if there was one."""
    if UNIX_MS_MIN <= at_s <= UNIX_MS_MAX:
        hint = f"; is it Unix time in milliseconds? Divide it by 1000, and call the column {TIME_COLUMNS[1]}"
    elif place.since.origin_us is None and at_s == int(at_s) and (at_s < UNIX_S_MIN or last_s > 0):
        # Whole numbers that grew to here: Unix time would have been there from the first row on.
        hint = "; are these milliseconds? Divide them by 1000"
    else:
        hint = f"; Unix time is a column {TIME_COLUMNS[1]}" if UNIX_S_MIN <= at_s <= WALL_S_MAX else ""
    return place.error("time", at_s, f"at most {SECONDS_MAX} s after the beginning ({SECONDS_MAX // 86_400} days){hint}")


def backwards(at_s: float, last_s: float, place: Place) -> BadInput:
    """What is wrong with a row at ``at_s`` after one at ``last_s``."""
    hour = place.since.origin_us is not None and 0 < last_s - at_s <= HOUR_S
    hint = SUMMER_TIME if hour else ""
    return place.error("time goes back", at_s, f"rows in order of time: {last_s} s or later{hint}")


def strictly(error: BadInput) -> BadInput:
    """``error`` of one row, with what else can be done about it."""
    return BadInput(f"{error}; --lenient skips and counts such rows")


def _parsed(lines: Iterable[str], maker: ParserMaker, place: Place, lenient: bool, counts: Counts) -> Iterator[TraceRow]:
    parse: RowParser | None = None
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
                raise beyond(row.at_s, last_s, place)
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
        yield _answered(row, counts)


def _answered(row: TraceRow, counts: Counts) -> TraceRow:
    if row.output_tokens:
        return row
    counts.unanswered += 1
    return msgspec.structs.replace(row, output_tokens=1)


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
