"""What engines were seen to do, on command, and bug reports of other gateways: each fails on the gateway that believes them."""

import asyncio

import msgspec
import pytest
from emulated_fleet import CAPACITY, CHAT, COMPLETIONS, PROFILE, body, completion, errors, fleet, text

from forebay.admission.outliers import EJECT_S, FAILURES_IN_A_ROW
from forebay.gateway.firsts import FIRST_S_MIN, FirstContents
from forebay.gateway.pool_desk import STALL_S_MIN
from forebay.gateway.recovery import RETRIES_MAX
from forebay.spec.types import EngineKind

USAGE = {"stream_options": {"include_usage": True}}


def _events(front, kind):
    return [event for event in front.sink.events if event.kind == kind]


# -- the engines' lies ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_a_200_whose_first_event_is_an_error_is_no_answer(stream):
    """vLLM has said 200 before it turns a stream away: engines.md, 1.5."""

    async def test(front):
        front.fault(front.engines[0], "error_first_event")
        answers = [await front.ask(body(5, stream=stream)) for _ in range(4)]
        assert [answer.status for answer in answers] == [200] * 4
        if stream:
            assert [errors(answer) for answer in answers] == [[]] * 4
        assert front.outcomes == {"completed": 4}
        assert front.meter.retries >= 1

    fleet(test)


@pytest.mark.parametrize("stream", [True, False])
def test_500_on_every_new_request_while_health_is_200_leaves_routing(stream):
    """vLLM while it drains: engines.md, 1.7. It answers fastest of all, so it looks idle, and gets everything."""

    async def test(front):
        sick = front.engines[0]
        front.fault(sick, "all_500")
        for _ in range(20):
            assert (await front.ask(body(3, stream=stream))).status == 200
        assert front.meter.retries == FAILURES_IN_A_ROW  # then nothing is sent there any more
        (event,) = _events(front, "replica_ejected")
        assert event.message.startswith("r0 for 5 s: The engine answered 500")
        assert list(front.gateway.shown.ejected()) == [("chat", 1, 1)]
        assert front.gateway.desk.pools["chat"].routed == ("r1",)
        assert front.gateway.report().pools[0].ejected == ("r0",), "the controller's status says so"
        await asyncio.sleep(EJECT_S + 2)  # a probe finds it as it was
        assert list(front.gateway.shown.ejected()) == [("chat", 1, 1)]
        sick.clear_faults()
        await asyncio.sleep(2 * EJECT_S + 2)
        assert list(front.gateway.shown.ejected()) == [("chat", 0, 1)]
        assert len(_events(front, "replica_readmitted")) == 1
        page = (await front.ask(None, "/metrics")).body.decode()
        assert 'forebay_ejections_total{pool="chat"} 1.0' in page
        assert 'forebay_ejected_replicas{pool="chat"} 0.0' in page

    fleet(test)


def test_streams_of_a_replica_that_only_refuses_new_requests_are_left_to_finish():
    async def test(front):
        running = await front.asked(body(400))
        sick = front.busy
        front.fault(sick, "all_500")
        answers = await asyncio.gather(*[front.ask(body(2)) for _ in range(10)])
        assert {answer.status for answer in answers} == {200}
        assert list(front.gateway.shown.ejected()) == [("chat", 1, 1)]
        assert errors(await running) == []
        assert front.meter.continued == 0

    fleet(test)


def test_a_wedged_engine_with_frozen_gauges_loses_its_streams_to_another():
    """SIGSTOP of EngineCore: /health 200, gauges frozen, streams silent: engines.md, 1.7."""

    async def test(front):
        whole = await front.ask(body(300))
        task = await front.asked(body(300))
        waits = await front.asked(body(300, stream=False), wait_s=0.0)
        wedged = front.busy
        front.fault(wedged, "hang")
        silent_s = front.clock.now_s()
        answer = await task
        assert text(answer) == text(whole)
        assert errors(answer) == []
        assert front.clock.now_s() - silent_s < STALL_S_MIN + 2 + 3
        assert (await waits).status == 200
        assert "none of its streams got a token" in _events(front, "replica_ejected")[0].message
        assert front.outcomes == {"completed": 3}

    fleet(test)


def test_one_stream_that_starves_does_not_eject_a_replica():
    async def test(front):
        engine = front.engines[0]
        starved = await front.asked(body(2))
        assert errors(await starved) == []
        engine.clear_faults()
        assert list(front.gateway.shown.ejected()) == [("chat", 0, 0)]

    fleet(test, replicas=1)


def test_a_sleeping_engine_takes_requests_and_says_nothing():
    """Requests to a sleeping vLLM hang without a byte, and its gauges stay 0: engines.md, 1.6."""

    async def test(front):
        front.fault(front.engines[0], "hang")
        asked_s = front.clock.now_s()
        answers = await asyncio.gather(*[front.ask(body(3)) for _ in range(4)])
        assert [errors(answer) for answer in answers] == [[]] * 4
        assert front.clock.now_s() - asked_s < FIRST_S_MIN + 2
        assert front.meter.retries == 2

    fleet(test)


