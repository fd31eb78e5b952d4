"""A gateway over fake engines in a virtual world: what the fixture `world` hands to a test."""

import random

import msgspec
from gateway_values import CAPACITY, SPEC, crew_of

from forebay.adapters.upstream import HttpUpstream
from forebay.domain.roster import Capacity, Roster, RosterPool, RosterReplica
from forebay.gateway.service import Gateway
from forebay.spec.types import Limits, Spec
from forebay.testing.clock import LoopClock
from forebay.testing.events import ListSink
from forebay.testing.fake_engine import FakeEngine, Script
from forebay.testing.ids import CountingIds
from forebay.testing.raw_client import RawClient


class Front:
    """What a test holds: the gateway, its port, its engines."""

    def __init__(self, gateway: Gateway, engines: list[FakeEngine], sink: ListSink, clock: LoopClock) -> None:
        self.gateway, self.engines, self.sink, self.clock = gateway, engines, sink, clock
        self.crew = None
        self.port = 0
        self.version = 0
        self.clients: list[RawClient] = []

    async def client(self) -> RawClient:
        client = await RawClient.connect(self.port)
        self.clients.append(client)
        return client

    async def ask(self, body, headers=None, target="/v1/chat/completions"):
        return await (await self.client()).ask(target, body, headers)

    def route(self, *engines: FakeEngine, capacity: Capacity = CAPACITY, pool: str = "chat") -> None:
        self.version += 1
        replicas = tuple(RosterReplica(f"r{self.engines.index(engine)}", engine.url, capacity) for engine in engines)
        self.gateway.apply(Roster(1, self.version, 10.0, (RosterPool(pool, replicas),)))

    @property
    def permits(self) -> int:
        return sum(replica.streams for load in self.gateway.snapshot().pools for replica in load.replicas)

    @property
    def waiting(self) -> int:
        return sum(lane.waiting for load in self.gateway.snapshot().pools for lane in load.lanes)

    def counts(self, tier="interactive"):
        return next(count for load in self.gateway.snapshot().pools for count in load.counts if count.tier == tier)

    async def sleep(self, seconds: float) -> None:
        """Virtual seconds; the gateway's invariants are looked at afterwards."""
        await self.clock.sleep_until(self.clock.now_s() + seconds * self.clock.speed)
        self.gateway.check()

    async def finish(self) -> None:
        """All clients leave: nothing may be left."""
        for client in self.clients:
            client.close()
        await self.sleep(1.0)
        assert self.gateway.desk.live == 0
        assert self.permits == 0
        assert self.gateway.http.bodies_bytes == 0
        await self.gateway.close()
        for engine in self.engines:
            engine.stop()


async def started(
    *scripts: Script,
    spec: Spec = SPEC,
    speed: float = 1.0,
    limits: Limits | None = None,
    capacity: Capacity = CAPACITY,
    workers: int | None = None,
) -> Front:
    """A gateway with an engine for each script."""
    if limits is not None:
        spec = msgspec.structs.replace(spec, limits=limits)
    clock, sink = LoopClock(speed), ListSink()
    crew = crew_of(clock, workers)
    gateway = Gateway(spec, clock, CountingIds(), HttpUpstream(), random.Random(7), sink, "gw-1", crew=crew)
    front = Front(gateway, [FakeEngine(script) for script in scripts], sink, clock)
    front.crew = crew
    for engine in front.engines:
        await engine.start()
    front.port = await gateway.start("127.0.0.1", 0)
    front.route(*front.engines, capacity=capacity)
    return front
