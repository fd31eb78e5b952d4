"""Human units in, SI out: durations in seconds, sizes in bytes, rates per second.

A configuration is read by people at three in the morning, so it says ``90s``, ``70GB`` and ``50/min``; the code
computes in seconds, bytes and per-second rates. A bare number is refused where a unit is needed: ``90`` is a
bug report waiting to be written.
"""

import math
import re
from decimal import Decimal
from functools import lru_cache

SHARE_PLACES_MAX = 13
"""Decimals of a share in percent: fewer than this, and then all that a float has."""
FORMATTED_MAX = 1024
"""Durations whose text is kept: a policy says the same few at every look."""
_DURATION_S = {"ns": 1e-9, "us": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_SIZE_BYTES = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_PER_S = {"s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "hour": 3600.0, "d": 86400.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|min|s|m|h|d|w)")
_NUMBER_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*([a-z]+)")
_RAMP = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*([a-z]+)\s*/\s*([a-z]+)")


def parse_duration_s(text: str) -> float:
    """Seconds in ``text`` (``250ms``, ``90s``, ``6m``, ``1h30m``, ``2d``). Raises ValueError that says what is allowed."""
    compact = text.strip().replace(" ", "")
    parts = _DURATION_PART.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise ValueError(f"{text!r} is not a duration; write a number with ms, s, m, h, d or w, such as 90s or 1h30m")
    return math.fsum(float(number) * _DURATION_S[unit] for number, unit in parts)


def parse_size_bytes(text: str) -> int:
    """Bytes in ``text`` (``70GB`` is decimal, ``64MiB`` binary). Raises ValueError that says what is allowed."""
    match = _NUMBER_UNIT.fullmatch(text.strip())
    if match is None or match[2] not in _SIZE_BYTES:
        raise ValueError(f"{text!r} is not a size; write a number with B, kB, MB, GB, TB, KiB, MiB, GiB or TiB, such as 70GB")
    return round(float(match[1]) * _SIZE_BYTES[match[2]])


def parse_rate_per_s(text: str) -> float:
    """A rate per second from ``text`` (``50/min``, ``12/s``). Raises ValueError that says what is allowed."""
    match = _RATE.fullmatch(text.strip())
    if match is None or match[2] not in _PER_S:
        raise ValueError(f"{text!r} is not a rate; write a number per s, min, h or d, such as 50/min")
    return float(match[1]) / _PER_S[match[2]]


def parse_ramp_per_s2(text: str) -> float:
    """A ramp (rate of change of a rate) in per second per second, from ``text`` (``30/min/min``)."""
    match = _RAMP.fullmatch(text.strip())
    if match is None or match[2] not in _PER_S or match[3] not in _PER_S:
        raise ValueError(f"{text!r} is not a ramp; write requests per time per time, such as 30/min/min")
    return float(match[1]) / _PER_S[match[2]] / _PER_S[match[3]]


@lru_cache(maxsize=FORMATTED_MAX)
def format_duration(seconds: float) -> str:
    """``seconds`` for people: ``250ms``, ``42.0s``, ``6m``, ``1h30m``."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds % 1 else f"{seconds:.0f}s"
    whole = round(seconds)
    pieces = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, whole = divmod(whole, size)
        if count:
            pieces.append(f"{count}{unit}")
    return "".join(pieces[:2])


def format_time(seconds: float) -> str:
    """``seconds`` for people beside others: as `format_duration`, but never in milliseconds (``0s``, ``0.25s``)."""
    if seconds == 0:
        return "0s"
    return f"{round(seconds, 2):g}s" if abs(seconds) < 1 else format_duration(seconds)


def format_span(start_s: float, duration_s: float | None) -> str:
    """A part of a trace for people: ``from 2d for 6h``, or ``from 2d on`` where it goes to the end (None, or endless)."""
    since = f"from {format_duration(start_s) if start_s else '0s'}"
    return f"{since} on" if duration_s is None or math.isinf(duration_s) else f"{since} for {format_duration(duration_s)}"


def format_bytes(size: float) -> str:
    """``size`` bytes for people, decimal units: ``70.0GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f}{unit}" if unit == "B" else f"{size:.1f}{unit}"
        size /= 1000
    return f"{size:.1f}TB"


def format_share(share: float, promise: float, places_min: int = 2) -> str:
    """A share for people, beside the ``promise`` it is judged by, in percent: ``98.997%`` of 99 % is no ``99.00%``.

    It has as many decimals (``places_min`` at least) as show on which side of the promise it is.
    """
    promised = Decimal(repr(float(promise))) * 100
    for places in range(places_min, SHARE_PLACES_MAX):
        text = f"{100 * share:.{places}f}"
        if (Decimal(text) >= promised) == (share >= promise):
            return f"{text}%"
    return f"{Decimal(repr(float(share))) * 100:f}%"
