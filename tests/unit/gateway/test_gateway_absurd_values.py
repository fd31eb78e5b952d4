"""Engines and clients that say what no number, no status and no JSON can be: the client is answered, and nothing is learned of it."""

import asyncio
import json

import msgspec
import pytest
from gateway_values import SPEC

from forebay import HANDLED_IN
from forebay.domain.shape import Usage
from forebay.gateway.asking import Wants
from forebay.gateway.body import CHOICES_MAX, Ask, choices_of
from forebay.gateway.emitted import Emitted
from forebay.gateway.relay import Call
from forebay.gateway.sse import Trouble
from forebay.gateway.told import ToldStream
from forebay.gateway.typed import TypedStream, TypedUsage
from forebay.gateway.whole import looked_at
from forebay.spec.types import EngineKind, Limits, Team, TeamLimits

CHAT = {"model": "llama", "messages": [{"role": "user", "content": "hi"}]}
ABSURD = (-1, 2**31, 2**70, 10**400, -(10**400))
NAMELESS = (419, 450, 499)
"""Statuses that have no name."""


def usage(tokens, place):
    told = {"prompt_tokens": 7, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}
    if place == "cached_tokens":
        told["prompt_tokens_details"] = {place: tokens}
    else:
        told[place] = tokens
    return told


def books(front):
    """Prompt and output tokens as metered, by the meters and by the ledger."""
    meter = front.gateway.desk.pools["chat"].meters["interactive"]
    (counts,) = [counts for _, counts in front.gateway.usage.shown()]
    return (meter.prompt_tokens, meter.output_tokens), (counts[6], counts[8])


@pytest.mark.parametrize("place", ["prompt_tokens", "completion_tokens", "cached_tokens"])
@pytest.mark.parametrize("tokens", ABSURD)
def test_what_can_be_no_number_of_tokens_is_not_charged_for_a_whole_answer(world, tokens, place):
    async def engine(_, answer):
        answer.json(200, {"choices": [{"finish_reason": "stop"}], "usage": usage(tokens, place)})

    async def test(front):
        learned = front.gateway.desk.estimator.shape("", "llama", 1000, None, 1, 8192)
        answers = [await front.ask(CHAT) for _ in range(2)]
        assert [answer.status for answer in answers] == [200, 200]
        assert books(front) == ((0, 0), (0, 0))
        assert front.gateway.desk.estimator.shape("", "llama", 1000, None, 1, 8192) == learned
        front.gateway.check()

    world(test, engine)


@pytest.mark.parametrize("tokens", ABSURD)
def test_a_stream_that_tells_what_can_be_no_number_of_tokens_is_counted(world, tokens):
    async def engine(_, answer):
        answer.stream()
        for word in ("a", "b", "c"):
            answer.token(word)
        answer.token("", "stop")
        answer.event({"choices": [], "usage": usage(tokens, "completion_tokens")})
        answer.done()

    async def test(front):
        answer = await front.ask(CHAT | {"stream": True})
        assert answer.complete
        assert answer.events()[-1] == "[DONE]"
        (prompt, output), ledger = books(front)
        assert (prompt, output) == ledger
        assert 0 < prompt < 100
        assert 3 <= output <= 4

    world(test, engine)


@pytest.mark.parametrize("tokens", ABSURD)
def test_a_team_is_not_charged_what_can_be_no_number_of_tokens(world, tokens):
    """Its limit would be spent for centuries, and its turn among teams never come again."""
    team = Team("mail", keys=(("sk-mail", "interactive"),), limits=TeamLimits(tokens_per_minute=2000))

    async def engine(_, answer):
        answer.json(200, {"choices": [], "usage": usage(tokens, "completion_tokens")})

    async def test(front):
        for _ in range(3):
            answer = await front.ask(CHAT | {"max_tokens": 100}, {"Authorization": "Bearer sk-mail"})
            assert answer.status == 200
            await front.sleep(30.0)

    world(test, engine, spec=msgspec.structs.replace(SPEC, teams=(team,)))


@pytest.mark.parametrize("tokens", ABSURD)
def test_of_either_apis_usage_what_can_be_no_number_was_not_told(tokens):
    for field in TypedUsage.__struct_fields__:
        if field not in ("input_tokens_details", "cache_creation_input_tokens"):
            assert TypedUsage(**{field: tokens}).usage() is None
    assert looked_at(b'{"usage":{"prompt_tokens":%d,"completion_tokens":4}}' % tokens) == (None, False)
    long = b'{"pad":"%b","usage":{"prompt_tokens":%d,"completion_tokens":4}}' % (b"x" * 70_000, tokens)
    assert looked_at(long) == (None, False)


