"""A gateway that runs alone, whose list of engines changes in its file."""

import asyncio
import random

from forebay.adapters.clock import RandomIds
from forebay.adapters.upstream import HttpUpstream
from forebay.app.gateway_wiring import GatewaySystem
from forebay.app.own_roster import LOOK_EVERY_REAL_S, OwnRoster
from forebay.gateway.service import Gateway
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Model, Pool, Spec
from forebay.testing.clock import LoopClock
from forebay.testing.events import ListSink
from forebay.testing.fake_engine import FakeEngine
from forebay.testing.loop import run
from forebay.testing.raw_client import RawClient

CHAT = {"model": "llama", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 50, "stream": True}


async def streams(seen, answer):
    if b"/v1/models" in seen.line:
        answer.json(200, {"data": [{"id": "llama"}]})
        return
    answer.stream()
    answer.role()
    for _ in range(5):
        answer.token("a")
        await asyncio.sleep(1)
    answer.token("b", "stop")
    answer.done()


async def tiny(_, answer):
    answer.json(200, {"data": [{"id": "tiny"}]})


def listing(*engines):
    urls = tuple(engine.url for engine in engines)
    return Spec((Pool("chat", "llama", EngineKind("attach", attach=urls)),), (Model("llama", 8192),), DEFAULT_TIERS)


class Alone:
    def __init__(self, gateway, roster, sink, port, engines):
        self.gateway, self.roster, self.sink, self.port, self.engines = gateway, roster, sink, port, engines
        self.clients = []

    def take(self, *engines):
        self.gateway.reload(listing(*engines))
        self.roster.take(listing(*engines))
        self.gateway.check()

    async def begun(self):
        """A client whose stream runs."""
        client = await self.client()
        client.send("/v1/chat/completions", CHAT)
        await asyncio.sleep(0.5)
        return client

    async def client(self):
        self.clients.append(await RawClient.connect(self.port))
        return self.clients[-1]

    def told(self, kind):
        return [event.message for event in self.sink.events if event.kind == kind]

    @property
    def rows(self):
        return {row.replica: row.streams for load in self.gateway.snapshot().pools for row in load.replicas}


def alone(test, *scripts):
    """``test(alone)`` over the first engine; the others aren't listed yet."""

    async def main():
        engines = [FakeEngine(script) for script in scripts]
        for engine in engines:
            await engine.start()
        clock, sink, upstream, chance = LoopClock(), ListSink(), HttpUpstream(), random.Random(1)
        gateway = Gateway(listing(engines[0]), clock, RandomIds(), upstream, chance, sink, "gw")
        roster = OwnRoster(GatewaySystem(gateway, upstream, clock, sink, chance))
        await roster.begin()
        port = await gateway.start("127.0.0.1", 0)
        made = Alone(gateway, roster, sink, port, engines)
        await test(made)
        for client in made.clients:
            client.close()
        await roster.close()
        await gateway.close()
        for engine in engines:
            engine.stop()

    run(main)


def name(engine):
    return f"chat@127.0.0.1:{engine.port}"


def test_a_stream_ends_whole_on_an_engine_that_left_and_then_it_is_said_to_be_empty():
    async def test(alone):
        first, second = alone.engines
        client = await alone.begun()
        alone.take(second)
        other = await alone.begun()
        assert alone.rows == {name(first): 1, name(second): 1}
        await asyncio.sleep(2.0)
        assert alone.told("engine_left") == []
        answer = await client.read()
        assert answer.complete
        assert answer.events()[-1] == "[DONE]"
        await asyncio.sleep(2 * LOOK_EVERY_REAL_S)
        assert alone.told("engine_left") == [f"{name(first)} is off the list, and nothing that came by here runs on it any more"]
        assert (await other.read()).complete
        assert alone.rows == {name(second): 0}
        metrics = (await (await alone.client()).ask("/metrics")).body.decode()
        assert f'replica="{name(second)}"' in metrics
        assert f'replica="{name(first)}"' not in metrics

    alone(test, streams, streams)


def test_one_that_is_listed_again_under_its_streams_counts_them():
    async def test(alone):
        first, second = alone.engines
        client = await alone.begun()
        alone.take(second)
        alone.take(second, first)
        assert alone.rows[name(first)] == 1
        assert (await client.read()).complete
        await asyncio.sleep(2 * LOOK_EVERY_REAL_S)
        assert alone.told("engine_left") == []
        assert set(alone.rows.values()) == {0}

    alone(test, streams, streams)


def test_the_same_engines_in_another_order_make_no_new_roster():
    async def test(alone):
        first, second = alone.engines
        alone.take(first, second)
        version = alone.gateway.roster.version
        alone.take(second, first)
        alone.take(second, first)
        assert alone.gateway.roster.version == version

    alone(test, streams, streams)


def test_what_is_listed_anew_gets_a_first_look_and_the_others_no_second():
    async def test(alone):
        first, second = alone.engines
        seen = len(first.seen)
        alone.take(first, second)
        await asyncio.sleep(1.0)
        assert "serves tiny, and not llama" in alone.told("model_differs")[0]
        assert len(first.seen) == seen

    alone(test, streams, tiny)


def test_where_nobody_listens_yet_is_out_of_routing_at_once_and_asked_until_it_leaves():
    async def test(alone):
        first, second = alone.engines
        second.stop()
        alone.take(first, second)
        await asyncio.sleep(0.1)
        assert alone.gateway.desk.pools["chat"].outliers.out == [name(second)]
        alone.take(first)
        await asyncio.sleep(30.0)
        assert len(alone.told("replica_ejected")) == 1
        assert alone.told("engine_left") == [f"{name(second)} is off the list, and nothing that came by here runs on it any more"]

    alone(test, streams, streams)
