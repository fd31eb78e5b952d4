"""A stream whose replica dies goes on elsewhere: one unbroken answer, no token lost or twice, or an honest error."""

import asyncio
import json

import pytest
from emulated_fleet import CHAT, COMPLETIONS, PROFILE, body, completion, errors, fleet, text, without_time

from forebay.gateway import retries
from forebay.gateway.body import decode
from forebay.gateway.continuing import plan
from forebay.spec.types import EngineKind

USAGE = {"stream_options": {"include_usage": True}}


def _both(request, target, how="kill", wait_s=0.3, **world):
    """The answer undisturbed, and the same with its replica failing on the way."""
    seen = {}

    async def test(front):
        seen["whole"] = await front.ask(request, target)
        task = await front.asked(request, target, wait_s)
        if how == "kill":
            await front.kill(front.busy)
        else:
            front.fault(front.busy, how)
        seen["cut"] = await task
        seen["meter"] = front.meter
        seen["outcomes"] = front.outcomes
        seen["tokens"] = (front.meter.prompt_tokens, front.meter.output_tokens)
        await front.client()

    fleet(test, **world)
    return seen


@pytest.mark.parametrize("how", ["kill", "cut", "abort", "engine_dead"])
@pytest.mark.parametrize(
    ("target", "request_"),
    [(CHAT, body()), (CHAT, body(**USAGE)), (COMPLETIONS, completion()), (COMPLETIONS, completion(**USAGE))],
    ids=["chat", "chat with usage", "completion", "completion with usage"],
)
def test_a_cut_stream_goes_on_as_if_nothing_had_been(target, request_, how):
    seen = _both(request_, target, how)
    assert seen["cut"].complete
    assert errors(seen["cut"]) == []
    assert text(seen["cut"]) == text(seen["whole"])
    assert without_time(seen["cut"])[-3:] == without_time(seen["whole"])[-3:]
    assert len({event["id"] for event in seen["cut"].events() if event != "[DONE]"}) == 1
    assert len({event["created"] for event in seen["cut"].events() if event != "[DONE]"}) == 1
    assert seen["meter"].continued == 1
    assert seen["outcomes"] == {"completed": 2}
    prompt, output = seen["tokens"]
    assert (prompt % 2, output) == (0, 120)  # counted once, as the other


def test_every_event_of_a_continued_stream_is_as_the_first_engine_would_have_sent_it():
    seen = _both(body(**USAGE), CHAT, "cut")
    assert without_time(seen["cut"]) == without_time(seen["whole"])


@pytest.mark.parametrize("wait_s", [0.02, 0.05, 0.13, 0.42, 0.59])
def test_it_may_be_cut_at_any_time(wait_s):
    seen = _both(body(**USAGE), CHAT, "cut", wait_s)
    assert without_time(seen["cut"]) == without_time(seen["whole"])


def test_a_stream_can_be_continued_twice():
    async def test(front):
        whole = await front.ask(body(100))
        task = await front.asked(body(100))
        await front.kill(front.busy)
        await asyncio.sleep(0.3)
        await front.kill(front.busy)
        answer = await task
        assert text(answer) == text(whole)
        assert front.meter.continued == 2
        assert front.meter.output_tokens == 200

    fleet(test, replicas=3)


def test_token_ids_and_usage_that_a_client_did_not_ask_for_are_not_told():
    async def test(front):
        answer = await front.ask(body())
        events = [event for event in answer.events() if event != "[DONE]"]
        assert all(event["choices"] for event in events)
        assert all(choice.get("token_ids") is None for event in events for choice in event["choices"])
        assert events[0]["prompt_token_ids"] is None
        assert all("usage" not in event for event in events)

    fleet(test)


def test_token_ids_that_a_client_asked_for_stay_and_go_on():
    request = body(return_token_ids=True, **USAGE)
    seen = _both(request, CHAT)
    ids = [token for event in seen["cut"].events()[:-1] for choice in event["choices"] for token in choice.get("token_ids") or ()]
    assert len(ids) == 60
    assert [each % 30000 for each in range(ids[0], ids[0] + 60)] == ids
    assert without_time(seen["cut"]) == without_time(seen["whole"])


def test_running_usage_that_a_client_asked_for_goes_on_counting():
    request = body(stream_options={"include_usage": True, "continuous_usage_stats": True})
    seen = _both(request, CHAT, "cut")
    assert without_time(seen["cut"]) == without_time(seen["whole"])


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"seed": 7}, "seed was asked for"),
        ({"n": 2}, "n was asked for"),
        ({"logprobs": True}, "logprobs was asked for"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools was asked for"),
        ({"response_format": {"type": "json_object"}}, "response_format was asked for"),
        ({"presence_penalty": 0.5}, "presence_penalty was asked for"),
        ({"made_up": 1}, "made_up was asked for"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_would_not_be_exact_ends_with_an_error_event(fields, why):
    seen = _both(body(**fields), CHAT)
    (error,) = errors(seen["cut"])
    assert why in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("server_error", "stream_truncated")
    assert seen["cut"].events()[-1] == "[DONE]"
    assert seen["cut"].complete
    assert seen["outcomes"] == {"completed": 1, "truncated": 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0, "top_p": 0.9, "stop": ["\n"], "user": "me", "logit_bias": {"1": -1}},
        {"seed": None, "n": 1, "logprobs": False, "tools": [], "response_format": {"type": "text"}, "presence_penalty": 0},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
        {"stream_options": None, "return_token_ids": False},
    ],
    ids=["sampling", "neutral", "no tool may be called", "null"],
)
def test_what_means_the_same_on_both_sides_of_the_cut_is_carried(fields):
    seen = _both({**body(), **fields}, CHAT)
    assert errors(seen["cut"]) == []
    assert text(seen["cut"]) == text(seen["whole"])


