"""Times that look wrong are told: milliseconds taken for seconds, and the hour that a clock skips; ordinary traffic is not."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from forebay.demand import milliseconds
from forebay.demand.columns import Reader
from forebay.demand.milliseconds import ROWS_MAX, ROWS_MIN
from forebay.demand.trace import read
from forebay.domain.errors import BadInput

HEADER = "at_s,prompt_tokens,output_tokens\n"


def lines(times, header=HEADER):
    return [header, *(f"{at},10,10\n" for at in times)]


def poisson(gap, count=500, seed=3):
    return np.cumsum(np.random.default_rng(seed).exponential(gap, count)).astype(int).tolist()


def test_whole_numbers_far_apart_look_like_milliseconds():
    told = milliseconds.told(lines(poisson(156.0)), "csv", "t.csv")
    assert told.startswith("t.csv: its times look like milliseconds: the first 500 are whole numbers, 1")
    assert told.endswith("If they are milliseconds, divide them by 1000; they are read as seconds")
    own = [f'{{"ts": {at}, "prompt_tokens": 1, "output_tokens": 1}}' for at in poisson(156.0)]
    assert milliseconds.told(own, "jsonl", "t", {"timestamp": "ts"})
    assert "the first 4,095" in milliseconds.told(lines(poisson(156.0, 3 * ROWS_MAX)), "csv", "t")


@pytest.mark.parametrize(
    ("times", "header", "trace_format"),
    [
        (poisson(20.0), HEADER, "csv"),
        ([at + 0.5 for at in poisson(156.0)], HEADER, "csv"),
        (poisson(156.0, ROWS_MIN - 1), HEADER, "csv"),
        ([60 * at for at in poisson(3.0)], HEADER, "csv"),
        ([1_700_000_000 + at for at in poisson(156.0)], HEADER.replace("at_s", "wall_s"), "csv"),
        (poisson(156.0), "Timestamp,Request tokens,Response tokens\n", "burstgpt"),
        ([], HEADER, "csv"),
    ],
)
def test_a_quiet_service_and_published_traces_are_left_alone(times, header, trace_format):
    assert milliseconds.told(lines(times, header), trace_format, "t") == ""


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (HEADER + "99999000,1,1\n100000500,1,1\n", "are these milliseconds? Divide them by 1000"),
        (HEADER + "99999000,1,1\n2000000000,1,1\n", "are these milliseconds? Divide them by 1000"),
        (HEADER + "1700000000,1,1\n", "Unix time is a column wall_s"),
        (HEADER + "1700000000123,1,1\n", "is it Unix time in milliseconds? Divide it by 1000"),
    ],
)
def test_a_trace_that_goes_on_for_years_is_asked_about_its_unit(text, hint):
    for readers in (lambda: list(read(text.splitlines(), "csv", "t")), lambda: list(Reader("csv", "t", None).read([text.encode()]))):
        with pytest.raises(BadInput, match="at most 100000000 s after the beginning") as caught:
            readers()
        assert hint in str(caught.value)


def clock(begin, hours, skipped=None, step_s=20, zone=""):
    """A row every ``step_s`` seconds of a local clock, without the hour ``skipped``."""
    first = datetime.fromisoformat(begin).replace(tzinfo=UTC)
    moments = (first + timedelta(seconds=at) for at in range(0, int(3600 * hours), step_s))
    return [f"{moment:%Y-%m-%d %H:%M:%S}{zone}" for moment in moments if moment.hour != skipped]


def counts_of(times, blocks=1, trace_format="csv"):
    header = "timestamp,prompt_tokens,output_tokens\n" if trace_format == "csv" else "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    rows = [f"{at},{number + 1},1\n" for number, at in enumerate(times)]
    reader = Reader(trace_format, "t", None)
    step = -(-len(rows) // blocks)
    parts = [header.encode(), *("".join(rows[at : at + step]).encode() for at in range(0, len(rows), step))]
    assert sum(len(chunk.at_s) for chunk in reader.read(parts)) == len(rows)
    return reader.counts


@pytest.mark.parametrize("trace_format", ["csv", "azure"])
@pytest.mark.parametrize("blocks", [1, 2, 7, 100])
def test_an_hour_that_the_clock_skips_is_asked_about(trace_format, blocks):
    (told,) = counts_of(clock("2026-03-29 00:00:00", 5, skipped=2), blocks, trace_format).told()
    assert told.startswith("no row from 2026-03-29 01:59:40 to 03:00:00, in local time without a zone; does summer time begin here?")
    assert counts_of(clock("2026-03-29 00:00:00", 5, skipped=2, step_s=7), blocks).skipped_hour


@pytest.mark.parametrize(
    "times",
    [
        clock("2026-03-29 00:00:00", 5, skipped=2, zone="Z"),
        clock("2026-03-29 00:00:00", 5),
        clock("2026-03-30 00:00:00", 5, skipped=2),
        clock("2026-06-28 00:00:00", 5, skipped=2),
        clock("2026-03-29 08:00:00", 5, skipped=10),
        clock("2026-03-29 00:30:00", 5, skipped=2, step_s=900),
    ],
)
def test_an_idle_hour_elsewhere_is_an_idle_hour(times):
    assert counts_of(times).told() == []
