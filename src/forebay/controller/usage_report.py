"""The ledger for people and scripts: its rows added up by what is asked for, with names in place of positions."""

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime

import msgspec

from forebay.domain.errors import BadInput
from forebay.domain.units import parse_duration_s
from forebay.domain.usage import COUNT_NAMES, OUTPUT, PROMPT, SECONDS_PER_DAY, How, UsageRow

BY = ("day", "team", "model", "tier", "pool")
BY_DEFAULT = BY[1:]
EARLIER = "earlier"
"""In place of a day: those too long ago to be kept apart."""
_EPOCH = date(1970, 1, 1).toordinal()


class UsageLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: what it is of (only what was asked for), and its sums."""

    requests: int
    """That ended, however."""
    completed: int
    refused: int
    """By engines."""
    shed: int
    failed: int
    truncated: int
    left: int
    """By their clients."""
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt tokens."""
    output_tokens: int
    counted_tokens: int
    """Of prompt and output tokens: those that no engine told, which were estimated and counted on the way."""
    queue_s: float
    """World seconds in lanes."""
    day: str | None = None
    team: str | None = None
    model: str | None = None
    tier: str | None = None
    pool: str | None = None


class UsageReport(msgspec.Struct, frozen=True):
    """The lines, those with most tokens first (by day: in its order), and their sum."""

    since: str | None
    until: str | None
    """The last day that is in."""
    by: tuple[str, ...]
    lines: tuple[UsageLine, ...]
    total: UsageLine


def usage_report(rows: Iterable[UsageRow], by: Sequence[str], since_day: int, until_day: int | None) -> UsageReport:
    """Add ``rows`` up by the names in ``by`` (of BY)."""
    sums: dict[tuple[str, ...], list[int]] = {}
    total = [0] * len(COUNT_NAMES)
    for row in rows:
        named = dict(zip(BY, (iso_day(row.day), *row.key), strict=True))
        line = sums.setdefault(tuple(named[name] for name in by), [0] * len(COUNT_NAMES))
        for place, count in enumerate(row.counts):
            line[place] += count
            total[place] += count
    order = sorted(sums.items(), key=lambda item: (-item[1][PROMPT] - item[1][OUTPUT], item[0]))
    if "day" in by:
        at = list(by).index("day")
        order.sort(key=lambda item: (item[0][at] != EARLIER, item[0][at]))
    lines = tuple(_line(dict(zip(by, of, strict=True)), counts) for of, counts in order)
    until = None if until_day is None else iso_day(until_day - 1)
    return UsageReport(iso_day(since_day) if since_day else None, until, tuple(by), lines, _line({}, total))


def by_of(text: str | None) -> tuple[str, ...]:
    """``team,tier`` as names; raises BadInput for what is none of BY."""
    names = tuple(name.strip() for name in text.split(",")) if text else BY_DEFAULT
    for name in names:
        if name not in BY or names.count(name) > 1:
            raise BadInput(f"by: found {(text or name)[:60]!r}; allowed: some of {', '.join(BY)}, each once, with commas")
    return names


def day_of(name: str, text: str, now_wall_s: float) -> int:
    """Days since 1970 (UTC) of an ISO day, ``today``, ``yesterday``, or one ago (``-7d``); raises BadInput that says what is allowed."""
    try:
        if text in {"today", "yesterday"}:
            return int(now_wall_s // SECONDS_PER_DAY) - (text == "yesterday")
        if text.startswith("-"):
            return max(1, int((now_wall_s - parse_duration_s(text[1:])) // SECONDS_PER_DAY))
        day = date.fromisoformat(text).toordinal() - _EPOCH
        if day < 1:
            raise ValueError(text)
    except ValueError:
        raise BadInput(
            f"{name}: found {text[:60]!r}; allowed: a day (UTC) such as 2026-11-29, today, yesterday, or one ago such as -7d"
        ) from None
    return day


def iso_day(day: int) -> str:
    """A row's day."""
    return datetime.fromtimestamp(day * SECONDS_PER_DAY, UTC).date().isoformat() if day else EARLIER


def _line(of: dict[str, str], counts: Sequence[int]) -> UsageLine:
    named = dict(zip(COUNT_NAMES, counts, strict=True))
    queue_s = named.pop("queue_ms") / 1000
    return msgspec.convert({"requests": sum(counts[: len(How)]), "queue_s": queue_s, **named, **of}, UsageLine)
