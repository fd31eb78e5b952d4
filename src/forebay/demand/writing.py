"""Arrivals as text, a chunk at a time: CSV or JSON lines, digits made by array arithmetic (millions of rows a second).

Times are written as Unix time (``wall_s``) where the trace's beginning is known, so that a calendar finds its way, else
as seconds of the trace (``at_s``), both to the microsecond.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.demand.arrays import Arrivals

FORMATS = ("csv", "jsonl")
_ZERO = ord("0")


class _Field(NamedTuple):
    """Characters of one field of every row, and which of them are there."""

    chars: npt.NDArray[np.uint8]
    used: npt.NDArray[np.bool_]


class Writer:
    """Chunks in, bytes out."""

    def __init__(self, text_format: str, tiers: Sequence[str], start_wall_s: float = 0.0, prefixes: bool = False) -> None:
        """``prefixes``: write ``group`` and ``shared_tokens`` too.

        Raises ValueError for a format that is none, or a tier's name with odd characters.
        """
        odd = [tier for tier in tiers if not tier or any(char in '",\\\n\r' or ord(char) < 32 for char in tier)]
        if text_format not in FORMATS or odd:
            raise ValueError(f"written are {', '.join(FORMATS)}, with plain names of tiers; not {text_format!r}, {odd}")
        self._json = text_format == "jsonl"
        self._tiers, self._start_us, self._prefixes = tuple(tiers), round(start_wall_s * 1e6), prefixes
        self._time = "wall_s" if start_wall_s else "at_s"

    def head(self) -> bytes:
        """The first line of a CSV; nothing for JSON lines."""
        names = [
            self._time,
            "prompt_tokens",
            "output_tokens",
            *(["tier"] if self._tiers else []),
            *(["group", "shared_tokens"] if self._prefixes else []),
        ]
        return b"" if self._json else (",".join(names) + "\n").encode()

    def rows(self, chunk: Arrivals) -> bytes:
        """A line a row."""
        time_us = np.rint(chunk.at_s * 1e6).astype(np.int64) + self._start_us
        named = [
            (self._time, [*_decimal(time_us)]),
            ("prompt_tokens", [_whole(chunk.prompt_tokens)]),
            ("output_tokens", [_whole(chunk.output_tokens)]),
        ]
        quote = b'"' if self._json else b""
        if self._tiers:
            named.append(("tier", [_literal(quote), _choice(chunk.tier, (*self._tiers, "")), _literal(quote)]))
        if self._prefixes:
            # No group is written as none in a CSV, and as -1 in JSON, which has no empty numbers.
            none = _choice(np.where(chunk.group < 0, 0, 1), ("-1" if self._json else "", ""))
            group = _whole(np.maximum(chunk.group, 0))
            named.append(("group", [none, _Field(group.chars, group.used & (chunk.group >= 0)[:, np.newaxis])]))
            named.append(("shared_tokens", [_whole(chunk.shared_tokens)]))
        fields = [_literal(b"{")] if self._json else []
        for number, (name, parts) in enumerate(named):
            before = b", " if self._json and number else b"," if number else b""
            fields += [_literal(before + (f'"{name}": '.encode() if self._json else b"")), *parts]
        fields.append(_literal(b"}\n" if self._json else b"\n"))
        return _laid_out(fields, len(chunk.at_s))


def _laid_out(fields: list[_Field], count: int) -> bytes:
    chars = np.hstack([np.broadcast_to(field.chars, (count, field.chars.shape[1])) for field in fields])
    used = np.hstack([np.broadcast_to(field.used, (count, field.used.shape[1])) for field in fields])
    return chars[used].tobytes()


def _literal(text: bytes) -> _Field:
    chars = np.frombuffer(text, np.uint8)[np.newaxis]
    return _Field(chars, np.ones(chars.shape, np.bool_))


def _digits(values: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.uint8]:
    chars = np.empty((len(values), width), np.uint8)
    rest = values
    for place in range(width - 1, -1, -1):
        rest, digit = np.divmod(rest, 10)
        chars[:, place] = digit + _ZERO
    return chars


def _whole(values: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> _Field:
    wide = values.astype(np.int64)
    width = len(str(int(wide.max(initial=0))))
    least = 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)
    least[-1] = 0
    return _Field(_digits(wide, width), wide[:, np.newaxis] >= least)


def _decimal(time_us: npt.NDArray[np.int64]) -> tuple[_Field, _Field, _Field]:
    seconds, fraction_us = np.divmod(time_us, 1_000_000)
    return _whole(seconds), _literal(b"."), _Field(_digits(fraction_us, 6), np.ones((len(time_us), 6), np.bool_))


def _choice(index: npt.NDArray[np.int16] | npt.NDArray[np.int64], names: Sequence[str]) -> _Field:
    """``names[i]`` for each index; the last one for -1."""
    encoded = [name.encode() for name in names]
    width = max(len(name) for name in encoded)
    chars = np.zeros((len(names), width), np.uint8)
    used = np.zeros((len(names), width), np.bool_)
    for number, name in enumerate(encoded):
        chars[number, : len(name)] = np.frombuffer(name, np.uint8)
        used[number, : len(name)] = True
    return _Field(chars[index], used[index])
