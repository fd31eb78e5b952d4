"""Files are opened whatever their packing; a span that can't be replayed is refused before anything is sent."""

import gzip

import pytest

from forebay.demand.counts import Counts
from forebay.domain.errors import BadInput
from forebay.loadgen.files import LINE_CHARS_MAX, Selection, lines, load

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2024-05-10 00:00:{second:02}+00:00,{second + 1},1\n" for second in range(60)
)


def test_plain_and_packed_files_are_the_same(tmp_path):
    plain, packed = tmp_path / "plain.csv", tmp_path / "packed.csv"
    plain.write_text(TRACE)
    packed.write_bytes(gzip.compress(TRACE.encode()))
    assert list(lines(str(plain))) == list(lines(str(packed))) == TRACE.splitlines(keepends=True)


@pytest.mark.parametrize("cut", [10, -5])
def test_broken_gzip_is_bad_input(tmp_path, cut):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(TRACE.encode())[:cut])
    with pytest.raises(BadInput, match="broken gzip"):
        list(lines(str(path)))


def test_what_is_no_file_is_bad_input(tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(BadInput, match=r"name a file|directory"):
            list(lines(str(path)))


def test_a_line_without_end_comes_in_pieces(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text("x" * (LINE_CHARS_MAX + 5))
    assert [len(line) for line in lines(str(path))] == [LINE_CHARS_MAX, 5]


def test_bytes_that_are_no_text_are_a_broken_row_and_not_a_crash(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(TRACE.encode() + b"\xff\xfe,1,1\n")
    with pytest.raises(BadInput, match=r"t\.csv:62: timestamp"):
        load(Selection(path=str(path)), 0, Counts())


def test_the_format_is_guessed_and_the_span_taken(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(TRACE)
    counts = Counts()
    rows = load(Selection(path=str(path), start_s=10.0, duration_s=5.0), 0, counts)
    assert [(row.at_s, row.prompt_tokens) for row in rows] == [(float(second), second + 11) for second in range(5)]
    assert counts.rows == 16
    doubled = load(Selection(path=str(path), rate_scale=2.0, tiers={"a": 1.0}), 0, Counts())
    assert (len(doubled), {row.tier for row in doubled}) == (120, {"a"})


def test_names_that_are_said_and_doubts_about_times_hold_for_replays_too(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("when,in,out\n" + "".join(f"{157 * at + at % 7},9,{at % 2}\n" for at in range(200)))
    names, counts = {"at_s": "when", "prompt_tokens": "in", "output_tokens": "out"}, Counts()
    rows = load(Selection(path=str(path), columns=names), 0, counts)
    assert (len(rows), {row.output_tokens for row in rows}, counts.unanswered) == (200, {1}, 100)
    assert "its times look like milliseconds" in counts.doubt
    with pytest.raises(BadInput, match="the header lacks a time and prompt_tokens and output_tokens"):
        load(Selection(path=str(path)), 0, Counts())


@pytest.mark.parametrize(
    ("text", "selection", "words"),
    [
        (TRACE, {"start_s": 3600.0}, "no row in the span from 1h .* end at 59s"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", {}, "the trace has no rows"),
        ("", {}, "t.csv:1: the first line is empty; allowed: a header or a row of a trace"),
        ("a,b\n1,2\n", {}, "found 'a,b'"),
        ("a,b\n1,2\n", {"trace_format": "azure"}, "the header lacks"),
    ],
)
def test_what_can_not_be_replayed_is_refused(tmp_path, text, selection, words):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=words):
        load(Selection(path=str(path), **selection), 0, Counts())
