"""All endpoints besides chat and completions: what passes, what never does, and in whose form errors are told."""

import asyncio
import json

import msgspec
import pytest

from forebay.domain.roster import Roster, RosterPool, RosterReplica
from forebay.gateway.dialects import in_shape
from forebay.gateway.holders import Holder, Holders
from forebay.gateway.routes import POSTS, kept_response

FOUR = {"message", "type", "param", "code"}
JSON_POSTS = sorted(path.decode() for path, route in POSTS.items() if not route.multipart)
ADMIN = [
    "/pause", "/resume", "/is_paused", "/sleep", "/wake_up", "/is_sleeping", "/abort_requests", "/inference/v1/abort_requests", "/inference/v1/generate",
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/collective_rpc",
    "/start_profile", "/stop_profile", "/server_info", "/scale_elastic_ep", "/is_scaling_elastic_ep", "/fault_tolerance/apply", "/update_weights",
    "/init_weight_transfer_engine", "/update_weight_version", "/release_kv_cache_memory", "/kv_event_sources", "/tokenizer_info", "/invocations", "/load",
    "/version", "/ping", "/get_world_size", "/v1/chat/completions/render", "/v1/messages/render", "/docs", "/openapi.json", "/emulator/fault",
    "/v1/chat/completions/", "//v1/chat/completions", "/v1/../pause", "/v1/responses/../../pause", "/v1/responses/a/../../../sleep", "/v1/responses/%2e%2e",
    "/v1/chat%2fcompletions", "/V1/chat/completions", "http://engine:8000/pause", "*", "/v1/chat/completions#x",
]  # fmt: skip


async def echo(seen, answer):
    answer.json(200, {"got": seen.line.decode(), "usage": {"prompt_tokens": 3, "completion_tokens": 2}})


def told(*events, done=b""):
    """An engine that streams these typed events and then ends, or is cut."""

    async def script(seen, answer):
        answer.stream()
        for event in events:
            answer.chunk(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps(event).encode()))
        answer.raw(done) if done else answer.cut()

    return script


END = b"0\r\n\r\n"
CREATED = {
    "type": "response.created",
    "sequence_number": 0,
    "response": {"id": "resp_1", "object": "response", "status": "in_progress", "output": []},
}
DELTA = {"type": "response.output_text.delta", "sequence_number": 1, "item_id": "m", "delta": " water"}
USAGE = {"input_tokens": 7, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}}
COMPLETED = {"type": "response.completed", "sequence_number": 3, "response": {"id": "resp_1", "status": "completed", "usage": USAGE}}
START = {
    "type": "message_start",
    "message": {"id": "msg_1", "usage": {"input_tokens": 7, "output_tokens": 0, "cache_read_input_tokens": 5}},
}
BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
BLOCK_DELTA = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " water"}}
MESSAGE_DELTA = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}
STOP = {"type": "message_stop"}
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
ASK = {"model": "llama", "input": "hi", "stream": True}
MESSAGE = {"model": "llama", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "stream": True}
RESPONSE = told(CREATED, DELTA, {**DELTA, "sequence_number": 2}, COMPLETED, done=END)
ANTHROPIC = told(START, BLOCK, BLOCK_DELTA, {"type": "ping"}, BLOCK_DELTA, MESSAGE_DELTA, STOP, done=END)


def typed(response):
    """(event name, data) of each event; none is half."""
    pieces = response.body.split(b"\n\n")
    assert pieces.pop() == b""
    events = [piece.strip().split(b"\ndata: ", 1) for piece in pieces if piece.strip()]
    return [(name.removeprefix(b"event: ").decode(), json.loads(data)) for name, data in events]


@pytest.mark.parametrize("path", JSON_POSTS)
def test_every_endpoint_passes_with_its_body_untouched(world, path):
    body = b'{ "model":"llama", "unknown":{"a":[1.50,null]},\n"input":"\\u00e9", "max_tokens": 5.0 }'

    async def test(front):
        client = await front.client()
        client.send(
            path + "?api-version=1", body, {"content-type": "application/json", "traceparent": "00-ab-cd-01", "x-request-id": "mine"}
        )
        answer = await client.read()
        (seen,) = front.engines[0].seen
        assert answer.json()["got"] == f"POST {path}?api-version=1 HTTP/1.1"
        assert seen.body == body
        assert (seen.headers[b"traceparent"], seen.headers[b"x-request-id"]) == (b"00-ab-cd-01", b"mine")
        assert answer.headers["x-request-id"] == "mine"

    world(test, echo)