def test_no_more_is_cached_than_the_prompt_has():
    assert looked_at(b'{"usage":{"prompt_tokens":7,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":90}}}') == (
        Usage(7, 4, 7),
        False,
    )


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/tokenize"])
@pytest.mark.parametrize("status", [*NAMELESS, 777])
def test_a_status_without_a_name_is_passed_on(world, status, path):
    """nginx before an engine says 499; the client was left without a word, for ever."""

    async def engine(_, answer):
        body = b'{"detail":"no"}'
        answer.raw(b"HTTP/1.1 %d \r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))

    async def test(front):
        answer = await asyncio.wait_for(front.ask(CHAT, target=path), 10)
        assert answer.status == (status if status < 500 or path == "/tokenize" else 503)
        assert answer.json()["error"]["message"]

    world(test, engine)


@pytest.mark.parametrize("code", NAMELESS)
def test_a_stream_whose_first_event_is_an_error_of_a_code_without_a_name_is_refused_with_it(world, code):
    async def engine(_, answer):
        answer.stream()
        answer.event({"error": {"message": "no", "type": "x", "code": code}})
        answer.done()

    async def test(front):
        answer = await asyncio.wait_for(front.ask(CHAT | {"stream": True}), 10)
        assert (answer.status, answer.json()["error"]["message"]) == (code, "no")

    world(test, engine)


@pytest.mark.parametrize("limits", [TeamLimits(), TeamLimits(tokens_per_minute=5000), TeamLimits(tokens_in_flight=5000)])
@pytest.mark.parametrize("n", [0, -1, 2**40, 2**70, 10**400])
def test_more_answers_than_any_engine_gives_are_no_more_demand_than_that(world, n, limits):
    team = Team("mail", keys=(("sk-mail", "interactive"),), limits=limits)

    async def engine(_, answer):
        answer.json(400, {"error": {"message": "n must be less", "type": "BadRequestError", "param": "n", "code": 400}})

    async def test(front):
        answer = await asyncio.wait_for(front.ask(CHAT | {"n": n, "max_tokens": 5}, {"Authorization": "Bearer sk-mail"}), 60)
        assert answer.status in {400, 429}
        assert front.counts().arrived_output_tokens <= 5 * CHOICES_MAX

    world(test, engine, spec=msgspec.structs.replace(SPEC, teams=(team,)))


def test_an_answer_with_a_finish_reason_is_not_whole_because_none_were_asked_for():
    assert [choices_of(Ask("m", n=n)) for n in (None, 1, 2, 0, -3, 10**400)] == [1, 1, 2, 1, 1, CHOICES_MAX]


@pytest.mark.parametrize(
    ("text", "usage", "told"),
    [
        (b"\xff", b'{"prompt_tokens":5,"completion_tokens":2}', Usage(5, 2)),
        (b"\\q", b'{"prompt_tokens":5,"completion_tokens":2}', Usage(5, 2)),
        (b"word", b'{"prompt_tokens":5,"completion_tokens":007}', None),
    ],
    ids=["utf-8", "escape", "number"],
)
def test_running_usage_of_an_event_that_is_no_json_is_read_by_itself(text, usage, told):
    """Plain events are known by what stands around their text: the last one is read only when the client has left."""
    stream = ToldStream(True, True, Wants(usage=True, running_usage=True), Emitted())
    stream.came_back(b'data: {"choices":[{"index":0,"text":"%b","finish_reason":null}],"usage":%b}\n\n' % (text, usage))
    assert stream.counted() == told


@pytest.mark.parametrize("leaves", [True, False])
def test_a_client_that_leaves_a_stream_of_broken_text_leaves_nothing_behind(world, leaves):
    spec = msgspec.structs.replace(SPEC, pools=(msgspec.structs.replace(SPEC.pools[0], engine=EngineKind("attach", continues=False)),))

    def event(text, number):
        usage = b'"usage":{"prompt_tokens":5,"total_tokens":%d,"completion_tokens":%d}' % (5 + number, number)
        return b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b"},"logprobs":null,"finish_reason":null}],%b}\n\n' % (
            text,
            usage,
        )

    async def engine(_, answer):
        answer.stream()
        for number in range(1, 8):
            answer.chunk(event(b"word" if number < 7 else b"\xff", number))
            await asyncio.sleep(0.01)
        if not leaves:
            answer.cut()
        await answer.gone.wait()

    async def test(front):
        client = await front.client()
        client.send("/v1/chat/completions", CHAT | {"stream": True, "user": "x" * 100_000})  # of so long a body running usage is asked for
        await client.head()
        for _ in range(7):
            await client.event()
        if leaves:
            client.close()
        else:
            assert b"stream_truncated" in await client.event()
        await front.sleep(1.0)
        assert front.permits == 0
        assert books(front) == ((5, 7), (5, 7))

    world(test, engine, spec=spec, limits=Limits())


