"""`service_tier`: what it means, and what a client is told of the tier that served it."""

import asyncio

import msgspec
import pytest
from gateway_values import SPEC, TEAMS

from forebay.gateway.body import with_tier
from forebay.gateway.identity import Identity, told_tier

CHAT = {"model": "llama", "messages": [{"role": "user", "content": "hi"}]}
URL = "/v1/chat/completions"
ANSWER = {"id": "x", "choices": [{"index": 0, "message": {"content": 'say "service_tier":null'}, "finish_reason": "stop"}], "usage": {}}
ALIASES = {"interactive": ("priority",), "standard": ("flex", "cheap"), "batch": ("overnight",)}
ALIASED = msgspec.structs.replace(
    SPEC, teams=TEAMS, tiers=tuple(msgspec.structs.replace(tier, aliases=ALIASES[tier.name]) for tier in SPEC.tiers)
)


def whole(**fields):
    async def script(_, answer):
        answer.json(200, ANSWER | fields)

    return script


async def streamed(_, answer):
    answer.stream()
    answer.event({"choices": [{"index": 0, "delta": {"content": "t"}, "finish_reason": "stop"}], "service_tier": None})
    answer.done()


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("key", "asked", "tier"),
    [
        ("sk-search", "priority", "interactive"),
        ("sk-search", "flex", "standard"),
        ("sk-search", "cheap", "standard"),
        ("sk-search", "overnight", "batch"),
        ("sk-search", "batch", "batch"),
        ("sk-search", "auto", "interactive"),
        ("sk-mail", "priority", "standard"),
        ("sk-search-bulk", "flex", "batch"),
    ],
)
def test_an_alias_means_its_tier_and_raises_nobody(key, asked, tier):
    identity = Identity(ALIASED)
    caller = identity.caller(f"Bearer {key}".encode())
    assert identity.tier(caller, asked).name == tier


def test_an_unknown_tier_is_refused_with_the_aliases_that_are_allowed():
    identity = Identity(ALIASED)
    said = identity.tier(identity.caller(b"Bearer sk-mail"), "gold").message
    assert "'gold'" in said
    assert "standard, batch, flex, cheap, overnight, auto" in said
    assert "priority" not in said


@pytest.mark.parametrize(
    ("key", "asked", "told"),
    [
        ("sk-search", "flex", "flex"),
        ("sk-search", "batch", "batch"),
        ("sk-search", "priority", "default"),
        ("sk-search", "auto", "default"),
        ("sk-mail", "interactive", "standard"),
    ],
)
def test_a_whole_answer_says_the_tier_that_served_it_where_the_request_named_one(world, team_spec, key, asked, told):
    async def test(front):
        for engine_says in ({}, {"service_tier": None}):
            front.engines[0].script = whole(**engine_says)
            answer = await front.ask({**CHAT, "service_tier": asked}, bearer(key))
            assert answer.json() == {**ANSWER, "service_tier": told}
            assert int(answer.headers["content-length"]) == len(answer.body)

    world(test, whole(), spec=team_spec)


def test_what_an_engine_says_of_its_tier_stays_and_who_named_none_is_told_nothing(world):
    async def test(front):
        assert (await front.ask(CHAT)).json() == ANSWER
        front.engines[0].script = whole(service_tier="scale")
        assert (await front.ask({**CHAT, "service_tier": "flex"})).json()["service_tier"] == "scale"

    world(test, whole())


def test_every_answer_and_refusal_names_its_tier_in_a_header_and_streams_pass_as_they_came(world, one_slot):
    async def test(front):
        assert (await front.ask(CHAT)).headers["x-forebay-tier"] == "interactive"
        front.engines[0].script = streamed
        answer = await front.ask({**CHAT, "stream": True, "service_tier": "standard"})
        assert answer.headers["x-forebay-tier"] == "standard"
        assert answer.events()[0]["service_tier"] is None

        async def slow(_, answer):
            await asyncio.sleep(10)
            answer.json(200, ANSWER)

        front.engines[0].script = slow
        (await front.client()).send(URL, CHAT)
        await front.sleep(0.1)
        refused = await front.ask({**CHAT, "service_tier": "standard"}, {"x-forebay-deadline": "1000"})
        assert (refused.status, refused.headers["x-forebay-tier"]) == (429, "standard")

    world(test, whole(), capacity=one_slot)


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("x-forebay-deadline", "0", 429),
        ("x-forebay-deadline", "-250", 429),
        ("x-forebay-deadline", "-0.5", 429),
        ("x-forebay-deadline", "-1764590358000", 429),
        ("x-forebay-deadline", "soon", 200),
        ("x-stainless-read-timeout", "0", 200),
        ("x-stainless-read-timeout", "-1", 200),
        ("x-stainless-read-timeout", "30", 200),
    ],
)
def test_a_deadline_that_is_over_is_told_at_once_and_a_timeout_of_zero_is_none(world, name, value, status):
    async def test(front):
        answer = await front.ask(CHAT, {name: value})
        assert answer.status == status
        assert len(front.engines[0].seen) == (status == 200)
        assert front.clock.now_s() < 0.1
        if status == 429:
            assert answer.json()["error"]["code"] == "deadline_too_short"
            assert answer.headers["x-should-retry"] == "false"

    world(test, whole())


def test_a_deadline_that_is_over_is_told_of_what_needs_no_permit_too(world):
    async def test(front):
        answer = await front.ask({"model": "llama", "prompt": "x"}, {"x-forebay-deadline": "0"}, target="/tokenize")
        assert (answer.status, answer.json()["error"]["code"]) == (429, "deadline_too_short")
        assert answer.headers["x-should-retry"] == "false"
        assert not front.engines[0].seen

    world(test, whole())


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"{", b'"x"', b'{"service_tier":"x"}', b"\xff"])
def test_what_is_no_answer_that_leaves_it_open_is_left_alone(body):
    assert with_tier(body, "flex") == body


def test_the_bytes_of_all_else_stay():
    body = b'{"a":1.50, "choices" : [ {"text":"\\u00e9 \\"service_tier\\":null"} ],"service_tier": null}'
    edited = with_tier(body, "flex")
    assert b'[ {"text":"\\u00e9 \\"service_tier\\":null"} ]' in edited
    assert b"1.50" in edited
    assert msgspec.json.decode(edited)["service_tier"] == "flex"


def test_a_tier_is_told_in_the_clients_own_words_where_it_got_that():
    standard = next(tier for tier in ALIASED.tiers if tier.name == "standard")
    assert [told_tier(asked, standard) for asked in ("cheap", "flex", "standard", "auto", "priority", "interactive")] == [
        *("cheap", "flex", "standard", "default", "default", "standard")
    ]
