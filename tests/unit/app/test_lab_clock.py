"""Times of a run are told by a clock that has a name, and may be asked for by it."""

from datetime import datetime

import msgspec
import pytest

from forebay.app.lab.clock import Clock, is_moment, zone_of
from forebay.domain.errors import BadInput
from forebay.engine.catalogue import PROFILES
from forebay.spec.decode import decode
from forebay.spec.types import CalendarEntry

SIX = datetime.fromisoformat("2026-11-24T06:00+01:00").timestamp()
BERLIN = Clock(SIX, "Europe/Berlin")


def entry(zone, pool="chat"):
    return CalendarEntry("open", (pool,), (0,), 0.0, 3600.0, zone, 2)


@pytest.fixture(scope="module")
def pool():
    return decode("pools: {chat: {model: llama-3.1-8b, profile: llama-3.1-8b-h100, engine: {kind: emulated}}}", "it", PROFILES).pools[0]


def test_the_zone_is_the_forecast_s_else_the_calendar_s_where_it_is_one(pool):
    own = msgspec.structs.replace(pool, scaling=msgspec.structs.replace(pool.scaling, forecast_timezone="Asia/Tokyo"))
    assert zone_of(pool, []) == "UTC"
    assert zone_of(pool, [entry("Europe/Berlin"), entry("Asia/Tokyo", "other")]) == "Europe/Berlin"
    assert zone_of(pool, [entry("Europe/Berlin"), entry("Asia/Tokyo")]) == "UTC"
    assert zone_of(own, [entry("Europe/Berlin")]) == "Asia/Tokyo"


def test_a_time_is_told_with_its_date_and_zone_where_there_is_one():
    assert BERLIN.told(3.5 * 3600) == "3h30m (Tue 24 Nov 2026 09:30 Europe/Berlin)"
    assert Clock(0.0, "Europe/Berlin").told(3.5 * 3600) == "3h30m"


@pytest.mark.parametrize(
    ("text", "second"),
    [
        ("2h30m", 9000.0),
        ("09:30", 12600.0),
        ("06:00:00", 0.0),
        ("05:59", 86_400.0 - 60.0),
        ("2026-11-24T09:30", 12600.0),
        ("2026-11-24T08:30Z", 12600.0),
        ("2026-11-24T09:30+01:00", 12600.0),
        ("2026-11-25", 18 * 3600.0),
    ],
)
def test_a_time_may_be_counted_or_read_off_a_clock_or_a_calendar(text, second):
    assert BERLIN.second("--start", text) == second


@pytest.mark.parametrize(
    ("clock", "text", "said"),
    [
        (BERLIN, "25:00", "allowed: a time since the beginning (2h30m), or where the trace has dates"),
        (BERLIN, "soon", "allowed: a time since the beginning"),
        (BERLIN, "2026-11-24T05:59", "allowed: from its beginning on, Tue 24 Nov 2026 06:00 Europe/Berlin"),
        (Clock(0.0), "14:32", "the trace has no dates"),
    ],
)
def test_what_is_no_time_of_the_trace_is_refused_with_what_is(clock, text, said):
    with pytest.raises(BadInput, match=r"--start: found") as problem:
        clock.second("--start", text)
    assert said in str(problem.value)


def test_only_what_hangs_on_the_trace_s_dates_is_a_moment():
    assert [is_moment(text) for text in ("2d", "90m", "x", "14:32", "2026-11-24", "2026-11-24T14:32Z")] == [False] * 3 + [True] * 3


def test_a_clock_that_is_set_during_the_run_has_two_offsets():
    midnight = datetime.fromisoformat("2026-10-24T22:00+00:00").timestamp()
    assert Clock(midnight, "Europe/Berlin").offsets(86_400.0) == [(0.0, 7200.0), (3 * 3600.0, 3600.0)]
    assert BERLIN.offsets(86_400.0) == [(0.0, 3600.0)]
