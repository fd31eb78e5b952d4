"""The part of a trace to be replayed, at a multiple of its rate. Pure, streaming, the same seed the same rows."""

import heapq
import math
import random
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from forebay.demand.trace import TraceRow
from forebay.domain.errors import BadInput

COPY_JITTER_S = 1.0
"""A repeated row comes up to this much later than its original: copies at one instant would be bursts nobody sent."""
HELD_MAX = 1_000_000
"""Copies that wait for their time."""


def scaled(rows: Iterable[TraceRow], factor: float, chance: random.Random) -> Iterator[TraceRow]:
    """``factor`` times as many rows, in order of time, the shape of the load kept.

    Below 1 each row stays with probability ``factor``. Above, each is given ``floor(factor)`` times and once more with
    the probability of the remainder, every copy but the first moved by a uniform 0 to ``COPY_JITTER_S``.
    Raises ValueError for a factor that is not finite and positive, and BadInput where more than ``HELD_MAX`` copies come within
    ``COPY_JITTER_S``.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise ValueError(f"a rate can be scaled by a positive number, not by {factor}")
    return iter(rows) if factor == 1 else _copied(rows, factor, chance)


def _copied(rows: Iterable[TraceRow], factor: float, chance: random.Random) -> Iterator[TraceRow]:
    whole = math.floor(factor)
    held: list[tuple[float, int, TraceRow]] = []
    number = 0
    for row in rows:
        while held and held[0][0] <= row.at_s:
            yield heapq.heappop(held)[2]
        copies = whole + (chance.random() < factor - whole)
        if len(held) + copies > HELD_MAX:
            raise BadInput(f"a rate {factor:g} times as high: found more than {HELD_MAX} rows within {COPY_JITTER_S:g} s; scale it by less")
        if copies:
            yield row
        for _ in range(copies - 1):
            number += 1
            at_s = row.at_s + chance.uniform(0.0, COPY_JITTER_S)
            heapq.heappush(held, (at_s, number, msgspec.structs.replace(row, at_s=at_s)))
    while held:
        yield heapq.heappop(held)[2]


def window(rows: Iterable[TraceRow], start_s: float, duration_s: float) -> Iterator[TraceRow]:
    """The rows of ``[start_s, start_s + duration_s)``, their times counted from ``start_s``; stops reading after them."""
    for row in rows:
        if row.at_s >= start_s + duration_s:
            return
        if row.at_s >= start_s:
            yield msgspec.structs.replace(row, at_s=row.at_s - start_s)


def tiered(rows: Iterable[TraceRow], weights: Mapping[str, float], chance: random.Random) -> Iterator[TraceRow]:
    """Rows without a tier get one, drawn in proportion to ``weights``; rows that name theirs keep it."""
    names, shares = list(weights), list(weights.values())
    for row in rows:
        yield row if row.tier else msgspec.structs.replace(row, tier=chance.choices(names, shares)[0])
