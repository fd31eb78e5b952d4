"""Several gateways: each sends only to what is leased to it, and forwards what another one can start sooner; once, and counted once."""

import asyncio
import json
import random

import msgspec
import pytest
from gateway_values import CAPACITY, TEAMS
from several_gateways import BODY, CHAT, KEY, LEASE_S, several
from test_gateway_link import PORT, Controller
from test_gateway_surface import ANTHROPIC, ASK, MESSAGE, RESPONSE, typed

from forebay.admission.lessee import State
from forebay.domain.roster import Heard, Residue
from forebay.gateway.link import Link
from forebay.spec.types import Limits, TeamLimits

ONE_SLOT = msgspec.structs.replace(CAPACITY, sequences=1, decode_tokens_per_s=20.0)


async def whole(seen, answer):
    answer.json(200, {"by": seen.headers[b"host"].decode(), "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})


async def streams(seen, answer):
    answer.stream()
    answer.role()
    for text in ("to", "ken"):
        answer.token(text)
        await asyncio.sleep(0.1)
    answer.event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    answer.done()


async def hangs(seen, answer):
    await answer.gone.wait()


def engines(world):
    return [len(engine.seen) for engine in world.engines]


def test_each_sends_only_to_what_is_leased_to_it():
    async def test(world):
        world.lease("a", "b")
        for _ in range(3):
            assert (await world.ask("a")).status == 200
        assert engines(world) == [3, 0]
        assert (await world.ask("b")).status == 200
        assert engines(world) == [3, 1]

    several(test, whole, whole)


def test_a_gateway_without_a_replica_forwards():
    async def test(world):
        world.lease("b")
        answer = await world.ask("a", headers={"x-request-id": "mine", "authorization": "Bearer sk-any"})
        assert answer.status == 200
        told = {name: value for name, value in answer.headers.items() if name.startswith("x-forebay")}
        assert told == {
            "x-forebay-gateway": "b",
            "x-forebay-pool": "chat",
            "x-forebay-replica": "r0",
            "x-forebay-tier": "interactive",
            "x-forebay-queue-ms": "0",
        }
        assert answer.headers["x-request-id"] == "mine"
        (seen,) = world.engines[0].seen
        assert seen.headers[b"x-request-id"] == b"mine"
        assert json.loads(seen.body) == BODY
        assert not {b"authorization", b"x-forebay-hop", b"x-forebay-deadline"} & seen.headers.keys(), "secrets of ours are no engine's"
        # It came in at a, and was answered at b: counted once as each.
        assert (world.meter("a").arrived, world.meter("b").arrived) == (1, 0)
        assert (world.outcomes("a"), world.outcomes("b")) == ({"moved": 1}, {"completed": 1})
        assert (world.meter("a").output_tokens, world.meter("b").output_tokens) == (0, 2)
        assert list(world.gateways["a"].shown.forwarded()) == [("chat", "b", 1)]

    several(test, whole)


def test_a_gateway_is_ready_where_another_one_has_the_replica():
    async def test(world):
        world.lease("b")
        ready = await (await world.client("a", hops=True)).ask("/ready")
        assert (ready.status, ready.json()["pools"]) == (200, {"chat": {"replicas": 0, "elsewhere": 1}})
        world.lease("")
        assert (await (await world.client("a")).ask("/ready")).status == 503

    several(test, whole)


def test_a_stream_comes_through_as_it_is_made():
    async def test(world):
        world.lease("b")
        client = await world.client("a")
        client.send(CHAT, {**BODY, "stream": True})
        await world.sleep(0.05)
        assert b'"to"' in await client.reader.readuntil(b'"to"')
        assert world.clock.now_s() < 0.1, "the first token is not held back"
        rest = await client.reader.readuntil(b"0\r\n\r\n")
        assert b"ken" in rest
        assert b"[DONE]" in rest
        assert b"usage" not in rest, "asked by the gateways, not by the client"
        await world.sleep(0.1)
        assert (world.meter("a").output_tokens, world.meter("b").output_tokens) == (0, 2)

    several(test, streams)


@pytest.mark.parametrize(
    ("target", "body", "script"), [("/v1/responses", ASK, RESPONSE), ("/v1/messages", MESSAGE, ANTHROPIC)], ids=["responses", "messages"]
)
def test_every_api_is_forwarded(target, body, script):
    async def test(world):
        world.lease("b")
        answer = await (await world.client("a")).ask(target, body)
        assert answer.headers["x-forebay-gateway"] == "b"
        assert typed(answer)[-1][0] in {"response.completed", "message_stop"}

    several(test, script)


def test_a_large_body_is_forwarded_as_it_comes():
    async def counts(seen, answer):
        answer.json(200, {"bytes": len(seen.body)})

    async def test(world):
        world.lease("b")
        body = {**BODY, "messages": [{"role": "user", "content": "x" * 300_000}]}
        answer = await (await world.client("a")).ask(CHAT, body)
        assert answer.json()["bytes"] == len(json.dumps(body))
        assert answer.headers["x-forebay-gateway"] == "b"

    several(test, counts, limits=Limits(body_bytes_max=64 * 1024))


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_the_engine_behind_both(stream):
    async def test(world):
        world.lease("b")
        client = await world.client("a")
        client.send(CHAT, {**BODY, "stream": stream})
        await world.sleep(0.1)
        assert (world.inside(), len(world.engines[0].open)) == ({"a": 1, "b": 1}, 1)
        client.close()
        await world.sleep(0.1)
        assert (world.inside(), len(world.engines[0].open)) == ({"a": 0, "b": 0}, 0)

    several(test, hangs)


def test_a_request_goes_where_it_waits_shorter_and_stays_where_the_gain_is_small():
    async def test(world):
        world.lease("a", "b", capacity=ONE_SLOT)
        for number in range(2):  # one runs at a, the other one is the first to wait
            (await world.client("a")).send(CHAT, BODY)
            await world.sleep(0.01)
            assert engines(world) == [1, 0], number
        # More than a second of work waits here, and nothing there.
        (await world.client("a")).send(CHAT, BODY)
        await world.sleep(0.01)
        assert engines(world) == [1, 1]
        assert world.inside() == {"a": 3, "b": 1}

    several(test, hangs, hangs)


def test_nothing_is_forwarded_twice():
    """Each thinks that the other one has the replica: as after a move that one of them does not know of yet."""

    async def test(world):
        world.lease("b", to="a")
        world.lease("a", to="b")
        client = await world.client("a")
        client.send(CHAT, BODY)
        await world.sleep(2.5)
        assert world.inside() == {"a": 1, "b": 1}, "it waits at b, where the replica may be in a moment"
        await world.sleep(2.5)
        assert world.inside() == {"a": 1, "b": 0}, "b has given it back, and it waits at home"
        assert list(world.gateways["b"].shown.forwarded()) == []
        answer = await client.read()
        assert (answer.status, answer.json()["error"]["code"]) == (503, "no_replicas")
        assert "retry-after" in answer.headers
        assert engines(world) == [0]
        assert list(world.gateways["a"].shown.forwarded()) == [("chat", "b", 1)], "once, and not once more"

    several(test, whole)


def test_what_was_forwarded_waits_for_a_replica_that_moves_after_it():
    async def test(world):
        world.lease("b", to="a")
        world.lease("a", to="b")
        client = await world.client("a")
        client.send(CHAT, BODY)
        await world.sleep(2.5)
        world.lease("b", to="b")
        answer = await client.read()
        assert (answer.status, answer.headers["x-forebay-gateway"]) == (200, "b")

    several(test, whole)


def test_what_was_forwarded_and_waits_where_the_last_replica_left_routing_is_served_at_home():
    """It was told 503 after fifteen seconds, as the other gateway's last word, though this one had a replica all along."""

    async def test(world):
        world.lease("b", "", capacity=ONE_SLOT)
        for _ in range(2):  # one runs at b, the other waits there
            client = await world.client("a")
            client.send(CHAT, BODY)
            await world.sleep(0.01)
        assert world.inside() == {"a": 2, "b": 2}
        world.lease("", "a", capacity=ONE_SLOT)
        await world.sleep(6.0)
        assert engines(world) == [1, 1], "it runs at home"
        assert world.gateways["b"].desk.pools["chat"].meters["interactive"].shed["handed_back"] == 1

    several(test, hangs, hangs)


def test_a_forwarded_stream_that_a_replica_has_not_begun_which_left_routing_is_served_at_home():
    async def test(world):
        world.lease("b", "")
        client = await world.client("a")
        client.send(CHAT, {**BODY, "stream": True})
        await world.sleep(0.1)
        world.lease("b", "a")
        gateway = world.gateways["b"]
        gateway.desk.failed(gateway.desk.pools["chat"], "r0", "it is gone", gone=True)
        answer = await client.read()
        assert (answer.status, answer.events()[-1]) == (200, "[DONE]")
        assert 5 < world.clock.now_s() < 20
        assert engines(world)[1] == 1

    several(test, hangs, streams)


def test_a_peer_that_is_gone_costs_no_request_where_this_one_can_serve_later():
    async def test(world):
        world.lease("b")
        await world.gateways["b"].close()
        client = await world.client("a")
        client.send(CHAT, BODY)
        await world.sleep(1.0)
        assert world.inside()["a"] == 1, "it waits at home"
        world.lease("a", to="a")
        assert (await client.read()).status == 200
        assert world.outcomes("a") == {"moved": 2, "completed": 1} or world.outcomes("a") == {"moved": 1, "completed": 1}

    several(test, whole)


def test_a_peer_that_dies_under_a_stream_ends_it_with_an_error_event():
    async def begins(seen, answer):
        answer.stream()
        answer.token("to")
        await asyncio.Event().wait()

    async def test(world):
        world.lease("b")
        client = await world.client("a")
        client.send(CHAT, {**BODY, "stream": True})
        await world.sleep(0.1)
        for connection in list(world.gateways["b"].servers[1].connections):
            connection.abort()
        events = (await client.read()).events()
        assert events[-2]["error"]["code"] == "stream_truncated"
        assert events[-1] == "[DONE]"

    several(test, begins)


def test_an_engines_refusal_at_the_other_gateway_is_told_as_it_is():
    async def wrong(seen, answer):
        answer.json(400, {"error": {"message": "no", "type": "invalid_request_error", "param": "n", "code": "bad"}})

    async def test(world):
        world.lease("b")
        answer = await world.ask("a")
        assert (answer.status, answer.json()["error"]["code"]) == (400, "bad")
        assert len(world.engines[0].seen) == 1

    several(test, wrong)


def test_the_key_the_tier_and_the_deadline_go_along():
    async def test(world):
        world.lease("b", capacity=msgspec.structs.replace(CAPACITY, sequences=1))
        (await world.client("b")).send(CHAT, BODY, {"authorization": "Bearer sk-search"})
        await world.sleep(0.1)
        client = await world.client("a")
        client.send(CHAT, {**BODY, "service_tier": "batch"}, {"x-api-key": "sk-mail", "x-forebay-deadline": "2000"})
        await world.sleep(0.5)
        (load,) = world.gateways["b"].snapshot().pools
        assert {lane.tier: lane.waiting for lane in load.lanes} == {"interactive": 0, "standard": 0, "batch": 1}
        assert [team.team for team in world.gateways["b"].desk.pools["chat"].admission.teams() if team.waiting] == ["mail"]
        answer = await client.read()
        assert (answer.status, answer.json()["error"]["code"]) == (429, "queue_wait_expired")
        assert 1.5 < world.clock.now_s() < 3, "its client waits two seconds in all"

    several(test, hangs, teams=TEAMS)


def test_a_teams_limits_count_where_it_came_in():
    teams = (msgspec.structs.replace(TEAMS[0], limits=TeamLimits(requests_per_minute=2)),)

    async def test(world):
        world.lease("b")
        answers = [await world.ask("a", headers={"authorization": "Bearer sk-search"}) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert answers[1].headers["x-ratelimit-remaining-requests"] == "0"
        assert (await world.ask("b", headers={"authorization": "Bearer sk-search"})).status == 200

    several(test, whole, teams=teams)


@pytest.mark.parametrize("key", [None, "", "guessed"])
def test_the_gateways_own_address_is_for_gateways(key):
    async def test(world):
        world.lease("a", "b")
        client = await world.client("a", hops=True)
        answer = await client.ask(CHAT, BODY, {} if key is None else {"x-forebay-hop": key})
        assert answer.status == 403
        assert engines(world) == [0, 0]
        assert (await client.ask("/health")).status == 200
        record = await client.ask("/forebay/v1/requests/none")
        assert record.status == 404, "asked with a client's own key, where keys are asked for"
        assert b"forebay_forwarded" in (await client.ask("/metrics")).body

    several(test, whole, whole)


def test_a_client_that_knows_of_hops_is_a_client_like_any():
    async def test(world):
        world.lease("b")
        answer = await world.ask("a", headers={"x-forebay-hop": KEY})
        assert (answer.status, answer.headers["x-forebay-gateway"]) == (200, "b")
        assert world.meter("a").arrived == 1

    several(test, whole)


# -- leases ------------------------------------------------------------------------------------------------------------


def test_streams_of_a_replica_that_moved_end_where_they_began():
    async def slow(seen, answer):
        answer.stream()
        for _ in range(4):
            answer.token("x")
            await asyncio.sleep(1.0)
        answer.done()

    async def test(world):
        world.lease("a", "b")
        client = await world.client("a")
        client.send(CHAT, {**BODY, "stream": True})
        await world.sleep(0.5)
        world.lease("b", "b")
        answer = await client.read()
        assert answer.events()[-1] == "[DONE]"
        assert world.outcomes("a") == {"completed": 1}

    several(test, slow, slow)


def test_a_replica_on_which_another_still_runs_much_is_not_used_until_that_has_ended():
    async def test(world):
        world.lease("b", "b")
        world.heard("b", residues=(Residue("r0", streams=7, kv_tokens=100),))
        for _ in range(4):
            assert (await world.ask("b")).status == 200
        assert engines(world) == [0, 4]
        world.heard("b", residues=(Residue("r0", streams=1, kv_tokens=100),))
        for _ in range(4):
            assert (await world.ask("b")).status == 200
        assert engines(world)[0] > 0

    several(test, whole, whole)


def test_a_gateway_that_is_cut_off_stops_and_forwards_while_the_controller_lives():
    async def test(world):
        world.lease("a", "b")
        lessee = world.gateways["a"].peering.lessee
        for _ in range(14):
            await world.sleep(1.0)
            world.heard("b")  # and nobody answers a
        assert lessee.state is State.YIELDED
        answer = await world.ask("a")
        assert (answer.status, answer.headers["x-forebay-gateway"]) == (200, "b")
        assert engines(world) == [0, 1]
        world.heard("a")
        assert "x-forebay-gateway" not in (await world.ask("a")).headers
        assert engines(world) == [1, 1]
        kinds = [event.kind for event in world.sinks["a"].events]
        assert kinds.count("lease_unused") == 1

    several(test, whole, whole)


def test_a_gateway_that_was_silent_when_this_one_last_heard_is_asked_too():
    """It may have come back since: taken for nobody to ask, it was given what the other one went on using."""

    async def test(world):
        world.lease("a", "b")
        world.gateways["a"].peering.heard(Heard(world.clock.now_s(), KEY, ()))
        for _ in range(14):
            await world.sleep(1.0)
            world.heard("b")
        assert world.gateways["a"].peering.lessee.state is State.YIELDED

    several(test, whole, whole)


def test_a_controller_that_has_just_begun_renews_no_lease_before_it_has_said_who_holds_what():
    """What this one had was given away while it was cut off; by the old roster it used that again."""

    async def test(world):
        world.lease("a", "b")
        controller, gateway = Controller(), world.gateways["a"]
        await controller.start()
        linking = asyncio.ensure_future(Link(gateway, world.clock, random.Random(3), world.sinks["a"], "127.0.0.1", PORT).run())
        for _ in range(12):
            await world.sleep(1.0)
            world.heard("b")
        assert gateway.peering.lessee.state is State.YIELDED
        controller.say(Heard(world.clock.now_s(), KEY, ()))
        await world.sleep(0.1)
        assert gateway.peering.lessee.state is State.YIELDED
        world.lease("b", "b", to="b")
        controller.say(world.roster)
        controller.say(Heard(world.clock.now_s(), KEY, ()))
        await world.sleep(0.1)
        assert gateway.peering.lessee.state is State.HELD
        assert gateway.desk.pools["chat"].routed == ()
        linking.cancel()
        await asyncio.gather(linking, return_exceptions=True)
        controller.stop()

    several(test, whole, whole)


def test_without_a_controller_both_serve_on_by_their_leases():
    async def test(world):
        world.lease("a", "b")
        for second in range(60):
            await world.sleep(1.0)
            assert (await world.ask("a")).status == 200, second
        assert world.gateways["a"].peering.lessee.state is State.STANDING
        assert engines(world) == [60, 0]

    several(test, whole, whole)


def test_a_process_that_was_stopped_sends_nothing_by_an_old_lease():
    """Its timers have not run yet when the first request is read: what it compares is the clock."""

    async def test(world):
        world.lease("a", "b")
        peering = world.gateways["a"].peering
        peering._timer.cancel()
        await world.clock.sleep_until(world.clock.now_s() + 3 * LEASE_S)
        world.heard("b")
        answer = await world.ask("a")
        assert answer.status == 200
        assert engines(world) == [0, 1], "forwarded: what a had may be another's by now"

    several(test, whole, whole)


async def dies_at_once(seen, answer):
    answer.cut()


async def dies_in_the_middle(seen, answer):
    answer.stream()
    answer.role()
    answer.token("half")
    await asyncio.sleep(0.1)
    answer.cut()


def test_a_stream_that_began_is_not_gone_on_with_at_another_gateway_and_ends_with_an_error_event():
    async def test(world):
        world.lease("a", "b")
        answer = await world.ask("a", {"stream": True})
        assert b'"error"' in answer.body
        assert b"[DONE]" in answer.body
        assert engines(world) == [1, 0], "though the other gateway has room"
        assert world.outcomes("a") == {"truncated": 1}

    several(test, dies_in_the_middle, streams)
