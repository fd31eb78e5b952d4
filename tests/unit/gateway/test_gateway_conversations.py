"""A conversation whose answers one engine keeps goes on there, by that replica's permit, or is told honestly that it can't; nobody else is
blamed, and no other team sees it."""

import asyncio

import msgspec
import pytest
from gateway_values import CAPACITY, SPEC, TEAMS
from several_gateways import several

from forebay.admission.outcomes import Refusal
from forebay.domain.roster import Roster, RosterPool, RosterReplica
from forebay.gateway import conversations
from forebay.gateway.direct import HEAD_BEFORE_NEXT_S
from forebay.gateway.holders import Holder
from forebay.spec.types import EngineKind, Limits, Model, Pool

RESPONSES = "/v1/responses"
FIRST = {"model": "llama", "input": "a"}
USAGE = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
LOST, OUT = "previous_response_not_found", "previous_response_unavailable"
SEARCH, MAIL = {"authorization": "Bearer sk-search"}, {"authorization": "Bearer sk-mail"}
TEAM_SPEC = msgspec.structs.replace(SPEC, teams=TEAMS)


def keeper(own, until=None, status=200):
    """An engine that keeps ``own`` and knows no other; it waits for ``until`` where it goes on from it, and answers ``status`` then."""

    async def script(seen, answer):
        if not seen.line.startswith(b"POST "):
            found = own.encode() in seen.line
            answer.json(200 if found else 404, {"id": own} if found else {"error": {"message": "not found", "code": 404}})
            return
        before = seen.json().get("previous_response_id")
        if before and until is not None:
            await until.wait()
        if before not in (None, own):
            answer.json(404, {"error": {"message": f"Response with id '{before}' not found.", "type": "NotFoundError", "code": 404}})
        elif before and status != 200:
            answer.json(status, {"error": {"message": "broken"}})
        else:
            answer.json(200, {"id": own, "object": "response", "status": "completed", "output": [], "usage": USAGE})

    return script


def going_on(own, **more):
    return {**FIRST, "previous_response_id": own, **more}


async def begun(front, at=1, headers=None):
    """The id of an answer that the ``at``-th engine keeps, so that its gateway knows."""
    while front.gateway.holders.find(f"resp_{at}") is None:
        await front.ask(FIRST, headers, RESPONSES)
    return f"resp_{at}"


def told(answer):
    return answer.status, answer.json()["error"]["code"]


def chats(engine):
    return sum(seen.line.startswith(b"POST ") for seen in engine.seen)


# -- the replica that keeps it -------------------------------------------------------------------------------------------------


def test_a_conversation_is_admitted_for_the_replica_that_keeps_it(world):
    """Its permit was another's, and so were the header that named it and its record."""
    until = asyncio.Event()

    async def test(front):
        own = await begun(front)
        before = [chats(engine) for engine in front.engines]
        client = await front.client()
        client.send(RESPONSES, going_on(own), {"x-request-id": "goes-on"})
        await front.sleep(0.1)
        held = {one.replica: one.streams for load in front.gateway.snapshot().pools for one in load.replicas}
        assert held == {"r0": 0, "r1": 1, "r2": 0}
        assert (await front.ask(None, target="/forebay/v1/requests/goes-on")).json()["replica"] == "r1"
        until.set()
        answer = await client.read()
        assert (answer.status, answer.headers["x-forebay-replica"]) == (200, "r1")
        assert [chats(engine) - count for engine, count in zip(front.engines, before, strict=True)] == [0, 1, 0]

    world(test, keeper("resp_0", until), keeper("resp_1", until), keeper("resp_2", until))


def test_it_waits_for_that_replicas_room_beside_another_that_is_idle(world, one_slot):
    until = asyncio.Event()

    async def test(front):
        own = await begun(front)
        clients = [await front.client() for _ in range(3)]
        for client in clients:
            client.send(RESPONSES, going_on(own))
        await front.sleep(1.0)
        assert (front.permits, front.waiting) == (1, 2)
        answer = await front.ask(FIRST, target=RESPONSES)
        assert (answer.status, answer.headers["x-forebay-replica"]) == (200, "r0"), "the idle one is nobody's"
        until.set()
        assert [(await client.read()).headers["x-forebay-replica"] for client in clients] == ["r1"] * 3

    world(test, keeper("resp_0"), keeper("resp_1", until), capacity=one_slot)


