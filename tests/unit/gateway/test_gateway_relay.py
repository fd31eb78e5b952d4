"""The response path, over fake engines: what the client sees, and that permits are exact."""

import asyncio
import json

import msgspec
import pytest

from forebay.gateway.meters import Outcome
from forebay.gateway.recovery import RETRIES_MAX
from forebay.gateway.relay import REPORT_EVENTS
from forebay.gateway.whole import HELD_BYTES_MAX
from forebay.spec.types import Limits
from forebay.testing.loop import network

CHAT = {"model": "llama", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**CHAT, "stream": True}
USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
WHOLE = {
    "id": "c",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
    "usage": USAGE,
}
BUSY = {"error": {"message": "The engine is currently busy.", "type": "Service Unavailable", "param": None, "code": 503}}


async def whole(_, answer):
    answer.json(200, WHOLE, b"server: fake")


def tokens(count, pause_s=0.01):
    async def script(_, answer):
        answer.stream()
        answer.role()
        for number in range(count):
            answer.token(f"t{number}")
            await asyncio.sleep(pause_s)
        answer.token("", "stop")
        answer.event({"choices": [], "usage": USAGE})
        answer.done()

    return script


async def hangs(_, answer):
    await answer.gone.wait()


async def stream_hangs(_, answer):
    answer.stream()
    answer.role()
    answer.token("a")
    await answer.gone.wait()


def status(code, value=BUSY):
    async def script(_, answer):
        answer.json(code, value)

    return script


def in_stream(*events, done=True):
    async def script(_, answer):
        answer.stream()
        for value in events:
            answer.event(value)
        if done:
            answer.done()

    return script


def content(events):
    return "".join(e["choices"][0]["delta"].get("content", "") for e in events if e != "[DONE]" and e.get("choices"))


# -- answers that go well -------------------------------------------------------------------------------------------------


def test_a_whole_answer_passes_unchanged(world):
    async def test(front):
        answer = await front.ask(CHAT)
        assert (answer.status, answer.json(), answer.headers["server"]) == (200, WHOLE, "fake")
        assert answer.headers["content-type"] == "application/json"
        counts = front.counts()
        assert (counts.arrived, counts.completed, counts.failed) == (1, 1, 0)
        assert front.permits == 0

    world(test, whole)


def test_a_stream_passes_event_by_event(world):
    async def test(front):
        client = await front.client()
        client.send("/v1/chat/completions", {**STREAM, "stream_options": {"include_usage": True}})
        head = await client.head()
        assert "text/event-stream" in head
        assert "transfer-encoding: chunked" in head
        first = front.clock.now_s()
        assert (await client.event()).startswith(b"data: ")  # the role, held until there was content
        assert b"t0" in await client.event()
        assert front.gateway.http.bodies_bytes == 0  # it will not be sent again
        for number in range(1, 5):
            assert b"t%d" % number in await client.event()
            assert front.clock.now_s() == pytest.approx(first + number * 0.01, abs=0.005)
        assert front.permits == 1
        rest = [await client.event() for _ in range(4)]
        assert rest[-2:] == [b"data: [DONE]\n\n", b""]
        assert front.permits == 0
        assert front.counts().ttft_met == 1

    world(test, tokens(5))


def test_the_engine_sees_the_body_as_it_came_and_only_harmless_headers(world):
    async def test(front):
        body = b'{ "model":"llama", "messages":[],  "made_up": [1.50, {"x":"\\u00e9"}] }'
        headers = {
            "Authorization": "Bearer secret",
            "X-Request-Id": "abc-1",
            "Traceparent": "00-1-2-01",
            "Connection": "keep-alive, X-Hop",
            "X-Hop": "1",
            "Accept-Encoding": "gzip",
            "Cookie": "c",
            "User-Agent": "test",
            "TE": "trailers",
        }
        answer = await front.ask(body, headers)
        seen = front.engines[0].seen[0]
        assert seen.body == body
        assert seen.line == b"POST /v1/chat/completions HTTP/1.1"
        assert seen.headers == {
            b"host": front.engines[0].url.removeprefix("http://").encode(),
            b"user-agent": b"test",
            b"traceparent": b"00-1-2-01",
            b"via": b"1.1 " + front.gateway.http.itself,
            b"x-request-id": b"abc-1",
            b"content-length": str(len(body)).encode(),
        }
        assert answer.headers["x-request-id"] == "abc-1"

    world(test, whole)


