"""A request's record, asked for at the address that all gateways share: whichever of them is asked, the answer is the same."""

import asyncio

import msgspec
import pytest
from gateway_values import TEAMS
from several_gateways import CHAT, KEY, several
from test_gateway_several import hangs, whole

from forebay.domain.roster import Heard
from forebay.gateway import elsewhere
from forebay.gateway.elsewhere import ASK_REAL_S

MINE = "/forebay/v1/requests/mine"
SEARCH = {"authorization": "Bearer sk-search"}
MAIL = {"authorization": "Bearer sk-mail"}


async def told(world, name, headers=SEARCH, hops=False):
    return await (await world.client(name, hops)).ask(MINE, None, headers)


@pytest.mark.parametrize("asked", ["a", "b"])
def test_a_record_is_told_by_whichever_gateway_is_asked(asked):
    """Records are each process's own: of two gateways behind one address, half of the questions were answered 404."""

    async def test(world):
        world.lease("a", "b")
        assert (await world.ask("a", None, {**SEARCH, "x-request-id": "mine"})).status == 200
        answer = await told(world, asked)
        assert answer.status == 200
        assert (answer.json()["id"], answer.json()["team"], answer.json()["outcome"]) == ("mine", "search", "completed")

    several(test, whole, whole, teams=TEAMS)


def test_of_a_request_that_was_forwarded_every_gateway_tells_what_became_of_it():
    async def test(world):
        world.lease("b")
        assert (await world.ask("a", None, {**SEARCH, "x-request-id": "mine"})).status == 200
        answers = [(await told(world, name)).json() for name in "ab"]
        assert answers[0] == answers[1]
        assert (answers[0]["pool"], answers[0]["replica"]) == ("chat", "r0")

    several(test, whole, teams=TEAMS)


def test_a_request_that_runs_is_told_of_by_the_other_gateway_too():
    async def test(world):
        world.lease("a", "b")
        client = await world.client("a")
        client.send(CHAT, {"model": "llama", "messages": []}, {**SEARCH, "x-request-id": "mine"})
        await world.sleep(1)
        assert (await told(world, "b")).json()["state"] == "running"

    several(test, hangs, hangs, teams=TEAMS)


def test_another_teams_request_is_none_there_either():
    async def test(world):
        world.lease("a", "b")
        await world.ask("a", None, {**SEARCH, "x-request-id": "mine"})
        assert [(await told(world, name, MAIL)).status for name in "ab"] == [404, 404]
        assert [(await told(world, name, {})).status for name in "ab"] == [401, 401]

    several(test, whole, whole, teams=TEAMS)


def test_a_gateway_that_is_asked_by_another_asks_nobody_in_turn():
    async def test(world):
        world.lease("a", "b")
        await world.ask("a", None, {**SEARCH, "x-request-id": "mine"})
        assert (await told(world, "b", hops=True)).status == 404
        assert (await told(world, "a", hops=True)).status == 200

    several(test, whole, whole, teams=TEAMS)


class Silent:
    """Takes connections and says nothing."""

    def __init__(self, world):
        self.world, self.writers = world, []

    async def instead_of(self, name):
        """The others take it for the gateway of that name."""
        self.server = await asyncio.start_server(lambda _, writer: self.writers.append(writer), "127.0.0.1", 0)
        other = self.world.gateways[name]
        self.port, other.url = other.url, f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        for each in self.world.gateways:
            self.world.heard(each)

    def close(self):
        for writer in self.writers:
            writer.close()
        self.server.close()


def test_where_the_other_gateway_is_silent_the_client_is_told_so_within_a_second():
    """404 would say that there is no such request, which nobody knows."""

    async def test(world):
        world.lease("a", "b")
        silent = Silent(world)
        await silent.instead_of("b")
        begun_s = world.clock.now_s()
        answer = await told(world, "a")
        assert (answer.status, answer.json()["error"]["code"]) == (503, "gateway_silent")
        assert "1 of the other gateways did not answer" in answer.json()["error"]["message"]
        assert "retry-after" in answer.headers
        assert world.clock.now_s() - begun_s <= ASK_REAL_S + 0.1
        silent.close()

    several(test, whole, whole, teams=TEAMS)


