"""Every format is read as it is published, and every kind of broken row is named or counted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.demand.counts import Counts
from forebay.demand.trace import REORDER_ROWS_MAX, TOKENS_MAX, TraceRow, guess, read
from forebay.domain.errors import BadInput


def rows(text: str, trace_format: str, **options: object) -> list[TraceRow]:
    return list(read(text.splitlines(keepends=True), trace_format, "t", **options))  # type: ignore[arg-type]


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def test_azure_2023_has_naive_times_with_seven_digits():
    found = rows(AZURE + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n", "azure")
    assert found[0] == TraceRow(0.0, 4808, 10)
    assert found[1].at_s == pytest.approx(0.052, abs=1e-6)


def test_azure_2024_has_zones_and_sometimes_no_fraction_and_other_line_ends():
    text = "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\r\n2024-05-10 00:00:00+00:00,1,2\r\n\r\n2024-05-10 00:00:01.500000+00:00,3,4\r\n"
    assert rows(text, "azure") == [TraceRow(0.0, 1, 2), TraceRow(1.5, 3, 4)]


def test_azure_columns_are_found_by_name():
    assert rows("GeneratedTokens,TIMESTAMP,ContextTokens\n7,2024-05-10 00:00:00+00:00,9\n", "azure") == [TraceRow(0.0, 9, 7)]


def test_mooncake_counts_milliseconds_and_ignores_hashes():
    found = rows('{"timestamp": 1500, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n', "mooncake")
    assert found == [TraceRow(1.5, 6758, 500)]


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", "5,ChatGPT,472,{},490,Conversation log"),
        (
            "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
            "5,s1,2.5,GPT-4,472,{},490,API log",
        ),
    ],
)
def test_burstgpt_rows_without_an_answer_are_failures(header, row):
    counts = Counts()
    found = rows("\n".join((header, row.format(18), row.format(0), row.format(3))), "burstgpt", counts=counts)
    assert found == [TraceRow(5.0, 472, 18), TraceRow(5.0, 472, 3)]
    assert (counts.rows, counts.failures, counts.broken) == (2, 1, 0)


def test_jsonl_takes_seconds_or_dates_and_a_tier():
    text = (
        '{"at_s": 0.5, "prompt_tokens": 1, "output_tokens": 2, "tier": "batch"}\n{"timestamp": 2, "prompt_tokens": 3, "output_tokens": 4}\n'
    )
    assert rows(text, "jsonl") == [TraceRow(0.5, 1, 2, "batch"), TraceRow(2.0, 3, 4, "")]
    dated = '{"timestamp": "2026-01-01T00:00:0%dZ", "prompt_tokens": 1, "output_tokens": 1}\n'
    assert [row.at_s for row in rows(dated % 3 + dated % 5, "jsonl")] == [0.0, 2.0]


def test_a_csv_has_named_columns_and_a_ledger_unix_time():
    text = "tier,when,prompt_tokens,output_tokens,note\nbatch,0.5,1,2,x\n,1.5,3,4,y\n"
    assert list(read(text.splitlines(), "csv", "t", columns={"at_s": "when"})) == [TraceRow(0.5, 1, 2, "batch"), TraceRow(1.5, 3, 4)]
    dated = "timestamp,prompt_tokens,output_tokens\n2026-01-01T00:00:03Z,1,1\n2026-01-01T01:00:05+01:00,1,1\n"
    assert [row.at_s for row in rows(dated, "csv")] == [0.0, 2.0]
    ledger = '{"wall_s": 1700000000.25, "prompt_tokens": 1, "output_tokens": 1}\n{"wall_s": 1700000001.5, "prompt_tokens": 1, "output_tokens": 1}\n'
    assert [row.at_s for row in rows(ledger, "ledger")] == [0.0, 1.25]


@pytest.mark.parametrize(
    ("trace_format", "text", "line", "found"),
    [
        ("azure", AZURE + "2023-11-16 18:17:03.9,-5,10", 2, "-5"),
        ("azure", AZURE + "2023-11-16 18:17:03.9,5,0", 2, "0"),
        ("azure", AZURE + "yesterday,5,1", 2, "yesterday"),
        ("azure", AZURE + "2023-11-16 18:17:03.9,5", 2, "2 fields"),
        ("azure", AZURE + f"2023-11-16 18:17:03.9,{TOKENS_MAX + 1},1", 2, str(TOKENS_MAX + 1)),
        ("azure", "2023-11-16 18:17:03.9,5,1", 1, "the header lacks TIMESTAMP"),
        ("azure", AZURE + "2023-11-16 18:17:04,5,1\n2023-11-16 18:17:03,5,1", 3, "time goes back"),
        ("mooncake", '{"timestamp": 0, "input_length": 1}', 1, "output_length"),
        ("mooncake", '{"timestamp": -1, "input_length": 1, "output_length": 1}', 1, "-1"),
        ("mooncake", '{"timestamp": 0, "input_length": true, "output_length": 1}', 1, "True"),
        ("mooncake", "[1, 2]", 1, "[1, 2]"),
        ("jsonl", '{"at_s": 0, "prompt_tokens": 1, "output_tokens": 1, "tier": 3}', 1, "tier"),
        ("jsonl", '{"prompt_tokens": 1, "output_tokens": 1}', 1, "no time among the keys"),
        ("jsonl", '\n{"at_s": 0, "prompt_tokens": 1.5, "output_tokens": 1}', 2, "1.5"),
        ("azure", AZURE + "2023-11-16 18:17:04.1,5,1\n2023-11-16 18:17:04.1,5,1", 3, "the row before comes again"),
        ("azure", AZURE + "2024-10-27 02:59:59,5,1\n2024-10-27 02:00:01,5,1", 3, "summer time"),
        ("csv", "at_s,prompt_tokens,output_tokens\n1,2\n", 2, "2 fields"),
        ("csv", "at_s,prompt_tokens,output_tokens\n-1,2,3\n", 2, "-1"),
        ("csv", "time,prompt_tokens,output_tokens\n1,2,3\n", 1, "the header lacks a time"),
        ("csv", "at_s,prompt_tokens,output_tokens,group,shared_tokens\n1,2,3,0,4\n", 2, "shared_tokens"),
        ("ledger", '{"wall_s": 1e12, "prompt_tokens": 1, "output_tokens": 1}', 1, "1000000000000"),
        ("ledger", '{"at_s": 1, "prompt_tokens": 1, "output_tokens": 1, "group": 1.5}', 1, "group"),
        ("burstgpt", "Timestamp,Request tokens,Response tokens\nnan,1,1", 2, "nan"),
    ],
)
def test_a_broken_row_is_named_with_its_line(trace_format, text, line, found):
    with pytest.raises(BadInput) as caught:
        rows(text, trace_format)
    message = str(caught.value)
    assert message.startswith(f"t:{line}: ")
    assert found in message
    assert "allowed" in message
    assert "the header" in message or message.endswith("; --lenient skips and counts such rows")


def test_what_was_found_is_cut_short():
    with pytest.raises(BadInput) as caught:
        rows("x" * 100_000, "jsonl")
    assert len(str(caught.value)) < 300


def test_lenient_reading_counts_broken_rows_and_keeps_the_first_problem():
    counts = Counts()
    good = '{"at_s": %d, "prompt_tokens": 1, "output_tokens": 1}\n'
    found = rows(good % 0 + "{\n" + good % 1 + "nonsense\n", "jsonl", lenient=True, counts=counts)
    assert [row.at_s for row in found] == [0.0, 1.0]
    assert (counts.rows, counts.broken) == (2, 2)
    assert counts.first_problem.startswith("t:2: ")


def test_a_wrong_header_or_format_is_an_error_even_when_lenient():
    with pytest.raises(BadInput, match="the header lacks"):
        rows("a,b,c\n1,2,3\n", "azure", lenient=True)
    with pytest.raises(BadInput, match="allowed: azure, mooncake, burstgpt, jsonl, csv, ledger"):
        rows("", "parquet")


def test_a_row_dated_before_the_first_is_counted_and_not_silently_left_out():
    counts = Counts()
    text = AZURE + "2023-11-16 18:17:10,5,1\n2023-11-16 18:17:04,5,1\n2023-11-16 18:17:12,5,1\n"
    assert [row.at_s for row in rows(text, "azure", lenient=True, counts=counts)] == [0.0, 2.0]
    assert (counts.rows, counts.late) == (2, 1)


def test_rows_too_far_out_of_order_are_late():
    def line(at_s: int) -> str:
        return f'{{"at_s": {at_s}, "prompt_tokens": 1, "output_tokens": 1}}\n'

    counts = Counts()
    text = "".join(line(second) for second in range(10, REORDER_ROWS_MAX + 20)) + line(0) + line(REORDER_ROWS_MAX)
    found = [row.at_s for row in rows(text, "jsonl", lenient=True, counts=counts)]
    assert counts.late == 1
    assert counts.rows == len(found) == REORDER_ROWS_MAX + 11
    assert found == sorted(found)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 1000), max_size=50))
def test_lenient_reading_sorts_and_loses_nothing_within_its_window(times):
    text = [f'{{"at_s": {at_s}, "prompt_tokens": 1, "output_tokens": 1}}' for at_s in times]
    assert [row.at_s for row in read(text, "jsonl", "t", lenient=True)] == sorted(times)


@settings(max_examples=30, deadline=None)
@given(st.text(st.characters(codec="latin-1"), max_size=100), st.sampled_from(["azure", "mooncake", "burstgpt", "jsonl"]), st.booleans())
def test_no_text_at_all_raises_anything_but_bad_input(text, trace_format, with_header):
    header = {"azure": AZURE, "burstgpt": "Timestamp,Request tokens,Response tokens\n"}.get(trace_format, "") if with_header else ""
    try:
        for row in read((header + text).splitlines(), trace_format, "t"):
            assert row.prompt_tokens > 0
    except BadInput:
        pass


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (AZURE, "azure"),
        ("\ufeff" + AZURE, "azure"),
        ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", "burstgpt"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}', "mooncake"),
        ('{"at_s": 0, "prompt_tokens": 1, "output_tokens": 1}', "jsonl"),
        ('{"wall_s": 1, "prompt_tokens": 1, "output_tokens": 1}', "ledger"),
        ("at_s,prompt_tokens,output_tokens", "csv"),
        ("a,b,c", ""),
    ],
)
def test_a_format_is_known_by_its_first_line(line, name):
    assert guess(line) == name


@pytest.mark.parametrize("key", ["at_s", "wall_s"])
def test_a_time_that_is_no_number_is_told_as_it_stands_in_the_file(key):
    with pytest.raises(BadInput, match=r"t:2: .*found 'abc'"):
        rows(f"{key},prompt_tokens,output_tokens\nabc,1,1\n", "csv")
