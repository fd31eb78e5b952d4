"""A gateway over emulated engines in a virtual world: what they do is exact, so what a client misses or has twice is seen."""

import asyncio
import random

import msgspec
from gateway_values import crew_of

from forebay.adapters.upstream import HttpUpstream
from forebay.domain.profile import ColdStart, Profile, StepLaw
from forebay.domain.roster import Capacity, Roster, RosterPool, RosterReplica
from forebay.emulator.engine_server import EngineServer
from forebay.emulator.faults import Fault, Kind
from forebay.gateway.service import Gateway
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Model, Pool, Spec
from forebay.testing.clock import LoopClock
from forebay.testing.events import ListSink
from forebay.testing.ids import CountingIds
from forebay.testing.loop import network, run
from forebay.testing.raw_client import RawClient

PROFILE = Profile(
    name="small",
    model="llama",
    hardware="none",
    gpus=1,
    law=StepLaw(base_s=0.010, per_sequence_s=0.0, per_kv_token_s=0.0, per_prefill_token_s=0.0001),
    sequences_max=64,
    kv_tokens=100_000,
    block_tokens=16,
    prefill_chunk_tokens=512,
    kv_bytes_per_token=1000,
    context_tokens=2048,
    cold_start=ColdStart(provision_s=1.0, weights_bytes=1e9, weights_bandwidth_bytes_per_s=1e9, init_s=1.0),
    front_end_s=0.001,
)
CAPACITY = Capacity(
    kv_tokens=100_000, sequences=64, prefill_tokens=50_000, prefill_tokens_per_s=10_000.0, decode_tokens_per_s=1000.0, context_tokens=2048
)
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


class Fleet:
    """What a test holds."""

    def __init__(self, gateway, engines, sink, clock):
        self.gateway, self.engines, self.sink, self.clock = gateway, engines, sink, clock
        self.crew = None
        self.port = 0
        self.clients = []

    @property
    def meter(self):
        return self.gateway.desk.pools["chat"].meters["interactive"]

    @property
    def outcomes(self):
        return {outcome.value: count for outcome, count in self.meter.outcomes.items() if count}

    @property
    def busy(self):
        """The engine that has something to do."""
        return next(engine for engine in self.engines if engine.core.queued)

    async def client(self):
        client = await RawClient.connect(self.port)
        self.clients.append(client)
        return client

    async def ask(self, body, target=CHAT):
        return await (await self.client()).ask(target, body)

    async def asked(self, body, target=CHAT, wait_s=0.3):
        """A request that is under way for ``wait_s``."""
        task = asyncio.create_task(self.ask(body, target))
        await asyncio.sleep(wait_s)
        return task

    def fault(self, engine, kind, **fields):
        engine.inject(Fault(Kind(kind), **fields))

    async def kill(self, engine):
        engine.die(1, "kill -9")
        await asyncio.sleep(0)


def fleet(test, replicas=2, seed=None, engine=None, profile=PROFILE, context_tokens=2048, capacity=CAPACITY, spec=None, workers=None):
    """Run ``test(fleet)``; nothing may be left afterwards."""

    async def main():
        network().latency_s = 0.0001
        clock, sink = LoopClock(), ListSink()
        pool = Pool("chat", "llama", engine or EngineKind("attach"), profile)
        gateway_spec = spec or Spec((pool,), (Model("llama", context_tokens),), DEFAULT_TIERS)
        crew = crew_of(clock, workers)
        gateway = Gateway(gateway_spec, clock, CountingIds(), HttpUpstream(), random.Random(7), sink, "gw-1", crew=crew)
        engines = [EngineServer(PROFILE, "llama", clock, seed=number) for number in range(replicas)]
        urls = [f"http://127.0.0.1:{await each.start()}" for each in engines]
        world = Fleet(gateway, engines, sink, clock)
        world.crew = crew
        world.port = await gateway.start("127.0.0.1", 0)
        listed = tuple(RosterReplica(f"r{number}", url, capacity) for number, url in enumerate(urls))
        gateway.apply(Roster(1, 1, 10.0, (RosterPool("chat", listed),)))
        await test(world)
        gateway.check()
        for client in world.clients:
            client.close()
        await asyncio.sleep(1.0)
        assert gateway.desk.live == 0
        assert gateway.held_ids.held_bytes == 0
        assert gateway.http.bodies_bytes == 0
        await gateway.close()
        for each in engines:
            await each.stop()

    run(main, seed)


def body(tokens=60, prompt="a prompt of some length", stream=True, **fields):
    """A chat request."""
    made = {"model": "llama", "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "stream": stream, **fields}
    return {key: value for key, value in made.items() if value is not None}


def completion(tokens=60, prompt="a prompt of some length", **fields):
    """A completion request."""
    return {"model": "llama", "prompt": prompt, "max_tokens": tokens, "stream": True, **fields}


def text(answer):
    """All content."""
    choices = [choice for event in answer.events() if event != "[DONE]" for choice in event.get("choices", ())]
    return "".join((choice["delta"].get("content") or "") if "delta" in choice else choice["text"] for choice in choices)


def errors(answer):
    """Every error in the stream."""
    return [event["error"] for event in answer.events() if event != "[DONE]" and "error" in event]


def without_time(answer):
    """All events but for what differs between two requests."""
    made = []
    for event in answer.events():
        if event != "[DONE]":
            event = {**event, "id": "", "created": 0}
        made.append(event)
    return made


def encoded(value):
    """As bytes."""
    return msgspec.json.encode(value)
