"""The list of attached engines changes under load: nothing is cut or lost, and what left the list runs empty and is forgotten."""

import asyncio
import itertools
import random

import msgspec
import pytest

from forebay.adapters.local import AttachedFleet
from forebay.adapters.upstream import HttpUpstream
from forebay.app import wiring
from forebay.app.gateway_wiring import GatewaySystem
from forebay.app.own_roster import OwnRoster
from forebay.app.world.clients import Told, Wish, send
from forebay.app.world.plan import MODEL, Plan
from forebay.app.world.run import World
from forebay.domain.profile import ColdStart, Profile, StepLaw
from forebay.emulator.engine_server import EngineServer
from forebay.gateway.service import Gateway
from forebay.spec.types import EngineKind, Model, Pool, Scaling, Slo, Spec, Team, Tier
from forebay.testing.clock import LoopClock
from forebay.testing.events import ListSink
from forebay.testing.ids import CountingIds
from forebay.testing.loop import run

PROFILE = Profile(
    name="world",
    model=MODEL,
    hardware="none",
    gpus=1,
    law=StepLaw(base_s=0.05, per_sequence_s=0.0, per_kv_token_s=0.0, per_prefill_token_s=1e-5),
    sequences_max=8,
    kv_tokens=6_000,
    block_tokens=16,
    prefill_chunk_tokens=2048,
    kv_bytes_per_token=1,
    context_tokens=1024,
    cold_start=ColdStart(1.0, 1.0, 1.0, 1.0),
)
PORTS = {"a": 9001, "b": 9002, "c": 9003, "nobody": 9009}
CHANGES = ((40.0, "bc"), (41.0, "ca"), (60.0, "ac"), (80.0, "b"), (84.0, "ba"), (110.0, "abc"), (130.0, "c"))
"""When, and what the list says from then on. At 41 s and 84 s one is listed again that has streams from before; ``ac`` is ``ca``."""
REQUESTS = 500
SETTLED_S = 3.0
"""After a change: both sides have read the file, and every gateway routes by it."""
STREAM_S_MAX = 12.0


def listing(engines, gateways=1):
    urls = tuple(f"http://127.0.0.1:{PORTS[name]}" for name in engines)
    scaling = Scaling(min_replicas=len(urls), max_replicas=len(urls), buffer=False, forecast=False, replica_rate_per_s=100.0)
    pool = Pool("pool", MODEL, EngineKind("attach", attach=urls), PROFILE, Slo(5.0, 1.0, 0.9), scaling, queued_max=10_000)
    tiers = (Tier("high", 0, ttft_s=5.0, longest_wait_s=5000.0),)
    return Spec((pool,), (Model(MODEL, 1024),), tiers, (Team("all", (("sk-all", "high"),)),), gateways=gateways)


def wishes(seed):
    chance = random.Random(seed)
    return tuple(
        Wish(n, round(chance.uniform(10.0, 150.0), 3), chance.randint(50, 200), chance.randint(30, 150), n % 3 > 0, "sk-all", 10_000.0)
        for n in range(REQUESTS)
    )


async def engines_started(clock):
    engines = {name: EngineServer(PROFILE, MODEL, clock, seed=name) for name in "abc"}
    for name, engine in engines.items():
        await engine.start("127.0.0.1", PORTS[name])
    return engines


async def changed(clock, engines, take):
    """Take every list when it is due, and look that nothing new comes to what has left."""
    for (at_s, names), (end_s, _) in itertools.pairwise([*CHANGES, (160.0, "")]):
        await clock.sleep_until(at_s)
        take(names)
        await clock.sleep_until(min(at_s + SETTLED_S, end_s))
        off = [engine for name, engine in engines.items() if name not in names]
        before = [engine.core.queued for engine in off]
        while clock.now_s() < end_s:
            await clock.sleep_until(clock.now_s() + 0.2)
            now = [engine.core.queued for engine in off]
            assert all(later <= earlier for earlier, later in zip(before, now, strict=True)), f"what is not in {names} was sent something"
            before = now
        assert end_s < at_s + STREAM_S_MAX or not any(before), f"what is not in {names} has streams after {end_s - at_s} s"


class Attached(AttachedFleet):
    """What a world asks of its fleet beside."""

    broken_promises = ()

    def serves(self, held_ports):
        del held_ports
        return True


