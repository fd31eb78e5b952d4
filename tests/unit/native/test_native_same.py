"""C and Python take the same reads, write the same bytes, count the same, and fail the same."""

import os

import pytest
from both import AFTER, BEFORE, BOTH, BUILT, END, MID, PLAIN_AFTER, Stream, chunk, needs_built, plain, told
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.native import pure

EXAMPLES = int(os.environ.get("FOREBAY_STREAM_EXAMPLES", "30"))
TOLD = (BEFORE, MID, AFTER, END)
pieces = st.text(alphabet='"},\n1a', max_size=6).map(str.encode)
shapes_told = st.one_of(
    st.just(TOLD),
    st.tuples(pieces, pieces.map(lambda mid: b'"' + mid), pieces.map(lambda after: after + b"\r\n"), st.just(b"\r\n")),
)
shapes_plain = st.one_of(st.just((BEFORE, PLAIN_AFTER)), st.tuples(pieces, pieces))
texts = st.one_of(
    st.sampled_from([b" the", b"\xc3\xa9", b'"', b"\\n", b"\n", b"", b"},", b'"},', b'\\"']),
    pieces,
    st.integers(0, 40).map(lambda size: b"x" * size),
    st.sampled_from([150, 210, 211, 212, 213, 214, 3900, 3980, 3990, 4000, 4096]).map(lambda size: b"y" * size),
)
tokens = st.one_of(
    st.integers(0, 200_000).map(lambda token: b"%d" % token), st.sampled_from([b"", b"1,2", b"-1", b" 1", b"\xb2", b"0" * 30])
)
changes = st.sampled_from(["none"] * 4 + ["flip", "drop", "add", "cut", "twice", "capital", "empty", "other"])


def changed(read, change, at, byte):
    at %= max(1, len(read))
    if change == "flip":
        return read[:at] + bytes([byte]) + read[at + 1 :]
    if change == "drop":
        return read[:at] + read[at + 1 :]
    if change == "add":
        return read[:at] + bytes([byte]) + read[at:]
    if change == "other":
        return bytes([byte]) * (at + 1)
    return {"cut": read[:at], "twice": read * 2, "capital": read.upper(), "empty": b""}.get(change, read)


@st.composite
def reads(draw, shape):
    made = []
    for text, token, change, at, byte in draw(
        st.lists(st.tuples(texts, tokens, changes, st.integers(0, 5000), st.integers(0, 255)), max_size=12)
    ):
        before, *rest = shape
        read = plain(text, before, rest[0]) if len(rest) == 1 else told(text, token, before, rest[0], rest[1])
        made.append(changed(read, change, at, byte))
    return made


@needs_built
@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data(), st.integers(1, 4), st.sampled_from([None, None, 1, 3]))
def test_any_reads_are_taken_alike(data, every, fails_at):
    shape = data.draw(st.one_of(shapes_told, shapes_plain))
    some = data.draw(reads(shape))
    assert Stream(BUILT, shape, every, fails_at).done(some) == Stream(pure, shape, every, fails_at).done(some)


@needs_built
@pytest.mark.parametrize("shape", [TOLD, (BEFORE, PLAIN_AFTER)], ids=["told", "plain"])
def test_a_read_of_any_length_is_taken_alike(shape):
    made = [told(b"x" * size, b"7") if len(shape) == 4 else plain(b"x" * size) for size in range(0, 4200)]
    answers, *rest = Stream(pure, shape).done(made)
    assert answers.count(True) > 3800
    assert not answers[0]
    assert not answers[-1]
    assert [answers, *rest] == list(Stream(BUILT, shape).done(made))


@needs_built
@settings(max_examples=EXAMPLES, deadline=None)
@given(st.binary(max_size=40))
def test_noise_is_nobodys(noise):
    for shape in (TOLD, (BEFORE, PLAIN_AFTER)):
        assert Stream(BUILT, shape).done([noise]) == Stream(pure, shape).done([noise])


@pytest.mark.parametrize("module", BOTH)
def test_what_is_taken_is_written_noted_and_counted(module):
    stream = Stream(module, TOLD, report_every=2)
    made = [told(b" one", b"11"), told(b" two", b"22"), told(b" three", b"33")]
    answers, written, reports, ids, counts = stream.done(made)
    assert answers == [True] * 3
    assert written == [plain(b" one"), plain(b" two"), plain(b" three")]
    assert (reports, ids) == ([2], b"11,22,33,")
    assert counts == (3, sum(map(len, made)), 4, len(BEFORE))


