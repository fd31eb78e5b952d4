"""The gateway's line to a controller, played by the test."""

import asyncio
import random
from itertools import pairwise

import msgspec
import pytest

from forebay.domain.roster import Ack, Bye, FromGateway, Heard, Hello, Roster, RosterPool, Snapshot
from forebay.domain.usage import UsageBatch, UsageMark
from forebay.gateway.link import BACKOFF_REAL_S_MAX, SILENT_REAL_S, Link

PORT = 20_500
decode = msgspec.json.Decoder(FromGateway).decode


class Controller:
    """Accepts, remembers what came, says what it is told."""

    def __init__(self):
        self.got, self.writers, self.server, self.dialled = [], [], None, []
        self.rude = False

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", PORT)

    async def serve(self, reader, writer):
        self.dialled.append(asyncio.get_running_loop().time())
        self.writers.append(writer)
        if self.rude:
            writer.transport.abort()
            return
        while line := await reader.readline():
            self.got.append(decode(line))
        writer.close()

    def say(self, value):
        self.writers[-1].write((value if isinstance(value, bytes) else msgspec.json.encode(value)) + b"\n")

    def hang_up(self):
        for writer in self.writers:
            writer.transport.abort()

    def stop(self):
        self.server.close()
        self.hang_up()


async def hangs(_, answer):
    await answer.gone.wait()


@pytest.fixture
def linked(world):
    def go(test, speed=1.0, start=True):
        async def main(front):
            controller = Controller()
            if start:
                await controller.start()
            link = Link(front.gateway, front.clock, random.Random(3), front.sink, "127.0.0.1", PORT)
            task = asyncio.ensure_future(link.run())
            await asyncio.sleep(0.01)
            await test(front, controller, link)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if controller.server:
                controller.stop()

        world(main, hangs, speed=speed)

    return go


def test_hello_then_a_snapshot_each_second(linked):
    async def test(front, controller, _):
        await front.sleep(10)
        assert controller.got[0] == Hello("gw-1")
        snapshots = [value for value in controller.got if isinstance(value, Snapshot)]
        assert len(snapshots) == 11
        assert snapshots[-1].gateway == "gw-1"

    linked(test)


def test_seconds_are_the_worlds(linked):
    async def test(front, controller, _):
        await front.sleep(0.5)
        assert len([value for value in controller.got if isinstance(value, Snapshot)]) == 11

    linked(test, speed=20.0)


def test_a_roster_is_applied_and_acknowledged(linked):
    async def test(front, controller, link):
        controller.say(Roster(3, 4, 10.0, (RosterPool("chat", ()),)))
        await front.sleep(0.1)
        assert (front.gateway.roster.term, front.gateway.roster.version) == (3, 4)
        assert Ack("gw-1", 3, 4) in controller.got
        assert link.connected
        controller.say(Roster(2, 9, 10.0, ()))
        await front.sleep(0.1)
        assert controller.got.count(Ack("gw-1", 3, 4)) == 2
        assert front.gateway.roster.version == 4

    linked(test)


def test_without_its_controller_a_gateway_keeps_its_roster_and_dials_again(linked):
    async def test(front, controller, link):
        controller.say(Roster(3, 4, 10.0, ()))
        await front.sleep(0.1)
        controller.stop()
        await front.sleep(60)
        assert not link.connected
        assert front.gateway.roster.version == 4
        assert front.sink.kinds().count("controller_lost") == 1
        heard = len(controller.got)
        await controller.start()
        await front.sleep(BACKOFF_REAL_S_MAX + 0.1)
        assert controller.got[heard] == Hello("gw-1")

    linked(test)


