"""Two gateways over fake engines in a virtual world, told by hand what a controller would tell them."""

import random

import msgspec
from gateway_values import CAPACITY, SPEC

from forebay.adapters.upstream import HttpUpstream
from forebay.domain.roster import Heard, Peer, PeerPool, Roster, RosterPool, RosterReplica
from forebay.gateway.meters import Outcome
from forebay.gateway.service import Gateway
from forebay.testing.clock import LoopClock
from forebay.testing.events import ListSink
from forebay.testing.fake_engine import FakeEngine
from forebay.testing.ids import CountingIds
from forebay.testing.loop import run
from forebay.testing.raw_client import RawClient

LEASE_S = 15.0
KEY = "hop-key"
CHAT = "/v1/chat/completions"
BODY = {"model": "llama", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}


class Several:
    """What a test holds: gateways ``a`` and ``b``, and an engine for each script."""

    def __init__(self, spec, scripts):
        self.clock = LoopClock()
        self.sinks = {name: ListSink() for name in "ab"}
        self.gateways = {
            name: Gateway(spec, self.clock, CountingIds(), HttpUpstream(), random.Random(7), self.sinks[name], name) for name in "ab"
        }
        self.engines = [FakeEngine(script) for script in scripts]
        self.ports = {}
        self.version = 0
        self.continues = True
        self.clients = []

    async def start(self):
        for engine in self.engines:
            await engine.start()
        for name, gateway in self.gateways.items():
            self.ports[name] = await gateway.start("127.0.0.1", 0)
            await gateway.take_hops_on(None)

    def lease(self, *holders, capacity=CAPACITY, to="ab"):
        """A roster in which engine by engine is leased to these."""
        self.version += 1
        replicas = tuple(
            RosterReplica(f"r{number}", engine.url, capacity, holder)
            for number, (engine, holder) in enumerate(zip(self.engines, holders, strict=True))
        )
        self.roster = Roster(1, self.version, LEASE_S, (RosterPool("chat", replicas),), leased=True)
        for name in to:
            self.gateways[name].apply(self.roster)
            self.heard(name)

    def heard(self, name, waits_s=None, residues=(), shares=None):
        """The controller answers ``name``."""
        paces = dict.fromkeys(self.gateways, 0.0)
        counts, ejected = dict.fromkeys(self.gateways, 0), dict.fromkeys(self.gateways, 0)
        out = {replica for gateway in self.gateways.values() for replica in gateway.desk.pools["chat"].outliers.out}
        for replica in self.roster.pools[0].replicas:
            if replica.gateway and replica.id in out:
                ejected[replica.gateway] += 1
            elif replica.gateway:
                paces[replica.gateway] += replica.capacity.decode_tokens_per_s
                counts[replica.gateway] += 1
        peers = tuple(
            Peer(
                other,
                gateway.url,
                (PeerPool("chat", counts[other], (waits_s or {}).get(other, 0.0), paces[other], ejected[other]),),
                self.continues,
            )
            for other, gateway in self.gateways.items()
            if other != name
        )
        self.gateways[name].peering.heard(Heard(self.clock.now_s(), KEY, peers, residues, shares))

    async def client(self, name, hops=False):
        port = int(self.gateways[name].url.rpartition(":")[2]) if hops else self.ports[name]
        self.clients.append(await RawClient.connect(port))
        return self.clients[-1]

    async def ask(self, name, body=None, headers=None, target=CHAT):
        return await (await self.client(name)).ask(target, {**BODY, **(body or {})}, headers)

    async def sleep(self, seconds):
        """Virtual seconds, in which the controller goes on answering nobody; invariants are looked at afterwards."""
        await self.clock.sleep_until(self.clock.now_s() + seconds)
        for gateway in self.gateways.values():
            gateway.check()

    async def beats(self, seconds):
        """As many virtual seconds, in each of which the controller answers both."""
        for _ in range(round(seconds)):
            await self.sleep(1.0)
            for name in self.gateways:
                self.heard(name)

    def told(self, name, kind):
        """When ``name`` told events of this kind, and what."""
        return [(event.at_s, event.message) for event in self.sinks[name].events if event.kind == kind]

    def meter(self, name, tier="interactive"):
        return self.gateways[name].desk.pools["chat"].meters[tier]

    def outcomes(self, name):
        return {outcome.value: count for outcome, count in self.meter(name).outcomes.items() if count}

    def inside(self):
        return {name: gateway.desk.live for name, gateway in self.gateways.items()}

    async def finish(self):
        for client in self.clients:
            client.close()
        await self.sleep(1.0)
        assert self.inside() == {"a": 0, "b": 0}
        for gateway in self.gateways.values():
            assert all(server.bodies_bytes == 0 for server in gateway.servers)
            await gateway.close()
        for engine in self.engines:
            engine.stop()


def several(test, *scripts, spec=SPEC, **changes):
    """Run ``test(several)``; nothing may be left afterwards."""

    async def main():
        world = Several(msgspec.structs.replace(spec, **changes), scripts)
        await world.start()
        await test(world)
        await world.finish()

    run(main)


__all__ = ["BODY", "CHAT", "KEY", "LEASE_S", "Outcome", "Several", "several"]
