"""An hour of everything that can happen to a request, in a minute: what the process holds afterwards is what it held in between.

Counted are the blocks that Python's allocator has given out, so whatever is kept shows, of whichever type. Rings that forget the oldest
of thousands are made small: they would fill for most of the hour.
"""

import asyncio
import gc
import random
import sys

import pytest

from forebay.adapters.upstream import HttpUpstream
from forebay.domain.roster import Capacity, Roster, RosterPool, RosterReplica
from forebay.gateway import records
from forebay.gateway.meters import Outcome
from forebay.gateway.service import Gateway
from forebay.spec.types import EngineKind, Model, Pool, Spec, Team, Tier
from forebay.testing.clock import LoopClock
from forebay.testing.events import ListSink
from forebay.testing.fake_engine import FakeEngine
from forebay.testing.ids import CountingIds
from forebay.testing.loop import run
from forebay.testing.raw_client import RawClient

HOUR_S = 3600.0
MINUTE_S = 60.0
PER_MINUTE = 100
GROWTH_BLOCKS_MAX = 800
"""Over 2,000 requests: a block kept of each second one is found out."""
RING = 64
KEYS = ("sk-search", "sk-search-bulk", "sk-mail", "sk-none")
ANSWER = {"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}]}
SPEC = Spec(
    pools=(Pool("chat", "llama", EngineKind("attach")),),
    models=(Model("llama", 8192, aliases=("gpt-4o",)),),
    tiers=(Tier("interactive", 0, 1.0, 10.0), Tier("batch", 1, 3600.0, 86_400.0, preemptible=True)),
    teams=(
        Team("search", keys=(("sk-search", "interactive"), ("sk-search-bulk", "batch"))),
        Team("mail", keys=(("sk-mail", "interactive"),)),
    ),
)
CAPACITY = Capacity(
    kv_tokens=20_000, sequences=4, prefill_tokens=5_000, prefill_tokens_per_s=10_000.0, decode_tokens_per_s=1000.0, context_tokens=8192
)


async def answers(seen, answer, chance):
    await asyncio.sleep(chance.random())
    usage = {"prompt_tokens": len(seen.body) // 4, "completion_tokens": chance.randint(1, 50)}
    if seen.json().get("stream"):
        answer.stream()
        answer.role()
        for _ in range(chance.randint(1, 6)):
            answer.token("word ")
            await asyncio.sleep(0.05)
        answer.token("", "stop")
        answer.event({"choices": [], "usage": usage})
        answer.done()
    else:
        answer.json(200, {**ANSWER, "id": f"resp_{chance.getrandbits(64):x}", "usage": usage})


async def cuts(seen, answer, chance):
    del seen
    answer.stream()
    answer.token("half ")
    await asyncio.sleep(chance.random())
    answer.cut()


async def refuses(seen, answer, chance):
    del seen
    answer.json(chance.choice((400, 500, 503)), {"error": {"message": "no"}})


async def hangs(seen, answer, chance):
    del seen, chance
    await asyncio.wait([asyncio.ensure_future(answer.gone.wait())], timeout=20.0)
    answer.close()


def engine_of(chance):
    """Mostly it answers."""

    async def script(seen, answer):
        if seen.line.startswith(b"GET "):  # a page of metrics, of which it has none
            answer.json(404, {"detail": "Not Found"})
            return
        await chance.choices((answers, cuts, refuses, hangs), (90, 4, 4, 2))[0](seen, answer, chance)

    return FakeEngine(script)


async def one(port, number, chance):
    """One request of a client of its own, which may leave at any moment."""
    client = await RawClient.connect(port)
    target, key = chance.choice((("/v1/chat/completions", KEYS), ("/v1/responses", KEYS[:1]), ("/v1/embeddings", KEYS[:3])))
    text = f"{number} {chance.getrandbits(64):x} " * chance.randint(1, 300)
    body = {"model": chance.choice(("llama", "gpt-4o", "none")), "max_tokens": chance.randint(1, 400), "stream": chance.random() < 0.5}
    body |= {"messages": [{"role": "user", "content": text}]} if "chat" in target else {"input": text}
    if target != "/v1/chat/completions":
        del body["stream"]
    headers = {"authorization": f"Bearer {chance.choice(key)}", "x-request-id": f"own-{number}"}
    asked = asyncio.ensure_future(client.ask(target, body, headers))
    await asyncio.wait([asked], timeout=chance.uniform(0.0, 2.0) if chance.random() < 0.2 else 60.0)
    asked.cancel()
    client.close()
    await asyncio.gather(asked, return_exceptions=True)


def blocks():
    """Given out by Python's allocator, with nothing unreachable among them."""
    gc.collect()
    return sys.getallocatedblocks()


async def soak(kept):
    """An hour; ``kept`` is called for each request. Returns the blocks after each third, and the gateway's outcomes."""
    chance = random.Random(11)
    clock, sink = LoopClock(), ListSink()
    gateway = Gateway(SPEC, clock, CountingIds(), HttpUpstream(), random.Random(7), sink, "gw-1")
    gateway.holders._most = RING
    engines = [engine_of(random.Random(seed)) for seed in range(2)]
    for engine in engines:
        await engine.start()
    port = await gateway.start("127.0.0.1", 0)
    held = []
    for minute in range(60):
        # Each minute another roster, as a controller sends it; in some one of the replicas is gone, or a new one is there.
        live = engines[: 1 + (minute % 7 > 0)]
        listed = tuple(RosterReplica(f"r{engines.index(each)}-{minute // 20}", each.url, CAPACITY) for each in live)
        gateway.apply(Roster(1, minute + 1, 10.0, (RosterPool("chat", listed),)))
        start_s = clock.now_s()
        tasks = []
        for number in range(minute * PER_MINUTE, (minute + 1) * PER_MINUTE):
            await asyncio.sleep(chance.expovariate(PER_MINUTE / (MINUTE_S / 2)))
            tasks.append(asyncio.ensure_future(one(port, number, chance)))
            kept(number)
        await asyncio.gather(*tasks)
        del tasks
        while gateway.records.leaving.take():  # into the history
            pass
        await clock.sleep_until(max(clock.now_s(), start_s + MINUTE_S))
        gateway.check()
        if minute % 20 == 19:
            for engine in engines:
                engine.seen.clear()
            sink.events.clear()
            held.append(blocks())
    outcomes = dict.fromkeys(Outcome, 0)
    for meter in gateway.desk.pools["chat"].meters.values():
        for outcome, count in meter.outcomes.items():
            outcomes[outcome] += count
    assert clock.now_s() >= HOUR_S
    assert gateway.desk.live == 0
    await gateway.close()
    for engine in engines:
        engine.stop()
    return held, outcomes


@pytest.fixture
def small_rings(monkeypatch):
    monkeypatch.setattr(records, "ORDINARY_MAX", RING)
    monkeypatch.setattr(records, "UNUSUAL_MAX", RING)


def test_after_an_hour_of_everything_memory_is_what_it_was(small_rings):
    held, outcomes = run(lambda: soak(lambda number: None))
    assert all(outcomes[kind] > 10 for kind in (Outcome.COMPLETED, Outcome.CLIENT_GONE, Outcome.TRUNCATED, Outcome.REFUSED_BY_ENGINE)), (
        outcomes
    )
    assert held[2] - held[1] < GROWTH_BLOCKS_MAX, held


def test_one_block_kept_of_every_request_is_found_out(small_rings):
    leak = []
    held, _ = run(lambda: soak(lambda number: leak.append(float(number))))
    assert held[2] - held[1] > GROWTH_BLOCKS_MAX
