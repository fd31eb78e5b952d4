"""``background: true``: the permit lasts as long as the engine works, and what it took is metered once."""

import asyncio

import msgspec
import pytest
from background_engine import ASK, TARGET, USAGE, Keeper, streamed
from emulated_fleet import CAPACITY, fleet

from forebay.domain.usage import OUTPUT, PROMPT, How
from forebay.gateway import watching
from forebay.gateway.whole import HELD_BYTES_MAX


@pytest.fixture
def keeper():
    return Keeper()


def used(front):
    """(requests by how they ended, prompt tokens, output tokens), over all that was counted."""
    book = front.gateway.usage
    book.outgoing()
    sums = [sum(counts) for counts in zip(*book.totals.values(), strict=True)]
    return {how.name: sums[how] for how in How if sums and sums[how]}, *((sums[PROMPT], sums[OUTPUT]) if sums else (0, 0))


def outcomes(front, tier="interactive"):
    meter = front.gateway.desk.pools["chat"].meters[tier]
    return {outcome.value: count for outcome, count in meter.outcomes.items() if count}


async def begun(front, body=None, headers=None):
    """Asked, and answered at once."""
    answer = await front.ask({**ASK, **(body or {})}, headers, TARGET)
    assert (answer.status, answer.json()["status"]) == (200, "queued")
    return answer


def test_the_answer_passes_at_once_and_the_permit_lasts_until_the_engine_is_done(world, keeper):
    """Twenty such requests held no permit, and nothing of 5,489 tokens was metered."""

    async def test(front):
        begun_s = front.clock.now_s()
        answer = await begun(front)
        assert front.clock.now_s() - begun_s < 0.1
        assert answer.json() == keeper.kept["resp_0"]
        await front.sleep(20.0)
        assert (front.permits, outcomes(front)) == (1, {})
        keeper.over()
        await front.sleep(5.0)
        assert front.permits == 0
        meter = front.gateway.desk.pools["chat"].meters["interactive"]
        assert (meter.prompt_tokens, meter.output_tokens, meter.completed_output_tokens) == (7, 20, 20)
        assert (outcomes(front), used(front)) == ({"completed": 1}, ({"COMPLETED": 1}, 7, 20))
        asked = len(keeper.asked)
        await front.sleep(60.0)
        assert len(keeper.asked) == asked

    world(test, keeper)


def test_what_ended_in_the_background_is_gone_on_from_with_all_that_was_said(world, keeper):
    """Its usage is told when it has ended, long after its client's answer: what went on from it was taken for its own body alone."""

    async def test(front):
        await begun(front)
        assert front.gateway.holders.find("resp_0").tokens == 0
        keeper.over()
        await front.sleep(1.0)
        assert front.gateway.holders.find("resp_0").tokens == 27
        await begun(front, {"previous_response_id": "resp_0"})
        (call,) = front.gateway.desk.pools["chat"].calls.values()
        assert (call.kept_at, call._estimate.cached_tokens) == ("r0", 27)
        await front.sleep(20.0)
        assert (front.permits, outcomes(front)) == (1, {"completed": 1})
        keeper.over(name="resp_1")
        await front.sleep(5.0)
        assert (front.permits, outcomes(front)) == (0, {"completed": 2})

    world(test, keeper)


def test_more_than_the_engine_has_places_for_wait_in_the_lane(world, keeper, one_slot):
    async def test(front):
        await begun(front)
        second = asyncio.create_task(begun(front))
        await front.sleep(3.0)
        assert (front.permits, front.waiting, len(keeper.kept), second.done()) == (1, 1, 1, False)
        keeper.over()
        await second
        assert (front.permits, front.waiting, len(keeper.kept)) == (1, 0, 2)
        keeper.over(name="resp_1")
        await front.sleep(3.0)

    world(test, keeper, capacity=one_slot)


