"""A replica that accepts, is healthy, and answers nothing, while what it is asked for comes whole: and replicas that only look so."""

import asyncio

import msgspec
import pytest
from emulated_fleet import CAPACITY, PROFILE, body, errors, fleet
from gateway_values import CAPACITY as GATEWAY_CAPACITY
from gateway_values import SPEC

from forebay.admission.outliers import EJECT_S
from forebay.gateway.prober import PROBE_REAL_S
from forebay.gateway.silence import AGAIN_S, ALIVE, COLD_S_MIN, HUNG, OVERDUE_S_MIN, UNSURE
from forebay.spec.types import Limits, Model

SOON_S = OVERDUE_S_MIN + PROBE_REAL_S + 3
"""By then a replica that hangs is out: an answer is overdue, a token is waited for, and a sweep each."""


def whole(tokens=20, **fields):
    return body(tokens, stream=False, **fields)


def events(front, kind):
    return [event.message for event in front.sink.events if event.kind == kind]


def found(front):
    return front.gateway.desk.pools["chat"].silences.found


async def warm(front):
    """Each has answered something."""
    answers = await asyncio.gather(*[front.ask(whole(2)) for _ in range(4)])
    assert {answer.headers["x-forebay-replica"] for answer in answers} == {"r0", "r1"}


def test_its_whole_answers_come_from_another_one_and_it_is_probed_back():
    """They were told 504 after ten minutes, and it stayed in routing until then."""

    async def test(front):
        await warm(front)
        front.fault(front.engines[0], "hang")
        asked_s = front.clock.now_s()
        answers = []
        for _ in range(60):
            answers.append(asyncio.ensure_future(front.ask(whole(20))))
            await asyncio.sleep(0.5)
        assert {answer.status for answer in await asyncio.gather(*answers)} == {200}
        took_s = [event.at_s - asked_s for event in front.sink.events if event.kind == "replica_ejected"]
        assert took_s[0] < SOON_S
        (told, *_) = events(front, "replica_ejected")
        assert "due from it, and it gives no sign of life: a request for one token got nothing for 5 s, and its metrics count none" in told
        assert 0 < front.meter.retries < 40
        assert front.outcomes == {"completed": 64}
        front.engines[0].clear_faults()
        await asyncio.sleep(300)
        assert events(front, "replica_readmitted") == ["r0 answers again"]

    fleet(test)


def test_what_only_waits_there_is_moved_too_and_goes_to_none_that_it_was_on():
    async def test(front):
        await asyncio.gather(*[front.ask(whole(2)) for _ in range(9)])
        front.fault(front.engines[0], "hang")
        answers = await asyncio.gather(*[front.ask(whole(5)) for _ in range(30)])
        assert {answer.status for answer in answers} == {200}
        assert {answer.headers["x-forebay-replica"] for answer in answers} <= {"r1", "r2"}
        assert front.clock.now_s() < SOON_S + 2
        assert front.gateway.retries.denied_total == 0
        assert front.meter.retries <= 15

    fleet(test, replicas=3)


def test_where_there_is_no_other_it_is_waited_for():
    async def test(front):
        await front.ask(whole(2))
        front.fault(front.engines[0], "hang")
        task = await front.asked(whole(3), wait_s=100.0)
        assert (events(front, "replica_ejected"), sum(found(front).values())) == ([], 0)
        front.engines[0].clear_faults()
        assert (await task).status == 200
        assert front.meter.retries == 0

    fleet(test, replicas=1)


def test_its_longest_time_is_what_it_was():
    async def test(front):
        await front.ask(whole(2))
        front.fault(front.engines[0], "hang")
        asked_s = front.clock.now_s()
        assert (await front.ask(whole(3))).status == 504
        assert 50 <= front.clock.now_s() - asked_s <= 53

    fleet(test, replicas=1, spec=_limited())


def test_it_is_found_before_its_longest_silence_is_over_however_long_its_answer_may_take():
    """Three times what was foreseen was later than the limit on its silence, so its client was told 504."""

    async def test(front):
        await warm(front)
        front.fault(front.engines[0], "hang")
        tasks = [await front.asked(whole(1500), wait_s=0.0) for _ in range(2)]
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}
        assert len(events(front, "replica_ejected")) == 1

    pool = msgspec.structs.replace(SPEC.pools[0], profile=PROFILE)
    fleet(test, spec=msgspec.structs.replace(SPEC, pools=(pool,), limits=Limits(idle_s=30.0)))


