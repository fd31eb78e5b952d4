"""Trace files as lines of text: plain, gzip (seen by its first bytes, whatever the name) or stdin, errors in words."""

import gzip
import io
import random
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import chain, islice
from typing import IO, cast

import msgspec

from forebay.demand import milliseconds, span, trace
from forebay.demand.counts import Counts
from forebay.domain.errors import BadInput
from forebay.domain.units import format_duration, format_span

LINE_CHARS_MAX = 1 << 20
ROWS_MAX = 2_000_000
"""Rows of one replay: they are held in memory, so that a broken one is found before anything is sent."""
HEAD_BYTES = 64
GZIP_MAGIC = b"\x1f\x8b"
NO_TEXT = (
    (b"\xff\xfe", "text in UTF-16; turn it into UTF-8: iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "text in UTF-16; turn it into UTF-8: iconv -f UTF-16 -t UTF-8"),
    (b"PK\x03\x04", "a zip archive (or a spreadsheet); unpack it, or save it as CSV"),
    (b"\xfd7zXZ", "packed with xz; unpack it, or pack it with gzip"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd; unpack it, or pack it with gzip"),
    (b"BZh", "packed with bzip2; unpack it, or pack it with gzip"),
    (b"PAR1", "a Parquet file; save it as CSV or JSON lines"),
    (b"SQLite format 3", "an SQLite database; the history of a fleet is read by `forebay backtest`, `simulate`, `compare` and `tune`"),
)
"""First bytes of what is taken for a trace by mistake, and what to do about it."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows of a trace to send, and how many times over."""

    path: str
    """``-`` is stdin."""
    trace_format: str = "auto"
    start_s: float = 0.0
    duration_s: float = float("inf")
    rate_scale: float = 1.0
    lenient: bool = False
    tiers: Mapping[str, float] = {}
    """Weights by tier, for rows that don't name theirs."""
    columns: Mapping[str, str] = {}
    """What a file of one's own calls our columns."""


def lines(path: str) -> Iterator[str]:
    """The lines of ``path``; raises BadInput where it can't be read. A line over ``LINE_CHARS_MAX`` comes in pieces."""
    with ExitStack() as stack:
        try:
            binary = sys.stdin.buffer if path == "-" else stack.enter_context(open(path, "rb"))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise BadInput(f"trace {path!r}: {why}; name a file that can be read") from None
        buffered = io.BufferedReader(cast("io.RawIOBase", binary))
        try:
            packed = buffered.peek(2)[:2] == GZIP_MAGIC
            raw = stack.enter_context(gzip.open(buffered)) if packed else buffered
            check_text(raw.peek(HEAD_BYTES)[:HEAD_BYTES], path)
            text = io.TextIOWrapper(cast("IO[bytes]", raw), encoding="utf-8", errors="replace")
            yield from iter(lambda: text.readline(LINE_CHARS_MAX), "")
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise BadInput(f"trace {path!r}: broken gzip data ({error})") from None
        except OSError as error:
            raise BadInput(f"trace {path!r}: {error.strerror or error}") from None


def check_text(head: bytes, path: str) -> None:
    """Raises BadInput where a file that begins with ``head`` is no text that a trace could be in."""
    found = next((what for magic, what in NO_TEXT if head.startswith(magic)), None)
    if found is None and b"\0" in head:
        found = "no text: there are zero bytes in it; name a CSV or a file of JSON lines"
    if found is not None:
        raise BadInput(f"trace {path!r}: this is {found}")


def load(selection: Selection, seed: int, counts: Counts) -> list[trace.TraceRow]:
    """The rows to send, their times counted from the start of the span.

    Raises BadInput for a file, format, row or span that can't be used, naming it.
    """
    text = lines(selection.path)
    head = list(islice(text, milliseconds.ROWS_MAX))
    text = chain(head, text)
    name = selection.trace_format
    if name == "auto":
        first = head[0].lstrip("\ufeff").strip() if head else ""
        name = trace.guess(first, selection.columns)
        if not name:
            problem = trace.unknown(first, trace.FORMATS) if first else "the first line is empty; allowed: a header or a row of a trace"
            raise BadInput(f"{selection.path}:1: {problem}")
    counts.doubt = milliseconds.told(head, name, selection.path, selection.columns)
    last_s = None

    def watched(rows: Iterator[trace.TraceRow]) -> Iterator[trace.TraceRow]:
        nonlocal last_s
        for row in rows:
            last_s = row.at_s
            yield row

    parsed = watched(trace.read(text, name, selection.path, lenient=selection.lenient, counts=counts, columns=selection.columns))
    rows = span.scaled(parsed, selection.rate_scale, random.Random(f"{seed}/scale"))
    rows = span.window(rows, selection.start_s, selection.duration_s)
    if selection.tiers:
        rows = span.tiered(rows, selection.tiers, random.Random(f"{seed}/tiers"))
    chosen: list[trace.TraceRow] = []
    for row in rows:
        if len(chosen) >= ROWS_MAX:
            raise BadInput(
                f"{selection.path}: more than {ROWS_MAX} rows in this span; take a shorter one (--duration) or fewer (--rate-scale)"
            )
        chosen.append(row)
    if not chosen:
        where = (
            counts.nothing_left() or "the trace has no rows"
            if last_s is None
            else f"its rows that were read end at {format_duration(last_s)}"
        )
        raise BadInput(f"{selection.path}: no row in the span {format_span(selection.start_s, selection.duration_s)}: {where}")
    return chosen
