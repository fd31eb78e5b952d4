"""Where a prompt that begins as one before it goes: to that one's replica, but never much above the others' load."""

import random

import pytest

from forebay.admission.budget import LAG_S
from forebay.admission.effects import Dispatch, Effect
from forebay.admission.machine import Admission
from forebay.admission.prefixes import BLOCK_BYTES, Prefix, prefix_of
from forebay.admission.replicas import LOAD_BOUND
from forebay.domain.roster import Capacity, RosterPool, RosterReplica
from forebay.domain.shape import Shape, Usage
from forebay.spec.types import Tier

TIERS = (Tier("only", 0, 10.0, 100.0), Tier("batch", 1, 100.0, 1000.0, preemptible=True))
CAPACITY = Capacity(100_000, 64, 2000, 1000.0, 1000.0, 50_000)
FIRST = Prefix((1, 2, 3, 4), 100)
"""400 tokens in blocks."""
FIRST_SHAPE = Shape(450, 50)


def pool(replicas: int = 3, capacity: Capacity = CAPACITY) -> Admission:
    made = Admission("chat", TIERS, 1000)
    use(made, [f"r{number}" for number in range(replicas)], capacity)
    return made


def use(machine: Admission, names: list[str], capacity: Capacity = CAPACITY, port: int = 80) -> list[Effect]:
    listed = tuple(RosterReplica(name, f"http://{name}:{port}", capacity) for name in names)
    return machine.set_roster(RosterPool("chat", listed), 0.0)


def where(effects: list[Effect]) -> str:
    (effect,) = effects
    assert isinstance(effect, Dispatch)
    return effect.replica_id


def served(machine: Admission, ticket: int, shape: Shape, prefix: Prefix | None) -> str:
    """One that comes, is answered and goes; returns its replica."""
    replica = where(machine.arrive(ticket, "only", "t", shape, 0.0, prefix=prefix))
    machine.first_token(ticket, 0.0)
    machine.finish(ticket, Usage(shape.prompt_tokens, 5), 0.0)
    machine.check()
    return replica


@pytest.mark.parametrize("others", range(4))
def test_the_second_turn_of_a_conversation_goes_to_the_replica_of_the_first(others: int) -> None:
    machine = pool()
    first = served(machine, 0, FIRST_SHAPE, FIRST)
    for ticket in range(1, 1 + others):
        served(machine, ticket, FIRST_SHAPE, Prefix((10 * ticket,), 100))
    assert served(machine, 100, Shape(850, 50), Prefix((1, 2, 3, 4, 5, 6, 7, 8), 100)) == first
    assert machine._replicas.prefixes.depth((1, 2, 3, 4, 5, 6, 7, 8), first) == 8


def test_without_what_may_be_cached_equal_replicas_share() -> None:
    machine = pool()
    assert [served(machine, ticket, FIRST_SHAPE, None) for ticket in range(3)] == ["r0", "r1", "r2"]
    assert len(machine._replicas.prefixes) == 0, "nobody looks, and nothing is kept"


def test_only_what_is_not_foreseen_cached_takes_from_the_prefill_budget_and_is_charged() -> None:
    machine = pool(2)
    first = served(machine, 0, Shape(1900, 50), Prefix(tuple(range(1, 19)), 100))
    given = machine.teams()[0].given_tokens
    for ticket in range(1, 4):
        assert where(machine.arrive(ticket, "only", "t", Shape(1900, 50), 0.0, prefix=Prefix(tuple(range(1, 19)), 100))) == first
    replica = next(one for one in machine._replicas.listed if one.id == first)
    assert replica.prefill_tokens == 3 * 100
    assert machine.teams()[0].given_tokens == given + 3 * 100
    machine.check()


def test_one_whose_beginning_is_cached_fits_where_there_is_no_prefill_for_the_whole_of_it() -> None:
    machine = pool(1)
    machine.arrive(0, "only", "t", Shape(1500, 50), 0.0, prefix=FIRST)
    assert machine.arrive(1, "only", "t", Shape(600, 50), 0.0, prefix=Prefix((9,), 10)) == []
    machine.abandon(1, 0.0)
    assert where(machine.arrive(2, "only", "t", Shape(600, 50), 0.0, prefix=FIRST)) == "r0", "200 of its 600 are not cached"
    machine.check()


