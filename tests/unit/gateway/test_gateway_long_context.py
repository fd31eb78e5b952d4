"""Long requests go to a pool of their own, by what of them is not cached; where that can't be, they go home."""

import asyncio
import random

import pytest

from forebay.adapters.upstream import HttpUpstream
from forebay.domain.roster import Capacity, Roster, RosterPool, RosterReplica
from forebay.gateway.service import Gateway
from forebay.spec.decode import BadSpec, decode
from forebay.spec.types import EngineKind, LongContext, Model, Pool, Spec, Tier
from forebay.testing.clock import LoopClock
from forebay.testing.events import ListSink
from forebay.testing.fake_engine import FakeEngine
from forebay.testing.ids import CountingIds
from forebay.testing.loop import run
from forebay.testing.raw_client import RawClient

TIERS = (Tier("interactive", 0, 1.0, 30.0),)
SHORT, LONG = "x" * 1000, "x" * 5000
"""At 3.5 bytes a token: 300 and 1,450 tokens."""


async def answers(seen, answer):
    usage = {"prompt_tokens": round(len(seen.body) / 3.5), "completion_tokens": 5}
    answer.json(200, {"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}], "usage": usage})


def ask(prompt, **fields):
    return {"model": "llama", "messages": [{"role": "user", "content": prompt}], "max_tokens": 5, **fields}


class Front:
    def __init__(self):
        self.clients = []

    async def start(self, homes=1, longs=1, above=1000, home_context=8192, long_context=8192, adapters=()):
        self.engines = [FakeEngine(answers) for _ in range(homes + longs)]
        for engine in self.engines:
            await engine.start()
        pools = (
            Pool("chat", "llama", EngineKind("attach"), adapters=adapters, long_context=LongContext("chat-long", above)),
            Pool("chat-long", "llama", EngineKind("attach")),
        )
        self.gateway = Gateway(
            Spec(pools, (Model("llama"),), TIERS), LoopClock(1.0), CountingIds(), HttpUpstream(), random.Random(7), ListSink(), "gw"
        )
        self.gateway.desk.pools["chat"].context_tokens = home_context
        self.gateway.desk.pools["chat-long"].context_tokens = long_context
        self.port = await self.gateway.start("127.0.0.1", 0)
        self.route(homes, longs)

    def route(self, homes, longs):
        capacity = Capacity(100_000, 8, 50_000, 10_000.0, 1000.0, 100_000)
        listed = [RosterReplica(f"r{number}", engine.url, capacity) for number, engine in enumerate(self.engines)]
        pools = (RosterPool("chat", tuple(listed[:homes])), RosterPool("chat-long", tuple(listed[len(listed) - longs :] if longs else ())))
        self.gateway.apply(Roster(1, self.gateway.roster.version + 1, 10.0, pools))

    async def ask(self, body, target="/v1/chat/completions"):
        client = await RawClient.connect(self.port)
        self.clients.append(client)
        return await client.ask(target, body)

    async def pool_of(self, body, target="/v1/chat/completions"):
        return (await self.ask(body, target)).headers["x-forebay-pool"]

    async def finish(self):
        self.gateway.check()
        for client in self.clients:
            client.close()
        await asyncio.sleep(1.0)
        assert self.gateway.desk.live == 0
        await self.gateway.close()
        for engine in self.engines:
            engine.stop()


def play(test, **options):
    async def main():
        front = Front()
        await front.start(**options)
        await test(front)
        await front.finish()

    run(main, 1)


def test_a_long_prompt_goes_to_its_own_pool_and_is_told_why():
    async def test(front):
        assert await front.pool_of(ask(SHORT)) == "chat"
        answer = await front.ask(ask(LONG))
        assert answer.headers["x-forebay-pool"] == "chat-long"
        uncached = int(answer.headers["x-forebay-long-context"])
        assert 1400 < uncached < 1500
        record = front.gateway.records.of("anonymous", answer.headers["x-request-id"].encode())
        assert (record.pool, record.way) == ("chat-long", f"long-context: {uncached}")
        assert await front.pool_of({"model": "llama", "prompt": LONG, "max_tokens": 5}, "/v1/completions") == "chat-long"
        assert await front.pool_of({"model": "llama", "input": LONG}, "/v1/responses") == "chat-long"
        assert await front.pool_of({"model": "llama", "input": LONG}, "/v1/embeddings") == "chat", "nothing is generated"
        first, second = (pool.meters["interactive"].arrived for pool in front.gateway.desk.pools.values())
        assert (first, second) == (2, 3)

    play(test)


def test_what_is_cached_at_home_stays_there():
    async def test(front):
        front.gateway.desk.pools["chat"].long._above = 10_000
        assert await front.pool_of(ask(LONG)) == "chat"
        front.gateway.desk.pools["chat"].long._above = 1000
        again = await front.ask(ask(LONG))
        assert again.headers["x-forebay-pool"] == "chat"
        assert "x-forebay-long-context" not in again.headers
        assert await front.pool_of(ask("y" + LONG)) == "chat-long", "another beginning"

    play(test, homes=2)


def test_a_list_of_short_prompts_is_not_a_long_one():
    async def test(front):
        async def of(prompts):
            return await front.pool_of({"model": "llama", "prompt": prompts, "max_tokens": 5}, "/v1/completions")

        assert await of([SHORT] * 6) == "chat", "1,700 tokens in all, and 300 in one context"
        assert await of([LONG] * 2) == "chat-long"

    play(test)


def test_without_a_replica_there_a_long_prompt_goes_home():
    async def test(front):
        front.route(1, 0)
        assert await front.pool_of(ask(LONG)) == "chat"
        front.route(1, 1)
        assert await front.pool_of(ask(LONG)) == "chat-long"

    play(test)


def test_what_home_can_not_hold_goes_there_and_what_only_home_can_hold_stays():
    async def longer_there(front):
        assert await front.pool_of(ask("x" * 2500)) == "chat", "neither above the bound nor too long"
        assert await front.pool_of(ask(LONG)) == "chat-long"
        front.route(2, 0)
        assert await front.pool_of(ask(LONG)) == "chat"

    play(longer_there, above=1200, home_context=1200)

    async def longer_here(front):
        assert await front.pool_of(ask(LONG)) == "chat"
        assert await front.pool_of(ask("x" * 4000)) == "chat-long"

    play(longer_here, above=1000, long_context=1300)


def test_an_adapter_stays_where_it_is_loaded():
    async def test(front):
        assert await front.pool_of({**ask(LONG), "model": "sql"}) == "chat"

    play(test, adapters=("sql",))


GOOD = """pools:
  chat: {model: llama, attach: ['http://127.0.0.1:1'], long_context: {above: 16000, pool: chat-long}}
  chat-long: {model: llama, attach: ['http://127.0.0.1:2']}
  other: {model: qwen, attach: ['http://127.0.0.1:3']}
"""


def test_the_pool_is_read():
    assert decode(GOOD, "forebay.yaml", {}).pools[0].long_context == LongContext("chat-long", 16_000)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("pool: chat-long", "pool: other", "allowed: a pool that serves llama too: chat-long"),
        ("pool: chat-long", "pool: chat", "allowed: a pool that serves llama too: chat-long"),
        ("pool: chat-long", "pool: nobody", "allowed: a pool that serves llama too: chat-long"),
        (", pool: chat-long", "", "long_context.pool: found nothing"),
        ("above: 16000", "above: 0", "above: found"),
        ("1:2']}", "1:2'], long_context: {pool: chat}}", "passed on once"),
    ],
)
def test_a_pool_that_long_requests_can_not_go_to_is_refused(old, new, said):
    with pytest.raises(BadSpec, match="nothing was started") as caught:
        decode(GOOD.replace(old, new), "forebay.yaml", {})
    assert said in str(caught.value)
