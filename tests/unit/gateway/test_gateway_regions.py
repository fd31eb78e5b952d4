"""Pools of one model in several regions stand in for one another, for teams that allow it, where one has no replica or is overloaded."""

import asyncio
import random

import msgspec
import pytest
from overflow_world import ANSWER, answers, hangs, once

from forebay.adapters.upstream import HttpUpstream
from forebay.domain.roster import Capacity, Roster, RosterPool, RosterReplica
from forebay.gateway.service import Gateway
from forebay.spec.types import EngineKind, LongContext, Model, Overflow, Pool, Scaling, Spec, Spill, Team, Tier
from forebay.testing.clock import LoopClock
from forebay.testing.events import ListSink
from forebay.testing.fake_engine import FakeEngine
from forebay.testing.ids import CountingIds
from forebay.testing.loop import run
from forebay.testing.raw_client import RawClient

ONE = Capacity(100_000, 1, 50_000, 10_000.0, 1000.0, 8192)
TIERS = (Tier("interactive", 0, 1.0, 30.0), Tier("batch", 1, 3600.0, 3600.0, preemptible=True))
TEAMS = (
    Team("free", (("sk-free", "interactive"),), overflow=("spill", "degrade")),
    Team("stays", (("sk-stays", "interactive"),), overflow=("degrade",)),
    Team("american", (("sk-american", "interactive"),), overflow=("spill",), residency=("us",)),
    Team("european", (("sk-european", "interactive"),), overflow=("spill", "degrade"), residency=("eu",)),
    Team("batch", (("sk-batch", "batch"),), overflow=("spill",)),
)
US = Pool("chat-us", "llama", EngineKind("attach"), region="us", adapters=("tuned", "ours"), overflow=Overflow(spill_after_s=5.0))
EU = Pool("chat-eu", "llama", EngineKind("attach"), region="eu", adapters=("tuned",))
PLACE = Spill("provider", "", "llama", "", "us", 100.0)
CHAT = {"model": "llama", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
MESSAGE = {"id": "m", "type": "message", "content": [], "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}}


FORM = (
    b'--XyZ\r\ncontent-disposition: form-data; name="model"\r\n\r\nchat\r\n'
    b'--XyZ\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\x00\xff\r\n--XyZ--\r\n'
)
NAMED = FORM.replace(b"\r\nchat\r\n", b"\r\nllama\r\n")


async def resets(_, answer):
    answer.close()


async def fails(_, answer):
    answer.json(500, {"error": {"message": "no"}})


async def as_asked(seen, answer):
    if seen.line.startswith(b"POST /v1/messages "):
        answer.json(200, MESSAGE)
    elif seen.line.startswith(b"POST /tokenize"):
        answer.json(200, {"count": 1})
    else:
        answer.json(200, ANSWER)


class World:
    """A gateway over ``pools``, each with an engine of one slot and its own script; ``provider``: where they spill to."""

    def __init__(self, pools, scripts, teams=TEAMS):
        self.pools, self.teams, self.sink = pools, teams, ListSink()
        self.engines = {pool.name: FakeEngine(script) for pool, script in zip(pools, scripts, strict=True)}
        self.provider = FakeEngine(answers)
        self.clients, self.tasks, self.version = [], [], 0

    async def start(self, listed):
        for engine in (*self.engines.values(), self.provider):
            await engine.start()
        pools = []
        for pool in self.pools:
            spill = tuple(msgspec.structs.replace(each, url=f"{self.provider.url}/v1") for each in pool.overflow.spill)
            pools.append(msgspec.structs.replace(pool, overflow=msgspec.structs.replace(pool.overflow, spill=spill)))
        models = tuple(Model(name, aliases=("chat",) if name == "llama" else ()) for name in dict.fromkeys(pool.model for pool in pools))
        spec = Spec(tuple(pools), models, TIERS, self.teams)
        self.clock = LoopClock(1.0)
        self.gateway = Gateway(spec, self.clock, CountingIds(), HttpUpstream(), random.Random(7), self.sink, "gw")
        self.port = await self.gateway.start("127.0.0.1", 0)
        self.list(*listed)

    def list(self, *names, **ready_in_s):
        """Of these pools the engine is in routing from now on; of those in ``ready_in_s`` (with _ for -) one is on its way."""
        listed = [RosterPool(name, (RosterReplica(name, self.engines[name].url, ONE),)) for name in names]
        listed += [RosterPool(name.replace("_", "-"), (), next_ready_in_s=after_s) for name, after_s in ready_in_s.items()]
        self.version += 1
        self.gateway.apply(Roster(1, self.version, 1e9, tuple(listed)))

    async def begin(self, team, path="/v1/chat/completions", form=None, **body):
        client = await RawClient.connect(self.port)
        self.clients.append(client)
        headers = {"authorization": f"Bearer sk-{team}"}
        if form is not None:
            headers["content-type"] = "multipart/form-data; boundary=XyZ"
        task = asyncio.ensure_future(client.ask(path, {**CHAT, **body} if form is None else form, headers))
        self.tasks.append(task)
        await self.sleep(0.1)
        return task

    async def sleep(self, seconds):
        await self.clock.sleep_until(self.clock.now_s() + seconds)
        self.gateway.check()

    async def metrics(self):
        client = await RawClient.connect(self.port)
        self.clients.append(client)
        page = (await client.ask("/metrics", None, method="GET")).body.decode()
        lines = [line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("forebay_overflow")]
        shown = dict(lines)
        assert len(shown) == len(lines), "a series is told twice"
        return shown

    async def finish(self):
        for client in self.clients:
            client.close()
        await self.sleep(1.0)
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert self.gateway.desk.live == 0
        await self.gateway.close()
        for engine in (*self.engines.values(), self.provider):
            engine.stop()


def play(test, *scripts, pools=(US, EU), listed=("chat-eu",), teams=TEAMS):
    async def main():
        world = World(pools, scripts or (answers,) * len(pools), teams)
        await world.start(listed)
        await test(world)
        await world.finish()

    run(main)


def served_by(task):
    assert task.done(), "it waits"
    answer = task.result()
    assert answer.status == 200, answer.body
    return answer.headers["x-forebay-pool"], answer.headers.get("x-forebay-spilled")


def test_where_a_pool_has_no_replica_another_regions_of_the_same_model_answers_at_once():
    """They were told 503 after 15 s, that no replica of the model was there."""

    async def test(world):
        assert served_by(await world.begin("free")) == ("chat-eu", "chat-eu")
        assert served_by(await world.begin("free", model="chat")) == ("chat-eu", "chat-eu")
        assert world.engines["chat-eu"].seen[-1].json()["model"] == "llama"
        await world.sleep(1.0)
        (began,) = (event for event in world.sink.events if event.kind == "overflow_began")
        assert began.pool == "chat-us"
        assert "chat-eu" in began.message
        assert "no replica" in began.message
        shown = await world.metrics()
        assert shown['forebay_overflow_requests_total{pool="chat-us",to="chat-eu",way="region"}'] == "2.0"
        assert shown['forebay_overflow_open{pool="chat-us",to="chat-eu",way="region"}'] == "1.0"
        assert shown['forebay_overflow_requests_total{pool="chat-eu",to="chat-us",way="region"}'] == "0.0"

    play(test)


@pytest.mark.parametrize("team", ["stays", "american"])
def test_a_team_that_does_not_allow_it_is_told_which_pool_has_no_replica(team):
    async def test(world):
        task = await world.begin(team)
        await world.sleep(16.0)
        answer = task.result()
        assert (answer.status, answer.json()["error"]["code"]) == (503, "no_replicas")
        assert "No replica of pool chat-us " in answer.json()["error"]["message"]
        assert not world.engines["chat-eu"].seen

    play(test)


def test_without_a_team_that_allows_it_there_is_no_way_to_tell_of():
    async def test(world):
        await world.begin("stays")
        await world.sleep(16.0)
        assert not await world.metrics()
        assert "overflow_began" not in world.sink.kinds()

    play(test, teams=TEAMS[1:2])


def test_once_the_pool_has_a_replica_again_requests_are_served_at_home():
    async def test(world):
        assert served_by(await world.begin("free")) == ("chat-eu", "chat-eu")
        world.list("chat-us", "chat-eu")
        assert served_by(await world.begin("free")) == ("chat-us", None)
        await world.sleep(62.0)
        assert "overflow_over" in world.sink.kinds()

    play(test)


def test_what_waits_too_long_goes_to_the_other_region_and_those_after_it_at_once():
    async def test(world):
        await world.begin("free")
        second = await world.begin("free")
        await world.sleep(4.0)
        assert not second.done()
        await world.sleep(2.0)
        assert served_by(second) == ("chat-eu", "chat-eu")
        assert served_by(await world.begin("free")) == ("chat-eu", "chat-eu")

    play(test, hangs, answers, listed=("chat-us", "chat-eu"))


def test_it_does_not_queue_in_the_other_region_which_need_not_wait_for_what_is_not_its_own():
    async def test(world):
        await world.begin("european")
        task = await world.begin("free")
        await world.sleep(10.0)
        assert not task.done()
        assert world.gateway.desk.pools["chat-us"].admission.waiting == 1
        await world.sleep(6.0)
        assert task.result().status == 503

    play(test, answers, hangs)


def test_an_adapter_is_asked_for_only_where_it_is():
    async def test(world):
        assert served_by(await world.begin("free", model="tuned")) == ("chat-eu", "chat-eu")
        assert world.engines["chat-eu"].seen[-1].json()["model"] == "tuned"
        task = await world.begin("free", model="ours")
        await world.sleep(16.0)
        assert task.result().status == 503
        assert len(world.engines["chat-eu"].seen) == 1

    play(test)


def test_a_pool_for_long_requests_stands_in_for_none():
    eu = msgspec.structs.replace(EU, adapters=())
    home = msgspec.structs.replace(US, long_context=LongContext("chat-eu", 1000))

    async def test(world):
        task = await world.begin("free")
        await world.sleep(16.0)
        assert task.result().status == 503

    play(test, pools=(home, eu))


def test_a_pool_that_may_sleep_is_woken_by_what_waits_there():
    sleepy = msgspec.structs.replace(US, scaling=Scaling(min_replicas=0))

    async def test(world):
        task = await world.begin("free")
        await world.sleep(3.0)
        assert world.gateway.desk.pools["chat-us"].admission.waiting == 1
        await world.sleep(3.0)
        assert served_by(task) == ("chat-eu", "chat-eu")  # it has waited as long as it would anywhere

    play(test, pools=(sleepy, EU))


def test_where_a_replica_is_on_its_way_it_is_waited_for_as_long_as_for_a_place():
    async def test(world):
        world.list("chat-eu", chat_us=100.0)
        task = await world.begin("free")
        await world.sleep(4.0)
        assert not task.done()
        await world.sleep(2.0)
        assert served_by(task) == ("chat-eu", "chat-eu")
        for _ in range(3):  # a start may take minutes: nobody else waits as long again
            await world.sleep(50.0)
            assert served_by(await world.begin("free")) == ("chat-eu", "chat-eu")

    play(test)


class Elsewhere:
    """`overflow.Peers` of a gateway beside this one that has a replica of each pool, and no place on it."""

    def out(self, *_, **__):
        return None

    def would_take(self, *_, **__):
        return False

    def replicas(self, _):
        return 1


def test_a_replica_at_another_gateway_is_one():
    async def test(world):
        world.gateway.desk.pools["chat-us"].ways.peers = Elsewhere()
        task = await world.begin("free")
        await world.sleep(4.0)
        assert not task.done()
        await world.sleep(2.0)
        assert served_by(task) == ("chat-eu", "chat-eu")

    play(test)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_what_the_last_replica_has_failed_goes_to_the_other_region_whatever_it_is(path):
    async def test(world):
        task = await world.begin("free", path)
        await world.sleep(2.0)
        assert served_by(task) == ("chat-eu", "chat-eu")
        assert len(world.engines["chat-us"].seen) == 1

    play(test, resets, as_asked, listed=("chat-us", "chat-eu"))


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/tokenize"])
def test_requests_that_go_to_no_other_model_go_to_another_region(path):
    async def test(world):
        assert (await (await world.begin("free", path))).status == 200
        task = await world.begin("stays", path)
        await world.sleep(16.0)
        assert task.result().status == 503
        assert "chat-us" in task.result().json()["error"]["message"]
        assert len(world.engines["chat-eu"].seen) == 1

    play(test, as_asked, as_asked)


def test_what_nobody_listens_for_any_more_goes_without_waiting_for_a_refusal():
    async def test(world):
        world.engines["chat-us"].stop()
        task = await world.begin("free")
        await world.sleep(2.0)
        assert served_by(task) == ("chat-eu", "chat-eu")

    play(test, answers, answers, listed=("chat-us", "chat-eu"))


def test_a_form_goes_there_as_it_is_and_home_again():
    async def test(world):
        task = await world.begin("free", "/v1/audio/transcriptions", FORM)
        await world.sleep(1.0)
        assert [seen.body for seen in world.engines["chat-eu"].seen] == [NAMED]
        assert not task.done()
        world.list("chat-us", "chat-eu")
        await world.sleep(1.0)
        assert served_by(task) == ("chat-us", None)
        assert [seen.body for seen in world.engines["chat-us"].seen] == [NAMED]

    play(test, answers, fails)


def test_a_region_that_fails_is_left_alone_for_a_while_and_the_request_goes_home():
    async def test(world):
        await world.begin("free")
        second = await world.begin("free")
        await world.sleep(6.0)
        assert not second.done()
        assert len(world.engines["chat-eu"].seen) == 1
        third = await world.begin("free")
        await world.sleep(2.0)
        assert not third.done()
        assert len(world.engines["chat-eu"].seen) == 1
        world.clients[0].close()
        await world.sleep(0.5)
        assert served_by(second) == ("chat-us", None)

    play(test, once(hangs, answers), fails, listed=("chat-us", "chat-eu"))


def test_the_same_model_in_another_region_comes_before_a_smaller_one_and_that_before_a_provider():
    both = Overflow(degrade_to="small", degrade_after_s=5.0, spill_after_s=5.0, spill=(PLACE,))
    home, small = msgspec.structs.replace(US, overflow=both), Pool("small", "small", EngineKind("attach"))

    async def test(world):
        first = await world.begin("free")
        assert served_by(first) == ("chat-eu", "chat-eu")
        world.list("small")
        second = await world.begin("free")
        await world.sleep(6.0)
        assert served_by(second) == ("small", None)
        assert second.result().headers["x-forebay-degraded"] == "llama"
        world.list()
        assert served_by(await world.begin("free")) == ("chat-us/provider", "provider")

    play(test, answers, answers, answers, pools=(home, EU, small), listed=("chat-eu", "small"))


def test_a_provider_stays_open_while_the_pool_has_nothing():
    """It closed after each calm minute, and of an outage's requests one a minute and those beside it waited again."""
    home = msgspec.structs.replace(US, overflow=Overflow(spill_after_s=5.0, spill=(PLACE,)))

    async def test(world):
        first = await world.begin("free")
        await world.sleep(6.0)
        assert served_by(first) == ("chat-us/provider", "provider")
        for _ in range(3):
            await world.sleep(50.0)
            assert served_by(await world.begin("free")) == ("chat-us/provider", "provider")

    play(test, answers, pools=(home,), listed=())


def test_a_smaller_model_is_asked_in_whichever_region_the_team_may_be():
    """Only the first pool of the smaller model was looked at: a team that may not go there was refused."""
    big = Pool("big", "big", EngineKind("attach"), region="eu", overflow=Overflow(degrade_to="llama", degrade_after_s=2.0))

    async def test(world):
        await world.begin("european", model="big")
        task = await world.begin("european", model="big")
        await world.sleep(3.0)
        assert served_by(task) == ("chat-eu", None)
        assert task.result().headers["x-forebay-degraded"] == "big"
        shown = await world.metrics()
        assert shown['forebay_overflow_requests_total{pool="big",to="llama",way="degrade"}'] == "1.0"

    play(test, hangs, answers, answers, pools=(big, US, EU), listed=("big", "chat-us", "chat-eu"))


def test_batch_of_a_pool_without_a_replica_goes_when_it_would_be_refused():
    async def test(world):
        assert served_by(await world.begin("free")) == ("chat-eu", "chat-eu")
        task = await world.begin("batch")
        await world.sleep(10.0)
        assert not task.done()
        await world.sleep(6.0)
        assert served_by(task) == ("chat-eu", "chat-eu")

    play(test)
