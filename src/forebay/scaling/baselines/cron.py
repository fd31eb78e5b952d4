"""B14: a calendar and nothing else, with GPUStack's semantics: rules *set* the number of replicas, the baseline does otherwise.

Each rule starts at a time of the local day and lasts a duration; it is evaluated every 30 s. Where rules overlap the most
recent start wins, and of equal starts the larger. Ends are counted in real time, so a clock that is set does not stretch a
window; a start in an hour that a clock skips does not happen. Source: gpustack/gpustack 47277d79, server/scaling_scheduler.py.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from forebay.domain.errors import BadInput
from forebay.domain.scaling import Term, TermKind
from forebay.scaling.baselines import reading
from forebay.scaling.baselines.frame import Answer, Seen
from forebay.spec.types import CalendarEntry

TICK_S = 30.0
DAY_S = 86_400.0
WALL_S_MAX = 2.0**36
DURATION_DAYS_MAX = 8
"""Rules here come from a week's calendar: none lasts longer than a week and a day."""


class Rule(msgspec.Struct, frozen=True):
    """``days``: 0 = Monday; ``start_s``: seconds of the local day."""

    name: str
    days: tuple[int, ...]
    start_s: float
    duration_s: float
    replicas: int
    timezone: str = "UTC"
    date: str = ""
    """The one day it begins on, in place of ``days``."""


class CronMemory(msgspec.Struct, frozen=True, array_like=True):
    """Nothing: the wall clock says it all."""


class Cron:
    """The rule in force, or the baseline. Raises BadInput for a time zone that does not exist."""

    tick_s = TICK_S

    def __init__(self, rules: Sequence[Rule], baseline: int) -> None:
        self.baseline = baseline
        self.rules = tuple(rules)
        self._zoned = tuple((rule, _zone(rule)) for rule in rules)

    def start(self) -> CronMemory:
        return CronMemory()

    def step(self, seen: Seen, memory: CronMemory) -> Answer[CronMemory]:
        wall_s = seen.observation.wall_s
        if not 0 <= wall_s <= WALL_S_MAX:
            return Answer((reading.hold(seen, "no_clock", "the wall clock is ill"),), memory)
        best: tuple[float, int, Rule] | None = None
        for rule, zone in self._zoned:
            start_s = _started_s(rule, zone, wall_s)
            if start_s is not None and (best is None or (start_s, rule.replicas) > best[:2]):
                best = (start_s, rule.replicas, rule)
        if best is None:
            return Answer((Term("baseline", TermKind.FLOOR, self.baseline, "no rule is in force"),), memory)
        rule = best[2]
        return Answer((Term("schedule", TermKind.FLOOR, rule.replicas, f"rule {rule.name!r} is in force", {"start_s": best[0]}),), memory)


def from_calendar(entries: Sequence[CalendarEntry]) -> tuple[Rule, ...]:
    """The pool's calendar as rules: a window past midnight ends on the next day."""
    return tuple(
        Rule(
            entry.name,
            entry.days,
            entry.start_s,
            entry.end_s - entry.start_s + (0.0 if entry.end_s > entry.start_s else DAY_S),
            entry.min_replicas,
            entry.timezone,
            entry.date,
        )
        for entry in entries
    )


def office_hours(replicas: int) -> tuple[Rule, ...]:
    """What is written where nobody has looked at the load: the peak's replicas on every day from 8 to 22 (UTC)."""
    return (Rule("8 to 22", tuple(range(7)), 8 * 3600.0, 14 * 3600.0, replicas),)


def by_hour(replicas: Sequence[int]) -> tuple[Rule, ...]:
    """A rule an hour (UTC): of a day where there are 24 numbers, of a week from Monday where there are 168. Raises ValueError else."""
    if len(replicas) not in (24, 168):
        raise ValueError(f"a plan has 24 or 168 hours, not {len(replicas)}")
    rules = []
    for hour, count in enumerate(replicas):
        days = tuple(range(7)) if len(replicas) == 24 else (hour // 24,)
        rules.append(Rule(f"hour {hour}", days, hour % 24 * 3600.0, 3600.0, count))
    return tuple(rules)


def _zone(rule: Rule) -> ZoneInfo:
    try:
        return ZoneInfo(rule.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadInput(f"rule {rule.name!r}: time zone {rule.timezone!r} does not exist; use an IANA name such as Europe/Berlin") from error


def _started_s(rule: Rule, zone: ZoneInfo, wall_s: float) -> float | None:
    """When the occurrence of ``rule`` that covers ``wall_s`` began (the latest one), or None."""
    today = datetime.fromtimestamp(wall_s, UTC).astimezone(zone).date()
    for back in range(-1, min(DURATION_DAYS_MAX, int(rule.duration_s // DAY_S) + 1) + 1):
        day = today - timedelta(days=back)
        if day.isoformat() != rule.date if rule.date else day.weekday() not in rule.days:
            continue
        start_s = _instant_s(day, rule.start_s, zone)
        if start_s is not None and start_s <= wall_s < start_s + rule.duration_s:
            return start_s
    return None


def _instant_s(day: date, start_s: float, zone: ZoneInfo) -> float | None:
    """The (first) instant at which the clock of ``zone`` shows that time; None where it skips it."""
    face = datetime.combine(day, time()) + timedelta(seconds=start_s)
    instant = face.replace(tzinfo=zone).timestamp()
    shown = datetime.fromtimestamp(instant, UTC).astimezone(zone).replace(tzinfo=None)
    return instant if shown == face else None
