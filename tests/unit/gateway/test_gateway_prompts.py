"""A list of prompts is so many sequences: in slots, at a stream's end, where it could be continued, and in what is metered."""

import asyncio
import json

import pytest
from emulated_fleet import COMPLETIONS, completion, errors, fleet, text, without_time
from emulated_fleet import body as chat_body
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.domain.usage import COUNTED, OUTPUT, PROMPT
from forebay.gateway.body import THIN_BYTES_MIN, decode_conversations, decode_prompts, prompts_of
from forebay.gateway.events import decode_event
from forebay.gateway.peek import JsonPeek
from forebay.gateway.several import Several
from forebay.spec.types import Limits

BATCH = "/v1/chat/completions/batch"
IDS = [list(range(number, number + 7)) for number in range(9)]
TEXTS = st.lists(st.text(alphabet='"\\[]{},: \nabé', max_size=9), min_size=1, max_size=6)
LISTS = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=4), min_size=1, max_size=6)


# -- counting --------------------------------------------------------------------------------------------------------------


def counted(fields, decode=decode_prompts, **how):
    return prompts_of(decode(json.dumps({"model": "llama", **fields}, **how).encode()))


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"prompt": "one"}, 1),
        ({"prompt": [5, 6, 7]}, 1),
        ({"prompt": ["one"]}, 1),
        ({"prompt": ["one", "two"]}, 2),
        ({"prompt": IDS}, 9),
        ({"prompt": [], "prompts": 50}, 1),
        ({"prompt": None}, 1),
        ({"prompt": None, "prompt_embeds": ["AAAA", "BBBB"]}, 2),
        ({"prompt": "", "prompt_embeds": "AAAA"}, 2),
        ({"prompt": "one [of them]", "prompts": 50}, 1),
        ({}, 1),
        ({"metadata": {"prompt": ["one", "two"]}, "prompt": "one"}, 1),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_a_list_of_prompts_and_what_is_one(fields, count):
    assert counted(fields) == counted(fields, indent=1) == count


@given(TEXTS | LISTS, st.booleans(), st.sampled_from([None, 1]))
@settings(max_examples=60, deadline=None)
def test_each_prompt_counts_whatever_stands_in_it(prompts, ascii_only, indent):
    assert counted({"prompt": prompts}, ensure_ascii=ascii_only, indent=indent) == len(prompts)


@pytest.mark.parametrize(
    "prompts",
    [["x" * THIN_BYTES_MIN, 'a "word"' * 9000, "y"], [[7] * 30_000, [8], [9] * 30_000], ["\\" * 40_000] * 3],
    ids=["texts", "ids", "escapes"],
)
def test_prompts_count_in_a_body_that_is_thinned(prompts):
    assert counted({"prompt": prompts}) == 3
    assert counted({"prompt": list(range(50_000))}) == 1


def test_conversations_count_and_not_the_lists_in_them():
    turn = {"role": "user", "content": [{"type": "text", "text": "[[ a list ]]"}]}
    assert counted({"messages": [[turn], [turn, turn], [turn]]}, decode_conversations) == 3
    assert counted({"messages": [turn, turn]}, decode_conversations) == 1
    assert counted({"messages": [[turn], turn]}, decode_conversations) == 1


def test_what_was_counted_is_let_go_of():
    """It would keep the body for as long as the request is inside."""
    ask = decode_prompts(json.dumps({"model": "llama", "prompt": "x" * 1000, "prompt_embeds": ["A"]}).encode())
    assert not any(map(bytes, (ask.prompt, ask.prompt_embeds, ask.messages)))


