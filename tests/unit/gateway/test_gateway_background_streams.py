"""``background: true`` where the client leaves: within a stream its engine goes on and is asked; before it knew the id, it is stopped."""

import asyncio
import json

import msgspec
import pytest
from background_engine import ASK, TARGET, USAGE, Keeper, event, streamed, whole
from emulated_fleet import fleet
from several_gateways import several
from test_gateway_background import outcomes, used
from test_gateway_fault_at_every_step import FAULTS, at_step

from forebay.emulator.engine_server import State
from forebay.gateway.background import ALONE_REAL_S
from forebay.gateway.meters import Outcome
from forebay.gateway.whole import HELD_BYTES_MAX

STREAM = {**ASK, "stream": True}
CANCEL = [f"{TARGET}/resp_0/cancel"]


@pytest.fixture
def keeper():
    return Keeper(first=streamed())


async def left(front, tokens_s=0.1, body=STREAM):
    """A client that reads so long, and leaves."""
    client = await front.client()
    client.send(TARGET, body)
    await asyncio.sleep(tokens_s)
    client.close()
    await front.sleep(0.05)


def test_a_stream_that_flows_is_counted_once(world, keeper):
    async def test(front):
        asked = asyncio.create_task(front.ask(STREAM, target=TARGET))
        await front.sleep(3.0)
        assert front.permits == 1
        keeper.over()
        answer = await asked
        assert answer.complete
        assert (front.permits, used(front), keeper.asked_for(), keeper.asked_for("POST")) == (0, ({"COMPLETED": 1}, 7, 20), [], [])

    world(test, keeper)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_client_that_leaves_the_stream_leaves_it_to_the_engine(world, keeper, workers):
    async def test(front):
        await left(front)
        await front.sleep(30.0)
        assert (front.permits, outcomes(front), keeper.asked_for("POST")) == (1, {}, [])
        keeper.over()
        await front.sleep(5.0)
        assert (front.permits, outcomes(front), used(front)) == (0, {"completed": 1}, ({"COMPLETED": 1}, 7, 20))
        meter = front.gateway.desk.pools["chat"].meters["interactive"]
        assert (meter.itl_met, meter.itl_missed, meter.ttft_met) == (0, 0, 1)

    world(test, keeper, workers=workers)


def test_what_was_seen_of_it_is_metered_where_its_engine_has_lost_it(world, keeper):
    async def test(front):
        await left(front)
        keeper.kept.clear()
        await front.sleep(1.0)
        how, _, output_tokens = used(front)
        assert (front.permits, how) == (0, {"FAILED": 1})
        assert 5 <= output_tokens <= 11

    world(test, keeper)


def test_a_worker_that_dies_takes_no_response_with_it(world, keeper):
    async def test(front):
        asked = asyncio.create_task(front.ask(STREAM, target=TARGET))
        await front.sleep(0.5)
        assert front.gateway.lending.streams == 1
        front.crew.lines[0].kill()
        assert not (await asked).complete
        await front.sleep(1.0)
        assert (front.permits, outcomes(front), keeper.asked_for("POST")) == (1, {}, [])
        keeper.over()
        await front.sleep(2.0)
        assert used(front) == ({"COMPLETED": 1}, 7, 20)

    world(test, keeper, workers=1)


def test_a_client_that_reads_nothing_leaves_it_to_the_engine(world, spec):
    async def much(keeper, seen, answer):
        response = keeper.made(seen)
        answer.stream()
        event(answer, "response.created", sequence_number=0, response=response)
        while response["status"] == "queued" and not answer.gone.is_set():
            event(answer, "response.output_text.delta", sequence_number=1, item_id="m", delta="x" * 60_000)
            await asyncio.sleep(0.1)

    async def test(front):
        client = await front.client()
        client.send(TARGET, STREAM)
        client.writer.transport.pause_reading()
        await front.sleep(60.0)
        assert (front.permits, outcomes(front), keeper.asked_for("POST")) == (1, {}, [])
        assert keeper.asked_for()
        keeper.over()
        await front.sleep(6.0)
        assert outcomes(front) == {"completed": 1}

    keeper = Keeper(first=much)
    world(test, keeper, limits=msgspec.structs.replace(spec.limits, idle_s=20.0))


def test_a_stream_that_the_engine_does_not_keep_ends_with_its_client(world):
    """The engine says that it is not ``background``: it stops when nobody reads."""

    async def test(front):
        await left(front, body={**STREAM, "background": False})
        assert (front.permits, outcomes(front)) == (0, {"client_gone": 1})
        await front.sleep(5.0)
        assert (keeper.asked_for(), keeper.asked_for("POST")) == ([], [])

    keeper = Keeper(first=streamed())
    world(test, keeper)


