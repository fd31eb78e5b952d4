"""The last roster is kept, and a gateway that starts again without a controller serves by it; by nobody else's, and by no old one."""

import asyncio
import random

import msgspec
import pytest

from forebay.adapters.upstream import HttpUpstream
from forebay.domain.errors import ForebayError
from forebay.domain.roster import Ack, FromGateway, Roster, RosterPool, RosterReplica, Snapshot
from forebay.gateway import keeping
from forebay.gateway.keeping import AGE_REAL_S_MAX, ANSWER_REAL_S, KEEP_REAL_S, REFRESH_REAL_S, Keeping, Kept
from forebay.gateway.link import BACKOFF_REAL_S_MAX, Link
from forebay.gateway.service import Gateway
from forebay.testing.ids import CountingIds
from forebay.testing.raw_client import RawClient
from forebay.testing.shelf import MemoryShelf

PORT = 20_600
BODY = {"model": "llama", "messages": []}
decode = msgspec.json.Decoder(FromGateway).decode


class Shelf(MemoryShelf):
    """It fails, or hangs, when told to."""

    problem, hangs, saves = "", False, 0

    async def save(self, content):
        if self.hangs:
            await asyncio.Event().wait()
        if self.problem:
            raise ForebayError(self.problem)
        await super().save(content)
        self.saves += 1

    @property
    def kept(self):
        return msgspec.json.decode(self.content, type=Kept)


class Controller:
    """Takes every gateway's line; says ``roster`` to each, unless it is stopped (it is connected to, and says nothing)."""

    def __init__(self):
        self.roster, self.stopped, self.got, self.writers, self.on_ack = None, False, [], [], None

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", PORT)
        return self

    async def serve(self, reader, writer):
        self.writers.append(writer)
        if self.roster is not None and not self.stopped:
            self.say(self.roster)
        while line := await reader.readline():
            self.got.append(decode(line))
            if isinstance(self.got[-1], Ack | Snapshot) and self.on_ack:
                self.on_ack(self.got[-1])

    def say(self, roster):
        self.roster = roster
        self.writers[-1].write(msgspec.json.encode(roster) + b"\n")

    def close(self):
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()


class Life:
    """One process of the gateway."""

    def __init__(self, front, shelf, run="this run"):
        self.front, self.sink = front, front.sink
        self.gateway = Gateway(front.gateway.spec, front.clock, CountingIds(), HttpUpstream(), random.Random(5), front.sink, "gateway-0")
        keeps = Keeping(self.gateway, front.clock, shelf, run)
        self.link = Link(self.gateway, front.clock, random.Random(3), front.sink, "127.0.0.1", PORT, keeps)

    async def start(self):
        self.port = await self.gateway.start("127.0.0.1", 0)
        self.linking = asyncio.ensure_future(self.link.run())
        return self

    async def die(self):
        self.linking.cancel()
        await asyncio.gather(self.linking, return_exceptions=True)
        await self.gateway.close()

    async def ask(self):
        client = await RawClient.connect(self.port)
        answer = await client.ask("/v1/chat/completions", BODY)
        client.close()
        return answer.status

    @property
    def routes(self):
        return [replica.id for pool in self.gateway.roster.pools for replica in pool.replicas]

    def told(self, kind):
        return [event.message for event in self.sink.events if event.kind == kind]