@pytest.mark.parametrize("path", ADMIN)
def test_engines_admin_routes_are_never_reached(world, path):
    async def test(front):
        client = await front.client()
        for method in ("GET", "POST", "DELETE"):
            answer = await client.ask(path, b'{"model":"llama"}', {"content-type": "application/json"}, method)
            assert answer.status in {404, 405, 400}
            assert set(answer.json()["error"]) in (FOUR, {"type", "message"})
            if answer.headers.get("connection") == "close":
                client = await front.client()
        assert not front.engines[0].seen

    world(test, echo)


@pytest.mark.parametrize(
    ("path", "meant"),
    [("/chat/completions", "/v1/chat/completions"), ("/v1/v1/messages", "/v1/messages"), ("/v1/rerank/x", None), ("/v1/files", None)],
)
def test_a_base_url_without_v1_or_with_two_is_told_what_was_meant(world, path, meant):
    async def test(front):
        message = (await front.ask({}, target=path)).json()["error"]["message"]
        assert message.startswith(f"Unknown request URL: {path}.")
        assert (f"Did you mean {meant}?" in message) if meant else ("mean" not in message)

    world(test, echo)


@pytest.mark.parametrize("path", ["/v1/files", "/v1/files/file-1/content", "/v1/batches", "/v1/fine_tuning/jobs", "/nothing"])
def test_what_is_not_here_is_404_in_four_fields(world, path):
    async def test(front):
        answer = await front.ask(None, target=path)
        assert answer.status == 404
        assert set(answer.json()["error"]) == FOUR
        assert answer.json()["error"]["code"] == "unknown_url"
        assert answer.headers["x-request-id"]

    world(test, echo)


@pytest.mark.parametrize(
    ("target", "status"), [("/v1/models", 200), ("/v1/models/llama", 200), ("/v1/models/none", 404), ("/v1/chat/completions", 405)]
)
def test_every_answer_has_the_requests_id(world, target, status):
    async def test(front):
        answer = await front.ask(None, {"x-request-id": "mine"}, target)
        assert (answer.status, answer.headers["x-request-id"]) == (status, "mine")
        odd = await front.ask(None, {"x-request-id": "not mine;\t!"}, target)
        assert odd.headers["x-request-id"].startswith("req-")

    world(test, echo)


@pytest.mark.parametrize("value", [b"5", b"5.0", b"5e0", b'"5"'])
def test_an_integral_number_of_tokens_is_taken_as_engines_take_it(world, value):
    """``max_tokens: 5.0`` was refused, as JavaScript and pandas write it; the engine takes it, so the gateway does."""

    async def test(front):
        body = b'{"model":"llama","messages":[],"max_tokens":%b,"n":1.0}' % value
        assert (await front.ask(body)).status == 200
        assert front.engines[0].seen[0].body == body
        assert front.counts().completed_output_tokens == 2

    world(test, echo)


def test_a_body_to_rewrite_that_turns_out_not_to_be_json_is_refused(world):
    """A key that is no UTF-8 is skipped by the decoder of known fields; taken apart for an alias it raised, and the client saw a reset."""

    async def test(front):
        answer = await front.ask(b'{"model":"gpt-4o","\xff":1,"messages":[]}')
        assert (answer.status, set(answer.json()["error"])) == (400, FOUR)
        assert not front.engines[0].seen

    world(test, echo)


def test_half_a_token_is_refused(world):
    async def test(front):
        answer = await front.ask(b'{"model":"llama","messages":[],"max_tokens":5.5}')
        assert (answer.status, answer.json()["error"]["param"]) == (400, "max_tokens")

    world(test, echo)


def test_a_model_may_be_left_out_where_engines_let_it_be(world):
    async def test(front):
        assert (await front.ask({"query": "a", "documents": ["b"]}, target="/v1/rerank")).status == 200
        assert front.engines[0].seen[0].json()["model"] == "llama"
        assert (await front.ask({"messages": []})).status == 400

    world(test, echo)