@given(TEXTS | LISTS | st.text(max_size=5) | st.none(), st.integers(1, 30), st.permutations(["model", "prompt", "n"]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_peek_counts_the_prompts_before_the_rest_may_flow(prompt, step, order, embeds):
    given_fields = {"model": "llama", "prompt": prompt, "n": 2}
    fields = {name: given_fields[name] for name in order} | ({"prompt_embeds": ["AAAA", "BBBB"]} if embeds and not prompt else {})
    body = json.dumps(fields).encode()
    peek = JsonPeek(b"prompt")
    for start in range(0, len(body), step):
        peek.feed(body[start : start + step])
        if peek.found:
            assert max(1, peek.prompts) == prompts_of(decode_prompts(body)), "it may flow, and not all of them are counted"
    assert max(1, peek.prompts) == prompts_of(decode_prompts(body))
    if prompt:
        assert peek.found


def test_a_long_text_may_flow_as_soon_as_it_begins():
    peek = JsonPeek(b"prompt")
    peek.feed(b'{"model":"llama","prompt":"')
    assert not peek.found
    peek.feed(b"once")
    assert (peek.found, peek.prompts) == (True, 1)


# -- slots -----------------------------------------------------------------------------------------------------------------


async def streams_until_left(_, answer):
    answer.stream()
    answer.event({"choices": [{"index": 0, "text": "a", "finish_reason": None}]})
    await answer.gone.wait()


@pytest.mark.parametrize("prompts", [["one"] * 5, IDS[:5]], ids=["texts", "ids"])
def test_a_list_of_prompts_takes_a_slot_for_each(world, prompts):
    """It took one, and the others waited inside the engine, where nobody goes first."""

    async def test(front):
        for _ in range(2):
            client = await front.client()
            client.send(COMPLETIONS, {"model": "llama", "prompt": prompts, "stream": True})
        await front.sleep(0.2)
        assert (front.permits, front.waiting) == (1, 1), "two of five don't fit into eight slots"

    world(test, streams_until_left)


def test_lists_of_prompts_wait_in_lanes_and_not_in_engines():
    async def test(front):
        request = completion(400, prompt=[f"prompt {number}" for number in range(32)])
        tasks = [asyncio.create_task(front.ask(request, COMPLETIONS)) for _ in range(6)]
        await asyncio.sleep(0.05)
        load = front.gateway.snapshot().pools[0]
        assert [replica.streams for replica in load.replicas] == [2, 2], "of 32 sequences each, in 64 slots"
        assert sum(lane.waiting for lane in load.lanes) == 2
        assert [engine.core.queued for engine in front.engines] == [64, 64]
        for client in front.clients:
            client.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    fleet(test)


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        (COMPLETIONS, {"prompt": ["one"] * 9}),
        (COMPLETIONS, {"prompt": IDS}),
        (COMPLETIONS, {"prompt": ["one"] * 3, "n": 3}),
        (BATCH, {"messages": [[{"role": "user", "content": "hello"}]] * 9}),
    ],
    ids=["texts", "ids", "times n", "conversations"],
)
def test_more_sequences_than_slots_never_fit_and_are_refused(world, target, fields):
    async def answers(_, answer):
        answer.json(200, {"choices": []})

    async def test(front):
        refused = await front.ask({"model": "llama", **fields}, target=target)
        assert (refused.status, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert "fewer prompts" in refused.json()["error"]["message"]
        assert not front.engines[0].seen
        one = await front.ask({"model": "llama", "prompt": IDS[0] + IDS[1]}, target=COMPLETIONS)
        assert one.status == 200, "a flat list of ids is one prompt"

    world(test, answers)


LIMITS = Limits(body_bytes_max=20_000, streamed_body_bytes_max=400_000, bodies_bytes_max=300_000)


@pytest.mark.parametrize(("count", "status"), [(3, 200), (9, 400)])
@pytest.mark.parametrize("model_first", [True, False])
def test_prompts_count_in_a_body_that_is_not_held(world, count, status, model_first):
    async def answers(_, answer):
        answer.json(200, {"choices": []})

    async def test(front):
        lists = {"prompt": ["x" * 12_000] * count}
        named = {"model": "llama"}
        answer = await front.ask(named | lists if model_first else lists | named, target=COMPLETIONS)
        assert answer.status == status
        assert len(front.engines[0].seen) == (status == 200)

    world(test, answers, limits=LIMITS)


# -- inputs that are only read ---------------------------------------------------------------------------------------------


def test_a_list_of_inputs_is_prefilled_as_a_whole_and_takes_one_slot(world):
    """However many there are it was taken for one of the context's length, so that a replica was given eight times a whole corpus."""

    async def slow(_, answer):
        await asyncio.sleep(100)
        answer.json(200, {"data": [], "usage": {"prompt_tokens": 60_000}})

    async def test(front):
        request = {"model": "llama", "input": ["some words of text "] * 10_000}
        clients = [await front.client() for _ in range(3)]
        for client in clients:
            client.send("/v1/embeddings", request)
        await front.sleep(0.2)
        assert (front.permits, front.waiting) == (1, 2), "its prefill takes the whole budget"
        (running,) = [
            call for call in front.gateway.desk.pools["chat"].calls.values() if call.record(front.clock.now_s()).state == "running"
        ]
        assert running.record(front.clock.now_s()).estimated_prompt_tokens > 50_000
        small = await front.client()
        small.send("/v1/embeddings", {"model": "llama", "input": "a"})
        for client in clients:
            assert (await client.read()).status == 200
        assert (await small.read()).status == 200

    world(test, slow)


def test_pictures_among_the_inputs_are_not_taken_for_text(world):
    async def answers(_, answer):
        answer.json(200, {"data": []})

    async def test(front):
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 200_000}}
        request = {"model": "llama", "messages": [{"role": "user", "content": [picture]}]}
        assert (await front.ask(request, target="/v1/embeddings")).status == 200
        (one,) = front.gateway.records.ordinary
        assert one[5].prompt_tokens < 2000

    world(test, answers)


