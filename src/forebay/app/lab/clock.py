"""Times of a trace or a run for people: with dates where the trace has them, by the clock that the pool's users live by."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec

from forebay.domain.errors import BadInput
from forebay.domain.units import format_time, parse_duration_s
from forebay.spec.types import CalendarEntry, Pool

OFFSET_LOOK_S = 3600.0
"""Clocks are set at full hours of UTC, or at a half: so often is looked whether they were."""
OFFSETS_MAX = 64
"""Changes of a zone's clock within one run: decades of them."""
FORMS = "a time since the beginning (2h30m), or where the trace has dates a clock time (14:32) or a date (2026-11-24T14:32, +02:00 or Z)"


def zone_of(pool: Pool, calendar: Iterable[CalendarEntry]) -> str:
    """Whose clock ``pool`` follows: that of its forecast, else that of its calendar where all entries agree, else UTC."""
    if pool.scaling.forecast_timezone != "UTC":
        return pool.scaling.forecast_timezone
    zones = {entry.timezone for entry in calendar if pool.name in entry.pools}
    return zones.pop() if len(zones) == 1 else "UTC"


class Clock(msgspec.Struct, frozen=True):
    """``start_wall_s``: Unix time of second 0; 0: the trace has no dates, and times are told as they are counted."""

    start_wall_s: float
    zone: str = "UTC"

    @property
    def dated(self) -> bool:
        """Whether anything is known of dates."""
        return self.start_wall_s > 0

    def at(self, at_s: float) -> datetime:
        """The date and time of second ``at_s``, by the zone's clock."""
        return datetime.fromtimestamp(self.start_wall_s + at_s, UTC).astimezone(ZoneInfo(self.zone))

    def told(self, at_s: float, *, zone: bool = True) -> str:
        """Second ``at_s`` for people: ``8h39m (Tue 24 Nov 2026 17:39 Europe/Berlin)``, without dates ``8h39m``."""
        return f"{format_time(at_s)} ({self.date(at_s, zone=zone)})" if self.dated else format_time(at_s)

    def date(self, at_s: float, *, zone: bool = True) -> str:
        """Second ``at_s`` as a date: ``Tue 24 Nov 2026 17:39 Europe/Berlin``. Only where there are dates."""
        at = self.at(round(at_s))
        seconds = ":%S" if at.second else ""
        return at.strftime(f"%a %-d %b %Y %H:%M{seconds}") + (f" {self.zone}" if zone else "")

    def offsets(self, duration_s: float) -> list[tuple[float, float]]:
        """``(from_s, seconds ahead of UTC)`` of every span of ``duration_s`` in which the zone's clock isn't set; the first from 0."""
        found = [(0.0, self._offset_s(0.0))]
        first_s = -self.start_wall_s % (OFFSET_LOOK_S / 2)
        for step in range(math.ceil(max(0.0, duration_s - first_s) / (OFFSET_LOOK_S / 2))):
            at_s = first_s + step * OFFSET_LOOK_S / 2
            if self._offset_s(at_s) != found[-1][1] and len(found) < OFFSETS_MAX:
                found.append((at_s, self._offset_s(at_s)))
        return found

    def _offset_s(self, at_s: float) -> float:
        return (self.at(at_s).utcoffset() or timedelta()).total_seconds()

    def second(self, option: str, text: str) -> float:
        """The second that ``text`` means: counted from second 0, or a date or clock time. Raises BadInput for what is neither.

        A clock time is the first such one from second 0 on. What has no zone of its own is meant in this one.
        """
        try:
            return parse_duration_s(text)
        except ValueError:
            pass
        face = _face(text)
        if face is None:
            raise BadInput(f"{option}: found {text!r}, allowed: {FORMS}")
        if not self.dated:
            raise BadInput(f"{option}: found {text!r}, allowed: a time since its beginning, such as 2h30m: the trace has no dates")
        if isinstance(face, timedelta):
            begin = self.at(0.0)
            midnight = begin.replace(hour=0, minute=0, second=0, microsecond=0)
            days = (midnight.date() + timedelta(days=day) for day in range(2))
            # Of the zone's own midnight, so that a day on which clocks are set counts as its clock shows.
            at = [(datetime(day.year, day.month, day.day, tzinfo=begin.tzinfo) + face).timestamp() for day in days]
            return next(second for each in at if (second := each - self.start_wall_s) >= 0)
        at_wall = (face if face.tzinfo is not None else face.replace(tzinfo=ZoneInfo(self.zone))).timestamp()
        if at_wall < self.start_wall_s:
            raise BadInput(f"{option}: found {text!r}, allowed: from its beginning on, {self.date(0.0)}")
        return at_wall - self.start_wall_s


def is_moment(text: str) -> bool:
    """Whether ``text`` is a date or a clock time, whose second hangs on when a trace begins."""
    return _face(text) is not None


def _face(text: str) -> datetime | timedelta | None:
    """A date and time, a time of day, or neither."""
    text = text.strip()
    try:
        if "-" not in text:
            clock = datetime.strptime(text, "%H:%M:%S" if text.count(":") == 2 else "%H:%M")  # noqa: DTZ007 - a time of day has no zone
            return timedelta(hours=clock.hour, minutes=clock.minute, seconds=clock.second)
        return datetime.fromisoformat(text)
    except ValueError:
        return None
