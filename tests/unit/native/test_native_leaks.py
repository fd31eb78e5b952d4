"""What was taken leaves nothing behind: no reference, no memory, no cycle that the collector can't see."""

import gc
import sys
import tracemalloc
import weakref
from collections import deque
from itertools import repeat

import pytest
from both import AFTER, BEFORE, BOTH, BUILT, END, MID, PLAIN_AFTER, Stream, needs_built, plain, told

TOLD = (BEFORE, MID, AFTER, END)
READS = 100_000
KEPT_BYTES_MAX = 4096


def nothing(*_):
    return None


@pytest.mark.parametrize("module", BOTH)
def test_references_are_given_back(module):
    takes, ids = module.Takes(), bytearray()
    parts = [bytes(bytearray(part)) for part in TOLD]
    takes._write = takes._report = nothing
    takes._shape_told(*parts, ids)
    reads = [told(b"a", b"1"), told(b'"', b"1"), b"noise", told(b"a", b"x")]
    held = [*parts, ids, takes, *reads, nothing]
    before = [sys.getrefcount(each) for each in held]
    answers = sys.getrefcount(True), sys.getrefcount(False)
    for at in range(200):
        takes.take_told(reads[at % 4])
        takes.take_plain(reads[at % 4])
    assert [sys.getrefcount(each) for each in held] == before
    assert (sys.getrefcount(True) - answers[0], sys.getrefcount(False) - answers[1]) == (pytest.approx(0, abs=20), pytest.approx(0, abs=20))
    del held
    del takes
    assert [sys.getrefcount(each) for each in parts] == [count - 2 for count in before[:4]]


@pytest.mark.parametrize("module", BOTH)
def test_references_are_given_back_by_what_fails(module):
    def fails(*_):
        raise ConnectionResetError

    takes, read = module.Takes(), plain(b"a")
    takes._shape_plain(BEFORE, PLAIN_AFTER)
    connection = module.Reads()
    connection._taker = takes.take_plain
    for write, report in ((fails, nothing), (nothing, fails)):
        takes._write, takes._report = write, report
        counts = [sys.getrefcount(each) for each in (takes, read, connection, fails)]
        for _ in range(50):
            with pytest.raises(ConnectionResetError):
                connection.data_received(read)
        assert [sys.getrefcount(each) for each in (takes, read, connection, fails)] == counts


@pytest.mark.parametrize("module", BOTH)
def test_what_is_answered_by_others_is_given_back(module):
    written, reported = object(), object()
    takes, connection, read = module.Takes(), module.Reads(), plain(b"a")
    takes._report = lambda: reported
    takes._shape_plain(BEFORE, PLAIN_AFTER)
    taker = connection._taker = takes.take_plain

    def write(_):
        return written

    takes._write = write
    held = [written, reported, taker, write, connection, takes]
    counts = [sys.getrefcount(each) for each in held]
    for _ in range(50):
        connection.data_received(read)
        connection.data_received(b"noise")
    assert takes.events == 50
    assert [sys.getrefcount(each) for each in held] == counts


@pytest.mark.parametrize("module", BOTH)
def test_a_shape_that_is_replaced_is_given_back(module):
    takes, ids = module.Takes(), bytearray()
    parts = [bytes(bytearray(part)) for part in TOLD]
    counts = [sys.getrefcount(each) for each in (*parts, ids)]
    for _ in range(50):
        takes._shape_told(*parts, ids)
        takes._shape_plain(*parts[:2])
    takes._shape_told(*TOLD, bytearray())
    takes._shape_plain(BEFORE, PLAIN_AFTER)
    assert [sys.getrefcount(each) for each in (*parts, ids)] == counts


@pytest.mark.parametrize("module", BOTH)
def test_shapes_that_are_refused_keep_nothing(module):
    takes, ids = module.Takes(), bytearray()
    wrong = bytes(bytearray(b"no quotation mark"))
    counts = sys.getrefcount(wrong), sys.getrefcount(ids)
    for _ in range(50):
        with pytest.raises(ValueError, match="quotation mark"):
            takes._shape_told(wrong, wrong, wrong, wrong, ids)
    assert (sys.getrefcount(wrong), sys.getrefcount(ids)) == counts


@needs_built
@pytest.mark.parametrize("kind", ["plain", "told"])
def test_a_hundred_thousand_reads_keep_no_memory(kind):
    shape, read = (TOLD, told(b" the", b"40711")) if kind == "told" else ((BEFORE, PLAIN_AFTER), plain(b" the"))
    stream = Stream(BUILT, shape)
    takes, take, ids = stream.takes, stream.take, stream.ids
    takes._write, takes.report_at = nothing, 10 * READS
    tracemalloc.start()
    try:
        take(read)
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(READS // 1000):
            deque(map(take, repeat(read, 1000)), maxlen=0)
            ids.clear()
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert takes.events == READS + 1
    assert kept < KEPT_BYTES_MAX


@pytest.mark.parametrize("module", BOTH)
def test_a_cycle_through_a_stream_is_collected(module):
    class Taken(module.Takes):
        pass

    class Connection(module.Reads):
        pass

    takes, connection = Taken(), Connection()
    takes._shape_told(*TOLD, bytearray())
    takes._write = takes._report = connection._taker = [takes, connection].count
    gone = weakref.ref(takes), weakref.ref(connection)
    del takes, connection
    gc.collect()
    assert [each() for each in gone] == [None, None]
