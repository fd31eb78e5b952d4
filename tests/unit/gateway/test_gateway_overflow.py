"""What a pool can't start in time: a smaller sibling answers, then other people's engines; else it is refused, last and honestly."""

import msgspec
import pytest
from overflow_world import CHAT, FAR, TOTAL_S, answers, hangs, once, play

from forebay.gateway.meters import Outcome
from forebay.testing.raw_client import RawClient


def test_a_request_that_waits_too_long_is_answered_by_the_smaller_model_and_told_so():
    async def test(world):
        await world.begin("sk-both-key")  # takes the only slot, and hangs
        second = await world.begin("sk-both-key")
        await world.sleep(4.0)
        assert not second.done()
        await world.sleep(2.5)
        answer = await second
        assert answer.status == 200
        assert answer.headers["x-forebay-degraded"] == "big"
        assert world.engines[1].seen[-1].json()["model"] == "small"
        assert world.outcomes("big")[Outcome.MOVED] == 1
        assert world.outcomes("small")[Outcome.COMPLETED] == 1
        third = await (await world.begin("sk-both-key"))
        assert third.headers["x-forebay-degraded"] == "big"  # the rung is open: it waits no more

    play(test, hangs, answers)


def test_a_team_that_did_not_agree_waits_and_is_refused():
    async def test(world):
        await world.begin("sk-both-key")
        second = await world.begin("sk-neither-key")
        await world.sleep(31.0)
        answer = await second
        assert answer.status == 429
        assert "x-forebay-degraded" not in answer.headers
        assert not world.engines[1].seen

    play(test, hangs, answers)


def test_where_no_sibling_takes_it_it_is_spilled_with_the_key_and_path_of_the_place():
    async def test(world):
        await world.begin("sk-europe-key")
        second = await world.begin("sk-europe-key")
        await world.sleep(12.0)
        answer = await second
        assert answer.status == 200
        assert answer.headers["x-forebay-spilled"] == "far"
        sent = world.engines[2].seen[-1]
        assert sent.json()["model"] == "far-model"
        assert sent.line == b"POST /far/v1/chat/completions HTTP/1.1"
        assert sent.headers[b"authorization"] == b"Bearer sk-far-away"
        (place,) = world.gateway.desk.spills
        assert place.admission.streams == 0
        assert place.admission.budget.used_usd(world.clock.now_s()) == pytest.approx(15e-6)

    play(test, hangs, answers, answers, spill=FAR)


def test_residency_keeps_a_request_at_home():
    async def test(world):
        await world.begin("sk-europe-key")
        second = await world.begin("sk-europe-key")
        await world.sleep(31.0)
        assert (await second).status == 429
        assert not world.engines[2].seen

    play(test, hangs, answers, answers, spill=msgspec.structs.replace(FAR, region="us"))


def test_a_place_without_budget_is_not_asked():
    async def test(world):
        await world.begin("sk-europe-key")
        second = await world.begin("sk-europe-key")
        await world.sleep(31.0)
        assert (await second).status == 429
        assert not world.engines[2].seen

    play(test, hangs, answers, answers, spill=msgspec.structs.replace(FAR, usd_per_hour=1e-9))


async def fails(_, answer):
    answer.json(500, {"error": {"message": "no", "type": "server_error", "param": None, "code": None}})


async def knows_no_key(_, answer):
    answer.json(401, {"error": {"message": "Incorrect API key provided: sk-far-away", "type": "x", "param": None, "code": None}})


async def resets(_, answer):
    answer.close()


async def says_no_json(seen, answer):
    body, kind = (b"data: oops\n\n", b"text/event-stream") if seen.json().get("stream") else (b"{oops", b"application/json")
    answer.raw(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(body), body))


@pytest.mark.parametrize("place", [fails, knows_no_key, resets, hangs, says_no_json])
def test_whatever_a_place_does_wrong_the_request_waits_at_home_again_and_is_told_nothing_of_it(place):
    async def test(world):
        first = await world.begin("sk-europe-key")
        stream = {**CHAT, "stream": True}
        second = await world.begin("sk-europe-key", stream)
        await world.sleep(25.0)
        assert not second.done()
        assert world.waiting("big") == 1
        first.cancel()
        world.clients[0].close()  # its slot is free
        await world.sleep(1.0)
        answer = await second
        assert answer.status == 200
        assert "x-forebay-spilled" not in answer.headers
        (place,) = world.gateway.desk.spills
        assert place.admission.failed_total == 1
        assert place.admission.streams == 0

    play(test, once(hangs, answers), answers, place, spill=FAR)


def test_of_a_place_that_refuses_our_key_the_operator_is_told_which_and_nobody_its_words():
    async def test(world):
        await world.begin("sk-europe-key")
        await world.begin("sk-europe-key")
        await world.sleep(25.0)
        (said,) = [event.message for event in world.sink.events if event.kind == "engine_failed"]
        assert said.endswith("The engine answered 401. It refuses the key in FAR_KEY: set it anew and start again.")
        assert "sk-far" not in said

    play(test, hangs, answers, knows_no_key, spill=FAR)


def test_a_sibling_that_is_dead_does_not_make_an_error_of_a_wait():
    async def test(world):
        first = await world.begin("sk-both-key")
        others = [await world.begin("sk-both-key") for _ in range(3)]
        await world.sleep(12.0)
        assert not any(task.done() for task in others)
        first.cancel()
        world.clients[0].close()
        await world.sleep(1.0)
        assert [(await task).status for task in others] == [200, 200, 200]

    play(test, once(hangs, answers), resets)