@pytest.mark.parametrize("way", ["breaks", "silent"])
def test_a_stream_that_breaks_is_stopped_in_the_engine(world, spec, way):
    """Its client is told that it failed; the engine would have gone on with it."""

    async def script(keeper, seen, answer):
        response = keeper.made(seen)
        answer.stream()
        event(answer, "response.created", sequence_number=0, response=response)
        event(answer, "response.output_text.delta", sequence_number=1, item_id="m", delta=" water")
        await asyncio.sleep(0.1)
        if way == "breaks":
            answer.cut()
        else:
            await answer.gone.wait()

    async def test(front):
        answer = await front.ask(STREAM, target=TARGET)
        assert b"event: response.failed" in answer.body
        await front.sleep(0.1)
        assert (front.permits, outcomes(front), keeper.asked_for("POST")) == (0, {"truncated": 1}, CANCEL)

    keeper = Keeper(first=script)
    world(test, keeper, limits=msgspec.structs.replace(spec.limits, idle_s=5.0))


def test_a_stream_that_begins_elsewhere_is_stopped_where_it_was_begun(world):
    async def test(front):
        asked = asyncio.create_task(front.ask(STREAM, target=TARGET))
        while not quick.kept:
            await front.sleep(1.0)
        assert slow.asked_for("POST") == CANCEL
        quick.over()
        assert b"response.completed" in (await asked).body

    slow, quick = Keeper(first=streamed(first_after_s=1e6)), Keeper(first=streamed())
    world(test, slow, quick)


def test_a_gateway_that_ends_leaves_a_stream_to_the_engine(world, keeper, spec):
    async def test(front):
        asked = asyncio.create_task(front.ask(STREAM, target=TARGET))
        await front.sleep(1.0)
        await front.gateway.drain()
        assert b"event: response.failed" in (await asked).body
        assert (keeper.asked_for("POST"), used(front)[0]) == ([], {"TRUNCATED": 1})

    world(test, keeper, limits=msgspec.structs.replace(spec.limits, drain_s=2.0))


# -- before the id is known -----------------------------------------------------------------------------------------------


async def slowly(keeper, seen, answer):
    """The engine has begun it, and says so half a second later."""
    response = keeper.made(seen)
    await asyncio.sleep(0.5)
    answer.json(200, response)


@pytest.mark.parametrize(("first", "body"), [(slowly, ASK), (streamed(first_after_s=30.0), STREAM)], ids=["whole", "stream"])
def test_a_client_that_leaves_before_it_knows_the_id_has_it_stopped(world, first, body):
    """Asked and left at once, it went on in the engine and held nothing."""

    async def test(front):
        await left(front, tokens_s=0.002, body=body)
        await front.sleep(1.0)
        assert (front.permits, outcomes(front), keeper.asked_for("POST")) == (0, {"client_gone": 1}, CANCEL)
        assert keeper.asked_for() == []

    keeper = Keeper(first=first)
    world(test, keeper)


# -- a first answer that is no stream, and too long to be held -------------------------------------------------------------


def lengthy(after_s=0.0, ends="json"):
    """``ends``: what comes behind its beginning."""

    async def script(keeper, seen, answer):
        told = json.dumps({**keeper.made(seen), "instructions": "x" * (2 * HELD_BYTES_MAX)}).encode()
        await asyncio.sleep(after_s)
        answer.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(told))
        answer.raw(told[:-10])
        await asyncio.sleep(1.0)
        if ends == "cut":
            answer.cut()
        elif ends == "json":
            answer.raw(told[-10:])

    return script


@pytest.mark.parametrize("ends", ["json", "nothing"])
def test_a_client_that_leaves_before_a_long_first_answer_has_it_stopped(world, ends):
    """It went on in the engine, without a permit: that its beginning had been written, to nobody, was taken for told."""

    async def test(front):
        await left(front, body=ASK)
        await front.sleep(ALONE_REAL_S + 3.0)
        assert (front.permits, front.gateway.background.apart, keeper.asked_for("POST")) == (0, 0, CANCEL)
        assert (outcomes(front), used(front)[0]) == ({"client_gone": 1}, {"LEFT": 1})

    keeper = Keeper(first=lengthy(0.5, ends))
    world(test, keeper)


def test_a_client_that_leaves_within_a_long_first_answer_leaves_it_to_the_engine(world):
    """Its permit ended with its client, and nothing of what its engine went on with was metered."""

    async def test(front):
        await left(front, tokens_s=0.5, body=ASK)
        await front.sleep(20.0)
        assert (front.permits, keeper.asked_for("POST")) == (1, [])
        keeper.over()
        await front.sleep(5.0)
        assert (front.permits, used(front)) == (0, ({"COMPLETED": 1}, 7, 20))

    keeper = Keeper(first=lengthy())
    world(test, keeper)


def test_a_long_first_answer_that_breaks_off_is_stopped_in_the_engine(world):
    async def test(front):
        assert not (await front.ask(ASK, target=TARGET)).complete
        await front.sleep(2.0)
        assert (front.permits, keeper.asked_for("POST"), used(front)[0]) == (0, CANCEL, {"TRUNCATED": 1})

    keeper = Keeper(first=lengthy(ends="cut"))
    world(test, keeper)