def test_a_hung_engine_is_waited_for_where_there_is_no_other():
    async def test(front):
        front.fault(front.engines[0], "hang")
        task = await front.asked(body(3), wait_s=3 * FIRST_S_MIN)
        front.engines[0].clear_faults()
        assert errors(await task) == []
        assert front.meter.retries == 0

    fleet(test, replicas=1)


def test_how_long_a_first_content_is_waited_for_grows_with_what_is_measured():
    firsts = FirstContents()
    assert firsts.timeout_s(0.1) == FIRST_S_MIN
    assert firsts.timeout_s(10.0) == 50.0
    for _ in range(50):
        firsts.took(20.0)
    assert 40.0 <= firsts.timeout_s(1.0) < 42.0


@pytest.mark.parametrize("stream", [True, False])
def test_abort_with_done_is_a_failure(stream):
    """A vLLM that is shut down ends its streams politely: engines.md, 1.7."""

    async def test(front):
        task = await front.asked(body(60, stream=stream))
        front.fault(front.busy, "abort")
        answer = await task
        assert b'"abort"' not in answer.body
        assert front.outcomes == {"completed": 1}
        assert front.meter.output_tokens == 60

    fleet(test)


def test_several_tokens_in_a_chunk_are_counted_as_several():
    """975 chunks for 1000 tokens: engines.md, 1.5. Counted also where the client leaves."""

    async def test(front):
        front.fault(front.engines[0], "merge", tokens=5)
        client = await front.client()
        client.send(CHAT, body(200))
        await client.head()
        for _ in range(8):
            await client.event()
        client.close()
        await asyncio.sleep(0.05)
        assert front.outcomes == {"client_gone": 1}
        assert front.meter.output_tokens in {35, 40}
        assert front.meter.prompt_tokens == 6

    fleet(test, replicas=1)


@pytest.mark.parametrize("says", [200, 404])
def test_a_cut_after_several_tokens_in_one_chunk_is_not_guessed_at(says):
    """Half a character may hide behind the text of an event: another engine is asked what its tokens say."""

    async def test(front):
        whole = await front.ask(body(200))
        for engine in front.engines:
            front.fault(engine, "merge", tokens=5)
            if says != 200:
                del engine._routes["/detokenize"]
        task = await front.asked(body(200))
        await front.kill(front.busy)
        answer = await task
        if says == 200:
            assert errors(answer) == []
            assert text(answer) == text(whole)
            assert front.meter.output_tokens == 400
        else:
            assert "may have been held back" in errors(answer)[0]["message"]

    fleet(test)


def test_connections_closed_after_a_stream_though_keep_alive_was_promised():
    """llama.cpp: engines.md, 2.3. 5-10 % of pooled clients' requests fail."""

    async def test(front):
        front.fault(front.engines[0], "close")
        for _ in range(20):
            assert errors(await front.ask(body(2))) == []
        assert front.meter.retries == 0
        assert front.outcomes == {"completed": 20}

    fleet(test, replicas=1)


def test_a_dead_engine_behind_a_living_server():
    """SIGKILL of EngineCore: an error event in every stream's 200, then exit: engines.md, 1.7."""

    async def test(front):
        streams = [await front.asked(body(80), wait_s=0.05) for _ in range(6)]
        front.fault(front.engines[0], "engine_dead")
        assert [errors(await task) for task in streams] == [[]] * 6
        assert front.meter.continued == 3

    fleet(test)


# -- bug reports of others -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["queued", "not a stream", "before the first token", "streaming"])
def test_a_disconnect_reaches_the_engine_within_100_ms(phase):
    """production-stack #634, LiteLLM #37140: the engine works for nobody, and clients' retries stack up."""

    async def test(front):
        engine = front.engines[0]
        if phase == "queued":
            blocker = await front.asked(body(500), wait_s=0.05)
        client = await front.client()
        client.send(CHAT, body(400, prompt="x" * (6000 if phase == "before the first token" else 40), stream=phase != "not a stream"))
        await asyncio.sleep(0.03 if phase == "before the first token" else 0.2)
        assert engine.core.queued == 1
        client.close()
        await asyncio.sleep(0.1)
        if phase == "queued":
            assert front.gateway.desk.live == 1
            front.clients[0].close()
            await asyncio.sleep(0.1)
            blocker.cancel()
        assert engine.core.queued == 0
        assert front.gateway.desk.live == 0
        assert set(front.outcomes) == {"client_gone"}

    fleet(test, replicas=1, capacity=msgspec.structs.replace(CAPACITY, sequences=1))


def test_an_engine_that_does_not_notice_is_told_by_id():
    async def test(front):
        told = []
        front.engines[0]._routes["/abort_requests"] = {"POST": lambda exchange: (told.append(exchange.request.body), exchange.respond(200))}
        client = await front.client()
        client.send(CHAT, body(400), {"x-request-id": "abc"})
        await asyncio.sleep(0.2)
        client.close()
        await asyncio.sleep(0.1)
        assert told == [b'{"request_ids":["chatcmpl-abc"]}']

    fleet(test, replicas=1, engine=EngineKind("attach", abort_by_id=True))