def test_a_client_that_leaves_while_it_is_spilled_frees_the_place():
    async def test(world):
        await world.begin("sk-europe-key")
        await world.begin("sk-europe-key")
        await world.sleep(12.0)
        (place,) = world.gateway.desk.spills
        assert place.admission.streams == 1
        world.clients[-1].close()
        await world.sleep(0.5)
        assert place.admission.streams == 0

    play(test, hangs, answers, hangs, spill=FAR)


def test_a_whole_answer_that_hangs_where_it_was_spilled_is_ended_by_its_tiers_total():
    """Nothing of it comes before its end, so only its length can tell that it hangs."""

    async def test(world):
        await world.begin("sk-both-key", {**CHAT, "stream": True})
        second = await world.begin("sk-europe-key")
        await world.sleep(10.5 + TOTAL_S)
        assert not second.done()
        (place,) = world.gateway.desk.spills
        assert place.admission.streams == 1
        await world.sleep(3.0)
        answer = await second
        assert (answer.status, answer.json()["error"]["code"]) == (504, "engine_timeout")
        assert (place.admission.streams, place.admission.failed_total) == (0, 1)

    play(test, hangs, answers, hangs, spill=FAR)


SMALL_CHAT = {**CHAT, "model": "small"}


def test_a_sibling_that_is_full_though_nothing_waits_there_is_passed_over():
    """It was gone to, waited there for all of its longest wait with its own pool free again, and was spilled only then."""

    async def test(world):
        await world.begin("sk-neither-key", SMALL_CHAT)
        await world.begin("sk-neither-key")
        third = await world.begin("sk-both-key")
        await world.sleep(12.0)
        assert third.done()
        assert third.result().headers["x-forebay-spilled"] == "far"
        assert [seen.json()["model"] for seen in world.engines[1].seen] == ["small"]

    play(test, hangs, hangs, answers, spill=FAR)


def test_who_waits_at_home_for_want_of_a_sibling_with_room_starts_there_first():
    async def test(world):
        await world.begin("sk-neither-key", SMALL_CHAT)
        second = await world.begin("sk-neither-key")
        third = await world.begin("sk-both-key")
        await world.sleep(8.0)
        assert world.waiting("big") == 1
        second.cancel()
        world.clients[1].close()
        await world.sleep(0.5)
        answer = await third
        assert (answer.status, answer.headers["x-forebay-pool"]) == (200, "big")

    play(test, once(hangs, answers), hangs)


def test_a_sibling_full_of_batch_takes_interactive_work_which_goes_before_that():
    async def test(world):
        batch = await world.begin("sk-both-key", {**SMALL_CHAT, "service_tier": "batch"})
        await world.begin("sk-neither-key")
        third = await world.begin("sk-both-key")
        await world.sleep(6.0)
        assert (await third).headers["x-forebay-degraded"] == "big"
        await world.sleep(1.0)
        assert (await batch).status == 200

    play(test, hangs, once(hangs, answers))


def test_batch_waits_at_home_as_long_as_it_is_promised_and_opens_no_way_for_others():
    """Its waiting is no overload: after fifteen seconds it was sent to engines that cost money, and interactive after it."""

    async def test(world):
        await world.begin("sk-neither-key")
        batch = await world.begin("sk-both-key", {**CHAT, "service_tier": "batch"})
        await world.sleep(20.0)
        assert not batch.done()
        assert world.waiting("big") == 1
        assert not world.engines[2].seen
        assert "overflow_began" not in world.sink.kinds()
        await world.begin("sk-neither-key")
        await world.sleep(12.0)
        assert "overflow_began" in world.sink.kinds()  # an interactive one has waited too long
        assert not batch.done()

    play(test, hangs, hangs, answers, spill=FAR, degrade=False)


def test_the_metrics_page_tells_which_ways_are_open_how_many_went_and_what_it_cost():
    async def test(world):
        client = await RawClient.connect(world.port)
        world.clients.append(client)

        async def shown():
            page = (await client.ask("/metrics", None, method="GET")).body.decode()
            lines = [line for line in page.splitlines() if line.startswith(("forebay_overflow", "forebay_spill"))]
            return dict(line.rsplit(" ", 1) for line in lines)

        before = await shown()
        assert before['forebay_overflow_open{pool="big",to="far",way="spill"}'] == "0.0"
        assert before['forebay_spill_budget_usd{pool="big",to="far"}'] == "100.0"
        await world.begin("sk-neither-key")
        await world.begin("sk-both-key")
        await world.sleep(6.0)
        await world.begin("sk-europe-key")
        await world.sleep(12.0)
        after = await shown()
        for way in ('to="small",way="degrade"', 'to="far",way="spill"'):
            assert after[f'forebay_overflow_open{{pool="big",{way}}}'] == "1.0"
            assert after[f'forebay_overflow_began_total{{pool="big",{way}}}'] == "1.0"
            assert after[f'forebay_overflow_requests_total{{pool="big",{way}}}'] == "1.0"
        assert float(after['forebay_spill_used_usd{pool="big",to="far"}']) == pytest.approx(15e-6)

    play(test, hangs, answers, answers, spill=FAR)


def test_a_request_for_an_adapter_is_answered_by_no_other_model():
    """It was answered by the small model, or after a failure there at home by the big one, which is not what was asked for."""

    async def test(world):
        await world.begin("sk-neither-key")
        second = await world.begin("sk-both-key", {**CHAT, "model": "big-lora"})
        await world.sleep(20.0)
        assert not second.done()
        assert not world.engines[1].seen
        assert not world.engines[2].seen
        await world.sleep(12.0)
        assert second.result().status == 429

    play(test, hangs, answers, answers, spill=FAR)
