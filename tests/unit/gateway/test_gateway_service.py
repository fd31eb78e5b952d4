"""Who may ask what, and what the gateway says itself."""

import asyncio
import json

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from forebay.domain.roster import Roster, RosterPool, RosterReplica
from forebay.engine.catalogue import PROFILES
from forebay.gateway.body import rewritten
from forebay.gateway.identity import Identity
from forebay.gateway.service import static_roster
from forebay.spec.types import EngineKind, Model, Pool, Spec

CHAT = {"model": "llama", "messages": []}


async def whole(_, answer):
    answer.json(200, {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})


async def hangs(_, answer):
    await answer.gone.wait()


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def error_of(answer):
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


# -- identity and tiers ------------------------------------------------------------------------------------------------


def test_without_teams_all_are_welcome(world):
    async def test(front):
        assert (await front.ask(CHAT)).status == 200
        assert front.counts("interactive").arrived == 1

    world(test, whole)


@pytest.mark.parametrize(
    "headers", [{}, bearer("sk-wrong"), {"Authorization": "Basic sk-search"}, bearer("")], ids=["none", "wrong", "basic", "empty"]
)
def test_a_key_is_asked_for(world, team_spec, headers):
    async def test(front):
        answer = await front.ask(CHAT, headers)
        assert (answer.status, error_of(answer)["code"]) == (401, "invalid_api_key")
        assert (await (await front.client()).ask("/v1/models", None, headers)).status == 401
        assert not front.engines[0].seen

    world(test, whole, spec=team_spec)


def test_the_key_decides_the_tier(world, team_spec):
    async def test(front):
        client = await front.client()
        for key, tier in (("sk-search", "interactive"), ("sk-search-bulk", "batch"), ("sk-mail", "standard"), ("sk-search", "interactive")):
            before = front.counts(tier).completed
            assert (await client.ask("/v1/chat/completions", CHAT, bearer(key))).status == 200
            assert front.counts(tier).completed == before + 1

    world(test, whole, spec=team_spec)


@pytest.mark.parametrize(
    ("key", "asked", "tier"),
    [
        ("sk-search", "batch", "batch"),
        ("sk-search", "standard", "standard"),
        ("sk-search", "interactive", "interactive"),
        ("sk-search", "auto", "interactive"),
        ("sk-search", "default", "interactive"),
        ("sk-search", "priority", "interactive"),
        ("sk-search", "flex", "batch"),
        ("sk-search-bulk", "interactive", "batch"),
        ("sk-search-bulk", "flex", "batch"),
        ("sk-mail", "interactive", "standard"),
        ("sk-mail", "batch", "batch"),
    ],
)
def test_a_request_may_lower_its_tier_and_never_raise_it(team_spec, key, asked, tier):
    identity = Identity(team_spec)
    caller = identity.caller(f"Bearer {key}".encode())
    assert identity.tier(caller, asked).name == tier


def test_a_tier_nobody_knows_is_refused_with_those_allowed(world, team_spec):
    async def test(front):
        answer = await front.ask({**CHAT, "service_tier": "gold"}, bearer("sk-mail"))
        error = error_of(answer)
        assert (answer.status, error["param"]) == (400, "service_tier")
        assert "standard, batch" in error["message"]

    world(test, whole, spec=team_spec)


def test_our_tiers_are_not_passed_on_and_openais_are(world):
    async def test(front):
        await front.ask({**CHAT, "service_tier": "batch", "x": [1]})
        await front.ask({**CHAT, "service_tier": "flex"})
        bodies = [seen.json() for seen in front.engines[0].seen]
        assert bodies == [{**CHAT, "x": [1]}, {**CHAT, "service_tier": "flex"}]
        assert front.counts("batch").completed == 2

    world(test, whole)


# -- bodies and models ---------------------------------------------------------------------------------------------------


def test_an_alias_is_rewritten_and_nothing_else():
    body = b'{"model":"gpt-4o","temperature":1.50,"s":"\\u00e9","deep":{"model":"gpt-4o"}}'
    assert rewritten(body, "llama", False) == b'{"model":"llama","temperature":1.50,"s":"\\u00e9","deep":{"model":"gpt-4o"}}'


