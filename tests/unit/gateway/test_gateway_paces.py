"""What a gateway counts of the pace of streams: the pool's promise on inter-token times, kept or not, once per request."""

import asyncio

import msgspec
import pytest

from forebay.domain.roster import TierCounts
from forebay.gateway.meters import TierMeter
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Limits, Model, Pool, Slo, Spec

ASK = {"model": "llama", "messages": [{"role": "user", "content": "hi"}], "stream": True}
PROMISE_S = 0.05
SPEC = Spec(
    pools=(Pool("chat", "llama", EngineKind("attach"), slo=Slo(itl_s=PROMISE_S)),), models=(Model("llama", 8192),), tiers=DEFAULT_TIERS
)


def paced(pause_s, count=10, usage=None, ends=True, text="t"):
    async def script(_, answer):
        answer.stream()
        answer.role()
        await asyncio.sleep(0.3)
        for number in range(count):
            answer.token(text, "stop" if ends and number == count - 1 else None)
            if number < count - 1:
                await asyncio.sleep(pause_s)
        if usage is not None:
            answer.event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": usage}})
        if ends:
            answer.done()
        else:
            answer.cut()

    return script


async def whole(_, answer):
    await asyncio.sleep(5.0)
    answer.json(200, {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 7}})


def counted(world, script, ask=ASK, **options):
    found = []

    async def test(front):
        await front.ask(ask)
        counts = front.counts()
        found.extend([counts.itl_met, counts.itl_missed, counts.completed_output_tokens])

    world(test, script, spec=SPEC, **options)
    return found


@pytest.mark.parametrize(
    ("script", "met"),
    [
        (paced(0.9 * PROMISE_S), True),
        (paced(1.1 * PROMISE_S), False),
        (paced(1.1 * PROMISE_S, usage=13), True),
        (paced(0.9 * PROMISE_S, usage=8), False),
        (paced(5.0, count=1), True),
    ],
    ids=["in time", "late", "tokens that share an event", "fewer tokens than events", "one token has no pace"],
)
def test_the_mean_time_between_tokens_is_held_against_the_promise(world, script, met):
    assert counted(world, script)[:2] == [met, not met]


def test_output_tokens_are_those_of_answers_that_are_completed(world):
    assert counted(world, paced(0.01, usage=13))[2] == 13
    assert counted(world, paced(0.01, ends=False))[2] == 0
    assert counted(world, whole, {**ASK, "stream": False})[2] == 7


def test_several_answers_at_once_have_a_pace_each(world):
    assert counted(world, paced(0.9 * PROMISE_S, usage=20), {**ASK, "n": 2})[:2] == [1, 0]
    assert counted(world, paced(0.9 * PROMISE_S, usage=16), {**ASK, "n": 2})[:2] == [0, 1]


def test_an_answer_that_breaks_off_missed_it_and_one_that_is_no_stream_has_none(world):
    assert counted(world, paced(0.01, ends=False))[:2] == [0, 1]
    assert counted(world, paced(60.0, ends=False), limits=Limits(idle_s=20.0))[:2] == [0, 1]
    assert counted(world, whole, {**ASK, "stream": False})[:2] == [0, 0]


def test_a_client_that_leaves_or_reads_slowly_says_nothing_of_the_pace(world):
    async def test(front):
        leaves, slow = await front.client(), await front.client()
        leaves.send("/v1/chat/completions", ASK)
        await front.sleep(0.5)
        leaves.close()
        slow.writer.transport.pause_reading()
        slow.send("/v1/chat/completions", ASK)
        await front.sleep(15.0)
        slow.writer.transport.resume_reading()
        assert (await slow.read()).complete
        counts = front.counts()
        assert (counts.completed, counts.itl_met, counts.itl_missed) == (1, 0, 0)

    world(test, paced(0.02, count=30, text="x" * 50_000), spec=SPEC)


def test_the_snapshot_of_an_older_gateway_still_decodes():
    meter = TierMeter("chat", DEFAULT_TIERS[0], PROMISE_S)
    meter.stream_completed(1.0, 100)
    said = msgspec.to_builtins(meter.counts())
    for name in ("completed_output_tokens", "itl_met", "itl_missed"):
        del said[name]
    older = msgspec.convert(said, TierCounts)
    assert (older.completed_output_tokens, older.itl_met, older.itl_missed) == (None, 0, 0)