@pytest.mark.parametrize("module", BOTH)
def test_a_plain_read_is_written_as_the_object_that_came(module):
    stream, read = Stream(module, (BEFORE, PLAIN_AFTER)), plain(b" one")
    assert stream.take(read)
    assert stream.written[0] is read


@pytest.mark.parametrize("module", BOTH)
def test_where_no_shape_is_known_nothing_is_taken(module):
    takes = module.Takes()
    takes._shape_plain(b"", b"")
    for fresh in (module.Takes(), takes):
        assert not fresh.take_plain(plain(b"a"))
        assert not fresh.take_told(told(b"a", b"1"))
        assert not fresh.take_plain(b"1\r\na\r\n")
    with pytest.raises(ValueError, match="quotation mark"):
        takes._shape_told(BEFORE, b"x", AFTER, END, bytearray())


@pytest.mark.parametrize("module", BOTH)
def test_one_shape_replaces_the_other(module):
    takes, ids = module.Takes(), bytearray()
    takes._write = bytearray().extend
    takes.report_at = 100
    takes._shape_plain(BEFORE, PLAIN_AFTER)
    assert takes.take_plain(plain(b"a"))
    takes._shape_told(*TOLD, ids)
    assert (takes.take_plain(plain(b"a")), takes.take_told(told(b"a", b"1")), takes.take_plain(told(b"a", b"1"))) == (False, True, False)
    assert not takes.take_plain(chunk(BEFORE + b"a" + AFTER[:-2]))
    takes._shape_plain(BEFORE, PLAIN_AFTER)
    assert not takes.take_told(told(b"a", b"1", after=PLAIN_AFTER))
    assert (takes.take_told(told(b"a", b"1")), takes.take_plain(plain(b"b"))) == (False, True)
    assert (takes.events, ids) == (3, b"1,")


def asked(module, shape, read):
    """What is answered to one read; nothing may be done where it is not taken."""
    answers, written, _, ids, counts = Stream(module, shape).done([read])
    if not answers[0]:
        assert (written, ids, counts[:2]) == ([], b"", (0, 0))
    return answers[0]


NOT_TOLD = {
    "a quotation mark in the text": told(b'a"b', b"1"),
    "a line's end in the text": told(b"a\nb", b"1"),
    "no text": told(b"", b"123"),
    "no token": told(b"abc", b""),
    "two tokens": told(b"abc", b"1,2"),
    "a token below digits": told(b"abc", b"1/2"),
    "a token above digits": told(b"abc", b"1:2"),
    "another end": told(b"abc", b"1").replace(b"]}]}", b"]}}]"),
    "another middle": told(b"abc", b"1").replace(b"null", b"NULL", 1),
    "another beginning": told(b"abc", b"1").replace(b"choices", b"CHOICES"),
    "no line's end behind the size": told(b"abc", b"1").replace(b"\r", b"x", 1),
    "no line's end behind the size, its second half": told(b"abc", b"1").replace(b"\n", b"x", 1),
    "no line's end behind the chunk": told(b"abc", b"1")[:-1] + b"x",
    "another size": b"71" + told(b"abc", b"1")[2:],
    "a size in capitals": told(b"x" * 69, b"1").upper()[:2] + told(b"x" * 69, b"1")[2:],
    "two chunks": told(b"abc", b"1") * 2,
    "half a chunk": told(b"abc", b"1")[:50],
    "a whole read, but the end": told(b"abc", b"1")[:-1],
}


@pytest.mark.parametrize("module", BOTH)
@pytest.mark.parametrize("read", NOT_TOLD.values(), ids=NOT_TOLD)
def test_what_is_not_the_usual_event_is_not_taken(module, read):
    assert not asked(module, TOLD, read)
    assert asked(module, TOLD, told(b"abc", b"1"))


NOT_PLAIN = {
    "a quotation mark in the text": plain(b'a"b'),
    "a line's end in the text": plain(b"a\nb"),
    "no text": plain(b""),
    "another end": plain(b"abc").replace(b"}]}", b"]}}"),
    "another beginning": plain(b"abc").replace(b"choices", b"CHOICES"),
    "no line's end behind the size": plain(b"abc").replace(b"\r", b"x", 1),
    "no line's end behind the chunk": plain(b"abc")[:-1] + b"x",
    "two chunks": plain(b"abc") * 2,
    "beginning and end that overlap": chunk(BEFORE[:-1] + PLAIN_AFTER[:-2]),
}


