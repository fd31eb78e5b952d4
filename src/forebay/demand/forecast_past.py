"""Past demand laid out for forecasting: logs, recent levels and shifts of the local clock.

Forecasts are made in ``log(rate + floor)``: there a busy day is a quiet day plus a constant, and errors are ratios. The
floor, a small part of the usual rate, keeps an idle night from counting for more than the day that follows it.
"""

import math
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt

from forebay.domain.scaling import History

Values = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

DAY_S = 86_400.0
HOUR_S = 3_600.0
BUCKET_S_MIN = 300.0
"""Narrower buckets are joined to this width: a forecast of minutes is noise, and costs five times as much."""
JOINED_S_MIN = 1.0
"""Buckets that are even narrower are a mistake."""
BUCKET_S_MAX = 3_600.0
"""Wider buckets can't show an hour's shape; no forecast is made from them."""
WEEKS_MAX = 4
BUCKETS_MAX = int(WEEKS_MAX * 7 * DAY_S / BUCKET_S_MIN)
"""Older buckets are not looked at."""
WIDTHS_KEPT_MAX = 16
"""Widths of a bucket whose weights are kept."""
PASTS_KEPT_MAX = 16
"""Pasts that are kept unpacked, 64 kB each: one a pool."""
RATE_MAX = 1e12
"""A rate per second beyond it is a mistake, and is not known."""
FLOOR_OF_MEAN = 0.02
AHEAD_S_MAX = 14_400.0
"""The farthest horizon that is learned."""
LEVEL_HALF_LIFE_S = 600.0
"""Of the recent level: the best smoothing at 10 to 60 minutes on the benchmarks' traces."""


class Past(NamedTuple):
    """Demand so far: the mean rate per second of each bucket, oldest first; NaN: not known."""

    start_wall_s: float
    bucket_s: float
    values: Values
    zone: str = "UTC"
    """The IANA time zone whose clock people live by: *the same hour* is meant in it."""

    @classmethod
    def of(cls, history: History | None, column: str = "requests", zone: str = "UTC") -> "Past":
        """The ``column`` of ``history`` (``requests``, ``prompt_tokens``, ``output_tokens``) as rates per second.

        At most four weeks; empty where there is no history, or none that can be used.
        """
        if history is None or not (math.isfinite(history.start_wall_s) and JOINED_S_MIN <= history.bucket_s <= BUCKET_S_MAX):
            return cls(0.0, BUCKET_S_MIN, np.empty(0), zone)
        return _unpacked(history.start_wall_s, history.bucket_s, getattr(history, column, b""), zone)

    @property
    def end_wall_s(self) -> float:
        """Unix time at which the last bucket ends."""
        return self.start_wall_s + len(self.values) * self.bucket_s

    def usable(self) -> "Past":
        """The last four weeks in buckets of BUCKET_S_MIN or wider, ill values not known; empty where nothing can be used."""
        if not (math.isfinite(self.start_wall_s) and abs(self.start_wall_s) < RATE_MAX and JOINED_S_MIN <= self.bucket_s <= BUCKET_S_MAX):
            return Past(0.0, BUCKET_S_MIN, np.empty(0), self.zone)
        joined = self._joined() if self.bucket_s < BUCKET_S_MIN else self
        cut = max(0, len(joined.values) - BUCKETS_MAX)
        values = joined.values[cut:]
        with np.errstate(invalid="ignore"):
            values = np.where((values >= 0) & (values <= RATE_MAX), values, math.nan)
        return joined._replace(start_wall_s=joined.start_wall_s + cut * joined.bucket_s, values=values)

    def _joined(self) -> "Past":
        """Whole groups of buckets that begin at multiples of the group's width; a group with a gap is not known."""
        size = math.ceil(BUCKET_S_MIN / self.bucket_s)
        skip = -round(self.start_wall_s / self.bucket_s) % size
        count = max(0, len(self.values) - skip) // size
        groups = self.values[skip : skip + count * size].reshape(count, size)
        return Past(self.start_wall_s + skip * self.bucket_s, self.bucket_s * size, groups.mean(axis=1), self.zone)


