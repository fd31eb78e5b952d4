import asyncio

import msgspec
import pytest

from forebay.controller.channel import Channel
from forebay.domain.roster import Ack, Bye, Hello, Roster
from forebay.domain.usage import UsageBatch, UsageMark
from forebay.testing.loop import run

ROSTER = Roster(1, 1, 10.0, ())


def line(value):
    return msgspec.json.encode(value) + b"\n"


class Desk:
    def __init__(self):
        self.heard = []
        self.lost = []
        self.channel = Channel(self.heard.append, self.lost.append)


def world(main, seed=None):
    async def body():
        desk = Desk()
        port = await desk.channel.start("127.0.0.1", 0)
        try:
            return await main(desk, port)
        finally:
            await desk.channel.close()

    return run(body, seed)


@pytest.mark.parametrize("seed", range(5))
def test_a_gateway_gets_the_newest_roster_when_it_dials_and_each_one_after(seed):
    async def main(desk, port):
        desk.channel.publish(ROSTER)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(line(Hello("g")))
        first = msgspec.json.decode(await reader.readline(), type=Roster)
        desk.channel.publish(msgspec.structs.replace(ROSTER, version=2))
        second = msgspec.json.decode(await reader.readline(), type=Roster)
        writer.write(line(Ack("g", 1, 2)))
        await asyncio.sleep(1)
        writer.close()
        await asyncio.sleep(1)
        return first.version, second.version, desk.heard, desk.lost

    assert world(main, seed) == (1, 2, [Hello("g"), Ack("g", 1, 2)], ["g"])


def test_a_gateway_that_says_goodbye_is_not_lost():
    async def main(desk, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(line(Hello("g")) + line(Bye("g")))
        writer.close()
        await asyncio.sleep(1)
        return desk.heard, desk.lost

    assert world(main) == ([Hello("g"), Bye("g")], [])


def test_a_gateway_that_dialled_again_is_not_lost_with_its_old_connection():
    async def main(desk, port):
        _, old = await asyncio.open_connection("127.0.0.1", port)
        old.write(line(Hello("g")))
        await asyncio.sleep(1)
        _, new = await asyncio.open_connection("127.0.0.1", port)
        new.write(line(Hello("g")))
        await asyncio.sleep(1)
        old.close()
        await asyncio.sleep(1)
        lost = list(desk.lost)
        new.close()
        return lost

    assert world(main) == []


@pytest.mark.parametrize("garbage", [b"{}\n", b"not json\n", b"\x00\xff\n", b'{"type":"hello"}\n'])
def test_garbage_ends_its_own_connection_and_no_other(garbage):
    async def main(desk, port):
        _, good = await asyncio.open_connection("127.0.0.1", port)
        good.write(line(Hello("good")))
        reader, bad = await asyncio.open_connection("127.0.0.1", port)
        bad.write(garbage)
        ended = await reader.read()
        good.write(line(Ack("good", 1, 1)))
        await asyncio.sleep(1)
        outcome = ended, list(desk.heard), list(desk.lost)
        good.close()
        bad.close()
        return outcome

    assert world(main) == (b"", [Hello("good"), Ack("good", 1, 1)], [])


def test_a_gateway_that_reads_no_rosters_is_cut():
    async def main(desk, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(line(Hello("slow")))
        await asyncio.sleep(1)
        writer.transport.pause_reading()
        big = msgspec.structs.replace(ROSTER, pools=())
        for version in range(2, 120_000):
            desk.channel.publish(msgspec.structs.replace(big, version=version))
            if desk.lost:
                break
            if version % 1000 == 0:
                await asyncio.sleep(0.01)
        await asyncio.sleep(1)
        return desk.lost

    assert world(main) == ["slow"]


@pytest.mark.parametrize("name", ["", "x" * 129])
def test_a_name_of_no_or_many_characters_is_nobodys(name):
    """One of three megabytes was taken in, and stood in every event and status from then on."""

    async def main(desk, port):
        desk.channel.publish(ROSTER)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(line(Hello(name)))
        told = await reader.read()
        writer.close()
        return told, desk.heard, desk.lost

    assert world(main) == (b"", [], [])


def test_a_batch_of_usage_is_answered_on_its_own_connection_and_only_when_it_is_safe():
    batch, mark = UsageBatch("g", "j", 0, 2, ()), UsageMark("j", 2)

    async def main(desk, port):
        answers = [None, mark]
        desk.channel = Channel(lambda message: answers.pop(0) if isinstance(message, UsageBatch) else None, desk.lost.append)
        port = await desk.channel.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(line(Hello("g")) + line(batch) + line(batch))
        told = msgspec.json.decode(await reader.readline(), type=UsageMark)
        writer.close()
        await asyncio.sleep(1)
        return told, answers

    assert world(main) == (mark, [])
