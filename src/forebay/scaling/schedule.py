"""Scheduled minimums: the calendar knows what no metric can, and it knows it in local time.

A window is a pair of instants, found by reading the entry's clock in its own time zone. Where that clock is set back the
window lasts longer, and where it skips, longer too: too many replicas for an hour is the cheaper mistake.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from forebay.domain.errors import BadInput
from forebay.spec.types import CalendarEntry

DAY_S = 86_400.0
WALL_S_MAX = 2.0**36
"""Beyond every date a calendar can be asked for."""


class Active(msgspec.Struct, frozen=True):
    """A window that asks for replicas now."""

    entry: CalendarEntry
    start_s: float
    """Unix time."""
    end_s: float


class Schedule:
    """The calendar entries of one pool. Raises BadInput for a time zone that does not exist."""

    def __init__(self, calendar: Sequence[CalendarEntry], pool: str) -> None:
        self._entries = tuple((entry, _zone(entry)) for entry in calendar if not entry.pools or pool in entry.pools)

    def __len__(self) -> int:
        return len(self._entries)

    def active(self, wall_s: float, lead_s: float) -> Active | None:
        """The entry that asks for most at ``wall_s``; each asks ``lead_s`` early, so that its replicas are ready at its start.

        Raises ValueError where ``wall_s`` is no time that a calendar knows.
        """
        if not 0 <= wall_s <= WALL_S_MAX:
            raise ValueError("the wall clock is ill")
        found: Active | None = None
        for entry, zone in self._entries:
            active = _active(entry, zone, wall_s, max(0.0, min(lead_s, DAY_S)))
            if active is not None and (found is None or entry.min_replicas > found.entry.min_replicas):
                found = active
        return found


def _zone(entry: CalendarEntry) -> ZoneInfo:
    try:
        return ZoneInfo(entry.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadInput(
            f"calendar entry {entry.name!r}: time zone {entry.timezone!r} does not exist; use an IANA name such as Europe/Berlin"
        ) from error


def _active(entry: CalendarEntry, zone: ZoneInfo, wall_s: float, lead_s: float) -> Active | None:
    length_end_s = entry.end_s if entry.end_s > entry.start_s else entry.end_s + DAY_S
    today = datetime.fromtimestamp(wall_s, UTC).astimezone(zone).date()
    days_back = int(length_end_s // DAY_S) + 1
    for offset in range(-days_back, 2):
        day = today + timedelta(days=offset)
        if not entry.begins_on(day):
            continue
        midnight = datetime.combine(day, time())
        start_s = min(_instants(midnight + timedelta(seconds=entry.start_s), zone))
        end_s = max(_instants(midnight + timedelta(seconds=length_end_s), zone))
        if start_s - lead_s <= wall_s < end_s:
            return Active(entry, start_s, end_s)
    return None


def _instants(face: datetime, zone: ZoneInfo) -> tuple[float, float]:
    """Both instants at which the clock of ``zone`` may show ``face``: they differ where it is set."""
    return face.replace(tzinfo=zone, fold=0).timestamp(), face.replace(tzinfo=zone, fold=1).timestamp()
