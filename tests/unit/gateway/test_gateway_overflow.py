"""What a pool can't start in time: a smaller sibling answers, then other people's engines; else it is refused, last and honestly."""

import asyncio
import random

import msgspec
import pytest

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

    def __init__(self, spill: Spill | None, degrade: bool, scripts) -> None:
        self.engines = [FakeEngine(script) for script in scripts]
        self.spill, self.degrade = spill, degrade
        self.clients: list[RawClient] = []
        self.tasks: list[asyncio.Task] = []

    async def start(self) -> None:
        for engine in self.engines:
            await engine.start()
        spill = () if self.spill is None else (msgspec.structs.replace(self.spill, url=f"{self.engines[2].url}/far/v1"),)
        overflow = Overflow("small" if self.degrade else "", 5.0, spill, 10.0)
        pools = (Pool("big", "big", EngineKind("attach"), overflow=overflow), Pool("small", "small", EngineKind("attach")))
        spec = Spec(pools=pools, models=(Model("big"), Model("small")), tiers=TIERS, teams=(BOTH, NEITHER, EUROPE))
        self.clock = LoopClock(1.0)
        self.gateway = Gateway(
            spec, self.clock, CountingIds(), HttpUpstream(), random.Random(7), ListSink(), "gw-1", keys={"FAR_KEY": "sk-far-away"}
        )
        self.port = await self.gateway.start("127.0.0.1", 0)
        listed = [RosterPool(name, (RosterReplica(name, self.engines[at].url, ONE),)) for at, name in enumerate(("big", "small"))]
        self.gateway.apply(Roster(1, 1, 10.0, tuple(listed)))

    async def begin(self, key: str, body=CHAT) -> "asyncio.Task":
        client = await RawClient.connect(self.port)
        self.clients.append(client)
        task = asyncio.ensure_future(client.ask("/v1/chat/completions", body, {"authorization": f"Bearer {key}"}))
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


def play(test, *scripts, spill: Spill | None = None, degrade: bool = True) -> None:
    async def main() -> None:
        world = World(spill, degrade, scripts)
        await world.start()
        await test(world)
        await world.finish()

    run(main)


def test_a_request_that_waits_too_long_is_answered_by_the_smaller_model_and_told_so():
    async def test(world):
        await world.begin("sk-both-key")  # takes the only slot, and hangs
        second = await world.begin("sk-both-key")
        await world.sleep(4.0)
        assert not second.done()
        await world.sleep(2.5)
        answer = await second
        assert answer.status == 200
        assert answer.headers["x-forebay-degraded"] == "big"
        assert world.engines[1].seen[-1].json()["model"] == "small"
        assert world.outcomes("big")[Outcome.MOVED] == 1
        assert world.outcomes("small")[Outcome.COMPLETED] == 1
        third = await (await world.begin("sk-both-key"))
        assert third.headers["x-forebay-degraded"] == "big"  # the rung is open: it waits no more

    play(test, hangs, answers)


def test_a_team_that_did_not_agree_waits_and_is_refused():
    async def test(world):
        await world.begin("sk-both-key")
        second = await world.begin("sk-neither-key")
        await world.sleep(31.0)
        answer = await second
        assert answer.status == 429
        assert "x-forebay-degraded" not in answer.headers
        assert not world.engines[1].seen

    play(test, hangs, answers)


def test_where_no_sibling_takes_it_it_is_spilled_with_the_key_and_path_of_the_place():
    async def test(world):
        await world.begin("sk-europe-key")
        second = await world.begin("sk-europe-key")
        await world.sleep(12.0)
        answer = await second
        assert answer.status == 200
        assert answer.headers["x-forebay-spilled"] == "far"
        sent = world.engines[2].seen[-1]
        assert sent.json()["model"] == "far-model"
        assert sent.line == b"POST /far/v1/chat/completions HTTP/1.1"
        assert sent.headers[b"authorization"] == b"Bearer sk-far-away"
        (place,) = world.gateway.desk.spills
        assert place.admission.streams == 0
        assert place.admission.budget.used_usd(world.clock.now_s()) == pytest.approx(15e-6)

    play(test, hangs, answers, answers, spill=FAR)