def test_what_was_said_before_counts_with_what_is_sent(world):
    """A word that goes on from a book was admitted as a word."""
    until = asyncio.Event()

    async def test(front):
        own = await begun(front)
        plain = front.gateway.desk.estimator.shape("anonymous", "llama", 60, None, 1, 8192).prompt_tokens
        client = await front.client()
        client.send(RESPONSES, going_on(own), {"x-request-id": "goes-on"})
        await front.sleep(0.1)
        said = USAGE["input_tokens"] + USAGE["output_tokens"]
        record = (await front.ask(None, target="/forebay/v1/requests/goes-on")).json()
        assert said < record["estimated_prompt_tokens"] <= said + plain + 20
        front.gateway.holders.told(own, 9000)
        answer = await front.ask(going_on(own), target=RESPONSES)
        assert told(answer) == (400, "context_length_exceeded"), "with all of it, it is longer than the context"
        until.set()
        assert (await client.read()).status == 200

    world(test, keeper("resp_0"), keeper("resp_1", until))


def test_a_dead_replicas_conversation_ejects_nobody_else(world):
    """Each of its requests was sent there by another replica's permit, and that one was ejected for it."""

    async def test(front):
        own = await begun(front)
        front.engines[1].stop()
        for _ in range(5):
            answer = await front.ask(going_on(own), target=RESPONSES)
            assert told(answer) == (503, OUT)
            assert 1 <= int(answer.headers["retry-after"]) <= 10
        assert front.gateway.desk.pools["chat"].outliers.out == ["r1"]
        assert (await front.ask(FIRST, target=RESPONSES)).status == 200
        assert [event.message[:2] for event in front.sink.events if event.kind == "replica_ejected"] == ["r1"]
        meter = front.gateway.desk.pools["chat"].meters["interactive"]
        assert (meter.shed[Refusal.HOLDER_OUT], meter.retries) == (4, 0), "the first was sent, and no other is tried"

    world(test, keeper("resp_0"), keeper("resp_1"))


def test_a_replica_that_fails_its_conversations_is_the_one_that_is_blamed(world):
    async def test(front):
        own = await begun(front)
        before = chats(front.engines[0])
        for _ in range(3):
            assert told(await front.ask(going_on(own), target=RESPONSES)) == (503, OUT)
        assert front.gateway.desk.pools["chat"].outliers.out == ["r1"]
        assert chats(front.engines[0]) == before, "nobody else was asked"
        seen = chats(front.engines[1])
        assert told(await front.ask(going_on(own), target=RESPONSES)) == (503, OUT)
        assert chats(front.engines[1]) == seen, "one that is ejected is sent none"

    world(test, keeper("resp_0"), keeper("resp_1", status=500))


def test_one_that_is_ejected_goes_on_once_it_is_back(world):
    async def test(front):
        own = await begun(front)
        front.engines[1].stop()
        assert told(await front.ask(going_on(own), target=RESPONSES)) == (503, OUT)
        await front.engines[1].start(int(front.engines[1].url.rpartition(":")[2]))
        await front.sleep(10.0)
        assert (await front.ask(going_on(own), target=RESPONSES)).headers["x-forebay-replica"] == "r1"

    world(test, keeper("resp_0"), keeper("resp_1"))


def test_a_conversation_whose_replica_has_left_is_lost_and_no_other_is_asked(world):
    async def test(front):
        own = await begun(front)
        front.route(front.engines[0])
        before = len(front.engines[0].seen)
        answer = await front.ask(going_on(own), target=RESPONSES)
        assert told(answer) == (404, LOST)
        assert answer.json()["error"]["param"] == "previous_response_id"
        assert (await front.ask(None, target=f"{RESPONSES}/{own}")).status == 404
        assert len(front.engines[0].seen) == before

    world(test, keeper("resp_0"), keeper("resp_1"))


