"""Plain CSV a block of bytes at a time: cells found and read for all rows at once, or not at all.

Every reader here gives None for anything that is not plain (quotes, blanks, signs, missing fields, too many digits, no such
day), and the exact reader of `demand.trace` takes that block row by row: it knows what to say. Where they read, both
read the very same numbers.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]
INTEGER_DIGITS_MAX = 9
DECIMAL_CHARS_MAX = 18
_EXACT_MAX = 1 << 53
"""Whole numbers below it, and their quotients by powers of ten up to 10^22, are exact doubles or correctly rounded ones."""
_DATE_CHARS = 19
_FRACTION_CHARS_MAX = 10
_DATE_DIGITS = (0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18)
_DATE_SIGNS = ((4, b"-"), (7, b"-"), (10, b" T"), (13, b":"), (16, b":"))
_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


class Cells(NamedTuple):
    """The cells of a block: row ``i``, column ``j`` is ``data[starts[j][i]:ends[j][i]]``."""

    data: Bytes
    starts: list[Places]
    ends: list[Places]


def split(block: bytes, width: int) -> Cells | None:
    """The cells of ``block``, whole lines of ``width`` fields each; None where it is anything else."""
    if b'"' in block or not block.endswith(b"\n") or width < 2:
        return None
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    commas = np.flatnonzero(data == ord(","))
    if len(commas) != len(ends) * (width - 1):
        return None
    inner = commas.reshape(len(ends), width - 1)
    first = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
    if np.any(inner[:, 0] < first) or np.any(inner[:, -1] > ends):
        return None
    last = ends - (data[np.maximum(ends - 1, 0)] == ord("\r"))
    return Cells(data, [first, *(inner[:, k] + 1 for k in range(width - 1))], [*(inner[:, k] for k in range(width - 1)), last])


def integers(cells: Cells, column: int, empty: int | None = None) -> npt.NDArray[np.int64] | None:
    """Whole numbers of 1 to ``INTEGER_DIGITS_MAX`` digits; ``empty`` for a cell without any, where that is allowed."""
    start, end = cells.starts[column], cells.ends[column]
    length = end - start
    if (empty is None and np.any(length < 1)) or np.any(length > INTEGER_DIGITS_MAX):
        return None
    value = np.zeros(len(start), np.int64)
    for place in range(int(length.max(initial=0))):
        used = length > place
        digit = np.where(used, cells.data[np.where(used, end - 1 - place, 0)].astype(np.int64) - ord("0"), 0)
        if np.any((digit < 0) | (digit > 9)):
            return None
        value += digit * 10**place
    return value if empty is None else np.where(length == 0, empty, value)


def choices(cells: Cells, column: int, allowed: Mapping[str, int]) -> npt.NDArray[np.int16] | None:
    """The value in ``allowed`` of each cell's text."""
    start = cells.starts[column]
    length = cells.ends[column] - start
    value, found = np.zeros(len(start), np.int16), np.zeros(len(start), np.bool_)
    for text, number in allowed.items():
        wanted = text.encode()
        same = length == len(wanted)
        for place, char in enumerate(wanted):
            same &= cells.data[np.where(same, start + place, 0)] == char
        value[same] = number
        found |= same
    return value if found.all() else None


def decimals(cells: Cells, column: int) -> npt.NDArray[np.float64] | None:
    """Numbers such as ``12`` or ``12.345``, read as ``float`` reads them."""
    start = cells.starts[column]
    length = cells.ends[column] - start
    if np.any(length < 1) or np.any(length > DECIMAL_CHARS_MAX):
        return None
    mantissa, fraction = np.zeros(len(start), np.int64), np.zeros(len(start), np.int64)
    pointed, digits = np.zeros(len(start), np.bool_), np.zeros(len(start), np.int64)
    for place in range(int(length.max(initial=0))):
        used = length > place
        char = cells.data[np.where(used, start + place, start)]
        point = used & (char == ord("."))
        digit = char.astype(np.int64) - ord("0")
        number = used & (digit >= 0) & (digit <= 9)
        if np.any(used & ~number & ~point) or np.any(point & pointed):
            return None
        mantissa = np.where(number, mantissa * 10 + digit, mantissa)
        fraction += number & pointed
        digits += number
        pointed |= point
    if np.any(digits == 0) or np.any(mantissa >= _EXACT_MAX):
        return None
    value: npt.NDArray[np.float64] = mantissa / 10.0**fraction
    return value