def test_request_ids_are_made_where_none_or_no_usable_one_came(world):
    async def test(front):
        first = await front.ask(CHAT)
        second = await front.ask(CHAT, {"X-Request-Id": "bad id"})
        made = [first.headers["x-request-id"], second.headers["x-request-id"]]
        assert len(set(made)) == 2
        assert all(one.startswith("req-") for one in made)
        assert [seen.headers[b"x-request-id"].decode() for seen in front.engines[0].seen] == made

    world(test, whole)


def test_the_same_connection_serves_different_heads(world):
    """What was learned of one head must not be said of another."""

    async def test(front):
        client = await front.client()
        for name in ("one", "two", "two"):
            assert (await client.ask("/v1/chat/completions", CHAT, {"X-Request-Id": name})).headers["x-request-id"] == name
        assert [seen.headers[b"x-request-id"] for seen in front.engines[0].seen] == [b"one", b"two", b"two"]

    world(test, whole)


def test_a_clients_mistake_is_the_engines_to_tell(world):
    async def test(front):
        answer = await front.ask(CHAT)
        assert (answer.status, answer.json()) == (
            400,
            {"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": None}},
        )
        assert len(front.engines[1].seen) == 0
        assert front.counts().completed == 1

    world(test, status(400, {"error": {"message": "no"}}), whole)


def test_a_large_answer_flows_through_and_its_usage_is_found(world):
    data = {"data": ["x" * 1000] * 3000, "usage": USAGE}
    assert len(json.dumps(data)) > HELD_BYTES_MAX

    async def test(front):
        answer = await front.ask(CHAT)
        assert answer.complete
        assert answer.json() == data
        meter = front.gateway.desk.pools["chat"].meters["interactive"]
        assert (meter.prompt_tokens, meter.output_tokens) == (11, 3)

    world(test, status(200, data))


def test_a_long_response_that_is_no_stream_is_metered(world):
    """Its usage has other names than a completion's: it was metered as nothing."""

    async def long(_, answer):
        usage = {"input_tokens": 300, "output_tokens": 70, "input_tokens_details": {"cached_tokens": 200}}
        data = json.dumps({"id": "resp_1", "instructions": "x" * (HELD_BYTES_MAX + 1), "usage": usage}).encode()
        answer.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        answer.raw(data)
        answer.close()

    async def test(front):
        assert (await front.ask({"model": CHAT["model"], "input": "hi"}, target="/v1/responses")).status == 200
        meter = front.gateway.desk.pools["chat"].meters["interactive"]
        assert (meter.prompt_tokens, meter.output_tokens) == (300, 70)

    world(test, long)


def test_a_large_answer_without_length_flows_in_chunks(world):
    data = b"[" + b"1," * HELD_BYTES_MAX + b"1]"

    async def script(_, answer):
        answer.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        answer.raw(data)
        answer.close()

    async def test(front):
        answer = await front.ask(CHAT)
        assert answer.complete
        assert answer.body == data

    world(test, script)


