"""A calendar and nothing else: which rule is in force, ends in real time, hours that a clock skips."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from forebay.domain.errors import BadInput
from forebay.scaling.baselines.cron import Cron, Rule, by_hour, from_calendar, office_hours
from forebay.spec.types import CalendarEntry

H = 3600.0
EVERY_DAY = tuple(range(7))


def at(drive, law, text, zone="UTC", fold=0):
    pool = drive(law, desired=3)
    wall_s = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()
    return pool.at(0.0, wall_s=wall_s)


def test_a_rule_sets_the_count_and_the_baseline_does_otherwise(drive):
    law = Cron([Rule("day", (0, 1, 2, 3, 4), 9 * H, 8 * H, 12)], 4)
    for when, replicas in (
        ("2026-06-01T08:59:59", 4),
        ("2026-06-01T09:00:00", 12),
        ("2026-06-01T16:59:59", 12),
        ("2026-06-01T17:00:00", 4),
        ("2026-06-06T12:00:00", 4),
    ):
        assert at(drive, law, when).replicas == replicas, when
    assert at(drive, law, "2026-06-01T10:00:00").reason == "schedule"


def test_the_most_recent_start_wins_even_with_fewer_and_of_equal_starts_the_larger(drive):
    long, short = Rule("long", EVERY_DAY, 8 * H, 10 * H, 12), Rule("lunch", EVERY_DAY, 12 * H, 1 * H, 5)
    law = Cron([long, short, Rule("also", EVERY_DAY, 8 * H, 10 * H, 14)], 2)
    assert at(drive, law, "2026-06-01T11:00:00").replicas == 14
    assert at(drive, law, "2026-06-01T12:30:00").replicas == 5
    assert at(drive, law, "2026-06-01T13:00:00").replicas == 14


def test_ends_are_counted_in_real_time_and_a_skipped_start_does_not_happen(drive):
    night = Rule("night", EVERY_DAY, 1 * H, 3 * H, 9, "Europe/Berlin")
    # Clocks go back on 2026-10-25: 01:00 + 3 h of real time is 03:00 CET, not 04:00.
    assert at(drive, Cron([night], 2), "2026-10-25T02:59:00", "Europe/Berlin", fold=1).replicas == 9
    assert at(drive, Cron([night], 2), "2026-10-25T03:01:00", "Europe/Berlin").replicas == 2
    # And forward on 2026-03-29: there is no 02:30.
    gone = Rule("gone", EVERY_DAY, 2.5 * H, 1 * H, 9, "Europe/Berlin")
    assert at(drive, Cron([gone], 2), "2026-03-29T03:15:00", "Europe/Berlin").replicas == 2
    assert at(drive, Cron([gone], 2), "2026-03-30T02:45:00", "Europe/Berlin").replicas == 9


def test_a_calendar_becomes_rules_windows_past_midnight_too(drive):
    (rule,) = from_calendar([CalendarEntry("late", (), EVERY_DAY, 22 * H, 6 * H, "UTC", 7)])
    assert rule.duration_s == 8 * H
    assert at(drive, Cron([rule], 1), "2026-06-02T05:59:00").replicas == 7


def test_what_comes_once_is_a_rule_of_its_day_alone(drive):
    (rule,) = from_calendar([CalendarEntry("push", (), EVERY_DAY, 9 * H, 12 * H, "UTC", 7, "2026-06-02")])
    assert at(drive, Cron([rule], 1), "2026-06-02T10:00:00").replicas == 7
    assert at(drive, Cron([rule], 1), "2026-06-03T10:00:00").replicas == 1


def test_plans_by_the_hour_of_a_day_or_a_week(drive):
    day = Cron(by_hour(range(1, 25)), 99)
    assert at(drive, day, "2026-06-01T13:20:00").replicas == 14
    week = Cron(by_hour([hour // 24 + 1 for hour in range(168)]), 99)
    assert at(drive, week, "2026-06-03T13:20:00").replicas == 3  # A Wednesday.
    with pytest.raises(ValueError, match="24 or 168"):
        by_hour([1, 2])


def test_office_hours_and_bad_zones(drive):
    assert at(drive, Cron(office_hours(8), 4), "2026-06-01T21:59:00").replicas == 8
    assert at(drive, Cron(office_hours(8), 4), "2026-06-01T22:00:00").replicas == 4
    with pytest.raises(BadInput, match="Mars"):
        Cron([Rule("r", EVERY_DAY, 0.0, H, 1, "Mars/Olympus")], 1)


@pytest.mark.parametrize("wall_s", [float("nan"), -1.0, 1e300])
def test_an_ill_clock_holds(drive, wall_s):
    assert drive(Cron(office_hours(8), 4), desired=3).at(0.0, wall_s=wall_s).replicas == 3
