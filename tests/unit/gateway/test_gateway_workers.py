"""Streams that relay workers carry: their clients get the very bytes that they get without, and nothing is lost or counted twice.

Whatever happens meanwhile: an engine that dies, a client that leaves or reads slowly, a place that is given up, a worker that is killed.
"""

import asyncio
import gc
import json
import random

import msgspec
import pytest
from emulated_fleet import CAPACITY, CHAT, COMPLETIONS, body, completion, errors, fleet, text, without_time
from gateway_front import started
from hypothesis import given, settings, target
from hypothesis import strategies as st
from test_gateway_any_reads import EXAMPLES, LAST_CHUNK, answers, chunk, cut_anyhow, in_other_chunks

from forebay.gateway import relay
from forebay.gateway.asking import Wants
from forebay.gateway.carrying import Carried
from forebay.gateway.emitted import Emitted
from forebay.gateway.handing import Recall, encode
from forebay.gateway.http import ClientConnection, HttpServer
from forebay.gateway.lending import SILENT_SWEEPS_MAX
from forebay.gateway.lent import EARLY_MAX, LentCall
from forebay.gateway.meters import Outcome
from forebay.gateway.shutting import cut
from forebay.gateway.sse import EventStream
from forebay.gateway.told import ToldStream
from forebay.spec.types import EngineKind, Limits
from forebay.testing.loop import run

USAGE = {"stream_options": {"include_usage": True}}
ONE_SLOT = msgspec.structs.replace(CAPACITY, sequences=1)
BATCH = {"service_tier": "batch"}
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
FRAME = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "llama"}
ASK = {"model": "llama", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 5000, "stream": True}


def lending(front):
    return front.gateway.lending


def lent_now(front):
    return lending(front).streams


async def until(condition, seconds=5.0):
    for _ in range(int(seconds / 0.001)):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to that")


def token(words, number=1, ids=True):
    """An event as vLLM writes it."""
    choice = {"index": 0, "delta": {"content": words}, "logprobs": None, "finish_reason": None}
    if ids:
        choice["token_ids"] = [number]
    event = {**FRAME, "choices": [choice]}
    if ids and number == 1:
        event["prompt_token_ids"] = [1, 2, 3]
    return written(event)


def written(event):
    return b"data: %b\n\n" % json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()


