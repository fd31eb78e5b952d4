"""The journal of usage, from the data path to the ledger: whatever crashes where, the ledger's totals are what was counted."""

import asyncio
import errno
import os
import threading
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from forebay.adapters.clock import LoopClock
from forebay.adapters.journal import FileJournal, files
from forebay.adapters.journal.frames import Kind, _frames
from forebay.domain.shape import Usage
from forebay.domain.usage import COUNTS, How, UsageBatch, UsageMark
from forebay.gateway.metering import Metering
from forebay.gateway.usage import Past, UsageBook
from forebay.ports import NoJournal
from forebay.testing.store import MemoryStore

KEYS = [("search", "llama", "interactive", "chat"), ("mail", "llama", "batch", "chat"), ("mail", "qwen", "batch", "long")]
DAY_S = 86_400
EXAMPLES = int(os.environ.get("FOREBAY_CRASH_EXAMPLES", "50"))
NOW_S = 20_000 * DAY_S


def totals(rows):
    sums = {}
    for row in rows:
        line = sums.setdefault((row.day, row.key), [0] * COUNTS)
        for place, count in enumerate(row.counts):
            line[place] += count
    return {key: tuple(line) for key, line in sums.items() if any(line)}


def entry(book, key=KEYS[0], how=How.COMPLETED, usage=Usage(100, 20, 5), queue_s=0.25, unix_s=NOW_S):
    book.count(key, how, usage, queue_s, unix_s)


def tell(book_or_past, store):
    """Send and acknowledge until nothing is left."""
    while (batch := book_or_past.outgoing()) is not None:
        taken = store.append_usage(batch, 0.0)
        book_or_past.acknowledged(UsageMark(batch.journal, taken.upto))


def killed(journal):
    """As the kernel leaves the files of a process that was killed."""
    if journal._fd >= 0:
        os.close(journal._fd)
    os.close(journal._lock)


def now(coroutine):
    """Run one that never waits: its threads are none."""
    try:
        coroutine.send(None)
    except StopIteration as over:
        return over.value
    raise AssertionError("it waits")


def past_now(journal):
    left = now(journal.leftover())
    return Past(left) if left is not None else None


def pasts(journal):
    """Everything that earlier starts left."""
    left = asyncio.run(journal.leftover())
    return Past(left) if left is not None else None


@pytest.fixture
def begin(tmp_path):
    count = iter(range(1, 100))

    def go(gateway="gw"):
        journal = FileJournal(tmp_path, gateway, f"journal-{next(count)}")
        return journal, UsageBook(gateway, journal)

    return go


def test_a_killed_gateway_loses_nothing_that_was_counted(begin):
    journal, book = begin()
    for number in range(7):
        entry(book, KEYS[number % 3], How(number % 6), None if number % 2 else Usage(number, 2, 0, exact=False))
    truth = totals(book.blocks()[0].rows)
    killed(journal)
    after, _ = begin()
    store = MemoryStore()
    tell(pasts(after), store)
    assert totals(store.usage()) == truth
    asyncio.run(after.forget("journal-1"))
    assert pasts(after) is None


@pytest.mark.parametrize("torn", [b"\0", b"\xff" * 20, b"\x01\x02\x03\x04\x22\0\0\0\4" + b"\7" * 30])
def test_a_torn_tail_is_as_if_it_had_not_been_written(begin, torn):
    journal, book = begin()
    entry(book)
    truth = totals(book.blocks()[0].rows)
    with journal._path.open("ab") as file:
        file.write(torn)
    killed(journal)
    after, _ = begin()
    left = asyncio.run(after.leftover())
    assert (len(left.entries), left.unread_bytes) == (1, 0)
    store = MemoryStore()
    tell(Past(left), store)
    assert totals(store.usage()) == truth


