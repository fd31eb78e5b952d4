"""Engines that ask for a key: shown it with every request there is, and nobody else ever is; one that refuses it leaves the others to serve."""

import asyncio
import json

import msgspec
import pytest
from gateway_values import SPEC, TEAMS

from forebay.admission.machine import NO_REPLICAS_HOLD_S
from forebay.admission.outliers import EJECT_S, LOCKED_S_MAX
from forebay.app.engine_keys import EngineKeys
from forebay.gateway.recovery import RETRIES_MAX
from forebay.spec.types import EngineKind, Team

KEY, OTHER = "sk-engine-0123456789", "sk-engine-9876543210"
CLIENT = "sk-search"
CHAT = {"model": "llama", "messages": [{"role": "user", "content": "hi"}]}
SECRETS = {
    "authorization": f"Bearer {CLIENT}",
    "x-api-key": CLIENT,
    "api-key": CLIENT,
    "cookie": f"session={CLIENT}",
    "proxy-authorization": f"Basic {CLIENT}",
}


def keyed(**more):
    pool = msgspec.structs.replace(SPEC.pools[0], engine=EngineKind("attach", key_env="CHAT_KEY", **more))
    return msgspec.structs.replace(SPEC, pools=(pool,), teams=(Team("search", keys=((CLIENT, "interactive"),)),))


def show(front, key=KEY):
    """Have the gateway show ``key`` to its engines."""
    keys = EngineKeys(front.gateway.spec, front.gateway.upstream.authorize, {"CHAT_KEY": key})
    front.gateway.meet = keys.meet
    front.route(*front.engines)
    return keys


def shown(seen):
    return seen.headers.get(b"authorization", b"").decode()


def asking(key, script):
    """An engine that answers only to who shows ``key``; ``key[0]`` may change."""

    async def guarded(seen, answer):
        if shown(seen) != f"Bearer {key[0]}":
            answer.json(401, {"error": f"Unauthorized: {shown(seen)}"}, b"www-authenticate: Bearer realm=" + key[0].encode())
        else:
            await script(seen, answer)

    return guarded