def test_residency_keeps_a_request_at_home():
    async def test(world):
        await world.begin("sk-europe-key")
        second = await world.begin("sk-europe-key")
        await world.sleep(31.0)
        assert (await second).status == 429
        assert not world.engines[2].seen

    play(test, hangs, answers, answers, spill=msgspec.structs.replace(FAR, region="us"))


def test_a_place_without_budget_is_not_asked():
    async def test(world):
        await world.begin("sk-europe-key")
        second = await world.begin("sk-europe-key")
        await world.sleep(31.0)
        assert (await second).status == 429
        assert not world.engines[2].seen

    play(test, hangs, answers, answers, spill=msgspec.structs.replace(FAR, usd_per_hour=1e-9))


async def fails(_, answer):
    answer.json(500, {"error": {"message": "no", "type": "server_error", "param": None, "code": None}})


async def knows_no_key(_, answer):
    answer.json(401, {"error": {"message": "Incorrect API key provided: sk-far-away", "type": "x", "param": None, "code": None}})


async def resets(_, answer):
    answer.close()


@pytest.mark.parametrize("place", [fails, knows_no_key, resets, hangs])
def test_whatever_a_place_does_wrong_the_request_waits_at_home_again_and_is_told_nothing_of_it(place):
    async def test(world):
        first = await world.begin("sk-europe-key")
        stream = {**CHAT, "stream": True}
        second = await world.begin("sk-europe-key", stream)
        await world.sleep(25.0)
        assert not second.done()
        assert world.waiting("big") == 1
        first.cancel()
        world.clients[0].close()  # its slot is free
        await world.sleep(1.0)
        answer = await second
        assert answer.status == 200
        assert "x-forebay-spilled" not in answer.headers
        (place,) = world.gateway.desk.spills
        assert place.admission.failed_total == 1
        assert place.admission.streams == 0

    play(test, once(hangs, answers), answers, place, spill=FAR)


def test_a_sibling_that_is_dead_does_not_make_an_error_of_a_wait():
    async def test(world):
        first = await world.begin("sk-both-key")
        others = [await world.begin("sk-both-key") for _ in range(3)]
        await world.sleep(12.0)
        assert not any(task.done() for task in others)
        first.cancel()
        world.clients[0].close()
        await world.sleep(1.0)
        assert [(await task).status for task in others] == [200, 200, 200]

    play(test, once(hangs, answers), resets)


def test_a_client_that_leaves_while_it_is_spilled_frees_the_place():
    async def test(world):
        await world.begin("sk-europe-key")
        await world.begin("sk-europe-key")
        await world.sleep(12.0)
        (place,) = world.gateway.desk.spills
        assert place.admission.streams == 1
        world.clients[-1].close()
        await world.sleep(0.5)
        assert place.admission.streams == 0

    play(test, hangs, answers, hangs, spill=FAR)


def test_a_whole_answer_that_hangs_where_it_was_spilled_is_ended_by_its_tiers_total():
    """Nothing of it comes before its end, so only its length can tell that it hangs."""

    async def test(world):
        await world.begin("sk-both-key", {**CHAT, "stream": True})
        second = await world.begin("sk-europe-key")
        await world.sleep(10.5 + TOTAL_S)
        assert not second.done()
        (place,) = world.gateway.desk.spills
        assert place.admission.streams == 1
        await world.sleep(3.0)
        answer = await second
        assert (answer.status, answer.json()["error"]["code"]) == (504, "engine_timeout")
        assert (place.admission.streams, place.admission.failed_total) == (0, 1)

    play(test, hangs, answers, hangs, spill=FAR)
