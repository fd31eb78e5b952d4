"""An engine's address that leads back to the gateway: a request is told so at its second arrival, in place of going round for ever."""

import pytest
from gateway_values import CAPACITY

from forebay.domain.roster import Roster, RosterPool, RosterReplica
from forebay.gateway.heads import HeadFacts

CHAT = {"model": "llama", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}


async def whole(seen, answer):
    answer.json(200, {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})


def attach_itself(front, *engines):
    replicas = [RosterReplica("itself", f"http://127.0.0.1:{front.port}", CAPACITY)]
    replicas += [RosterReplica("other", engine.url, CAPACITY) for engine in engines]
    front.gateway.apply(Roster(1, 2, 10.0, (RosterPool("chat", tuple(replicas)),)))


@pytest.mark.parametrize("stream", [False, True])
def test_a_gateway_that_attaches_itself_holds_one_place_for_a_moment_and_not_all_for_ever(world, stream):
    async def test(front):
        attach_itself(front)
        client = await front.client()
        client.send("/v1/chat/completions", CHAT | {"stream": stream})
        await front.sleep(1.0)
        assert front.gateway.http.turned_away == {(508, "loop_detected"): 1}
        assert front.permits == 0
        answer = await client.read()
        assert answer.status >= 500
        assert any("The engine answered 508." in event.message for event in front.sink.events)

    world(test, whole)


def test_the_other_engines_of_its_pool_serve_what_came_round(world):
    async def test(front):
        attach_itself(front, *front.engines)
        for _ in range(4):
            assert (await front.ask(CHAT)).status == 200
        assert front.counts().completed == 4

    world(test, whole)


def test_what_needs_no_permit_goes_round_no_more_either(world):
    async def test(front):
        attach_itself(front)
        answer = await front.ask({"model": "llama", "prompt": "hello"}, target="/tokenize")
        assert answer.status == 508

    world(test, whole)


def test_a_client_may_say_the_name_of_another_proxy_and_engines_are_told_of_all(world):
    async def test(front):
        assert (await front.ask(CHAT, {"via": "1.1 forebay-elsewhere-1"})).status == 200
        (seen,) = front.engines[0].seen
        own = front.gateway.http.itself
        assert own.startswith(b"forebay-gw-1-")
        assert b"via: 1.1 forebay-elsewhere-1\r\n" in seen.head
        assert b"via: 1.1 %b\r\n" % own in seen.head

    world(test, whole)


@pytest.mark.parametrize(
    ("via", "looped"),
    [(b"1.1 me", True), (b"1.0 fred,1.1 me", True), (b"1.1 me (a, comment)", True), (b"1.1 me-2", False), (b"1.1 other", False)],
)
def test_only_its_own_whole_name_counts(via, looped):
    assert HeadFacts([(b"Via", via)], b"me").looped is looped
    assert HeadFacts([(b"Via", via), (b"via", b"1.1 last")], b"me").looped is looped
    assert not HeadFacts([(b"Via", via)]).looped