async def answers(_, answer):
    answer.json(200, {"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 20, "completion_tokens": 5}})


@pytest.fixture
def play(world):
    """``play(test, speed=1.0)``: ``test(front, controller, roster)`` with a controller, and a roster of the world's one engine."""

    def go(test, speed=1.0):
        async def main(front):
            controller = await Controller().start()
            pools = tuple(msgspec.structs.replace(pool, next_ready_in_s=40.0) for pool in front.gateway.roster.pools)
            await test(front, controller, Roster(7, 4, 15.0, pools))
            controller.close()

        world(main, answers, speed=speed)

    return go


async def kept_by_a_first_life(front, controller, roster, shelf):
    """A gateway that was told ``roster``, and has died."""
    controller.roster = roster
    life = await Life(front, shelf).start()
    await asyncio.sleep(0.1)
    assert life.gateway.roster == roster
    assert life.told("roster_kept") == []
    await life.die()


def test_it_serves_by_what_was_kept_while_the_controller_is_stopped(play):
    async def test(front, controller, roster):
        shelf = Shelf()
        await kept_by_a_first_life(front, controller, roster, shelf)
        controller.stopped = True
        life = await Life(front, shelf).start()
        await asyncio.sleep(ANSWER_REAL_S + 0.1)
        assert life.told("roster_kept") == [
            "the controller does not answer: serving by the roster of term 7, version 4, which was routed by 1 s ago"
        ]
        assert await life.ask() == 200
        assert life.gateway.snapshot().term == 0, "it acknowledges nothing by it"
        assert life.gateway.roster.pools[0].next_ready_in_s is None, "nobody says any more when others come"
        await life.die()

    play(test)


def test_a_request_that_came_before_waits_for_it(play):
    async def test(front, controller, roster):
        shelf = Shelf()
        await kept_by_a_first_life(front, controller, roster, shelf)
        controller.close()
        life = await Life(front, shelf).start()
        assert await life.ask() == 200
        await life.die()

    play(test)


def test_whatever_a_controller_says_replaces_it_also_one_that_has_forgotten_its_term(play):
    async def test(front, controller, roster):
        shelf = Shelf()
        await kept_by_a_first_life(front, controller, roster, shelf)
        controller.stopped = True
        life = await Life(front, shelf).start()
        await asyncio.sleep(ANSWER_REAL_S + 0.1)
        controller.say(Roster(1, 1, 15.0, (RosterPool("chat", ()),)))
        await asyncio.sleep(0.1)
        assert life.routes == []
        assert Ack("gateway-0", 1, 1) in controller.got
        assert (shelf.kept.roster.term, shelf.kept.roster.version) == (1, 1)
        await life.die()

    play(test)


def test_a_controller_that_answers_in_time_is_waited_for(play):
    async def test(front, controller, roster):
        shelf = Shelf()
        await kept_by_a_first_life(front, controller, roster, shelf)
        controller.stopped = True
        life = await Life(front, shelf).start()
        await asyncio.sleep(ANSWER_REAL_S / 2)
        assert life.routes == []
        controller.say(Roster(8, 1, 15.0, (RosterPool("chat", ()),)))
        await asyncio.sleep(ANSWER_REAL_S)
        assert (life.gateway.roster.term, life.told("roster_kept")) == (8, [])
        await life.die()

    play(test)


@pytest.mark.parametrize("which", ["another run's", "old", "of the time to come", "leased", "garbage", "half", "none"])
def test_what_is_not_used(play, which):
    async def test(front, controller, roster):
        controller.stopped = True
        now_s = front.clock.now_s()
        good = Kept("this run", now_s, roster)
        content = {
            "another run's": msgspec.json.encode(msgspec.structs.replace(good, run="a former run")),
            "old": msgspec.json.encode(msgspec.structs.replace(good, routed_s=now_s - AGE_REAL_S_MAX - 1)),
            "of the time to come": msgspec.json.encode(msgspec.structs.replace(good, routed_s=now_s + 60)),
            "leased": msgspec.json.encode(msgspec.structs.replace(good, roster=msgspec.structs.replace(roster, leased=True))),
            "garbage": b"\x00garbage",
            "half": msgspec.json.encode(good)[:-40],
            "none": b"",
        }[which]
        life = await Life(front, Shelf(content)).start()
        await asyncio.sleep(ANSWER_REAL_S + 0.1)
        assert (life.routes, life.told("roster_kept")) == ([], [])
        assert len(life.told("roster_unusable")) == (which in {"old", "of the time to come", "garbage", "half"})
        assert life.gateway.peering is None
        await life.die()

    play(test)


def test_that_it_is_routed_by_is_said_again_and_again_with_a_controller_or_without(play, monkeypatch):
    age_real_s_max = 1.5 * REFRESH_REAL_S
    monkeypatch.setattr(keeping, "AGE_REAL_S_MAX", age_real_s_max)

    async def test(front, controller, roster):
        shelf = Shelf()
        controller.roster = roster
        life = await Life(front, shelf).start()
        await asyncio.sleep(0.1)
        controller.close()
        await asyncio.sleep(2 * age_real_s_max)
        assert (front.clock.now_s() - shelf.kept.routed_s) / front.clock.speed <= REFRESH_REAL_S + 0.1
        await life.die()
        again = await Life(front, shelf).start()
        await asyncio.sleep(2 * age_real_s_max)
        assert again.routes == ["r0"]
        assert shelf.kept.roster == roster, "it is kept as its controller made it"
        assert (front.clock.now_s() - shelf.kept.routed_s) / front.clock.speed <= REFRESH_REAL_S + 0.1, "also by who fell back on it"
        await again.die()
        await asyncio.sleep(age_real_s_max + 1)
        third = await Life(front, shelf).start()
        await asyncio.sleep(ANSWER_REAL_S + 0.1)
        assert third.routes == []
        await third.die()

    play(test, speed=20.0)


def test_nothing_says_that_a_roster_is_routed_by_before_it_is_kept(play):
    """Else the controller could stop an engine that the next process is still sent to."""

    async def test(front, controller, roster):
        shelf, early = Shelf(), []

        def look(said):
            kept = (shelf.kept.roster.term, shelf.kept.roster.version) if shelf.content else (0, 0)
            if (said.term, said.version) > kept:
                early.append(said)

        controller.on_ack = look
        controller.roster = roster
        life = await Life(front, shelf).start()
        await asyncio.sleep(0.5)
        shelf.hangs = True
        controller.say(msgspec.structs.replace(roster, version=5))
        await asyncio.sleep(KEEP_REAL_S * 0.9)
        assert early == []
        await asyncio.sleep(2.0)
        assert early, "a disk that hangs holds back nothing for long"
        assert life.gateway.roster.version == 5
        await life.die()

    play(test)


def test_what_cannot_be_kept_is_said_once_and_leaves_no_older_one(play):
    async def test(front, controller, roster):
        shelf = Shelf()
        controller.roster = roster
        life = await Life(front, shelf).start()
        await asyncio.sleep(0.1)
        shelf.problem = "can't write gateway-0.roster: No space left on device"
        for version in (5, 6, 7):
            controller.say(msgspec.structs.replace(roster, version=version))
            await asyncio.sleep(0.1)
        assert len(life.told("roster_not_kept")) == 1
        assert "No space left" in life.told("roster_not_kept")[0]
        assert shelf.content == b""
        assert Ack("gateway-0", 7, 7) in controller.got
        await life.die()

    play(test)


def test_nothing_is_written_but_for_a_change_and_for_its_age(play):
    async def test(front, controller, roster):
        shelf = Shelf()
        controller.roster = roster
        life = await Life(front, shelf).start()
        await asyncio.sleep(0.1)
        for _ in range(5):
            controller.say(roster)
            await asyncio.sleep(0.1)
        assert shelf.saves == 1
        await asyncio.sleep(3 * REFRESH_REAL_S)
        assert shelf.saves == 4
        await life.die()

    play(test)


def test_under_leases_none_is_kept_for_a_new_process_has_no_lease(play):
    async def test(front, controller, roster):
        shelf = Shelf()
        await kept_by_a_first_life(front, controller, roster, shelf)
        engine = roster.pools[0].replicas[0]
        leased = RosterReplica(engine.id, engine.url, engine.capacity, gateway="gateway-0")
        controller.roster = Roster(8, 1, 15.0, (RosterPool("chat", (leased,)),), leased=True)
        life = await Life(front, shelf).start()
        await asyncio.sleep(0.1)
        assert await life.ask() == 200
        assert shelf.content == b""
        await life.die()
        controller.stopped = True
        again = await Life(front, shelf).start()
        await asyncio.sleep(BACKOFF_REAL_S_MAX + ANSWER_REAL_S)
        assert again.routes == []
        await again.die()

    play(test)


def test_a_controller_that_leaves_while_its_roster_is_being_kept_is_dialled_again(play):
    """What was to be acknowledged to it by then ended the link for good: an event loop may raise what is no OSError for that."""

    async def test(front, controller, roster):
        shelf = Shelf()
        shelf.hangs = True
        controller.roster = roster
        life = await Life(front, shelf).start()
        await asyncio.sleep(KEEP_REAL_S / 2)
        controller.writers[-1].transport.abort()
        await asyncio.sleep(KEEP_REAL_S + 2 * BACKOFF_REAL_S_MAX)
        assert len(controller.writers) > 1
        assert not life.linking.done()
        await life.die()

    play(test)