async def never(keeper, seen, answer):
    await answer.gone.wait()


async def cut(keeper, seen, answer):
    await asyncio.sleep(0.5)
    answer.cut()


async def refused(keeper, seen, answer):
    await asyncio.sleep(0.5)
    answer.json(400, {"error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}})


async def broken(keeper, seen, answer):
    await asyncio.sleep(0.5)
    answer.json(500, {})


async def done(keeper, seen, answer):
    await asyncio.sleep(0.5)
    answer.json(200, {"id": "resp_0", "status": "completed", "usage": USAGE})


async def garbled(keeper, seen, answer):
    await asyncio.sleep(0.5)
    answer.raw(b"what?\r\n\r\n")


async def refused_in_its_stream(keeper, seen, answer):
    await asyncio.sleep(0.5)
    answer.stream()
    answer.chunk(b'event: error\ndata: {"type":"error","code":400,"message":"no"}\n\n')


@pytest.mark.parametrize("first", [never, cut, refused, broken, done, garbled, refused_in_its_stream])
def test_a_client_that_left_is_forgotten_whatever_its_engine_says(world, first):
    """A refusal was written to the connection that it had left, and counted once more as one before any pool's."""

    async def test(front):
        await left(front, tokens_s=0.1, body=STREAM if first is refused_in_its_stream else ASK)
        assert front.permits == 1
        await front.sleep(ALONE_REAL_S + 1.5)
        assert (front.permits, len(keeper.asked), front.gateway.background.alone) == (0, 1, 0)
        assert (sum(outcomes(front).values()), front.gateway.http.turned_away) == (1, {})

    keeper = Keeper(first=first)
    world(test, keeper, whole)


def test_a_call_whose_client_left_is_broken_off_whole(world):
    """By a fault of ours: it was counted for good among those that no connection has."""

    async def test(front):
        await left(front, body=ASK)
        desk = front.gateway.desk
        pool = desk.pools["chat"]
        (call,) = pool.calls.values()
        call.break_off()
        desk.abandon(pool, call, None, desk.now_s())
        assert front.gateway.background.apart == 0

    world(test, Keeper(first=never))


def test_a_gateway_that_ends_does_not_wait_for_a_client_that_left(world, spec):
    async def test(front):
        await left(front, tokens_s=0.1, body=ASK)
        await front.gateway.drain()
        assert (front.gateway.desk.live, outcomes(front)) == (0, {"client_gone": 1})

    world(test, Keeper(first=never), limits=msgspec.structs.replace(spec.limits, drain_s=2.0))


# -- at every step --------------------------------------------------------------------------------------------------------

TOKENS = 300


def lived(body, fault, step):
    """One world with the fault at this step of the event loop; whether the request was still on its way by then."""
    met = []

    async def test(front):
        client = await front.client()
        task = asyncio.create_task(client.ask(TARGET, {**body, "max_output_tokens": TOKENS}))
        met.append(at_step(step, lambda: FAULTS[fault](front)))
        for wait_s in (0.01, 0.1, 0.4, 1.0, 2.0, 4.0, 8.0):
            await asyncio.sleep(wait_s)
            front.gateway.check()
            work = sum(engine.core.queued for engine in front.engines if engine.state is State.READY)
            assert work <= front.gateway.desk.live, f"step {step}: an engine works on {work} for which there is no permit"
        assert task.done(), f"step {step}: no answer"
        task.exception()
        assert front.gateway.desk.live == 0, f"step {step}: something is left inside"
        assert sum(front.outcomes.values()) == front.meter.arrived, f"step {step}: {front.outcomes} of {front.meter.arrived}"
        assert not front.gateway.background.apart

    fleet(test)
    return bool(met[0])


@pytest.mark.parametrize("body", [ASK, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("fault", ["kill", "leave"])
def test_a_fault_at_any_step_leaves_no_work_without_a_permit(fault, body):
    steps = 1
    while steps < 60 and lived(body, fault, steps):
        steps += 1
    assert steps > 10


# -- several gateways -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_the_gateway_that_holds_the_permit_is_the_one_that_asks(stream):
    async def test(world):
        world.lease("b")
        client = await world.client("a")
        client.send(TARGET, STREAM if stream else ASK)
        if stream:
            await world.sleep(0.3)
        else:
            assert (await client.read()).json()["status"] == "queued"
        client.close()
        await world.sleep(10.0)
        assert world.inside() == {"a": 0, "b": 1}
        assert keeper.asked_for("POST") == []
        keeper.over()
        await world.sleep(6.0)
        assert world.inside() == {"a": 0, "b": 0}
        meter = world.meter("b")
        assert (meter.outcomes[Outcome.COMPLETED], meter.prompt_tokens, meter.output_tokens) == (1, 7, 20)
        counted = []
        for gateway in world.gateways.values():
            gateway.usage.outgoing()
            counted += gateway.usage.totals.values()
        assert len(counted) == 1

    keeper = Keeper(first=streamed() if stream else whole)
    several(test, keeper)