def test_damage_in_the_middle_is_said_and_costs_what_is_after_it(begin):
    journal, book = begin()
    for _ in range(300):
        entry(book)
    data = bytearray(journal._path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    journal._path.write_bytes(data)
    killed(journal)
    left = asyncio.run(begin()[0].leftover())
    assert 100 < len(left.entries) < 200
    assert left.unread_bytes > 4096


def test_a_file_that_is_no_journal_is_put_aside_and_counted(begin, tmp_path):
    journal, _ = begin()
    (tmp_path / "gw" / "nonsense-000000.usage").write_bytes(b"hello")
    assert asyncio.run(journal.leftover()) is None
    assert journal.lost_files == 1
    assert (tmp_path / "gw" / "nonsense-000000.unreadable").exists()


def test_a_long_file_is_folded_to_the_sums_of_what_is_not_acknowledged(begin, monkeypatch):
    monkeypatch.setattr(files, "FOLD_AFTER_ENTRIES", 50)
    journal, book = begin()
    for number in range(60):
        entry(book, KEYS[number % 2])
    sent = book.outgoing()
    for number in range(40):
        entry(book, KEYS[number % 2])
    before_bytes = journal._path.stat().st_size
    asyncio.run(journal.keep(book.blocks))
    assert [path.name for path in journal._folder.glob("*.usage")] == ["journal-1-000001.usage"]
    assert journal._path.stat().st_size < before_bytes / 5
    entry(book, KEYS[2])
    truth = Counter(totals([*sent.rows, *(row for block in book.blocks()[1:] for row in block.rows)]))
    killed(journal)
    after, _ = begin()
    store = MemoryStore()
    store.append_usage(sent, 0.0)  # its acknowledgement never came
    tell(pasts(after), store)
    assert totals(store.usage()) == truth


def test_a_full_disk_refuses_nothing_and_costs_nothing_once_it_has_room(begin, monkeypatch):
    journal, book = begin()
    entry(book)
    book.look()
    real = os.pwrite

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "pwrite", full)
    for _ in range(3):
        entry(book)
    book.look()
    assert "No space left" in journal.problem
    assert book.unwritten_requests == 3
    asyncio.run(journal.keep(book.blocks))  # still none
    assert journal.problem
    monkeypatch.setattr(files.os, "pwrite", real)
    asyncio.run(journal.keep(book.blocks))
    book.look()
    assert (journal.problem, book.unwritten_requests) == ("", 0)
    entry(book)
    truth = totals(book.blocks()[0].rows)
    killed(journal)
    store = MemoryStore()
    tell(pasts(begin()[0]), store)
    assert totals(store.usage()) == truth


@pytest.mark.parametrize("frees", [False, True])
def test_who_leaves_while_the_disk_is_full_says_what_that_costs(begin, monkeypatch, frees):
    """It left without a word. Where there is room again by then, nothing is lost."""
    journal, _ = begin()
    said = []
    real = os.pwrite

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    async def lives():
        metering = Metering("gw", journal, LoopClock(1.0), lambda kind, words: said.append((kind, words)))
        entry(metering.book)
        metering.book.look()
        monkeypatch.setattr(files.os, "pwrite", full)
        for _ in range(3):
            entry(metering.book)
        if frees:
            monkeypatch.setattr(files.os, "pwrite", real)
        assert await metering.leave() == (0 if frees else 3)

    asyncio.run(lives())
    monkeypatch.setattr(files.os, "pwrite", real)
    left = pasts(begin()[0])
    if frees:
        assert (said, left.requests) == ([], 4)
    else:
        ((kind, words),) = said
        assert (kind, left.requests) == ("usage_lost", 1)
        assert "3 requests at most, of 400 prompt and 80 output tokens at most" in words, "4 entries are in no ledger, one is on the disk"
        assert words.endswith("No space left on device)")


def test_a_disk_that_says_only_when_it_is_synced_that_it_is_full_is_heard_as_one_leaves(begin, monkeypatch):
    """It was synced as the file was closed, and what came of that was nobody's news."""
    journal, _ = begin()
    said = []

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    async def lives():
        metering = Metering("gw", journal, LoopClock(1.0), lambda kind, words: said.append((kind, words)))
        entry(metering.book)
        monkeypatch.setattr(files.os, "fdatasync", full)
        return await metering.leave()

    assert asyncio.run(lives()) == 1
    assert [kind for kind, _ in said] == ["usage_lost"]