def test_a_stream_that_breaks_off_is_never_a_short_answer():
    """open-webui #29628, talon #254: the SDK takes a missing end for success."""

    async def test(front):
        task = await front.asked(body(60, seed=1))
        await front.kill(front.busy)
        answer = await task
        assert answer.complete
        assert len(errors(answer)) == 1

    fleet(test)


@pytest.mark.parametrize("metrics", ["vllm", "llamacpp"])
@pytest.mark.parametrize("prompt_chars", [40, 4000])
def test_a_client_that_leaves_is_metered_for_what_it_got(metrics, prompt_chars):
    """LiteLLM #14457, #33736, #36008: usage comes last, so a client that leaves was billed nothing, or everything."""

    async def test(front):
        client = await front.client()
        client.send(CHAT, body(400, prompt="x" * prompt_chars))
        await client.head()
        for _ in range(1 + 25):  # the role comes first
            await client.event()
        client.close()
        await asyncio.sleep(0.005)
        assert front.meter.output_tokens in {25, 26}
        if metrics == "vllm":
            assert front.meter.prompt_tokens == prompt_chars // 4

    fleet(test, replicas=1, engine=EngineKind("attach", metrics=metrics))


def test_running_usage_meters_where_no_ids_are_told():
    async def test(front):
        client = await front.client()
        client.send(CHAT, body(400))
        head = await client.head()
        assert " 200 " in head
        shown = b"".join([await client.event() for _ in range(26)])
        client.close()
        await asyncio.sleep(0.005)
        assert b"usage" not in shown
        assert front.meter.prompt_tokens == 6
        assert front.meter.output_tokens in {25, 26}

    fleet(test, replicas=1, engine=EngineKind("attach", continues=False))


def test_report_14_retries_do_not_multiply():
    """LiteLLM #7130, changedetection.io #4384: each layer retries by itself. Here a request is tried three times, and no more."""

    async def test(front):
        for engine in front.engines:
            front.fault(engine, "all_500")
        answer = await front.ask(body(3))
        assert answer.status == 503
        assert front.meter.retries == RETRIES_MAX
        assert "retry-after" in answer.headers

    fleet(test, replicas=5)


def test_usage_that_was_not_asked_for_is_metered_and_not_told():
    """LangChain asks for usage only of the default base URL, so behind a gateway it normally isn't asked for."""

    async def test(front):
        answer = await front.ask(completion(7), COMPLETIONS)
        assert b"usage" not in answer.body
        assert (front.meter.prompt_tokens, front.meter.output_tokens) == (6, 7)
        told = await front.ask(completion(7, **USAGE), COMPLETIONS)
        assert told.events()[-2]["usage"] == {"prompt_tokens": 6, "total_tokens": 13, "completion_tokens": 7}

    fleet(test, engine=EngineKind("attach", metrics="llamacpp"))


def test_the_profile_says_what_a_stall_is():
    slow = msgspec.structs.replace(PROFILE, law=msgspec.structs.replace(PROFILE.law, base_s=1.0))

    async def test(front):
        assert front.gateway.desk.pools["chat"].stall_s == pytest.approx(20 * (1.0 + 512 * 0.0001))

    fleet(test, profile=slow)


@pytest.mark.parametrize("target", [CHAT, "/v1/responses", "/v1/audio/speech"])
@pytest.mark.parametrize("status", [200, 201, 400, 500])
def test_a_whole_answer_that_is_nested_too_deeply_for_the_parser_is_an_answer_like_any_other(world, target, status):
    """As where ``/v1/responses`` repeats the schema of a tool: its reader raised, the client waited for ever, and the permit was kept."""
    deep = b'{"tools":%b1%b,"usage":{"prompt_tokens":3,"completion_tokens":2}}' % (b'{"a":' * 4000, b"}" * 4000)

    async def nested(_, answer):
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        answer.raw(head % (status, len(deep)) + deep)

    async def test(front):
        client = await front.client()
        for _ in range(2):  # the second answer has a head that is known
            answer = await asyncio.wait_for(client.ask(target, {"model": "llama", "messages": [], "input": "x"}), 10)
            assert (answer.status, answer.body) == (status, deep) if status < 400 else answer.status in (status, 503)
        assert front.permits == 0

    world(test, nested)


def test_an_event_that_is_nested_too_deeply_for_the_parser_passes(world):
    async def nested(_, answer):
        answer.stream()
        answer.chunk(b'data: {"choices":[{"delta":{"tool_calls":%b1%b}}]}\n\n' % (b"[" * 4000, b"]" * 4000))
        answer.token("x", "stop")
        answer.done()

    async def test(front):
        answer = await asyncio.wait_for(front.ask({"model": "llama", "messages": [], "stream": True}), 10)
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert front.counts().completed == 1

    world(test, nested)