def test_adapters_are_models_that_go_to_their_pool_as_they_are(world, spec):
    pools = (
        msgspec.structs.replace(spec.pools[0], adapters=("legal", "sql")),
        msgspec.structs.replace(spec.pools[0], name="two", model="qwen", adapters=("legal",)),
    )
    models = (*spec.models, msgspec.structs.replace(spec.models[0], name="qwen", aliases=()))

    async def test(front):
        replicas = front.gateway.roster.pools[0].replicas
        front.gateway.apply(Roster(1, 9, 10.0, (RosterPool("chat", replicas[:1]), RosterPool("two", replicas[1:]))))
        told = (await front.ask(None, target="/v1/models")).json()["data"]
        assert [(model["id"], model.get("parent")) for model in told] == [
            ("llama", None), ("qwen", None), ("gpt-4o", None), ("legal", "llama"), ("sql", "llama"),
        ]  # fmt: skip
        assert (await front.ask(None, target="/v1/models/sql")).json()["parent"] == "llama"
        for name, sent in (("legal", "legal"), ("sql", "sql"), ("gpt-4o", "llama"), ("llama", "llama")):
            body = json.dumps({"model": name, "messages": []}).encode()
            assert (await front.ask(body)).status == 200
            assert front.engines[0].seen[-1].json()["model"] == sent
            assert name == "gpt-4o" or front.engines[0].seen[-1].body == body
        assert (await front.ask({"model": "qwen", "messages": []})).status == 200
        assert len(front.engines[1].seen) == 1

    world(test, echo, echo, spec=msgspec.structs.replace(spec, pools=pools, models=models))


# -- errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"detail":"Not Found"}', "Not Found"),
        (b"Internal Server Error", "Internal Server Error"),
        (b'{"error":"no such thing"}', "no such thing"),
        (b'{"detail":"no \\"such\\" thing"}', 'no "such" thing'),
        (b'{"error":{"message":"too long","type":"BadRequestError","param":"max_tokens","code":400}}', "too long"),
        (b'{"object":"error","message":"old vLLM","type":"BadRequestError","code":400}', "old vLLM"),
        (b"", "The engine answered 404."),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_an_engines_error_is_told_in_four_fields_and_in_anthropics_form(body, expected):
    error = in_shape(404, body, b"/v1/embeddings")
    assert set(json.loads(error.body())["error"]) == FOUR
    assert error.message == expected
    assert (error.type, error.code) == ("invalid_request_error", None)
    assert in_shape(404, error.body(), b"/v1/embeddings") is None
    of_anthropic = in_shape(404, body, b"/v1/messages")
    assert (of_anthropic.status, of_anthropic.message) == (404, expected)


def test_an_engines_error_that_has_the_form_passes_as_it_is(world):
    told = {"error": {"message": "no", "type": "BadRequestError", "param": None, "code": None, "hint": 1}}

    async def test(front):
        assert (await front.ask({"model": "llama", "input": "a"}, target="/v1/embeddings")).json() == told

    async def script(seen, answer):
        answer.json(400, told)

    world(test, script)


@pytest.mark.parametrize(
    ("status", "kind", "body", "headers"),
    [
        (401, "authentication_error", MESSAGE, {"x-api-key": "sk-wrong"}),
        (404, "not_found_error", {**MESSAGE, "model": "none"}, {}),
        (400, "invalid_request_error", {**MESSAGE, "max_tokens": []}, {}),
        (413, "request_too_large", b"x" * 5000, {}),
    ],
)
def test_anthropics_clients_get_anthropics_errors(world, team_spec, status, kind, body, headers):
    spec = msgspec.structs.replace(
        team_spec, limits=msgspec.structs.replace(team_spec.limits, body_bytes_max=4000, streamed_body_bytes_max=4500)
    )

    async def test(front):
        answer = await front.ask(body, {"x-api-key": "sk-search", **headers}, MESSAGES)
        assert (answer.status, answer.json()["type"], answer.json()["error"]["type"]) == (status, "error", kind)

    world(test, echo, spec=spec)


def test_an_anthropic_key_is_a_key(world, team_spec):
    async def test(front):
        assert (await front.ask(MESSAGE, {"x-api-key": "sk-search", "anthropic-version": "2023-06-01"}, MESSAGES)).status == 200
        (seen,) = front.engines[0].seen
        assert b"x-api-key" not in seen.headers
        assert seen.headers[b"anthropic-version"] == b"2023-06-01"

    world(test, echo, spec=team_spec)


# -- streams whose events name their type -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "target", "body", "prompt_tokens", "last"),
    [(RESPONSE, RESPONSES, ASK, 7, "response.completed"), (ANTHROPIC, MESSAGES, MESSAGE, 12, "message_stop")],
    ids=["responses", "messages"],
)
def test_a_typed_stream_passes_and_is_metered(world, script, target, body, prompt_tokens, last):
    async def test(front):
        answer = await front.ask(body, target=target)
        assert answer.complete
        assert typed(answer)[-1][0] == last
        meter = front.gateway.desk.pools["chat"].meters["interactive"]
        assert (meter.prompt_tokens, meter.output_tokens) == (prompt_tokens, 2)
        assert front.counts().completed == 1

    world(test, script)


