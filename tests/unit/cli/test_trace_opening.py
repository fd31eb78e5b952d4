"""Traces are opened by name, played as often as anyone asks and each time the same; what can't be used is refused at once."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from forebay.app import trace_files
from forebay.app.trace_edits import KINDS, edited, parse
from forebay.app.trace_spool import spooled
from forebay.app.traces import OpenedTrace, open_arrivals
from forebay.demand.arrays import Arrivals, empty, joined
from forebay.domain.errors import BadInput, ForebayError

DEFAULTS = {
    "lengths": None,
    "shape": (1000, 100),
    "tiers": ("interactive", "batch"),
    "tier_weights": None,
    "start_s": 0.0,
    "duration_s": None,
    "rate_scale": 1.0,
    "noise": 0.0,
    "cv": 1.0,
    "column": "",
    "seed": 1,
    "lenient": False,
}
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2024-05-10 00:{second // 60:02}:{second % 60:02}.5,{second + 1},{second % 7 + 1}\n" for second in range(120)
)
RATE = "# Minute 0 = 2024-05-12 00:00 UTC\nminute,rpm\n" + "".join(f"{10 * number},{600 + 60 * number}\n" for number in range(6))
TOKENS = "# from 2024-11-05\nminute,A_prod\n0,60000\n1,120000\n2,60000\n"
CLIENTS = "client,t_s,rate_rps,cv,pattern,shape,scale\n1,0,1,1,G,1,1\n2,600,2,1,W,0.5,1\n"
LENGTHS = "client,t_s,requests,in_mean,in_p50,in_p90,in_p99,out_mean,out_p50,out_p90,out_p99\n1,0,9,0,10,10,10,0,3,3,3\n"


def opened(path: Path, trace_format: str = "auto", **changes) -> OpenedTrace:
    return open_arrivals(path, trace_format, **{**DEFAULTS, **changes})


def rows(trace: OpenedTrace) -> Arrivals:
    found = empty()
    for chunk in trace.source():
        found = joined(found, chunk)
    return found


def written(folder: Path, text: str, name: str = "t") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_trace_of_requests_is_as_long_as_its_rows_and_knows_its_beginning(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_bytes(gzip.compress(AZURE.encode()))
    trace = opened(path)
    assert (trace.duration_s, trace.start_wall_s, trace.requests_expected, trace.rate_only) == (120.0, 1715299200.5, 120.0, False)
    assert trace.series(60.0).values.tolist() == [1.0, 1.0]
    found = rows(trace)
    assert found.at_s.tolist() == [float(second) for second in range(120)]
    assert set(found.tier.tolist()) == {0}
    part = opened(path, start_s=10.0, duration_s=30.0)
    assert (part.duration_s, part.start_wall_s) == (30.0, 1715299210.5)
    assert rows(part).prompt_tokens.tolist() == list(range(11, 41))
    assert opened(path, start_s=100.0, duration_s=1000.0).duration_s == 20.0


def test_the_same_seed_gives_the_same_bytes_every_time(tmp_path):
    for text, changes in (
        (AZURE, {"rate_scale": 2.5, "tier_weights": {"interactive": 1.0, "batch": 1.0}}),
        (RATE, {"noise": 0.05, "cv": 2.0}),
        (CLIENTS, {}),
    ):
        path = written(tmp_path, text)
        trace = opened(path, **changes)
        first, again, other = rows(trace), rows(trace), rows(opened(path, **changes, seed=2))
        assert all(a.tobytes() == b.tobytes() for a, b in zip(first, again, strict=True))
        assert first.at_s.tobytes() != other.at_s.tobytes()
        assert np.all(np.diff(first.at_s) >= 0)


def test_rates_are_drawn_and_their_series_is_what_was_drawn_from(tmp_path):
    trace = opened(written(tmp_path, RATE), rate_scale=2.0, start_s=600.0, duration_s=1800.0, noise=0.1)
    assert (trace.duration_s, trace.start_wall_s, trace.rate_only) == (1800.0, 1715472600.0, True)
    calm = opened(written(tmp_path, RATE), rate_scale=2.0, start_s=600.0, duration_s=1800.0)
    assert calm.series(600.0).values == pytest.approx([22.0, 24.0, 26.0])
    assert trace.series(600.0).values != pytest.approx([22.0, 24.0, 26.0], rel=0.001)
    counts = np.histogram(rows(trace).at_s, [0, 600, 1200, 1800])[0]
    assert counts == pytest.approx(trace.series(600.0).values * 600, rel=0.03)
    # Noise belongs to the trace's minutes, not to the span that is played.
    later = opened(written(tmp_path, RATE), rate_scale=2.0, start_s=1200.0, duration_s=600.0, noise=0.1)
    assert later.series(600.0).values[0] == pytest.approx(trace.series(600.0).values[1])


def test_tokens_become_requests_by_the_mean_length(tmp_path):
    trace = opened(written(tmp_path, TOKENS), "auto", column="A_prod", shape=(100, 10))
    assert trace.requests_expected == pytest.approx(240_000 / 100)
    lengths = written(tmp_path, AZURE, "lengths.csv")
    assert opened(tmp_path / "t", column="A_prod", lengths=lengths).requests_expected == pytest.approx(240_000 / 60.5)


def test_lengths_come_from_another_trace_whatever_its_tiers(tmp_path):
    lengths = written(tmp_path, '{"at_s": 0, "prompt_tokens": 77, "output_tokens": 5, "tier": "gold"}\n', "l.jsonl")
    found = rows(opened(written(tmp_path, RATE), lengths=lengths))
    assert set(found.prompt_tokens.tolist()) == {77}
    of_clients = written(tmp_path, LENGTHS, "lengths.csv")
    assert set(rows(opened(written(tmp_path, CLIENTS), lengths=of_clients)).output_tokens.tolist()) == {3}
    with pytest.raises(BadInput, match="has no lengths to draw"):
        opened(written(tmp_path, RATE), lengths=written(tmp_path, RATE, "other"))
    with pytest.raises(BadInput, match="no lengths to draw: the trace has no rows"):
        opened(written(tmp_path, RATE), lengths=written(tmp_path, AZURE.splitlines()[0], "none"))


def test_clients_and_totals_are_both_servegen(tmp_path):
    clients = opened(written(tmp_path, CLIENTS))
    assert (clients.duration_s, clients.series(600.0).values.tolist()) == (1200.0, [1.0, 2.0])
    assert len(rows(clients).at_s) == 1800
    totals = opened(written(tmp_path, "t_s,rate_rps\n0,1\n600,2\n"))
    assert totals.requests_expected == pytest.approx(1800)


def test_a_csv_may_call_its_columns_otherwise(tmp_path):
    path = written(tmp_path, "when,in,out\n1,2,3\n5,4,5\n")
    trace = opened(path, "csv", column="at_s=when, prompt_tokens=in,output_tokens=out")
    assert rows(trace).prompt_tokens.tolist() == [2, 4]
    with pytest.raises(BadInput, match="where NAME is one of at_s"):
        opened(path, "csv", column="time=when")
    with pytest.raises(BadInput, match="the header lacks a time"):
        opened(path, "csv", column="A_prod")


def test_without_tiers_a_trace_keeps_its_own(tmp_path):
    path = written(tmp_path, "at_s,prompt_tokens,output_tokens,tier\n0,1,1,gold\n1,1,1,\n2,1,1,tin\n")
    trace = opened(path, tiers=())
    assert trace.tiers == ("gold", "tin")
    assert rows(trace).tier.tolist() == [0, -1, 1]


def test_broken_rows_are_counted_where_that_is_asked_for(tmp_path):
    path = written(tmp_path, AZURE + "yesterday,1,1\n")
    with pytest.raises(BadInput, match=r"t:122: timestamp: found 'yesterday'"):
        opened(path)
    trace = opened(path, lenient=True)
    assert (trace.counts.broken, len(rows(trace).at_s)) == (1, 120)


@pytest.mark.parametrize(
    ("text", "changes", "words"),
    [
        (AZURE, {"start_s": 3600.0}, "no row in the span from 1h on: its rows that were read end at 1m59s"),
        (AZURE, {"start_s": 0.1, "duration_s": 0.2}, "no row in the span"),
        (AZURE.splitlines()[0], {}, "the trace has no rows"),
        (RATE, {"start_s": 1e6}, "nothing in the span from 11d13h on: the trace is 1h long"),
        (AZURE, {"start_s": -1.0}, "span: found"),
        (AZURE, {"duration_s": 0.0}, "span: found"),
        (AZURE, {"rate_scale": 0.0}, "rate scale: found 0"),
        (RATE, {"cv": -1.0}, "variation: found -1"),
        (RATE, {"shape": (0, 5)}, "shape: mean lengths of 0"),
        (AZURE, {"tier_weights": {"gold": 1.0}}, "tier 'gold' is none of interactive, batch"),
        ("a,b\n1,2\n", {}, "not a trace format that is known: the header lacks a time and prompt_tokens and output_tokens: found 'a,b'"),
        ("", {}, "t: the file is empty; allowed: a trace of one row or more"),
        ("\n# a comment\n\n", {}, "the file has no rows, only comments and empty lines"),
        ("#\n" * 51 + AZURE, {}, "its first 50 lines are comments or empty"),
        (LENGTHS, {}, "these are lengths, not a trace"),
        ("x" * (1 << 23), {"trace_format": "azure"}, "a line of more than"),
        ('{"at_s": 1e9, "prompt_tokens": 1, "output_tokens": 1}', {}, "at most 100000000 s after the beginning"),
    ],
)
def test_what_can_not_be_played_is_refused_before_anything_runs(tmp_path, text, changes, words):
    with pytest.raises(BadInput, match=words):
        opened(written(tmp_path, text), **changes)


def test_files_that_can_not_be_read_and_formats_that_are_none_are_named(tmp_path):
    with pytest.raises(BadInput, match="name a file that can be read"):
        opened(tmp_path / "missing", "azure")
    with pytest.raises(BadInput, match="which stdin can't be"):
        opened(Path("-"))
    with pytest.raises(BadInput, match="allowed: auto, azure"):
        opened(written(tmp_path, AZURE), "azur")
    with pytest.raises(BadInput, match="name a file that can be read"):
        opened(tmp_path)
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(AZURE.encode())[:-9])
    with pytest.raises(BadInput, match="broken gzip"):
        opened(broken, "azure")


@pytest.mark.parametrize("trace_format", ["auto", "azure"])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (AZURE.encode("utf-16"), "text in UTF-16; turn it into UTF-8: iconv"),
        (gzip.compress(AZURE.encode("utf-16-be")), "no text: there are zero bytes in it"),
        (b"PK\x03\x04 more", "a zip archive"),
        (b"PAR1 more", "a Parquet file"),
        (b"SQLite format 3\0more", "an SQLite database; the history of a fleet is read by"),
    ],
)
def test_a_file_that_is_no_text_is_called_by_its_name(tmp_path, data, words, trace_format):
    """UTF-16 was told as a header that lacks TIMESTAMP, with the zero bytes of all its letters."""
    path = tmp_path / "t.csv"
    path.write_bytes(data)
    with pytest.raises(BadInput, match=f"t.csv': this is {words}"):
        opened(path, trace_format)


def test_blocks_end_with_whole_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_files, "BLOCK_BYTES", 100)
    path = written(tmp_path, AZURE.rstrip("\n"))
    found = list(trace_files.blocks(path))
    assert len(found) > 10
    assert all(block.endswith(b"\n") for block in found)
    assert b"".join(found) == AZURE.encode()
    assert rows(opened(path)).prompt_tokens.tolist() == list(range(1, 121))


def test_a_spooled_trace_plays_the_same_from_disk(tmp_path):
    moon = "".join(f'{{"timestamp": {1000 * n}, "input_length": 2048, "output_length": 5, "hash_ids": [0, 1, {n}]}}\n' for n in range(2, 9))
    for text in (AZURE, moon):
        trace = opened(written(tmp_path, text), rate_scale=1.5)
        kept = spooled(trace, tmp_path / "spool")
        for _ in range(2):
            for a, b in zip(rows(trace), rows(kept), strict=True):
                assert a.tobytes() == b.tobytes()
                assert a.dtype == b.dtype
        assert kept.duration_s == trace.duration_s
        assert next(iter(kept.source())).at_s.flags.writeable
    with pytest.raises(ForebayError, match="can't keep the trace"):
        spooled(trace, tmp_path / "no" / "spool")


def changed(trace: OpenedTrace, *words: str, other=None, seed: int = 3) -> OpenedTrace:
    return edited(trace, [parse(one, lambda name: other) for one in words], seed)


@pytest.mark.parametrize(
    "words",
    [
        "scale factor=3",
        "stretch factor=2",
        "spike at=10m factor=5 hold=5m",
        "ramp from=10m until=30m factor=3",
        "step at=20m factor=0.5",
        "long-context share=0.3 prompt=9999 output=3 from=10m",
        "lengths from=10m output=2",
        "splice with=t at=20m",
        "merge with=t from=30m",
    ],
)
def test_a_change_does_to_the_rates_what_it_does_to_the_arrivals(tmp_path, words):
    trace = opened(written(tmp_path, RATE))
    found = changed(trace, words, other=trace)
    many = [rows(changed(trace, words, other=trace, seed=seed)).at_s for seed in range(2)]
    assert np.all(np.diff(many[0]) >= 0)
    edges = np.arange(0, found.duration_s + 1, 600)
    counts = np.mean([np.histogram(at_s, edges)[0] for at_s in many], axis=0)
    assert counts == pytest.approx(found.series(600.0).values * 600, rel=0.05, abs=80)
    assert rows(found).at_s.tobytes() == rows(found).at_s.tobytes()


@pytest.mark.parametrize(
    "words",
    ["spike at=2m", "ramp from=2m until=1h factor=2", "step at=9h factor=2", "long-context share=0.1 prompt=9 from=2m", "lengths from=2m"],
)
def test_a_change_after_the_end_is_refused_and_does_not_leave_the_trace_as_it_was(tmp_path, words):
    trace = opened(written(tmp_path, AZURE))
    with pytest.raises(BadInput, match="allowed: a time before the end of what is changed, 2m"):
        changed(trace, words)
    changed(trace, "stretch factor=300", words)


def test_changes_are_made_in_their_order(tmp_path):
    trace = opened(written(tmp_path, AZURE))
    late = changed(trace, "stretch factor=2", "lengths from=100s prompt=10")
    assert rows(late).prompt_tokens[48:52].tolist() == [49, 50, 510, 520]
    soon = changed(trace, "lengths from=100s prompt=10", "stretch factor=2")
    assert rows(soon).prompt_tokens[98:102].tolist() == [99, 100, 1010, 1020]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "allowed: scale, stretch"),
        ("spik at=1h", 'did you mean "spike"'),
        ("spike", r"write spike at=… \[factor=10\]"),
        ("spike at=1h wide=3", "write spike at=…"),
        ("spike 1h", "write spike at=…"),
        ("spike at=1", "at: '1' is not a duration"),
        ("scale factor=0", "factor: found '0', allowed: a number above 0"),
        ("scale factor=x", "factor: found 'x'"),
        ("ramp from=2h until=1h factor=2", "ends before it begins"),
        ("long-context share=1 prompt=5", "share: found '1'"),
        ("splice with=x at=0s", "a time after 0s"),
    ],
)
def test_a_change_that_is_none_is_explained(tmp_path, words, told):
    trace = opened(written(tmp_path, AZURE))
    with pytest.raises(BadInput, match=told):
        parse(words, lambda name: trace)
    with pytest.raises(BadInput, match="31 changes"):
        edited(trace, [parse("scale factor=1", lambda name: trace)] * 31, 0)
    assert set(KINDS) >= {"spike", "ramp", "step", "splice", "merge"}