@pytest.mark.parametrize(("number", "following"), [(b"41", 42), (b"9" * 15, 10**15), (b"9" * 16, 0), (b"9" * 5000, 0), (b"-1", 0)])
def test_a_sequence_number_of_thousands_of_digits_is_none(number, following):
    stream = TypedStream(True, True)
    event = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"w","sequence_number":%b}\n\n' % number
    stream.feed(b"", event, True, False)
    assert stream.next_sequence_number == following
    assert stream.trouble is not Trouble.ERROR_EVENT


def test_a_stream_of_responses_that_breaks_off_after_such_a_number_is_ended(world):
    async def engine(_, answer):
        answer.stream()
        answer.chunk(b'event: response.created\ndata: {"type":"response.created","response":{"id":"r"},"sequence_number":0}\n\n')
        answer.chunk(b'event: x\ndata: {"type":"response.output_text.delta","delta":"w","sequence_number":%b}\n\n' % (b"9" * 5000))
        await asyncio.sleep(0.1)
        answer.cut()

    async def test(front):
        answer = await asyncio.wait_for(front.ask({"model": "llama", "input": "hi", "stream": True}, target="/v1/responses"), 10)
        assert answer.complete
        last = json.loads(answer.body.rstrip().rpartition(b"data: ")[2])
        assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")

    world(test, engine)


@pytest.mark.skipif(HANDLED_IN == "C", reason="methods of compiled classes can't be replaced; run once more in Python")
@pytest.mark.parametrize("streamed", [False, True])
def test_a_request_that_fails_by_our_own_fault_keeps_no_place_and_no_other_waits_for_it(world, streamed, monkeypatch):
    """The next unknown fault: whoever came after it in the sweep had no times any more, and its own client waited for ever."""

    async def engine(_, answer):
        if streamed:
            answer.stream()
            answer.token("a")
        await answer.gone.wait()

    async def test(front):
        clients = [await front.client() for _ in range(3)]
        for client in clients:
            client.send("/v1/chat/completions", CHAT | {"stream": streamed})
        await asyncio.sleep(0.1)
        swept = []

        def sweep(call, _):
            swept.append(call.ticket)
            if len(swept) == 1:
                raise ZeroDivisionError

        for call in front.gateway.desk.pools["chat"].calls.values():
            call.quiet_until_s = 0.0
        with monkeypatch.context() as patched:
            patched.setattr(Call, "sweep", sweep)
            with pytest.raises(ZeroDivisionError):
                front.gateway.desk.sweep()
        assert len(swept) == 3
        assert front.permits == 2
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await clients[0].reader.readuntil(b"the end")
        for client in clients[1:]:
            client.writer.transport.abort()
        await asyncio.sleep(0.1)
        front.gateway.check()

    world(test, engine)


@pytest.mark.skipif(HANDLED_IN == "C", reason="methods of compiled classes can't be replaced; run once more in Python")
def test_a_request_that_can_not_even_be_hung_up_gives_its_permit_back_and_the_next_is_served(world, one_slot, monkeypatch):
    """Its place was the only one; and who comes after it in the same sweep has its look all the same."""

    async def engine(seen, answer):
        if len(front_engines[0].seen) > 1:
            answer.json(200, {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 4}})
        else:
            await answer.gone.wait()

    front_engines = []

    async def test(front):
        front_engines.extend(front.engines)
        clients = [await front.client() for _ in range(2)]
        for client in clients:
            client.send("/v1/chat/completions", CHAT)
            await asyncio.sleep(0.1)
        assert (front.permits, front.waiting) == (1, 1)
        swept = []

        def sweep(call, _):
            swept.append(call.ticket)
            if len(swept) == 1:
                raise ZeroDivisionError

        def break_off(call):
            call._over = True
            raise RuntimeError("not even that")

        for call in front.gateway.desk.pools["chat"].calls.values():
            call.quiet_until_s = 0.0
        with monkeypatch.context() as patched:
            patched.setattr(Call, "sweep", sweep)
            patched.setattr(Call, "break_off", break_off)
            with pytest.raises(RuntimeError) as raised:
                front.gateway.desk.sweep()
        assert isinstance(raised.value.__context__, ZeroDivisionError)
        assert len(swept) == 2
        assert (await asyncio.wait_for(clients[1].read(), 5)).status == 200
        for transport in list(front.engines[0].open):  # what was not hung up goes with its engine
            transport.abort()
        await asyncio.sleep(0.1)

    world(test, engine, capacity=one_slot)
