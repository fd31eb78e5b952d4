"""Between lanes: the top goes first, and those below progress all the same."""

from forebay.admission.effects import Dispatch, Effect, Requeue
from forebay.admission.machine import Admission
from forebay.admission.preempting import PREEMPTIONS_MAX
from forebay.admission.pump import COURTEOUS_S
from forebay.domain.roster import Capacity, RosterPool, RosterReplica
from forebay.domain.shape import Shape
from forebay.spec.types import Tier

LONG = 1e9
SHORT = Shape(10, 10)


def pool_of(*tiers: Tier, slots: int = 1, kv_tokens: int = 10**6, prefill_tokens: int = 10**6, replicas: int = 1) -> Admission:
    pool = Admission("chat", tiers, 100_000)
    capacity = Capacity(kv_tokens, slots, prefill_tokens, 0.0, 0.0, 10**6)
    pool.set_roster(RosterPool("chat", tuple(RosterReplica(f"r{n}", f"http://r{n}", capacity) for n in range(replicas))), 0.0)
    return pool


def tier(name: str, rank: int, *, preemptible: bool = False, min_share: float = 0.05) -> Tier:
    return Tier(name, rank, ttft_s=LONG, longest_wait_s=LONG, preemptible=preemptible, min_share=min_share)


def dispatched(effects: list[Effect]) -> list[int]:
    return [effect.ticket for effect in effects if isinstance(effect, Dispatch)]


def shares(pool: Admission, names: list[str], turns: int) -> dict[str, int]:
    tickets = 0
    lane_of = {}

    def send(name: str) -> list[Effect]:
        nonlocal tickets
        tickets += 1
        lane_of[tickets] = name
        return pool.arrive(tickets, name, "t", SHORT, 0.0)

    (running,) = dispatched(send(names[0]))
    for name in names:
        for _ in range(3):
            send(name)
    counts = dict.fromkeys(names, 0)
    for _ in range(turns):
        (running,) = dispatched(pool.finish(running, None, 0.0))
        counts[lane_of[running]] += 1
        send(lane_of[running])
    pool.check()
    return counts


def test_lower_lanes_are_given_their_share_however_much_comes_of_the_top_one() -> None:
    """llm-d #1995: with strict bands the lower ones never ran."""
    pool = pool_of(tier("top", 0), tier("middle", 1, min_share=0.2), tier("low", 2, min_share=0.1))
    counts = shares(pool, ["top", "middle", "low"], 1000)
    assert 165 <= counts["middle"] <= 235
    assert 80 <= counts["low"] <= 120


def test_a_share_of_nothing_is_strict_priority() -> None:
    pool = pool_of(tier("top", 0), tier("low", 1, min_share=0.0))
    assert shares(pool, ["top", "low"], 200) == {"top": 200, "low": 0}


def test_a_share_is_not_banked_while_nothing_waits() -> None:
    pool = pool_of(tier("top", 0), tier("low", 1, min_share=0.5))
    pool.arrive(0, "top", "t", SHORT, 0.0)
    for ticket in range(1, 50):
        pool.arrive(ticket, "top", "t", SHORT, 0.0)
    running = 0
    for _ in range(20):
        (running,) = dispatched(pool.finish(running, None, 0.0))
    for ticket in range(100, 110):
        pool.arrive(ticket, "low", "t", SHORT, 0.0)
    turns = []
    for _ in range(10):
        (running,) = dispatched(pool.finish(running, None, 0.0))
        turns.append(running >= 100)
    assert 4 <= sum(turns) <= 6, "half of them, and not all until it has caught up"


# --- giving a place up ------------------------------------------------------------------------------------------------

TOP, LOW = tier("top", 0), tier("low", 1, preemptible=True)


def test_a_preemptible_request_gives_its_place_to_one_that_fits_nowhere_and_goes_first_afterwards() -> None:
    pool = pool_of(TOP, LOW, slots=2)
    for ticket in (1, 2, 3):
        pool.arrive(ticket, "low", "t", SHORT, float(ticket))
    assert pool.arrive(9, "top", "t", SHORT, 5.0) == [Requeue(2, "r0"), Dispatch(9, "r0", "http://r0")], "the last that was started"
    pool.check()
    assert pool.preempted_total == 1
    assert dispatched(pool.finish(1, None, 6.0)) == [2], "before the third"