def dates_us(cells: Cells, column: int) -> npt.NDArray[np.int64] | None:
    """Unix time in microseconds of ``2024-05-10 00:00:00``, with up to nine digits of fraction (cut to six), in UTC or with no zone."""
    data, start, end = cells.data, cells.starts[column], cells.ends[column]
    if np.any(end - start < _DATE_CHARS):
        return None
    digit = np.stack([data[start + place].astype(np.int64) - ord("0") for place in _DATE_DIGITS])
    if np.any((digit < 0) | (digit > 9)) or not all(
        np.isin(data[start + at], np.frombuffer(signs, np.uint8)).all() for at, signs in _DATE_SIGNS
    ):
        return None
    year = digit[0] * 1000 + digit[1] * 100 + digit[2] * 10 + digit[3]
    month, day, hour, minute, second = (digit[4 + 2 * k] * 10 + digit[5 + 2 * k] for k in range(5))
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    if np.any((year < 1) | (month < 1) | (month > 12) | (hour > 23) | (minute > 59) | (second > 59)):
        return None
    if np.any((day < 1) | (day > _MONTH_DAYS[month] + (leap & (month == 2)))):
        return None
    fraction_us = _fraction_us(data, start + _DATE_CHARS, _without_zone(data, start, end))
    if fraction_us is None:
        return None
    seconds = _days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second
    result: npt.NDArray[np.int64] = seconds * 1_000_000 + fraction_us
    return result


def has_zone(cells: Cells, column: int) -> bool:
    """Whether the first date of the block says its zone, UTC as `dates_us` reads it."""
    text = cells.data[cells.starts[column][0] : cells.ends[column][0]].tobytes()
    return text.endswith((b"Z", b"+00:00"))


def _without_zone(data: Bytes, start: Places, end: Places) -> Places:
    """Ends less ``Z`` or ``+00:00``."""
    end = end - (data[end - 1] == ord("Z")).astype(np.int64)
    long = end - start >= _DATE_CHARS + 6
    zone = np.frombuffer(b"+00:00", np.uint8)
    back = np.where(long, end - 6, start)
    utc = long & np.all(np.stack([data[back + place] == zone[place] for place in range(6)]), axis=0)
    result: Places = end - 6 * utc.astype(np.int64)
    return result


def _fraction_us(data: Bytes, start: Places, end: Places) -> npt.NDArray[np.int64] | None:
    length = end - start
    if np.any((length < 0) | (length == 1) | (length > _FRACTION_CHARS_MAX)):
        return None
    pointed = length > 0
    if np.any(data[np.where(pointed, start, 0)][pointed] != ord(".")):
        return None
    value: npt.NDArray[np.int64] = np.zeros(len(start), np.int64)
    for place in range(1, _FRACTION_CHARS_MAX):
        used = length > place
        digit = np.where(used, data[np.where(used, start + place, 0)].astype(np.int64) - ord("0"), 0)
        if np.any((digit < 0) | (digit > 9)):
            return None
        if place <= 6:
            value = value * 10 + digit
    return value


def _days_since_1970(year: Places, month: Places, day: Places) -> npt.NDArray[np.int64]:
    """Days of the proleptic Gregorian calendar, with years that begin in March (so that the leap day ends one)."""
    year = year - (month <= 2)
    of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1
    result: npt.NDArray[np.int64] = year * 365 + year // 4 - year // 100 + year // 400 + of_year - 719_468
    return result