def test_what_is_known_here_is_told_though_the_other_is_silent():
    async def test(world):
        world.lease("a", "b")
        await world.ask("a", None, {**SEARCH, "x-request-id": "mine"})
        silent = Silent(world)
        await silent.instead_of("b")
        assert (await told(world, "a")).json()["outcome"] == "completed"
        silent.close()

    several(test, whole, whole, teams=TEAMS)


def test_a_gateway_that_the_controller_hears_no_more_is_not_held_for_silent():
    async def test(world):
        world.lease("a", "b")
        silent = Silent(world)
        await silent.instead_of("b")
        world.gateways["a"].peering.heard(Heard(world.clock.now_s(), KEY, ()))
        assert (await told(world, "a")).status == 404
        silent.close()

    several(test, whole, whole, teams=TEAMS)


def test_a_client_that_leaves_while_others_are_asked_leaves_nothing():
    async def test(world):
        world.lease("a", "b")
        silent = Silent(world)
        await silent.instead_of("b")
        client = await world.client("a")
        client.send(MINE, None, SEARCH)
        await world.sleep(0.5)
        assert len(world.gateways["a"]._pages.elsewhere.live) == 1
        client.close()
        await world.sleep(0.1)
        assert not world.gateways["a"]._pages.elsewhere.live
        silent.close()

    several(test, whole, whole, teams=TEAMS)


def test_only_so_many_questions_are_put_to_others_at_a_time(monkeypatch):
    monkeypatch.setattr(elsewhere, "ASKING_MAX", 1)

    async def test(world):
        world.lease("a", "b")
        silent = Silent(world)
        await silent.instead_of("b")
        first, second = [await world.client("a") for _ in range(2)]
        first.send(MINE, None, SEARCH)
        await world.sleep(0.1)
        begun_s = world.clock.now_s()
        assert (await second.ask(MINE, None, SEARCH)).status == 503
        assert world.clock.now_s() - begun_s < 0.1
        assert (await first.read()).status == 503
        silent.close()

    several(test, whole, whole, teams=TEAMS)


def test_of_a_gateway_whose_address_is_none_is_said_that_it_is_silent():
    """Its client waited for ever, and was one of those for whom others are asked for good."""

    async def test(world):
        world.lease("a", "b")
        peering = world.gateways["a"].peering
        peering.urls["b"] = "b.example:8080"
        answer = await asyncio.wait_for(told(world, "a"), 5.0)
        assert (answer.status, answer.json()["error"]["code"]) == (503, "gateway_silent")
        assert not world.gateways["a"]._pages.elsewhere.live
        assert await peering._ask_counts("b", b"[]") is None
        await peering._ask_one("b", peering.urls["b"])

    several(test, whole, whole, teams=TEAMS)


def test_a_gateway_that_ends_tells_those_that_wait_for_others_word():
    async def test(world):
        world.lease("a", "b")
        silent = Silent(world)
        await silent.instead_of("b")
        client = await world.client("a")
        client.send(MINE, None, SEARCH)
        await world.sleep(0.1)
        gateway = world.gateways["a"]
        gateway.limits = msgspec.structs.replace(gateway.limits, drain_s=0.2)
        ends = asyncio.ensure_future(gateway.drain())
        answer = await client.read()
        assert (answer.status, answer.json()["error"]["code"]) == (503, "shutting_down")
        assert not gateway.direct
        await ends
        silent.close()

    several(test, whole, whole, teams=TEAMS)


def test_a_gateway_that_is_alone_answers_at_once(world, team_spec):
    async def test(front):
        answer = await front.ask(None, SEARCH, MINE)
        assert (answer.status, answer.json()["error"]["code"]) == (404, "request_not_found")

    world(test, whole, spec=team_spec)
