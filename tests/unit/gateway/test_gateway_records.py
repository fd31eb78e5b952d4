"""Why each request was treated as it was: where it waits, where it went, why it was refused; told to its own team alone."""

import asyncio
import sys

import msgspec
import pytest
from emulated_fleet import body, fleet

from forebay.admission.candidates import Candidate, Permit, TeamShare
from forebay.admission.weighing import CANDIDATES_MAX
from forebay.gateway import leaving as leaving_module
from forebay.gateway import records as records_module
from forebay.gateway.leaving import SAMPLE_EVERY
from forebay.gateway.records import ORDINARY_MAX, RECORD_BYTES_MAX, REQUESTS, UNUSUAL_MAX, WHY_CHARS_MAX, Record
from forebay.spec.types import Team, TeamLimits

CHAT = {"model": "llama", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 50}
TARGET = REQUESTS.decode()


async def quick(seen, answer):
    answer.json(200, {"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 20, "completion_tokens": 5}})


async def slow(seen, answer):
    await asyncio.sleep(20)
    await quick(seen, answer)


async def refuses(seen, answer):
    answer.json(500, {"error": "no"})


async def streamed(seen, answer):
    answer.stream()
    answer.role()
    await asyncio.sleep(2)
    answer.token("a")
    await asyncio.sleep(3)
    answer.token("b", "stop")
    answer.done()


def named(request_id, key=None):
    return {"x-request-id": request_id} | ({"authorization": f"Bearer {key}"} if key else {})


async def record_of(front, request_id, key=None):
    answer = await front.ask(None, named("asking", key), TARGET + request_id)
    assert answer.status == 200, answer.body
    return msgspec.json.decode(answer.body, type=Record)


# -- those that ended --------------------------------------------------------------------------------------------------


def test_an_answered_request_has_a_record_and_headers_that_say_where_it_was(world):
    async def test(front):
        answer = await front.ask(CHAT, named("one"))
        assert answer.headers["x-forebay-pool"] == "chat"
        assert answer.headers["x-forebay-replica"] == "r0"
        assert answer.headers["x-forebay-queue-ms"] == "0"
        record = await record_of(front, "one")
        assert (record.id, record.state, record.outcome, record.team) == ("one", "finished", "completed", "anonymous")
        assert (record.tier, record.pool, record.replica, record.tried) == ("interactive", "chat", "r0", ())
        assert (record.prompt_tokens, record.output_tokens, record.exact) == (20, 5, True)
        assert record.estimated_output_tokens <= 50
        assert (record.waited_for, record.queue_s, record.reason, record.why, record.place) == ("", 0.0, "", "", None)
        assert record.ttft_s is None

    world(test, quick)


def test_a_streams_record_tells_when_its_first_content_came_and_when_it_ended(world):
    async def test(front):
        answer = await front.ask(CHAT | {"stream": True}, named("one"))
        assert answer.headers["x-forebay-replica"] == "r0"
        record = await record_of(front, "one")
        assert record.outcome == "completed"
        assert record.ttft_s == pytest.approx(2, abs=0.1)
        assert record.total_s == pytest.approx(5, abs=0.1)

    world(test, streamed)


def test_a_request_tried_again_names_the_replica_that_failed_it_and_why(world):
    async def test(front):
        answer = await front.ask(CHAT, named("one"))
        assert answer.status == 200
        assert answer.headers["x-forebay-replica"] == "r1"
        record = await record_of(front, "one")
        assert (record.outcome, record.replica, record.tried) == ("completed", "r1", ("r0",))
        assert record.why == "The engine answered 500."

    world(test, refuses, quick)


def test_a_request_that_all_replicas_failed_tells_what_its_client_was_told(world):
    async def test(front):
        answer = await front.ask(CHAT, named("one"))
        assert answer.status == 503
        assert answer.headers["x-forebay-pool"] == "chat"
        record = await record_of(front, "one")
        assert record.outcome in ("failed", "shed")
        assert record.why == f"{answer.json()['error']['message']} Before that: The engine answered 500."
        assert int(answer.headers["retry-after-ms"]) == pytest.approx(record.retry_after_s * 1000, abs=1)

    world(test, refuses)


def test_a_request_the_engine_calls_wrong_says_so(world):
    async def wrong(seen, answer):
        answer.json(400, {"error": {"message": "bad", "type": "invalid_request_error", "param": None, "code": None}})

    async def test(front):
        assert (await front.ask(CHAT, named("one"))).status == 400
        record = await record_of(front, "one")
        assert (record.outcome, record.why) == ("refused_by_engine", "The engine answered 400.")

    world(test, wrong)


def test_a_refused_request_tells_the_reason_and_when_it_was_told_to_come_back(world, spec, one_slot):
    tiers = tuple(msgspec.structs.replace(tier, longest_wait_s=3.0) for tier in spec.tiers)

    async def test(front):
        busy = await front.client()
        busy.send("/v1/chat/completions", CHAT, named("busy"))
        await front.sleep(1)
        refused = await front.ask(CHAT, named("late"))
        assert refused.status == 429
        assert (refused.headers["x-forebay-pool"], refused.headers["x-forebay-queue-ms"]) == ("chat", "3000")
        assert "x-forebay-replica" not in refused.headers
        record = await record_of(front, "late")
        assert (record.outcome, record.reason, record.waited_for, record.replica) == ("shed", "expired", "slots", "")
        assert record.queue_s == pytest.approx(3)
        assert record.why == refused.json()["error"]["message"]
        assert int(refused.headers["retry-after-ms"]) == pytest.approx(record.retry_after_s * 1000, abs=1)
        assert record.prompt_tokens is None

    world(test, slow, spec=msgspec.structs.replace(spec, tiers=tiers), capacity=one_slot)


def test_a_request_over_its_teams_limit_tells_that(world, spec):
    limited = Team("limited", (("sk-limited", "interactive"),), limits=TeamLimits(requests_per_minute=1))

    async def test(front):
        await front.ask(CHAT, named("one", "sk-limited"))
        assert (await front.ask(CHAT, named("two", "sk-limited"))).status == 429
        record = await record_of(front, "two", "sk-limited")
        assert (record.outcome, record.reason, record.replica) == ("shed", "over_limit", "")
        assert record.retry_after_s is not None

    world(test, quick, spec=msgspec.structs.replace(spec, teams=(limited,)))


def test_a_continued_stream_names_both_replicas():
    async def test(front):
        task = await front.asked(body())
        await front.kill(front.busy)
        assert (await task).complete
        (record,) = front.gateway.records.unusual
        assert (record.outcome, record.continued, record.prompt_tokens is not None) == ("completed", 1, True)
        assert {record.replica, *record.tried} == {"r0", "r1"}
        assert record.why

    fleet(test)


def test_a_client_that_left_is_recorded_with_what_it_got(world):
    async def test(front):
        client = await front.client()
        client.send("/v1/chat/completions", CHAT | {"stream": True}, named("one"))
        await front.sleep(3)
        client.close()
        await front.sleep(0.1)
        record = await record_of(front, "one")
        assert record.outcome == "client_gone"
        assert record.output_tokens == 1
        assert not record.exact

    world(test, streamed)


# -- those that live ---------------------------------------------------------------------------------------------------


def test_a_waiting_request_shows_its_place_and_then_that_it_runs(world, one_slot):
    async def ten_seconds(seen, answer):
        await asyncio.sleep(10)
        await quick(seen, answer)

    async def test(front):
        clients = [await front.client() for _ in range(3)]
        for number, client in enumerate(clients):
            client.send("/v1/chat/completions", CHAT, named(f"n{number}"))
            await front.sleep(0.5)
        running, first, second = [await record_of(front, f"n{number}") for number in range(3)]
        assert (running.state, running.replica, running.place, running.outcome) == ("running", "r0", None, None)
        assert (first.state, first.waited_for, first.replica) == ("waiting", "slots", "")
        assert (second.state, second.waited_for) == ("waiting", "turn")
        assert (first.place.ahead, second.place.ahead) == (0, 1)
        assert first.place.short_of == "slots"
        assert second.place.starts_in_s > first.place.starts_in_s
        assert 0 < second.place.refused_in_s <= 30
        assert first.queue_s == pytest.approx(1.0, abs=0.1)
        answers = [await client.read() for client in clients[:2]]
        assert int(answers[1].headers["x-forebay-queue-ms"]) == pytest.approx(9_500, abs=200)
        assert (await record_of(front, "n2")).state == "running"
        last = await clients[2].read()
        assert last.status == 200
        record = await record_of(front, "n2")
        assert (record.state, record.outcome, record.waited_for) == ("finished", "completed", "turn")
        assert not front.gateway.records.waited

    world(test, ten_seconds, capacity=one_slot)


def test_a_batch_request_that_gave_its_place_up_tells_that(world, spec, one_slot):
    team = Team("free", (("sk-free", "interactive"), ("sk-bulk", "batch")))

    async def test(front):
        bulk = await front.client()
        bulk.send("/v1/chat/completions", CHAT, named("bulk", "sk-bulk"))
        await front.sleep(1)
        assert (await front.ask(CHAT, named("urgent", "sk-free"))).status == 200
        assert (await bulk.read()).status == 200
        assert (await record_of(front, "bulk", "sk-free")).preempted == 1
        assert (await record_of(front, "urgent", "sk-bulk")).preempted == 0

    world(test, slow, spec=msgspec.structs.replace(spec, teams=(team,)), capacity=one_slot)


# -- who may know, and for how long ------------------------------------------------------------------------------------


def test_another_teams_request_is_none_that_there_is(world, team_spec):
    async def test(front):
        await front.ask(CHAT, named("one", "sk-search"))
        client = await front.client()
        theirs = await client.ask(TARGET + "one", None, named("asking", "sk-mail"))
        assert theirs.status == 404
        assert set(theirs.json()["error"]) == {"message", "type", "param", "code"}
        assert theirs.json()["error"]["code"] == "request_not_found"
        assert (await client.ask(TARGET + "one")).status == 401
        assert (await client.ask(TARGET + "one", None, named("x", "sk-search"), method="DELETE")).status == 405
        assert (await record_of(front, "one", "sk-search-bulk")).tier == "interactive"

    world(test, quick, spec=team_spec)


@pytest.mark.parametrize("path", ["", "unknown", "%ff%00", "a/b?c=d", "%" * 3000])
def test_what_is_not_known_is_404_whatever_is_asked(world, path):
    async def test(front):
        answer = await front.ask(None, None, TARGET + path)
        assert (answer.status, answer.json()["error"]["code"]) == (404, "request_not_found")

    world(test, quick)


def test_an_id_that_is_used_again_tells_of_the_latest_and_one_with_odd_letters_is_found(world):
    async def either(seen, answer):
        await (refuses if seen.json().get("n") == 1 else quick)(seen, answer)

    async def test(front):
        odd = "a/b:c+d=e"
        await front.ask(CHAT, named(odd))
        assert (await record_of(front, odd)).outcome == "completed"
        await front.sleep(1)
        await front.ask(CHAT | {"n": 1}, named(odd))
        assert (await record_of(front, "a%2Fb:c%2Bd=e")).outcome != "completed"
        await front.sleep(60)
        await front.ask(CHAT, named(odd))
        assert (await record_of(front, odd)).outcome == "completed"

    world(test, either)


def test_records_are_bounded_and_those_that_went_well_do_not_push_out_the_others(world, monkeypatch):
    monkeypatch.setattr(records_module, "ORDINARY_MAX", 3)

    async def either(seen, answer):
        await (refuses if seen.json().get("n") == 1 else quick)(seen, answer)

    async def test(front):
        await front.ask(CHAT | {"n": 1}, named("failed"))
        await front.sleep(60)
        for number in range(4):
            assert (await front.ask(CHAT, named(f"n{number}"))).status == 200
        assert len(front.gateway.records.ordinary) == 3
        assert (await front.ask(None, None, TARGET + "n0")).status == 404
        assert (await record_of(front, "n1")).id == "n1"
        assert (await record_of(front, "failed")).outcome != "completed"

    world(test, either)


def test_what_a_record_holds_is_bounded(world):
    """The largest there can be: both rings together are at most 40 MiB."""

    async def test(front):
        await front.ask(CHAT, named("x" * 128))
        (one,) = front.gateway.records.ordinary
        assert sum(map(sys.getsizeof, (one, *one))) <= RECORD_BYTES_MAX
        record = await record_of(front, "x" * 128)
        weighed = (Candidate("r", 0.5, 300, 5000, 5000, "slots"),) * CANDIDATES_MAX
        full = msgspec.structs.replace(
            record,
            why="é" * WHY_CHARS_MAX,
            tried=("r" * 64,) * 2,
            candidates=weighed,
            permit=Permit(10**7, 99, 10**7),
            team_share=TeamShare(0.3333, 0.3333, 99),
        )
        fields = msgspec.structs.astuple(full)
        scores = [number for one in weighed for number in (one, one.load, one.prefill_tokens, one.cached_tokens)]
        assert sys.getsizeof(full) + sum(map(sys.getsizeof, (*fields, *full.tried, *scores))) <= RECORD_BYTES_MAX

    world(test, quick)
    assert (ORDINARY_MAX + UNUSUAL_MAX) * RECORD_BYTES_MAX <= 42 * 2**20


def test_an_engine_that_is_a_forebay_too_does_not_tell_its_own_place(world):
    async def nested(seen, answer):
        answer.json(200, {"choices": []}, b"x-forebay-pool: inner", b"x-forebay-queue-ms: 7")

    async def test(front):
        answer = await front.ask(CHAT)
        assert answer.headers["x-forebay-pool"] == "chat"
        assert answer.headers["x-forebay-queue-ms"] == "0"

    world(test, nested)


# -- into the history --------------------------------------------------------------------------------------------------


def kept(front):
    """Taken for the history: (id, unusual, record)."""
    return [(one.id, one.unusual, msgspec.json.decode(one.record, type=Record)) for one in front.gateway.records.leaving.take()]


def test_one_in_so_many_that_went_well_is_kept_with_the_scores_of_the_replicas(world):
    async def test(front):
        for number in range(2 * SAMPLE_EVERY):
            await front.ask(CHAT, named(f"n{number}"))
        found = kept(front)
        assert [(request_id, unusual) for request_id, unusual, _ in found] == [("n0", False), (f"n{SAMPLE_EVERY}", False)]
        record = found[1][2]
        assert [one.chosen for one in record.candidates] == [True, False]
        assert record.candidates[0].replica == record.replica
        assert (await record_of(front, f"n{SAMPLE_EVERY}")).candidates == record.candidates
        assert (record.permit, record.team_share) == (
            Permit(record.permit.kv_tokens, 1, record.estimated_prompt_tokens),
            TeamShare(1.0, 1.0, 0),
        )
        assert record.permit.kv_tokens == record.estimated_prompt_tokens + record.estimated_output_tokens
        plain = await record_of(front, "n1")
        assert (plain.candidates, plain.permit, plain.team_share) == ((), None, None)
        assert kept(front) == []

    world(test, quick, quick)


def test_what_was_refused_tried_again_or_slow_is_always_kept(world, spec, one_slot):
    tiers = (msgspec.structs.replace(spec.tiers[0], ttft_s=1.5, longest_wait_s=3.0), *spec.tiers[1:])

    async def two_seconds(seen, answer):
        await asyncio.sleep(2)
        await quick(seen, answer)

    async def test(front):
        front.gateway.records.leaving.until_sample = 1000
        asked = []
        for number in range(3):
            asked.append(asyncio.create_task(front.ask(CHAT, named(f"n{number}"))))
            await asyncio.sleep(0.01)  # they come in this order
        await asyncio.gather(*asked)
        found = {request_id: (unusual, record) for request_id, unusual, record in kept(front)}
        assert set(found) == {"n1", "n2"}  # the one that waited longer than it was promised, and the one that was refused
        assert all(unusual for unusual, _ in found.values())
        assert found["n1"][1].outcome == "completed"
        assert found["n1"][1].candidates[0].chosen  # it waited, so it was weighed
        assert found["n2"][1].reason == "expired"
        front.engines[0].script = streamed
        await front.ask(CHAT | {"stream": True}, named("late"))
        ((request_id, unusual, record),) = kept(front)
        assert (request_id, unusual, record.ttft_s > 1.5) == ("late", True, True)

    world(test, two_seconds, spec=msgspec.structs.replace(spec, tiers=tiers), capacity=one_slot)


def test_a_request_tried_again_is_weighed_again(world):
    async def test(front):
        front.gateway.records.leaving.until_sample = 1000
        await front.ask(CHAT, named("one"))
        ((_, unusual, record),) = kept(front)
        assert unusual
        assert [(one.replica, one.short_of, one.chosen) for one in record.candidates] == [("r1", "", True), ("r0", "failed", False)]

    world(test, refuses, quick)


def test_what_waits_for_the_history_is_bounded_and_weighing_too(world, monkeypatch, one_slot):
    monkeypatch.setattr(leaving_module, "WAITING_MAX", 3)

    async def wrong(seen, answer):
        answer.json(400, {"error": {"message": "bad", "type": "invalid_request_error", "param": None, "code": None}})

    async def test(front):
        leaving = front.gateway.records.leaving
        leaving.until_sample, leaving.weighed_left = 1000, 1
        for number in range(5):
            await front.ask(CHAT, named(f"n{number}"))
        assert leaving.dropped == 2
        assert [request_id for request_id, _, _ in kept(front)] == ["n2", "n3", "n4"]
        assert "forebay_records_dropped_total 2.0" in (await front.ask(None, target="/metrics")).body.decode()
        leaving.weighed_left = 1
        front.engines[0].script = slow
        await asyncio.gather(*(front.ask(CHAT, named(f"w{number}")) for number in range(3)))
        weighed = [(await record_of(front, f"w{number}")).candidates for number in range(3)]
        assert sum(bool(one) for one in weighed) == 1

    world(test, wrong, capacity=one_slot)


def test_who_waited_for_the_first_replica_is_not_told_to_wait_as_long_again(world, one_slot):
    """An estimated wait of 99 s was 2: the time in which there was no replica was taken for the pace at which the lane goes."""
    told = {}

    async def fifth_of_a_second(seen, answer):
        await asyncio.sleep(0.2)
        await quick(seen, answer)

    async def test(front):
        front.route()
        clients = [await front.client() for _ in range(60)]
        for number, client in enumerate(clients):
            client.send("/v1/chat/completions", CHAT, named(f"n{number}"))
            await front.sleep(0.01)
        await front.sleep(13)
        front.route(*front.engines, capacity=msgspec.structs.replace(one_slot, sequences=4))
        await front.sleep(0.7)
        last = await record_of(front, "n59")
        told["starts_in_s"], asked_at_s = last.place.starts_in_s, front.clock.now_s()
        answer = await clients[-1].read()
        assert answer.status == 200
        told["real_s"] = front.clock.now_s() - asked_at_s

    world(test, fifth_of_a_second)
    assert told["real_s"] == pytest.approx(2.3, abs=0.3)
    assert told["starts_in_s"] == pytest.approx(told["real_s"], rel=0.4)


def test_one_that_was_refused_since_its_only_engine_is_dead_names_the_cause(world):
    """It said that no replica can serve it: to the operator, who wants to know why there is none."""

    async def test(front):
        front.engines[0].stop()
        for request_id in ("first", "second"):
            assert (await front.ask(CHAT, named(request_id))).status == 503
            record = await record_of(front, request_id)
            assert record.reason == "no_replicas"
            assert "None is in routing here; the last to go was r0: The engine could not be reached" in record.why
        front.route()
        await front.sleep(1.0)
        assert (await front.ask(CHAT, named("third"))).status == 503
        assert (await record_of(front, "third")).why.endswith("None is in the roster here.")

    world(test, quick)