# -- the end of a stream ---------------------------------------------------------------------------------------------------


def part(index, text, finish=None, **more):
    return {"id": "c", "object": "text_completion", "choices": [{"index": index, "text": text, "finish_reason": finish, **more}]}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_list_that_is_cut_after_its_first_answer_is_not_taken_for_whole(workers):
    """The client had 60 and 57 tokens, then ``[DONE]``; it counted as completed."""

    async def test(front):
        task = await front.asked(completion(60, prompt=["short", *["x" * 6000] * 3]), COMPLETIONS, wait_s=1.12)
        await front.kill(front.busy)
        answer = await task
        ends = [event["choices"][0]["finish_reason"] for event in answer.events() if event != "[DONE]" and event.get("choices")]
        assert 1 <= ends.count("length") < 4, "some were under way"
        (error,) = errors(answer)
        assert "it has several prompts" in error["message"]
        assert answer.events()[-1] == "[DONE]"
        assert front.outcomes == {"truncated": 1}

    fleet(test, workers=workers)


@pytest.mark.parametrize(
    "ends",
    [
        [part(0, "a", "stop"), part(0, "", "stop")],
        [part(1, "y"), part(0, "a", "stop")],
    ],
    ids=["one of two, told twice", "the last event ends one"],
)
@pytest.mark.parametrize("how", ["cut", "clean"])
@pytest.mark.parametrize("fields", [{"prompt": ["p", "q"]}, {"prompt": "p", "n": 2}], ids=["list", "n"])
def test_a_stream_is_whole_only_with_every_choice_ended(world, ends, how, fields):
    async def half(_, answer):
        answer.stream()
        for event in ends:
            answer.event(event)
        await asyncio.sleep(0.05)
        if how == "cut":
            answer.cut()
        else:
            answer.raw(b"0\r\n\r\n")

    async def test(front):
        answer = await front.ask({"model": "llama", **fields, "stream": True, "max_tokens": 9}, target=COMPLETIONS)
        assert answer.events()[-2]["error"]["code"] == "stream_truncated"
        assert front.counts().completed == 0

    world(test, half)


def test_a_stream_with_every_choice_ended_is_whole_though_it_is_cut(world):
    async def ends(_, answer):
        answer.stream()
        for event in (part(1, "x"), part(0, "a", "stop"), part(1, "y", "length")):
            answer.event(event)
        await asyncio.sleep(0.05)
        answer.cut()

    async def test(front):
        answer = await front.ask({"model": "llama", "prompt": ["p", "q"], "stream": True}, target=COMPLETIONS)
        assert (errors(answer), answer.events()[-1], front.counts().completed) == ([], "[DONE]", 1)

    world(test, ends)


def test_how_a_large_body_goes_on_is_not_known_so_only_done_ends_its_stream(world):
    """``n`` may stand in what nobody has read."""

    async def half(seen, answer):
        answer.stream()
        answer.event(part(0, "a"))
        answer.event(part(0, "b", "stop"))
        await asyncio.sleep(0.05)
        answer.cut()

    async def test(front):
        client = await front.client()
        body = json.dumps({"model": "llama", "prompt": "x" * 60_000, "stream": True, "n": 2}).encode()
        client.writer.write(b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body[:-40]))
        await front.sleep(0.2)
        client.writer.write(body[-40:])
        answer = await client.read()
        assert front.engines[0].seen[0].body == body
        assert errors(answer)[0]["code"] == "stream_truncated"

    world(test, half, limits=LIMITS)


@pytest.mark.parametrize("prompt", [["a prompt of some length"], [[5, 6, 7, 8]], [5, 6, 7, 8]], ids=["a text", "ids", "flat"])
def test_a_list_of_one_prompt_is_continued(prompt):
    """As LangChain asks for every completion."""
    seen = {}

    async def test(front):
        request = completion(prompt=prompt, stream_options={"include_usage": True})
        seen["whole"] = await front.ask(request, COMPLETIONS)
        task = await front.asked(request, COMPLETIONS)
        await front.kill(front.busy)
        seen["cut"] = await task
        assert front.outcomes == {"completed": 2}

    fleet(test)
    assert errors(seen["cut"]) == []
    assert text(seen["cut"]) == text(seen["whole"])
    assert without_time(seen["cut"]) == without_time(seen["whole"])


