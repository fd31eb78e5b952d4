"""What is taken for a request: strictly, the same wherever reads end, and framed for the engine as it was understood."""

import itertools
import re

import h11
import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.gateway.chunks import BadChunk, Chunks
from forebay.gateway.intake import Intake, no_peek
from forebay.gateway.reader import RequestReader
from forebay.spec.types import Limits

LIMITS = Limits(body_bytes_max=300, bodies_bytes_max=1_000, head_bytes_max=400)


def read(pieces):
    """What a connection that gets these bytes would handle, and how it ends."""
    intake = Intake(LIMITS, no_peek)
    reader = RequestReader(intake)
    seen, open_ = [], True
    for piece in pieces:
        rest = piece
        while rest and open_ and reader.refused is None:
            rest = reader.feed(rest)
            request, reader.whole = reader.whole, None
            if request is not None:
                seen.append((request.method, request.target, request.facts.forwarded, bytes(request.body), request.keep_alive))
                intake.bodies_bytes -= request.held_bytes
                open_ = request.keep_alive  # after an answer that ends the connection nothing is read
    refused = reader.refused.status if reader.refused is not None else None
    reader.close()
    assert intake.bodies_bytes == 0
    return seen, refused if open_ else None


G = b"GET / HTTP/1.1\r\nhost: a\r\n"
P = b"POST / HTTP/1.1\r\nhost: a\r\n"
C = P + b"transfer-encoding: chunked\r\n\r\n"
SMUGGLED = {
    "both lengths": P + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "both lengths, the other way round": P + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
    "two lengths that differ": P + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    "two lengths that don't": P + b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc",
    "lengths in a list": P + b"content-length: 3, 3\r\n\r\nabc",
    "a signed length": P + b"content-length: +3\r\n\r\nabc",
    "a negative length": P + b"content-length: -3\r\n\r\nabc",
    "a length in hexadecimal": P + b"content-length: 0x3\r\n\r\nabc",
    "a length with an underscore": P + b"content-length: 1_0\r\n\r\nabc",
    "no length at all": P + b"content-length: \r\n\r\n",
    "a length beyond 64 bits": P + b"content-length: 99999999999999999999999\r\n\r\nabc",
    "whitespace before the colon": P + b"content-length : 3\r\n\r\nabc",
    "a folded line": G + b"x: a\r\n b\r\n\r\n",
    "a folded first line": b"GET / HTTP/1.1\r\n x: a\r\n\r\n",
    "a bare line feed": b"GET / HTTP/1.1\nhost: a\r\n\r\n",
    "a bare line feed after a field": G[:-2] + b"\n\r\n",
    "a bare carriage return": G + b"x: a\rb\r\n\r\n",
    "a null byte": G + b"x: a\0b\r\n\r\n",
    "a field without a colon": G + b"abc\r\n\r\n",
    "a field without a name": G + b": x\r\n\r\n",
    "gzip before chunked": P + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "gzip after chunked": P + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "chunked twice": P + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked, then identity": P + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
    "a quoted coding": P + b'transfer-encoding: "chunked"\r\n\r\n0\r\n\r\n',
    "another coding": P + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a prefixed chunk size": C + b"0x3\r\nabc\r\n0\r\n\r\n",
    "a negative chunk size": C + b"-3\r\nabc\r\n0\r\n\r\n",
    "a chunk size with a space": C + b"3 \r\nabc\r\n0\r\n\r\n",
    "a chunk size beyond all": C + b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    "an empty chunk size": C + b"\r\nabc\r\n0\r\n\r\n",
    "a chunk size with a bare line feed": C + b"3\nabc\r\n0\r\n\r\n",
    "a chunk with a bare line feed": C + b"3\r\nabc\n0\r\n\r\n",
    "a chunk longer than its size": C + b"3\r\nabcd\r\n0\r\n\r\n",
    "an extension with a bare line feed": C + b"3;a=b\nabc\r\n0\r\n\r\n",
    "an end with a bare line feed": C + b"0\r\n\n",
    "a trailer that frames": C + b"0\r\ncontent-length: 5\r\n\r\n",
    "a trailer that frames in another way": C + b"0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "two spaces in the first line": b"GET  / HTTP/1.1\r\n\r\n",
    "a space in the target": b"GET / x HTTP/1.1\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "another version": b"GET / HTTP/1.2\r\n\r\n",
    "another protocol": b"GET / RTSP/1.0\r\n\r\n",
    "a tunnel": b"CONNECT a:80 HTTP/1.1\r\n\r\n",
    "a method in lower case": b"get / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("wire", SMUGGLED.values(), ids=SMUGGLED.keys())
def test_framing_that_can_be_read_in_two_ways_is_refused(wire):
    assert read([wire + G + b"\r\n"]) == ([], 400)
    assert read([bytes([byte]) for byte in wire + G + b"\r\n"]) == ([], 400)


def test_a_refusal_waits_until_what_came_before_it_is_answered():
    seen, refused = read([G + b"\r\n" + SMUGGLED["both lengths"]])
    assert len(seen) == 1
    assert refused == 400


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        (C + b'3\r\nabc\r\n2;ext="q"\r\nde\r\n00\r\nx-t: 1\r\n\r\n', b"abcde"),
        (P + b"Content-Length: 3 \r\n\r\nabc", b"abc"),
        (P + b"connection: upgrade, HTTP2-Settings\r\nupgrade: h2c\r\ncontent-length: 3\r\n\r\nabc", b"abc"),
        (b"\r\n\r\n" + C + b"1A\r\n" + b"x" * 26 + b"\r\n0\r\n\r\n", b"x" * 26),
    ],
    ids=["chunks", "length", "upgrade", "empty lines before"],
)
def test_what_is_right_is_understood_wherever_it_is_cut(wire, body):
    whole = read([wire + wire])
    assert [seen[3] for seen in whole[0]] == [body, body]
    for cut in range(1, len(wire) * 2):
        assert read([(wire + wire)[:cut], (wire + wire)[cut:]]) == whole