END = (
    chunk(written({**FRAME, "choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]}))
    + chunk(written({**FRAME, "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 50, "total_tokens": 53}}))
    + chunk(b"data: [DONE]\n\n")
    + LAST_CHUNK
)


def script(*reads, pause_s=0.004, before=b""):
    async def answer(_, engine):
        engine.raw(STREAM_HEAD + before)
        for read in reads:
            engine.raw(read)
            await asyncio.sleep(pause_s)

    return answer


async def raw_stream(front, request=ASK, target=CHAT):
    """The very bytes that come over the wire until the end of the answer."""
    client = await front.client()
    client.send(target, request)
    await client.head()
    return await client.reader.readuntil(LAST_CHUNK)


# -- the very bytes ----------------------------------------------------------------------------------------------------


def test_a_usual_stream_is_carried_by_a_worker_and_ends_at_the_owner(world):
    tokens = [chunk(token(f" word{number}", number + 1)) for number in range(50)]

    async def test(front):
        client = await front.client()
        for turn in (1, 2):
            client.send(CHAT, ASK)
            await until(lambda: lent_now(front) == 1)
            assert front.permits == 1
            answer = await client.read()
            assert answer.complete
            assert [event["choices"][0]["delta"].get("content") for event in answer.events()[:50]] == [f" word{n}" for n in range(50)]
            assert (lent_now(front), lending(front).lent_total, front.permits) == (0, turn, 0)
        assert front.engines[0].accepted == 1, "the engine's connection is used again"
        meter = front.gateway.desk.pools["chat"].meters["interactive"]
        assert (meter.prompt_tokens, meter.output_tokens) == (6, 100)
        assert meter.response_bytes == 2 * len(b"".join(tokens) + END)

    world(test, script(*tokens, END), workers=2)


@settings(max_examples=max(10, EXAMPLES // 4), deadline=None)
@given(answers(), st.booleans(), st.integers(0, 2**32))
def test_any_cut_into_reads_is_the_same_with_workers_that_are_asked_for_it_at_any_time(answer, together, seed):
    """And however often it goes there and back."""
    wants, events = answer
    chance = random.Random(seed)
    events = [*(token(f"w{number}", number, wants.ids) for number in range(1, 9)), *events]
    wire = b"".join(in_other_chunks(events, chance) if together else map(chunk, events)) + LAST_CHUNK
    reads = list(cut_anyhow(wire, chance))
    request = ASK | ({} if wants.usage else USAGE) | ({"return_token_ids": True} if not wants.ids and chance.random() < 0.3 else {})

    carried = []

    def bodies(workers):
        async def main():
            front = await started(script(*reads, pause_s=0.008), workers=workers)
            await asyncio.sleep(0.01)
            task = asyncio.create_task(front.ask(request))
            while not task.done():
                if workers and chance.random() < 0.3:
                    for post in lending(front)._posts.values():
                        for lent in post.lent.values():
                            if lent.then or chance.random() < 0.5:
                                continue
                            lending(front).recall(lent, lambda: None)
                            lent.call._early = 0
                await asyncio.sleep(0.01)
            await front.finish()
            carried.append(workers and lending(front).lent_total)
            got = await task
            meter = front.gateway.desk.pools["chat"].meters["interactive"]
            counted = (meter.prompt_tokens, meter.output_tokens, {name: count for name, count in meter.outcomes.items() if count})
            return got.status, got.complete, got.body, counted

        with pytest.MonkeyPatch.context() as patch:  # so that it is lent as often as it can be
            patch.setattr(relay, "LEND_EVENTS", 1)
            patch.setattr(relay, "REPORT_EVENTS", 1)
            return run(main)

    assert bodies(1) == bodies(0)
    target(max(carried), label="lent")


@pytest.mark.parametrize("continues", [True, False], ids=["ids", "running usage"])
def test_what_engines_tell_by_the_way_is_known_to_the_owner_in_the_end(continues):
    def seen_with(workers):
        seen = []

        async def test(front):
            seen.append(without_time(await front.ask(body(200))))
            client = await front.client()
            client.send(CHAT, body(300))
            await asyncio.sleep(1.5)
            client.close()
            await asyncio.sleep(0.01)
            seen.extend((front.meter.prompt_tokens, front.meter.output_tokens, front.outcomes))
            if workers:
                assert lending(front).lent_total == 2

        fleet(test, workers=workers, engine=EngineKind("attach", continues=continues))
        return seen

    assert seen_with(2) == seen_with(0)


def log_of(call):
    """What an answer would be continued from."""
    log = call._emitted
    return bytes(log.ids), bytes(log.pending), log.exact, log.reasons


@pytest.mark.parametrize("reasoning", [0, 14])
@pytest.mark.parametrize("recalled_at", [6, 9, 12, 15, 18, 21, 24, 27, 30, 31, 32, 33])
def test_reasoning_and_halves_of_characters_are_known_to_the_owner_when_it_has_the_stream_back(recalled_at, reasoning, world):
    kinds = ["reasoning_content"] * reasoning + ["content"] * (40 - reasoning)
    texts = ["" if number in (20, 30, 31) else f" w{number}" for number in range(40)]
    events = []
    for number, (kind, words) in enumerate(zip(kinds, texts, strict=True)):
        choice = {"index": 0, "delta": {kind: words}, "logprobs": None, "finish_reason": None, "token_ids": [number + 1]}
        events.append({**FRAME, "choices": [choice], **({} if number else {"prompt_token_ids": [1, 2, 3]})})
    tokens = [chunk(written(event)) for event in events]
    seen = []

    async def test(front):
        task = asyncio.create_task(front.ask(ASK))
        call = None
        while call is None or call._stream is None or call._stream.wire_bytes < sum(map(len, tokens[:recalled_at])):
            await asyncio.sleep(0.001)
            call = next(iter(front.gateway.desk.pools["chat"].calls.values()), None)
            if front.crew is not None and call is not None and call._lent is not None and front.engines[0].sent >= recalled_at:
                call._early = EARLY_MAX
                lending(front).recall(call._lent, lambda: None)
                await until(lambda: lent_now(front) == 0)
        seen.append((front.crew and lending(front).lent_total, *log_of(call)))
        later = call._stream.events + 4  # the owner notes what comes after it as if it had noted all
        await until(lambda: call._stream is None or call._stream.events >= later)
        seen.append((later, *log_of(call)))
        assert (await task).complete

    async def counted(_, engine):
        front_engine = counted.engine
        engine.raw(STREAM_HEAD)
        for number, one in enumerate(tokens):
            engine.raw(one)
            front_engine.sent = number + 1
            await asyncio.sleep(0.02)
        engine.raw(END)

    for workers in (0, 1):

        async def begun(front):
            counted.engine = front.engines[0]
            counted.engine.sent = 0
            await test(front)

        world(begun, counted, workers=workers)
    (_, *without), without_later, (lent, *with_one), with_one_later = seen
    assert lent == 1
    assert with_one == without
    assert with_one_later == without_later


MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
TYPED = {
    MESSAGES: {"model": "llama", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 150, "stream": True},
    RESPONSES: {"model": "llama", "input": "Hello.", "max_output_tokens": 150, "stream": True},
}


@pytest.mark.parametrize("how", [None, "cut", "engine_dead"])
@pytest.mark.parametrize("target", TYPED)
def test_streams_whose_events_name_their_type_are_carried_too(target, how):
    """Where they break off, the error event has the number that comes next."""

    def seen_with(workers):
        seen = []

        async def test(front):
            task = await front.asked(TYPED[target], target, wait_s=1.0)
            if how is not None:
                front.fault(front.busy, how)
            answer = await task
            said = [json.loads(line[6:]) for line in answer.body.split(b"\n") if line.startswith(b"data: {")]
            assert len(said) > 80
            seen.extend((answer.complete, [{**event, "message": None, "item_id": None, "response": None} for event in said]))
            seen.extend((front.meter.prompt_tokens, front.meter.output_tokens, front.outcomes))
            if workers:
                assert lending(front).lent_total == 1

        fleet(test, workers=workers)
        return seen

    with_some, without = seen_with(2), seen_with(0)
    assert with_some == without
    assert with_some[-1] == ({"completed": 1} if how is None else {"truncated": 1})


def test_a_text_with_all_that_json_escapes_stays_at_its_worker(world):
    words = ['"', "\\", "\n", "é", "🙂", "", '{"a":1}', '"finish_reason":null'] * 12
    tokens = [chunk(token(word, number + 1)) for number, word in enumerate(["a", "b", "c", "d", "e", *words])]

    async def test(front):
        answer = await front.ask(ASK)
        assert answer.complete
        assert text(answer) == "".join(["a", "b", "c", "d", "e", *words])
        assert (lending(front).lent_total, lending(front).early_total) == (1, 0)

    world(test, script(*tokens, END), workers=1)


# -- what stays ----------------------------------------------------------------------------------------------------------


def test_what_keeps_coming_back_stays(world):
    """A keep-alive after every few tokens is nothing for a worker."""
    tokens = [chunk(token(f" w{n}", n + 1)) + (chunk(b": ping\n\n") if n % 20 == 19 else b"") for n in range(200)]

    async def test(front):
        answer = await front.ask(ASK)
        assert answer.complete
        assert lending(front).lent_total == lending(front).early_total == EARLY_MAX

    world(test, script(*tokens, END, pause_s=0.008), workers=1)


@pytest.mark.parametrize(
    ("more", "target"), [({"stop": ["xyz"]}, CHAT), ({"stream": False}, CHAT), ({"tools": [{"type": "function"}]}, CHAT)]
)
def test_what_is_not_usual_is_not_lent(more, target, world):
    call = {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]} if "tools" in more else {"content": "x"}
    event = {**FRAME, "choices": [{"index": 0, "delta": call, "logprobs": None, "finish_reason": None, "token_ids": [1]}]}
    tokens = [chunk(written(event))] * 40

    async def test(front):
        task = asyncio.create_task(front.ask(ASK | more, target=target))
        await asyncio.sleep(0.2)
        assert lending(front).lent_total == 0
        await task

    world(test, script(*tokens, END), workers=1)


def test_where_no_worker_takes_it_the_owner_goes_on(world):
    tokens = [chunk(token(f" w{number}", number + 1)) for number in range(50)]

    async def test(front):
        front.crew.full = True
        assert (await front.ask(ASK)).complete
        assert lending(front).lent_total == 0
        assert front.counts().completed == 1

    world(test, script(*tokens, END), workers=1)


# -- engines -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["kill", "cut", "abort", "engine_dead"])
@pytest.mark.parametrize("wait_s", [0.03, 0.061, 0.07, 0.3, 0.5901])
@pytest.mark.parametrize(("target", "request_"), [(CHAT, body(**USAGE)), (COMPLETIONS, completion(**USAGE))], ids=["chat", "completion"])
def test_an_engine_that_dies_under_a_lent_stream_is_gone_on_for(target, request_, how, wait_s):
    seen = {}

    async def test(front):
        seen["whole"] = await front.ask(request_, target)
        task = await front.asked(request_, target, wait_s)
        seen["lent"] = lent_now(front)
        if how == "kill":
            await front.kill(front.busy)
        else:
            front.fault(front.busy, how)
        seen["cut"] = await task
        seen["tokens"] = front.meter.output_tokens
        seen["outcomes"] = front.outcomes
        assert front.meter.continued == 1

    fleet(test, workers=2)
    assert seen["lent"] == (wait_s > 0.06)
    assert errors(seen["cut"]) == []
    assert text(seen["cut"]) == text(seen["whole"])
    assert (seen["tokens"], seen["outcomes"]) == (120, {"completed": 2})


def test_an_engine_that_ends_in_the_middle_of_a_chunk_leaves_no_half_event(world):
    tokens = [chunk(token(f" w{number}", number + 1)) for number in range(30)]

    async def half(_, engine):
        engine.raw(STREAM_HEAD)
        for one in tokens:
            engine.raw(one)
            await asyncio.sleep(0.004)
        engine.raw(tokens[0][:40])
        await asyncio.sleep(0.05)
        engine.close()

    async def test(front):
        answer = await front.ask(ASK)
        assert answer.complete
        (error,) = errors(answer)
        assert error["code"] == "stream_truncated"
        assert len(answer.events()) >= 31
        assert lending(front).lent_total == 1

    world(test, half, workers=1)


def test_a_replica_that_says_nothing_any_more_is_left_though_its_streams_are_lent():
    async def test(front):
        whole = await front.ask(body())
        task = await front.asked(body())
        assert lent_now(front) == 1
        front.fault(front.busy, "hang")
        async with asyncio.timeout(60):
            answer = await task
        assert errors(answer) == []
        assert text(answer) == text(whole)

    fleet(test, workers=2)


def test_an_answer_that_takes_too_long_in_all_is_had_back_and_ended(world, spec):
    tokens = [chunk(token(f" w{number}", number + 1)) for number in range(5000)]

    async def test(front):
        answer = await front.ask(ASK)
        assert errors(answer)
        assert lending(front).lent_total == 1

    world(test, script(*tokens), workers=1, limits=Limits(total_s=4.0))


# -- clients -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait_s", [0.06, 0.07, 0.0803, 0.3])
def test_a_client_that_leaves_stops_the_engine_at_once_and_is_counted(wait_s):
    async def test(front):
        client = await front.client()
        client.send(CHAT, body(500))
        await asyncio.sleep(wait_s)
        engine = front.busy
        out = engine.core.generated_total if hasattr(engine.core, "generated_total") else None
        client.close()
        await asyncio.sleep(0.05)
        assert engine.core.queued == 0
        assert front.outcomes == {"client_gone": 1}
        assert abs(front.meter.output_tokens - (wait_s - 0.013) / 0.010) <= 3, out
        assert lending(front).lent_total == 1

    fleet(test, workers=1)


def test_a_client_that_reads_slowly_holds_its_engine_back_and_is_dropped_in_time(world):
    """By no more than the bound, and the owner knows that it isn't the engine that is silent."""
    big = "x" * 3000
    tokens = [chunk(token(big, number + 1)) for number in range(400)]

    async def test(front):
        client = await front.client()
        client.send(CHAT, ASK)
        await client.head()
        await until(lambda: lent_now(front) == 1)
        client.writer.transport.pause_reading()
        call = next(iter(front.gateway.desk.pools["chat"].calls.values()))
        await until(lambda: call._paused)
        assert call.streaming() is None
        (line,) = front.crew.lines
        (carried,) = line.helper.streams.values()
        assert carried.client.transport.get_write_buffer_size() < 64 * 1024 + 2 * len(tokens[0])
        client.writer.transport.resume_reading()
        await until(lambda: not call._paused)
        client.writer.transport.pause_reading()
        await until(lambda: call._paused)
        await asyncio.sleep(12.5)
        assert front.counts("interactive").completed == 0
        assert front.permits == 0
        assert front.gateway.desk.pools["chat"].meters["interactive"].outcomes["client_slow"] == 1
        assert line.helper.streams == {}

    world(test, script(*tokens), workers=1, limits=Limits(idle_s=10.0, client_buffer_bytes_max=64 * 1024))


def test_what_a_client_says_while_it_is_answered_is_read_when_its_turn_comes(world):
    tokens = [chunk(token(f" w{number}", number + 1)) for number in range(60)]

    async def test(front):
        client = await front.client()
        client.send(CHAT, ASK)
        await until(lambda: lent_now(front) == 1)
        client.send(CHAT, ASK | {"max_tokens": 7})
        first, second = await client.read(), await client.read()
        assert first.complete
        assert second.complete
        assert first.body == second.body
        assert front.engines[0].seen[1].json()["max_tokens"] == 7

    world(test, script(*tokens, END), workers=1)


def test_a_client_that_takes_nothing_and_says_ever_more_is_not_read_for_ever(world):
    """A worker held whatever such a client sent until that had taken what was written to it."""
    tokens = [chunk(token("x" * 3000, number + 1)) for number in range(60)]

    async def test(front):
        client = await front.client()
        client.send(CHAT, ASK)
        await client.head()
        await until(lambda: lent_now(front) == 1)
        (line,) = front.crew.lines
        client.writer.transport.pause_reading()
        await asyncio.sleep(0.05)
        (carried,) = line.helper.streams.values()
        said = b"x" * 4096
        for _ in range(50):
            client.writer.write(said)
            await asyncio.sleep(0.001)
        assert carried.leaving
        assert len(carried.client_bytes) == len(said)
        await asyncio.sleep(13.0)
        assert front.permits == 0
        assert line.helper.streams == {}

    world(test, script(*tokens), workers=1, limits=Limits(idle_s=10.0, client_buffer_bytes_max=16 * 1024))


# -- places given up, and the end of the gateway -----------------------------------------------------------------------


@pytest.mark.parametrize("wait_s", [0.03, 0.061, 0.07, 0.3, 0.55])
def test_a_lent_batch_stream_gives_its_place_up_and_goes_on_exactly(wait_s):
    seen = {}

    async def test(front):
        seen["whole"] = await front.ask(body(**BATCH, **USAGE))
        task = await front.asked(body(**BATCH, **USAGE), wait_s=wait_s)
        seen["lent"] = lent_now(front)
        seen["urgent"] = await front.ask(body(30))
        seen["done_first"] = not task.done()
        seen["answer"] = await task
        meter = front.gateway.desk.pools["chat"].meters["batch"]
        seen["counted"] = (meter.output_tokens, meter.requeued)

    fleet(test, replicas=1, capacity=ONE_SLOT, workers=1)
    assert seen["lent"] == (wait_s > 0.06)
    assert seen["done_first"], "the urgent one did not wait for it"
    assert without_time(seen["answer"]) == without_time(seen["whole"])
    assert seen["counted"] == (120, 1)


def test_a_gateway_that_ends_says_so_inside_a_lent_stream():
    async def test(front):
        task = await front.asked(body(500))
        assert lent_now(front) == 1
        await cut(front.gateway)
        (error,) = errors(await task)
        assert error["code"] == "stream_truncated"
        assert lent_now(front) == 0

    fleet(test, workers=1)


# -- workers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait_s", [0.0601, 0.0604, 0.062, 0.07, 0.3, 0.6])
def test_a_worker_that_is_killed_takes_its_streams_and_nothing_else(wait_s):
    async def test(front):
        lost = await front.asked(body(500), wait_s=wait_s)
        line = next(iter(front.crew.lines))
        carried = sum(bool(each.lent) for each in lending(front)._posts.values())
        for each in list(front.crew.lines):
            each.kill()
        answer = await lost
        await asyncio.sleep(0.01)
        if carried:
            assert not answer.complete, "an answer that is not whole must not look so"
            assert front.outcomes == {"truncated": 1}
            assert lending(front).streams_lost == 1
            assert not any(engine.core.queued for engine in front.engines)
        assert any(event.kind == "relay_worker_lost" for event in front.sink.events)
        assert lending(front).workers == 0
        after = await front.ask(body(20))
        assert after.complete, "the owner relays meanwhile"
        front.gateway.check()
        await asyncio.sleep(0.5)
        assert lending(front).workers == 2
        assert line not in front.crew.lines
        again = await front.ask(body(100))
        assert again.complete
        assert front.meter.output_tokens <= 620
        assert front.gateway.snapshot()

    fleet(test, workers=2)


def test_a_stream_that_is_lost_with_its_worker_is_counted_as_last_told():
    async def test(front):
        task = await front.asked(body(500), wait_s=1.0)
        for line in list(front.crew.lines):
            line.kill()
        assert not (await task).complete
        await asyncio.sleep(0.01)
        assert 85 <= front.meter.output_tokens <= 99  # of 98 that came, those of the last tenth of a second may not be told

    fleet(test, workers=1)


def test_a_worker_that_says_nothing_is_ended(world):
    tokens = [chunk(token(f" w{number}", number + 1)) for number in range(5000)]

    async def test(front):
        task = asyncio.create_task(front.ask(ASK))
        await until(lambda: lent_now(front) == 1)
        (line,) = front.crew.lines
        line.helper.close()  # it hangs: no report any more
        await asyncio.sleep(SILENT_SWEEPS_MAX + 2)
        assert not line.alive
        assert not (await task).complete

    world(test, script(*tokens, pause_s=0.01), workers=1)


def test_a_recall_that_crosses_the_end_of_the_stream_is_no_matter(world):
    tokens = [chunk(token(f" w{number}", number + 1)) for number in range(30)]

    async def test(front):
        task = asyncio.create_task(front.ask(ASK))
        await until(lambda: lent_now(front) == 1)
        (line,) = front.crew.lines
        assert (await task).complete
        line.send(encode(Recall(1)))
        line.send(encode(Recall(77)))
        await front.sleep(0.1)
        assert line.alive

    world(test, script(*tokens, END), workers=1)


@pytest.mark.parametrize("seed", range(8))
def test_a_crowd_with_all_of_it_at_once_keeps_the_books(seed):
    """Two places, batch and urgent streams, clients that leave, a replica that breaks off, and workers that are killed at any moment."""
    chance = random.Random(seed)
    capacity = msgspec.structs.replace(CAPACITY, sequences=3)

    async def test(front):
        expected = text(await front.ask(body(60))).split()
        told = {"whole": 0, "closed": 0, "left": 0}

        async def one(urgent):
            await asyncio.sleep(chance.uniform(0, 2))
            tokens = chance.randint(1, 60)
            client = await front.client()
            client.send(CHAT, body(tokens, **USAGE, **({} if urgent else BATCH)))
            if chance.random() < 0.2:
                await asyncio.sleep(chance.uniform(0, 0.6))
                client.close()
                told["left"] += 1
                return
            answer = await client.read()
            if not answer.complete:
                told["closed"] += 1
                return
            assert errors(answer) == []
            assert text(answer).split() == expected[:tokens]
            assert answer.events()[-2]["usage"]["completion_tokens"] == tokens
            told["whole"] += 1

        tasks = [asyncio.create_task(one(number % 2)) for number in range(30)]
        for _ in range(3):
            await asyncio.sleep(0.6)
            front.gateway.check()
            if seed % 2:
                chance.choice(front.crew.lines).kill() if front.crew.lines else None
        if seed % 3 == 0:
            front.fault(front.busy, "cut")
        await asyncio.gather(*tasks)
        await asyncio.sleep(0.01)
        assert told["closed"] <= lending(front).streams_lost <= told["closed"] + told["left"]
        assert told["whole"] >= 10
        assert lent_now(front) == 0

    fleet(test, replicas=2, capacity=capacity, workers=2, seed=seed)


# -- what is easily got wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "goes_on"),
    [
        ({}, True),
        ({"error": None}, False),
        ({"error": {"message": "the engine died"}}, False),
        ({"delta": {"tool_calls": [{"index": 0}]}}, False),
        ({"delta": {"function_call": {"name": "f"}}}, False),
        ({"delta": {"content": "x", "tool_calls": []}}, True),
        ({"delta": {"content": "x", "tool_calls": None, "function_call": None}}, True),
        ({"delta": {"content": '"error" "tool_calls": [ _tokens"'}}, True),
        ({"prompt_token_ids": [1, 2]}, False),
        ({"prompt_token_ids": None}, True),
        ({"finish_reason": "abort"}, False),
        ({"finish_reason": "stop"}, False),
        ({"usage": {"prompt_tokens": 1}}, False),
    ],
)
def test_what_of_an_answer_that_goes_on_is_for_a_worker(more, goes_on):
    choice = {"index": 0, "delta": {"content": "x"}, "logprobs": None, "finish_reason": None, "token_ids": [7]}
    event = {**FRAME, "choices": [choice | {key: value for key, value in more.items() if key in choice}]}
    event |= {key: value for key, value in more.items() if key not in choice}
    plain = written({**FRAME, "choices": [choice]})
    for stream in (EventStream(True, True), ToldStream(True, True, Wants(ids=True), Emitted())):
        assert stream.goes_on(plain)
        assert stream.goes_on(written(event)) == goes_on
        assert stream.goes_on(plain + written(event) + plain) == goes_on
    assert not EventStream(True, True).goes_on(plain + b": ping\n\ndata: [DONE]\n\n")


def test_a_stream_that_comes_back_before_anything_came_is_as_it_was(world):
    tokens = [chunk(token(f" w{number}", number + 1)) for number in range(6)]

    async def test(front):
        client = await front.client()
        client.send(CHAT, ASK)
        await until(lambda: front.gateway.desk.live == 1)
        (call,) = front.gateway.desk.pools["chat"].calls.values()
        await until(lambda: lent_now(front) == 1)
        before = log_of(call)
        assert before[2], "the text that is out is that of its ids"
        lending(front).recall(call._lent, lambda: None)
        await until(lambda: lent_now(front) == 0)
        assert log_of(call) == before

    async def pausing(_, engine):
        engine.raw(STREAM_HEAD)
        for one in tokens:
            engine.raw(one)
            await asyncio.sleep(0.002)
        await asyncio.sleep(1.0)

    world(test, pausing, workers=1)


def test_a_large_event_is_handed_on_at_once(world):
    """One of over 4 KB is no usual chunk; it must not wait for what comes after it."""
    tokens = [chunk(token(f" w{number}", number + 1)) for number in range(20)]

    async def script_(_, engine):
        engine.raw(STREAM_HEAD)
        for one in tokens:
            engine.raw(one)
            await asyncio.sleep(0.004)
        engine.raw(chunk(token("x" * 5000, 21)))
        await asyncio.sleep(1.0)
        engine.raw(END)

    async def test(front):
        client = await front.client()
        client.send(CHAT, ASK)
        await client.head()
        async with asyncio.timeout(0.5):
            while b"xxxx" not in await client.event():
                pass
        assert lending(front).lent_total == 1

    world(test, script_, workers=1)


def test_a_client_that_was_slow_and_is_had_back_is_not_slow_any_more(world):
    tokens = [chunk(token("x" * 3000, number + 1)) for number in range(400)]

    async def test(front):
        client = await front.client()
        client.send(CHAT, ASK)
        await client.head()
        await until(lambda: lent_now(front) == 1)
        (call,) = front.gateway.desk.pools["chat"].calls.values()
        client.writer.transport.pause_reading()
        await until(lambda: call._paused)
        call._early = EARLY_MAX
        back = []
        lending(front).recall(call._lent, lambda: back.append((call._paused, call.streaming() is not None)))
        await asyncio.sleep(0.1)
        assert lent_now(front) == 1, "it waits for its client"
        client.writer.transport.resume_reading()
        await until(lambda: back)
        assert back == [(False, True)]

    world(test, script(*tokens), workers=1, limits=Limits(client_buffer_bytes_max=64 * 1024))


def test_a_client_that_takes_nothing_while_its_stream_is_asked_for_is_dropped_in_time(world):
    """It need not have been told to be slow: less than the bound is written."""
    tokens = [chunk(token("x" * 300, number + 1)) for number in range(60)]

    async def test(front):
        client = await front.client()
        client.send(CHAT, ASK)
        await client.head()
        await until(lambda: lent_now(front) == 1)
        (call,) = front.gateway.desk.pools["chat"].calls.values()
        client.writer.transport.pause_reading()
        await asyncio.sleep(0.05)
        assert not call._paused
        lending(front).recall(call._lent, lambda: None)
        await asyncio.sleep(13.0)
        assert front.permits == 0
        assert front.gateway.desk.pools["chat"].meters["interactive"].outcomes["client_slow"] == 1

    world(test, script(*tokens), workers=1, limits=Limits(idle_s=10.0))


def test_a_worker_whose_streams_are_silent_lives_on(world):
    tokens = [chunk(token(f" w{number}", number + 1)) for number in range(20)]

    async def quiet(_, engine):
        engine.raw(STREAM_HEAD)
        for one in tokens:
            engine.raw(one)
            await asyncio.sleep(0.004)
        await asyncio.sleep(4 * SILENT_SWEEPS_MAX)
        engine.raw(END)

    async def test(front):
        task = asyncio.create_task(front.ask(ASK))
        await asyncio.sleep(3 * SILENT_SWEEPS_MAX)
        assert lent_now(front) == 1
        assert lending(front).workers_lost == 0
        assert (await task).complete

    world(test, quiet, workers=1)


def test_what_another_gateway_sent_here_is_not_lent(world):
    tokens = [chunk(token(f" w{number}", number + 1)) for number in range(40)]

    async def test(front):
        front.gateway.http.by_peer = True
        task = asyncio.create_task(front.ask(ASK))
        await asyncio.sleep(0.1)
        assert lending(front).lent_total == 0
        await task

    world(test, script(*tokens, END), workers=1)


class _Half(asyncio.Transport):
    """A transport with something unsent."""

    unsent_bytes = 0

    def write(self, data):
        pass

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def get_write_buffer_size(self):
        return self.unsent_bytes

    def is_closing(self):
        return False


def test_a_connection_is_lent_only_where_all_is_sent_and_nothing_waits():
    asked = []
    server = HttpServer(Limits(), lambda connection, request: asked.append(request))
    connection, transport = ClientConnection(server), _Half()
    connection.connection_made(transport)
    connection.data_received(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    assert connection.lendable() is transport
    transport.unsent_bytes = 1
    assert connection.lendable() is None
    transport.unsent_bytes = 0
    connection.data_received(b"GET /next")
    assert connection.lendable() is None


@pytest.mark.parametrize("how", ["ends", "leaves", "is dropped"])
def test_nothing_is_left_of_a_stream_for_the_collector_of_cycles(how, world):
    """It runs so seldom that streams of minutes would pile up until it does."""
    tokens = [chunk(token(f" w{number}", number + 1)) for number in range(60)]

    def left():
        kinds = (Carried, EventStream, Emitted, LentCall)
        return [each for each in gc.get_objects() if isinstance(each, kinds)]

    async def test(front):
        before = len(left())
        gc.disable()
        client = await front.client()
        client.send(CHAT, ASK)
        await until(lambda: lent_now(front) == 1)
        if how == "ends":
            assert (await client.read()).complete
        elif how == "leaves":
            client.close()
        else:
            next(iter(front.gateway.desk.pools["chat"].calls.values()))._end(Outcome.TRUNCATED, None)
            next(iter(front.gateway.http.connections)).abort()
        await asyncio.sleep(0.1)
        gc.enable()
        assert len(left()) == before

    gc.collect()
    world(test, script(*tokens, END), workers=1)
