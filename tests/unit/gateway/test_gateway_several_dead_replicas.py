"""A replica dies under a request whose gateway has no other: another gateway's is asked, once, with all that the request came with."""

import asyncio
import json

import msgspec
import pytest
from gateway_values import CAPACITY
from several_gateways import BODY, CHAT, several
from test_gateway_several import dies_at_once, engines, hangs, streams, whole

from forebay.spec.types import Limits

LARGE = {**BODY, "messages": [{"role": "user", "content": "x" * 300_000}]}
SMALL_LIMIT = Limits(body_bytes_max=64 * 1024)


def counted(world):
    """Requests that each gateway has counted for the ledger."""
    return {name: gateway.usage._number for name, gateway in world.gateways.items()}


@pytest.mark.parametrize("stream", [False, True])
def test_what_an_engine_began_nothing_of_is_forwarded_where_its_gateway_has_no_other_replica(stream):
    async def test(world):
        world.lease("a", "b")
        body = {**BODY, "stream": stream}
        answer = await world.ask("a", body)
        assert (answer.status, answer.headers["x-forebay-gateway"]) == (200, "b")
        assert not stream or answer.events()[-1] == "[DONE]"
        assert engines(world) == [1, 1]
        seen = world.engines[1].seen[0].json()
        assert {name: seen[name] for name in body} == body, "as the client sent it"
        assert (world.outcomes("a"), world.outcomes("b")) == ({"moved": 1}, {"completed": 1})
        assert (world.meter("a").arrived, world.meter("b").arrived, world.meter("a").retries) == (1, 0, 1)
        assert counted(world) == {"a": 0, "b": 1}
        assert list(world.gateways["a"].shown.forwarded()) == [("chat", "b", 1)]

    several(test, dies_at_once, streams if stream else whole)


def test_an_engine_that_is_not_there_is_no_end_either():
    async def test(world):
        world.lease("a", "b")
        world.engines[0].stop()
        answer = await world.ask("a")
        assert (answer.status, answer.headers["x-forebay-gateway"]) == (200, "b")

    several(test, whole, whole)


def test_the_record_tells_which_replica_failed_it():
    async def test(world):
        world.lease("a", "b")
        await world.ask("a", headers={"x-request-id": "mine"})
        record = world.gateways["a"].records.unusual[-1]
        assert (record.tried, record.left, record.replica, record.outcome) == (("r0",), ("chat",), "b", "completed")

    several(test, dies_at_once, whole)


def test_a_stream_that_does_not_begin_is_forwarded_where_another_gateway_has_room():
    async def test(world):
        world.lease("a", "b")
        client = await world.client("a")
        client.send(CHAT, {**BODY, "stream": True})
        pool = world.gateways["a"].desk.pools["chat"]
        due_s = pool.firsts.timeout_s(world.meter("a").tier.ttft_s)
        for _ in range(int(due_s) + 2):
            await world.sleep(1.0)
            world.heard("a")
            world.heard("b")
        assert (await client.read()).headers["x-forebay-gateway"] == "b"
        assert engines(world) == [1, 1]

    several(test, hangs, streams)


def test_no_other_gateway_is_asked_beyond_the_budget_of_second_tries():
    async def test(world):
        world.lease("a", "b")
        world.gateways["a"].retries._held = 0.0
        answer = await world.ask("a")
        assert (answer.status, answer.json()["error"]["code"]) == (503, "engines_failed")
        assert engines(world) == [1, 0]
        assert counted(world) == {"a": 1, "b": 0}

    several(test, dies_at_once, whole)


async def dies_after_three_seconds(seen, answer):
    await asyncio.sleep(3.0)
    answer.cut()


def test_what_is_left_of_the_deadline_goes_along():
    async def test(world):
        world.lease("a", "b", capacity=msgspec.structs.replace(CAPACITY, sequences=1))
        (await world.client("b")).send(CHAT, BODY)
        answer = await world.ask("a", headers={"x-forebay-deadline": "5000"})
        assert (answer.status, answer.json()["error"]["code"]) == (429, "queue_wait_expired")
        assert 4.5 < world.clock.now_s() < 6.0, "three seconds went by before it was forwarded"

    several(test, dies_after_three_seconds, hangs)


def test_what_no_client_waits_for_any_more_is_not_forwarded():
    async def test(world):
        world.lease("a", "b")
        answer = await world.ask("a", headers={"x-forebay-deadline": "2000"})
        assert (answer.status, answer.json()["error"]["code"]) == (503, "no_replicas")
        assert engines(world) == [1, 0]

    several(test, dies_after_three_seconds, whole)


def test_what_the_other_gateway_says_is_the_answer():
    async def refuses(seen, answer):
        answer.json(400, {"error": {"message": "no", "type": "invalid_request_error", "param": "n", "code": "its own"}})

    async def test(world):
        world.lease("a", "b")
        answer = await world.ask("a")
        assert (answer.status, answer.json()["error"]["code"]) == (400, "its own")
        assert counted(world) == {"a": 0, "b": 1}

    several(test, dies_at_once, refuses)


