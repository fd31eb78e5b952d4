"""Blocks of a file become the very rows that the exact reader gives, plain or not, whole or cut anywhere."""

import gzip
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.demand import blocks
from forebay.demand.arrays import CHUNK_ROWS
from forebay.demand.columns import TIERS_MAX, Reader
from forebay.demand.counts import Counts
from forebay.demand.synthesis import UNSAID
from forebay.demand.trace import REORDER_ROWS_MAX, read
from forebay.domain.errors import BadInput

SHARED = Path(__file__).resolve().parents[4] / "shared" / "traces"
TIERS = ("interactive", "batch")
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
CSV = "at_s,prompt_tokens,output_tokens,tier,group,shared_tokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def in_blocks(text: str, cuts: list[int]) -> list[bytes]:
    """The lines of ``text`` in blocks that end after these lines."""
    lines = text.encode().splitlines(keepends=True)
    edges = sorted({0, *(min(cut, len(lines)) for cut in cuts), len(lines)})
    return [b"".join(lines[first:last]) for first, last in pairwise(edges)]


def both(
    text: str, trace_format: str, cuts: list[int], lenient: bool = False, renamed: dict[str, str] | None = None
) -> tuple[list[tuple], list[tuple], Counts, Counts]:
    """The rows by blocks and by the exact reader, or their errors."""
    reader, counts = Reader(trace_format, "t", TIERS, lenient=lenient, renamed=renamed), Counts()

    def fast() -> list[tuple]:
        found = []
        for chunk in reader.read(in_blocks(text, cuts)):
            assert 0 < len(chunk.at_s) <= CHUNK_ROWS
            found += list(zip(*(column.tolist() for column in chunk), strict=True))
        return found

    def exact() -> list[tuple]:
        names = {tier: number for number, tier in enumerate(TIERS)}
        rows = read(text.splitlines(keepends=True), trace_format, "t", lenient=lenient, counts=counts, columns=renamed)
        return [
            (row.at_s, row.prompt_tokens, row.output_tokens, names[row.tier] if row.tier else UNSAID, row.group, row.shared_tokens)
            for row in rows
        ]

    return told(fast), told(exact), reader.counts, counts


def told(rows) -> list[tuple]:
    try:
        return rows()
    except BadInput as error:
        return [(str(error),)]


STAMPS = st.tuples(
    st.integers(0, 40_000),
    st.sampled_from(["", ".5", ".0000001", ".123456", ".9799600", ".123456789"]),
    st.sampled_from(["", "Z", "+00:00"]),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(STAMPS, max_size=12), st.lists(st.integers(0, 12), max_size=3), st.booleans(), st.sampled_from(["\n", "\r\n"]))
def test_azure_dates_are_read_alike(stamps, cuts, ordered, end):
    if ordered:
        stamps = sorted(stamps)
    day = np.datetime64("2024-02-28T12:00:00")
    rows = [
        f"{str(day + np.timedelta64(9 * second, 's')).replace('T', ' ')}{fraction}{zone},{number + 1},{7 * number + 1}"
        for number, (second, fraction, zone) in enumerate(stamps)
    ]
    text = AZURE.strip() + end + "".join(row + end for row in rows)
    fast, exact, _, _ = both(text, "azure", cuts)
    assert fast == exact


NUMBERS = st.sampled_from(
    ["0", "0.5", "1.", ".25", "1e3", " 2", "12345678901234.5", "1234567890.123456", "-1", "nan", "", "1.2.3", "99999999999999999999"]
)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            NUMBERS,
            st.sampled_from(["1", "007", "10000001", "1234567890", "x", "2"]),
            st.sampled_from(["", "interactive", "batch", '"batch"', "bat"]),
        ),
        max_size=8,
    ),
    st.lists(st.integers(0, 8), max_size=3),
    st.booleans(),
)
def test_csv_cells_are_read_alike(cells, cuts, lenient):
    text = CSV + "".join(f"{at},{prompt},3,{tier},{number % 3 - 1},{number % 2}\n" for number, (at, prompt, tier) in enumerate(cells))
    if any(tier == "bat" for _, _, tier in cells):
        with pytest.raises(BadInput):
            list(Reader("csv", "t", TIERS).read(in_blocks(text, cuts)))
        return
    fast, exact, fast_counts, counts = both(text, "csv", cuts, lenient)
    if lenient:
        assert fast_counts.broken == counts.broken
        assert fast_counts.rows == counts.rows
        assert [row[0] for row in fast] == sorted(row[0] for row in fast)
        assert sorted(fast) == sorted(exact)
    else:
        assert fast == exact