def test_a_client_goes_on_over_the_same_connection(world, keeper):
    async def test(front):
        client = await front.client()
        for number in range(3):
            assert (await client.ask(TARGET, ASK)).json()["id"] == f"resp_{number}"
        client.close()
        await front.sleep(1.0)
        assert front.permits == 3
        for name in list(keeper.kept):
            keeper.over(name=name)
        await front.sleep(3.0)
        assert outcomes(front) == {"completed": 3}

    world(test, keeper)


def test_the_engine_is_asked_after_a_tenth_of_the_time_it_has_taken(world, keeper):
    async def test(front):
        await begun(front)
        await front.sleep(10.0)
        early = len(keeper.asked_for())
        await front.sleep(90.0)
        late = len(keeper.asked_for()) - early
        assert (early, late) == (17, 27)
        assert len(front.engines[0].open) <= 1
        keeper.over()
        await front.sleep(5.1)

    world(test, keeper)


@pytest.mark.parametrize(
    ("status", "usage", "ended", "counted"),
    [
        ("completed", USAGE, "completed", ({"COMPLETED": 1}, 7, 20)),
        ("incomplete", USAGE, "completed", ({"COMPLETED": 1}, 7, 20)),
        ("failed", USAGE, "failed", ({"FAILED": 1}, 7, 20)),
        ("failed", None, "failed", ({"FAILED": 1}, 0, 0)),
        ("cancelled", None, "client_gone", ({"LEFT": 1}, 0, 0)),
        ("expired", None, "failed", ({"FAILED": 1}, 0, 0)),
        ("completed", "much", "completed", ({"COMPLETED": 1}, 0, 0)),
        ("completed", {"input_tokens": -1}, "completed", ({"COMPLETED": 1}, 0, 0)),
    ],
)
def test_it_ends_as_its_engine_says(world, keeper, status, usage, ended, counted):
    async def test(front):
        await begun(front)
        keeper.over(status, usage)
        await front.sleep(1.0)
        assert (front.permits, outcomes(front), used(front)) == (0, {ended: 1}, counted)

    world(test, keeper)


def test_what_the_engine_says_of_a_failure_is_in_the_requests_record(world, keeper):
    async def test(front):
        await begun(front, headers={"x-request-id": "mine"})
        running = (await front.ask(None, target="/forebay/v1/requests/mine")).json()
        assert (running["state"], running["replica"]) == ("running", "r0")
        keeper.over("failed", None, error={"message": "out of luck"})
        await front.sleep(1.0)
        told = (await front.ask(None, target="/forebay/v1/requests/mine")).json()
        assert (told["state"], told["outcome"]) == ("finished", "failed")
        assert "out of luck" in told["why"]

    world(test, keeper)