def test_those_that_wait_for_a_replica_are_told_when_it_leaves(world, one_slot):
    until = asyncio.Event()

    async def test(front):
        own = await begun(front)
        clients = [await front.client() for _ in range(3)]
        for client in clients:
            client.send(RESPONSES, going_on(own))
        await front.sleep(0.1)
        front.route(front.engines[0])
        assert [told(await client.read()) for client in clients[1:]] == [(503, OUT)] * 2
        until.set()
        assert (await clients[0].read()).status == 200, "what runs there ends there"

    world(test, keeper("resp_0"), keeper("resp_1", until), capacity=one_slot)


def test_what_a_replica_that_stalls_was_to_go_on_with_is_told_at_once(world):
    until = asyncio.Event()

    async def test(front):
        own = await begun(front)
        client = await front.client()
        client.send(RESPONSES, going_on(own))
        await front.sleep(0.1)
        desk = front.gateway.desk
        desk._ejected(desk.pools["chat"], desk.pools["chat"].outliers.stalled("r1", "it stalls", front.clock.now_s()))
        assert told(await client.read()) == (503, OUT)

    world(test, keeper("resp_0"), keeper("resp_1", until))


def test_a_conversation_goes_on_in_another_pool_of_its_model_and_never_at_another_models_replica(world):
    """Looked for by its address alone, it was sent to another model's engine under a permit of this one's."""
    pools = (*SPEC.pools, Pool("more", "llama", EngineKind("attach")), Pool("small", "tiny", EngineKind("attach")))
    spec = msgspec.structs.replace(SPEC, pools=pools, models=(*SPEC.models, Model("tiny", 8192)))

    async def test(front):
        first, second, third = (RosterReplica(f"r{number}", engine.url, CAPACITY) for number, engine in enumerate(front.engines))
        pools = (RosterPool("chat", (first,)), RosterPool("more", (second,)), RosterPool("small", (third,)))
        front.gateway.apply(Roster(1, 9, 10.0, pools))
        for number, engine in enumerate(front.engines):
            front.gateway.holders.learn(f"resp_{number}", Holder(engine.url, "anonymous"))
        answer = await front.ask(going_on("resp_1"), target=RESPONSES)
        assert (answer.headers["x-forebay-pool"], answer.headers["x-forebay-replica"]) == ("more", "r1")
        assert told(await front.ask(going_on("resp_2"), target=RESPONSES)) == (404, LOST)
        assert chats(front.engines[2]) == 0

    world(test, keeper("resp_0"), keeper("resp_1"), keeper("resp_2"), spec=spec)


def test_a_conversation_goes_on_only_where_its_team_may_be_served(world):
    """Its team's residency, or its pool's region, may have changed since it began."""
    pools = (Pool("chat", "llama", EngineKind("attach"), region="eu"), Pool("more", "llama", EngineKind("attach"), region="us"))
    spec = msgspec.structs.replace(SPEC, pools=pools, teams=(msgspec.structs.replace(TEAMS[0], residency=("eu",)), TEAMS[1]))

    async def test(front):
        first, second = (RosterReplica(f"r{number}", engine.url, CAPACITY) for number, engine in enumerate(front.engines))
        front.gateway.apply(Roster(1, 9, 10.0, (RosterPool("chat", (first,)), RosterPool("more", (second,)))))
        for number, engine in enumerate(front.engines):
            front.gateway.holders.learn(f"resp_{number}", Holder(engine.url, "search"))
        assert (await front.ask(going_on("resp_0"), SEARCH, RESPONSES)).headers["x-forebay-pool"] == "chat"
        assert told(await front.ask(going_on("resp_1"), SEARCH, RESPONSES)) == (404, LOST)
        assert not front.engines[1].seen

    world(test, keeper("resp_0"), keeper("resp_1"), spec=spec)