@pytest.mark.parametrize("module", BOTH)
@pytest.mark.parametrize("read", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_is_not_the_plain_event_is_not_taken(module, read):
    assert not asked(module, (BEFORE, PLAIN_AFTER), read)
    assert asked(module, (BEFORE, PLAIN_AFTER), plain(b"abc"))


@pytest.mark.parametrize("module", BOTH)
@pytest.mark.parametrize(
    ("before", "mid", "text", "taken"),
    [
        (b'"', b'"},"},', b"a", True),
        (b'"', b'"},"},', b"},", False),  # it stands there from the last byte of what is before the text
        (b'x"},', b'"},"},"', b"a", True),
        (b'x"},', b'"},"},"', b"},", True),
        (b'x"},"},', b'"},"},"}', b"a", True),
        (b'x"m', b'"m', b"a", False),  # all of it stands before
        (b'"mx', b'"m', b"a", False),
        (b'"m', b'"mm', b"a", True),
    ],
)
def test_the_first_end_of_a_text_counts_wherever_it_stands(module, before, mid, text, taken):
    """What follows the text is looked for from the beginning of the read, as `bytes.partition` does it."""
    assert asked(module, (before, mid, b"]\r\n", b"\r\n"), told(text, b"1", before, mid, b"]\r\n")) == taken


@pytest.mark.parametrize("module", BOTH)
def test_ids_that_somebody_looks_at_are_not_moved(module):
    stream = Stream(module, TOLD)
    with memoryview(stream.ids):
        assert stream.done([told(b"a", b"1")])[0][0].startswith("BufferError")
    assert stream.done([told(b"a", b"1")]) == ([True], [plain(b"a")], [], b"1,", (1, len(told(b"a", b"1")), 32, len(BEFORE)))


@pytest.mark.parametrize("module", BOTH)
def test_what_fails_outside_is_raised_after_it_was_counted(module):
    stream = Stream(module, TOLD, report_every=1, fails_at=1)
    with pytest.raises(ConnectionResetError):
        stream.take(told(b"a", b"1"))
    assert (stream.takes.events, bytes(stream.ids), stream.reports) == (1, b"1,", [])
    with pytest.raises(KeyError):
        stream.take(told(b"b", b"2"))
    assert (stream.takes.events, bytes(stream.ids), stream.reports) == (2, b"1,2,", [2])


@pytest.mark.parametrize("module", BOTH)
def test_a_stream_that_nobody_writes_says_so(module):
    takes = module.Takes()
    takes._shape_plain(BEFORE, PLAIN_AFTER)
    with pytest.raises(AttributeError, match="_write"):
        takes.take_plain(plain(b"a"))
    takes._write = len
    with pytest.raises(AttributeError, match="_report"):
        takes.take_plain(plain(b"a"))


@pytest.mark.parametrize("module", BOTH)
def test_a_stream_may_change_while_it_writes(module):
    """`write` and `report` may do anything to the stream: name another shape, or take themselves away."""
    takes, ids, got = module.Takes(), bytearray(), []

    def write(data):
        got.append(data)
        takes._shape_told(b"other", b'"', b"xx", b"yy", bytearray())
        del takes._write

    def report():
        del takes._report
        takes.__init__()

    takes._write, takes._report = write, report
    takes._shape_told(*TOLD, ids)
    assert takes.take_told(told(b"a", b"1"))
    assert (got, bytes(ids), takes.events, takes._before) == ([plain(b"a")], b"1,", 0, b"")


@pytest.mark.parametrize("module", BOTH)
def test_a_connection_asks_the_taker_first(module):
    class Connection(module.Reads):
        __slots__ = ("rest",)

        def __init__(self):
            super().__init__()
            self.rest = []

        def received(self, data):
            self.rest.append(data)

    connection = Connection()
    assert connection._taker is None
    assert connection.data_received(b"1") is None
    connection._taker = b"2".__eq__
    assert connection.data_received(b"2") is None
    connection.data_received(b"3")
    connection._taker = [].__getitem__
    with pytest.raises(TypeError):
        connection.data_received(b"4")

    class Odd:
        def __bool__(self):
            raise OverflowError

    connection._taker = lambda data: Odd()
    with pytest.raises(OverflowError):
        connection.data_received(b"5")
    assert connection.rest == [b"1", b"3"]
    assert module.Reads().data_received(b"nobody's") is None
