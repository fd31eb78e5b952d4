"""What several running prompts begin with takes KV memory once: where the engine says that it does, and never where it doesn't."""

import itertools
import random

import pytest

from forebay.admission.budget import Replica
from forebay.admission.effects import Dispatch, Effect, Refuse, Requeue
from forebay.admission.machine import Admission
from forebay.admission.memory import EXACT_MAX
from forebay.admission.outcomes import Shortage
from forebay.admission.prefixes import Prefix
from forebay.admission.sharing import TOLD_MIN, WHOLE
from forebay.domain.roster import Capacity, RosterPool, RosterReplica
from forebay.domain.shape import Shape, Usage
from forebay.spec.types import Tier

TIERS = (Tier("only", 0, 10.0, 1000.0), Tier("batch", 1, 100.0, 1000.0, preemptible=True))
KV_TOKENS = 8000
SYSTEM = tuple(range(1, 11))
"""What all begin with: 1,400 tokens in blocks of 140."""
SHAPE = Shape(1410, 100)
BLOCK = 140
COMMON = len(SYSTEM) * BLOCK
TICKETS = itertools.count(1)


def pool(kv_tokens: int = KV_TOKENS, sequences: int = 64, believed: int = WHOLE, **changes: float) -> Admission:
    made = Admission("chat", TIERS, 1000)
    use(made, Capacity(kv_tokens, sequences, 10**6, 1e4, 1e3, 50_000, **changes))  # type: ignore[arg-type]
    the(made).believe(believed)
    return made


def use(machine: Admission, capacity: Capacity, port: int = 80, *names: str) -> list[Effect]:
    listed = tuple(RosterReplica(name, f"http://{name}:{port}", capacity) for name in names or ("r0",))
    return machine.set_roster(RosterPool("chat", listed), 0.0)


def the(machine: Admission) -> Replica:
    return machine._replicas.listed[0]


def come(machine: Admission, shape: Shape = SHAPE, chain: tuple[int, ...] = SYSTEM, tier: str = "only", begins: bool = True) -> int | None:
    """The ticket of one that starts (and ``begins`` to answer), or None: it waits no longer."""
    ticket = next(TICKETS)
    effects = machine.arrive(ticket, tier, "t", shape, 0.0, prefix=Prefix(chain, BLOCK) if chain else None)
    machine.check()
    if not any(isinstance(effect, Dispatch) for effect in effects):
        machine.abandon(ticket, 0.0)
        return None
    if begins:
        machine.first_token(ticket, 0.0)
    return ticket


def filled(machine: Admission, shape: Shape = SHAPE, chain: tuple[int, ...] = SYSTEM) -> list[int]:
    """Those that start before one does not."""
    running: list[int] = []
    while (ticket := come(machine, shape, chain)) is not None:
        running.append(ticket)
    return running


def answered(machine: Admission, ticket: int, cached_tokens: int, prompt_tokens: int = SHAPE.prompt_tokens) -> None:
    machine.finish(ticket, Usage(prompt_tokens, 100, cached_tokens), 0.0)
    machine.check()


def test_forty_requests_with_a_long_common_beginning_are_not_four() -> None:
    assert len(filled(pool(believed=0))) == 5, "each counted in full"
    machine = pool()
    running = filled(machine)
    assert len(running) == 60  # 1,400 once, and 110 of each at its end
    assert the(machine).worst_tokens == COMMON + 60 * 110 == KV_TOKENS
    for ticket in running:
        machine.finish(ticket, None, 0.0)
        machine.check()
    assert (the(machine).worst_tokens, the(machine).shared.beside_tokens, len(the(machine).shared._runs)) == (0, 0, 0)


