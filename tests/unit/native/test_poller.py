"""Streams read in turns: C and Python read alike, and whatever one of them does, the others get all of theirs, in order."""

import gc
import os
import select
import socket
import weakref

import pytest
from both import AFTER, BEFORE, BOTH, BUILT, END, MID, Stream, needs_built, told
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.native import pure

TOLD = (BEFORE, MID, AFTER, END)
EXAMPLES = int(os.environ.get("FOREBAY_STREAM_EXAMPLES", "30"))


class Sitter:
    """One connection's two ends, and what was heard of it."""

    def __init__(self, module, poller):
        self.poller = poller
        self.far, self.near = socket.socketpair()
        self.far.setblocking(False)
        self.got, self.errors, self.ends = b"", [], 0
        self.on_read = lambda _: None
        self.seat = module.Seat(self.near.fileno(), self.received, self.ended, self.errors.append)

    def received(self, data):
        self.got += data
        self.on_read(data)

    def ended(self):
        self.ends += 1
        self.poller.remove(self.seat)

    def close(self):
        self.poller.remove(self.seat)
        self.far.close()
        self.near.close()


@pytest.fixture(params=BOTH)
def module(request):
    return request.param


@pytest.fixture
def poller(module):
    made = module.Poller()
    yield made
    made.close()


@pytest.fixture
def sits(module, poller):
    """``sits()``: one more that sits there."""
    made = []

    def go():
        sitter = Sitter(module, poller)
        poller.add(sitter.seat)
        made.append(sitter)
        return sitter

    yield go
    for sitter in made:
        sitter.close()


def test_what_nobody_takes_is_received(poller, sits):
    one, other = sits(), sits()
    one.far.send(b"abc")
    poller.turn()
    assert (one.got, other.got) == (b"abc", b"")
    poller.turn()
    assert one.got == b"abc"


def test_the_loop_sees_one_descriptor_for_all(poller, sits):
    both = [sits(), sits()]
    assert select.select([poller.fileno()], [], [], 0)[0] == []
    both[1].far.send(b"x")
    assert select.select([poller.fileno()], [], [], 0)[0] == [poller.fileno()]
    poller.turn()
    assert select.select([poller.fileno()], [], [], 0)[0] == []


def test_the_usual_read_is_taken_and_another_received(module, poller, sits):
    one, stream = sits(), Stream(module, TOLD)
    one.seat.taker = stream.take
    for read in (told(b" the", b"7"), b"2\r\nhi\r\n", told(b" end", b"8")):
        one.far.send(read)
        poller.turn()
    assert one.got == b"2\r\nhi\r\n"
    assert (bytes(stream.ids), stream.takes.events, len(stream.written)) == (b"7,8,", 2, 2)


def test_a_taker_that_is_no_stream_is_asked_too(poller, sits):
    one, asked = sits(), []
    one.seat.taker = lambda data: asked.append(data) or data == b"mine"
    for read in (b"mine", b"other"):
        one.far.send(read)
        poller.turn()
    assert (asked, one.got) == ([b"mine", b"other"], b"other")


def test_of_an_end_the_event_loop_is_told_after_all_was_read(poller, sits):
    one, other = sits(), sits()
    one.far.send(b"last")
    one.far.close()
    other.far.send(b"on")
    for _ in range(3):
        poller.turn()
    assert (one.got, one.ends, other.got, other.ends) == (b"last", 1, b"on", 0)
    assert poller.seated == 1


def test_an_error_is_an_end(module, poller):
    """A connection that was reset: what that means is for whoever reads on to say."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        far.close()
    ends = []
    seat = module.Seat(near.fileno(), pytest.fail, lambda: ends.append(1), pytest.fail)
    poller.add(seat)
    poller.turn()
    poller.remove(seat)
    near.close()
    assert ends == [1]


def test_who_fails_hears_of_it_and_the_others_are_read(poller, sits):
    three = [sits() for _ in range(3)]

    def fail(_):
        raise KeyError("no such ticket")

    three[1].on_read = fail
    for sitter in three:
        sitter.far.send(b"x")
    poller.turn()
    assert [sitter.got for sitter in three] == [b"x"] * 3
    assert [repr(error) for sitter in three for error in sitter.errors] == ["KeyError('no such ticket')"]
    assert three[1].errors[0].__traceback__ is not None


def test_a_taker_that_fails_is_heard_of_too(module, poller, sits):
    one, stream = sits(), Stream(module, TOLD, fails_at=1)
    one.seat.taker = stream.take
    one.far.send(told(b" the", b"7"))
    poller.turn()
    assert [repr(error) for error in one.errors] == ["ConnectionResetError('the client is gone')"]
    assert one.got == b""


def test_an_interrupt_is_for_the_event_loop(poller, sits):
    one = sits()

    def stop(_):
        raise KeyboardInterrupt

    one.on_read = stop
    one.far.send(b"x")
    with pytest.raises(KeyboardInterrupt):
        poller.turn()
    assert one.errors == []


def test_who_is_removed_by_another_in_the_same_turn_is_not_read(poller, sits):
    first, second = sits(), sits()
    heard = []

    def removes(other):
        def go(_):
            heard.append(other)
            poller.remove(other.seat)

        return go

    first.on_read, second.on_read = removes(second), removes(first)
    first.far.send(b"x")
    second.far.send(b"x")
    poller.turn()
    poller.turn()
    assert len(heard) == 1
    assert poller.seated == 1


def test_whoever_takes_a_place_in_a_turn_does_not_get_the_read_of_the_one_before(module, poller, sits):
    """The second one's event is waiting when its place is given to a third, which has nothing to read."""
    first, second = sits(), sits()
    third = Sitter(module, poller)
    later = {first: second, second: first}

    def changes(sitter):
        def go(_):
            poller.remove(later[sitter].seat)
            poller.add(third.seat)

        return go

    first.on_read, second.on_read = changes(first), changes(second)
    first.far.send(b"x")
    second.far.send(b"x")
    poller.turn()
    assert third.got == b""
    assert (first.got, second.got) in ((b"x", b""), (b"", b"x"))
    third.close()


