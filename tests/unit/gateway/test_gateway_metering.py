"""Who pays for what: by team, model, tier and pool, however a request ended; each counted once, and told until it is taken."""

import asyncio

import msgspec
import pytest
from emulated_fleet import body as streamed_body
from emulated_fleet import fleet

from forebay.domain.shape import Shape, Usage
from forebay.domain.usage import (
    CACHED,
    COUNTED,
    NUMBER_MAX,
    OUTPUT,
    PROMPT,
    QUEUE_MS,
    Entry,
    How,
    Leftover,
    UsageBatch,
    UsageMark,
    UsageRow,
)
from forebay.gateway.meters import Outcome, TierMeter
from forebay.gateway.usage import Past, UsageBook
from forebay.ports import NoJournal
from forebay.spec.types import DEFAULT_TIERS, Model, Pool

CHAT = {"model": "llama", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 50}
DAY_S = 86_400
KEY = ("search", "llama", "interactive", "chat")


async def whole(_, answer):
    usage = {"prompt_tokens": 20, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 16}}
    answer.json(200, {"choices": [{"finish_reason": "stop"}], "usage": usage})


async def slow(seen, answer):
    await asyncio.sleep(2)
    await whole(seen, answer)


async def streams_on(_, answer):
    answer.stream()
    answer.role()
    for _ in range(100):
        answer.token("a")
        await asyncio.sleep(0.1)


async def breaks_off(_, answer):
    answer.stream()
    answer.role()
    answer.token("a")
    answer.token("b")
    await asyncio.sleep(1)
    answer.cut()


async def is_wrong(_, answer):
    answer.json(400, {"error": {"message": "no"}})


def counted(gateway):
    return {key: dict(enumerate(counts)) for key, counts in gateway.usage.shown()}


def only(gateway):
    (counts,) = counted(gateway).values()
    return counts


def demand(counts):
    """Prompt and output tokens of what came, put right by what has ended since."""
    corrected = counts.corrected
    return (
        counts.arrived_prompt_tokens + sum(one.prompt_tokens for one in corrected),
        counts.arrived_output_tokens + sum(one.output_tokens for one in corrected),
    )


# -- how requests end ------------------------------------------------------------------------------------------------------


def test_an_answer_is_counted_as_its_engine_told(world):
    async def test(front):
        await front.ask(CHAT)
        assert list(counted(front.gateway)) == [("anonymous", "llama", "interactive", "chat")]
        counts = only(front.gateway)
        assert [counts[place] for place in (How.COMPLETED, PROMPT, CACHED, OUTPUT, COUNTED, QUEUE_MS)] == [1, 20, 16, 5, 0, 0]

    world(test, whole)


def test_of_a_client_that_leaves_mid_stream_what_was_sent_is_counted(world):
    async def test(front):
        client = await front.client()
        client.send("/v1/chat/completions", {**CHAT, "stream": True})
        await front.sleep(1.05)
        client.close()
        await front.sleep(0.1)
        counts = only(front.gateway)
        assert (counts[How.LEFT], counts[OUTPUT]) == (1, 11)
        assert counts[COUNTED] == counts[PROMPT] + counts[OUTPUT]

    world(test, streams_on)


def test_where_the_engine_tells_as_it_goes_a_client_that_leaves_is_counted_exactly():
    """``continuous_usage_stats``: the engine's own count of prompt and output up to the last event that came."""

    async def test(front):
        whole_one = await front.client()
        await whole_one.ask("/v1/chat/completions", streamed_body(60))
        prompt = only(front.gateway)[PROMPT]
        client = await front.client()
        client.send("/v1/chat/completions", streamed_body(60))
        await asyncio.sleep(0.3)
        client.close()
        await asyncio.sleep(0.1)
        counts = only(front.gateway)
        assert (counts[How.COMPLETED], counts[How.LEFT], counts[COUNTED]) == (1, 1, 0)
        assert counts[PROMPT] == 2 * prompt
        assert 60 < counts[OUTPUT] < 120

    fleet(test, replicas=1)


def test_a_continued_stream_is_counted_once():
    async def test(front):
        await front.ask(streamed_body(60))
        undisturbed = dict(only(front.gateway))
        task = await front.asked(streamed_body(60))
        await front.kill(front.busy)
        await task
        assert front.meter.continued == 1
        assert only(front.gateway) == {place: 2 * count for place, count in undisturbed.items()}

    fleet(test)


def test_a_request_that_was_tried_twice_is_counted_once(world):
    async def fails(_, answer):
        answer.json(500, {"error": "no"})

    async def test(front):
        assert (await front.ask(CHAT)).status == 200
        counts = only(front.gateway)
        assert (counts[How.COMPLETED], counts[How.FAILED], counts[PROMPT]) == (1, 0, 20)

    world(test, fails, whole)