def lived(seed, gateways):
    async def main():
        world = World(Plan(seed, False, listing("ab", gateways), PROFILE, wishes(seed), ()))
        engines, upstream = await engines_started(world.clock), HttpUpstream()
        world.fleet = Attached(listing("ab", gateways), world.clock, upstream, world.sink)
        await world.fleet.adopt()

        def take(names):
            spec = listing(names, gateways)
            for front in world.fronts:
                front.gateway.reload(spec)
            world.controller.use(spec, wiring.policies(spec))
            world.fleet.use(spec)

        living = asyncio.create_task(world.live())
        await changed(world.clock, engines, take)
        left = [view.id for view in await world.fleet.observe()]
        answers = await living
        await upstream.close()
        for engine in engines.values():
            await engine.stop()
        return world, answers, left, [replica.id for pool in world.controller.roster.pools for replica in pool.replicas]

    return run(main, seed, time_limit_s=7200.0)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("seed", "gateways"), [(1, 1), (2, 1), (3, 2)])
def test_under_a_controller_no_stream_is_cut_and_nothing_that_waits_is_lost(seed, gateways):
    world, answers, left, roster = lived(seed, gateways)
    assert not world.broken
    assert [answer.told for answer in answers] == [Told.COMPLETE] * REQUESTS
    assert left == roster == ["pool@127.0.0.1:9003"]
    told = [event.message for event in world.sink.events if event.kind == "attach_taken"]
    assert told[:2] == ["attach: +127.0.0.1:9003, -127.0.0.1:9001", "attach: +127.0.0.1:9001, -127.0.0.1:9002"]
    assert len(told) == len(CHANGES) - 1, "another order is no change"
    assert {event.message.split()[0] for event in world.sink.events if event.kind == "engine_left"} >= {
        "pool@127.0.0.1:9001",
        "pool@127.0.0.1:9002",
    }


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_with_a_gateway_alone(seed):
    async def main():
        clock, sink, upstream, chance = LoopClock(), ListSink(), HttpUpstream(), random.Random(seed)
        engines = await engines_started(clock)
        gateway = Gateway(listing("ab"), clock, CountingIds(), upstream, chance, sink, "gw")
        roster = OwnRoster(GatewaySystem(gateway, upstream, clock, sink, chance))
        await roster.begin()
        port = await gateway.start("127.0.0.1", 0)

        def take(names):
            gateway.reload(listing(names))
            roster.take(listing(names))
            gateway.check()

        asked = [asyncio.create_task(send(wish, port, MODEL, clock)) for wish in wishes(seed)]
        await changed(clock, engines, take)
        answers = await asyncio.gather(*asked)
        await clock.sleep_until(clock.now_s() + 2.0)
        gateway.check()
        (load,) = gateway.snapshot().pools
        await roster.close()
        await gateway.close()
        for engine in engines.values():
            await engine.stop()
        return answers, load, sink

    answers, load, sink = run(main, seed, time_limit_s=7200.0)
    assert [answer.told for answer in answers] == [Told.COMPLETE] * REQUESTS
    assert [(row.replica, row.streams, row.kv_tokens) for row in load.replicas] == [("pool@127.0.0.1:9003", 0, 0)]
    gone = [event.message.split()[0] for event in sink.events if event.kind == "engine_left"]
    assert gone[-2:] in (["pool@127.0.0.1:9001", "pool@127.0.0.1:9002"], ["pool@127.0.0.1:9002", "pool@127.0.0.1:9001"])


def test_an_address_where_nobody_listens_comes_and_goes_without_harm():
    async def main():
        clock, sink, upstream, chance = LoopClock(), ListSink(), HttpUpstream(), random.Random(1)
        engines = await engines_started(clock)
        gateway = Gateway(listing("a"), clock, CountingIds(), upstream, chance, sink, "gw")
        roster = OwnRoster(GatewaySystem(gateway, upstream, clock, sink, chance))
        await roster.begin()
        port = await gateway.start("127.0.0.1", 0)
        asked = [
            asyncio.create_task(send(msgspec.structs.replace(wish, at_s=wish.at_s / 8), port, MODEL, clock)) for wish in wishes(4)[:60]
        ]
        for at_s, names in ((4.0, ["a", "nobody"]), (9.0, ["a"]), (10.0, ["nobody"]), (16.0, ["b"])):
            await clock.sleep_until(at_s)
            spec = listing(names)
            gateway.reload(spec)
            roster.take(spec)
            gateway.check()
        answers = await asyncio.gather(*asked)
        replicas = [row.replica for load in gateway.snapshot().pools for row in load.replicas]
        out = [pool.outliers.out for pool in gateway.desk.pools.values()]
        await roster.close()
        await gateway.close()
        for engine in engines.values():
            await engine.stop()
        return answers, replicas, out, sink

    answers, replicas, out, sink = run(main, 1, time_limit_s=7200.0)
    assert {answer.told for answer in answers} == {Told.COMPLETE}, "those that waited while nobody was there are served by the next one"
    assert (replicas, out) == (["pool@127.0.0.1:9002"], [[]])
    assert "replica_ejected" in sink.kinds()
