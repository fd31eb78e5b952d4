"""What a stream writes goes to its client's socket at once where nothing waits before it, and else the way that everything goes."""

import socket

import pytest
from both import AFTER, BEFORE, BUILT, END, MID, PLAIN_AFTER, Stream, needs_built, plain, told

from forebay.native import pure

pytestmark = needs_built
SHAPES = [pytest.param((BEFORE, MID, AFTER, END), id="told"), pytest.param((BEFORE, PLAIN_AFTER), id="plain")]


class Client:
    """A stream of either shape, its client's socket, and what a transport would say of that."""

    def __init__(self, shape, module=BUILT, **stream):
        self.stream = Stream(module, shape, **stream)
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.waiting, self.is_closing = 0, False
        self.stream.takes._straight(self.near.fileno(), lambda: self.waiting, lambda: self.is_closing)
        self._read = plain if len(shape) == 2 else lambda text: told(text, b"7")

    def take(self, text=b" the"):
        return self.stream.tried(self._read(text))

    def arrived(self):
        try:
            return self.far.recv(1 << 20)
        except BlockingIOError:
            return b""

    def close(self):
        self.near.close()
        self.far.close()


@pytest.fixture(params=SHAPES)
def client(request):
    made = Client(request.param)
    yield made
    made.close()


def test_it_goes_to_the_socket_itself(client):
    assert client.take()
    assert client.arrived() == plain(b" the")
    assert client.stream.written == []
    assert client.stream.takes.events == 1


def test_it_waits_behind_what_waits(client):
    client.waiting = 3
    assert client.take()
    assert (client.arrived(), client.stream.written) == (b"", [plain(b" the")])
    client.waiting = 0
    assert client.take(b" end")
    assert client.arrived() == plain(b" end")


def test_nothing_is_sent_over_a_connection_that_is_being_closed(client):
    """Its descriptor may be another's by now."""
    client.is_closing = True
    assert client.take()
    assert (client.arrived(), client.stream.written) == (b"", [plain(b" the")])


def test_of_what_the_socket_takes_in_part_the_rest_is_written(client):
    client.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    sent = got = 0
    while not client.stream.written:
        assert client.take(b"y" * 3900)
        sent += 1
    while read := client.arrived():
        got += len(read)
    assert got + sum(map(len, client.stream.written)) == sent * len(plain(b"y" * 3900))
    assert len(client.stream.written) == 1


def test_an_error_is_for_the_usual_way_to_find(client):
    client.far.close()
    client.near.shutdown(socket.SHUT_RDWR)
    assert client.take()
    assert client.stream.written == [plain(b" the")]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("asked", ["unsent", "closing"])
def test_what_a_question_raises_is_raised(shape, asked):
    client = Client(shape)

    def fail():
        raise RuntimeError("the event loop is closed")

    questions = {"unsent": lambda: 0, "closing": lambda: False, asked: fail}
    client.stream.takes._straight(client.near.fileno(), questions["unsent"], questions["closing"])
    assert client.take() == "RuntimeError('the event loop is closed')"
    assert client.arrived() == b""
    client.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_question_may_end_the_stream(shape):
    """Whoever is asked may let go of all: nothing that was looked at before is used after it."""
    client = Client(shape)
    takes = client.stream.takes

    def lets_go():
        takes.__init__()
        takes._write = client.stream._write
        return 0

    takes._straight(client.near.fileno(), lets_go, lambda: False)
    client.take()
    assert client.arrived() == b""
    client.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_python_writes_the_usual_way(shape):
    client = Client(shape, pure)
    assert client.take()
    assert (client.arrived(), client.stream.written) == (b"", [plain(b" the")])
    client.close()