def test_time_in_the_lane_and_what_was_shed_stand_beside_the_tokens(world, one_slot, spec):
    tiers = (msgspec.structs.replace(spec.tiers[0], longest_wait_s=1.0), *spec.tiers[1:])

    async def test(front):
        await asyncio.gather(front.ask(CHAT), front.ask(CHAT), front.ask(CHAT))
        counts = only(front.gateway)
        assert (counts[How.COMPLETED], counts[How.SHED], counts[PROMPT]) == (1, 2, 20)
        assert counts[QUEUE_MS] == pytest.approx(2000, abs=50)

    world(test, slow, capacity=one_slot, spec=msgspec.structs.replace(spec, tiers=tiers))


def test_what_breaks_off_and_what_an_engine_refuses_are_told_apart(world):
    async def test(front):
        await front.ask({**CHAT, "stream": True})
        counts = only(front.gateway)
        assert (counts[How.TRUNCATED], counts[OUTPUT]) == (1, 2)
        front.engines[0].script = is_wrong
        await front.ask(CHAT)
        assert only(front.gateway)[How.REFUSED] == 1

    world(test, breaks_off)


def test_a_client_that_leaves_while_it_waits_has_waited(world, one_slot):
    async def test(front):
        first, second = await front.client(), await front.client()
        first.send("/v1/chat/completions", CHAT)
        second.send("/v1/chat/completions", CHAT)
        await front.sleep(0.5)
        second.close()
        await front.sleep(0.1)
        counts = only(front.gateway)
        assert (counts[How.LEFT], counts[QUEUE_MS]) == (1, 500)
        await first.read()

    world(test, slow, capacity=one_slot)


def test_an_adapter_is_a_model_of_its_own_and_an_alias_is_not(world, spec):
    adapted = msgspec.structs.replace(
        spec, pools=(msgspec.structs.replace(spec.pools[0], adapters=("llama-law",)),), models=(Model("llama", 8192, aliases=("gpt-4o",)),)
    )
    assert isinstance(adapted.pools[0], Pool)

    async def test(front):
        for model in ("llama", "gpt-4o", "llama-law"):
            await front.ask({**CHAT, "model": model})
        models = {key[1]: counts[How.COMPLETED] for key, counts in counted(front.gateway).items()}
        assert models == {"llama": 2, "llama-law": 1}

    world(test, whole, spec=adapted)


def test_the_metrics_page_has_it_by_who_pays(world):
    async def test(front):
        await front.ask(CHAT)
        page = (await front.ask(None, target="/metrics")).body.decode()
        labels = 'model="llama",pool="chat",team="anonymous",tier="interactive"'
        assert f'forebay_usage_tokens_total{{kind="prompt",{labels}}} 20.0' in page
        assert "forebay_usage_unreported_requests 1.0" in page
        assert "forebay_usage_lost_requests_total 0.0" in page

    world(test, whole)


# -- the book --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def book():
    return UsageBook("gw", NoJournal("journal-1"))


def add(book, key=KEY, usage=Usage(10, 2), unix_s=20_000.0 * DAY_S, how=How.COMPLETED):
    book.count(key, how, usage, 0.0, unix_s)


def test_a_batch_is_told_as_it_is_until_it_is_acknowledged(book):
    add(book)
    first = book.outgoing()
    add(book)
    assert book.outgoing() is first
    assert (first.after, first.upto, book.unreported_requests) == (0, 1, 2)
    assert book.acknowledged(UsageMark("journal-1", 1))
    assert (book.outgoing().after, book.outgoing().upto) == (1, 2)
    book.acknowledged(UsageMark("journal-1", 1))  # said twice
    book.acknowledged(UsageMark("journal-1", 2))
    assert (book.outgoing(), book.unreported_requests) == (None, 0)


def test_days_are_kept_apart(book):
    for unix_s in (20_000 * DAY_S - 0.5, 20_000 * DAY_S, 20_000 * DAY_S + 5, 19_999 * DAY_S):
        add(book, unix_s=float(unix_s))
    assert [(row.day, row.counts[How.COMPLETED]) for row in book.outgoing().rows] == [(19_999, 1), (20_000, 2), (19_999, 1)]


def test_what_is_no_number_of_tokens_breaks_nothing(book):
    for usage in (Usage(-5, 3), Usage(10**12, 10**30), Usage(5, 5, cached_tokens=99), Usage(5, -1, -1)):
        add(book, usage=usage)
    counts = book.outgoing().rows[0].counts
    assert counts[PROMPT] == NUMBER_MAX + 10
    assert counts[OUTPUT] == 3 + NUMBER_MAX + 5
    assert counts[CACHED] == 5