def test_a_response_longer_than_what_is_held_is_metered_by_its_end(world, keeper):
    async def test(front):
        await begun(front)
        text = "status " * (watching.TOLD_BYTES_MAX // 2)
        output = [{"status": "completed", "content": [{"text": text}]}]
        keeper.kept["resp_0"] = {"id": "resp_0", "output": output, "status": "incomplete", "truncation": "auto", "usage": USAGE}
        await front.sleep(1.0)
        assert (outcomes(front), used(front)) == ({"completed": 1}, ({"COMPLETED": 1}, 7, 20))

    world(test, keeper)


@pytest.mark.parametrize("status", ["queued", "in_progress", "completed"])
def test_an_answer_that_is_whole_ends_the_permit_whatever_was_asked(world, status):
    """An engine without a store refuses ``background``, or does as if it hadn't been asked."""

    async def test(front):
        answer = await front.ask({**ASK, "background": status == "completed"}, target=TARGET)
        assert answer.json()["status"] == status
        assert front.permits == (0 if status == "completed" else 1)
        await front.sleep(2.0)
        assert (front.permits, len(keeper.asked_for()) > 0) == (0, status != "completed")

    keeper = Keeper(status)
    keeper.says = not_found
    world(test, keeper)


async def not_found(keeper, seen, answer):
    answer.json(404, {"error": {"message": "no", "type": "NotFoundError", "code": 404}})


def test_an_engine_without_a_store_tells_its_client_so(world):
    async def refuses(seen, answer):
        answer.json(400, {"error": {"message": "no background", "type": "invalid_request_error", "param": "background", "code": 400}})

    async def test(front):
        answer = await front.ask(ASK, target=TARGET)
        assert (answer.status, answer.json()["error"]["message"]) == (400, "no background")
        assert (front.permits, outcomes(front)) == (0, {"refused_by_engine": 1})

    world(test, refuses)


# -- ends before the engine's ---------------------------------------------------------------------------------------------


def test_a_client_that_cancels_it_gives_the_permit_back_at_once(world, keeper):
    async def test(front):
        await begun(front)
        await front.sleep(40.0)
        answer = await front.ask({}, target=f"{TARGET}/resp_0/cancel")
        assert (answer.status, answer.json()["status"]) == (200, "cancelled")
        await front.sleep(0.1)
        assert (front.permits, outcomes(front), used(front)[0]) == (0, {"client_gone": 1}, {"LEFT": 1})

    world(test, keeper)


def test_a_response_that_is_deleted_has_ended(world, keeper):
    async def test(front):
        await begun(front)
        await front.sleep(40.0)
        client = await front.client()
        assert (await client.ask(f"{TARGET}/resp_0", None, method="DELETE")).status == 200
        assert (front.permits, outcomes(front)) == (0, {"client_gone": 1})

    world(test, keeper)


def test_an_engine_that_has_started_anew_has_lost_it(world, keeper):
    async def test(front):
        await begun(front)
        keeper.kept.clear()
        await front.sleep(1.0)
        assert (front.permits, outcomes(front), used(front)) == (0, {"failed": 1}, ({"FAILED": 1}, 0, 0))
        assert "replica_ejected" not in [event.kind for event in front.sink.events]

    world(test, keeper)


def test_a_replica_that_is_dead_has_lost_it_and_leaves_routing(world, keeper):
    async def test(front):
        await begun(front)
        front.engines[0].stop()
        await front.sleep(1.0)
        assert (front.permits, outcomes(front)) == (0, {"failed": 1})
        assert "replica_ejected" in [event.kind for event in front.sink.events]

    world(test, keeper)


@pytest.mark.parametrize("way", ["silence", "cut", "503", "401", "rubbish"])
def test_an_engine_that_is_asked_in_vain_has_lost_it(world, keeper, way):
    async def says(keeper, seen, answer):
        if way == "silence":
            await answer.gone.wait()
        elif way == "cut":
            answer.cut()
        elif way == "rubbish":
            answer.json(200, ["no response"])
        else:
            answer.json(int(way), {})

    async def test(front):
        await begun(front)
        keeper.says = says
        await front.sleep(1.0)
        assert front.permits == 1
        await front.sleep(20.0)
        assert (front.permits, outcomes(front)) == (0, {"failed": 1})
        again = way == "cut"  # on a connection that had been kept alive
        assert len(keeper.asked_for()) == watching.IN_VAIN_MAX + again

    world(test, keeper)


def test_an_engine_that_answers_again_is_believed(world, keeper):
    turns = iter([False, False, True] * 5)

    async def says(keeper, seen, answer):
        if next(turns):
            answer.json(200, keeper.kept["resp_0"])
        else:
            answer.cut()

    async def test(front):
        await begun(front)
        keeper.says = says
        await front.sleep(5.0)
        assert front.permits == 1
        keeper.says = None
        keeper.over()
        await front.sleep(1.0)
        assert outcomes(front) == {"completed": 1}

    world(test, keeper)


def test_it_takes_no_longer_than_its_tiers_requests_may(world, keeper, spec):
    limits = msgspec.structs.replace(spec.limits, total_s=60.0)

    async def test(front):
        await begun(front)
        await front.sleep(59.0)
        assert front.permits == 1
        await front.sleep(3.0)
        assert (front.permits, outcomes(front), keeper.asked_for("POST")) == (0, {"failed": 1}, [f"{TARGET}/resp_0/cancel"])

    world(test, keeper, limits=limits)


def test_a_replica_that_is_drained_keeps_the_permit_until_it_is_done(world, keeper):
    async def test(front):
        await begun(front)
        front.route(front.engines[1])
        await front.sleep(10.0)
        assert (front.permits, outcomes(front)) == (1, {})
        keeper.over()
        await front.sleep(2.0)
        assert (front.permits, outcomes(front)) == (0, {"completed": 1})

    world(test, keeper, Keeper())


def test_a_gateway_that_ends_asks_no_more(world, keeper, spec):
    async def test(front):
        await begun(front)
        draining = asyncio.create_task(front.gateway.drain())
        await asyncio.sleep(5.5)
        await draining
        assert (outcomes(front), used(front)[0], front.gateway.desk.live) == ({"failed": 1}, {"FAILED": 1}, 0)
        asked = len(keeper.asked)
        await asyncio.sleep(30.0)
        assert (len(keeper.asked), keeper.asked_for("POST")) == (asked, [])

    world(test, keeper, limits=msgspec.structs.replace(spec.limits, drain_s=5.0))


def test_a_gateway_that_ends_waits_for_it_as_for_any_request(world, keeper, spec):
    async def test(front):
        await begun(front)
        draining = asyncio.create_task(front.gateway.drain())
        await asyncio.sleep(1.0)
        keeper.over()
        await draining
        assert used(front) == ({"COMPLETED": 1}, 7, 20)

    world(test, keeper, limits=msgspec.structs.replace(spec.limits, drain_s=30.0))


def test_a_gateway_that_is_closed_leaves_no_watcher(world, keeper):
    async def test(front):
        await begun(front)
        await front.gateway.close()
        asked = len(keeper.asked)
        await asyncio.sleep(30.0)
        assert len(keeper.asked) == asked
        front.gateway.desk.pools["chat"].calls.clear()
        front.gateway.desk.pools["chat"].admission.abandon(1, front.clock.now_s())

    world(test, keeper)


def test_beyond_the_bound_it_is_cancelled_and_its_client_told(world, keeper, monkeypatch):
    monkeypatch.setattr(watching, "WATCHED_MAX", 1)

    async def test(front):
        await begun(front)
        answer = await front.ask(ASK, target=TARGET)
        assert (answer.status, answer.json()["error"]["code"]) == (503, "overloaded")
        assert answer.headers["retry-after"]
        await front.sleep(0.1)
        assert (keeper.asked_for("POST"), front.permits) == ([f"{TARGET}/resp_1/cancel"], 1)
        keeper.over()
        await front.sleep(2.0)

    world(test, keeper)


def test_few_questions_are_under_way_at_one_engine(world, keeper, monkeypatch):
    async def says(keeper, seen, answer):
        nonlocal most
        most = max(most, sum(not task.done() for task in engines[0].answering))
        await answer.gone.wait()

    async def test(front):
        engines.extend(front.engines)
        for _ in range(8):
            await begun(front)
        keeper.says = says
        await front.sleep(60.0)
        assert (most, front.permits, outcomes(front)) == (watching.ASKED_MAX, 0, {"failed": 8})

    most, engines = 0, []
    world(test, keeper)


@pytest.mark.parametrize("name", ["a/b", "x\r\nhost: y", "", "y" * 129, "z" * 100_000])
def test_an_id_that_nobody_could_ask_for_is_refused(world, keeper, name):
    async def test(front):
        answer = await front.ask({**ASK, "request_id": name}, target=TARGET)
        assert (answer.status, answer.json()["error"]["param"]) == (400, "request_id")
        assert not keeper.asked
        assert (await front.ask({**ASK, "request_id": "resp_mine", "background": False}, target=TARGET)).status == 200
        keeper.over()
        await front.sleep(1.0)

    world(test, keeper)


def test_what_more_important_ones_need_is_not_taken_from_it(world, team_spec, keeper, one_slot):
    """Its engine would go on with it, and with another one in its place."""

    async def test(front):
        await begun(front, headers={"authorization": "Bearer sk-search-bulk"})
        other = asyncio.create_task(front.ask({**ASK, "background": False}, {"authorization": "Bearer sk-search"}, TARGET))
        await front.sleep(5.0)
        assert (front.permits, front.waiting, len(keeper.kept)) == (1, 1, 1)
        keeper.over()
        await other
        keeper.over(name="resp_1")
        await front.sleep(2.0)
        assert (outcomes(front, "batch"), outcomes(front)) == ({"completed": 1}, {"completed": 1})

    world(test, keeper, spec=team_spec, capacity=one_slot)


# -- over emulated engines ------------------------------------------------------------------------------------------------


def test_what_engines_make_in_the_background_is_what_is_metered():
    """However many are asked for, an engine is given what it has places for, and every token is counted."""

    async def test(world):
        asked = [asyncio.create_task(world.ask({**ASK, "input": f"number {number}"}, TARGET)) for number in range(20)]
        most = 0
        for _ in range(200):
            await asyncio.sleep(0.1)
            most = max(most, world.engines[0].core.queued)
        answers = [(await each).json()["status"] for each in asked]
        assert set(answers) == {"queued"}
        made = world.engines[0].stats.generation_tokens.value
        assert (most, made, world.meter.output_tokens, world.outcomes) == (4, 400, 400, {"completed": 20})

    fleet(test, replicas=1, capacity=msgspec.structs.replace(CAPACITY, sequences=4))


@pytest.mark.parametrize("way", ["cancel", "kill", "leave"])
def test_an_emulated_engine_is_free_again_when_the_permit_is(way):
    async def test(world):
        client = await world.client()
        client.send(TARGET, {**ASK, "max_output_tokens": 1500, "stream": way == "leave"})
        if way == "leave":
            await asyncio.sleep(1.0)
            client.close()
        else:
            name = (await client.read()).json()["id"]
        await asyncio.sleep(3.0)
        assert (world.gateway.desk.live, world.busy.core.queued) == (1, 1)
        engine = world.busy
        if way == "cancel":
            assert (await world.ask({}, f"{TARGET}/{name}/cancel")).json()["status"] == "cancelled"
        elif way == "kill":
            await world.kill(engine)
        await asyncio.sleep(1.0 if way != "leave" else 20.0)
        assert (world.gateway.desk.live, engine.core.queued) == (0, 0 if way != "kill" else engine.core.queued)
        assert world.outcomes == {{"cancel": "client_gone", "kill": "failed", "leave": "completed"}[way]: 1}
        assert world.meter.output_tokens == (1500 if way == "leave" else 0)

    fleet(test)


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("leaves", [False, True])
def test_a_body_too_large_to_be_held_goes_on_in_the_background_too(world, spec, seen, leaves):
    """Whether ``background`` stands where it was looked at or not: the engine says so."""

    async def test(front):
        first = {"model": "llama", **({"background": True} if seen else {})}
        body = {**first, "input": "x" * 30_000, "background": True, "stream": leaves}
        client = await front.client()
        client.send(TARGET, body)
        if leaves:
            await front.sleep(0.5)
            client.close()
        else:
            assert (await client.read()).json()["status"] == "queued"
        await front.sleep(20.0)
        assert (front.permits, len(keeper.kept)) == (1, 1)
        keeper.over()
        await front.sleep(5.0)
        assert (front.permits, used(front)) == (0, ({"COMPLETED": 1}, 7, 20))

    keeper = Keeper(first=streamed() if leaves else None)
    limits = msgspec.structs.replace(spec.limits, body_bytes_max=4096, streamed_body_bytes_max=1_000_000)
    world(test, keeper, limits=limits)


def test_a_first_answer_too_long_to_be_held_is_watched(world):
    async def first(keeper, seen, answer):
        made = keeper.made(seen)
        answer.json(200, {"id": made["id"], "instructions": "x" * (HELD_BYTES_MAX + 1), **made})

    async def test(front):
        assert (await front.ask(ASK, target=TARGET)).json()["status"] == "queued"
        await front.sleep(20.0)
        assert front.permits == 1
        keeper.over()
        await front.sleep(5.0)
        assert (front.permits, used(front)) == (0, ({"COMPLETED": 1}, 7, 20))

    keeper = Keeper(first=first)
    world(test, keeper)
