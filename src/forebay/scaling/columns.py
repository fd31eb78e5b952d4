"""The buckets of the last minutes by column: what is asked of them at every look.

A look asks some forty sums of the same buckets. Bucket by bucket they are most of its time; by column each is one call of a built-in
function over places found by bisection. The columns of the last buckets are kept, by identity, and those of the next look are made of
them: only the newest bucket or two have changed. So they are exact, and nobody can change them.
"""

from bisect import bisect_left
from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

import msgspec

from forebay.scaling.memory import BUCKET_S, Bucket

Column = tuple[float, ...]
_MIDDLE_OF = (BUCKET_S / 2).__add__
_AS_TUPLE = msgspec.structs.astuple
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
_kept: list[tuple[Sequence[Bucket], Columns]] = [((), NONE)]
"""One, the last: set in one assignment, for another thread may ask."""


def columns(buckets: Sequence[Bucket]) -> Columns:
    """The columns of ``buckets``. Those of a tuple are kept until another one is asked for."""
    known, found = _kept[0]
    if buckets is known:
        return found
    found = Columns(*zip(*map(_AS_TUPLE, buckets), strict=True)) if buckets else NONE
    if type(buckets) is tuple:
        _kept[0] = (buckets, found)
    return found


def continued(buckets: tuple[Bucket, ...], before: Columns, first: int, until: int) -> None:
    """Keep the columns of ``buckets``, which begin with those from ``first`` to ``until`` of ``before``."""
    news = tuple(zip(*map(_AS_TUPLE, buckets[until - first :]), strict=True)) or NONE
    _kept[0] = (buckets, Columns(*[old[first:until] + new for old, new in zip(before, news, strict=True)]))


class Moments(NamedTuple):
    """Sums over a run of buckets, each standing at its middle, counted from now."""

    seconds: float
    at: float
    """Σ seconds·t."""
    square: float
    """Σ seconds·t²."""
    requests: float
    rise: float
    """Σ requests·t."""

    def slope(self) -> tuple[float, float]:
        """Least-squares slope of the rate, and Σ seconds·(t − mean t)²."""
        if self.seconds <= 0:
            return 0.0, 0.0
        mean_s = self.at / self.seconds
        spread = self.square - mean_s * self.at
        return ((self.rise - mean_s * self.requests) / spread, spread) if spread > SPREAD_MIN * self.square else (0.0, 0.0)


class Run(NamedTuple):
    """The last buckets, ready for their moments."""

    start_s: Column
    terms: tuple[Sequence[float], ...]
    """Each bucket's share of the fields of Moments."""

    @classmethod
    def of(cls, found: Columns, now_s: float, from_s: float) -> "Run":
        """The buckets that start at ``from_s`` or later; times are counted from ``now_s``, exact at any age."""
        low = bisect_left(found.start_s, from_s)
        start_s, seconds, requests = found.start_s[low:], found.seconds[low:], found.requests[low:]
        at_s = [start - now_s + each / 2 for start, each in zip(start_s, seconds, strict=True)]
        weighted = list(map(mul, seconds, at_s))
        return cls(start_s, (seconds, weighted, list(map(mul, weighted, at_s)), requests, list(map(mul, requests, at_s))))

    def moments(self, from_s: float, until_s: float) -> Moments:
        """Of those that start from ``from_s`` to before ``until_s``."""
        first, after = bisect_left(self.start_s, from_s), bisect_left(self.start_s, until_s)
        return Moments(*[sum(each[first:after]) for each in self.terms])
