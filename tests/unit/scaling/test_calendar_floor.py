"""Scheduled minimums: local time, clocks that are set, windows past midnight."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest

from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.schedule import Schedule
from forebay.spec.types import CalendarEntry

H = 3600.0
WEEKDAYS = (0, 1, 2, 3, 4)
EVERY_DAY = tuple(range(7))
ZONE = "Europe/Berlin"


def entry(start_h, end_h, days=EVERY_DAY, replicas=6, pools=("chat",), zone=ZONE):
    return CalendarEntry("office hours", pools, days, start_h * H, end_h * H, zone, replicas)


def local(text, zone=ZONE, fold=0):
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def asks(schedule, wall_s, lead_s=0.0):
    active = schedule.active(wall_s, lead_s)
    return active.entry.min_replicas if active else 0


@pytest.mark.parametrize(
    ("when", "replicas"),
    [
        ("2026-06-01T08:59:59", 0),
        ("2026-06-01T09:00:00", 6),
        ("2026-06-01T17:59:59", 6),
        ("2026-06-01T18:00:00", 0),
        ("2026-06-06T12:00:00", 0),
    ],
)
def test_a_window_is_half_open_and_knows_its_days(when, replicas):
    assert asks(Schedule((entry(9, 18, WEEKDAYS),), "chat"), local(when)) == replicas


@pytest.mark.parametrize("when", ["2026-01-12T09:00:00", "2026-07-13T09:00:00"])
def test_nine_is_nine_in_winter_and_in_summer(when):
    schedule = Schedule((entry(9, 18),), "chat")
    assert asks(schedule, local(when)) == 6
    assert asks(schedule, local(when) - 1) == 0


@pytest.mark.parametrize("end_h", [6, 30])
def test_a_window_may_pass_midnight_and_belongs_to_the_day_it_starts_on(end_h):
    """Fridays 22:00 to 06:00, written either way."""
    schedule = Schedule((entry(22, end_h, days=(4,)),), "chat")
    assert asks(schedule, local("2026-06-05T23:00:00")) == 6
    assert asks(schedule, local("2026-06-06T05:59:59")) == 6
    assert asks(schedule, local("2026-06-06T06:00:00")) == 0
    assert asks(schedule, local("2026-06-05T05:00:00")) == 0


def test_when_the_clock_is_set_back_the_window_lasts_an_hour_longer_without_a_gap():
    """2026-10-25 in Berlin: 03:00 becomes 02:00, so 01:30 to 02:30 is two hours."""
    schedule = Schedule((entry(1.5, 2.5),), "chat")
    start = local("2026-10-25T01:30:00")
    active = [start + minute * 60 for minute in range(-30, 180) if asks(schedule, start + minute * 60)]
    assert active[0] == start
    assert active[-1] - start == 119 * 60
    assert len(active) == 120


def test_a_window_inside_the_hour_that_does_not_exist_is_not_lost():
    """2026-03-29 in Berlin: 02:00 becomes 03:00."""
    schedule = Schedule((entry(2.25, 2.75),), "chat")
    day = datetime(2026, 3, 29, tzinfo=UTC)
    assert any(asks(schedule, (day + timedelta(minutes=minute)).timestamp()) for minute in range(180))


def test_an_event_comes_once_and_is_asked_for_a_cold_start_ahead():
    """A launch on Friday the 27th, whatever the day of the week, and not on the Friday after."""
    launch = msgspec.structs.replace(entry(22, 2, days=()), date="2026-11-27")
    schedule = Schedule((launch,), "chat")
    assert asks(schedule, local("2026-11-27T21:49:59"), lead_s=600.0) == 0
    assert asks(schedule, local("2026-11-27T21:50:00"), lead_s=600.0) == 6
    assert asks(schedule, local("2026-11-28T01:59:59")) == 6
    assert asks(schedule, local("2026-11-28T02:00:00")) == 0
    assert asks(schedule, local("2026-12-04T23:00:00")) == asks(schedule, local("2026-11-20T23:00:00")) == 0


def test_replicas_are_asked_for_a_cold_start_ahead_and_the_floor_says_so(make_pool):
    pool = make_pool(calendar=(entry(9, 18),), capacity=PoolCapacity(rate_per_s=1.0, cold_start_s=300.0))
    early = pool.at(0.0, wall_s=local("2026-06-01T08:54:59"))
    assert (early.replicas, early.reason) == (1, "min")
    ahead = pool.at(1.0, wall_s=local("2026-06-01T08:55:00"))
    assert (ahead.replicas, ahead.reason) == (6, "calendar")
    assert "ahead of its start" in pool.term(ahead, "calendar").because
    during = pool.at(2.0, wall_s=local("2026-06-01T09:00:00"))
    assert "ahead" not in pool.term(during, "calendar").because


def test_the_entry_that_asks_for_most_counts_and_other_pools_entries_do_not():
    schedule = Schedule((entry(9, 18, replicas=3), entry(12, 13, replicas=8), entry(9, 18, replicas=99, pools=("other",))), "chat")
    assert asks(schedule, local("2026-06-01T12:30:00")) == 8
    assert asks(schedule, local("2026-06-01T14:00:00")) == 3


@pytest.mark.parametrize("wall_s", [float("nan"), float("inf"), -1.0, 1e300])
def test_without_the_time_of_day_the_count_is_held(make_pool, wall_s):
    pool = make_pool(calendar=(entry(9, 18),), in_calm_s=10.0)
    pool.desired = 5
    for now_s in (0.0, 20.0, 40.0):
        decision = pool.at(now_s, wall_s=wall_s)
        assert (decision.replicas, decision.reason) == (5, "hold_unknown")