def test_an_alias_reaches_its_model(world):
    async def test(front):
        assert (await front.ask({**CHAT, "model": "gpt-4o"})).status == 200
        assert front.engines[0].seen[0].json()["model"] == "llama"

    world(test, whole)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{", 400, None),
        (b"", 400, None),
        (b"[]", 400, None),
        (b"\xff\xfe", 400, None),
        (b"[" * 100_000, 400, None),
        (b"{}", 400, "model"),
        (b'{"model": 3}', 400, "model"),
        (b'{"model": "llama", "max_tokens": "many"}', 400, "max_tokens"),
        (b'{"model": "gpt-5"}', 404, "model"),
    ],
    ids=["cut", "empty", "list", "bytes", "deep", "no-model", "number", "text", "unknown"],
)
def test_what_is_wrong_with_a_body_is_said(world, body, status, param):
    async def test(front):
        answer = await front.ask(body)
        error = error_of(answer)
        assert (answer.status, error["type"], error["param"]) == (status, "invalid_request_error", param)
        assert error["code"] == ("model_not_found" if status == 404 else None)
        assert "x-request-id" in answer.headers
        assert not front.engines[0].seen

    world(test, whole)


def test_a_request_that_never_fits_is_refused(world):
    async def test(front):
        answer = await front.ask({**CHAT, "n": 100})
        assert (answer.status, error_of(answer)["code"]) == (400, "context_length_exceeded")
        assert "retry-after" not in answer.headers

    world(test, whole)


# -- routes ----------------------------------------------------------------------------------------------------------------


def test_models_are_listed_with_their_aliases(world):
    async def test(front):
        client = await front.client()
        listed = (await client.ask("/v1/models")).json()
        assert (listed["object"], [model["id"] for model in listed["data"]]) == ("list", ["llama", "gpt-4o"])
        assert (await client.ask("/v1/models/gpt-4o")).json()["id"] == "gpt-4o"
        missing = await client.ask("/v1/models/none")
        assert (missing.status, error_of(missing)["code"]) == (404, "model_not_found")

    world(test, whole)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/completions?x=1"])
def test_what_is_served(world, path):
    async def test(front):
        assert (await front.ask(CHAT, target=path)).status == 200
        assert front.engines[0].seen[0].line == f"POST {path} HTTP/1.1".encode()

    world(test, whole)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/sleep", 404),
        ("GET", "/v1/files", 404),
        ("POST", "/v1/chat/completions/../../sleep", 404),
        ("POST", "//v1/chat/completions", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/health", 405),
        ("DELETE", "/v1/models/llama", 405),
        ("POST", "http://elsewhere/v1/chat/completions", 404),
        ("OPTIONS", "*", 404),
    ],
)
def test_nothing_else_is_proxied(world, method, path, status):
    async def test(front):
        answer = await (await front.client()).ask(path, b"{}" if method == "POST" else None, method=method)
        assert answer.status == status
        error_of(answer)
        assert ("allow" in answer.headers) == (status == 405)
        assert not front.engines[0].seen

    world(test, whole)