async def whole(seen, answer):
    answer.json(200, {"id": "resp_1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})


async def locked(seen, answer):
    answer.json(401, {"error": "Unauthorized"})


def id_chunk(answer, text, ids, prompt=None):
    choice = {"index": 0, "text": text, "finish_reason": None, "token_ids": ids}
    answer.event({"object": "text_completion", "choices": [choice | ({"prompt_token_ids": prompt} if prompt else {})]})


def paths(front):
    return {seen.line.split(b" ")[1].decode() for engine in front.engines for seen in engine.seen}


def said(front):
    """All that the gateway has told anybody but engines."""
    return repr([(event.kind, event.message, event.detail) for event in front.sink.events])


def test_every_kind_of_request_shows_the_engine_its_key_and_none_shows_the_clients(world):
    asked = [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"model": "llama", "prompt": "hi"}),
        ("/v1/embeddings", {"model": "llama", "input": "hi"}),
        ("/v1/responses", {"model": "llama", "input": "hi"}),
        ("/v1/messages", {"model": "llama", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/messages/count_tokens", {"model": "llama", "messages": [{"role": "user", "content": "hi"}]}),
        ("/tokenize", {"model": "llama", "prompt": "hi"}),
        ("/v1/chat/completions", {**CHAT, "padding": "x" * 100_000}),
    ]

    async def test(front):
        show(front)
        told = []
        for target, body in asked:
            answer = await front.ask(body, SECRETS, target)
            told.append((answer.status, answer.headers, answer.body))
            assert answer.status == 200, (target, answer.body)
        client = await front.client()
        told.append((await client.ask("/v1/responses/resp_1", headers=SECRETS)).body)
        told.append((await client.ask("/metrics")).body)
        assert paths(front) >= {target for target, _ in asked} | {"/v1/responses/resp_1"}
        for seen in front.engines[0].seen:
            assert shown(seen) == f"Bearer {KEY}", seen.line
            assert seen.head.lower().count(b"authorization") == 1
            assert CLIENT.encode() not in seen.head + seen.body
        assert KEY not in repr(told) + said(front)

    world(test, asking([KEY], whole), spec=keyed())


def test_a_body_that_is_passed_on_as_it_comes_shows_it_too(world):
    limits = msgspec.structs.replace(SPEC.limits, body_bytes_max=1000)

    async def test(front):
        show(front)
        answer = await front.ask({**CHAT, "padding": "x" * 5000}, SECRETS | {"content-type": "application/json"})
        assert answer.status == 200
        assert shown(front.engines[0].seen[0]) == f"Bearer {KEY}"

    world(test, asking([KEY], whole), spec=keyed(), limits=limits)


def test_what_goes_on_elsewhere_and_what_is_aborted_by_id_shows_it(world):
    """The rest of an answer by token ids, the text of its last ones, and a client that left."""

    async def dies(seen, answer):
        path = seen.line.split(b" ")[1]
        if path == b"/detokenize":
            answer.json(200, {"prompt": ""})
        elif path == b"/abort_requests":
            answer.json(200, {})
        elif seen.json().get("prompt") == "hi":
            answer.stream()
            id_chunk(answer, "a", [5], [1, 2])
            id_chunk(answer, "", [6])
            await asyncio.sleep(0.1)
            answer.cut()
        else:
            answer.stream()
            id_chunk(answer, "b", [7])
            await answer.gone.wait()

    async def test(front):
        show(front)
        client = await front.client()
        client.send("/v1/completions", {"model": "llama", "prompt": "hi", "stream": True, "max_tokens": 9}, SECRETS)
        await front.sleep(1.0)
        client.close()
        await front.sleep(1.0)
        assert paths(front) >= {"/v1/completions", "/abort_requests"}
        assert sum(len(engine.seen) for engine in front.engines) >= 3
        for engine in front.engines:
            assert all(shown(seen) == f"Bearer {KEY}" for seen in engine.seen)

    world(test, asking([KEY], dies), asking([KEY], dies), spec=keyed(abort_by_id=True))


def test_an_engine_that_refuses_its_key_is_out_at_once_and_the_others_serve(world):
    async def test(front):
        show(front, OTHER)
        answers = [await front.ask(CHAT, SECRETS) for _ in range(6)]
        assert [answer.status for answer in answers] == [200] * 6
        assert len(front.engines[0].seen) <= 1
        assert front.counts().completed == 6
        (event,) = [event for event in front.sink.events if event.kind == "engine_asks_key"]
        assert event.message.startswith("r0 refuses its key (it answers 401): pools.chat.engine has it from key_env CHAT_KEY; ")
        assert OTHER not in said(front)
        page = (await front.ask(None, target="/metrics")).body.decode()
        assert 'forebay_asking_replicas{pool="chat"} 1.0' in page

    world(test, locked, whole, spec=keyed())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [401, 403])
def test_where_all_refuse_the_client_gets_our_503_and_not_the_engines_words(world, stream, status):
    """It was passed on: a client was told that its key is wrong, which is right."""

    async def refuses(seen, answer):
        answer.json(status, {"error": {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}})

    async def test(front):
        show(front)
        answer = await front.ask({**CHAT, "stream": stream}, SECRETS)
        assert answer.status == 503
        error = answer.json()["error"]
        assert sorted(error) == ["code", "message", "param", "type"]
        assert (error["code"], error["type"]) == ("engine_asks_key", "service_unavailable")
        assert KEY not in repr((answer.headers, answer.body)) + said(front)
        assert "retry-after" in answer.headers
        assert len(front.engines[0].seen) <= 1 + NO_REPLICAS_HOLD_S / EJECT_S, "one request, and probes"
        assert front.clock.now_s() < NO_REPLICAS_HOLD_S + 3
        later = await front.ask({**CHAT, "stream": stream}, SECRETS)
        assert (later.status, later.json()["error"]["code"]) == (503, "engine_asks_key")
        counts = front.counts()
        assert (counts.completed, counts.shed) == (0, 2)

    world(test, refuses, spec=keyed())


def test_a_client_whose_words_a_filter_refuses_takes_no_engine_away(world):
    """403 is a proxy's word for much; that it is the key's, an engine says of a request of ours too."""

    async def filtered(seen, answer):
        if b"forbidden words" in seen.body:
            answer.json(403, {"error": "blocked"})
        else:
            await whole(seen, answer)

    async def test(front):
        show(front)
        bad = {**CHAT, "messages": [{"role": "user", "content": "forbidden words"}]}
        for _ in range(5):
            answer = await front.ask(bad, SECRETS)
            assert answer.status == 503
        await front.sleep(1.0)
        assert front.gateway.desk.pools["chat"].outliers.out == []
        assert "engine_asks_key" not in front.sink.kinds()
        assert (await front.ask(CHAT, SECRETS)).status == 200

    world(test, filtered, filtered, spec=keyed())


def test_what_needs_no_permit_is_asked_of_another_and_then_refused_in_our_words(world):
    async def test(front):
        show(front)
        body = {"model": "llama", "prompt": "hi"}
        assert [(await front.ask(body, SECRETS, "/tokenize")).status for _ in range(4)] == [200] * 4
        assert len(front.engines[0].seen) == 1, "it is known by then"
        front.engines[1].script = locked
        for _ in range(2):
            answer = await front.ask(body, SECRETS, "/tokenize")
            assert (answer.status, answer.json()["error"]["code"]) == (503, "engine_asks_key")

    world(test, locked, whole, spec=keyed())


def test_it_is_no_retry_storm_however_many_ask(world):
    async def test(front):
        show(front, OTHER)
        clients = [await front.client() for _ in range(20)]
        for client in clients:
            client.send("/v1/chat/completions", CHAT, SECRETS)
        for client in clients:
            answer = await client.read()
            assert (answer.status, answer.json()["error"]["code"]) == (503, "engine_asks_key")
        before = len(front.engines[0].seen)
        assert before <= 8 + NO_REPLICAS_HOLD_S / EJECT_S, "no more than were under way at once, and probes"
        await front.sleep(600.0)
        probes = len(front.engines[0].seen) - before
        assert 600 / LOCKED_S_MAX - 1 <= probes <= 600 / LOCKED_S_MAX + 5
        assert [event.kind for event in front.sink.events].count("engine_asks_key") == 1

    world(test, locked, spec=keyed())


def test_another_key_to_show_has_it_asked_at_once_and_it_serves(world):
    key = [KEY]

    async def test(front):
        keys = show(front, OTHER)
        assert (await front.ask(CHAT, SECRETS)).status == 503
        await front.sleep(200.0)  # by now it is asked once a minute
        keys._environment = {"CHAT_KEY": KEY}
        assert keys.use(keys.read(front.gateway.spec))
        front.gateway.desk.knock()
        begun_s = front.clock.now_s()
        assert (await front.ask(CHAT, SECRETS)).status == 200
        assert front.clock.now_s() - begun_s < 3
        kinds = [event.kind for event in front.sink.events if event.kind.startswith(("engine_", "replica_"))]
        assert kinds == ["engine_asks_key", "replica_readmitted"]

    world(test, asking(key, whole), spec=keyed())


def test_a_probe_that_is_refused_for_want_of_a_key_was_no_good_answer(world):
    """Any status below 500 was: an engine that came back behind a key was sent requests, which its clients had refused."""

    async def test(front):
        show(front, OTHER)
        front.gateway.desk.failed(front.gateway.desk.pools["chat"], "r0", "nobody listens", gone=True)
        await front.sleep(EJECT_S + 2)
        kinds = [event.kind for event in front.sink.events if event.kind.startswith(("engine_", "replica_"))]
        assert kinds == ["replica_ejected", "engine_asks_key"]
        assert len(front.engines[0].seen) == 1

    world(test, locked, spec=keyed())


def test_an_answer_that_is_gone_on_with_at_an_engine_that_refuses_goes_on_at_the_next(world):
    """One of three begins it and dies; one refuses the key; the last goes on."""
    begun = []

    async def script(seen, answer):
        if seen.json().get("prompt") != "hi":
            if len(begun) == 1:
                begun.append("refused")
                answer.json(401, {"error": "Unauthorized"})
                return
            answer.stream()
            id_chunk(answer, "b", [7])
            answer.event({"object": "text_completion", "choices": [{"index": 0, "text": "", "finish_reason": "length", "token_ids": []}]})
            answer.done()
            return
        begun.append("begun")
        answer.stream()
        id_chunk(answer, "a", [5], [1, 2])
        await asyncio.sleep(0.1)
        answer.cut()

    async def test(front):
        show(front)
        answer = await front.ask({"model": "llama", "prompt": "hi", "stream": True, "max_tokens": 9}, SECRETS, "/v1/completions")
        assert answer.complete
        texts = [choice["text"] for event in answer.events()[:-1] for choice in event["choices"]]
        assert "".join(texts) == "ab"
        assert answer.events()[-1] == "[DONE]"
        assert begun == ["begun", "refused"]
        assert [event.kind for event in front.sink.events].count("engine_asks_key") == 1

    assert RETRIES_MAX >= 2
    world(test, script, script, script, spec=keyed())


def test_an_error_event_that_asks_for_a_key_is_no_fault_of_the_clients_either(world):
    async def says(seen, answer):
        if not seen.json().get("stream"):
            await locked(seen, answer)
            return
        answer.stream()
        answer.event({"error": {"message": f"bad key {KEY}", "type": "auth", "code": 401}})
        answer.done()

    async def test(front):
        show(front)
        answer = await front.ask({**CHAT, "stream": True}, SECRETS)
        assert (answer.status, answer.json()["error"]["code"]) == (503, "engine_asks_key")
        assert KEY not in answer.body.decode() + said(front)

    world(test, says, spec=keyed())


def test_without_a_key_nothing_is_added_and_an_engine_that_asks_is_told_how_to_be_given_one(world):
    spec = msgspec.structs.replace(SPEC, teams=TEAMS)

    async def test(front):
        assert (await front.ask(CHAT, SECRETS)).status == 503
        assert shown(front.engines[0].seen[0]) == ""
        words = next(event.message for event in front.sink.events if event.kind == "engine_asks_key")
        for word in (
            "r0 asks for a key (it answers 401)",
            "key_env",
            "key_file",
            "pools.chat.engine",
            f"{{url: {front.engines[0].url}, key_env: …}}",
        ):
            assert word in words

    world(test, locked, spec=spec)


def test_the_record_of_a_request_holds_no_key(world):
    async def test(front):
        show(front)
        await front.ask({**CHAT, "stream": True}, SECRETS | {"x-request-id": "mine"})
        record = await front.ask(None, SECRETS, "/forebay/v1/requests/mine")
        assert record.status == 200
        assert KEY not in record.body.decode()
        assert CLIENT not in record.body.decode()
        assert json.loads(record.body)

    world(test, asking([OTHER], whole), whole, spec=keyed())