# -- who keeps it, where nobody knows ------------------------------------------------------------------------------------------


def test_without_teams_a_conversation_from_before_is_looked_for(world):
    """Only GET and its like were; what went on from it was sent anywhere."""

    async def test(front):
        answer = await front.ask(going_on("resp_1"), target=RESPONSES)
        assert (answer.status, answer.headers["x-forebay-replica"]) == (200, "r1")
        assert front.gateway.holders.find("resp_1") == Holder(front.engines[1].url, "anonymous", 10)
        answer = await front.ask(going_on("resp_nobody"), target=RESPONSES)
        assert (answer.status, answer.json()["error"]["message"]) == (404, "Response with id 'resp_nobody' not found."), "an engine says so"

    world(test, keeper("resp_0"), keeper("resp_1"))


def test_with_teams_an_id_that_nobody_knows_is_nobodys(world):
    """Any key could have, delete and go on with what was answered before the gateway's last start."""

    async def test(front):
        for headers in (SEARCH, MAIL):
            assert told(await front.ask(going_on("resp_0"), headers, RESPONSES)) == (404, LOST)
            client = await front.client()
            for method, more in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
                assert (await client.ask(f"{RESPONSES}/resp_0{more}", headers=headers, method=method)).status == 404
        assert not front.engines[0].seen

    world(test, keeper("resp_0"), spec=TEAM_SPEC)


def test_another_team_can_neither_go_on_with_nor_see_nor_end_a_conversation(world):
    async def test(front):
        own = await begun(front, 0, SEARCH)
        seen = len(front.engines[0].seen)
        assert told(await front.ask(going_on(own), MAIL, RESPONSES)) == (404, LOST)
        client = await front.client()
        for method, more in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            assert (await client.ask(f"{RESPONSES}/{own}{more}", headers=MAIL, method=method)).status == 404
        assert len(front.engines[0].seen) == seen
        assert (await front.ask(going_on(own), SEARCH, RESPONSES)).status == 200

    world(test, keeper("resp_0"), spec=TEAM_SPEC)


def test_nobody_names_a_response_as_another_teams_is_named(world):
    """vLLM lets clients name what it keeps, and the later one replaces the earlier: its team went on from another's words."""

    async def test(front):
        own = await begun(front, 0, SEARCH)
        seen = len(front.engines[0].seen)
        answer = await front.ask({**FIRST, "request_id": own}, MAIL, RESPONSES)
        assert (answer.status, answer.json()["error"]["param"]) == (400, "request_id")
        assert len(front.engines[0].seen) == seen
        for headers, name in ((SEARCH, own), (MAIL, "resp_mails")):
            assert (await front.ask({**FIRST, "request_id": name}, headers, RESPONSES)).status == 200

    world(test, keeper("resp_0"), spec=TEAM_SPEC)


BEFORE = {
    "after the text": b"",
    "twice": b'"previous_response_id":"resp_mine",',
    "by another spelling": b"",
    "after a long key": b'"%b":1,' % (b"k" * 300),
    "after a wide space": b'"metadata":null%b,' % (b" " * 80_000),
}


@pytest.mark.parametrize("place", BEFORE)
def test_a_large_body_goes_on_with_no_other_teams_conversation(world, place):
    """Bodies that are passed on as they come were looked into up to their model: what came after that was the engine's alone to read.

    And what was looked into in parts, by searches, was not all that a parser finds: by an escape in its name it went unseen."""

    async def test(front):
        own = await begun(front, 0, SEARCH)
        seen = len(front.engines[0].seen)
        key = b"previous_response_\\u0069d" if place == "by another spelling" else b"previous_response_id"
        body = b'{"model":"llama",%b"input":"%b","%b":"%b"}' % (BEFORE[place], b"x" * 3000, key, own.encode())
        assert told(await front.ask(body, {**MAIL, "content-type": "application/json"}, RESPONSES)) == (404, LOST)
        assert len(front.engines[0].seen) == seen
        answer = await front.ask(body, {**SEARCH, "content-type": "application/json"}, RESPONSES)
        assert (answer.status, front.engines[0].seen[-1].body) == (200, body)

    limits = Limits(body_bytes_max=1000, streamed_body_bytes_max=100_000)
    world(test, keeper("resp_0"), spec=TEAM_SPEC, limits=limits)