def test_a_seat_is_in_one_place(poller, sits):
    one = sits()
    with pytest.raises(ValueError, match="it sits somewhere already"):
        poller.add(one.seat)
    poller.remove(one.seat)
    poller.remove(one.seat)
    poller.add(one.seat)
    one.far.send(b"x")
    poller.turn()
    assert (one.got, poller.seated) == (b"x", 1)


def test_what_cannot_be_polled_is_not_seated(module, poller):
    seat = module.Seat(10**6, pytest.fail, pytest.fail, pytest.fail)
    with pytest.raises(OSError, match="Bad file descriptor"):
        poller.add(seat)
    assert poller.seated == 0
    poller.remove(seat)


def test_a_closed_poller_reads_for_nobody(module, sits, poller):
    one = sits()
    poller.close()
    poller.close()
    for act in (poller.turn, poller.fileno, lambda: poller.add(one.seat)):
        with pytest.raises(ValueError):  # noqa: PT011
            act()
    assert one.got == b""


def test_more_than_one_turn_reads_are_all_read(poller, sits):
    many = [sits() for _ in range(150)]
    for sitter in many:
        sitter.far.send(b"x")
    poller.turn()
    assert sum(len(sitter.got) for sitter in many) == pure.Poller.READY_MAX
    poller.turn()
    poller.turn()
    assert [sitter.got for sitter in many] == [b"x"] * 150


def test_whoever_sits_lives_and_is_let_go_after_that(module, poller):
    sitter = Sitter(module, poller)
    poller.add(sitter.seat)
    known = weakref.ref(sitter)
    far = sitter.far
    poller.remove(sitter.seat)
    sitter.near.close()
    del sitter
    gc.collect()
    assert known() is None
    far.close()


@needs_built
def test_c_takes_no_other_seat():
    poller = BUILT.Poller()
    with pytest.raises(TypeError, match="a poller has seats"):
        poller.add(object())
    with pytest.raises(TypeError, match="a poller has seats"):
        poller.remove(None)
    poller.close()


acts = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 3), st.sampled_from([b"a", b"bc", b"d" * 100])),
        st.tuples(st.just("move"), st.integers(0, 3), st.none()),
        st.tuples(st.just("turn"), st.none(), st.none()),
        st.tuples(st.just("end"), st.integers(0, 3), st.none()),
    ),
    max_size=30,
)


@pytest.mark.parametrize("module", BOTH)
@settings(max_examples=EXAMPLES, deadline=None)
@given(acts)
def test_whatever_order_each_reads_all_of_its_own_once(module, made):
    poller = module.Poller()
    sitters = [Sitter(module, poller) for _ in range(4)]
    sent, open_ = [b""] * 4, [True] * 4
    for act, at, data in made:
        if act == "turn":
            poller.turn()
        elif act == "send" and open_[at]:
            sitters[at].far.send(data)
            sent[at] += data
        elif act == "end" and open_[at]:
            sitters[at].far.close()
            open_[at] = False
        elif act == "move" and not sitters[at].ends:
            (poller.remove if sitters[at].seat.place >= 0 else poller.add)(sitters[at].seat)
    for sitter in sitters:
        if sitter.seat.place < 0 and not sitter.ends:
            poller.add(sitter.seat)
    for _ in range(3):
        poller.turn()
    assert [sitter.got for sitter in sitters] == sent
    assert [sitter.ends for sitter in sitters] == [0 if still else 1 for still in open_]
    assert poller.seated == sum(open_)
    for sitter in sitters:
        sitter.close()
    poller.close()