@pytest.mark.parametrize("trace_format", ["jsonl", "ledger"])
@pytest.mark.parametrize("key", ["at_s", "wall_s", "timestamp"])
def test_json_lines_are_read_alike(trace_format, key):
    begin_s = 1_700_000_000.25 if key == "wall_s" else 90_000_000.25
    lines = [f'{{"{key}": {begin_s + number}, "prompt_tokens": {number + 1}, "output_tokens": 2, "tier": "batch"}}' for number in range(9)]
    fast, exact, _, _ = both("\n".join(lines) + "\n", trace_format, [4])
    assert fast == exact
    assert len(fast) == 9
    lines[5] = lines[5].replace('"batch"', "7")
    fast, exact, _, _ = both("\n".join(lines) + "\n", trace_format, [4])
    assert fast == exact
    assert fast[0][0].startswith("t:6: tier")


@pytest.mark.parametrize(
    "renamed", [{}, {"output_tokens": "out", "wall_s": "when"}, {"timestamp": "when"}, {"at_s": "when", "group": "out"}]
)
@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(
                ["at_s", "wall_s", "when", "prompt_tokens", "input_tokens", "output_tokens", "completion_tokens", "out", "group"]
            ),
            st.integers(0, 3),
            min_size=4,
        ),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.integers(0, 6), max_size=2),
)
def test_json_lines_are_read_alike_whatever_their_names(renamed, items, cuts):
    text = "".join(json.dumps(item) + "\n" for item in items)
    fast, exact, fast_counts, counts = both(text, "jsonl", cuts, lenient=True, renamed=renamed)
    assert sorted(fast) == sorted(exact)
    assert (fast_counts.rows, fast_counts.broken, fast_counts.unanswered) == (counts.rows, counts.broken, counts.unanswered)


@pytest.mark.parametrize(
    "times", [["1", "2.5"], ["2026-03-01 00:00:00.5", "2026-03-01T00:00:07"], ["2026-03-01T00:00:00Z", "2026-03-01 02:00:05+01:00"]]
)
@pytest.mark.parametrize("cuts", [[], [2]])
def test_a_csv_has_dates_or_seconds_under_a_name_of_its_own(times, cuts):
    text = "when,input_tokens,completion_tokens\n" + "".join(f"{at},7,{number}\n" for number, at in enumerate(times))
    fast, exact, fast_counts, _ = both(text, "csv", cuts, renamed={"timestamp": "when"})
    assert fast == exact
    assert [row[1:3] for row in fast] == [(7, 1), (7, 1)]
    assert fast_counts.unanswered == 1


def test_rows_without_output_are_taken_for_one_token_each_and_counted():
    for trace_format, text in (
        ("csv", CSV + "1,5,0,,,\n2,5,3,,,\n"),
        ("jsonl", '{"at_s": 1, "prompt_tokens": 5, "output_tokens": 0}\n{"at_s": 2, "prompt_tokens": 5, "output_tokens": 3}\n'),
    ):
        fast, exact, fast_counts, counts = both(text, trace_format, [])
        assert fast == exact
        assert [row[2] for row in fast] == [1, 3]
        for each in (fast_counts, counts):
            assert each.told() == ["rows without output, taken for one token each: 1"]
        (message,) = both(text.replace(" 3", " -3").replace(",3,", ",-3,"), trace_format, [])[0][0]
        assert "output_tokens: found" in message


def test_failures_of_burstgpt_are_left_out_and_counted():
    text = BURST + "5,ChatGPT,472,18,490,x\n6,ChatGPT,1,0,1,x\n7.5,GPT-4,2,3,5,x\n"
    fast, exact, fast_counts, counts = both(text, "burstgpt", [])
    assert fast == exact
    assert fast_counts.failures == counts.failures == 1


