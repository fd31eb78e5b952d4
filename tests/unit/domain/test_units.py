import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.domain.units import (
    format_bytes,
    format_duration,
    format_share,
    format_span,
    format_time,
    parse_duration_s,
    parse_ramp_per_s2,
    parse_rate_per_s,
    parse_size_bytes,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("90s", 90),
        ("6m", 360),
        ("6min", 360),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("1.5s", 1.5),
        (" 5 m ", 300),
        ("1w", 604_800),
    ],
)
def test_durations(text, seconds):
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "90", "s", "-5s", "5 parsecs", "1h30", "5m 3", "1e3s", "nan"])
def test_what_is_no_duration_says_what_would_be(text):
    with pytest.raises(ValueError, match="90s or 1h30m"):
        parse_duration_s(text)


@pytest.mark.parametrize(("text", "size"), [("70GB", 70 * 10**9), ("64MiB", 64 * 2**20), ("1.5 kB", 1500), ("0B", 0)])
def test_sizes(text, size):
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize("text", ["70", "70G", "GB", "-1GB", "70gb "])
def test_what_is_no_size_says_what_would_be(text):
    with pytest.raises(ValueError, match="such as 70GB"):
        parse_size_bytes(text)


def test_rates_and_ramps():
    assert parse_rate_per_s("50/min") == pytest.approx(50 / 60)
    assert parse_ramp_per_s2("30/min/min") == pytest.approx(30 / 3600)
    for parse in (parse_rate_per_s, parse_ramp_per_s2):
        with pytest.raises(ValueError, match="/min"):
            parse("50")


@given(st.integers(min_value=0, max_value=10**9))
def test_a_formatted_duration_reads_back_to_the_same_order(milliseconds):
    seconds = milliseconds / 1000
    shown = parse_duration_s(format_duration(seconds)) if seconds else 0.0
    assert math.isclose(shown, seconds, rel_tol=0.05, abs_tol=0.001)


def test_times_beside_each_other_are_never_in_milliseconds():
    assert [format_time(seconds) for seconds in (0.0, 0.004, 0.25, 0.999, 42.5, 90, -0.25)] == [
        "0s",
        "0s",
        "0.25s",
        "1s",
        "42.5s",
        "1m30s",
        "-0.25s",
    ]


@pytest.mark.parametrize(
    ("start_s", "duration_s", "said"),
    [(2_592_000.0, math.inf, "from 30d on"), (0.0, None, "from 0s on"), (90.0, 7200.0, "from 1m30s for 2h")],
)
def test_parts_of_a_trace_for_people(start_s, duration_s, said):
    assert format_span(start_s, duration_s) == said


def test_bytes_for_people():
    assert [format_bytes(size) for size in (12, 1500, 7e10, 2e13)] == ["12B", "1.5kB", "70.0GB", "20.0TB"]


@given(st.floats(0, 1), st.floats(0.5, 1), st.integers(1, 4))
def test_a_share_that_is_shown_never_contradicts_the_verdict(share, promise, places):
    promise = round(promise, places + 2)
    for each in (share, promise, math.nextafter(promise, 0), promise - 3e-5 if promise > 0.5 else promise):
        shown = Decimal(format_share(each, promise).removesuffix("%"))
        assert (shown >= Decimal(repr(promise)) * 100) == (each >= promise)


@pytest.mark.parametrize(
    ("share", "shown"), [(0.98997, "98.997%"), (0.9899999, "98.99999%"), (0.99, "99.00%"), (0.990351, "99.04%"), (0.5, "50.00%")]
)
def test_98_997_of_99_percent_is_not_shown_as_99(share, shown):
    assert format_share(share, 0.99) == shown