def test_what_has_begun_to_answer_keeps_its_place() -> None:
    pool = pool_of(TOP, LOW, slots=2)
    for ticket in (1, 2):
        pool.arrive(ticket, "low", "t", SHORT, 0.0)
    pool.first_token(2, 1.0)
    pool.answered(1)
    assert pool.arrive(9, "top", "t", SHORT, 5.0) == []
    pool.check()


def test_as_few_as_make_room_give_their_place_up_and_none_where_that_is_not_enough() -> None:
    pool = pool_of(TOP, LOW, slots=10, kv_tokens=100)
    for ticket in range(1, 6):
        pool.arrive(ticket, "low", "t", SHORT, float(ticket))
    effects = pool.arrive(9, "top", "t", Shape(20, 20), 9.0)
    assert effects == [Requeue(5, "r0"), Requeue(4, "r0"), Dispatch(9, "r0", "http://r0")]
    assert pool.arrive(10, "top", "t", Shape(80, 15), 9.0) == [], "even all of them would not do"
    pool.check()


def test_outstanding_prefill_of_preemptible_requests_makes_way_too() -> None:
    pool = pool_of(TOP, LOW, slots=10, prefill_tokens=100)
    pool.arrive(1, "low", "t", Shape(90, 10), 0.0)
    assert pool.arrive(9, "top", "t", Shape(50, 10), 1.0) == [Requeue(1, "r0"), Dispatch(9, "r0", "http://r0")]


def test_nobody_gives_its_place_up_for_ever() -> None:
    pool = pool_of(TOP, LOW)
    pool.arrive(0, "low", "t", SHORT, 0.0)
    for turn in range(1, PREEMPTIONS_MAX + 1):
        assert pool.arrive(turn, "top", "t", SHORT, float(turn))[0] == Requeue(0, "r0")
        assert dispatched(pool.finish(turn, None, float(turn))) == [0]
    assert pool.arrive(99, "top", "t", SHORT, 99.0) == []
    pool.check()


def test_preemptible_work_leaves_a_reserve_while_others_come_and_none_when_it_is_alone() -> None:
    pool = pool_of(TOP, LOW, slots=100)
    pool.arrive(0, "top", "t", SHORT, 0.0)
    started = sum(len(pool.arrive(ticket, "low", "t", SHORT, 0.0)) for ticket in range(1, 120))
    assert started == 95
    assert dispatched(pool.arrive(200, "top", "t", SHORT, 1.0)) == [200]
    more = dispatched(pool.finish(0, None, 2.0 + COURTEOUS_S))
    assert len(more) == 4, "alone for a minute: all of it"
    pool.check()


def test_what_a_given_up_place_leaves_over_is_for_those_that_wait() -> None:
    """Two slots were given up and one taken: the other must not stay empty until something ends."""
    pool = pool_of(TOP, LOW, slots=2)
    pool.arrive(1, "low", "t", Shape(10, 10, sequences=2), 0.0)
    pool.arrive(2, "low", "t", Shape(10, 10), 0.0)
    effects = pool.arrive(9, "top", "t", SHORT, 1.0)
    assert effects == [Requeue(1, "r0"), Dispatch(9, "r0", "http://r0"), Dispatch(2, "r0", "http://r0")]


def test_one_that_is_started_and_gives_its_place_up_in_one_call_is_never_sent() -> None:
    """A bug of the worlds: it was sent after it had lost its permit."""
    pool = pool_of(TOP, tier("low", 1, preemptible=True, min_share=0.5), slots=1)
    pool.arrive(0, "top", "t", SHORT, 0.0)
    pool.arrive(1, "top", "t", SHORT, 0.0)
    pool.arrive(2, "low", "t", SHORT, 0.0)
    (running,) = dispatched(pool.finish(0, None, 0.0))
    pool.arrive(3, "top", "t", SHORT, 0.0)
    effects = pool.finish(running, None, 0.0)
    assert effects == [Dispatch(3, "r0", "http://r0")]
    assert pool._tickets[2].preempted == 1
    pool.check()
