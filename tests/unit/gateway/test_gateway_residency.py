"""A team with a residency is served by pools there alone, and by such as name no region."""

import asyncio
import json
import random

import msgspec

from forebay.adapters.upstream import HttpUpstream
from forebay.domain.roster import Capacity, Roster, RosterPool, RosterReplica
from forebay.gateway.service import Gateway
from forebay.spec.types import EngineKind, LongContext, Model, Overflow, Pool, Spec, Team, Tier
from forebay.testing.clock import LoopClock
from forebay.testing.events import ListSink
from forebay.testing.fake_engine import FakeEngine
from forebay.testing.ids import CountingIds
from forebay.testing.loop import run
from forebay.testing.raw_client import RawClient

TIERS = (Tier("interactive", 0, 1.0, 30.0),)
TEAMS = (
    Team("europe", (("sk-europe", "interactive"),), residency=("eu",), overflow=("degrade",)),
    Team("anywhere", (("sk-anywhere", "interactive"),), overflow=("degrade",)),
)
US = Pool("chat-us", "llama", EngineKind("attach"), region="us", adapters=("tuned",))
EU = Pool("chat-eu", "llama", EngineKind("attach"), region="eu", adapters=("tuned",))
HOME = Pool("other", "qwen", EngineKind("attach"))
FAR = Pool("far", "mistral", EngineKind("attach"), region="us")
MODELS = (Model("llama", aliases=("chat",)), Model("qwen"), Model("mistral"))


async def answers(seen, answer):
    usage = {"prompt_tokens": round(len(seen.body) / 3.5), "completion_tokens": 5}
    answer.json(200, {"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}], "usage": usage})


def world(test, *pools, slots=8, engines=answers):
    async def play():
        behind = FakeEngine(engines)
        await behind.start()
        spec = Spec(pools, tuple(model for model in MODELS if any(pool.model == model.name for pool in pools)), TIERS, TEAMS)
        gateway = Gateway(spec, LoopClock(1.0), CountingIds(), HttpUpstream(), random.Random(7), ListSink(), "gw")
        port = await gateway.start("127.0.0.1", 0)
        capacity = Capacity(100_000, slots, 50_000, 10_000.0, 1000.0, 100_000)
        listed = tuple(RosterPool(pool.name, (RosterReplica(pool.name, behind.url, capacity),)) for pool in pools)
        gateway.apply(Roster(1, 1, 1e9, listed))
        clients = []

        async def ask(team, model="llama", prompt="x"):
            client = await RawClient.connect(port)
            clients.append(client)
            body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 5}
            return await client.ask("/v1/chat/completions", body, {"authorization": f"Bearer sk-{team}"})

        async def models(team, path=""):
            client = await RawClient.connect(port)
            clients.append(client)
            client.send("/v1/models" + path, None, {"authorization": f"Bearer sk-{team}"}, method="GET")
            return await client.read()

        await test(ask, models)
        for client in clients:
            client.close()
        await gateway.close()
        behind.stop()

    run(play)


def test_a_team_goes_to_the_pool_of_its_region_by_every_name_of_the_model():
    async def test(ask, _):
        for model in ("llama", "chat", "tuned"):
            assert (await ask("europe", model)).headers["x-forebay-pool"] == "chat-eu", model
            assert (await ask("anywhere", model)).headers["x-forebay-pool"] == "chat-us", model

    world(test, US, EU)


def test_what_a_team_may_not_go_to_is_not_there_for_it():
    async def test(ask, models):
        refused = await ask("europe", "mistral")
        assert (refused.status, refused.json()["error"]["code"]) == (404, "model_not_found")
        assert (await ask("anywhere", "mistral")).status == 200
        assert [one["id"] for one in (await models("europe")).json()["data"]] == ["qwen"]
        assert [one["id"] for one in (await models("anywhere")).json()["data"]] == ["qwen", "mistral"]
        assert (await models("europe", "/mistral")).status == 404
        assert (await models("anywhere", "/mistral")).status == 200

    world(test, HOME, FAR)


def test_a_pool_without_a_region_serves_everybody():
    async def test(ask, _):
        assert (await ask("europe", "qwen")).headers["x-forebay-pool"] == "other"

    world(test, HOME)


def test_long_requests_stay_where_the_team_may_be():
    home = msgspec.structs.replace(EU, long_context=LongContext("chat-us", 1000))

    async def test(ask, _):
        assert (await ask("europe", prompt="x" * 5000)).headers["x-forebay-pool"] == "chat-eu"
        assert (await ask("anywhere", prompt="x" * 5000)).headers["x-forebay-pool"] == "chat-us"

    world(test, home, US)


def test_a_smaller_model_elsewhere_is_no_way_out():
    busy = msgspec.structs.replace(EU, overflow=Overflow(degrade_to="mistral", degrade_after_s=1.0))

    async def slow_here(seen, answer):
        if json.loads(seen.body)["model"] == "llama":
            await asyncio.sleep(20)
        await answers(seen, answer)

    async def test(ask, _):
        async with asyncio.TaskGroup() as group:
            group.create_task(ask("europe"))
            await asyncio.sleep(0.1)
            strict, free = group.create_task(ask("europe")), group.create_task(ask("anywhere"))
        assert strict.result().headers["x-forebay-pool"] == "chat-eu"
        assert free.result().headers["x-forebay-pool"] == "far"

    world(test, busy, FAR, slots=1, engines=slow_here)