@pytest.mark.parametrize("cached_tokens", [0, COMMON // 4])
def test_an_engine_that_finds_little_of_what_runs_is_counted_in_full(cached_tokens: int) -> None:
    """It tells nothing, has no prefix cache, or another that is not shared by what runs at once."""
    machine = pool(believed=0)
    for _ in range(16):
        running = filled(machine)
        assert len(running) == 5
        for ticket in running:
            answered(machine, ticket, cached_tokens)


def test_it_is_believed_once_enough_requests_found_what_others_held() -> None:
    machine = pool(believed=0)
    keeps = come(machine)
    for count in range(1, TOLD_MIN + 1):
        assert the(machine).shared.believed == 0
        ticket = come(machine)
        assert ticket is not None
        answered(machine, ticket, COMMON)
        assert the(machine).shared.believed == (WHOLE if count == TOLD_MIN else 0)
    assert keeps is not None
    assert len(filled(machine)) == 59


def test_what_nobody_else_held_says_nothing() -> None:
    """That the prompt before it is still cached when it has ended does not say that two at once share it."""
    machine = pool(believed=0)
    for _ in range(30):
        ticket = come(machine)
        assert ticket is not None
        answered(machine, ticket, COMMON)
    assert the(machine).shared.believed == 0


def test_one_whose_cache_is_switched_off_is_doubted_at_once_by_all_that_runs() -> None:
    machine = pool()
    running = filled(machine)
    assert len(running) == 60
    ended = 0
    while the(machine).shared.believed:
        answered(machine, running.pop(), 0)
        ended += 1
    assert ended <= TOLD_MIN
    assert the(machine).held_tokens == sum(ticket.prompt for ticket in the(machine).permits.values()), "all are counted in full again"
    assert come(machine) is None


def test_an_engine_that_finds_nine_tenths_of_each_is_believed_in_those() -> None:
    """Common text has fewer tokens for its bytes than the rest: each holds a little more of its own than it seems."""
    machine = pool(kv_tokens=12_000)
    assert come(machine) is not None
    for _ in range(60):
        ticket = come(machine)
        assert ticket is not None
        answered(machine, ticket, COMMON * 9 // 10)
    believed = the(machine).shared.believed
    assert believed == WHOLE * 9 // 10
    running = filled(machine)
    copies = (12_000 - COMMON - 110 * (1 + len(running))) / COMMON / len(running)
    assert copies == pytest.approx(1 - believed / WHOLE, abs=0.01), "each more takes the rest of the beginning anew"


def test_one_in_five_that_finds_nothing_is_a_clump_to_come() -> None:
    machine = pool(kv_tokens=30_000)
    assert come(machine) is not None
    for turn in range(60):
        ticket = come(machine)
        assert ticket is not None
        answered(machine, ticket, COMMON if turn % 5 else 0)
    assert the(machine).shared.believed < WHOLE / 3


def test_estimates_that_are_off_are_not_taken_for_an_engine_that_does_not_share() -> None:
    """The prompt was taken for 1,410 tokens and had 1,000: of these 993 were common."""
    machine = pool(believed=0)
    come(machine)
    for _ in range(TOLD_MIN):
        ticket = come(machine)
        assert ticket is not None
        answered(machine, ticket, 993, prompt_tokens=1000)
    assert the(machine).shared.believed == WHOLE


@pytest.mark.parametrize("usage", [None, Usage(1410, 10, 0, exact=False)])
def test_answers_without_an_engines_usage_say_nothing(usage: Usage | None) -> None:
    machine = pool()
    come(machine)
    for _ in range(100):
        ticket = come(machine)
        assert ticket is not None
        machine.finish(ticket, usage, 0.0)
    assert the(machine).shared.believed == WHOLE


def test_another_process_at_the_same_name_is_not_believed_what_the_first_told() -> None:
    machine = pool()
    capacity = the(machine).capacity
    filled(machine)
    use(machine, capacity)
    assert the(machine).shared.believed == WHOLE, "the same roster again changes nothing"
    use(machine, capacity, 81)
    machine.check()
    assert the(machine).shared.believed == 0
    the(machine).believe(WHOLE)
    use(machine, capacity, 81, "r1")
    use(machine, capacity, 81, "r0", "r1")
    machine.check()
    assert the(machine).shared.believed == 0, "it was away"


def test_of_what_one_alone_holds_the_memory_goes_with_it() -> None:
    """Beginnings that nobody shares are no less free than before when their permits end: the peak is the same."""
    different = [tuple(range(1000 * n, 1000 * n + 10)) for n in range(1, 60)]
    counted = []
    for believed in (0, WHOLE):
        machine = pool(kv_tokens=20_000, believed=believed)
        chance = random.Random(1)
        shapes = [Shape(chance.randint(1401, 1500), chance.choice((20, 3000))) for _ in different]
        counted.append([come(machine, shape, chain) is not None for shape, chain in zip(shapes, different, strict=True)])
    assert counted[0] == counted[1]
    assert 5 < sum(counted[0]) < len(different)


@pytest.mark.parametrize("running", [3, 2 * EXACT_MAX])
def test_what_is_shared_is_not_freed_by_the_first_that_ends(running: int) -> None:
    """The peak of a long one beside short ones: its beginning stays when they have gone."""
    own = 10 * running
    machine = pool(kv_tokens=COMMON + 10 + 4000 + own // 2)
    for _ in range(running):
        assert come(machine, Shape(COMMON + 10, 30)) is not None
    assert come(machine, Shape(COMMON + 10, 4001 + own // 2)) is None
    assert come(machine, Shape(COMMON + 10, 3900)) is not None


def test_the_second_turn_shares_what_it_goes_on_from_and_the_third_only_where_they_agree() -> None:
    machine = pool(kv_tokens=10**6)
    replica = the(machine)
    for chain, held in (
        (SYSTEM, 1500),
        ((*SYSTEM, 20, 21), 1500 + 2800 - COMMON),
        ((*SYSTEM[:4], 30, 31), 1500 + 2800 - COMMON + 1000 - 4 * BLOCK),
        ((*SYSTEM[:4], 30, 32), 1500 + 2800 - COMMON + 2000 - 9 * BLOCK),
    ):
        prompt = {10: 1500, 12: 2800, 6: 1000}[len(chain)]
        assert come(machine, Shape(prompt, 10), chain) is not None
        assert replica.held_tokens == held
    for ticket in list(replica.permits):
        machine.finish(ticket, None, 0.0)
        machine.check()
    assert replica.held_tokens == replica.spared_tokens == 0


def test_whatever_comes_and_goes_in_whatever_order_the_sums_are_those_of_who_runs() -> None:
    chance = random.Random(3)
    machine = pool(kv_tokens=10**6, sequences=1000)
    replica = the(machine)
    running: list[int] = []
    for _ in range(150):
        if chance.random() < 0.1:
            replica.believe(chance.choice((0, 9, 15, WHOLE)))
        if running and chance.random() < 0.45:
            machine.finish(running.pop(chance.randrange(len(running))), None, 0.0)
        else:
            depth, branch = chance.randint(0, 12), chance.randint(1, 12)
            chain = tuple(n if n <= branch else 100 * branch + n for n in range(1, depth + 1))
            ticket = next(TICKETS)
            prefix = Prefix(chain, chance.randint(90, 160)) if chain else None
            machine.arrive(ticket, "only", "t", Shape(chance.randint(1, 2500), 50), 0.0, prefix=prefix)
            running.append(ticket)
        machine.check()


def test_asking_changes_nothing() -> None:
    machine = pool(kv_tokens=4000)
    filled(machine)
    replica = the(machine)

    def state() -> object:
        beside = {ticket.id: (ticket.beside, ticket.met) for ticket in replica.permits.values()}
        return replica.held_tokens, replica.worst_tokens, replica.spared_tokens, replica.shared.beside_tokens, beside

    before = state()
    waiting = next(TICKETS)
    assert machine.arrive(waiting, "only", "t", SHAPE, 0.0, prefix=Prefix(SYSTEM[:5], BLOCK)) == []
    entry = machine._tickets[waiting]
    assert replica.short_of(entry) is Shortage.KV
    replica.fits_without(entry, list(replica.permits.values())[:3])
    assert state() == before
    assert (entry.beside, entry.met) == (0, 0)


def test_why_the_others_were_not_chosen_is_asked_of_one_that_runs_and_it_keeps_its_part() -> None:
    machine = Admission("chat", TIERS, 1000)
    use(machine, Capacity(KV_TOKENS, 64, 10**6, 1e4, 1e3, 50_000), 80, "r0", "r1")
    for replica in machine._replicas.listed:
        replica.believe(WHOLE)
    for _ in range(12):
        ticket = come(machine)
        assert ticket is not None
        assert len(machine.weighed(ticket).candidates) == 2
        machine.check()


def test_what_only_those_hold_that_give_their_place_up_is_room_for_another() -> None:
    """Two of batch share 5,000 of 8,000 tokens: what is more important needs 6,000, and gets it."""
    machine = pool()
    chain = tuple(range(1, 36))  # 4,900 tokens
    batch = [come(machine, Shape(5000, 50), chain, "batch", begins=False) for _ in range(2)]
    assert the(machine).held_tokens == 4900 + 2 * 100
    ticket = next(TICKETS)
    effects = machine.arrive(ticket, "only", "t", Shape(6000, 100), 0.0, prefix=Prefix((500, 501), BLOCK))
    assert [effect.ticket for effect in effects if isinstance(effect, Requeue)] != []
    assert {effect.ticket for effect in effects if isinstance(effect, Requeue)} == set(batch)
    machine.check()


def test_what_others_hold_too_is_no_room_when_one_of_them_gives_its_place_up() -> None:
    """Its beginning stays for the one that can't be moved: 100 tokens of its own are all that would be free."""
    machine = pool()
    chain = tuple(range(1, 36))
    assert come(machine, Shape(5000, 50), chain, "only") is not None
    batch = come(machine, Shape(5000, 50), chain, "batch", begins=False)
    assert batch is not None
    assert come(machine, Shape(3500, 100), (500, 501)) is None, "5,000 + 3,600 are more than there are"
    assert batch in the(machine).permits
    assert come(machine, Shape(2850, 100), (500, 501)) is not None
    assert batch not in the(machine).permits
    machine.check()


def test_steps_take_as_long_as_what_each_reads_however_few_hold_it() -> None:
    """Attention reads a shared beginning for every sequence: the promise of the next token is kept by what is read."""
    alone = pool(10**6, believed=0, itl_s=0.05, step_per_kv_token_s=1e-6)
    shared = pool(10**6, believed=WHOLE, itl_s=0.05, step_per_kv_token_s=1e-6)
    assert len(filled(alone)) == len(filled(shared)) == 35


def test_the_controller_is_told_what_is_held() -> None:
    machine = pool()
    running = filled(machine)
    (load,) = machine.load(0.0)[1]
    assert load.kv_tokens == COMMON + 10 * len(running)
    assert load.kv_tokens_most is not None
    assert load.kv_tokens_most < KV_TOKENS, "an engine that held each in full would be seen to hold more than was booked"
    assert load.kv_tokens_least is not None
    assert load.kv_tokens_least <= COMMON + 10 * len(running)


def test_requests_without_a_chain_are_counted_as_ever() -> None:
    for believed in (0, WHOLE):
        machine = pool(believed=believed)
        assert len(filled(machine, chain=())) == 5
        assert the(machine).spared_tokens == 0


def test_nobody_is_refused_for_what_it_shares() -> None:
    machine = pool(kv_tokens=COMMON + 200)
    assert come(machine) is not None
    effects = machine.arrive(next(TICKETS), "only", "t", SHAPE, 0.0, prefix=Prefix(SYSTEM, BLOCK))
    assert not any(isinstance(effect, Refuse) for effect in effects)
