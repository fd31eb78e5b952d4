"""A big pool of one slot, a small sibling and a place to spill to, in a virtual world: what tests of overflow share."""

import asyncio
import random

import msgspec

from forebay.adapters.upstream import HttpUpstream
from forebay.domain.roster import Capacity, Roster, RosterPool, RosterReplica
from forebay.gateway.meters import Outcome
from forebay.gateway.service import Gateway
from forebay.spec.types import EngineKind, Model, Overflow, Pool, Spec, Spill, Team, Tier
from forebay.testing.clock import LoopClock
from forebay.testing.events import ListSink
from forebay.testing.fake_engine import FakeEngine
from forebay.testing.ids import CountingIds
from forebay.testing.loop import run
from forebay.testing.raw_client import RawClient

ONE = Capacity(100_000, 1, 50_000, 10_000.0, 1000.0, 8192)
TOTAL_S = 40.0
TIERS = (Tier("interactive", 0, 1.0, 30.0, total_s=TOTAL_S), Tier("batch", 1, 3600.0, 300.0, preemptible=True))
BOTH = Team("both", (("sk-both-key", "interactive"),), overflow=("degrade", "spill"))
NEITHER = Team("neither", (("sk-neither-key", "interactive"),))
EUROPE = Team("europe", (("sk-europe-key", "interactive"),), overflow=("spill",), residency=("eu",))
ANSWER = {
    "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5},
}
CHAT = {"model": "big", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


async def answers(_, answer):
    answer.json(200, ANSWER)


async def hangs(_, answer):
    await answer.gone.wait()


def once(first, then):
    """The first request is answered by one script, all others by the other."""
    asked = []

    async def script(seen, answer):
        asked.append(seen)
        await (first if len(asked) == 1 else then)(seen, answer)

    return script


class World:
    """A big pool of one slot, a small sibling, and a place to spill to: an engine each."""

    def __init__(self, spill: Spill | None, degrade: bool, scripts, ledger=None) -> None:
        self.engines = [FakeEngine(script) for script in scripts]
        self.spill, self.degrade, self.ledger = spill, degrade, ledger
        self.sink = ListSink()
        self.clients: list[RawClient] = []
        self.tasks: list[asyncio.Task] = []

    async def start(self) -> None:
        for engine in self.engines:
            await engine.start()
        spill = () if self.spill is None else (msgspec.structs.replace(self.spill, url=f"{self.engines[2].url}/far/v1"),)
        overflow = Overflow("small" if self.degrade else "", 5.0, spill, 10.0)
        pools = (
            Pool("big", "big", EngineKind("attach"), overflow=overflow, adapters=("big-lora",)),
            Pool("small", "small", EngineKind("attach")),
        )
        spec = Spec(pools=pools, models=(Model("big"), Model("small")), tiers=TIERS, teams=(BOTH, NEITHER, EUROPE))
        self.clock = LoopClock(1.0)
        self.gateway = Gateway(
            spec,
            self.clock,
            CountingIds(),
            HttpUpstream(),
            random.Random(7),
            self.sink,
            "gw-1",
            keys={"FAR_KEY": "sk-far-away"},
            ledger=self.ledger,
        )
        self.port = await self.gateway.start("127.0.0.1", 0)
        listed = [RosterPool(name, (RosterReplica(name, self.engines[at].url, ONE),)) for at, name in enumerate(("big", "small"))]
        self.gateway.apply(Roster(1, 1, 10.0, tuple(listed)))

    async def begin(self, key: str, body=CHAT, headers=None) -> "asyncio.Task":
        client = await RawClient.connect(self.port)
        self.clients.append(client)
        task = asyncio.ensure_future(client.ask("/v1/chat/completions", body, {"authorization": f"Bearer {key}", **(headers or {})}))
        self.tasks.append(task)
        await self.sleep(0.1)
        return task

    async def sleep(self, seconds: float) -> None:
        await self.clock.sleep_until(self.clock.now_s() + seconds)
        self.gateway.check()

    def waiting(self, pool: str) -> int:
        return self.gateway.desk.pools[pool].admission.waiting

    def outcomes(self, pool: str) -> dict[Outcome, int]:
        everywhere = {desk.name: desk for desk in (*self.gateway.desk.pools.values(), *self.gateway.desk.spills)}
        return everywhere[pool].meters["interactive"].outcomes

    async def finish(self) -> None:
        for client in self.clients:
            client.close()
        await self.sleep(1.0)
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert self.gateway.desk.live == 0
        await self.gateway.close()
        for engine in self.engines:
            engine.stop()


FAR = Spill("far", "", "far-model", "FAR_KEY", "eu", 100.0, 1.0, 1.0)


def play(test, *scripts, spill: Spill | None = None, degrade: bool = True, ledger=None) -> None:
    """``scripts``: of the big pool's engine, the small one's, the place's."""

    async def main() -> None:
        world = World(spill, degrade, scripts, ledger)
        await world.start()
        await test(world)
        await world.finish()

    run(main)