def test_a_controller_that_hangs_on_a_standing_connection_is_told_of_once_and_when_it_answers_again(linked):
    """Stopped for half a minute, it was missed by nobody: a write fills a socket's buffer first, which takes minutes."""

    async def test(front, controller, link):
        controller.say(Roster(3, 4, 10.0, ()))
        controller.say(Heard(0.0, "", ()))
        await front.sleep(SILENT_REAL_S - 0.5)
        assert front.sink.kinds().count("controller_lost") == 0
        await front.sleep(60)
        assert front.sink.kinds().count("controller_lost") == 1
        assert link.connected
        assert len(controller.dialled) == 1, "the connection is kept"
        assert front.gateway.roster.version == 4
        controller.say(Heard(60.0, "", ()))
        await front.sleep(1.0)
        assert front.sink.kinds().count("controller_found") == 2

    linked(test)


def test_a_controller_of_before_it_answered_snapshots_is_not_taken_for_one_that_hangs(linked):
    async def test(front, controller, _):
        controller.say(Roster(3, 4, 10.0, ()))
        await front.sleep(60)
        assert front.sink.kinds().count("controller_lost") == 0

    linked(test)


def test_dialling_backs_off(linked):
    async def test(front, controller, _):
        controller.rude = True
        await controller.start()
        await front.sleep(60)
        waits = [after - before for before, after in pairwise(controller.dialled)]
        assert waits[-1] > 5 * waits[0]
        assert max(waits) <= BACKOFF_REAL_S_MAX + 0.01
        assert len({round(wait, 6) for wait in waits}) == len(waits)

    linked(test, start=False)


@pytest.mark.parametrize("line", [b"nonsense", b'{"type":"roster","term":"x"}', b"x" * (9 * 2**20)], ids=["garbage", "types", "endless"])
def test_what_is_no_roster_ends_the_connection_and_changes_nothing(linked, line):
    async def test(front, controller, link):
        before = front.gateway.roster
        controller.say(line)
        await front.sleep(2)
        assert front.gateway.roster is before
        assert len(controller.dialled) >= 2
        assert not link.connected

    linked(test)


def test_goodbye_is_the_last_word(linked):
    async def test(front, controller, link):
        await link.goodbye()
        await front.sleep(0.1)
        assert controller.got[-1] == Bye("gw-1")

    linked(test)


def test_goodbye_without_a_controller_is_nothing(linked):
    async def test(_, controller, link):
        await link.goodbye()
        assert not controller.got

    linked(test, start=False)


async def quick(_, answer):
    answer.json(200, {"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 20, "completion_tokens": 5}})


def batches(controller):
    return [value for value in controller.got if isinstance(value, UsageBatch)]


def test_usage_is_told_until_it_is_acknowledged_and_over_a_lost_connection_too(linked):
    async def test(front, controller, _):
        front.engines[0].script = quick
        await front.ask({"model": "llama", "messages": []})
        await front.sleep(2.5)
        told = batches(controller)
        assert (told[0].after, told[0].upto, told[0].rows[0].key) == (0, 1, ("anonymous", "llama", "interactive", "chat"))
        assert told == [told[0]] * len(told)
        controller.hang_up()
        await front.sleep(BACKOFF_REAL_S_MAX + 1)
        assert batches(controller)[-1] == told[0]
        controller.say(UsageMark(told[0].journal, 1))
        await front.sleep(0.1)
        heard = len(batches(controller))
        await front.sleep(3)
        assert len(batches(controller)) == heard
        assert front.gateway.usage.unreported_requests == 0

    linked(test)


def test_a_gateway_that_leaves_waits_a_little_for_the_ledger(linked):
    async def test(front, controller, link):
        front.engines[0].script = quick
        controller.say(Roster(1, 9, 10.0, front.gateway.roster.pools))
        await front.sleep(0.1)
        await front.ask({"model": "llama", "messages": []})
        leaving = asyncio.ensure_future(link.goodbye())
        await front.sleep(0.2)
        assert not leaving.done()
        controller.say(UsageMark(batches(controller)[-1].journal, 1))
        await front.sleep(0.2)
        assert leaving.done()
        assert isinstance(controller.got[-1], Bye)

    linked(test)
