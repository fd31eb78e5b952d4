"""Where forwarding meets what else a gateway does: a new configuration, the ledger, a gateway that ends."""

import asyncio

import msgspec
import pytest
from gateway_values import SPEC, TEAMS
from several_gateways import BODY, CHAT, several
from test_gateway_several import hangs, whole

from forebay.domain.usage import COUNT_NAMES
from forebay.gateway.usage import UsageBook
from forebay.ports.journal import NoJournal
from forebay.spec.types import Model

NEW_KEY = {"authorization": "Bearer sk-new"}


def with_a_new_key():
    search = msgspec.structs.replace(TEAMS[0], keys=(*TEAMS[0].keys, ("sk-new", "interactive")))
    return msgspec.structs.replace(SPEC, teams=(search, *TEAMS[1:]))


def counted(world):
    """What each gateway has counted for the ledger: pool, and numbers by name."""
    return {
        name: [
            (key[3], {kind: count for kind, count in zip(COUNT_NAMES, sums, strict=True) if count}) for key, sums in gateway.usage.shown()
        ]
        for name, gateway in world.gateways.items()
    }


def test_a_key_that_the_other_gateway_does_not_know_yet_is_no_refusal():
    """A new configuration is taken by one gateway a moment before the other; who asks in between waits at home instead."""

    async def test(world):
        world.lease("b")
        world.gateways["a"].reload(with_a_new_key())
        client = await world.client("a")
        client.send(CHAT, BODY, NEW_KEY)
        await world.sleep(0.5)
        assert world.inside() == {"a": 1, "b": 0}
        world.lease("a", to="a")
        assert (await client.read()).status == 200

    several(test, whole, teams=TEAMS)


def test_an_alias_that_the_other_gateway_does_not_know_yet_is_no_refusal():
    async def test(world):
        world.lease("b")
        gateway = world.gateways["a"]
        gateway.reload(msgspec.structs.replace(SPEC, models=(Model("llama", aliases=("quick",)),)))
        client = await world.client("a")
        client.send(CHAT, {**BODY, "model": "quick"})
        await world.sleep(0.5)
        assert world.inside() == {"a": 1, "b": 0}
        world.lease("a", to="a")
        assert (await client.read()).status == 200

    several(test, whole, models=(Model("llama"),))


@pytest.mark.parametrize("status", [400, 404])
def test_what_an_engine_at_the_other_gateway_refuses_is_final(status):
    async def refuses(seen, answer):
        answer.json(status, {"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": "its own"}})

    async def test(world):
        world.lease("b")
        answer = await world.ask("a")
        assert (answer.status, answer.json()["error"]["code"]) == (status, "its own")

    several(test, refuses)


def test_a_team_that_is_removed_while_its_requests_are_forwarded_keeps_them():
    async def test(world):
        world.lease("b")
        client = await world.client("a")
        client.send(CHAT, BODY, {"authorization": "Bearer sk-search"})
        await world.sleep(0.1)
        without = msgspec.structs.replace(SPEC, teams=TEAMS[1:])
        for gateway in world.gateways.values():
            gateway.reload(without)
        assert (await client.read()).status == 200
        assert (await world.ask("a", headers={"authorization": "Bearer sk-search"})).status == 401

    async def slow(seen, answer):
        await asyncio.sleep(1.0)
        await whole(seen, answer)

    several(test, slow, teams=TEAMS)


def test_what_ends_in_a_refusal_after_other_gateways_failed_it_is_counted_where_it_came_in():
    async def test(world):
        world.lease("b")
        gateway = world.gateways["a"]
        await world.gateways["b"].close()
        client = await world.client("a")
        client.send(CHAT, BODY)
        await world.sleep(0.5)
        (call,) = gateway.desk.pools["chat"].calls.values()
        # It went to a place and came home once, as it would have after a gateway died; now it is sent away again, in vain.
        call._left = ("chat", "chat/c", "chat")
        place = next(place for place in gateway.desk.spills if place.peer == "b")
        place.admission._held_until_s = 0.0
        call._forward(place, world.clock.now_s())
        answer = await client.read()
        assert answer.status in (429, 503)
        shed = {outcome: count for outcome, count in world.outcomes("a").items() if outcome == "shed"}
        assert shed == {"shed": 1}
        ((pool, counts),) = counted(world)["a"]
        assert (pool, counts["shed"]) == ("chat", 1)

    several(test, whole)


@pytest.mark.parametrize("stream", [True, False])
def test_a_gateway_that_ends_while_it_forwards_tells_and_counts_once(stream):
    async def test(world):
        world.lease("b")
        client = await world.client("a")
        client.send(CHAT, {**BODY, "stream": stream})
        await world.sleep(0.1)
        await world.gateways["a"].drain()
        answer = await client.read()
        assert (answer.status, answer.json()["error"]["code"]) == (503, "shutting_down")
        await world.sleep(3.0)  # b asks a, in vain, before it counts
        numbers = {name: gateway.usage._number for name, gateway in world.gateways.items()}
        assert numbers == {"a": 0, "b": 1}, "the engine's work is metered where it was done, and nowhere else"
        assert world.outcomes("a").get("shed") == 1, "what its client was told is told where that came in"

    several(test, hangs, limits=msgspec.structs.replace(SPEC.limits, drain_s=1.0))


def test_a_stream_whose_gateway_was_killed_is_counted_by_the_one_that_forwarded_it():
    async def begins(seen, answer):
        answer.stream()
        for text in ("one", "two", "three"):
            answer.token(text)
        await asyncio.Event().wait()

    async def test(world):
        world.lease("b")
        client = await world.client("a")
        client.send(CHAT, {**BODY, "stream": True})
        await world.sleep(0.1)
        world.gateways["b"].usage = UsageBook("nobody", NoJournal("none"))  # as nothing is counted by who is dead
        for connection in list(world.gateways["b"].servers[1].connections):
            connection.abort()
        events = (await client.read()).events()
        assert events[-2]["error"]["code"] == "stream_truncated"
        await world.sleep(0.1)
        ((pool, counts),) = counted(world)["a"]
        assert (pool, counts["truncated"], counts["output_tokens"]) == ("chat", 1, 3)
        assert world.outcomes("a") == {"moved": 1, "truncated": 1}

    several(test, begins)
