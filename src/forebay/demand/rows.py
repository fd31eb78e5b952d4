"""What one row of a trace is, where its reader stands (errors name it), and the cells it is made of, each read or refused."""

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from forebay.demand.prefixes import Prefixes
from forebay.domain.errors import BadInput

TOKENS_MAX = 10_000_000
"""Longest prompt or output a row may have: beyond it, the row is a mistake."""
FOUND_CHARS_MAX = 80
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
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
        self.zoneless = False
        """Some of the dates that were read said no zone."""

    def of_us(self, wall_us: int) -> float:
        """Seconds since the first."""
        if self.origin_us is None:
            self.origin_us = wall_us
        return (wall_us - self.origin_us) / 1e6

    def of_date(self, text: str, place: "Place") -> float:
        """The same for a date and time as text."""
        moment = _moment(text, place)
        if moment.tzinfo is None:
            self.zoneless, moment = True, moment.replace(tzinfo=UTC)
        return self.of_us((moment - _EPOCH) // _MICROSECOND)


class Place:
    """Where the reader is (errors name it), and what rows have in common: their origin in time, and prefixes already seen."""

    def __init__(self, name: str, columns: Mapping[str, str] | None = None, prefixes: Prefixes | None = None) -> None:
        self.name = name
        self.line = 0
        self.since = SinceFirst()
        self.columns = dict(columns or {})
        """What columns of a CSV, or keys of JSON lines, are called there, by Forebay's names for them."""
        self.prefixes = prefixes
        """None: hashes of prefixes are not looked at."""

    def error(self, what: str, found: object, allowed: str) -> BadInput:
        text = str(found)
        if len(text) > FOUND_CHARS_MAX:
            text = text[:FOUND_CHARS_MAX] + "…"
        return BadInput(f"{self.name}:{self.line}: {what}: found {text!r}, allowed: {allowed}")


RowParser = Callable[[str], TraceRow | None]
ParserMaker = Callable[[str, Place], tuple[RowParser, bool]]


def tokens_of(text: str, what: str, place: Place, least: int, most: int = TOKENS_MAX) -> int:
    """The whole number in a cell; raises BadInput for anything else."""
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit()) or len(stripped) > 12 or not least <= int(stripped) <= most:
        raise place.error(what, text, f"a whole number from {least} to {most}")
    return int(stripped)


def cells_of(line: str, count: int, place: Place) -> list[str]:
    """The cells of a row, untouched; raises BadInput unless there are ``count``."""
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
        return datetime.fromisoformat(text.strip())
    except ValueError:
        raise place.error("timestamp", text, "a date and time such as 2023-11-16 18:17:03.9799600 or 2024-05-10 00:00:00+00:00") from None


def seconds_of(value: object, what: str, place: Place) -> float:
    """``value`` as a number of at least 0; raises BadInput for anything else."""
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if isinstance(value, bool) or not math.isfinite(seconds) or seconds < 0:
        raise place.error(what, value, "a number of at least 0")
    return seconds


def json_object(line: str, place: Place) -> dict[str, Any]:
    """The object that is a row of JSON lines; raises BadInput for anything else."""
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise place.error("not a JSON object", line, "one JSON object a line") from None


def count_of(value: object, key: str, place: Place, least: int = 1) -> int:
    """``value`` of a row's ``key`` as a number of tokens; raises BadInput for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= TOKENS_MAX:
        raise place.error(key, "nothing" if value is None else value, f"a whole number from {least} to {TOKENS_MAX}")
    return value


def time_of(value: object, kind: str, called: str, place: Place) -> float:
    """Second of the trace that ``value`` says, in a column of this ``kind`` (one of ``TIME_COLUMNS``) that the file calls ``called``."""
    if kind == "timestamp" and isinstance(value, str):
        return place.since.of_date(value, place)
    seconds = seconds_of(value, called, place)
    if kind == "wall_s":
        if seconds > WALL_S_MAX:
            hint = "; milliseconds, divided by 1000, are seconds" if UNIX_MS_MIN <= seconds <= UNIX_MS_MAX else ""
            raise place.error(called, value, f"Unix time in seconds, up to {WALL_S_MAX:.0f}{hint}")
        return place.since.of_us(round(seconds * 1e6))
    return seconds