def _limited():
    pool = msgspec.structs.replace(SPEC.pools[0], profile=PROFILE)
    return msgspec.structs.replace(SPEC, pools=(pool,), limits=Limits(total_s=50.0))


@pytest.mark.parametrize("pause_s", [4.0, 12.0])
def test_a_pause_is_no_hang(pause_s):
    """As of a debugger: nothing is lost, and what was paused goes on."""

    async def test(front):
        await warm(front)
        tasks = [await front.asked(whole(100), wait_s=0.0) for _ in range(8)]
        await asyncio.sleep(0.1)
        front.fault(front.engines[0], "hang")
        await asyncio.sleep(pause_s)
        front.engines[0].clear_faults()
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}
        assert (events(front, "replica_ejected"), front.meter.retries) == ([], 0)
        assert found(front)[HUNG] == 0

    fleet(test)


def test_one_that_takes_many_times_as_long_as_foreseen_lives_and_is_asked_seldom():
    async def test(front):
        await warm(front)
        for engine in front.engines:
            front.fault(engine, "slow", factor=60.0)
        tasks = [await front.asked(whole(150), wait_s=0.0) for _ in range(6)]
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}
        assert front.clock.now_s() > 80
        assert (events(front, "replica_ejected"), front.meter.retries) == ([], 0)
        assert (found(front)[HUNG], found(front)[UNSURE]) == (0, 0)
        asked = found(front)[ALIVE]
        assert 2 <= asked <= 2 * (1 + 90 / AGAIN_S / 2), "the wait from one time to the next grows"

    fleet(test)


@pytest.mark.parametrize("page", [True, False])
def test_one_whose_places_are_all_taken_by_long_answers_lives(world, one_slot, page):
    """A token more waits for a place: tokens are counted on its metrics page meanwhile, and where it has none, silence says nothing."""
    places, counted = {}, iter(range(10_000))

    async def one_place(seen, answer):
        if b"/metrics" in seen.line:
            lines = b'http_requests_total 7\nvllm:generation_tokens_total{model_name="llama"} %d\n' % next(counted)
            head = b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n"
            answer.raw(head % (b"200 OK", len(lines)) + lines if page else head % (b"404 X", 0))
            return
        async with places.setdefault(answer.transport.get_extra_info("sockname"), asyncio.Lock()):
            long = seen.json()["max_tokens"] > 9
            await asyncio.sleep(150.0 if long else 0.1)
            if not answer.gone.is_set():
                answer.json(200, {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1500 if long else 2}})

    async def test(front):
        await asyncio.gather(*[front.ask(whole(2)) for _ in range(4)])
        answers = await asyncio.gather(*[front.ask(whole(2000)) for _ in range(2)])
        assert {answer.status for answer in answers} == {200}
        assert front.clock.now_s() > 150
        assert (events(front, "replica_ejected"), found(front)[HUNG]) == ([], 0)
        assert found(front)[ALIVE if page else UNSURE] > 0

    world(test, one_place, one_place, capacity=one_slot)


def test_one_that_answers_in_turn_what_it_is_sent_and_tells_nothing_of_it_lives(world):
    """As Ollama on a CPU: the gateway knows neither how many it works at, nor how fast, and a token more waits for its turn."""
    turns = {}

    async def in_turn(seen, answer):
        if b"/metrics" in seen.line:
            answer.json(404, {})
            return
        async with turns.setdefault(answer.transport.get_extra_info("sockname"), asyncio.Lock()):
            if not answer.gone.is_set():
                await asyncio.sleep(20.0)
                answer.json(200, {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 10}})

    async def test(front):
        first = [asyncio.ensure_future(front.ask(whole(300))) for _ in range(16)]
        await asyncio.sleep(100.0)
        assert front.gateway.desk.pools["chat"].overruns.factor > 10, "it is learned that they take long"
        answers = await asyncio.gather(*first)
        assert {answer.status for answer in answers} == {200}
        assert front.clock.now_s() >= 160
        assert (events(front, "replica_ejected"), found(front)[HUNG]) == ([], 0)

    unpaced = msgspec.structs.replace(GATEWAY_CAPACITY, paced=False)
    world(test, in_turn, in_turn, capacity=unpaced)