def test_what_a_full_disk_and_a_crash_cost_is_counted(begin, monkeypatch):
    """Numbers that were given and are found nowhere: not those that a ledger has."""
    journal, book = begin()
    entry(book)
    monkeypatch.setattr(journal, "problem", "the disk is full")
    entry(book)
    entry(book)
    monkeypatch.setattr(journal, "problem", "")
    entry(book)
    killed(journal)
    past = pasts(begin()[0])
    store = MemoryStore()
    tell(past, store)
    assert past.lost_requests == 2
    assert store.usage()[0].counts[How.COMPLETED] == 2


def test_a_folder_that_can_not_be_written_refuses_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    journal = FileJournal(tmp_path / "file", "gw", "journal-1")
    book = UsageBook("gw", journal)
    entry(book)
    asyncio.run(journal.keep(book.blocks))
    assert "in memory only" in journal.problem
    assert book.outgoing().rows[0].counts[How.COMPLETED] == 1
    journal.close(acknowledged=False)


def test_two_gateways_of_one_name_write_apart_and_what_one_left_another_takes(begin, tmp_path):
    one, one_book = begin()
    two, two_book = begin()
    assert (one._folder.name, two._folder.name) == ("gw", "gw.1")
    entry(one_book)
    entry(two_book)
    assert pasts(two) is None  # the first still writes
    killed(one)
    killed(two)
    other, _ = begin("another")
    assert {path.name for path in (tmp_path / "another").glob("*.usage")} == {
        "journal-1-000000.usage",
        "journal-2-000000.usage",
        "journal-3-000000.usage",
    }
    assert pasts(other).requests == 1


def test_a_gateway_that_leaves_with_everything_acknowledged_leaves_nothing(begin, tmp_path):
    journal, book = begin()
    entry(book)
    tell(book, MemoryStore())
    journal.close(acknowledged=not book.unreported_requests)
    assert list(tmp_path.rglob("*.usage")) == []


def test_the_oldest_of_too_many_journals_go_and_are_counted(begin, monkeypatch):
    monkeypatch.setattr(files, "LEFTOVERS_MAX", 2)
    for _ in range(4):
        journal, book = begin()
        entry(book)
        killed(journal)
    last, _ = begin()
    assert pasts(last) is not None
    assert last.lost_files == 2


def test_journals_that_cannot_be_read_are_set_aside_and_said(begin, tmp_path):
    journal, _ = begin()
    for number in range(3):
        (tmp_path / "gw" / f"garbage{number}-000000.usage").write_bytes(b"x" * 100 * number)
    said = []

    async def one_look():
        metering = Metering("gw", journal, LoopClock(1.0), lambda kind, words: said.append((kind, words)))
        metering.start()
        async with asyncio.timeout(10):
            while not said:
                await asyncio.sleep(0.001)
        await metering.close()

    asyncio.run(one_look())
    assert said == [("usage_lost", "3 journals of earlier gateways can't be read, or are too many: they count nowhere")]
    assert len(list((tmp_path / "gw").glob("*.unreadable"))) == 3


