"""Bug reports of other gateways that concern routing, queueing and what is held, each as a test that fails on the naive build of it."""

import asyncio
import gc
from collections import Counter

import msgspec

from forebay.gateway.relay import Call
from forebay.gateway.sse import EventStream
from forebay.spec.types import EngineKind, Pool

CHAT = {"model": "llama", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
STREAM = {**CHAT, "stream": True}
LONG = {**CHAT, "messages": [{"role": "user", "content": "The same beginning. " * 200}]}
ANSWER = {
    "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5},
}
KEYS = {tier: {"authorization": f"Bearer {key}"} for tier, key in (("interactive", "sk-search"), ("batch", "sk-search-bulk"))}


async def answers(_, answer):
    answer.json(200, ANSWER)


async def never(_, answer):
    await answer.gone.wait()


async def fails(_, answer):
    answer.json(500, {"error": {"message": "no"}})


async def cuts(_, answer):
    answer.stream()
    answer.token("a")
    await asyncio.sleep(0.01)
    answer.cut()


async def slowly(_, answer):
    await asyncio.sleep(1.0)
    answer.json(200, ANSWER)


def counted(script):
    """``script``, and how many requests it has at once at most."""
    at = Counter()

    async def counting(seen, answer):
        at["now"] += 1
        at["most"] = max(at["most"], at["now"])
        await script(seen, answer)
        at["now"] -= 1

    return counting, at


def test_report_3_nothing_of_a_request_stays_however_it_ended(world, one_slot):
    """production-stack #707: entries per request were never removed on the ways that go wrong; the router was killed 14 times in 12 days."""

    async def test(front):
        scripts = [answers, fails, cuts, never]
        front.engines[0].script = lambda seen, answer: scripts[len(front.engines[0].seen) % 4](seen, answer)
        tasks = []
        for number in range(40):
            client = await front.client()
            tasks.append(asyncio.ensure_future(client.ask("/v1/chat/completions", STREAM if number % 2 else LONG)))
            if number % 5 == 0:
                await front.sleep(0.05)
                client.close()
        await front.sleep(40)  # longer than any may wait
        for client in front.clients:
            client.close()
        await front.sleep(1)
        await asyncio.gather(*tasks, return_exceptions=True)
        tasks.clear()
        gc.collect()
        assert [each for each in gc.get_objects() if isinstance(each, Call)] == []

    world(test, answers, capacity=one_slot)


def test_report_4_a_hot_beginning_goes_to_more_than_one_replica_and_never_to_a_sick_one(world):
    """sglang #14305, SMG #1621, production-stack #990: all that begins alike on one backend; misses on a sick one, whose tree is smallest."""

    async def test(front):
        for _ in range(9):  # the sick one is found out
            assert (await front.ask(CHAT)).status == 200
        sick = len(front.engines[2].seen)
        assert 0 < sick <= 3
        front.engines[0].script = front.engines[1].script = never
        before = [len(engine.seen) for engine in front.engines]
        tasks = [asyncio.ensure_future(front.ask(LONG)) for _ in range(12)]
        await front.sleep(1)
        taken = [len(engine.seen) - count for engine, count in zip(front.engines, before, strict=True)]
        assert taken[2] == 0
        assert sorted(taken[:2]) >= [4, 4]
        for task in tasks:
            task.cancel()

    world(test, answers, answers, fails)


def test_report_5_a_replica_that_completes_nothing_is_not_the_idlest(world):
    """production-stack #1073: load was counted by completions, so the stuck replica looked idle and was sent ever more."""

    async def test(front):
        waiting = []
        for _ in range(40):
            waiting.append(asyncio.ensure_future(front.ask(CHAT)))
            await front.sleep(0.1)
        assert len(front.engines[0].seen) <= 1
        assert sum(task.done() for task in waiting) >= 39
        for task in waiting:
            task.cancel()

    world(test, never, answers)


def test_report_6_silence_of_metrics_halts_nothing(world):
    """llm-d-router #2100: a missing sample counted as saturation, and healthy pods were sent nothing."""

    async def test(front):
        for _ in range(3):
            await front.sleep(300)  # no roster, no metrics: nobody tells the gateway anything
            assert (await front.ask(CHAT)).status == 200
        assert {seen.line for seen in front.engines[0].seen} == {b"POST /v1/chat/completions HTTP/1.1"}, "it waits for no page"

    world(test, answers)


def test_report_7_what_comes_between_two_scrapes_is_counted_when_it_is_sent(world, one_slot):
    """llm-d-router #2066: dozens were released on the same sample, and the backlog moved into the engine, where no priority applies."""
    script, at = counted(slowly)

    async def test(front):
        asked = [asyncio.ensure_future(front.ask(CHAT)) for _ in range(20)]
        await front.sleep(0.5)
        assert len(front.engines[0].seen) == 2
        assert {(await task).status for task in asked} == {200}
        assert at["most"] == 2

    world(test, script, capacity=msgspec.structs.replace(one_slot, sequences=2))


def test_report_8_interactive_does_not_wait_behind_batch_and_batch_is_not_starved(world, team_spec, one_slot):
    """batch-gateway #491: interactive waited 52 times as long as alone, and a tenth of batch never ran."""

    async def test(front):
        batch = [asyncio.ensure_future(front.ask(CHAT, KEYS["batch"])) for _ in range(40)]
        await front.sleep(0.1)
        for _ in range(12):
            begun_s = front.clock.now_s()
            assert (await front.ask(CHAT, KEYS["interactive"])).status == 200
            assert front.clock.now_s() - begun_s < 1.1, "an answer takes one second"
            await front.sleep(0.5)
        assert {(await task).status for task in batch} == {200}
        assert front.clock.now_s() < 25.0, "what is left of four places was used"

    world(test, slowly, spec=team_spec, capacity=msgspec.structs.replace(one_slot, sequences=4))


def test_runner_up_what_is_in_flight_is_counted_to_the_end_of_the_stream(world):
    """clairvoyance #964: the gauge fell when the head was sent, so a proxy full of streams looked idle."""

    async def test(front):
        front.engines[0].script = streams
        client = await front.client()
        client.send("/v1/chat/completions", STREAM)
        await client.head()
        await front.sleep(5)
        page = (await front.ask(None, target="/metrics")).body.decode()
        (line,) = [line for line in page.splitlines() if line.startswith("forebay_permits{")]
        assert line.endswith(" 1.0")
        assert front.permits == 1

    async def streams(_, answer):
        answer.stream()
        answer.token("a")
        await answer.gone.wait()

    world(test, answers)


def test_runner_up_what_is_refused_is_refused_before_any_work_and_as_many_as_are_over(world, spec, one_slot):
    """vLLM #58192: checked before and counted after the work, so a burst passed the check as one, and was refused seconds later."""
    pools = (Pool("chat", "llama", EngineKind("attach"), queued_max=5),)

    async def test(front):
        asked = [asyncio.ensure_future(front.ask(CHAT)) for _ in range(30)]
        await front.sleep(0.1)
        refused = [task for task in asked if task.done()]
        assert len(refused) == 30 - 1 - 5
        assert {(await task).status for task in refused} == {429}
        assert len(front.engines[0].seen) == 1
        for task in asked:
            task.cancel()

    world(test, never, spec=msgspec.structs.replace(spec, pools=pools), capacity=one_slot)


def test_runner_up_a_stream_holds_no_more_the_longer_it_is():
    """LiteLLM #22346: chunks were kept and joined anew for each one."""
    token = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
    stream = EventStream(True, True, True)

    def held():
        values = [getattr(stream, name, None) for kind in type(stream).__mro__ for name in getattr(kind, "__slots__", ())]
        return sum(len(value) for value in values if isinstance(value, bytes | bytearray | list))

    sizes = set()
    for number in range(1000):
        stream.feed(b"%x\r\n%b\r\n" % (len(token), token), token, True, False)
        if number > 10:
            sizes.add(held())
    assert len(sizes) == 1