@pytest.mark.parametrize(
    ("events", "target", "body"), [((CREATED,), RESPONSES, ASK), ((START,), MESSAGES, MESSAGE)], ids=["responses", "messages"]
)
def test_a_typed_stream_that_breaks_before_content_is_answered_by_another_replica(world, events, target, body):
    async def test(front):
        answer = await front.ask(body, target=target)
        assert typed(answer)[-1][0] in {"response.completed", "message_stop"}
        assert len(typed(answer)) > 3

    world(test, told(*events), RESPONSE if target == RESPONSES else ANTHROPIC)


def test_a_response_that_breaks_off_has_failed(world):
    """Silent truncation reads as success, and Codex waits for ``response.completed`` for ever (open-webui #29628)."""

    async def test(front):
        events = typed(await front.ask(ASK, target=RESPONSES))
        name, data = events[-1]
        assert name == data["type"] == "response.failed"
        assert data["response"]["status"] == "failed"
        assert data["response"]["id"] == "resp_1"
        assert data["response"]["error"]["message"]
        assert data["sequence_number"] == 2

    world(test, told(CREATED, DELTA))


@pytest.mark.parametrize("last", [DELTA, {"type": "error", "message": "EngineCore died", "code": "server_error", "sequence_number": 2}])
def test_a_response_nobody_knows_ends_with_an_error(world, last):
    async def test(front):
        name, data = typed(await front.ask(ASK, target=RESPONSES))[-1]
        assert name == data["type"] == "error"
        assert {"code", "message", "param", "sequence_number"} <= data.keys()

    world(test, told(DELTA, last))


@pytest.mark.parametrize("how", [BLOCK_DELTA, {"type": "error", "error": {"type": "internal_error", "message": "EngineCore died"}}])
def test_a_message_that_breaks_off_ends_with_anthropics_error_event(world, how):
    async def test(front):
        answer = await front.ask(MESSAGE, target=MESSAGES)
        name, data = typed(answer)[-1]
        assert answer.complete
        assert name == data["type"] == "error"
        assert data["error"]["type"] == "api_error"

    world(test, told(START, BLOCK, BLOCK_DELTA, how))


def test_a_clean_end_without_an_end_event_is_a_failure(world):
    async def test(front):
        assert typed(await front.ask(MESSAGE, target=MESSAGES))[-1][0] == "error"

    world(test, told(START, BLOCK, BLOCK_DELTA, done=END))