@pytest.mark.parametrize("named", [b'"alias"', b'"other","mod\\u0065l":"alias"'])
def test_a_large_body_that_engines_keep_is_renamed_as_a_parser_reads_it(world, named):
    async def test(front):
        body = b'{"model":%b,"input":"%b"}' % (named, b"x" * 3000)
        answer = await front.ask(body, {"content-type": "application/json"}, RESPONSES)
        assert (answer.status, front.engines[0].seen[-1].json()) == (200, {"model": "llama", "input": "x" * 3000})

    limits = Limits(body_bytes_max=1000, streamed_body_bytes_max=100_000)
    spec = msgspec.structs.replace(SPEC, models=(Model("llama", aliases=("alias",)),))
    world(test, keeper("resp_0"), spec=spec, limits=limits)


def test_what_is_no_id_is_asked_of_nobody(world):
    async def test(front):
        answer = await front.ask(going_on("x HTTP/1.1\r\nhost: a\r\n\r\nDELETE /v1/responses/resp_0"), target=RESPONSES)
        assert answer.status == 404
        assert [seen.line.split(b" ")[0] for engine in front.engines for seen in engine.seen] == [b"POST"]

    world(test, keeper("resp_0"), keeper("resp_1"))


def test_a_client_that_leaves_while_its_conversation_is_looked_for_leaves_nothing(world):
    async def hangs(seen, answer):
        del seen
        await answer.gone.wait()

    async def test(front):
        client = await front.client()
        client.send(RESPONSES, going_on("resp_9"))
        await front.sleep(0.1)
        assert len(front.gateway.direct) == 1
        client.close()
        await front.sleep(0.1)
        assert not front.gateway.direct
        assert not any(engine.open for engine in front.engines)

    world(test, hangs, hangs)


def test_a_replica_that_hangs_keeps_a_conversation_from_another_for_seconds(world):
    async def hangs(seen, answer):
        del seen
        await answer.gone.wait()

    async def test(front):
        before_s = front.clock.now_s()
        answer = await front.ask(going_on("resp_1"), target=RESPONSES)
        assert (answer.status, answer.headers["x-forebay-replica"]) == (200, "r1")
        assert front.clock.now_s() - before_s <= conversations.ASK_REAL_S + 0.1

    world(test, hangs, keeper("resp_1"))


def test_only_so_many_are_looked_for_at_once(world, monkeypatch):
    monkeypatch.setattr(conversations, "SEEKING_MAX", 2)

    async def hangs(seen, answer):
        del seen
        await answer.gone.wait()

    async def test(front):
        clients = [await front.client() for _ in range(2)]
        for client in clients:
            client.send(RESPONSES, going_on("resp_9"))
        await front.sleep(0.1)
        assert told(await front.ask(going_on("resp_9"), target=RESPONSES)) == (503, "gateway_overloaded")

    world(test, hangs, hangs)


def test_a_gateway_that_ends_tells_those_that_wait_to_be_found(world):
    async def hangs(seen, answer):
        del seen
        await answer.gone.wait()

    async def test(front):
        client = await front.client()
        client.send(RESPONSES, going_on("resp_9"))
        await front.sleep(0.1)
        await front.gateway.drain()
        assert told(await client.read()) == (503, "shutting_down")

    world(test, hangs, hangs, limits=Limits(drain_s=0.5))


# -- asking for one without a permit ---------------------------------------------------------------------------------------------


def test_an_answer_whose_replica_is_ejected_is_told_to_be_out_at_once(world):
    async def test(front):
        own = await begun(front)
        front.engines[1].stop()
        await front.ask(going_on(own), target=RESPONSES)
        before_s = front.clock.now_s()
        answer = await front.ask(None, target=f"{RESPONSES}/{own}")
        assert told(answer) == (503, "response_unavailable")
        assert "retry-after" in answer.headers
        assert front.clock.now_s() - before_s < 0.1

    world(test, keeper("resp_0"), keeper("resp_1"))