def test_plain_files_take_the_fast_way():
    cells = blocks.split(b"1,22,a\r\n33,4,bb\n", 3)
    assert cells is not None
    assert blocks.integers(cells, 1).tolist() == [22, 4]
    assert blocks.decimals(cells, 0).tolist() == [1.0, 33.0]
    assert blocks.choices(cells, 2, {"a": 3, "bb": 4}).tolist() == [3, 4]
    assert blocks.split(b"1,2\n3\n", 2) is None
    assert blocks.split(b"1,2,3\n4\n", 2) is None
    assert blocks.split(b'"1",2\n', 2) is None


def test_blank_lines_comments_of_nothing_and_a_late_header_are_taken():
    reader = Reader("csv", "t", TIERS)
    found = list(reader.read([b"\n\n", b"\xef\xbb\xbfat_s,prompt_tokens,output_tokens\n", b"1,2,3\n\n2,3,4"]))
    assert [chunk.at_s.tolist() for chunk in found] == [[1.0, 2.0]]
    with pytest.raises(BadInput, match=r"^t:7: at_s"):
        list(Reader("csv", "t", TIERS).read([b"\n\n", b"at_s,prompt_tokens,output_tokens\n", b"1,2,3\n\n2,3,4\nx,1,1\n"]))


@pytest.mark.parametrize("cut", [0, 2, 3])
def test_a_row_that_comes_twice_is_found_wherever_the_blocks_end(cut):
    text = AZURE + "2024-05-10 00:00:00.5,1,2\n" + "2024-05-10 00:00:01.5,3,4\n" * 2 + "2024-05-10 00:00:02,3,4\n"
    with pytest.raises(BadInput, match=r"^t:4: the row before comes again"):
        list(Reader("azure", "t", TIERS).read(in_blocks(text, [cut])))
    lenient = Reader("azure", "t", TIERS, lenient=True)
    assert np.concatenate([chunk.at_s for chunk in lenient.read(in_blocks(text, [cut]))]).tolist() == [0.0, 1.0, 1.5]
    assert lenient.counts.broken == 1
    by_chance = AZURE + "".join(f"2024-05-10 00:{at // 60:02}:{at % 60:02},1,2\n" for at in [*range(300), 299])
    assert sum(len(chunk.at_s) for chunk in Reader("azure", "t", TIERS).read(in_blocks(by_chance, [cut]))) == 301


def test_a_tier_that_is_none_is_named_or_learned():
    text = b"at_s,prompt_tokens,output_tokens,tier\n1,2,3,gold\n2,2,3,\n3,2,3,silver\n4,2,3,gold\n"
    with pytest.raises(BadInput, match=r"t:2: tier: found 'gold', allowed: interactive, batch"):
        list(Reader("csv", "t", TIERS).read([text]))
    reader = Reader("csv", "t", None)
    assert [chunk.tier.tolist() for chunk in reader.read([text])] == [[0, UNSAID, 1, 0]]
    assert reader.tiers == ("gold", "silver")
    many = b"at_s,prompt_tokens,output_tokens,tier\n" + b"".join(b"1,1,1,t%d\n" % number for number in range(TIERS_MAX + 1))
    with pytest.raises(BadInput, match=f"at most {TIERS_MAX} names"):
        list(Reader("csv", "t", None).read([many]))


@pytest.mark.parametrize("cuts", [[], [60], [40, 90, 130]])
def test_both_readers_count_the_rows_that_they_put_in_order(cuts):
    text = "at_s,prompt_tokens,output_tokens\n" + "".join(f"{at_s},1,1\n" for at_s in (0, 5, 3, 9, 8, 7.5, 20, 30, 29))
    fast, exact, fast_counts, counts = both(text, "csv", cuts, lenient=True)
    assert fast == exact
    for each in (fast_counts, counts):
        assert (each.sorted, each.back_s, each.late, each.dated) == (4, 2.0, 0, False)
        assert each.told() == ["rows put in order: 4; time goes back by up to 2s"]


