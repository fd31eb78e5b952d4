"""A batch stream that gives its place up goes on later: one unbroken answer, and nothing of it is lost, said twice or billed twice."""

import asyncio
import random

import msgspec
import pytest
from emulated_fleet import CAPACITY, CHAT, COMPLETIONS, PROFILE, body, completion, errors, fleet, text, without_time

from forebay.gateway.shutting import cut
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Limits, Model, Pool, Spec

ONE_SLOT = msgspec.structs.replace(CAPACITY, sequences=1)
USAGE = {"stream_options": {"include_usage": True}}
BATCH = {"service_tier": "batch"}


def batch_meter(front):
    return front.gateway.desk.pools["chat"].meters["batch"]


def place(front):
    """Who runs, and who waits, by tier."""
    (pool,) = front.gateway.snapshot().pools
    return sum(replica.streams for replica in pool.replicas), {lane.tier: lane.waiting for lane in pool.lanes if lane.waiting}


def given_up(request, target=CHAT, wait_s=0.3, urgent_tokens=30, **world):
    """The answer undisturbed, and the same while something urgent takes its place after ``wait_s``."""
    seen = {}

    async def test(front):
        seen["whole"] = await front.ask(request, target)
        before = batch_meter(front).output_tokens
        task = await front.asked(request, target, wait_s)
        seen["urgent"] = await front.ask(body(urgent_tokens))
        seen["done_first"] = not task.done()
        seen["answer"] = await task
        seen["tokens"] = batch_meter(front).output_tokens - before
        seen["requeued"] = batch_meter(front).requeued
        seen["continued"] = batch_meter(front).continued
        seen["outcomes"] = {outcome.value: count for outcome, count in batch_meter(front).outcomes.items() if count}

    fleet(test, **{"replicas": 1, "capacity": ONE_SLOT, **world})
    return seen


@pytest.mark.parametrize(
    ("target", "request_"),
    [(CHAT, body(**BATCH)), (CHAT, body(**BATCH, **USAGE)), (COMPLETIONS, completion(**BATCH, **USAGE))],
    ids=["chat", "chat with usage", "completion with usage"],
)
@pytest.mark.parametrize("wait_s", [0.001, 0.014, 0.031, 0.3, 0.55])
def test_a_batch_stream_gives_its_place_up_at_any_time_and_goes_on_as_if_nothing_had_been(target, request_, wait_s):
    seen = given_up(request_, target, wait_s)
    assert seen["done_first"], "the urgent one did not wait for it"
    assert errors(seen["answer"]) == []
    assert without_time(seen["answer"]) == without_time(seen["whole"])
    assert seen["tokens"] == 60
    assert (seen["requeued"], seen["continued"]) == (1, 0), "it is no failure"
    assert seen["outcomes"] == {"completed": 2}


def test_what_would_not_go_on_exactly_keeps_its_place():
    seen = given_up(body(**BATCH, seed=7))
    assert not seen["done_first"]
    assert seen["requeued"] == 0
    assert seen["answer"].complete


def test_a_whole_answer_gives_its_place_up_though_the_engine_has_most_of_it():
    seen = given_up(body(stream=False, **BATCH), wait_s=0.6)
    assert seen["done_first"]
    assert seen["requeued"] == 1
    assert seen["answer"].json()["choices"] == seen["whole"].json()["choices"]
    assert seen["answer"].json()["usage"] == seen["whole"].json()["usage"]


def test_it_goes_on_on_whichever_replica_has_room():
    async def test(front):
        whole = await front.ask(body(**BATCH))
        long = await front.asked(body(100), wait_s=0.05)
        short = await front.asked(body(40, **BATCH), wait_s=0.05)
        there = front.gateway.desk.pools["chat"].calls
        ran_on = {call._replica for call in there.values() if call._tier.name == "batch"}
        urgent = await front.asked(body(200), wait_s=0.05)
        assert place(front) == (2, {"batch": 1})
        await long
        answer = await short
        assert text(answer) == " ".join(text(whole).split(" ")[:41])
        assert {call._replica for call in there.values()} == ran_on, "the urgent one is still where it was"
        await urgent

    fleet(test, replicas=2, capacity=ONE_SLOT)


