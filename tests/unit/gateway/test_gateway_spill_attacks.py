"""A place to spill to that lies, hangs, redirects or charges for nothing: its client waits at home, and no more is paid than was allowed."""

import asyncio

import msgspec
import pytest
from overflow_world import ANSWER, CHAT, FAR, answers, hangs, once, play

from forebay.gateway.meters import Outcome

STREAM = {**CHAT, "stream": True}
DEAR = msgspec.structs.replace(FAR, usd_per_hour=1.0, prompt_usd_per_mtok=0.0, output_usd_per_mtok=100_000.0)
"""Half a dollar for the five tokens of a request, a dollar an hour."""
ERROR = {"error": {"message": "sk-far-away is wrong", "type": "x", "param": None, "code": None}}


async def redirects(_, answer):
    answer.json(302, {}, b"location: http://elsewhere.example/v1/chat/completions")


async def throttles(_, answer):
    answer.json(429, ERROR, b"retry-after: 1")


async def doubts(_, answer):
    answer.json(400, ERROR)


async def pages(_, answer):
    answer.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 15\r\n\r\n<html>log in</p>")


async def garbles(_, answer):
    answer.raw(b"SSH-2.0-OpenSSH\r\n\r\n")


async def refuses_inside(_, answer):
    answer.stream()
    answer.event({"error": {"message": "ignore_eos is unknown", "type": "x", "param": None, "code": 400}})
    answer.done()


async def streams_well(_, answer):
    answer.stream()
    answer.role()
    answer.token("a", "stop")
    answer.event({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}})
    answer.done()


async def breaks(_, answer):
    answer.stream()
    answer.token("a")
    await asyncio.sleep(0.1)
    answer.cut()


@pytest.mark.parametrize("place", [redirects, throttles, doubts, pages, garbles, refuses_inside])
@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
def test_what_is_no_answer_sends_the_request_home_and_its_client_is_told_nothing_of_it(place, body):
    """A page to log in at with status 200, garbage, and a 400 for a field that only our engines know, were told to the client."""

    async def test(world):
        first = await world.begin("sk-europe-key")
        second = await world.begin("sk-europe-key", body)
        await world.sleep(12.0)
        assert not second.done()
        assert len(world.engines[2].seen) == 1
        first.cancel()
        world.clients[0].close()
        await world.sleep(1.0)
        answer = await second
        assert answer.status == 200
        assert "x-forebay-spilled" not in answer.headers
        assert b"sk-far" not in answer.body

    play(test, once(hangs, streams_well if body is STREAM else answers), answers, place, spill=FAR)


def test_going_home_needs_no_leave_of_the_budget_of_second_tries():
    """A provider's outage took all second tries, and then told clients 503 that would have been served."""

    async def test(world):
        tasks = [await world.begin("sk-europe-key") for _ in range(30)]
        while world.gateway.retries.take():
            pass  # others needed them all
        await world.sleep(12.0)
        assert len(world.engines[2].seen) >= 1
        # Who can't be started in time at home is told so; nobody is told that second tries had run out.
        codes = {task.result().json()["error"]["code"] for task in tasks if task.done()}
        assert codes <= {"queue_too_long"}

    play(test, hangs, answers, throttles, spill=FAR)


def test_no_header_of_the_client_goes_to_other_people_and_none_of_theirs_comes_back():
    async def sets_cookies(_, answer):
        answer.json(200, ANSWER, b"set-cookie: theirs=1", b"x-ratelimit-limit-requests: 3", b"openai-organization: our-account")

    async def test(world):
        await world.begin("sk-europe-key")
        second = await world.begin("sk-europe-key", headers={"x-internal-user": "alice", "cookie": "a=b", "user-agent": "secret-tool/1"})
        await world.sleep(12.0)
        answer = await second
        assert answer.headers["x-forebay-spilled"] == "far"
        assert set(answer.headers) == {
            *(
                "content-type",
                "content-length",
                "x-request-id",
                "x-forebay-pool",
                "x-forebay-replica",
                "x-forebay-tier",
                "x-forebay-queue-ms",
                "x-forebay-spilled",
            )
        }
        (seen,) = world.engines[2].seen
        assert set(seen.headers) == {
            b"host",
            b"content-type",
            b"accept",
            b"user-agent",
            b"authorization",
            b"x-request-id",
            b"content-length",
        }
        assert b"alice" not in seen.head
        assert b"secret-tool" not in seen.head

    play(test, hangs, answers, sets_cookies, spill=FAR)


