"""The buckets of the last minutes by column: what is asked of them at every look.

A look asks some forty sums of the same buckets. Bucket by bucket they are most of its time; by column each is one call of a built-in
function over places found by bisection. The columns of the last buckets are kept, by identity, and those of the next look are made of
them: only the newest bucket or two have changed. So they are exact, and nobody can change them.
"""

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter, mul
from typing import NamedTuple

import msgspec

from forebay.scaling.memory import BUCKET_S, Bucket

Column = tuple[float, ...]
_MIDDLE_OF = (BUCKET_S / 2).__add__
_AS_TUPLE = msgspec.structs.astuple
_START_S = attrgetter("start_s")
SPREAD_MIN = 1e-9
"""Of Σ seconds·t²: what is less than that is rounding, and all stands at one place."""


class Columns(NamedTuple):
    """Of buckets that are in order of time, oldest first; the fields of a Bucket, in its order."""

    start_s: Column
    seconds: Column
    requests: Column
    token_seconds: Column
    prompt_tokens: Column
    output_tokens: Column
    replica_seconds: Column

    def since(self, middle_s: float) -> int:
        """The place of the first bucket whose middle is at ``middle_s`` or later."""
        return bisect_left(self.start_s, middle_s, key=_MIDDLE_OF)


NONE = Columns((), (), (), (), (), (), ())
_kept: list[tuple[Sequence[Bucket], Columns, bool]] = [((), NONE, True)]
"""One, the last, and whether it is known to be in order of time: set in one assignment, for another thread may ask."""


def columns(buckets: Sequence[Bucket]) -> Columns:
    """The columns of ``buckets``. Those of a tuple are kept until another one is asked for."""
    known, found, _ = _kept[0]
    if buckets is known:
        return found
    found = Columns(*zip(*map(_AS_TUPLE, buckets), strict=True)) if buckets else NONE
    if type(buckets) is tuple:
        _kept[0] = (buckets, found, False)
    return found


def in_order(buckets: Sequence[Bucket]) -> tuple[Sequence[Bucket], Columns]:
    """``buckets`` in order of time, and their columns: those that were `continued` are in order already."""
    known, found, ordered = _kept[0]
    if buckets is known and ordered:
        return buckets, found
    found = columns(buckets)
    if found.start_s != tuple(sorted(found.start_s)):
        buckets = tuple(sorted(buckets, key=_START_S))
        found = columns(buckets)
    return buckets, found


def continued(buckets: tuple[Bucket, ...], before: Columns, first: int, until: int) -> None:
    """Keep the columns of ``buckets``, in order of time, which begin with those from ``first`` to ``until`` of ``before``."""
    news = tuple(zip(*map(_AS_TUPLE, buckets[until - first :]), strict=True)) or NONE
    _kept[0] = (buckets, Columns(*[old[first:until] + new for old, new in zip(before, news, strict=True)]), True)


class Run(NamedTuple):
    """The last buckets, each standing at its middle, counted from now, ready for the slope of their rate."""

    start_s: Column
    seconds: Column
    requests: Column
    at_s: list[float]
    weighted: list[float]
    """seconds·t."""
    risen: list[float]
    """requests·t."""

    @classmethod
    def of(cls, found: Columns, now_s: float, from_s: float) -> "Run":
        """The buckets that start at ``from_s`` or later; times are counted from ``now_s``, exact at any age."""
        low = bisect_left(found.start_s, from_s)
        start_s, seconds, requests = found.start_s[low:], found.seconds[low:], found.requests[low:]
        at_s = [start - now_s + each / 2 for start, each in zip(start_s, seconds, strict=True)]
        return cls(start_s, seconds, requests, at_s, list(map(mul, seconds, at_s)), list(map(mul, requests, at_s)))

    def climbs(self, first: int, after: int, seconds_min: float = 0.0, requests_min: float = 0.0) -> tuple[float, float, float]:
        """(Least-squares slope of the rate, Σ seconds·(t − mean t)², mean rate) of the buckets from ``first`` to before ``after``.

        A slope that does not rise, or is of less than is asked for, is given as 0, and what it stands on too.
        """
        seconds, requests = sum(self.seconds[first:after]), sum(self.requests[first:after])
        if seconds <= 0 or seconds < seconds_min or requests < requests_min:
            return 0.0, 0.0, 0.0
        weighted = self.weighted[first:after]
        at = sum(weighted)
        mean_s = at / seconds
        rise = sum(self.risen[first:after]) - mean_s * requests
        if not rise > 0:
            return 0.0, 0.0, 0.0
        square = sum(map(mul, weighted, self.at_s[first:after]))
        spread = square - mean_s * at
        return (rise / spread, spread, requests / seconds) if spread > SPREAD_MIN * square else (0.0, 0.0, 0.0)