def test_a_replica_that_hangs_does_not_keep_an_answer_that_another_has(world):
    """It had two hours."""

    async def hangs(seen, answer):
        del seen
        await answer.gone.wait()

    async def test(front):
        before_s = front.clock.now_s()
        answer = await front.ask(None, target=f"{RESPONSES}/resp_1")
        assert (answer.status, answer.json()["id"]) == (200, "resp_1")
        assert front.clock.now_s() - before_s <= HEAD_BEFORE_NEXT_S + 0.1
        answer = await front.ask(None, target=f"{RESPONSES}/resp_nobody")
        assert told(answer) == (504, "engine_timeout"), "the one that hangs may have it: it isn't said that nobody has"

    world(test, hangs, keeper("resp_1"))


def test_a_page_in_place_of_an_answer_says_nothing_of_who_keeps_it(world):
    async def page(seen, answer):
        del seen
        answer.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>")

    async def test(front):
        assert (await front.ask(None, target=f"{RESPONSES}/resp_1")).json()["id"] == "resp_1"
        assert told(await front.ask(None, target=f"{RESPONSES}/resp_nobody")) == (502, "engines_failed")

    world(test, page, keeper("resp_1"))


def test_the_last_that_may_have_an_answer_has_a_minute(world):
    async def hangs(seen, answer):
        del seen
        await answer.gone.wait()

    async def test(front):
        before_s = front.clock.now_s()
        assert told(await front.ask(None, target=f"{RESPONSES}/resp_1")) == (504, "engine_timeout")
        assert 59 < front.clock.now_s() - before_s < 61

    world(test, hangs)


def test_one_that_is_ejected_is_asked_last_where_any_may_be(world):
    async def test(front):
        front.engines[0].stop()
        while not front.gateway.desk.pools["chat"].outliers.out:
            await front.ask(FIRST, target=RESPONSES)
        for _ in range(4):
            assert (await front.ask({"model": "llama", "prompt": "a"}, target="/tokenize")).status == 200
        assert front.gateway.is_out(front.engines[0].url)

    world(test, keeper("resp_0"), keeper("resp_1"))


# -- several gateways -------------------------------------------------------------------------------------------------------------


def test_a_conversation_goes_on_whichever_gateway_is_asked():
    """The other one knew of nothing: 404, four times of four."""

    async def test(front):
        front.lease("a", "b")
        first = await front.ask("a", FIRST, SEARCH, RESPONSES)
        own, replica = first.json()["id"], first.headers["x-forebay-replica"]
        for name in "abab":
            answer = await front.ask(name, going_on(own), SEARCH, RESPONSES)
            assert (answer.status, answer.json()["id"], answer.headers["x-forebay-replica"]) == (200, own, replica)
            assert answer.headers.get("x-forebay-gateway") == (None if name == "a" else "a")
            client = await front.client(name)
            assert (await client.ask(f"{RESPONSES}/{own}", headers=SEARCH)).json()["id"] == own
        assert sum(chats(engine) for engine in front.engines) == 5

    several(test, keeper("resp_0"), keeper("resp_1"), spec=TEAM_SPEC)


def test_another_teams_conversation_is_none_at_every_gateway():
    async def test(front):
        front.lease("a", "b")
        own = (await front.ask("a", FIRST, SEARCH, RESPONSES)).json()["id"]
        for name in "ba":
            assert told(await front.ask(name, going_on(own), MAIL, RESPONSES)) == (404, LOST)
            client = await front.client(name)
            for method, more in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
                assert (await client.ask(f"{RESPONSES}/{own}{more}", headers=MAIL, method=method)).status == 404
        assert sum(len(engine.seen) for engine in front.engines) == 1

    several(test, keeper("resp_0"), keeper("resp_1"), spec=TEAM_SPEC)


