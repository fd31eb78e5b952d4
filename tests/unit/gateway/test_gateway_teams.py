"""Teams at the gateway: limits, fairness, places given up, and clients' deadlines, over real bytes."""

import asyncio

import msgspec

from forebay.gateway.answers import ErrorReply
from forebay.gateway.http import HttpServer
from forebay.gateway.intake import TURNED_AWAY_MAX
from forebay.spec.types import Limits, Team, TeamLimits

CHAT = {"model": "llama", "messages": [{"role": "user", "content": "hello"}]}


def keyed(key):
    return {"authorization": f"Bearer {key}"}


async def quick(seen, answer):
    answer.json(200, {"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 20, "completion_tokens": 5}})


async def slow(seen, answer):
    await asyncio.sleep(20)
    await quick(seen, answer)


async def streamed(seen, answer):
    answer.stream()
    answer.role()
    answer.token("a")
    await asyncio.sleep(20)
    answer.token("b", "stop")
    answer.done()


def teams(spec, **limits):
    return msgspec.structs.replace(
        spec,
        teams=(
            Team("limited", (("sk-limited", "interactive"),), limits=TeamLimits(**limits)),
            Team("free", (("sk-free", "interactive"), ("sk-bulk", "batch"))),
        ),
    )


def test_answers_tell_a_limited_team_what_is_left_and_others_nothing(world, spec):
    async def test(front):
        answer = await front.ask(CHAT, keyed("sk-limited"))
        assert answer.status == 200
        assert answer.headers["x-ratelimit-limit-requests"] == "2"
        assert answer.headers["x-ratelimit-remaining-requests"] == "1"
        assert answer.headers["x-ratelimit-reset-requests"].endswith("s")
        answer = await front.ask(CHAT | {"stream": True}, keyed("sk-limited"))
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"
        refused = await front.ask(CHAT, keyed("sk-limited"))
        assert refused.status == 429
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert refused.json()["error"]["type"] == "requests"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert "x-should-retry" not in refused.headers
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        free = await front.ask(CHAT, keyed("sk-free"))
        assert free.status == 200
        assert not any(name.startswith("x-ratelimit") for name in free.headers)
        page = (await front.ask(None, target="/metrics")).body.decode()
        assert 'forebay_team_over_limit_total{limit="requests_per_minute",team="limited"} 1.0' in page
        assert 'forebay_shed_total{pool="chat",reason="over_limit",tier="interactive"} 1.0' in page
        assert 'forebay_team_given_tokens_total{pool="chat",team="free",tier="interactive"} 30.0' in page
        assert 'forebay_team_waiting{pool="chat",team="free",tier="interactive"} 0.0' in page

    async def either(seen, answer):
        await (streamed if seen.json().get("stream") else quick)(seen, answer)

    world(test, either, spec=teams(spec, requests_per_minute=2))


def test_what_is_refused_before_it_is_any_pools_is_counted_by_status_and_code(world, spec):
    """A client with a wrong key showed nowhere: not in the metrics, not in the log, not by its request's id."""

    async def test(front):
        for headers, body, target, status in (
            (keyed("sk-nobodys"), CHAT, "/v1/chat/completions", 401),
            (keyed("sk-nobodys"), None, "/v1/models", 401),
            (keyed("sk-limited"), CHAT | {"model": "none"}, "/v1/chat/completions", 404),
            (keyed("sk-limited"), b"{", "/v1/chat/completions", 400),
            (keyed("sk-limited"), CHAT, "/nowhere", 404),
            (keyed("sk-limited"), CHAT, "/v1/chat/completions", 200),
            (keyed("sk-limited"), CHAT, "/v1/chat/completions", 429),
            (keyed("sk-limited"), b"x" * 5000, "/v1/chat/completions", 413),
        ):
            assert (await front.ask(body, headers, target)).status == status
        page = (await front.ask(None, target="/metrics")).body.decode()
        assert [line for line in page.splitlines() if line.startswith("forebay_turned_away_total")] == [
            'forebay_turned_away_total{code="",status="400"} 1.0',
            'forebay_turned_away_total{code="invalid_api_key",status="401"} 2.0',
            'forebay_turned_away_total{code="model_not_found",status="404"} 1.0',
            'forebay_turned_away_total{code="unknown_url",status="404"} 1.0',
            'forebay_turned_away_total{code="",status="413"} 1.0',
        ], "what admission refuses is in forebay_shed_total"

    few = teams(spec, requests_per_minute=1)
    few = msgspec.structs.replace(few, limits=msgspec.structs.replace(few.limits, body_bytes_max=4000, streamed_body_bytes_max=4500))
    world(test, quick, spec=few)


def test_kinds_of_refusals_are_told_apart_up_to_a_bound():
    server = HttpServer(Limits(), lambda connection, request: None)
    for number in range(TURNED_AWAY_MAX + 10):
        server.turns_away(ErrorReply(400, "", f"code-{number}", ""))
    assert len(server.turned_away) == TURNED_AWAY_MAX + 1
    assert server.turned_away[400, "other"] == 10


def test_what_a_teams_limit_refuses_is_no_demand(world, spec):
    """A script that hammers at its team's limit would have replicas started for it that could serve none of it."""

    async def test(front):
        assert (await front.ask(CHAT, keyed("sk-limited"))).status == 200
        before = front.counts()
        for _ in range(30):
            assert (await front.ask(CHAT, keyed("sk-limited"))).status == 429
        assert front.counts() == before
        assert before.arrived == 1
        page = (await front.ask(None, target="/metrics")).body.decode()
        assert 'forebay_arrived_total{pool="chat",tier="interactive"} 31.0' in page
        assert 'forebay_requests_total{outcome="shed",pool="chat",tier="interactive"} 30.0' in page

    world(test, quick, spec=teams(spec, requests_per_minute=1))


def test_a_request_over_its_teams_limit_by_itself_is_told_not_to_come_back(world, spec):
    async def test(front):
        refused = await front.ask(CHAT, keyed("sk-limited"))
        assert refused.status == 429
        assert refused.headers["x-should-retry"] == "false"
        assert "retry-after" not in refused.headers
        assert refused.json()["error"]["type"] == "tokens"

    world(test, quick, spec=teams(spec, tokens_per_minute=10))


def test_in_flight_limits_end_with_the_answer_and_with_the_client(world, spec):
    async def test(front):
        client = await front.client()
        client.send("/v1/chat/completions", CHAT, keyed("sk-limited"))
        await front.sleep(1)
        assert (await front.ask(CHAT, keyed("sk-limited"))).status == 429
        client.close()
        await front.sleep(1)
        assert (await front.ask(CHAT, keyed("sk-limited"))).status == 200
        assert (await front.ask(CHAT, keyed("sk-limited"))).status == 200

    world(test, slow, spec=teams(spec, requests_in_flight=1))


def test_a_batch_answer_gives_its_place_up_and_is_answered_all_the_same(world, spec, one_slot):
    async def test(front):
        bulk = await front.client()
        bulk.send("/v1/chat/completions", CHAT, keyed("sk-bulk"))
        await front.sleep(1)
        assert len(front.engines[0].seen) == 1
        urgent = await front.ask(CHAT, keyed("sk-free"))
        assert urgent.status == 200
        answer = await bulk.read()
        assert answer.status == 200
        assert answer.json()["usage"]["completion_tokens"] == 5
        assert len(front.engines[0].seen) == 3, "the batch request was sent twice"
        page = (await front.ask(None, target="/metrics")).body.decode()
        assert 'forebay_requeued_total{pool="chat",tier="batch"} 1.0' in page

    world(test, slow, spec=teams(spec), capacity=one_slot)


def test_a_batch_stream_that_has_begun_keeps_its_place(world, spec, one_slot):
    async def test(front):
        bulk = await front.client()
        bulk.send("/v1/chat/completions", CHAT | {"stream": True}, keyed("sk-bulk"))
        await front.sleep(1)
        urgent = await front.client()
        urgent.send("/v1/chat/completions", CHAT | {"stream": True}, keyed("sk-free"))
        await front.sleep(1)
        assert front.waiting == 1
        assert b"[DONE]" in (await bulk.read()).body
        assert b"[DONE]" in (await urgent.read()).body
        assert len(front.engines[0].seen) == 2

    world(test, streamed, spec=teams(spec), capacity=one_slot)


def test_a_client_that_leaves_while_its_batch_request_waits_again_leaves_nothing(world, spec, one_slot):
    async def test(front):
        bulk = await front.client()
        bulk.send("/v1/chat/completions", CHAT, keyed("sk-bulk"))
        await front.sleep(1)
        urgent = await front.client()
        urgent.send("/v1/chat/completions", CHAT, keyed("sk-free"))
        await front.sleep(1)
        assert (front.permits, front.waiting) == (1, 1)
        bulk.close()
        await front.sleep(1)
        assert (front.permits, front.waiting) == (1, 0)

    world(test, slow, spec=teams(spec), capacity=one_slot)


def test_what_can_not_start_before_the_clients_deadline_is_refused_by_then(world, spec, one_slot):
    async def test(front):
        busy = await front.client()
        busy.send("/v1/chat/completions", CHAT, keyed("sk-free"))
        await front.sleep(1)
        began_s = front.clock.now_s()
        ours = await front.ask(CHAT, keyed("sk-free") | {"x-forebay-deadline": "3000"})
        assert ours.status == 429
        assert front.clock.now_s() - began_s <= 3.0
        theirs = await front.ask(CHAT, keyed("sk-free") | {"x-stainless-read-timeout": "2.5"})
        assert theirs.status == 429
        assert front.clock.now_s() - began_s <= 6.0
        sdk = await front.ask(CHAT, keyed("sk-free") | {"x-stainless-read-timeout": "NOT_GIVEN"})
        assert sdk.status == 200
        assert b"x-forebay" not in front.engines[0].seen[-1].head

    world(test, slow, spec=teams(spec), capacity=one_slot)
