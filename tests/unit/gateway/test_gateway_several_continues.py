"""A stream whose replica dies under it, at a gateway that has no other: the rest comes from another gateway's, and is counted once."""

import asyncio

import msgspec
import pytest
from emulated_fleet import CHAT, COMPLETIONS, PROFILE, body, completion, errors, text, without_time
from several_gateways import Several

from forebay.emulator.engine_server import EngineServer
from forebay.emulator.faults import Fault, Kind
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Model, Pool, Spec, Team, TeamLimits
from forebay.testing.loop import network, run

USAGE = {"stream_options": {"include_usage": True}}
SPEC = Spec((Pool("chat", "llama", EngineKind("attach"), PROFILE),), (Model("llama", 2048),), DEFAULT_TIERS)
KEYED = {"authorization": "Bearer sk-limited"}


class Emulated(Several):
    """Gateways ``a`` and ``b`` over emulated engines."""

    def __init__(self, spec, replicas):
        super().__init__(spec, ())
        self.engines = [EngineServer(PROFILE, "llama", self.clock, seed=number) for number in range(replicas)]
        self.urls = []

    async def start(self):
        for engine in self.engines:
            self.urls.append(f"http://127.0.0.1:{await engine.start()}")
            engine.url = self.urls[-1]
        for name, gateway in self.gateways.items():
            self.ports[name] = await gateway.start("127.0.0.1", 0)
            await gateway.take_hops_on(None)

    async def under_way(self, request, target=CHAT, headers=None, wait_s=0.3):
        task = asyncio.create_task(self.ask("a", request, headers, target))
        await asyncio.sleep(wait_s)
        return task

    def busy(self):
        return next(engine for engine in self.engines if engine.core.queued)


def emulated(test, *holders, spec=SPEC):
    async def main():
        network().latency_s = 0.0001
        world = Emulated(spec, len(holders))
        await world.start()
        world.lease(*holders)
        await test(world)
        await world.sleep(1.0)
        for client in world.clients:
            client.close()
        await world.sleep(1.0)
        assert world.inside() == {"a": 0, "b": 0}
        for gateway in world.gateways.values():
            assert gateway.held_ids.held_bytes == 0
            await gateway.close()
        for engine in world.engines:
            await engine.stop()

    run(main)


def billed(world):
    """Requests, prompt tokens and output tokens that each gateway has counted for the ledger."""
    return {name: gateway.usage._number for name, gateway in world.gateways.items()}


def tokens(world):
    return {name: (world.meter(name).prompt_tokens, world.meter(name).output_tokens) for name in "ab"}


@pytest.mark.parametrize("how", ["kill", "cut", "abort", "engine_dead"])
@pytest.mark.parametrize(("target", "request_"), [(CHAT, body(**USAGE)), (COMPLETIONS, completion(**USAGE))], ids=["chat", "completion"])
def test_a_cut_stream_goes_on_at_another_gateway_as_if_nothing_had_been(target, request_, how):
    async def test(world):
        undisturbed = await world.ask("a", request_, target=target)
        before = tokens(world)["a"]
        task = await world.under_way(request_, target)
        engine = world.busy()
        if how == "kill":
            engine.die(1, "kill -9")
        else:
            engine.inject(Fault(Kind(how)))
        cut = await task
        assert cut.complete
        assert errors(cut) == []
        assert text(cut) == text(undisturbed)
        assert without_time(cut)[-3:] == without_time(undisturbed)[-3:]
        assert len({event["id"] for event in cut.events() if event != "[DONE]"}) == 1
        assert (world.outcomes("a"), world.outcomes("b")) == ({"completed": 2}, {})
        assert tokens(world) == {"a": (2 * before[0], 2 * before[1]), "b": (0, 0)}, "as the other, and once"
        assert billed(world) == {"a": 2, "b": 0}
        assert (world.meter("a").continued, world.meter("a").arrived, world.meter("b").arrived) == (1, 2, 0)
        assert list(world.gateways["a"].shown.forwarded()) == [("chat", "b", 1)]
        record = world.gateways["a"].records.unusual[-1]
        assert (record.tried, record.left, record.replica, record.outcome, record.continued) == (("r0",), ("chat",), "b", "completed", 1)

    emulated(test, "a", "b")


