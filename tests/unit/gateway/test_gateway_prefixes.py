"""Conversations over several engines: each stays where its beginning is cached, while engines share what is new."""

import msgspec
import pytest
from emulated_fleet import CAPACITY, CHAT, COMPLETIONS, PROFILE, fleet

from forebay.spec.types import DEFAULT_TIERS, EngineKind, Model, Pool, Spec


def turns(count, who, said="what is asked and answered at length, " * 40):
    """A conversation of ``count`` turns so far."""
    return [{"role": "user", "content": f"{who}/{turn}: {said}"} for turn in range(count)]


def chat(messages, stream=True):
    return {"model": "llama", "messages": messages, "max_tokens": 5, "stream": stream}


def served(world):
    return [engine.stats.prompt_tokens.value for engine in world.engines]


async def where(world, body, target=CHAT):
    """Number of the engine that answers it."""
    before = served(world)
    answer = await world.ask(body, target)
    assert answer.status == 200
    (one,) = [number for number, (was, now) in enumerate(zip(before, served(world), strict=True)) if now > was]
    return one


@pytest.mark.parametrize("stream", [True, False])
def test_each_turn_of_a_conversation_goes_where_the_first_went(stream):
    async def test(world):
        first = {who: await where(world, chat(turns(1, who), stream)) for who in ("ann", "bob", "eve")}
        assert set(first.values()) == {0, 1, 2}, "what is new is shared"
        for count in (2, 3):
            for who in ("eve", "eve", "ann", "bob"):
                assert await where(world, chat(turns(count, who), stream)) == first[who]

    fleet(test, replicas=3)


def test_completions_too():
    async def test(world):
        prompt = "the same long beginning " * 60
        first = await where(world, {"model": "llama", "prompt": prompt, "max_tokens": 5}, COMPLETIONS)
        for more in ("and this", "and that", "and more"):
            assert await where(world, {"model": "llama", "prompt": prompt + more, "max_tokens": 5}, COMPLETIONS) == first

    fleet(test, replicas=2)


def test_what_has_another_salt_is_not_taken_for_cached():
    """Engines keep what each salt has sent apart; wherever in the body it stands."""

    async def test(world):
        said = chat(turns(2, "all"))
        salts = ["ann", "bob", ["eve"]]
        first = [await where(world, {**said, "cache_salt": salt}) for salt in salts]
        assert set(first) == {0, 1, 2}, "what is new is shared"
        for salt, replica in (*zip(salts, first, strict=True), *zip(salts, first, strict=True)):
            assert await where(world, {"cache_salt": salt, **said}) == replica

    fleet(test, replicas=3)


@pytest.mark.parametrize(
    ("target", "key", "prompt"),
    [("/v1/messages", "system", "messages"), ("/v1/messages", "tools", "messages"), ("/v1/responses", "instructions", "input")],
)
def test_what_the_official_clients_send_behind_the_messages_is_what_a_prompt_begins_with(target, key, prompt):
    """Conversations with the same long system prompt share it, whatever is said in them; those with another share nothing."""

    async def test(world):
        def asked(who, what):
            lead = f"You are {who}. " * 150
            said = [{"role": "user", "content": what}]
            return {"model": "llama", prompt: said, "max_tokens": 5, key: [{"name": lead}] if key == "tools" else lead}

        first = {who: await where(world, asked(who, "hello"), target) for who in ("ann", "bob", "eve")}
        assert set(first.values()) == {0, 1, 2}, "what is new is shared"
        for what in ("how are you", "hello"):
            for who in ("eve", "eve", "ann", "bob"):
                assert await where(world, asked(who, what), target) == first[who]

    fleet(test, replicas=3)


def test_where_it_is_switched_off_and_where_there_is_one_replica_nobody_looks():
    async def test(world):
        for _ in range(3):
            await world.ask(chat(turns(2, "ann")))
        assert len(world.gateway.desk.pools["chat"].admission._replicas.prefixes) == 0

    fleet(test, replicas=1)
    off = Pool("chat", "llama", EngineKind("attach"), PROFILE, prefix_routing=False)
    fleet(test, replicas=2, spec=Spec((off,), (Model("llama", 2048),), DEFAULT_TIERS))


def test_of_one_replica_it_is_looked_once_its_memory_is_short():
    """What prompts share is room then; before, nobody pays for looking."""

    async def test(world):
        admission = world.gateway.desk.pools["chat"].admission
        asked = [await world.asked({**chat(turns(2, "ann")), "max_tokens": 100}, wait_s=0.01) for _ in range(4)]
        assert admission.tight
        assert admission.waiting
        assert len(admission._replicas.prefixes) == 0, "they came before"
        asked.append(await world.asked(chat(turns(2, "ann")), wait_s=0.01))
        for task in asked:
            assert (await task).status == 200
        assert len(admission._replicas.prefixes) > 0
        admission.check()

    fleet(test, replicas=1, capacity=msgspec.structs.replace(CAPACITY, kv_tokens=2500))


def test_how_well_it_was_foreseen_is_in_the_metrics():
    async def test(world):
        for _ in range(2):
            await world.ask(chat(turns(2, "ann")))
        pages = await (await world.client()).ask("/metrics", None)
        rows = dict(line.rsplit(" ", 1) for line in pages.body.decode().splitlines() if line.startswith("forebay_prefix"))
        assert float(rows['forebay_prefix_foreseen_tokens_total{pool="chat"}']) > 300
        assert float(rows['forebay_prefix_cached_tokens_total{pool="chat"}']) == 0, "emulated engines don't tell"

    fleet(test, replicas=2)
