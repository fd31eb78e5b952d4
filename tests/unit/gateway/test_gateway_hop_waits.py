"""What a request has waited at the gateway that forwards it counts at the one that serves it: in its TTFT, its lateness, its longest wait."""

import asyncio
import json

import msgspec
import pytest
from gateway_values import CAPACITY, TEAMS
from several_gateways import BODY, CHAT, several

ONE_SLOT = msgspec.structs.replace(CAPACITY, sequences=1)
MAIL = {"x-api-key": "sk-mail"}
"""A team whose first content is promised in five seconds."""


async def streams(seen, answer):
    answer.stream()
    answer.role()
    answer.token("token")
    answer.event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}})
    answer.done()


async def hangs(seen, answer):
    await answer.gone.wait()


async def forwarded_after(world, seconds, body=None, headers=None, capacity=CAPACITY):
    """A request that waits at ``a``, where nobody has a replica, until ``b`` has one."""
    world.lease("")
    client = await world.client("a")
    client.send(CHAT, {**BODY, **(body or {})}, headers)
    await world.sleep(seconds)
    world.lease("b", capacity=capacity)
    return client


def test_what_waited_at_the_first_gateway_counts_as_waited_at_the_second():
    """A TTFT, a record and a longest queue that began with the hop said that a fleet of several gateways was faster than one."""

    async def test(world):
        answer = await (await forwarded_after(world, 0.6, {"stream": True}, {"x-request-id": "mine", "x-api-key": "sk-search"})).read()
        assert answer.status == 200
        assert 600 <= int(answer.headers["x-forebay-queue-ms"]) < 1800
        await world.sleep(0.1)
        at_b = world.gateways["b"].records.of("search", b"mine")
        assert at_b.ttft_s >= at_b.queue_s >= 0.6
        (sent,) = world.engines[0].seen
        assert not {name for name in sent.headers if name.startswith(b"x-forebay")}

    several(test, streams, teams=TEAMS)


def test_a_ttft_that_was_missed_before_the_hop_is_missed_once():
    async def test(world):
        answer = await (await forwarded_after(world, 3.5, {"stream": True})).read()
        assert int(answer.headers["x-forebay-queue-ms"]) >= 3500
        missed = {name: world.meter(name).ttft_missed for name in "ab"}
        assert (sum(missed.values()), sum(world.meter(name).ttft_met for name in "ab")) == (1, 0), missed

    several(test, streams)


@pytest.mark.parametrize(("headers", "least_s", "most_s"), [({}, 29.0, 31.5), ({"x-forebay-deadline": "9000"}, 7.0, 9.5)])
def test_neither_the_tiers_longest_wait_nor_the_clients_deadline_begins_again_at_the_second_gateway(headers, least_s, most_s):
    async def test(world):
        world.lease("b", capacity=ONE_SLOT)
        (await world.client("b")).send(CHAT, BODY)
        await world.sleep(0.1)
        begun_s = world.clock.now_s()
        client = await forwarded_after(world, 6.0, None, headers, ONE_SLOT)
        answer = await client.read()
        assert (answer.status, answer.json()["error"]["code"]) == (429, "queue_wait_expired")
        assert answer.headers["x-forebay-gateway"] == "b"
        assert least_s <= world.clock.now_s() - begun_s <= most_s

    several(test, hangs)


def test_what_was_late_before_the_hop_is_late_after_it():
    """It goes behind what can still be in time, as if it had waited here."""

    answered = []

    async def first_takes_long(seen, answer):
        await asyncio.sleep(0.1 if answered else 9.0)
        answered.append(json.loads(seen.body)["max_tokens"])
        answer.json(200, {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})

    async def test(world):
        world.lease("b", capacity=ONE_SLOT)
        (await world.client("b")).send(CHAT, {**BODY, "max_tokens": 1}, MAIL)
        await world.sleep(0.1)
        late = await forwarded_after(world, 6.0, {"max_tokens": 2}, MAIL, ONE_SLOT)
        await world.sleep(1.5)
        assert world.inside() == {"a": 1, "b": 2}
        fresh = await world.client("b")
        fresh.send(CHAT, {**BODY, "max_tokens": 3}, MAIL)
        assert [(await client.read()).status for client in (fresh, late)] == [200, 200]
        assert answered == [1, 3, 2]

    several(test, first_takes_long, teams=TEAMS)


@pytest.mark.parametrize("said", ["12000", "1e9", "-5", "99999999999", "1, 2", ""])
def test_a_client_that_says_how_long_it_has_waited_is_not_believed(said):
    async def test(world):
        world.lease("b")
        told = {"x-forebay-hop-waited": said, "x-forebay-hop-late": "1"}
        for name in "ab":
            answer = await world.ask(name, {"stream": True}, told)
            assert (answer.status, answer.headers["x-forebay-queue-ms"]) == (200, "0")
        assert (world.meter("b").ttft_met, world.meter("b").ttft_missed) == (2, 0)

    several(test, streams)