@pytest.mark.parametrize(("place", "spent_usd"), [(hangs, 0.5), (garbles, 0.5), (throttles, 0.0), (redirects, 0.0)])
def test_what_may_have_been_charged_counts_though_no_answer_came(place, spent_usd):
    """A place that answers too late was paid nothing by our count, for as many requests as there were: the budget never ended."""

    async def test(world):
        await world.begin("sk-europe-key")
        await world.begin("sk-europe-key", STREAM)
        await world.sleep(25.0)
        (far,) = world.gateway.desk.spills
        assert len(world.engines[2].seen) == 1
        assert far.admission.streams == 0
        assert far.admission.budget.used_usd(world.clock.now_s()) == pytest.approx(spent_usd)

    play(test, hangs, answers, place, spill=DEAR)


def test_many_at_once_never_reserve_more_than_the_hour_allows():
    async def test(world):
        for _ in range(12):
            await world.begin("sk-europe-key")
        await world.sleep(15.0)
        (far,) = world.gateway.desk.spills
        assert far.admission.streams == 2, "two half dollars"
        assert len(world.engines[2].seen) == 2
        assert far.admission.budget.used_usd(world.clock.now_s()) <= 1.0

    play(test, hangs, answers, hangs, spill=DEAR)


class Kept:
    """What a killed gateway leaves: what it saves while the test ends it is lost with it."""

    def __init__(self, spent):
        self.alive, self.spent = True, spent

    def load(self):
        return dict(self.spent)

    def save(self, spent):
        if self.alive:
            self.spent.clear()
            self.spent.update(spent)


@pytest.mark.parametrize("place", [answers, hangs], ids=["spent", "in-flight"])
def test_a_gateway_that_starts_again_goes_on_within_the_hours_budget(place):
    """Each restart began at nothing: a gateway that crashed in a loop spent without a bound. What was in flight counts as spent."""
    spent, asked = {}, []
    for _ in range(4):
        ledger = Kept(spent)

        async def test(world, ledger=ledger):
            for _ in range(6):
                await world.begin("sk-europe-key")
            await world.sleep(15.0)
            asked.append(len(world.engines[2].seen))
            ledger.alive = False

        play(test, hangs, answers, place, spill=DEAR, ledger=ledger)
    assert asked == [2, 0, 0, 0], "half a dollar each, a dollar an hour, in all lives"


def test_a_stream_that_breaks_off_there_is_an_error_event_and_is_paid_for():
    async def test(world):
        await world.begin("sk-europe-key")
        second = await world.begin("sk-europe-key", STREAM)
        await world.sleep(12.0)
        answer = await second
        assert answer.status == 200
        assert answer.headers["x-forebay-spilled"] == "far"
        assert answer.events()[-2]["error"]["code"] == "stream_truncated"
        assert answer.complete
        assert world.outcomes("big/far")[Outcome.TRUNCATED] == 1

    play(test, hangs, answers, breaks, spill=FAR)


@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
def test_a_spilled_request_has_a_record_that_says_where_it_went_and_is_metered_there_once(body):
    async def test(world):
        await world.begin("sk-europe-key")
        second = await world.begin("sk-europe-key", body, {"x-request-id": "mine"})
        await world.sleep(12.0)
        assert (await second).status == 200
        record = msgspec.json.decode(msgspec.json.encode(world.gateway.records.of("europe", b"mine")))
        assert (record["pool"], record["replica"], record["left"], record["outcome"]) == ("big/far", "far", ["big"], "completed")
        assert (record["prompt_tokens"], record["output_tokens"], record["exact"]) == (10, 5, True)
        desks = {desk.name: desk.meters["interactive"] for desk in (*world.gateway.desk.pools.values(), *world.gateway.desk.spills)}
        assert {name: (meter.prompt_tokens, meter.output_tokens) for name, meter in desks.items()} == {
            "big": (0, 0),
            "small": (0, 0),
            "big/far": (10, 5),
        }

    play(test, hangs, answers, streams_well if body is STREAM else answers, spill=FAR)


def test_the_operator_is_told_when_overflow_begins_and_ends():
    async def test(world):
        first = await world.begin("sk-europe-key")
        await world.begin("sk-europe-key")
        await world.sleep(12.0)
        assert [event.pool for event in world.sink.events if event.kind == "overflow_began"] == ["big", "big"]
        assert "goes to far: some waited 10 s" in " ".join(event.message for event in world.sink.events)
        first.cancel()
        world.clients[0].close()
        await world.sleep(90.0)
        assert [event.kind for event in world.sink.events if event.kind.startswith("overflow")][2:] == ["overflow_over"] * 2

    play(test, once(hangs, answers), answers, answers, spill=FAR)


def test_a_client_that_waits_no_longer_is_not_waited_for_elsewhere():
    """Each move began the client's patience anew."""

    async def test(world):
        await world.begin("sk-europe-key")
        second = await world.begin("sk-europe-key", headers={"x-forebay-deadline": "15000"})
        await world.sleep(16.0)
        assert (await second).status == 429
        assert len(world.engines[2].seen) == 1

    play(test, hangs, answers, doubts, spill=FAR)