def test_sound_is_passed_on_as_it_is_made(world):
    async def test(front):
        client = await front.client()
        client.send("/v1/audio/speech", {"model": "llama", "input": "hi", "voice": "a"})
        assert "audio/mpeg" in await client.head()
        assert await client.event() == b"\x00\x01"
        assert front.permits == 1
        await front.sleep(2)
        assert await client.event() == b"\xff"
        assert await client.event() == b""
        await front.sleep(0.1)
        assert front.permits == 0

    async def script(seen, answer):
        answer.raw(b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ntransfer-encoding: chunked\r\n\r\n")
        answer.chunk(b"\x00\x01")
        await asyncio.sleep(1)
        answer.chunk(b"\xff")
        answer.raw(END)

    world(test, script)


# -- answers that engines keep ----------------------------------------------------------------------------------------------


def keeper(own):
    """An engine that keeps the response ``own`` and knows no other."""

    async def script(seen, answer):
        if seen.line.startswith(b"POST /v1/responses "):
            answer.json(200, {"id": own, "object": "response", "status": "completed", "usage": USAGE})
        elif own.encode() in seen.line:
            answer.json(200, {"id": own, "did": seen.line.decode()})
        else:
            answer.json(404, {"error": {"message": "not found", "type": "NotFoundError", "param": None, "code": 404}})

    return script


@pytest.mark.parametrize(
    ("method", "more"),
    [("GET", ""), ("GET", "?stream=false"), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items?limit=5")],
)
def test_a_response_is_asked_of_the_replica_that_keeps_it(world, method, more):
    async def test(front):
        own = (await front.ask({"model": "llama", "input": "a"}, target=RESPONSES)).json()["id"]
        before = [len(engine.seen) for engine in front.engines]
        client = await front.client()
        answer = await client.ask(f"{RESPONSES}/{own}{more}", method=method)
        assert (answer.status, answer.json()["did"]) == (200, f"{method} {RESPONSES}/{own}{more} HTTP/1.1")
        assert sum(len(engine.seen) for engine in front.engines) == sum(before) + 1
        assert (front.gateway.holders.find(own) is None) == (method == "DELETE")

    world(test, keeper("resp_a"), keeper("resp_b"), keeper("resp_c"))


def test_a_response_of_before_the_gateway_started_is_looked_for_everywhere(world):
    async def test(front):
        assert (await front.ask(None, target=f"{RESPONSES}/resp_c")).json()["id"] == "resp_c"
        assert [len(engine.seen) for engine in front.engines] == [1, 1, 1]
        answer = await front.ask(None, target=f"{RESPONSES}/resp_nobody")
        assert (answer.status, set(answer.json()["error"])) == (404, FOUR)

    world(test, keeper("resp_a"), keeper("resp_b"), keeper("resp_c"))


def test_another_teams_response_is_none(world, team_spec):
    async def test(front):
        own = (await front.ask({"model": "llama", "input": "a"}, {"authorization": "Bearer sk-search"}, RESPONSES)).json()["id"]
        mail = {"authorization": "Bearer sk-mail"}
        assert (await front.ask(None, mail, f"{RESPONSES}/{own}")).status == 404
        assert (await front.ask({"model": "llama", "input": "a", "previous_response_id": own}, mail, RESPONSES)).status == 404
        assert (await front.ask(None, None, f"{RESPONSES}/{own}")).status == 401
        assert len(front.engines[0].seen) == 1

    world(test, keeper("resp_a"), spec=team_spec)


def test_what_is_known_of_kept_answers_is_bounded():
    holders = Holders(3)
    for number in range(10):
        holders.learn(f"resp_{number}", Holder("http://a", "t"))
    assert len(holders) == 3
    assert holders.find("resp_9")
    assert not holders.find("resp_6")


@pytest.mark.parametrize(
    "path", [b"/v1/responses/", b"/v1/responses/a/b", b"/v1/responses/a/../b", b"/v1/responses/a%2f", b"/v1/responses/" + b"a" * 129]
)
def test_a_path_that_only_looks_like_a_response_is_none(path):
    assert kept_response(path) is None


# -- without a permit -------------------------------------------------------------------------------------------------------


def test_counting_tokens_waits_behind_nothing(world, one_slot):
    async def test(front):
        busy = await front.client()
        busy.send("/v1/chat/completions", {"model": "llama", "messages": []})
        await front.sleep(0.1)
        assert front.permits == 1
        assert (await front.ask({"model": "gpt-4o", "prompt": "a"}, target="/tokenize")).json()["got"].startswith("POST /tokenize")
        assert front.engines[0].seen[-1].json() == {"model": "llama", "prompt": "a"}

    async def script(seen, answer):
        if seen.line.startswith(b"POST /tokenize"):
            await echo(seen, answer)

    world(test, script, capacity=one_slot)


def test_a_light_request_is_tried_elsewhere(world):
    async def test(front):
        front.engines[0].stop()
        for _ in range(4):
            assert (await front.ask({"prompt": "a"}, target="/tokenize")).status == 200
        front.engines[1].stop()
        waits_ms = set()
        for _ in range(3):
            answer = await front.ask({"prompt": "a"}, target="/tokenize")
            assert (answer.status, answer.json()["error"]["code"]) == (502, "engines_failed")
            waits_ms.add(int(answer.headers["retry-after-ms"]))
        assert all(3750 <= wait_ms <= 6250 for wait_ms in waits_ms)
        assert len(waits_ms) > 1, "not all at one instant"
        front.gateway.apply(Roster(1, 9, 10.0, (RosterPool("chat", ()),)))
        answer = await front.ask({"prompt": "a"}, target="/tokenize")
        assert (answer.status, answer.json()["error"]["code"]) == (503, "no_replicas")
        assert int(answer.headers["retry-after"]) >= 1

    world(test, echo, echo)


def test_a_light_request_whose_client_leaves_is_over(world):
    async def test(front):
        client = await front.client()
        client.send("/detokenize", {"tokens": [1]})
        await front.sleep(0.1)
        client.close()
        await front.sleep(0.1)
        assert not front.engines[0].open

    async def script(seen, answer):
        await answer.gone.wait()

    world(test, script)


def test_a_replica_that_left_is_not_asked(world, spec):
    async def test(front):
        own = (await front.ask({"model": "llama", "input": "a"}, target=RESPONSES)).json()["id"]
        keeps = 0 if own == "resp_a" else 1
        front.gateway.apply(Roster(1, 8, 10.0, (RosterPool("chat", (RosterReplica("r", front.engines[1 - keeps].url, capacity(front)),)),)))
        assert (await front.ask(None, target=f"{RESPONSES}/{own}")).status == 404
        assert len(front.engines[keeps].seen) == 1

    def capacity(front):
        return front.gateway.roster.pools[0].replicas[0].capacity

    world(test, keeper("resp_a"), keeper("resp_b"))