def test_metrics_are_prometheus_and_tell_the_truth(world):
    async def test(front):
        for _ in range(3):
            await front.ask(CHAT)
        await front.ask({**CHAT, "n": 100})
        answer = await (await front.client()).ask("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        families = {family.name: family for family in text_string_to_metric_families(answer.body.decode())}
        value = {(sample.name, *sorted(sample.labels.values())): sample.value for family in families.values() for sample in family.samples}
        assert value["forebay_requests_total", "chat", "completed", "interactive"] == 3
        assert value["forebay_shed_total", "chat", "interactive", "never_fits"] == 1
        assert value["forebay_arrived_total", "chat", "interactive"] == 4
        assert value["forebay_permits", "chat", "r0"] == 0
        assert value["forebay_queue_wait_seconds_count", "chat", "interactive"] == 3
        assert value["forebay_output_tokens_total", "chat", "interactive"] == 3

    world(test, whole)


# -- refusals and Retry-After -------------------------------------------------------------------------------------------------


def test_retry_after_is_real_seconds_and_spread(world, one_slot, spec):
    """Thirty world seconds at twenty times the speed are 1.5 real ones; no two clients are told the same."""

    async def test(front):
        first = await front.client()
        first.send("/v1/chat/completions", CHAT)
        await front.sleep(0.01)
        waits = await asyncio.gather(*[front.ask(CHAT) for _ in range(8)])
        assert {answer.status for answer in waits} == {429}
        told_ms = [int(answer.headers["retry-after-ms"]) for answer in waits]
        assert all(1000 <= ms <= 60_000 for ms in told_ms)
        assert len(set(told_ms)) > 4
        assert all(
            int(answer.headers["retry-after"]) * 1000 >= ms > (int(answer.headers["retry-after"]) - 1) * 1000
            for answer, ms in zip(waits, told_ms, strict=True)
        )
        assert front.counts().shed == 8

    world(test, hangs, capacity=one_slot, speed=20.0)


def test_a_wait_that_expires_is_answered_by_one_timer(world, one_slot):
    async def test(front):
        first, second = await front.client(), await front.client()
        first.send("/v1/chat/completions", CHAT)
        await front.sleep(0.1)
        started_s = front.clock.now_s()
        answer = await second.ask("/v1/chat/completions", CHAT)
        assert (answer.status, error_of(answer)["code"]) == (429, "queue_wait_expired")
        assert front.clock.now_s() - started_s == pytest.approx(30.0, abs=0.1)

    world(test, hangs, capacity=one_slot)


def test_who_waits_longest_in_one_pool_does_not_hold_up_who_waits_in_another(world, one_slot, spec):
    """The timer set for what is left in the pool where one had just expired was kept, though another pool's next was due before it."""
    pools = (*spec.pools, Pool("other", "small", EngineKind("attach")))
    two_pools = msgspec.structs.replace(spec, pools=pools, models=(*spec.models, Model("small", 8192)))

    async def test(front):
        first, second = front.engines
        replicas = (RosterReplica("r0", first.url, one_slot), RosterReplica("r1", second.url, one_slot))
        front.version += 1
        front.gateway.apply(Roster(1, front.version, 10.0, (RosterPool("chat", replicas[:1]), RosterPool("other", replicas[1:]))))

        async def waited_s(model, from_s):
            client = await front.client()
            await front.sleep(from_s)
            began_s = front.clock.now_s()
            answer = await client.ask("/v1/chat/completions", CHAT | {"model": model})
            assert error_of(answer)["code"] == "queue_wait_expired"
            return front.clock.now_s() - began_s

        for model in ("llama", "small"):
            (await front.client()).send("/v1/chat/completions", CHAT | {"model": model})
        waits_s = await asyncio.gather(waited_s("llama", 1.0), waited_s("small", 2.0), waited_s("llama", 20.0))
        assert waits_s == pytest.approx([30.0] * 3, abs=0.1)

    world(test, hangs, hangs, spec=two_pools)


# -- rosters and snapshots ----------------------------------------------------------------------------------------------------


def test_older_rosters_are_ignored(world):
    async def test(front):
        gateway = front.gateway
        present = gateway.roster
        assert (gateway.apply(Roster(1, present.version, 1.0, ())).version, gateway.roster) == (present.version, present)
        assert gateway.apply(Roster(0, 99, 1.0, ())).term == 1
        newer = Roster(2, 0, 1.0, present.pools)
        ack = gateway.apply(newer)
        assert (ack.gateway, ack.term, ack.version) == ("gw-1", 2, 0)
        assert gateway.pools_served() == {"chat"}

    world(test, whole)


def test_a_replica_that_left_finishes_its_streams_and_gets_no_more(world):
    async def slow(_, answer):
        await asyncio.sleep(5)
        await whole(_, answer)

    async def test(front):
        client = await front.client()
        client.send("/v1/chat/completions", CHAT)
        await front.sleep(0.1)
        left = front.engines[0] if front.engines[0].seen else front.engines[1]
        other = front.engines[1] if left is front.engines[0] else front.engines[0]
        front.route(other)
        for _ in range(4):
            assert (await front.ask(CHAT)).status == 200
        assert (await client.read()).status == 200
        assert len(left.seen) == 1

    world(test, slow, slow)


def test_requests_wait_for_the_first_replica(world):
    async def test(front):
        front.route()
        client = await front.client()
        client.send("/v1/chat/completions", CHAT)
        await front.sleep(5)
        assert front.waiting == 1
        front.route(front.engines[0])
        assert (await client.read()).status == 200

    world(test, whole)


def test_a_stream_that_waits_holds_its_body_once_and_is_asked_with_more(world):
    async def test(front):
        front.route()
        client = await front.client()
        client.send("/v1/chat/completions", CHAT | {"stream": True})
        await front.sleep(5)
        (waiting,) = front.gateway.records.waited.values()
        assert waiting._body is waiting._request.body
        front.route(front.engines[0])
        await client.read()
        (seen,) = front.engines[0].seen
        assert json.loads(seen.body)["stream_options"] == {"include_usage": True}

    world(test, whole)


def test_a_snapshot_says_what_waits_and_what_runs(world, one_slot):
    async def test(front):
        clients = [await front.client() for _ in range(3)]
        for client in clients:
            client.send("/v1/chat/completions", {**CHAT, "service_tier": "batch"})
        await front.sleep(0.5)
        snapshot = front.gateway.snapshot()
        load = snapshot.pools[0]
        lane = next(lane for lane in load.lanes if lane.tier == "batch")
        assert (snapshot.gateway, lane.waiting, lane.preemptible) == ("gw-1", 2, True)
        assert lane.oldest_wait_s == pytest.approx(0.5, abs=0.05)
        assert (load.replicas[0].streams, load.replicas[0].preemptible_streams) == (1, 1)
        assert msgspec.json.decode(msgspec.json.encode(snapshot), type=type(snapshot)) == snapshot

    world(test, hangs, capacity=one_slot)


def test_a_static_roster_takes_profiles_and_attached_urls():
    profile = next(iter(PROFILES.values()))
    attach = EngineKind("attach", attach=("http://127.0.0.1:1", "http://127.0.0.1:2"))
    spec = Spec(
        pools=(Pool("a", "m", attach, profile=profile), Pool("b", "m2", attach)),
        models=(Model("m", 4096), Model("m2", 2048)),
        tiers=(),
    )
    roster = static_roster(spec)
    assert [[replica.url for replica in pool.replicas] for pool in roster.pools] == [list(attach.attach)] * 2
    assert [replica.id for replica in roster.pools[0].replicas] == ["a@127.0.0.1:1", "a@127.0.0.1:2"], (
        "told by address, as under a controller"
    )
    assert roster.pools[0].replicas[0].capacity.kv_tokens == profile.kv_tokens
    other = roster.pools[1].replicas[0].capacity
    assert (other.kv_tokens, other.sequences, other.prefill_tokens, other.context_tokens) == (1_000_000, 256, 65_536, 2048)


# -- drain -----------------------------------------------------------------------------------------------------------------


def test_a_drain_lets_streams_end_and_takes_no_connections(world):
    async def slow(_, answer):
        await asyncio.sleep(10)
        await whole(_, answer)

    async def test(front):
        busy, idle = await front.client(), await front.client()
        assert (await idle.ask("/health")).status == 200
        busy.send("/v1/chat/completions", CHAT)
        await front.sleep(0.1)
        draining = asyncio.ensure_future(front.gateway.drain())
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectionRefusedError):
            await front.client()
        health = await idle.ask("/health")
        assert (health.status, health.headers["connection"]) == (503, "close")
        assert not draining.done()
        assert (await busy.read()).status == 200
        await draining
        assert 10 <= front.clock.now_s() < 11

    world(test, slow)