@pytest.mark.parametrize("least", [40, 40.0, "40"])
def test_least_tokens_are_carried_however_they_are_written(least):
    """Whatever an engine takes for a number: it was lost, and the answer's rest might have ended early."""
    made = plan(json.dumps({**body(), "min_tokens": least}).encode(), CHAT.encode(), decode(json.dumps(body()).encode()), 8192)
    assert made.min_tokens == 40


def test_a_body_that_is_not_all_json_is_streamed_and_not_continued():
    broken = json.dumps(body()).encode()[:-1] + b',"\xff":1}'
    assert plan(broken, CHAT.encode(), decode(json.dumps(body()).encode()), 8192) == "its body is not all JSON"


def test_images_in_the_prompt_can_not_be_continued_from_ids():
    messages = [{"role": "user", "content": [{"type": "text", "text": "what is this"}, {"type": "image_url", "text": "x"}]}]
    seen = _both({**body(), "messages": messages}, CHAT)
    assert "its prompt is not only text" in errors(seen["cut"])[0]["message"]


def test_a_pool_may_forbid_it():
    seen = _both(body(), CHAT, engine=EngineKind("attach", continues=False))
    assert len(errors(seen["cut"])) == 1
    assert seen["outcomes"] == {"completed": 1, "truncated": 1}


def test_without_another_replica_the_stream_ends_with_an_error_event():
    seen = _both(body(), CHAT, replicas=1)
    assert "no other could go on" in errors(seen["cut"])[0]["message"]
    assert seen["outcomes"] == {"completed": 1, "truncated": 1}


def test_an_answer_without_max_tokens_goes_on_to_the_end_of_the_context():
    async def test(front):
        task = await front.asked(body(None, ignore_eos=True))
        await front.kill(front.busy)
        answer = await task
        usage = (front.meter.prompt_tokens, front.meter.output_tokens)
        assert sum(usage) == PROFILE.context_tokens
        assert errors(answer) == []

    fleet(test)


def test_a_completion_without_max_tokens_has_sixteen():
    request = completion(**USAGE)
    del request["max_tokens"]
    seen = _both(request, COMPLETIONS, "cut", 0.1)
    assert without_time(seen["cut"]) == without_time(seen["whole"])
    assert seen["tokens"][1] == 32


def test_a_finished_stream_whose_end_is_missing_is_ended_for_it():
    """The finish reason came, and the engine died before usage and ``[DONE]``."""

    async def test(front):
        whole = await front.ask(body(30, **USAGE))
        for engine in front.engines:
            _without_end(engine)
        cut = await front.ask(body(30, **USAGE))
        assert without_time(cut) == without_time(whole)
        assert front.outcomes == {"completed": 2}
        assert front.meter.continued == 0

    fleet(test)


def _without_end(engine):
    """Its streams are cut after the finish reason."""
    handle = engine._generation.handle

    def cutting(exchange, chat):
        handle(exchange, chat)
        exchange.on_writable = None
        write, connection = exchange._connection.write, exchange._connection

        def last(data):
            end = data.find(b'"choices":[],')
            if end < 0:
                write(data)
                return
            write(data[: data.rindex(b"}\n\n\r\n", 0, end) + len(b"}\n\n\r\n")])
            asyncio.get_running_loop().call_later(0.01, connection.abort)

        connection.write = last
        connection.answered = lambda keep: None

    engine._generation.handle = cutting


def test_the_budget_of_second_tries_bounds_continuations_too(monkeypatch):
    monkeypatch.setattr(retries, "RETRY_BURST", 0)
    monkeypatch.setattr(retries, "RETRY_SHARE", 0.0)
    seen = _both(body(), CHAT)
    said = errors(seen["cut"])[0]["message"]
    assert "budget of second tries is spent (0 at once)" in said
    assert "ask again" in said


@pytest.mark.parametrize("seed", [0, 1])
def test_a_killed_replica_truncates_none_of_64_streams(seed):
    """Order shuffled: no token is lost or twice, each is counted once, and who continues waits for its turn like everybody."""

    async def test(front):
        prompts = [f"prompt number {number:04d}" for number in range(64)]
        tasks = [asyncio.create_task(front.ask(body(24, prompt, **USAGE))) for prompt in prompts]
        await asyncio.sleep(0.15)
        assert front.meter.continued == 0
        await front.kill(front.engines[1])
        cut = await asyncio.gather(*tasks)
        assert 16 < front.meter.continued < 28
        assert front.outcomes == {"completed": 64}
        assert front.meter.output_tokens == 64 * 24
        assert [errors(answer) for answer in cut] == [[]] * 64
        whole = [without_time(await front.ask(body(24, prompt, **USAGE))) for prompt in prompts[::9]]
        assert [without_time(answer) for answer in cut[::9]] == whole

    fleet(test, replicas=3, seed=seed)