def test_what_comes_back_from_a_replica_has_its_whole_prompt_before_it() -> None:
    machine = pool(2)
    first = served(machine, 0, FIRST_SHAPE, FIRST)
    assert where(machine.arrive(1, "only", "t", FIRST_SHAPE, 0.0, prefix=FIRST)) == first
    entry = machine._tickets[1]
    assert (entry.uncached, entry.spared, entry.outstanding) == (50, 400, 50)
    other = where(machine.retry(1, 0.0, more_prompt_tokens=7))
    assert other != first
    assert (entry.uncached, entry.spared, entry.outstanding) == (457, 0, 457)
    machine.check()


def test_a_preempted_one_has_its_whole_prompt_before_it() -> None:
    machine = pool(1, Capacity(1000, 4, 2000, 1000.0, 1000.0, 50_000))
    served(machine, 0, FIRST_SHAPE, FIRST)
    assert where(machine.arrive(1, "batch", "t", FIRST_SHAPE, 100.0, prefix=FIRST)) == "r0"
    entry = machine._tickets[1]
    assert entry.spared == 400
    assert len(machine.arrive(2, "only", "t", Shape(800, 100), 100.0)) == 2
    assert (entry.uncached, entry.spared) == (450, 0)
    machine.check()


def test_what_left_before_it_was_prefilled_is_not_foreseen_to_be_cached() -> None:
    """Batch that was taken back before it began went to the same replica again as if its prompt were short, and others right behind it."""
    machine = pool(1)
    served(machine, 0, FIRST_SHAPE, None)  # others than batch come
    for leave in (lambda: machine.abandon(1, 10.0), lambda: machine.retry(1, 10.0)):
        assert where(machine.arrive(1, "batch", "t", FIRST_SHAPE, 10.0, prefix=FIRST)) == "r0"
        leave()
        assert machine._replicas.prefixes.depth(FIRST.chain, "r0") == 0
    assert where(machine.arrive(2, "batch", "t", FIRST_SHAPE, 10.0, prefix=FIRST)) == "r0"
    entry = machine._tickets[2]
    machine._replicas.listed[0].lag_s = LAG_S
    machine.arrive(3, "only", "t", FIRST_SHAPE, 10.001)
    assert entry.preempted == 1
    machine.first_token(3, 10.2)
    assert entry.replica is not None
    assert (entry.spared, entry.outstanding) == (0, 450), "all of its prompt is in the way there"
    machine.first_token(2, 10.9)
    machine.check()
    machine.abandon(2, 10.9)
    assert machine._replicas.prefixes.depth(FIRST.chain, "r0") == 4, "it was prefilled"


def test_a_hot_beginning_loads_no_replica_beyond_the_bound() -> None:
    """Everybody comes with it, and nobody goes: whoever had it first is filled no faster than the others but for the bound."""
    machine = pool(4)
    chance = random.Random(1)
    own = 10_000
    replicas = machine._replicas.listed
    counts = []
    for ticket in range(200):
        own += 1
        shape = Shape(chance.randint(420, 900), chance.randint(10, 100))
        effects = machine.arrive(ticket, "only", "t", shape, 0.0, prefix=Prefix((1, 2, 3, 4, own), 100))
        where(effects)
        machine.first_token(ticket, 0.0)
        machine._replicas.by_load()
        standing = [replica.standing for replica in replicas]
        assert max(standing) - min(standing) <= LOAD_BOUND + 1 / CAPACITY.sequences + 1e-9
        counts.append(max(standing) - min(standing))
    assert max(counts) > LOAD_BOUND / 2, "the beginning was preferred at all"