@lru_cache(maxsize=PASTS_KEPT_MAX)
def _unpacked(start_wall_s: float, bucket_s: float, packed: bytes, zone: str) -> Past:
    """The Past in ``packed`` counts, read-only: a history stays the same for all looks of a bucket."""
    counts = np.frombuffer(packed[: len(packed) // 4 * 4], "<f4").astype(np.float64)
    past = Past(start_wall_s, bucket_s, counts / bucket_s, zone).usable()
    past.values.flags.writeable = False
    return past


class Frame(NamedTuple):
    """A Past of n buckets (at least one), prepared. An *origin* o in 0..n is the moment at which the buckets before o are known.

    What is asked of it is computed for the places asked about only, but for logs: a bucket more costs little, however long the past.
    """

    start_wall_s: float
    bucket_s: float
    floor: float
    logs: Values
    """Shape (n + 2,): log(rate + floor) of each bucket, NaN where it isn't known, and a NaN at either end: nothing is known beyond."""
    sums: Values
    """Shape (n + 1,): of the known values before each origin."""
    counts: Values
    """Shape (n + 1,): of known values before each origin."""
    offset_s: Values
    """By how much the local clock is ahead of UTC, for each bucket and AHEAD_S_MAX more."""
    shift: Places | None
    """The same in buckets; None where the clock is never set."""

    def log(self, places: Places) -> Values:
        """log(rate + floor) of the buckets at ``places``; NaN outside the past and where it isn't known."""
        return np.asarray(self.logs[np.minimum(np.maximum(places, -1), len(self.logs) - 2) + 1])

    def level(self, origins: Places) -> Values:
        """The mean of the last hour's logs, newer ones counting more; NaN where none of them is known."""
        weights, back = _level_weights(self.bucket_s)
        logs = self.log(origins[..., None] - back)
        known = np.isfinite(logs)
        weight = known @ weights
        total = np.where(known, logs, 0.0) @ weights
        return np.asarray(np.where(weight > 0, total / np.maximum(weight, 1e-9), math.nan))

    def mean(self, origins: Places, width_s: float) -> Values:
        """log of the mean rate over ``width_s`` before each origin, of what is known of it; NaN where nothing is."""
        inside = np.minimum(np.maximum(origins, 0), len(self.logs) - 2)
        before = np.maximum(inside - max(1, round(width_s / self.bucket_s)), 0)
        count = self.counts[inside] - self.counts[before]
        mean = np.maximum(self.sums[inside] - self.sums[before], 0.0) / np.maximum(count, 1.0)
        return np.asarray(np.where((count > 0) & (origins >= 0), np.log(mean + self.floor), math.nan))

    def base(self, origins: Places) -> Values:
        """log of the last bucket before each origin: from an origin without one no forecast is made, an older one goes on."""
        return self.log(origins - 1)

    def hour_of_day(self, origins: Places) -> Places:
        """0..23, local."""
        local_s = self.start_wall_s + self.bucket_s * origins + self.offset_s[origins]
        return np.asarray((local_s // HOUR_S).astype(np.int64) % 24)


def framed(past: Past) -> Frame:
    """``past`` prepared; ``past`` must be ``usable()`` and have a bucket."""
    known = np.isfinite(past.values)
    sums, counts = np.zeros((2, len(known) + 1))
    np.add.accumulate(np.where(known, past.values, 0.0), out=sums[1:])
    np.add.accumulate(known, out=counts[1:])
    floor = max(1e-9, FLOOR_OF_MEAN * float(sums[-1]) / max(1.0, float(counts[-1])))
    offset_s = _offsets_s(past)
    shift = None if offset_s.min() == offset_s.max() else np.rint(offset_s / past.bucket_s).astype(np.int64)
    logs = np.full(len(known) + 2, math.nan)
    np.log(past.values + floor, out=logs[1:-1])
    return Frame(past.start_wall_s, past.bucket_s, floor, logs, sums, counts, offset_s, shift)


def held(values: Values, least: float, most: float) -> Values:
    """``values`` within ``least`` and ``most``: `numpy.clip`, which takes three times as long for a few dozen."""
    return np.asarray(np.minimum(np.maximum(values, least), most))


def level_weight(bucket_s: float) -> float:
    """The weight of the newest bucket in the level."""
    return float(1.0 - 0.5 ** (bucket_s / LEVEL_HALF_LIFE_S))


@lru_cache(maxsize=WIDTHS_KEPT_MAX)
def _level_weights(bucket_s: float) -> tuple[Values, Places]:
    """Weights of the last hour's buckets in the level, the newest first, and how far before an origin each is."""
    width = max(1, math.ceil(HOUR_S / bucket_s))
    back = np.arange(width, dtype=np.int64)
    return np.asarray((1.0 - level_weight(bucket_s)) ** back, np.float64), back + 1


def _offsets_s(past: Past) -> Values:
    """Seconds by which the local clock is ahead of UTC at the beginning of each bucket, AHEAD_S_MAX beyond the last included."""
    count = len(past.values) + 1 + math.ceil(AHEAD_S_MAX / past.bucket_s)
    zone = zone_of(past.zone)
    if zone is None or past.zone == "UTC":
        return np.zeros(count)
    first = _offset_s(past.start_wall_s, zone)
    found: Values = np.full(count, first)
    per_day = max(1, round(DAY_S / past.bucket_s))
    for start in range(0, count, per_day):
        end = min(count, start + per_day)
        last = _offset_s(past.start_wall_s + (end - 1) * past.bucket_s, zone)
        if last == first and found[start] == first:
            found[start:end] = first
            continue
        found[start:end] = [_offset_s(past.start_wall_s + place * past.bucket_s, zone) for place in range(start, end)]
        first = last
        found[end:] = first
    return found


def zone_of(name: str) -> ZoneInfo | None:
    """The time zone called ``name``; None, which stands for UTC, where there is none of that name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def _offset_s(wall_s: float, zone: ZoneInfo | None) -> float:
    if zone is None:
        return 0.0
    try:
        offset = datetime.fromtimestamp(wall_s, UTC).astimezone(zone).utcoffset()
    except (ValueError, OverflowError, OSError):
        return 0.0
    return offset.total_seconds() if offset is not None else 0.0