def test_its_client_leaves_and_it_is_counted_where_it_came_in():
    async def test(world):
        client = await world.client("a")
        client.send(CHAT, body(200))
        await asyncio.sleep(0.5)
        world.engines[0].die(1, "kill -9")
        await asyncio.sleep(0.5)
        assert world.engines[1].core.queued == 1
        client.close()
        await world.sleep(1.0)
        assert world.engines[1].core.queued == 0
        assert (world.outcomes("a"), world.outcomes("b")) == ({"client_gone": 1}, {})
        prompt, output = tokens(world)["a"]
        assert 80 <= output <= 110, "of both parts"
        assert billed(world) == {"a": 1, "b": 0}
        assert prompt > 0

    emulated(test, "a", "b")


def test_where_it_goes_on_its_replica_dies_too_and_the_next_one_there_takes_it():
    async def test(world):
        task = await world.under_way(body(120, **USAGE))
        world.engines[0].die(1, "kill -9")
        await asyncio.sleep(0.3)
        world.busy().die(1, "kill -9")
        cut = await task
        assert cut.complete
        assert errors(cut) == []
        assert len(text(cut).split()) == 120
        assert billed(world) == {"a": 1, "b": 0}
        assert tokens(world)["a"][1] == 120

    emulated(test, "a", "b", "b")


def test_where_nobody_can_go_on_it_ends_with_an_error_event_and_is_counted_once():
    async def test(world):
        task = await world.under_way(body(120))
        world.engines[0].die(1, "kill -9")
        await asyncio.sleep(0.3)
        world.busy().die(1, "kill -9")
        cut = await task
        assert [error["code"] for error in errors(cut)] == ["stream_truncated"]
        assert (world.outcomes("a"), world.outcomes("b")) == ({"truncated": 1}, {})
        assert billed(world) == {"a": 1, "b": 0}

    emulated(test, "a", "b")


def test_what_would_not_be_exact_goes_nowhere():
    async def test(world):
        task = await world.under_way(body(seed=7))
        world.busy().die(1, "kill -9")
        assert [error["code"] for error in errors(await task)] == ["stream_truncated"]
        assert list(world.gateways["a"].shown.forwarded()) == []

    emulated(test, "a", "b")


def test_an_older_gateway_would_count_it_too_and_is_not_asked():
    async def test(world):
        world.continues = False
        world.heard("a")
        task = await world.under_way(body())
        world.busy().die(1, "kill -9")
        assert [error["code"] for error in errors(await task)] == ["stream_truncated"]
        assert billed(world) == {"a": 1, "b": 0}

    emulated(test, "a", "b")


def test_a_clients_own_word_that_it_continues_means_nothing():
    async def test(world):
        answer = await world.ask("a", body(10), {"x-forebay-hop-continues": "1"})
        assert answer.complete
        assert billed(world) == {"a": 1, "b": 0}
        assert world.outcomes("a") == {"completed": 1}

    emulated(test, "a", "b")


def test_its_teams_limits_take_it_once():
    team = Team("limited", (("sk-limited", "interactive"),), limits=TeamLimits(requests_per_minute=2, requests_in_flight=1))

    async def test(world):
        task = await world.under_way(body(), headers=KEYED)
        world.busy().die(1, "kill -9")
        assert errors(await task) == []
        quotas = {name: gateway.desk.quotas["limited"] for name, gateway in world.gateways.items()}
        assert {name: (quota.let_in, quota.in_flight) for name, quota in quotas.items()} == {"a": (1, 0), "b": (0, 0)}

    emulated(test, "a", "b", spec=msgspec.structs.replace(SPEC, teams=(team,)))