def test_secrets_are_not_kept_as_they_are(team_spec):
    """A dump of the identities shows no key."""
    identity = Identity(team_spec)
    assert "sk-search" not in json.dumps([repr(key) + repr(value) for key, value in identity._callers.items()])


def test_a_gateway_without_a_replica_is_healthy_and_not_ready(world):
    """It takes requests, and holds them: a balancer that sent none would leave a pool at zero asleep."""

    async def test(front):
        health, ready = [await front.ask(None, target=path) for path in ("/health", "/ready")]
        assert (health.status, ready.status) == (200, 200)
        assert ready.json() == {"status": "ready", "pools": {"chat": {"replicas": 1, "elsewhere": 0}}}
        front.route()
        health, ready = [await front.ask(None, target=path) for path in ("/health", "/ready")]
        assert (health.status, ready.status) == (200, 503)
        assert ready.json() == {"status": "waiting", "pools": {"chat": {"replicas": 0, "elsewhere": 0}}}
        front.route(*front.engines)
        idle = await front.client()
        await idle.ask("/health")
        busy = await front.client()
        busy.send("/v1/chat/completions", CHAT)
        await front.sleep(0.1)
        draining = asyncio.ensure_future(front.gateway.drain())
        await asyncio.sleep(0.1)
        ready = await idle.ask("/ready")
        assert (ready.status, ready.json()["status"]) == (503, "draining")
        assert (await busy.read()).status == 200
        await draining

    async def slow(seen, answer):
        await asyncio.sleep(5)
        await whole(seen, answer)

    world(test, slow)


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_a_load_balancer_may_ask_with_head(world, path):
    async def test(front):
        front.route(*front.engines)
        client = await front.client()
        client.writer.write(b"HEAD " + path.encode() + b" HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        said = await client.reader.read()
        assert said.startswith(b"HTTP/1.1 200 ")
        assert said.endswith(b"\r\n\r\n")

    world(test, whole)


def test_a_drain_waits_for_what_slow_clients_have_not_taken_yet(world):
    async def large(_, answer):
        answer.json(200, {"text": "x" * 900_000})

    async def test(front):
        client = await front.client()
        client.writer.transport.pause_reading()
        body = b'{"model":"llama","messages":[]}'
        client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        await asyncio.sleep(1.0)
        assert front.gateway.desk.live == 0
        draining = asyncio.ensure_future(front.gateway.drain())
        await asyncio.sleep(5.0)
        client.writer.transport.resume_reading()
        said = await client.reader.read()
        await draining
        assert said.endswith(b"x" * 100 + b'"}')

    world(test, large)
