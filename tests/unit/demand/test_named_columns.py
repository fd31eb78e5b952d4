"""A file of one's own: names that are known, names that are said, and a sentence of its own for each thing that is missing."""

import re

import pytest

from forebay.demand import named
from forebay.demand.trace import TraceRow, guess, read, unknown
from forebay.domain.errors import BadInput


def problem(header, renamed=None):
    found = named.header_problem(header, renamed or {})
    return "" if found is None else f"{found[0]}, allowed: {found[1]}"


@pytest.mark.parametrize(
    ("header", "renamed", "words"),
    [
        ("at_s;prompt_tokens;output_tokens", {}, "columns parted by ';', allowed: commas between columns"),
        ("at_s\tprompt_tokens", {}, r"columns parted by '\\t'"),
        ("1.5,2,3", {}, "no header, it seems: the first line is a row"),
        ("2026-01-01T00:00:00Z,2,3", {}, "no header, it seems"),
        ("1.5,2,3", {"at_s": "time"}, "no header, it seems"),
        ("Time,Input Tok,Output Tok", {}, r"did you mean --column 'timestamp=Time,prompt_tokens=Input Tok,output_tokens=Output Tok'\?"),
        ("when,in,out", {}, r"did you mean --column timestamp=when,prompt_tokens=in,output_tokens=out\?"),
        ("when,n,out", {}, r"timestamp=when,prompt_tokens=ITS_NAME,output_tokens=out, with your column's name for ITS_NAME\?"),
        ("at_s,prompt_tokens,tokens_out", {}, r"the header lacks output_tokens, .*did you mean --column output_tokens=tokens_out\?"),
        (
            "time,n,m",
            {},
            r"lacks a time and prompt_tokens and output_tokens, .* --column timestamp=time,prompt_tokens=ITS_NAME,output_tokens=ITS_NAME",
        ),
        ("a,prompt_tokens,output_tokens", {}, "say what they are called: --column timestamp=ITS_NAME"),
        (
            "when,prompt_tokens,output_tokens",
            {"timestamp": "wen"},
            r"lacks wen \(--column timestamp=wen\), allowed: a column of this file: when, prompt",
        ),
        (",".join(f"c{number}" for number in range(30)), {"at_s": "x"}, "c19, …"),
    ],
)
def test_what_a_header_lacks_is_told_apart(header, renamed, words):
    assert re.search(words, problem(header, renamed))


def test_names_of_openai_are_known_and_ours_go_first():
    text = "at_s,input_tokens,completion_tokens\n1,2,3\n"
    assert guess(text.splitlines()[0]) == "csv"
    assert list(read(text.splitlines(), "csv", "t")) == [TraceRow(1.0, 2, 3)]
    both = "at_s,input_tokens,prompt_tokens,output_tokens,completion_tokens\n1,2,20,30,3\n"
    assert list(read(both.splitlines(), "csv", "t")) == [TraceRow(1.0, 20, 30)]
    row = '{"timestamp": 1, "prompt_tokens": 2, "completion_tokens": 3}'
    assert guess(row) == "jsonl"
    assert list(read([row], "jsonl", "t")) == [TraceRow(1.0, 2, 3)]


def test_names_that_are_said_hold_for_json_lines_too():
    row = '{"ts": 1, "at_s": 9, "p": 2, "n": 3, "class": "batch"}'
    said = {"timestamp": "ts", "prompt_tokens": "p", "output_tokens": "n", "tier": "class"}
    assert guess(row) == ""
    assert guess(row, said) == "jsonl"
    assert list(read([row], "jsonl", "t", columns=said)) == [TraceRow(1.0, 2, 3, "batch")]
    with pytest.raises(BadInput, match=r"t:1: no m \(--column output_tokens=m\) among the keys: found 'ts, at_s, p, n, class'"):
        list(read([row], "jsonl", "t", columns={**said, "output_tokens": "m"}))
    with pytest.raises(BadInput, match=r"no prompt_tokens among the keys: .* say what they are called: --column prompt_tokens=ITS_NAME"):
        list(read(['{"at_s": 1}'], "jsonl", "t"))


def test_a_first_line_that_no_format_is_known_by_is_explained():
    assert unknown('{"a": 1}', ("csv",)).startswith(
        "not a trace format that is known: no time and prompt_tokens and output_tokens among the keys: found '{\"a\": 1}'"
    )
    assert "not a JSON object a line" in unknown("{", ("csv",))
    assert unknown("a;b", ("csv", "azure")).endswith("or say what else it is: --trace-format csv, azure")


@pytest.mark.parametrize("text", ["prompt_token=in", "at_s", "at_s=", "at_s=a,at_s=b"])
def test_names_that_are_not_ours_are_refused(text):
    with pytest.raises(BadInput, match="where NAME is one of at_s, wall_s, timestamp"):
        named.renamed(text)
