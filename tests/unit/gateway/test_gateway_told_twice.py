"""Token ids that a client asked for run ahead of text that is held back: what goes on from the text would tell some of them twice."""

import json

import pytest

from forebay.gateway.asking import Wants
from forebay.gateway.emitted import Emitted
from forebay.gateway.told import ToldStream

BODY = {"model": "llama", "prompt": "hi", "max_tokens": 50, "stream": True, "stop": ["xyz"]}


def event(text, ids, finish=None, prompt_ids=None):
    choice = {"index": 0, "text": text, "finish_reason": finish, "token_ids": ids, "prompt_token_ids": prompt_ids}
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "llama", "choices": [choice]}


async def holds_back_and_is_cut(_, answer):
    """As vLLM does with a stop string of three characters: two are held back. Tokens are two characters long."""
    answer.stream()
    answer.event(event("", [10], prompt_ids=[1, 2, 3]))
    answer.event(event("ab", [11]))
    answer.event(event("cd", [12]))
    answer.cut()


async def goes_on(_, answer):
    answer.stream()
    answer.event(event("", [12], prompt_ids=[1, 2, 3, 10, 11]))
    answer.event(event("efgh", [13], "length"))
    answer.event({**event("", []), "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}})
    answer.done()


def ids_of(events):
    return [token for each in events if each != "[DONE]" and "error" not in each for token in each["choices"][0]["token_ids"] or ()]


@pytest.mark.parametrize("asked", [True, False])
def test_no_token_id_is_told_twice(world, asked):
    async def test(front):
        answer = await front.ask({**BODY, "return_token_ids": asked}, target="/v1/completions")
        events = answer.events()
        assert answer.complete
        assert events[-1] == "[DONE]"
        if asked:
            assert ids_of(events) == [10, 11, 12], "the second engine would tell 12 again"
            assert "token ids are out whose text is not" in events[-2]["error"]["message"]
            assert sum(len(engine.seen) for engine in front.engines) == 1
        else:
            assert [each for each in events if each != "[DONE]" and "error" in each] == []
            assert "".join(each["choices"][0]["text"] for each in events[:-1]) == "abcdefgh"
            (went_on,) = [seen for engine in front.engines for seen in engine.seen if seen.json()["prompt"] != "hi"]
            assert went_on.json()["prompt"] == [1, 2, 3, 10, 11]

    calls = []

    async def engine(seen, answer):
        calls.append(seen)
        await (holds_back_and_is_cut if len(calls) == 1 else goes_on)(seen, answer)

    world(test, engine, engine)


def test_a_completions_events_are_known_though_the_first_content_told_the_prompt():
    """Each of its chunks was parsed: the first one's form, with the prompt's ids in it, was waited for in vain."""

    def read(text, ids, prompt_ids):
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None, "prompt_token_ids": prompt_ids, "token_ids": ids}
        body = b"data: %b\n\n" % json.dumps({"id": "cmpl-1", "created": 1, "choices": [choice]}, separators=(",", ":")).encode()
        return b"%x\r\n%b\r\n" % (len(body), body), body

    told = []
    stream = ToldStream(True, True, Wants(ids=True), Emitted())
    stream.report_at = 1000
    data = stream.attach(told.append, lambda *read: told.append(stream.feed(*read)), lambda: None)
    for number, prompt_ids in enumerate([[1, 2, 3], None]):
        data(*read(" word", [7 + number], prompt_ids), True, False)
    assert stream.take_told(read(" next", [9], None)[0])
    assert bytes(stream.emitted.ids) == b"7,8,9,"
    assert len(told) == 3