def test_a_conversation_goes_on_at_the_gateway_that_has_its_replica_by_now():
    async def test(front):
        front.lease("a", "b")
        own = (await front.ask("a", FIRST, SEARCH, RESPONSES)).json()["id"]
        front.lease("b", "a")
        for name in "ab":
            answer = await front.ask(name, going_on(own), SEARCH, RESPONSES)
            assert (answer.status, answer.headers["x-forebay-replica"]) == (200, "r0")
            assert answer.headers.get("x-forebay-gateway") == (None if name == "b" else "b")

    several(test, keeper("resp_0"), keeper("resp_1"), spec=TEAM_SPEC)


def test_a_conversation_does_not_move_to_a_gateway_that_could_start_it_sooner(one_slot):
    until = asyncio.Event()

    async def test(front):
        front.lease("a", "b", capacity=one_slot)
        own = (await front.ask("a", FIRST, SEARCH, RESPONSES)).json()["id"]
        clients = [await front.client("a") for _ in range(2)]
        for client in clients:
            client.send(RESPONSES, going_on(own), SEARCH)
        await front.sleep(5.0)
        assert front.inside() == {"a": 2, "b": 0}
        until.set()
        assert [(await client.read()).status for client in clients] == [200, 200]
        assert chats(front.engines[1]) == 0

    several(test, keeper("resp_0", until), keeper("resp_1"), spec=TEAM_SPEC)


def test_a_dead_holder_at_another_gateway_is_told_and_blamed_there_alone():
    async def test(front):
        front.lease("a", "b")
        own = (await front.ask("a", FIRST, SEARCH, RESPONSES)).json()["id"]
        front.engines[0].stop()
        for _ in range(4):
            answer = await front.ask("b", going_on(own), SEARCH, RESPONSES)
            assert told(answer) == (503, OUT)
            assert "retry-after" in answer.headers
        assert front.gateways["a"].desk.pools["chat"].outliers.out == ["r0"]
        assert front.gateways["b"].desk.pools["chat"].outliers.out == []
        assert (await front.ask("b", FIRST, SEARCH, RESPONSES)).status == 200

    several(test, keeper("resp_0"), keeper("resp_1"), spec=TEAM_SPEC)


def test_where_another_gateway_does_not_say_nobody_is_told_that_it_is_lost():
    """It may be the one that knows."""

    async def test(front):
        front.lease("b", "b")
        own = (await front.ask("a", FIRST, SEARCH, RESPONSES)).json()["id"]
        for server in front.gateways["b"].servers:
            server.stop_listening()
            for connection in list(server.connections):
                connection.abort()
        answer = await front.ask("a", going_on(own), SEARCH, RESPONSES)
        assert told(answer) == (503, OUT)
        assert "retry-after" in answer.headers
        client = await front.client("a")
        assert (await client.ask(f"{RESPONSES}/{own}", headers=SEARCH)).status == 503

    several(test, keeper("resp_0"), keeper("resp_1"), spec=TEAM_SPEC)


def test_who_keeps_what_is_told_to_gateways_alone():
    async def test(front):
        front.lease("a", "b")
        own = (await front.ask("a", FIRST, SEARCH, RESPONSES)).json()["id"]
        for headers, status in (({}, 403), ({"x-forebay-hop": "guessed"}, 403), ({"x-forebay-hop": "hop-key"}, 200)):
            client = await front.client("a", hops=True)
            assert (await client.ask("/forebay/v1/holders", own, headers)).status == status
        for headers, status in (({}, 401), (SEARCH, 404)):
            client = await front.client("a")
            assert (await client.ask("/forebay/v1/holders", own, {**headers, "x-forebay-hop": "hop-key"})).status == status
        client = await front.client("a", hops=True)
        assert (await client.ask("/forebay/v1/holders", b"{", {"x-forebay-hop": "hop-key"})).status == 400

    several(test, keeper("resp_0"), keeper("resp_1"), spec=TEAM_SPEC)
