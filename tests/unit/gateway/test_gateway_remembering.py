"""Which replica keeps which answer outlives its gateway's process; what can't be read is told, and forgotten."""

import asyncio
import random

import pytest
from gateway_values import SPEC

from forebay.adapters.upstream import HttpUpstream
from forebay.domain.errors import ForebayError
from forebay.gateway.holders import HELD_MAX, ID_BYTES_MAX, Holder
from forebay.gateway.remembering import BYTES_MAX, ROWS, Remembering
from forebay.gateway.service import Gateway
from forebay.testing.clock import LoopClock
from forebay.testing.events import ListSink
from forebay.testing.ids import CountingIds
from forebay.testing.loop import run


class MemoryShelf:
    """`gateway.keeping.Shelf`."""

    def __init__(self, content=b""):
        self.content = content
        self.saved = 0
        self.refuses = False

    async def load(self):
        if self.refuses:
            raise ForebayError("no.responses: Input/output error")
        return self.content

    async def save(self, content):
        if self.refuses:
            raise ForebayError("can't write no.responses: No space left on device")
        self.saved += 1
        self.content = content

    async def drop(self):
        raise AssertionError("what was kept is not dropped")


class Process:
    """One process of a gateway."""

    def __init__(self, shelf):
        self.clock, self.sink = LoopClock(), ListSink()
        self.gateway = Gateway(SPEC, self.clock, CountingIds(), HttpUpstream(), random.Random(7), self.sink, "gw-1")
        self.remembering = Remembering(self.gateway, shelf)

    @property
    def holders(self):
        return self.gateway.holders

    def kinds(self):
        return [event.kind for event in self.sink.events]


def playing(test):
    run(lambda: test())


def test_a_restart_forgets_no_conversation():
    async def test():
        shelf = MemoryShelf()
        first = Process(shelf)
        await first.remembering.begin()
        for number in range(2 * ROWS + 1):
            first.holders.learn(f"resp_{number}", Holder(f"http://10.0.0.{number % 3}:8000", f"team-{number % 2}"))
            first.holders.told(f"resp_{number}", 10 * number)
        first.holders.forget("resp_7")
        await first.remembering.close()
        second = Process(shelf)
        await second.remembering.begin()
        assert list(second.holders) == list(first.holders)
        assert second.holders.find("resp_8") == Holder("http://10.0.0.2:8000", "team-0", 80)
        await second.remembering.close()
        assert shelf.saved == 1, "what is kept already is not kept again"

    playing(test)


def test_what_is_learned_is_kept_beside_and_no_oftener_than_each_second():
    async def test():
        shelf = MemoryShelf()
        process = Process(shelf)
        task = asyncio.get_running_loop().create_task(process.remembering.run())
        for number in range(50):
            process.holders.learn(f"resp_{number}", Holder("http://a", "t"))
            await process.clock.sleep_until(process.clock.now_s() + 0.1)
        assert 4 <= shelf.saved <= 5
        await process.clock.sleep_until(process.clock.now_s() + 10.0)
        assert shelf.saved <= 6, "nothing was learned since"
        task.cancel()

    playing(test)


def test_what_was_learned_before_the_file_was_read_is_the_newer():
    async def test():
        shelf = MemoryShelf()
        first = Process(shelf)
        for number in range(3):
            first.holders.learn(f"resp_{number}", Holder("http://old", "t"))
        await first.remembering.close()
        second = Process(shelf)
        second.holders.learn("resp_1", Holder("http://new", "t"))
        await second.remembering.begin()
        assert [(name, holder.url) for name, holder in second.holders] == [
            ("resp_0", "http://old"),
            ("resp_2", "http://old"),
            ("resp_1", "http://new"),
        ]

    playing(test)


HEAD = b'{"format":1,"count":1,"places":[["http://a","t"]]}\n'


@pytest.mark.parametrize(
    "content",
    [
        b"\x00\xff",
        b"{}",
        b"[]",
        HEAD,
        HEAD + b'[["resp_1",0,0]',
        HEAD + b'[["resp_1",0]]',
        HEAD + b'[["resp_1",1,0]]',
        HEAD + b'[["resp_1",-1,0]]',
        HEAD + b'[["resp_1",0,-1]]',
        HEAD + b'[["resp_1",0,0],["resp_2",0,0]]',
        HEAD + b'[["%b",0,0]]' % (b"x" * (ID_BYTES_MAX + 1)),
        HEAD.replace(b'"format":1', b'"format":2') + b'[["resp_1",0,0]]',
    ],
)
def test_a_damaged_file_is_told_and_forgotten(content):
    async def test():
        process = Process(MemoryShelf(content))
        await process.remembering.begin()
        assert process.kinds() == ["responses_forgotten"]
        assert not len(process.holders)
        process.holders.learn("resp_1", Holder("http://a", "t"))
        await process.remembering.close()
        again = Process(process.remembering._shelf)
        await again.remembering.begin()
        assert len(again.holders) == 1, "and the next one is whole"

    playing(test)


def test_a_disk_that_refuses_is_told_once_and_nobody_waits_for_it():
    async def test():
        shelf = MemoryShelf()
        shelf.refuses = True
        process = Process(shelf)
        await process.remembering.begin()
        for number in range(3):
            process.holders.learn(f"resp_{number}", Holder("http://a", "t"))
            await process.remembering.close()
        assert process.kinds() == ["responses_forgotten", "responses_not_kept"]
        shelf.refuses = False
        await process.remembering.close()
        assert shelf.saved == 1

    playing(test)


def test_as_many_as_are_remembered_have_room_in_the_file():
    row = len(b'["",99999,2147483648],') + ID_BYTES_MAX
    assert HELD_MAX * row < BYTES_MAX