def test_batches_without_a_ledger_are_bounded_and_what_is_lost_is_counted(book, monkeypatch):
    monkeypatch.setattr("forebay.gateway.usage.BATCH_ROWS_MAX", 2)
    monkeypatch.setattr("forebay.gateway.usage.SEALED_MAX", 3)
    for number in range(10):
        add(book, (f"team-{number}", *KEY[1:]))
    assert len(book.blocks()) == 4
    assert book.lost_requests == 2


def test_half_of_a_batch_that_a_damaged_ledger_claims_is_not_told_for_ever(book):
    add(book)
    add(book)
    book.outgoing()
    book.acknowledged(UsageMark("journal-1", 1))
    assert (book.outgoing(), book.lost_requests) == (None, 1)


def test_the_mark_of_another_journal_is_none_of_this_one(book):
    add(book)
    assert not book.acknowledged(UsageMark("journal-0", 1))
    assert book.unreported_requests == 1


def test_what_an_earlier_start_left_is_told_from_where_the_ledger_has_it():
    def row(count):
        return UsageRow(20_000, KEY, (count, *[0] * 10))

    blocks = (UsageBatch("gw", "j", 5, 8, (row(3),)), UsageBatch("gw", "j", 8, 10, (row(2),)))
    entries = tuple(Entry(number, 20_000 * DAY_S, KEY, How.COMPLETED, True, 0, 0, 0, 0) for number in (11, 12, 15))
    past = Past(Leftover("gw", "j", blocks, entries))
    sent = past.outgoing()
    assert (sent.after, sent.upto, sent.rows[0].counts[0], past.requests) == (5, 15, 8, 10)
    past.acknowledged(UsageMark("j", 8))
    sent = past.outgoing()
    assert (sent.after, sent.upto, sent.rows[0].counts[0]) == (8, 15, 5)
    past.acknowledged(UsageMark("j", 12))
    sent = past.outgoing()
    assert (sent.after, sent.upto, sent.rows[0].counts[0], past.done) == (12, 15, 1, False)
    past.acknowledged(UsageMark("j", 15))
    assert (past.outgoing(), past.done, past.lost_requests) == (None, True, 2)


def test_a_start_in_which_nothing_ended_leaves_nothing_to_tell():
    past = Past(Leftover("gw", "j", (), ()))
    assert (past.done, past.outgoing(), past.requests) == (True, None, 0)


# -- what came, as the controller is told ------------------------------------------------------------------------------


def test_demand_comes_to_what_the_ledger_has_once_all_has_ended(world):
    async def test(front):
        for _ in range(30):
            await front.ask(CHAT)
        counts = only(front.gateway)
        assert front.counts().arrived_prompt_tokens != counts[PROMPT]
        assert demand(front.counts()) == (counts[PROMPT], counts[OUTPUT])
        assert all(one.start_unix_s % 300 == 0 for one in front.counts().corrected)

    world(test, whole)


def test_demand_is_corrected_where_it_came_and_not_where_it_ended(world):
    async def test(front):
        begun_unix_s = front.clock.wall_s()
        client = await front.client()
        client.send("/v1/chat/completions", CHAT)
        await front.sleep(400)
        (one,) = front.counts().corrected
        assert one.start_unix_s == begun_unix_s // 300 * 300

    async def takes_long(_, answer):
        await asyncio.sleep(350)
        await whole(_, answer)

    world(test, takes_long)


@pytest.mark.parametrize("script", [is_wrong, breaks_off], ids=["refused by its engine", "broken off"])
def test_demand_agrees_with_the_ledger_however_it_ended(world, script):
    async def test(front):
        await front.ask({**CHAT, "stream": script is breaks_off})
        await front.sleep(60)
        counts = only(front.gateway)
        assert demand(front.counts()) == (counts[PROMPT], counts[OUTPUT])

    world(test, script)


def test_demand_of_what_no_engine_got_stays_the_estimate():
    meter = TierMeter("chat", DEFAULT_TIERS[0], 0.1)
    meter.arrive(Shape(100, 20))
    meter.ended(Outcome.SHED, None)
    assert demand(meter.counts()) == (100, 20)


def test_corrections_are_kept_for_an_hour_of_spans_and_no_longer():
    meter = TierMeter("chat", DEFAULT_TIERS[0], 0.1)
    for number in range(20):
        meter.settled(Usage(3, 2), 1, 1, 300.0 * number)
    meter.settled(Usage(3, 2), 1, 1, 0.0)
    assert [one.start_unix_s // 300 for one in meter.counts().corrected] == list(range(8, 20))
