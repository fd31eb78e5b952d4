"""Events on their way through: what is sent, what is held, what is noticed."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reads import taking

from forebay.domain.shape import Usage
from forebay.gateway.sse import HELD_BYTES_MAX, EventStream, Trouble


def event(value) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def token(text="x", finish=None, **more) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}], **more})


ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
DONE = event(b"[DONE]")
USAGE = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}})
LAST = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def feed(stream: EventStream, *bodies: bytes) -> list[bytes]:
    """Each body as one whole chunk."""
    return [stream.feed(chunk(body), body, True, False) for body in bodies]


def unchunked(wire: bytes) -> bytes:
    body = b""
    while wire:
        size, _, rest = wire.partition(b"\r\n")
        body += rest[: int(size, 16)]
        wire = rest[int(size, 16) + 2 :]
    return body


def test_nothing_is_sent_before_content_and_then_all_at_once():
    stream = EventStream(True, True)
    assert feed(stream, ROLE, b": keep-alive\n\n") == [b"", b""]
    assert not stream.opened
    assert feed(stream, token("a")) == [chunk(ROLE) + chunk(b": keep-alive\n\n") + chunk(token("a"))]
    assert stream.opened


def test_content_passes_as_the_bytes_that_were_read():
    stream = EventStream(True, True)
    feed(stream, token("a"))
    wire = chunk(token("b")) + chunk(token("c"))
    assert stream.feed(wire, token("b") + token("c"), True, False) is wire
    assert stream.events == 3


@pytest.mark.parametrize(
    "delta",
    [{"reasoning_content": "hm"}, {"reasoning": "hm"}, {"tool_calls": [{"index": 0}]}, {"refusal": "no"}, {"content": "a"}],
    ids=lambda delta: next(iter(delta)),
)
def test_what_counts_as_content(delta):
    stream = EventStream(True, True)
    feed(stream, event({"choices": [{"delta": {"role": "assistant", **delta}}]}))
    assert stream.opened


def test_completions_and_unknown_shapes_are_content_too():
    for data in ({"choices": [{"text": "a"}]}, b'{"choices":[{"text":"\xff"}]}', {"choices": [{"delta": {"content": ["odd"]}}]}):
        stream = EventStream(True, True)
        feed(stream, event(data))
        assert stream.opened, data


@pytest.mark.parametrize("data", [b"plain text", b"{oops", b"null", b"<html>"])
def test_what_is_no_json_is_no_first_content_and_passes_after_one(data):
    stream = EventStream(True, True)
    assert feed(stream, event(data)) == [b""]
    assert (stream.opened, stream.trouble) == (False, Trouble.NO_EVENT)
    stream = EventStream(True, True)
    assert b"".join(feed(stream, token("a"), event(data))).count(b"data: ") == 2
    assert stream.trouble is None


def test_done_is_held_until_the_response_ended_well():
    stream = EventStream(True, True)
    feed(stream, token("a"), token("", "stop"))
    assert feed(stream, DONE) == [b""]
    assert stream.feed(LAST, b"", True, True) == chunk(DONE) + LAST
    assert stream.good


def test_a_stream_in_one_read_passes_whole():
    stream = EventStream(True, True)
    body = ROLE + token("a") + token("", "stop") + USAGE + DONE
    wire = chunk(body) + LAST
    assert stream.feed(wire, body, True, True) == wire
    assert stream.usage == Usage(7, 2, 3)


def test_a_cut_after_done_misses_nothing():
    stream = EventStream(True, True)
    feed(stream, token("a"), DONE)
    assert stream.cut() == chunk(DONE) + LAST
    assert stream.good


def test_a_cut_before_done_is_not_an_end():
    stream = EventStream(True, True)
    feed(stream, token("a"))
    assert stream.cut() is None
    assert not stream.good


def test_a_clean_end_without_a_finish_is_trouble():
    stream = EventStream(True, True)
    feed(stream, token("a"))
    assert stream.feed(LAST, b"", True, True) == b""
    assert stream.trouble is Trouble.UNFINISHED


def test_a_clean_end_with_a_finish_but_without_done_is_an_answer():
    stream = EventStream(True, True)
    feed(stream, token("a"), token("b", "length"), USAGE)
    assert stream.feed(LAST, b"", True, True) == LAST
    assert stream.good


def test_abort_is_trouble_and_is_not_sent():
    stream = EventStream(True, True)
    feed(stream, token("a"))
    body = token("b") + token("", "abort") + DONE
    assert unchunked(stream.feed(chunk(body), body, True, False)) == token("b")
    assert stream.trouble is Trouble.ABORTED


def test_the_word_abort_in_the_text_is_no_trouble():
    stream = EventStream(True, True)
    feed(stream, token("a"))
    assert feed(stream, token("abort")) == [chunk(token("abort"))]
    assert stream.trouble is None


def test_an_error_as_first_event_is_known_with_its_code():
    stream = EventStream(True, True)
    feed(stream, event({"error": {"message": "busy", "type": "Service Unavailable", "param": None, "code": 503}}))
    assert stream.trouble is Trouble.ERROR_EVENT
    assert stream.error.code == 503
    assert not stream.opened


def test_an_error_that_is_null_is_none():
    stream = EventStream(True, True)
    feed(stream, token("a", error=None), token("b", error=None))
    assert stream.trouble is None
    assert stream.events == 2


def test_running_usage_is_kept_up_to_date():
    stream = EventStream(True, True)
    for count in (1, 2, 3):
        feed(stream, token("a", usage={"prompt_tokens": 9, "completion_tokens": count}))
    assert stream.usage == Usage(9, 3, 0)


def test_half_an_event_waits_for_the_rest():
    stream = EventStream(True, True)
    feed(stream, token("a"))
    half, rest = token("b")[:20], token("b")[20:]
    assert stream.feed(chunk(half), half, True, False) == b""
    assert unchunked(stream.feed(chunk(rest), rest, True, False)) == token("b")
    wire = chunk(token("c"))
    assert stream.feed(wire, token("c"), True, False) is wire


def test_half_a_chunk_waits_for_the_rest():
    stream = EventStream(True, True)
    feed(stream, token("a"))
    wire, body = chunk(token("b")), token("b")
    assert stream.feed(wire[:10], body[:6], False, False) == b""
    assert unchunked(stream.feed(wire[10:], body[6:], True, False)) == body


def test_windows_line_ends_are_events_too():
    stream = EventStream(True, True)
    crlf = token("a").replace(b"\n", b"\r\n")
    assert feed(stream, crlf) == [chunk(crlf)]
    assert stream.events == 1


def test_an_endless_event_is_trouble():
    stream = EventStream(True, True)
    feed(stream, token("a"))
    body = b"data: " + b"x" * HELD_BYTES_MAX
    assert feed(stream, body) == [b""]
    assert stream.trouble is Trouble.TOO_LONG


def test_a_client_without_chunks_gets_plain_bytes():
    stream = EventStream(True, False)
    body = token("a") + DONE
    assert stream.feed(chunk(body) + LAST, body, True, True) == body


def test_an_engine_without_chunks_is_framed():
    stream = EventStream(False, True)
    assert stream.feed(token("a"), token("a"), True, False) == chunk(token("a"))
    stream.feed(DONE, DONE, True, False)
    assert stream.feed(b"", b"", True, True) == chunk(DONE) + LAST


GOOD = ROLE + token("Hello") + token(" wor\\nld") + token("", "stop") + USAGE + DONE


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(0, len(GOOD)), max_size=12), reads=st.lists(st.integers(1, 400), max_size=30))
def test_however_it_is_split_the_client_gets_the_same_events(cuts, reads):
    """Chunks end anywhere, reads end anywhere: every piece sent ends between two events, and all of it arrives."""
    edges = sorted({0, len(GOOD), *cuts})
    chunks = [GOOD[a:b] for a, b in pairwise(edges)]
    wire = b"".join(map(chunk, chunks)) + LAST
    spans, position = [], 0
    for data in chunks:
        start = position + len(b"%x\r\n" % len(data))
        spans.append((start, start + len(data), start + len(data) + 2))
        position = spans[-1][2]
    ends = {0, *(end for _, _, end in spans)}
    stream, sent, at = EventStream(True, True), b"", 0
    while at < len(wire):
        step = reads.pop() if reads else 10_000
        to = min(at + step, len(wire))
        body = b"".join(wire[max(a, at) : min(b, to)] for a, b, _ in spans if max(a, at) < min(b, to))
        piece = stream.feed(wire[at:to], body, to in ends or to == len(wire), to == len(wire))
        at = to
        sent += piece
        assert not piece or unchunked(sent).endswith(b"\n\n")
    assert stream.good
    assert unchunked(sent) == GOOD
    assert stream.usage == Usage(7, 2, 3)


@settings(max_examples=60, deadline=None)
@given(end=st.integers(0, len(GOOD)), reads=st.lists(st.integers(1, 200), max_size=20))
def test_wherever_it_is_cut_no_half_event_was_sent(end, reads):
    stream, sent, at = EventStream(False, True), b"", 0
    while at < end:
        to = min(end, at + (reads.pop() if reads else 10_000))
        sent += stream.feed(GOOD[at:to], GOOD[at:to], True, False)
        at = to
    left = stream.cut()
    body = unchunked(sent + (left or b""))
    assert body == b"" or (GOOD.startswith(body) and body.endswith(b"\n\n"))
    assert (left is not None) == (end == len(GOOD))


def through(pieces, attached):
    """What a client gets of these whole chunks: by ``attach``, or with each one looked at."""
    stream = EventStream(True, True)
    sent = []

    def attend(wire, body, whole, last):
        piece = stream.feed(wire, body, whole, last)
        if piece:
            sent.append(piece)

    data = taking(stream.attach(sent.append, attend, lambda: None)) if attached else attend
    stream.report_at = 5
    for body in pieces[:-1]:
        data(chunk(body), body, True, False)
    data(chunk(pieces[-1]) + LAST, pieces[-1], True, True)
    return b"".join(sent), stream.events, stream.usage, stream.trouble, stream.done, stream.opened


def compact(text, finish=None, key="content", **more) -> bytes:
    value = {"id": "c-1", "choices": [{"index": 0, "delta": {key: text}, "logprobs": None, "finish_reason": finish}], **more}
    return event(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


OPEN = b'"},"logprobs":null,"finish_reason":null}]'
AROUND = compact("a")[: -len(OPEN) - 3] + OPEN  # up to the end of the choices
LIKE_ONE_EVENT = [
    AROUND + b',"usage":{"prompt_tokens":5,"completion_tokens":1},"more":[{"delta":{"content":"b' + OPEN + b"}\n\n",
    compact("@").replace(b"@", b"a\n\ndata: [DONE]\n\nb"),
    compact("@").replace(b"@", b"a\nb"),
]
"""They begin and end as ``compact`` does, and are more than that."""

PIECES = st.one_of(
    st.sampled_from(LIKE_ONE_EVENT),
    st.builds(compact, st.text(max_size=12), key=st.sampled_from(["content", "reasoning_content", "reasoning", "role"])),
    st.builds(compact, st.sampled_from(["x", 'say "hi"', "\\", "a\n\nb", '","finish_reason":"abort', ""])),
    st.builds(lambda text: event({"choices": [{"text": text, "finish_reason": None}]}), st.text(max_size=5)),
    st.builds(compact, st.just("y"), usage=st.just({"prompt_tokens": 3, "completion_tokens": 1})),
    st.builds(compact, st.just("z"), st.sampled_from(["stop", "abort"])),
    st.builds(lambda one, two: compact(one) + compact(two), st.text(max_size=3), st.text(max_size=3)),
    st.builds(lambda text: compact(text)[:-1], st.text(max_size=3)),
    st.sampled_from(
        [
            ROLE,
            DONE,
            USAGE,
            b": ping\n\n",
            b"x",
            b"\n",
            b"\n\n",
            b"",
            compact("a")[:-20],
            compact("a")[40:],
            event({"error": {"message": "no"}}),
        ]
    ),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(PIECES, max_size=20))
def test_events_that_pass_unread_are_those_that_would_pass(pieces):
    pieces = [compact("first"), compact("second"), *pieces]
    assert through(pieces, True) == through(pieces, False)


def test_events_alike_pass_as_the_very_bytes():
    stream = EventStream(True, True)
    sent, attended, reported = [], [], []

    def attend(wire, body, whole, last):
        attended.append(body)
        sent.append(stream.feed(wire, body, whole, last))

    stream.report_at = 100
    data = taking(stream.attach(sent.append, attend, lambda: reported.append(stream.events)))
    wires = [chunk(compact(text)) for text in ("a", "b", "c", 'a "quote"', "d")]
    for wire in wires:
        data(wire, unchunked(wire), True, False)
    assert all(one is other for one, other in zip(sent, wires, strict=True))
    assert len(attended) == 1
    assert stream.events == 5
    stream.report_at = 6
    data(wires[0], unchunked(wires[0]), True, False)
    assert (len(attended), reported) == (1, [6]), "its owner wanted to be told at six events"