def test_one_at_a_long_prompt_that_counts_no_token_of_it_lives(world):
    """vLLM counts a prompt when it is prefilled; where no profile tells the pace, that may take long, and short ones wait behind it."""

    async def prefills(seen, answer):
        if b"/metrics" in seen.line:
            lines = b"vllm:generation_tokens_total 7\n"
            answer.raw(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(lines), lines))
            return
        await asyncio.sleep(0.1 if len(seen.body) < 9000 and not busy else 150.0)
        if not answer.gone.is_set():
            answer.json(200, {"choices": [], "usage": {"prompt_tokens": len(seen.body) // 4, "completion_tokens": 2}})

    busy = []

    async def test(front):
        for _ in range(70):
            await front.ask(whole(2))
        busy.append(True)
        large = [asyncio.ensure_future(front.ask(whole(2, prompt="x" * 120_000))) for _ in range(2)]
        await asyncio.sleep(0.1)
        answers = await asyncio.gather(*large, *[front.ask(whole(2)) for _ in range(4)])
        assert {answer.status for answer in answers} == {200}
        assert (events(front, "replica_ejected"), found(front)[HUNG]) == ([], 0)
        assert found(front)[UNSURE] > 0

    capacity = msgspec.structs.replace(GATEWAY_CAPACITY, kv_tokens=200_000, prefill_tokens=200_000, context_tokens=100_000, paced=False)
    spec = msgspec.structs.replace(SPEC, models=(Model("llama", 100_000),))
    world(test, prefills, prefills, capacity=capacity, spec=spec)


def test_a_full_one_that_hangs_is_found_without_a_page_once_its_longest_answer_is_overdue():
    async def test(front):
        await warm(front)
        front.fault(front.engines[0], "hang")
        front.fault(front.engines[0], "metrics", mode="missing")
        tasks = [await front.asked(whole(300), wait_s=0.0) for _ in range(4)]
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}
        assert len(events(front, "replica_ejected")) == 1
        assert front.clock.now_s() < 100

    fleet(test, capacity=msgspec.structs.replace(CAPACITY, sequences=2))


def test_one_that_compiles_at_its_first_request_is_given_the_time():
    async def test(front):
        for engine in front.engines:
            front.fault(engine, "hang")
        tasks = [await front.asked(whole(5), wait_s=0.0) for _ in range(6)]
        await asyncio.sleep(COLD_S_MIN - 5)
        for engine in front.engines:
            engine.clear_faults()
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}
        assert (events(front, "replica_ejected"), front.meter.retries) == ([], 0)

    fleet(test)


def test_tokens_of_a_stream_are_a_sign_of_life():
    """Its slots are taken by streams: it is slow to begin whole answers, and steps."""

    async def test(front):
        await warm(front)
        for engine in front.engines:
            front.fault(engine, "slow", factor=20.0)
            front.fault(engine, "metrics", mode="missing")
        streams = [await front.asked(body(200), wait_s=0.0) for _ in range(2)]
        wholes = [await front.asked(whole(150), wait_s=0.0) for _ in range(2)]
        answers = await asyncio.gather(*streams, *wholes)
        assert {answer.status for answer in answers} == {200}
        assert [errors(answer) for answer in answers[:2]] == [[], []]
        assert (events(front, "replica_ejected"), found(front)[HUNG]) == ([], 0)

    fleet(test)


def test_a_replica_that_only_embeds_and_hangs_is_asked_for_an_embedding(world):
    """Its HTTP server answers 404 to a request for a token all along."""

    async def embeds(seen, answer):
        if b"/v1/embeddings" in seen.line:
            answer.json(200, {"data": [], "usage": {"prompt_tokens": 3, "total_tokens": 3}})
        else:
            answer.json(404, {"detail": "Not Found"})

    async def wedged(seen, answer):
        if b"/v1/embeddings" in seen.line:
            await answer.gone.wait()
        else:
            await embeds(seen, answer)

    async def test(front):
        ask = {"model": "llama", "input": "a"}
        for _ in range(4):
            assert (await front.ask(ask, target="/v1/embeddings")).status == 200
        front.engines[0].script = wedged
        answers = await asyncio.gather(*[front.ask(ask, target="/v1/embeddings") for _ in range(4)])
        assert {answer.status for answer in answers} == {200}
        assert front.clock.now_s() < SOON_S + 2
        await front.sleep(EJECT_S + 7)
        assert front.gateway.desk.pools["chat"].routed == ("r1",), "it is not probed back by what it does answer"
        front.engines[0].script = embeds
        await front.sleep(2 * EJECT_S + 2)
        assert front.gateway.desk.pools["chat"].routed == ("r0", "r1")

    world(test, embeds, embeds)