def test_an_old_client_gets_a_stream_that_ends_with_the_connection(world):
    async def test(front):
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        body = json.dumps(STREAM).encode()
        writer.write(b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        head, _, stream = (await reader.read()).partition(b"\r\n\r\n")
        assert b"chunked" not in head
        assert stream.startswith(b"data: ")
        assert stream.endswith(b"data: [DONE]\n\n")
        writer.close()

    world(test, tokens(3))


# -- tried elsewhere --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "broken",
    [
        status(500, {"error": "cannot schedule new futures after shutdown"}),
        status(503),
        status(429),
        in_stream(BUSY),
        in_stream({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, {"choices": [{"delta": {}, "finish_reason": "abort"}]}),
        status(200, {"choices": [{"finish_reason": "abort"}], "usage": USAGE}),
    ],
    ids=["500", "503", "429", "busy-event", "abort", "abort-whole"],
)
def test_before_content_a_failure_is_tried_elsewhere(world, broken, body):
    async def test(front):
        answer = await front.ask(body)
        assert answer.status == 200
        assert answer.complete
        assert (len(front.engines[0].seen), len(front.engines[1].seen)) == (1, 1)
        counts = front.counts()
        assert (counts.completed, counts.failed, counts.truncated) == (1, 0, 0)
        assert front.gateway.desk.pools["chat"].meters["interactive"].retries == 1

    async def fine(seen, answer):
        await (tokens(3)(seen, answer) if seen.json().get("stream") else whole(seen, answer))

    async def first(seen, answer):
        if seen.json().get("stream") or "in_stream" not in broken.__qualname__:
            await broken(seen, answer)
        else:
            answer.json(500, BUSY)

    world(test, first, fine)


@pytest.mark.parametrize("after", ["nothing", "head", "role"])
def test_a_cut_before_content_is_tried_elsewhere(world, after):
    async def cuts(_, answer):
        if after != "nothing":
            answer.stream()
        if after == "role":
            answer.role()
        await asyncio.sleep(0.1)
        answer.cut()

    async def test(front):
        answer = await front.ask(STREAM)
        assert content(answer.events()) == "t0t1"

    world(test, cuts, tokens(2))


def test_an_engine_that_is_not_there_is_tried_elsewhere(world):
    async def test(front):
        network().refuse(front.engines[0].port)
        assert (await front.ask(CHAT)).status == 200

    world(test, whole, whole)


def test_never_the_same_replica_twice_and_the_client_is_told(world):
    async def test(front):
        answer = await front.ask(CHAT)
        assert answer.status == 503
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert [len(engine.seen) for engine in front.engines] == [1, 1]

    world(test, status(500), status(503))


def test_retries_are_bounded(world):
    async def test(front):
        answer = await front.ask(CHAT)
        assert (answer.status, answer.json()["error"]["code"]) == (503, "engines_failed")
        assert 3750 <= int(answer.headers["retry-after-ms"]) <= 6250
        assert sum(len(engine.seen) for engine in front.engines) == 1 + RETRIES_MAX
        assert front.counts().failed == 1
        assert f"started {1 + RETRIES_MAX} times" in answer.json()["error"]["message"]

    world(test, *[status(500)] * 5)


def test_who_is_not_tried_again_for_the_budgets_sake_is_told_which_one_its_size_and_what_to_do(world):
    """It was told "too much has been tried again", or that the engine answered 500 and no more."""

    async def test(front):
        front.gateway.retries._held = 0.0
        answer = await front.ask(CHAT)
        said = answer.json()["error"]["message"]
        assert "The engine answered 500. It is not tried again: " in said
        assert "budget of second tries is spent (512 at once, then one per 5 requests that come); ask again in some seconds." in said
        assert sum(len(engine.seen) for engine in front.engines) == 1
        page = (await front.ask(None, target="/metrics")).body.decode()
        assert "forebay_retries_denied_total 1.0" in page

    world(test, *[status(500)] * 2)


def test_a_stale_connection_is_no_failure_of_the_replica(world):
    async def test(front):
        assert (await front.ask(CHAT)).status == 200

        async def closes_once(_, answer):
            front.engines[0].script = whole
            answer.close()

        front.engines[0].script = closes_once
        assert (await front.ask(CHAT)).status == 200
        assert front.gateway.desk.pools["chat"].meters["interactive"].retries == 0

    world(test, whole)


def test_an_error_event_that_is_the_clients_fault_becomes_its_status(world):
    async def test(front):
        answer = await front.ask(STREAM)
        assert (answer.status, answer.json()["error"]["message"]) == (400, "too long")
        assert len(front.engines[1].seen) == 0

    world(test, in_stream({"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}}), whole)


# -- broken off after content ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cut", "close", "half", "clean", "abort", "error"])
def test_after_content_a_failure_is_said_in_the_stream(world, how):
    async def breaks(_, answer):
        answer.stream()
        answer.role()
        answer.token("a")
        await asyncio.sleep(0.1)
        if how == "half":
            answer.chunk(b'data: {"choices": [{"del')
            await asyncio.sleep(0.1)
        if how == "clean":
            answer.raw(b"0\r\n\r\n")
        elif how == "abort":
            answer.token("", "abort")
            answer.done()
        elif how == "error":
            answer.event({"error": {"message": "EngineCore died", "type": "InternalServerError", "param": None, "code": 500}})
            answer.done()
        elif how == "close":
            answer.close()
        else:
            answer.cut()

    async def test(front):
        client = await front.client()
        answer = await client.ask("/v1/chat/completions", STREAM)
        assert answer.status == 200
        assert answer.complete
        events = answer.events()
        assert content(events[:2]) == "a"
        assert set(events[2]["error"]) == {"message", "type", "param", "code"}
        assert events[3:] == ["[DONE]"]
        counts = front.counts()
        assert (counts.truncated, counts.completed, counts.failed) == (1, 0, 0)
        assert len(front.engines[1].seen) == 0
        front.engines[0].script = tokens(1)
        assert (await client.ask("/v1/chat/completions", STREAM)).complete  # the connection lives on
        await front.sleep(2)
        assert "streams_truncated" in front.sink.kinds()

    world(test, breaks, whole)


def test_a_long_answer_that_is_cut_is_not_made_to_look_whole(world):
    async def cuts(_, answer):
        answer.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9000000\r\n\r\n{" + b"x" * (HELD_BYTES_MAX + 10))
        await asyncio.sleep(0.5)
        answer.cut()

    async def test(front):
        answer = await front.ask(CHAT)
        assert not answer.complete
        assert front.counts().truncated == 1

    world(test, cuts)


# -- clients that leave, clients that are slow ------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
def test_a_client_that_leaves_stops_the_engine_at_once(world, body):
    async def test(front):
        client = await front.client()
        client.send("/v1/chat/completions", body)
        await front.sleep(0.1)
        assert front.permits == 1
        client.close()
        await front.sleep(0.01)
        assert front.permits == 0
        assert not front.engines[0].open

    world(test, stream_hangs if body is STREAM else hangs)


def test_a_client_that_leaves_while_queued_is_never_sent(world, one_slot):
    async def test(front):
        first, second, third = [await front.client() for _ in range(3)]
        first.send("/v1/chat/completions", CHAT)
        await front.sleep(0.1)
        second.send("/v1/chat/completions", CHAT)
        third.send("/v1/chat/completions", {**CHAT, "user": "third"})
        await front.sleep(0.1)
        assert (front.permits, front.waiting) == (1, 2)
        second.close()
        await front.sleep(0.1)
        assert (front.permits, front.waiting) == (1, 1)
        front.engines[0].script = whole
        first.close()
        assert (await third.read()).status == 200
        assert len(front.engines[0].seen) == 2
        assert front.engines[0].seen[1].json()["user"] == "third"

    world(test, hangs, capacity=one_slot)


def test_the_permit_lasts_until_the_last_byte(world, one_slot):
    async def test(front):
        first, second = await front.client(), await front.client()
        first.send("/v1/chat/completions", STREAM)
        await front.sleep(0.05)
        second.send("/v1/chat/completions", STREAM)
        while front.counts().completed == 0:
            assert len(front.engines[0].seen) == 1
            await front.sleep(0.01)
        assert (await second.read()).complete
        assert len(front.engines[0].seen) == 2

    world(test, tokens(20), capacity=one_slot)


def test_a_slow_reader_holds_the_engine_back_within_bounds(world):
    blob = "x" * 50_000

    async def pours(_, answer):
        answer.stream()
        for _ in range(60):
            answer.token(blob)
            await asyncio.sleep(0.001)
            while answer.transport.get_write_buffer_size() > 200_000:
                await asyncio.sleep(0.05)
        answer.token("", "stop")
        answer.done()

    async def test(front):
        client = await front.client()
        client.writer.transport.pause_reading()
        client.send("/v1/chat/completions", STREAM)
        await front.sleep(30)
        connection = next(iter(front.gateway.http.connections))
        held = connection.transport.get_write_buffer_size()
        assert 100_000 < held < 600_000
        client.writer.transport.resume_reading()
        answer = await client.read()
        assert answer.complete
        assert len(content(answer.events())) == 60 * len(blob)

    world(test, pours)


def test_a_reader_that_stops_is_dropped_in_the_end(world):
    async def pours(_, answer):
        answer.stream()
        while not answer.gone.is_set():
            answer.token("x" * 10_000)
            await asyncio.sleep(0.1)

    async def test(front):
        client = await front.client()
        client.writer.transport.pause_reading()
        client.send("/v1/chat/completions", STREAM)
        await front.sleep(60)
        assert front.permits == 0
        assert not front.engines[0].open
        outcomes = front.gateway.desk.pools["chat"].meters["interactive"].outcomes
        assert (outcomes[Outcome.CLIENT_SLOW], outcomes[Outcome.CLIENT_GONE]) == (1, 0)

    world(test, pours, limits=Limits(idle_s=20.0))


# -- times ------------------------------------------------------------------------------------------------------------------


def test_a_silent_engine_is_given_up(world):
    async def test(front):
        answer = await front.ask(CHAT)
        assert answer.status == 504
        assert 20 < front.clock.now_s() < 25
        assert not front.engines[0].open

    world(test, hangs, limits=Limits(idle_s=20.0))


def test_a_first_content_that_never_comes_is_missed_when_its_time_is_over_and_only_once(world):
    """A hung engine must not look as if nobody was late."""

    def missed(front):
        (load,) = front.gateway.snapshot().pools
        return sum(row.ttft_missed for row in load.counts), sum(row.ttft_met for row in load.counts)

    async def test(front):
        asking = asyncio.ensure_future(front.ask(STREAM))
        await asyncio.sleep(0.5)
        assert missed(front) == (0, 0)
        await asyncio.sleep(3.0)
        assert missed(front) == (1, 0)
        await asking
        assert missed(front) == (1, 0)

    world(test, hangs, limits=Limits(idle_s=20.0))


def test_a_late_first_content_is_missed_once(world):
    async def late(request, answer):
        await asyncio.sleep(4.0)
        await tokens(3)(request, answer)

    async def test(front):
        await front.ask(STREAM)
        (load,) = front.gateway.snapshot().pools
        assert [(row.ttft_missed, row.ttft_met) for row in load.counts if row.arrived] == [(1, 0)]

    world(test, late)


def test_a_stream_that_falls_silent_is_ended_with_an_error(world):
    async def test(front):
        answer = await front.ask(STREAM)
        assert answer.complete
        assert "error" in answer.events()[-2]

    world(test, stream_hangs, limits=Limits(idle_s=20.0))


def test_a_stream_that_goes_on_is_not_silent_but_not_endless_either(world):
    async def test(front):
        answer = await front.ask(STREAM)
        assert 100 < front.clock.now_s() < 110
        assert "error" in answer.events()[-2]

    world(test, tokens(1000, pause_s=1.0), limits=Limits(idle_s=20.0, total_s=100.0))


def test_a_tier_may_be_less_patient_than_the_gateway(world, spec):
    hasty = msgspec.structs.replace(spec.tiers[0], idle_s=3.0, total_s=40.0)
    tiers = (hasty, *spec.tiers[1:])

    async def test(front):
        for tier, ends_s in (("interactive", 3.0), ("standard", 20.0)):
            asked_s = front.clock.now_s()
            answer = await front.ask({**STREAM, "service_tier": tier})
            assert "error" in answer.events()[-2]
            assert ends_s < front.clock.now_s() - asked_s < ends_s + 2.5
        front.engines[0].script = tokens(1000, pause_s=1.0)
        asked_s = front.clock.now_s()
        await front.ask(STREAM)
        assert 40 < front.clock.now_s() - asked_s < 43

    world(test, stream_hangs, spec=msgspec.structs.replace(spec, tiers=tiers), limits=Limits(idle_s=20.0))


def test_a_stream_that_has_not_begun_is_tried_elsewhere_when_its_engine_is_silent_though_its_tier_is_promised_little(world, spec):
    """Its client was told 504, though another replica was there: the silence is over before a first content of that tier is overdue."""
    patient = msgspec.structs.replace(spec.tiers[0], ttft_s=20.0)

    async def test(front):
        answer = await front.ask(STREAM)
        assert (answer.status, answer.events()[-1]) == (200, "[DONE]")
        assert 20 < front.clock.now_s() < 25
        assert [len(engine.seen) for engine in front.engines] == [1, 1]

    tiers = (patient, *spec.tiers[1:])
    world(test, hangs, tokens(3), spec=msgspec.structs.replace(spec, tiers=tiers), limits=Limits(idle_s=20.0))


def test_world_seconds_run_faster_than_real_ones(world):
    async def test(front):
        loop_s = asyncio.get_running_loop().time()
        assert (await front.ask(CHAT)).status == 504
        assert 10 < asyncio.get_running_loop().time() - loop_s < 13

    world(test, hangs, limits=Limits(idle_s=200.0), speed=20.0)


# -- what is learned ----------------------------------------------------------------------------------------------------------


def test_usage_teaches_the_estimator(world):
    long = {**CHAT, "messages": [{"role": "user", "content": "word " * 1000}]}

    async def wordy(_, answer):
        answer.json(200, {**WHOLE, "usage": {"prompt_tokens": 1000, "completion_tokens": 50}})

    async def test(front):
        size = len(json.dumps(long))
        before = front.gateway.desk.estimator.shape("anonymous", "llama", size, None, 1, 8192)
        for _ in range(30):
            await front.ask(long)
        after = front.gateway.desk.estimator.shape("anonymous", "llama", size, None, 1, 8192)
        assert abs(after.prompt_tokens - 1000) < abs(before.prompt_tokens - 1000)
        assert after.output_tokens < before.output_tokens

    world(test, wordy)


def test_emitted_tokens_are_reported_on_the_way(world):
    async def test(front):
        client = await front.client()
        client.send("/v1/chat/completions", {**STREAM, "max_tokens": 4000})
        await front.sleep(0.5)
        load = front.gateway.snapshot().pools[0].replicas[0]
        before = load.kv_tokens
        await front.sleep(2.0)
        grown = front.gateway.snapshot().pools[0].replicas[0].kv_tokens - before
        assert abs(grown - 200) <= REPORT_EVENTS

    world(test, tokens(1000))


MOODS = (
    status(500),
    in_stream(BUSY),
    stream_hangs,
    tokens(3),
    whole,
)


async def moody(seen, answer):
    """Fails in every way, by the request's number; never a stream for one who asked for none."""
    body = seen.json()
    number = body.get("number", 0)  # a probe has none
    await asyncio.sleep(0.01 * (number % 5))
    if number % 7 == 0:
        answer.cut()
    else:
        await (MOODS[number % 5] if body["stream"] else (whole, hangs, status(500))[number % 3])(seen, answer)


async def moody_client(front, number):
    """Asks, and sometimes leaves; its answer's status if it waited for one."""
    client = await front.client()
    client.send("/v1/chat/completions", {**CHAT, "number": number, "stream": number % 2 == 0})
    try:
        async with asyncio.timeout(0.02 * (number % 11) if number % 4 == 0 else 40):
            return (await client.read()).status
    except TimeoutError:
        client.close()
        return None


@pytest.mark.parametrize("seed", range(6))
def test_a_storm_leaves_nothing_behind(world, seed, one_slot):
    """Clients that come, leave and wait; engines that fail in every way; order shuffled: permits end where they began."""

    async def test(front):
        statuses = await asyncio.gather(*[moody_client(front, number) for number in range(80)])
        await front.sleep(1.0)
        assert {200, 503} <= set(statuses)
        meter = front.gateway.desk.pools["chat"].meters["interactive"]
        assert 70 < meter.arrived == sum(meter.outcomes.values())

    world(test, moody, moody, moody, seed=seed, capacity=msgspec.structs.replace(one_slot, sequences=3))


@pytest.mark.parametrize("options", [b"null", b'{"\xff":1}', b"{}"])
def test_a_key_that_is_no_text_holds_nothing_back(world, options):
    """One client could fill the budget of all bodies with it, for good: the call ended in an exception before it had arrived."""

    async def test(front):
        body = b'{"model":"llama","stream":true,"stream_options":%b,"\xff":1,"messages":[{"role":"user","content":"hi"}]}' % options
        answer = await front.ask(body)
        assert answer.status == 200
        assert content(answer.events()) == "t0t1"
        await front.sleep(0.1)
        assert front.gateway.http.bodies_bytes == 0

    world(test, tokens(2))