def test_a_hot_beginning_does_not_queue_up_on_one_replica_while_others_would_be_sooner() -> None:
    """Prefill that is outstanding there counts against what is saved: with 5000 tokens ahead of it, 400 saved are nothing."""
    machine = pool(2, Capacity(100_000, 64, 20_000, 1000.0, 1000.0, 50_000))
    first = served(machine, 0, FIRST_SHAPE, FIRST)
    machine._replicas.by_load()
    busy = next(one for one in machine._replicas.listed if one.id == first)
    other = next(one for one in machine._replicas.listed if one.id != first)
    while where(machine.arrive(ticket := machine.arrived_total, "only", "t", Shape(5000, 50), 0.0)) != first:
        machine.first_token(ticket, 0.0)
    assert busy.prefill_tokens == 5000
    assert where(machine.arrive(100, "only", "t", FIRST_SHAPE, 0.0, prefix=FIRST)) == other.id


def test_a_replica_that_left_is_forgotten() -> None:
    machine = pool(2)
    first = served(machine, 0, FIRST_SHAPE, FIRST)
    other = "r1" if first == "r0" else "r0"
    use(machine, [other])
    assert len(machine._replicas.prefixes) == 0
    use(machine, ["r0", "r1"])
    machine.arrive(1, "only", "t", FIRST_SHAPE, 0.0, prefix=FIRST)
    assert machine._tickets[1].spared == 0, "what came back comes with an empty cache"


def test_one_that_left_with_permits_is_forgotten_too() -> None:
    machine = pool(2)
    where(machine.arrive(0, "only", "t", FIRST_SHAPE, 0.0, prefix=FIRST))
    use(machine, ["r1"])
    assert where(machine.arrive(1, "only", "t", FIRST_SHAPE, 0.0, prefix=FIRST)) == "r1"
    assert machine._tickets[1].spared == 0
    machine.check()


def test_another_process_under_the_same_name_has_nothing_cached() -> None:
    machine = pool(1)
    served(machine, 0, FIRST_SHAPE, FIRST)
    use(machine, ["r0"])
    machine.arrive(1, "only", "t", FIRST_SHAPE, 0.0, prefix=FIRST)
    assert machine._tickets[1].spared == 400, "the same roster again changes nothing"
    use(machine, ["r0"], port=81)
    machine.arrive(2, "only", "t", FIRST_SHAPE, 0.0, prefix=FIRST)
    assert machine._tickets[2].spared == 0


def test_a_team_is_charged_what_the_engine_told_and_what_was_foreseen_where_none_ever_tells() -> None:
    machine = pool(1)
    served(machine, 0, FIRST_SHAPE, FIRST)
    account = machine._lanes[0].order.accounts["t"]
    for ticket, usage, prefilled in (
        (1, Usage(460, 5), 60),
        (2, Usage(460, 5, cached_tokens=256), 204),
        (3, Usage(460, 5), 460),
        (4, Usage(460, 5, exact=False), 50),
    ):
        given = account.given_tokens
        machine.arrive(ticket, "only", "t", FIRST_SHAPE, 0.0, prefix=FIRST)
        machine.finish(ticket, usage, 0.0)
        assert account.given_tokens - given == prefilled + 2 * 5
    assert (machine.cached.foreseen_tokens, machine.cached.cached_tokens) == (1200, 256)


def test_at_least_one_token_of_a_prompt_is_prefilled() -> None:
    assert FIRST.cached_tokens(4, 350) == 349
    assert FIRST.cached_tokens(4, 0) == 0


def test_a_block_takes_its_share_of_the_prompt_and_adapters_share_no_cache_nor_do_salts() -> None:
    body = b'{"model":"m","messages":"' + b"x" * 3 * BLOCK_BYTES + b'"}'
    prefix = prefix_of(body, 8000, 2000, "m")
    assert prefix is not None
    assert (len(prefix.chain), prefix.block_tokens) == (3, BLOCK_BYTES // 4)
    other = prefix_of(body, 8000, 2000, "m-lora")
    assert other is not None
    assert set(other.chain).isdisjoint(prefix.chain)
    salted = prefix_of(body, 8000, 2000, "m", "mine")
    assert salted is not None
    assert set(salted.chain).isdisjoint(prefix.chain)
    assert salted == prefix_of(body, 8000, 2000, "m", "mine")
    assert prefix_of(body[:300], 300, 75, "m") is None
