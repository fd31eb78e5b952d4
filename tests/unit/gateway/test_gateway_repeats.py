"""A head that comes again is answered as the first one was: what the parser isn't asked for, it would have said too."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.gateway.answers import JSON
from forebay.gateway.http import ClientConnection, HttpServer
from forebay.spec.types import Limits

LIMITS = Limits(body_bytes_max=1_000, bodies_bytes_max=5_000, head_bytes_max=600, connections_max=20)


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.said = b""
        self.closed = False

    def write(self, data):
        self.said += data

    def nothing(self, *_, **__): ...

    set_write_buffer_limits = pause_reading = resume_reading = nothing

    def can_write_eof(self):
        return False

    def close(self):
        self.closed = True

    abort = close


class Talk:
    """One connection, and what was understood and answered on it."""

    def __init__(self) -> None:
        self.handled = []
        self.server = HttpServer(LIMITS, self.handle)
        self.connect()

    def connect(self):
        """On a connection of its own from now on."""
        self.wire = Wire()
        self.connection = ClientConnection(self.server)
        self.connection.connection_made(self.wire)

    def handle(self, connection, request):
        facts = request.facts
        self.handled.append((request.method, request.target, request.body, request.modern, request.keep_alive, facts.forwarded))
        connection.answer(200, JSON, b"%d" % len(request.body))

    def hear(self, *reads):
        """What these reads came to."""
        self.handled.clear()
        self.wire.said = b""
        for read in reads:
            self.connection.data_received(read)
        assert self.server.bodies_bytes == 0 or self.connection._reader.phase
        return list(self.handled), self.wire.said, self.wire.closed


def request(body, head=b"POST /v1/x HTTP/1.1\r\nHost: a\r\nX-Y: z\r\nContent-Length: %d\r\nAccept: */*\r\n\r\n"):
    return head % len(body) + body


def after_others(*reads):
    """The same said to a connection that has heard such heads before."""
    talk = Talk()
    for body in (b"one", b"two too", b""):
        assert talk.hear(request(body))[0][0][2] == body
    assert talk.connection._seen is not None
    return talk.hear(*reads)


GOOD = request(b"body")
VARIANTS = {
    "same": [GOOD],
    "longer": [request(b"b" * 900)],
    "too large": [request(b"b" * 1_001)],
    "empty": [request(b"")],
    "other target": [GOOD.replace(b"/v1/x", b"/v1/xy")],
    "other header": [GOOD.replace(b"Accept: */*", b"Accept: a/b")],
    "http 1.0": [GOOD.replace(b"HTTP/1.1", b"HTTP/1.0")],
    "in two reads": [GOOD[:-2], GOOD[-2:]],
    "inside the length": [GOOD[:60], GOOD[60:]],
    "two at once": [GOOD + GOOD],
    "one and a half": [GOOD + GOOD[:30], GOOD[30:]],
    "line ends between": [b"\r\n" + GOOD],
    "line end after": [GOOD + b"\r\n", GOOD],
    "length too short": [GOOD.replace(b": 4", b": 3")],
    "length too long": [GOOD.replace(b": 4", b": 5"), b"y"],
    "signed length": [GOOD.replace(b": 4", b": +4")],
    "negative length": [GOOD.replace(b": 4", b": -4")],
    "no length": [GOOD.replace(b": 4", b": ")],
    "leading zeros": [GOOD.replace(b": 4", b": 0004")],
    "length with spaces": [GOOD.replace(b": 4", b": 4  ")],
    "length and text": [GOOD.replace(b": 4", b": 4x")],
    "long length": [GOOD.replace(b": 4", b": " + b"0" * 30 + b"4")],
    "two lengths": [GOOD.replace(b": 4\r\n", b": 4\r\nContent-Length: 4\r\n")],
    "lengths in one": [GOOD.replace(b": 4", b": 4, 4")],
    "chunked too": [GOOD.replace(b": 4\r\n", b": 4\r\nTransfer-Encoding: chunked\r\n")],
    "other digits": [GOOD.replace(b": 4", ": ٤".encode())],
    "bare line feed": [GOOD.replace(b": 4\r\n", b": 4\n")],
    "head too large": [GOOD.replace(b"Accept: ", b"Accept: " + b"a" * 700)],
}


@pytest.mark.parametrize("reads", VARIANTS.values(), ids=VARIANTS.keys())
def test_after_other_requests_it_is_understood_as_by_a_fresh_connection(reads):
    assert after_others(*reads) == Talk().hear(*reads)


@pytest.mark.parametrize("reads", VARIANTS.values(), ids=VARIANTS.keys())
def test_a_new_connection_is_understood_as_by_a_fresh_server(reads):
    talk = Talk()
    for _ in range(2):
        talk.hear(GOOD)
    talk.connect()
    assert talk.hear(*reads) == Talk().hear(*reads)


def test_the_usual_head_is_known_on_a_connection_that_has_heard_none():
    talk = Talk()
    asked = []
    for _ in range(3):
        talk.connect()
        assert talk.hear(GOOD)[0][0][2] == b"body"
        talk.hear(GOOD)
        asked.append(talk.connection._reader.facts is not None)
    assert asked == [True, False, False]


def test_chunks_are_never_taken_for_a_length():
    talk = Talk()
    chunked = b"POST /v1/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"
    for _ in range(3):
        assert talk.hear(chunked)[0][0][2] == b"body"
    assert talk.connection._seen is None


@pytest.mark.parametrize("extra", [b"Expect: 100-continue\r\n"], ids=["expects"])
def test_heads_that_ask_for_more_than_an_answer_are_the_parsers(extra):
    talk = Talk()
    wire = GOOD.replace(b"Host: a\r\n", b"Host: a\r\n" + extra)
    first = talk.hear(wire)
    assert first == Talk().hear(wire)
    for _ in range(2):
        talk.hear(wire)
    assert talk.connection._seen is None


def test_a_body_beyond_the_room_left_is_refused_as_ever():
    talk = Talk()
    for _ in range(3):
        talk.hear(GOOD)
    talk.server.bodies_bytes = LIMITS.bodies_bytes_max - 2
    talk.wire.said = b""
    talk.connection.data_received(GOOD)
    assert talk.wire.said.startswith(b"HTTP/1.1 503")


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.binary(max_size=40),
            st.sampled_from([b"/a", b"/b"]),
            st.sampled_from([b"", b"X-A: 1\r\n", b"x-a:  2 \r\n"]),
            st.booleans(),
            st.integers(0, 200),
        ),
        max_size=12,
    )
)
def test_a_conversation_is_the_sum_of_its_requests(turns):
    talk = Talk()
    for body, target, extra, length_last, cut in turns:
        length = b"content-length: %d\r\n" % len(body)
        wire = b"POST %b HTTP/1.1\r\nhost: a\r\n%b\r\n" % (target, extra + length if length_last else length + extra) + body
        reads = [read for read in (wire[:cut], wire[cut:]) if read]
        assert talk.hear(*reads) == Talk().hear(wire)