class Crashes(RuleBasedStateMachine):
    """Gateway, disk and ledger, and every way in which one of them may end between two steps of the other."""

    @initialize()
    def begin(self):
        self.folder = self.tmp_path / f"run-{next(self.runs)}"
        self.store = MemoryStore()
        self.starts = 0
        self.truth = {}
        """Journal → number → (day, key, counts): what must be in the ledger in the end."""
        self.synced = {}
        """Journal → the number up to which a loss of power takes nothing."""
        self.written = {}
        """Journal → the numbers that are in its files."""
        self.on_the_way = []
        self.answers = []
        self.full = False
        self.past = None
        self.start()

    def start(self):
        self.starts += 1
        name = f"journal-{self.starts}"
        self.journal = FileJournal(self.folder, "gw", name)
        self.book = UsageBook("gw", self.journal)
        self.truth[name], self.synced[name], self.written[name] = {}, 0, set()
        self.answers.clear()
        self.on_the_way.clear()
        self.past = None
        self.unlinked = None

    def has(self, name):
        return self.store._journals.get(name, 0)

    def dies(self, kept):
        """Only what is in the files up to ``kept``, or in the ledger, can be in the ledger in the end."""
        name = self.journal.name
        killed(self.journal)
        mine = self.truth[name]
        for number in list(mine):
            if number > self.has(name) and (number not in self.written[name] or number > kept):
                del mine[number]

    @rule(key=st.sampled_from(KEYS), how=st.sampled_from(How), tokens=st.integers(0, 9), day=st.integers(0, 2), exact=st.booleans())
    def count(self, key, how, tokens, day, exact):
        usage = Usage(tokens, tokens + 1, tokens // 2, exact) if tokens else None
        alone = UsageBook("gw", NoJournal("alone"))
        alone.count(key, how, usage, tokens / 8, NOW_S + day * DAY_S)
        self.book.count(key, how, usage, tokens / 8, NOW_S + day * DAY_S)
        name, number = self.journal.name, self.book._number
        self.truth[name][number] = alone.blocks()[0].rows[0]
        if not self.journal.problem:
            self.written[name].add(number)

    @rule()
    def keep(self):
        now(self.journal.keep(self.book.blocks))
        if not self.journal.problem:
            name = self.journal.name
            self.synced[name] = self.book._number
            self.written[name] = set(self.truth[name])

    @precondition(lambda self: not self.full and not self.journal.problem)
    @rule(key=st.sampled_from(KEYS), tokens=st.integers(0, 9))
    def count_while_it_folds(self, key, tokens):
        """The sums are being written in a thread, and requests go on ending."""
        begin = self.journal._begin

        def begin_slowly(blocks):
            made = begin(blocks)
            self.count(key, How.COMPLETED, tokens, 1, True)
            return made

        self.journal._begin = begin_slowly
        now(self.journal._renew(self.book.blocks()))
        del self.journal._begin
        self.synced[self.journal.name] = self.book._number
        self.written[self.journal.name] = set(self.truth[self.journal.name])

    @rule(full=st.booleans())
    def disk(self, full):
        self.full = full
        self.monkeypatch.setattr(files.os, "pwrite", self.refuses if full else self.pwrite)

    @rule()
    def look_for_past(self):
        if self.past is not None and self.past.done:
            now(self.journal.forget(self.past.journal))
            self.past = None
        if self.past is None:
            self.past = past_now(self.journal)

    @rule(whose=st.sampled_from(["book", "past"]))
    def send(self, whose):
        sender = self.book if whose == "book" else self.past
        batch = sender.outgoing() if sender is not None else None
        if batch is not None:
            self.on_the_way.append(batch)

    @precondition(lambda self: self.on_the_way)
    @rule(data=st.data(), again=st.booleans())
    def arrives(self, data, again):
        """In order, as on a connection; perhaps sent again before it was answered."""
        batch = self.on_the_way[0]
        if not again:
            self.on_the_way.pop(0)
        taken = self.store.append_usage(batch, 0.0)
        self.answers.append(UsageMark(batch.journal, taken.upto))

    @precondition(lambda self: self.answers)
    @rule()
    def answer_arrives(self):
        mark = self.answers.pop(0)
        if not self.book.acknowledged(mark) and self.past is not None:
            self.past.acknowledged(mark)

    @rule()
    def the_controller_is_killed(self):
        """What is on the way in either direction is lost; what it took is on its disk."""
        self.on_the_way.clear()
        self.answers.clear()

    @rule(torn=st.binary(max_size=40))
    def the_gateway_is_killed(self, torn):
        path = self.journal._path
        self.dies(kept=1 << 60)
        if path is not None and path.exists():
            with path.open("ab") as file:
                file.write(torn)
        self.start()

    @rule(point=st.sampled_from(["made", "named"]))
    def the_gateway_is_killed_while_it_folds(self, point):
        if not self.full and not self.journal.problem:
            if point == "made":
                os.close(self.journal._begin(self.book.blocks())[0])
            else:
                self.monkeypatch.setattr(files, "_retire", self.dies_before_retiring)
                now(self.journal._renew(self.book.blocks()))
                self.monkeypatch.setattr(files, "_retire", self.retire)
        self.dies(kept=1 << 60)
        self.start()

    @precondition(lambda self: not self.full and not self.journal.problem)
    @rule()
    def the_power_fails(self):
        """What was written since the last sync is not on the disk."""
        name, path = self.journal.name, self.journal._path
        synced, size = self.synced[name], path.stat().st_size
        beyond = size - self.size_at(path, synced)
        self.dies(kept=synced)
        os.truncate(path, size - beyond)
        self.start()

    def size_at(self, path, synced):
        """The file's size when its entries up to ``synced`` were in it."""
        left = files.read(path.read_bytes(), self.journal.name)
        later = [one for one in left.entries if one.number > synced]
        return path.stat().st_size if not later else self.offset_of(path, later[0].number)

    def offset_of(self, path, number):
        data = path.read_bytes()
        at = 0
        for kind, payload, end in _frames(data):
            if kind == Kind.ENTRY and int.from_bytes(payload[:8], "little") == number:
                return at
            at = end
        return at

    @invariant()
    def nothing_is_counted_twice(self):
        if not hasattr(self, "store"):
            return
        most = totals(row for numbers in self.truth.values() for row in numbers.values())
        for key, counts in totals(self.store.usage()).items():
            assert all(count <= bound for count, bound in zip(counts, most.get(key, (0,) * COUNTS), strict=True)), key

    def teardown(self):
        if not hasattr(self, "store"):
            return
        self.disk(False)
        self.keep()
        tell(self.book, self.store)
        for _ in range(self.starts + 1):
            self.past = None
            self.look_for_past()
            if self.past is None:
                break
            tell(self.past, self.store)
            now(self.journal.forget(self.past.journal))
        killed(self.journal)
        assert totals(self.store.usage()) == totals(row for numbers in self.truth.values() for row in numbers.values())


def test_whatever_crashes_the_ledger_has_what_was_counted(tmp_path, monkeypatch):
    async def at_once(call, *arguments):
        return call(*arguments)

    monkeypatch.setattr(files, "FOLD_AFTER_ENTRIES", 3)
    monkeypatch.setattr(files.asyncio, "to_thread", at_once)
    monkeypatch.setattr(files.os, "fdatasync", lambda fd: None)
    pwrite, retire = os.pwrite, files._retire
    runs = iter(range(10**6))

    def refuses(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    def dies_before_retiring(*_):
        raise OSError(errno.EIO, "killed")

    class Here(Crashes):
        def __init__(self):
            super().__init__()
            self.tmp_path, self.monkeypatch, self.runs = tmp_path, monkeypatch, runs
            self.pwrite, self.refuses, self.retire, self.dies_before_retiring = pwrite, refuses, retire, dies_before_retiring

    checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    run_state_machine_as_test(
        Here, settings=settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None, suppress_health_check=checks)
    )


def test_a_batch_is_one_line_however_many_keys_there_are(begin, monkeypatch):
    monkeypatch.setattr("forebay.gateway.usage.BATCH_ROWS_MAX", 4)
    journal, book = begin()
    for number in range(20):
        entry(book, (f"team-{number}", "llama", "interactive", "chat"))
    blocks = book.blocks()
    assert [len(block.rows) for block in blocks] == [4, 4, 4, 4, 4]
    killed(journal)
    store = MemoryStore()
    past = pasts(begin()[0])
    sent: list[UsageBatch] = []
    while (batch := past.outgoing()) is not None:
        sent.append(batch)
        past.acknowledged(UsageMark(batch.journal, store.append_usage(batch, 0.0).upto))
    assert [len(batch.rows) for batch in sent] == [4, 4, 4, 4, 4]
    assert totals(store.usage()) == totals(row for block in blocks for row in block.rows)


def test_a_new_file_that_was_under_way_as_its_writer_was_stopped_is_over_before_the_next_one(begin, monkeypatch):
    """Both were written under one name, the one into the other."""
    journal, book = begin()
    entry(book)
    real, free, under_way, most = os.fdatasync, threading.Event(), [0], [0]

    def slow(fd):
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        free.wait(5)
        under_way[0] -= 1
        real(fd)

    async def lives():
        monkeypatch.setattr(files.os, "fdatasync", slow)
        journal.problem = "it was full"
        first = asyncio.create_task(journal.keep(book.blocks))
        while not under_way[0]:
            await asyncio.sleep(0.001)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        entry(book)
        second = asyncio.create_task(journal.keep(book.blocks))
        await asyncio.sleep(0.02)
        free.set()
        await second

    asyncio.run(lives())
    assert (journal.problem, most[0]) == ("", 1)
    journal.close(acknowledged=False)
    assert pasts(begin()[0]).requests == 2
