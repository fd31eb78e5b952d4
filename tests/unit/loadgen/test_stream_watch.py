"""However a stream is cut into reads, its first content, its content events and its ending are the same."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.loadgen.histogram import Histogram
from forebay.loadgen.stream import TAIL_PIECES_MAX, Ending, StreamWatch


def event(content: str | None, finish: str | None = None, spaced: bool = False) -> bytes:
    value = {
        "id": "c",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(value, separators=(", ", ": ") if spaced else (",", ":")).encode() + b"\n\n"


def usage(tokens: int) -> bytes:
    return b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":%d,"total_tokens":9}}\n\n' % tokens


ROLE = event("")
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"busy","type":"x","param":null,"code":503}}\n\n'


def watched(*reads: bytes) -> StreamWatch:
    watch = StreamWatch(Histogram())
    for number, read in enumerate(reads):
        watch.feed(read, float(number))
    return watch


def test_the_opening_without_content_is_not_the_first_token():
    watch = watched(ROLE, event(None), event(" the"), event(" and"), event(" end", "length"), usage(3), DONE)
    assert watch.first_s == 2.0
    assert (watch.events, watch.gaps.count, watch.gap_s_max) == (3, 2, 1.0)
    assert watch.ending(True, 3) is Ending.GOOD
    assert (watch.usage, watch.finish_reason) == (3, "length")


@pytest.mark.parametrize(
    "delta",
    ['{"reasoning_content":"x"}', '{"reasoning":"x"}', '{"tool_calls":[{"index":0}]}', '{"content":"x"}'],
)
def test_reasoning_and_tool_calls_are_content(delta):
    assert watched(b'data: {"choices":[{"delta":%s}]}\n\n' % delta.encode()).first_s == 0.0


def test_completions_carry_text():
    assert watched(b'data: {"choices":[{"text":""}]}\n\n', b'data: {"choices":[{"text":"x"}]}\n\n').first_s == 1.0


@pytest.mark.parametrize("spaced", [False, True])
def test_events_read_at_once_share_the_time_since_the_read_before(spaced):
    watch = StreamWatch(Histogram())
    watch.feed(event("a", spaced=spaced), 0.0)
    watch.feed(event("b", spaced=spaced) * 4, 2.0)
    assert watch.events == 5
    assert watch.gaps.quantile(0.5) == pytest.approx(0.5, rel=0.01)
    assert watch.gap_s_max == 2.0


def test_content_that_looks_like_an_event_is_not_counted():
    watch = watched(event("a"), event('data: {"choices":[]} data:{"finish_reason":"stop"}'), event("c", "length"))
    assert watch.events == 3


@pytest.mark.parametrize(
    ("reads", "complete", "asked", "ending"),
    [
        ((event("a"), event("b", "length"), usage(2), DONE), True, 2, Ending.GOOD),
        ((event("a"), event("b", "length"), DONE), True, 2, Ending.GOOD),
        ((event("a"), event("b", "stop"), usage(2), DONE), True, 5, Ending.STOPPED_EARLY),
        ((event("a"), event("b", "stop"), usage(7), DONE), True, 5, Ending.WRONG_LENGTH),
        ((event("a"), event("b", "length"), usage(2), DONE), True, 5, Ending.WRONG_LENGTH),
        ((event("a"), event("b", "length"), usage(2), DONE), False, 2, Ending.CUT),
        ((event("a"),), False, 2, Ending.CUT),
        ((event("a"), event("b", "length"), usage(2)), True, 2, Ending.NO_DONE),
        ((event("a"), usage(2), DONE), True, 2, Ending.NO_FINISH_REASON),
        ((event("a"), event("", "abort"), usage(1), DONE), True, 2, Ending.ABORTED),
        ((event("a"), ERROR, DONE), True, 2, Ending.ERROR_EVENT),
        ((event("a"), b'data: {"object":"error","message":"x","code":"503"}\n\n'), True, 2, Ending.ERROR_EVENT),
        ((), True, 2, Ending.NO_FINISH_REASON),
    ],
)
def test_endings(reads, complete, asked, ending):
    assert watched(*reads).ending(complete, asked) is ending


def test_an_error_instead_of_content_keeps_its_code():
    watch = watched(ERROR, DONE)
    assert watch.first_s is None
    assert watch.ending(True, 1) is Ending.ERROR_EVENT
    assert watch.error_code == 503


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 12), st.booleans(), st.booleans(), st.booleans())
def test_reads_may_be_cut_anywhere(data, tokens, spaced, crlf, complete):
    stream = ROLE + event("a data: b", spaced=spaced) * (tokens - 1) + event("end", "length", spaced=spaced) + usage(tokens) + DONE
    if crlf:
        stream = stream.replace(b"\n", b"\r\n")
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=40)))
    watch = watched(*(stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)))
    assert watch.first_s is not None
    assert watch.ending(complete, tokens) is (Ending.GOOD if complete else Ending.CUT)
    assert watch.usage == tokens
    assert watch.gaps.count <= watch.events <= tokens + 1


def test_a_long_stream_holds_only_its_tail():
    reads = [event("a")] * (TAIL_PIECES_MAX * 20) + [event("b", "length"), usage(9), DONE]
    watch = watched(*reads)
    assert watch.events == TAIL_PIECES_MAX * 20 + 1
    assert watch.ending(True, 9) is Ending.GOOD
    assert sum(map(len, watch._pieces)) < 64 * 1024


def test_the_closing_usage_is_no_token():
    watch = watched(ROLE + event("only", "length"), usage(1), DONE)
    assert (watch.events, watch.gaps.count) == (1, 0)
    watch = watched(event("a"), event("b", "length"), usage(2), DONE)
    assert (watch.events, watch.gaps.count) == (2, 1)