def test_an_hour_that_comes_twice_is_told_where_it_is_sorted_in():
    """Lenient reading folded the hour in which summer time ends, without a word."""
    text = "wall_s,prompt_tokens,output_tokens\n" + "".join(f"{1761440000 + at_s},1,1\n" for at_s in (0, 3000, 600, 3500))
    for each in both(text, "csv", [], lenient=True)[2:]:
        assert each.told() == [
            "rows put in order: 1; time goes back by up to 40m; does summer time end here? write times in UTC or with their zone"
        ]


def test_lenient_reading_puts_right_what_is_a_little_out_of_order_over_blocks():
    order = np.random.default_rng(1).permutation(1000)
    rows = [f'{{"at_s": {at}, "prompt_tokens": {at + 1}, "output_tokens": 1}}\n'.encode() for at in order]
    reader = Reader("jsonl", "t", TIERS, lenient=True)
    found = np.concatenate([chunk.at_s for chunk in reader.read([b"".join(rows[:400]), b"".join(rows[400:])])])
    assert found.tolist() == list(range(1000))
    assert REORDER_ROWS_MAX > 1000
    many = b"".join(b'{"at_s": %d, "prompt_tokens": 1, "output_tokens": 1}\n' % at for at in range(10, REORDER_ROWS_MAX + 100))
    late = Reader("jsonl", "t", TIERS, lenient=True)
    assert sum(len(chunk.at_s) for chunk in late.read([many, many[:60]])) == REORDER_ROWS_MAX + 90
    assert late.counts.late > 0


def test_prefix_chains_become_groups():
    lines = [[0, 1, 2], [0, 14, 15], [0, 1, 2, 3], [0, 14, 16]]
    text = "".join(
        f'{{"timestamp": {1000 * number}, "input_length": {512 * len(ids)}, "output_length": 5, "hash_ids": {ids}}}\n'
        for number, ids in enumerate(lines)
    )
    (chunk,) = Reader("mooncake", "t", TIERS).read([text.encode()])
    assert chunk.group.tolist() == [0, 1, 0, 1]
    assert chunk.shared_tokens.tolist() == [0, 0, 1536, 1024]
    # The same prompt again: all of it is known but the token that is always computed.
    (chunk,) = Reader("mooncake", "t", TIERS).read([(text.splitlines(keepends=True)[0] * 2).encode()])
    assert chunk.shared_tokens.tolist() == [0, 1535]
    with pytest.raises(BadInput, match="hash_ids"):
        list(Reader("mooncake", "t", TIERS).read([b'{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}\n']))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces are not beside this checkout")
def test_a_real_trace_is_read_alike():
    text = (SHARED / "azure2023" / "AzureLLMInferenceTrace_code.csv").read_text()
    fast, exact, _, _ = both(text, "azure", [100, 3000])
    assert fast == exact
    assert len(fast) == 8819


def test_gzip_is_no_text():
    with pytest.raises(BadInput, match="header lacks"):
        list(Reader("azure", "t", TIERS).read([gzip.compress(b"x")]))


def test_a_time_beyond_any_trace_is_a_broken_row_that_names_its_line():
    lines = b"at_s,prompt_tokens,output_tokens\n0,10,10\n9e15,10,10\n6,11,11\n"
    with pytest.raises(BadInput, match=r"f\.csv:3: time: found '9e\+15|f\.csv:3: time: found '9000000000000000"):
        list(Reader("csv", "f.csv", None).read([lines]))
    lenient = Reader("csv", "f.csv", None, lenient=True)
    assert [float(at_s) for chunk in lenient.read([lines]) for at_s in chunk.at_s] == [0.0, 6.0]
    assert lenient.counts.broken == 1


def test_unix_time_in_the_column_of_seconds_is_told_where_it_belongs():
    with pytest.raises(BadInput, match=r"f\.jsonl:1: time: .*Unix time is a column wall_s"):
        list(Reader("jsonl", "f.jsonl", None).read([b'{"at_s": 1700000000, "prompt_tokens": 1, "output_tokens": 2}\n']))