def test_where_every_replica_of_every_gateway_dies_each_is_asked_once_and_the_client_is_told():
    async def test(world):
        world.lease("a", "b")
        answer = await world.ask("a")
        assert (answer.status, answer.json()["error"]["code"]) == (503, "no_replicas")
        assert "retry-after" in answer.headers
        assert engines(world) == [1, 1], "and not sent back"
        assert counted(world) == {"a": 0, "b": 1}

    several(test, dies_at_once, dies_at_once)


def test_where_the_other_gateway_is_gone_too_the_dead_replica_is_not_asked_again():
    async def test(world):
        world.lease("a", "b")
        await world.gateways["b"].close()
        answer = await world.ask("a")
        assert (answer.status, answer.json()["error"]["code"]) == (503, "no_replicas")
        assert "retry-after" in answer.headers
        assert engines(world) == [1, 0]
        assert counted(world)["a"] == 1
        assert world.outcomes("a") == {"moved": 1, "shed": 1}

    several(test, dies_at_once, whole)


async def dies_in_a_second(seen, answer):
    await asyncio.sleep(1.0)
    answer.cut()


def test_what_comes_home_goes_to_a_replica_that_has_not_failed_it():
    async def test(world):
        world.lease("a", "b", "b")
        client = await world.client("a")
        client.send(CHAT, BODY)
        await world.sleep(1.5)
        assert engines(world) == [1, 1, 0] or engines(world) == [1, 0, 1]
        world.lease("a", "b", "a", to="a")  # one more meanwhile
        for connection in list(world.gateways["b"].servers[1].connections):
            connection.abort()
        answer = await client.read()
        assert (answer.status, "x-forebay-gateway" in answer.headers) == (200, False)
        assert answer.headers["x-forebay-replica"] == "r2"
        assert len(world.engines[0].seen) == 1

    asked = []

    async def hangs_at_first(seen, answer):
        asked.append(seen)
        await (hangs if len(asked) == 1 else whole)(seen, answer)

    several(test, dies_in_a_second, hangs_at_first, hangs_at_first)


def test_a_client_that_leaves_after_it_was_forwarded_frees_all():
    async def test(world):
        world.lease("a", "b")
        client = await world.client("a")
        client.send(CHAT, BODY)
        await world.sleep(0.2)
        assert (world.inside(), len(world.engines[1].open)) == ({"a": 1, "b": 1}, 1)
        client.close()
        await world.sleep(0.2)
        assert (world.inside(), len(world.engines[1].open)) == ({"a": 0, "b": 0}, 0)

    several(test, dies_at_once, hangs)


def test_a_large_body_of_which_nothing_was_taken_is_forwarded():
    async def counts(seen, answer):
        answer.json(200, {"bytes": len(seen.body)})

    async def test(world):
        world.lease("a", "b")
        world.engines[0].stop()
        answer = await world.ask("a", LARGE)
        assert answer.headers["x-forebay-gateway"] == "b"
        assert answer.json()["bytes"] == len(json.dumps(LARGE))

    several(test, whole, counts, limits=SMALL_LIMIT)


async def half_sent(world, **fields):
    """A client at a that has sent a large body's beginning, and the rest of it."""
    client = await world.client("a")
    data = json.dumps({"model": "llama", "max_tokens": 20, **fields, "messages": LARGE["messages"]}).encode()
    client.writer.write(b"POST %b HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(data)) + data[:200_000])
    await world.sleep(0.2)
    return client, data[200_000:]


def test_a_large_body_of_which_a_part_is_gone_is_refused_in_plain_words():
    async def test(world):
        world.lease("a", "b")
        client, _ = await half_sent(world)
        (connection,) = world.engines[0].open
        connection.abort()
        answer = await client.read()
        assert (answer.status, answer.json()["error"]["code"]) == (502, "engines_failed")
        assert "can't be sent again" in answer.json()["error"]["message"]
        assert world.engines[1].accepted == 0
        assert counted(world) == {"a": 1, "b": 0}

    several(test, whole, whole, limits=SMALL_LIMIT)


def test_a_large_body_that_is_on_its_way_is_not_given_up_because_another_gateway_has_room():
    """Its stream begins late: it can't be sent again, so there is nothing better than to wait."""

    async def late(seen, answer):
        await asyncio.sleep(40.0)
        await streams(seen, answer)

    async def test(world):
        world.lease("a", "b")
        client, rest = await half_sent(world, stream=True)
        client.writer.write(rest)
        for _ in range(45):
            await world.sleep(1.0)
            world.heard("a")
            world.heard("b")
        assert (await client.read()).events()[-1] == "[DONE]"
        assert engines(world) == [1, 0]

    several(test, late, streams, limits=SMALL_LIMIT)
