"""How long whose requests took, as the metrics page tells it: by team, model, tier and pool, each request once."""

import asyncio
import re

import pytest

from forebay.gateway.latencies import ABSENT_S, KEYS_MAX, OTHER, TOKEN_S, Latencies
from forebay.gateway.latency_families import latency_families

ASK = {"model": "llama", "messages": [{"role": "user", "content": "hi"}]}
STREAM = ASK | {"stream": True}
CHAT = "/v1/chat/completions"


async def streamed(_, answer):
    """First content after 0.3 s, then 10 tokens, one each 40 ms."""
    answer.stream()
    answer.role()
    await asyncio.sleep(0.3)
    for number in range(11):
        answer.token("t", "stop" if number == 10 else None)
        if number < 10:
            await asyncio.sleep(0.04)
    answer.event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 11}})
    answer.done()


async def whole(_, answer):
    await asyncio.sleep(2.0)
    answer.json(200, {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 7}})


async def cut(_, answer):
    answer.stream()
    answer.token("t")
    await asyncio.sleep(0.1)
    answer.cut()


async def wrong(_, answer):
    answer.json(400, {"error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}})


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


async def told(front, **labels):
    """Of each histogram with these labels: how many, and their sum."""
    page = (await front.ask(None, target="/metrics")).body.decode()
    found = {}
    for name, part, all_labels, value in re.findall(r"^forebay_team_(\w+)_seconds_(count|sum)\{(.*?)\} (\S+)$", page, re.MULTILINE):
        if all(f'{label}="{each}"' in all_labels for label, each in labels.items()):
            found.setdefault(name, {})[part] = float(value)
    return {name: (parts["count"], round(parts["sum"], 2)) for name, parts in found.items()}


def test_a_stream_has_all_four_times_under_its_teams_name(world, team_spec):
    async def test(front):
        await front.ask(STREAM, bearer("sk-search"))
        own = await told(front, team="search", tier="interactive", model="llama", pool="chat")
        assert own == {"queue": (1, 0.0), "ttft": (1, 0.3), "output_token": (1, 0.04), "request": (1, 0.7)}
        assert await told(front, team="mail") == {}

    world(test, streamed, spec=team_spec)


def test_a_whole_answer_has_no_first_content_and_no_pace(world, team_spec):
    async def test(front):
        await front.ask(ASK, bearer("sk-search"))
        assert await told(front, team="search") == {"queue": (1, 0.0), "ttft": (0, 0.0), "output_token": (0, 0.0), "request": (1, 2.0)}

    world(test, whole, spec=team_spec)


def test_what_waited_is_counted_with_its_wait_and_what_was_refused_before_it_was_sent_is_not(world, team_spec, one_slot):
    async def test(front):
        clients = [await front.client() for _ in range(3)]
        for client in clients:
            client.send(CHAT, ASK, bearer("sk-search") | ({"x-forebay-deadline": "3500"} if client is clients[2] else {}))
            await front.sleep(0.01)
        answers = [await client.read() for client in clients]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert await told(front, team="search") == {"queue": (2, 1.99), "ttft": (0, 0.0), "output_token": (0, 0.0), "request": (2, 5.99)}

    world(test, whole, spec=team_spec, capacity=one_slot)


@pytest.mark.parametrize(
    ("script", "ask", "seen"),
    [
        (cut, STREAM, {"queue": (1, 0.0), "ttft": (1, 0.0), "output_token": (0, 0.0), "request": (0, 0.0)}),
        (wrong, ASK, {"queue": (1, 0.0), "ttft": (0, 0.0), "output_token": (0, 0.0), "request": (0, 0.0)}),
    ],
    ids=["broken off", "refused by the engine"],
)
def test_an_answer_that_is_not_complete_has_no_end_to_time(world, team_spec, script, ask, seen):
    async def test(front):
        await front.ask(ask, bearer("sk-search"))
        assert await told(front, team="search") == seen

    world(test, script, spec=team_spec)


def test_teams_beyond_the_bound_are_others_and_nothing_is_lost():
    latencies = Latencies()
    for number in range(3 * KEYS_MAX):
        latencies.observe((f"team-{number}", "m", "interactive", "p"), 0.0, 0.2, 0.02, 1.0)
    rows = dict(latencies.rows())
    assert len(rows) == KEYS_MAX + 1
    assert sum(rows[OTHER, "m", "interactive", "p"].total) == 2 * KEYS_MAX
    latencies.observe(("team-0", "m", "interactive", "p"), 0.0, 0.2, 0.02, 1.0)
    assert sum(rows["team-0", "m", "interactive", "p"].total) == 2, "who has a place keeps it"


def test_each_time_falls_into_its_bucket_and_an_absent_one_into_none():
    latencies = Latencies()
    latencies.observe(("t", "m", "i", "p"), ABSENT_S, ABSENT_S, TOKEN_S[2], ABSENT_S)
    latencies.observe(("t", "m", "i", "p"), 0.0, ABSENT_S, 100.0, ABSENT_S)
    queue, ttft, token, total = latency_families(latencies.rows())
    cumulative = {sample.labels["le"]: sample.value for sample in token.samples if "le" in sample.labels}
    assert [cumulative[str(bound)] for bound in TOKEN_S] == [0, 0] + [1] * (len(TOKEN_S) - 2)
    assert cumulative["+Inf"] == 2
    counts = {
        family.name: next(sample.value for sample in family.samples if sample.name.endswith("_count")) for family in (queue, ttft, total)
    }
    assert counts == {"forebay_team_queue_seconds": 1, "forebay_team_ttft_seconds": 0, "forebay_team_request_seconds": 0}