def test_it_gives_its_place_up_three_times_and_then_keeps_it():
    async def test(front):
        whole = await front.ask(body(100, **BATCH, **USAGE))
        task = await front.asked(body(100, **BATCH, **USAGE), wait_s=0.1)
        for _ in range(5):
            await front.ask(body(10))
            await asyncio.sleep(0.1)
        assert without_time(await task) == without_time(whole)
        assert batch_meter(front).requeued == 3

    fleet(test, replicas=1, capacity=ONE_SLOT)


def idle(idle_s, total_s):
    pool = Pool("chat", "llama", EngineKind("attach"), PROFILE)
    return Spec((pool,), (Model("llama", 2048),), DEFAULT_TIERS, limits=Limits(idle_s=idle_s, total_s=total_s))


def test_the_time_in_which_an_engine_must_go_on_does_not_run_while_it_waits():
    seen = given_up(body(**BATCH), urgent_tokens=900, spec=idle(2.0, 9.5))
    assert seen["requeued"] == 1
    assert without_time(seen["answer"]) == without_time(seen["whole"])


def test_a_client_that_leaves_while_it_waits_is_billed_what_it_got():
    async def test(front):
        client = await front.client()
        client.send(CHAT, body(100, **BATCH))
        await asyncio.sleep(0.3)
        urgent = await front.asked(body(50), wait_s=0.1)
        assert place(front) == (1, {"batch": 1})
        got = batch_meter(front).output_tokens
        client.close()
        await asyncio.sleep(0.01)
        assert place(front) == (1, {})
        assert 20 <= batch_meter(front).output_tokens - got <= 30
        await urgent

    fleet(test, replicas=1, capacity=ONE_SLOT)


def test_a_gateway_that_ends_while_it_waits_says_so_in_the_stream():
    """It held no permit, which its end was to give back."""

    async def test(front):
        task = await front.asked(body(100, **BATCH))
        urgent = await front.asked(body(500), wait_s=0.1)
        await cut(front.gateway)
        (error,) = errors(await task)
        assert error["code"] == "stream_truncated"
        await urgent

    fleet(test, replicas=1, capacity=ONE_SLOT)


def test_a_replica_that_dies_while_another_request_has_its_place_is_no_matter():
    async def test(front):
        whole = await front.ask(body(100, **BATCH))
        task = await front.asked(body(100, **BATCH))
        busy = front.busy
        urgent = await front.asked(body(60), wait_s=0.1)
        await front.kill(busy)
        assert errors(await task) == []
        assert text(await task) == text(whole)
        await urgent

    fleet(test, replicas=2, capacity=ONE_SLOT)


@pytest.mark.parametrize("seed", range(6))
def test_a_crowd_of_both_leaves_every_answer_whole(seed):
    """Two places, batch streams and whole answers of all lengths, urgent ones at any moment, and a replica that breaks off."""
    chance = random.Random(seed)
    capacity = msgspec.structs.replace(CAPACITY, sequences=2)

    async def test(front):
        expected = text(await front.ask(body(60)))

        async def one(urgent):
            await asyncio.sleep(chance.uniform(0, 2))
            tokens, stream = chance.randint(1, 60), chance.random() < 0.8
            answer = await front.ask(body(tokens, stream=stream, **USAGE if stream else {}, **({} if urgent else BATCH)))
            if not stream:
                return tokens, answer.json()["choices"][0]["message"]["content"], answer.json()["usage"]["completion_tokens"]
            assert errors(answer) == []
            return tokens, text(answer), answer.events()[-2]["usage"]["completion_tokens"]

        tasks = [asyncio.create_task(one(number % 2)) for number in range(30)]
        await asyncio.sleep(1.0)
        if seed % 2:
            front.fault(front.busy, "cut")
        for tokens, said, counted in await asyncio.gather(*tasks):
            assert counted == tokens
            assert said.split() == expected.split()[:tokens]
        assert batch_meter(front).requeued > 3

    fleet(test, replicas=2, capacity=capacity)
