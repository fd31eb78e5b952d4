"""Adapters go to the replicas that have them, though the replicas of a pool differ."""

import msgspec
import pytest

from forebay.gateway.lacking import LACKING_S, Lacking
from forebay.spec.types import EngineKind, Pool

ANSWER = {"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}]}
LORA = {"model": "legal-lora", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
BASE = {**LORA, "model": "llama"}


def has(*names):
    async def script(seen, answer):
        asked = seen.json()
        if asked["model"] not in names:
            error = {"message": f"The model `{asked['model']}` does not exist.", "type": "NotFoundError", "param": "model", "code": 404}
            answer.json(404, {"error": error})
        elif asked.get("stream"):
            answer.stream()
            answer.token("x", "stop")
            answer.done()
        else:
            answer.json(200, ANSWER)

    return script


@pytest.fixture
def lora_spec(spec):
    return msgspec.structs.replace(spec, pools=(Pool("chat", "llama", EngineKind("attach"), adapters=("legal-lora",)),))


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_lacks_it_is_found_out_once_and_left_alone_for_it_only(world, lora_spec, stream):
    async def test(front):
        for _ in range(10):
            answer = await front.ask({**LORA, "stream": stream})
            assert (answer.status, answer.headers["x-forebay-replica"]) == (200, "r1")
        assert len(front.engines[0].seen) <= 1
        for _ in range(4):
            assert (await front.ask({**BASE, "stream": stream})).status == 200
        assert len(front.engines[0].seen) > 1
        assert not front.gateway.desk.pools["chat"].outliers.suspects, "it failed nobody by a fault of its own"

    world(test, has("llama"), has("llama", "legal-lora"), spec=lora_spec)


def test_one_that_has_loaded_it_since_is_asked_again(world, lora_spec):
    async def test(front):
        for _ in range(4):
            await front.ask(LORA)
        front.engines[0].script = has("llama", "legal-lora")
        await front.sleep(LACKING_S)
        seen_before = len(front.engines[0].seen)
        for _ in range(4):
            assert (await front.ask(LORA)).status == 200
        assert len(front.engines[0].seen) > seen_before

    world(test, has("llama"), has("llama", "legal-lora"), spec=lora_spec)


def test_where_none_has_it_the_client_is_told_in_the_engines_words(world, lora_spec):
    async def test(front):
        for _ in range(3):
            answer = await front.ask(LORA)
            assert answer.status == 404
            assert answer.json()["error"]["message"] == "The model `legal-lora` does not exist."
        assert (await front.ask(BASE)).status == 200

    world(test, has("llama"), has("llama"), spec=lora_spec)


def test_a_404_for_the_model_itself_is_told_in_the_engines_words_after_one_more_try(world, lora_spec):
    """One engine that has another model behind its address would else tell its clients so, faster than those that answer."""

    async def test(front):
        answer = await front.ask(BASE)
        assert (answer.status, answer.json()["error"]["message"]) == (404, "The model `llama` does not exist.")
        assert sum(len(engine.seen) for engine in front.engines) == 2

    world(test, has(), has(), has(), spec=lora_spec)


def test_what_is_known_is_bounded_by_the_roster_and_forgotten():
    lacking = Lacking()
    lacking.add("a", "r0", 0.0)
    lacking.add("a", "gone", 0.0)
    assert lacking.replicas("a", ("r0", "r1"), 1.0) == ("r0",)
    assert lacking.replicas("b", ("r0", "r1"), 1.0) == ()
    assert lacking.replicas("a", ("r0",), 1.0) == ()
    lacking.keep(("r0", "r1"), 1.0)
    assert lacking.replicas("a", ("gone", "r1"), 1.0) == ()
    assert lacking.replicas("a", ("r0", "r1"), LACKING_S) == ()
    lacking.keep(("r0", "r1"), LACKING_S)
    assert not lacking