def test_a_list_with_a_blank_before_its_first_prompt_is_a_list_too(world):
    """It was taken for one prompt, and gone on with as if the second answer were more of the first."""

    async def half(_, answer):
        answer.stream()
        for index in (0, 1):
            answer.event(part(index, "a", token_ids=[7], prompt_token_ids=[1, 2]))
        await asyncio.sleep(0.05)
        answer.cut()

    async def test(front):
        client = await front.client()
        body = b'{"model":"llama","prompt": [ "p", "q"],"stream":true}'
        client.writer.write(b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        answer = await client.read()
        assert "several prompts" in errors(answer)[0]["message"]
        assert sum(len(engine.seen) for engine in front.engines) == 1

    world(test, half, half)


# -- metering --------------------------------------------------------------------------------------------------------------


async def left_after(front, request, wait_s, target=COMPLETIONS):
    """What is metered of a client that leaves."""
    client = await front.client()
    client.send(target, request)
    await asyncio.sleep(wait_s)
    client.close()
    await asyncio.sleep(0.2)
    ((_, counts),) = front.gateway.usage.shown()
    return counts


@pytest.mark.parametrize("workers", [0, 2])
def test_a_client_that_leaves_is_metered_for_all_its_prompts(workers):
    """Of three prompts of 100 tokens one was counted, and called exact."""

    async def test(front):
        counts = await left_after(front, completion(200, prompt=["a" * 400, "b" * 400, "c" * 400]), 0.5)
        assert (counts[PROMPT], counts[COUNTED]) == (300, 0)
        assert counts[OUTPUT] > 60

    fleet(test, workers=workers)


def test_prompts_of_which_nothing_has_come_count_as_estimated_and_are_not_called_exact():
    async def test(front):
        counts = await left_after(front, completion(200, prompt=["a" * 400, "b" * 4000, "c" * 6000]), 0.1)
        assert 1500 < counts[PROMPT] < 4000
        assert counts[COUNTED] > 0

    fleet(test)


@pytest.mark.parametrize(
    "fields", [{"prompt": ["x" * 6000] * 20}, {"prompt": "x" * 6000, "n": 3, "user": "u" * 100_000}], ids=["list", "n"]
)
def test_running_usage_is_of_one_choice_and_is_summed(fields):
    """A body too long for its ids to be asked: the last event told of one choice alone, which stood for all."""

    async def test(front):
        counts = await left_after(front, {**completion(400), **fields}, 6.0)
        prompts, choices = (20, 20) if isinstance(fields["prompt"], list) else (1, 3)
        assert (counts[PROMPT], counts[COUNTED]) == (prompts * 1500, 0)
        assert counts[OUTPUT] > choices * 20

    fleet(test)


def test_running_usage_that_the_client_asked_for_is_not_taken_for_the_whole():
    async def test(front):
        options = {"include_usage": True, "continuous_usage_stats": True}
        request = {**completion(400, prompt=["x" * 6000] * 20), "stream_options": options}
        counts = await left_after(front, request, 6.0)
        assert counts[COUNTED] > 0
        assert counts[PROMPT] > 20_000
        assert counts[OUTPUT] > 20 * 20

    fleet(test)


def test_several_choices_of_a_chat_are_metered_when_its_client_leaves():
    async def test(front):
        counts = await left_after(front, chat_body(400, n=3, prompt="a" * 400), 1.0, "/v1/chat/completions")
        assert (counts[PROMPT], counts[COUNTED]) == (100, 0)
        assert counts[OUTPUT] > 3 * 50

    fleet(test)


def test_what_an_engine_says_of_choices_that_nobody_asked_for_counts_nothing():
    several = Several(2, 4)
    for index in (b"-1", b"4", b'"0"', b"null", b"[]"):
        several.note(decode_event(b'{"choices":[{"index":%b,"text":"a","prompt_token_ids":[1,2]}]}' % index))
    assert several.usage(0, 80) is None
    several.note(decode_event(b'{"choices":[{"index":3,"text":"a","prompt_token_ids":[1,2]}]}'))
    usage = several.usage(5, 80)
    assert (usage.prompt_tokens, usage.output_tokens, usage.exact) == (42, 5, False), "one of two prompts is known"