@pytest.mark.parametrize("said", [b"", b"connection: keep-alive\r\n"])
def test_of_http_1_0_no_connection_is_kept_and_no_interim_answer_awaited(said):
    intake = Intake(LIMITS, no_peek)
    reader = RequestReader(intake)
    reader.feed(b"POST / HTTP/1.0\r\nexpect: 100-continue\r\n%bcontent-length: 3\r\n\r\nab" % said)
    assert not reader.waits_for_leave
    reader.feed(b"c")
    assert reader.whole is not None
    assert not reader.whole.keep_alive


@pytest.mark.parametrize("wire", [b"GET / HTTP/1.1\r\nx: " + b"y" * 500, b"GET /" + b"y" * 500], ids=["field", "target"])
def test_a_head_too_large_is_refused_whether_it_ends_or_not(wire):
    assert read([wire]) == ([], 431)
    assert read([wire + b"\r\n\r\n"]) == ([], 431)
    assert read([wire[:100], wire[100:300], wire[300:]]) == ([], 431)


def test_a_body_of_many_frames_is_bounded_by_its_frames_too():
    assert read([C + b"1;" + b"e" * 200 + b"\r\nx\r\n"] + [b"1;" + b"e" * 200 + b"\r\nx\r\n"] * 100)[1] == 413


# -- the same by other means: llhttp for chunks, h11 for what an engine is sent ---------------------------------------------

TOKENS = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\n", b"POST /v1/x HTTP/1.1\r\n", b"POST /y HTTP/1.0\r\n", b"host: a\r\n", b"Content-Length: 5\r\n", b"content-length: 3\r\n",
        b"content-length:3\r\n", b"Transfer-Encoding: chunked\r\n", b"transfer-encoding:chunked\r\n", b"connection: close\r\n",
        b"connection: keep-alive, x-a\r\n", b"x-a: 1\r\n", b"Upgrade: h2c\r\n", b"connection: upgrade\r\n", b"expect: 100-continue\r\n", b"\r\n", b"\n", b"\r", b" ",
        b"abc", b"hello", b"3\r\nabc\r\n", b"0\r\n\r\n", b"5\r\nhello\r\n", b"0\r\nx-t: 1\r\n\r\n", b"5;e=1\r\n", b"\0", b"\xff", b":", b"a: b\r\n", b"x" * 120,
    ]
)  # fmt: skip
WIRES = st.lists(st.one_of(TOKENS, st.binary(max_size=6)), max_size=25).map(b"".join)


@settings(max_examples=150, deadline=None)
@given(WIRES, st.lists(st.integers(0, 400), max_size=6))
def test_where_reads_end_changes_nothing(wire, cuts):
    edges = [0, *sorted(cut % (len(wire) + 1) for cut in cuts), len(wire)]
    assert read([wire[start:end] for start, end in itertools.pairwise(edges)]) == read([wire])


class _Llhttp:
    def __init__(self):
        self.body = b""
        self.done = False

    def on_body(self, body):
        self.body += body

    def on_message_complete(self):
        self.done = True


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(
                [b"3\r\nabc\r\n", b"0\r\n", b"\r\n", b"5;e=1\r\nhello\r\n", b"A\r\n0123456789\r\n", b"x: y\r\n", b"\n", b" ", b"g"]
            ),
            st.binary(max_size=3),
        ),
        max_size=8,
    ).map(b"".join),
    st.integers(1, 9),
)
def test_chunks_are_decoded_as_llhttp_decodes_them(wire, step):
    own, parts, at = Chunks(), [], 0
    try:
        for start in range(0, len(wire), step):
            piece = wire[start : start + step]
            taken = own.feed(piece, 0, parts)
            at += taken
            if own.done:
                break
        bad = False
    except BadChunk:
        bad = True
    theirs = _Llhttp()
    parser = httptools.HttpRequestParser(theirs)
    try:
        parser.feed_data(C + wire[:at] if own.done else C + wire)
        refused = False
    except httptools.HttpParserError:
        refused = True
    if own.done:
        assert not refused
        assert theirs.done
        assert theirs.body == b"".join(parts)
    elif refused and not bad:  # what they refuse is refused here at the end of the line
        with pytest.raises(BadChunk):
            own.feed(b"\n", 0, parts)


ENGINE_HEAD = re.compile(rb"POST \S+ HTTP/1\.1\r\n")


@settings(max_examples=150, deadline=None)
@given(WIRES)
def test_what_an_engine_is_sent_is_one_request_with_the_same_body(wire):
    for method, target, forwarded, body, _ in read([wire])[0]:
        sent = b"POST %b HTTP/1.1\r\nhost: e\r\n%bcontent-length: %d\r\n\r\n%b" % (target, forwarded, len(body), body)
        engine = h11.Connection(h11.SERVER)
        engine.receive_data(sent)
        request = engine.next_event()
        assert isinstance(request, h11.Request), (method, sent)
        got = b""
        while isinstance(event := engine.next_event(), h11.Data):
            got += bytes(event.data)
        assert isinstance(event, h11.EndOfMessage)
        assert got == body
        assert engine.trailing_data[0] == b""
