"""Made-up weeks follow the clock on the wall, holidays and launches, and have the lengths of their kinds."""

from datetime import date, datetime
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pytest

from forebay.demand.generator import KINDS, STEP_S, WEEK_S, Launch, Plan, arrivals, intensities, problems, rates, start_wall_s

CALM = Plan(kinds={"conversation": 1.0}, rate=2.0, start=date(2026, 3, 2), duration_s=WEEK_S, noise=0.0, day_noise=0.0)


def plan(**changes) -> Plan:
    return msgspec.structs.replace(CALM, **changes)


def chance(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def by_hour(series, zone: str) -> dict[datetime, float]:
    """Mean rate of each hour on the wall."""
    hours: dict[datetime, list[float]] = {}
    for number, value in enumerate(series.values.tolist()):
        at = datetime.fromtimestamp(series.start_wall_s + (number + 0.5) * STEP_S, ZoneInfo(zone))
        hours.setdefault(at.replace(minute=0, second=0, microsecond=0, tzinfo=None), []).append(value)
    return {hour: float(np.mean(values)) for hour, values in hours.items()}


@pytest.mark.parametrize("name", list(KINDS))
def test_an_ordinary_week_has_the_mean_rate_asked_for_and_its_cycles(name):
    kind = KINDS[name]
    assert np.mean(kind.day) == pytest.approx(1.0, abs=0.01)
    found = rates(plan(kinds={name: 1.0}), name, chance())
    assert found.mean == pytest.approx(2.0, rel=0.03)
    days = found.values.reshape(7, -1).mean(axis=1)
    assert days[5] / days[1:4].mean() == pytest.approx(kind.weekend, abs=0.08)
    assert found.values.min() > 0


def test_code_has_the_published_peaks_and_valleys():
    hours = rates(plan(kinds={"code": 1.0}), "code", chance()).values.reshape(-1, 12).mean(axis=1)
    assert hours.max() / hours.mean() == pytest.approx(3.07, rel=0.03)
    assert hours.max() / hours.min() == pytest.approx(34.5, rel=0.1)


@pytest.mark.parametrize(("start", "hours"), [(date(2026, 3, 29), 23), (date(2026, 10, 25), 25)])
def test_a_day_on_which_summer_time_begins_or_ends_has_its_own_number_of_hours_and_its_noon_at_noon(start, hours):
    zone = "Europe/Berlin"
    changed = plan(start=start, zone=zone, duration_s=2 * 86_400.0)
    series = rates(changed, "conversation", chance())
    assert start_wall_s(changed) == datetime(start.year, start.month, start.day, tzinfo=ZoneInfo(zone)).timestamp()
    of_day = {hour: rate for hour, rate in by_hour(series, zone).items() if hour.date() == start}
    assert len(of_day) == min(hours, 24)
    on_wall = sum(
        datetime.fromtimestamp(series.start_wall_s + step * STEP_S, ZoneInfo(zone)).date() == start for step in range(len(series.values))
    )
    assert on_wall * STEP_S == hours * 3600
    # The busiest hour of the kind is the fifteenth on the wall, whatever the day's length.
    assert max(of_day, key=lambda hour: of_day[hour]).hour == 14


def test_holidays_growth_and_launches_change_what_they_should():
    usual = rates(CALM, "conversation", chance()).values
    noon = slice(2 * 288 + 100, 2 * 288 + 180)
    holiday = rates(plan(holidays={date(2026, 3, 4): None}), "conversation", chance()).values
    assert holiday[noon] / usual[noon] == pytest.approx(np.full(80, 0.57))
    marked = rates(plan(holidays={date(2026, 3, 4): 2.0}), "conversation", chance()).values
    assert marked[noon] / usual[noon] == pytest.approx(np.full(80, 2.0))
    grown = rates(plan(growth_per_week=0.1), "conversation", chance()).values / usual
    assert (grown[0], grown[-1]) == (pytest.approx(1.0, abs=0.001), pytest.approx(1.1, abs=0.001))
    launch = Launch(datetime.fromisoformat("2026-03-05T10:00"), 1.5)
    launched = rates(plan(launches=(launch,)), "conversation", chance()).values / usual
    assert launched[: 3 * 288 + 120] == pytest.approx(np.ones(3 * 288 + 120))
    assert launched[3 * 288 + 120 :] == pytest.approx(np.full(4 * 288 - 120, 1.5))


def test_days_go_over_into_each_other():
    values = rates(plan(kinds={"code": 1.0}), "code", chance()).values
    assert np.max(np.abs(np.diff(np.log(values)))) < 0.05


def test_days_differ_by_the_noise_asked_for():
    noisy = rates(plan(duration_s=10 * WEEK_S, day_noise=0.1), "conversation", chance()).values.reshape(70, -1).mean(axis=1)
    calm = rates(plan(duration_s=10 * WEEK_S), "conversation", chance()).values.reshape(70, -1).mean(axis=1)
    assert (noisy / calm).std() == pytest.approx(0.09, abs=0.03)


def test_arrivals_of_several_kinds_come_in_order_with_their_lengths_and_the_same_for_the_same_seed():
    mixed = plan(kinds={"conversation": 3.0, "reasoning": 1.0}, duration_s=7200.0, rate=5.0)

    def rows():
        return list(arrivals(mixed, {name: chance(number) for number, name in enumerate(mixed.kinds)}))

    found = rows()
    at_s = np.concatenate([chunk.at_s for chunk in found])
    assert np.all(np.diff(at_s) >= 0)
    assert 0 <= at_s[0] <= at_s[-1] < 7200
    expected = sum(
        one.cumulated()[-1] for one in intensities(mixed, {name: chance(number) for number, name in enumerate(mixed.kinds)}).values()
    )
    assert len(at_s) == pytest.approx(expected, rel=0.05)
    assert [chunk.output_tokens.tobytes() for chunk in found] == [chunk.output_tokens.tobytes() for chunk in rows()]
    output = np.concatenate([chunk.output_tokens for chunk in found])
    assert output.max() > 2 * 694


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kinds": {}}, "found no kind of traffic; allowed: some of conversation"),
        ({"kinds": {"talk": 1.0}}, "kind 'talk'; allowed: conversation, code"),
        ({"kinds": {"code": 0.0}}, "share of code 0"),
        ({"rate": -1.0}, "rate -1; allowed: a number above 0"),
        ({"rate": 1e11}, "rate 1e+11; allowed: a number above 0, at most 1e+06"),
        ({"duration_s": 1.0}, "duration 1 s"),
        ({"start": date(1, 1, 1)}, "start 0001-01-01; allowed: a date from 1971 to 2199"),
        ({"start": date(9999, 12, 31)}, "start 9999-12-31; allowed"),
        ({"launches": (Launch(datetime.fromisoformat("0001-01-01"), 2.0),)}, "launch at 0001-01-01 00:00:00 0001-01-01; allowed: a date"),
        ({"noise": 50.0}, "noise 50; allowed: a number from 0 to 1"),
        (
            {"launches": (Launch(datetime.fromisoformat("2026-01-01"), 1e12),)},
            "launch at 2026-01-01 00:00:00 1e+12; allowed: a number from 0",
        ),
        ({"growth_per_week": -1.0}, "growth -1 a week"),
        ({"noise": float("nan")}, "noise nan"),
        ({"cv": -1.0}, "cv -1"),
        ({"holidays": {date(2026, 1, 1): -2.0}}, "holiday 2026-01-01 -2"),
        ({"launches": (Launch(datetime.fromisoformat("2026-01-01"), -2.0),)}, "launch at 2026-01-01 00:00:00 -2"),
    ],
)
def test_what_is_wrong_with_a_plan_is_said(changes, words):
    assert any(words in problem for problem in problems(plan(**changes)))
    assert list(problems(CALM)) == []
