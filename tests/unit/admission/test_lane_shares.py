"""Between lanes: the top goes first, and those below progress all the same."""

import math

from forebay.admission.effects import Dispatch, Effect, Requeue
from forebay.admission.machine import Admission
from forebay.admission.preempting import PREEMPTIONS_MAX
from forebay.admission.pump import COURTEOUS_S
from forebay.admission.waiting import AHEAD_STARTS
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


def test_a_lane_that_is_given_more_than_its_share_is_owed_nothing() -> None:
    """Batch that had ten times its share all the same was owed a twentieth of what others got, and waited for no moment with that."""
    pool = pool_of(tier("top", 0), tier("low", 1, min_share=0.2))
    for ticket in range(60):
        pool.arrive(ticket, "low", "t", SHORT, 0.0)
    low, running = pool._lanes[1], 0
    for turn in range(60):
        if turn % 2:
            pool.arrive(100 + turn, "top", "t", SHORT, 0.0)
        (running,) = dispatched(pool.finish(running, None, 0.0))
        assert (running >= 100) == bool(turn % 2), "each has its turn"
        assert -AHEAD_STARTS * SHORT.total_tokens <= low.owed_tokens <= 0


def test_one_that_was_ahead_of_its_share_is_given_it_again_after_a_few_starts_of_others() -> None:
    pool = pool_of(tier("top", 0), tier("low", 1, min_share=0.2))
    for ticket in range(60):
        pool.arrive(ticket, "low", "t", SHORT, 0.0)
    for ticket in range(40):
        pool.finish(ticket, None, 0.0)
    for ticket in range(100, 200):
        pool.arrive(ticket, "top", "t", SHORT, 0.0)
    running, tops = 40, 0
    while running < 100 or not tops:
        (running,) = dispatched(pool.finish(running, None, 0.0))
        if running >= 100:
            tops += 1
        elif tops:
            break
    assert tops <= math.ceil(AHEAD_STARTS / pool._lanes[1].gain) + 1


def test_a_place_that_was_given_up_does_not_count_towards_the_share() -> None:
    pool = pool_of(tier("top", 0), tier("low", 1, preemptible=True, min_share=0.2), slots=2)
    for ticket in range(6):
        pool.arrive(ticket, "low", "t", SHORT, 0.0)
    pool.finish(0, None, 0.0)  # 2 starts, and is the lane's first start while others wait
    low = pool._lanes[1]
    assert low.owed_tokens == -SHORT.total_tokens
    (back,) = [effect for effect in pool.arrive(100, "top", "t", SHORT, 0.0) if isinstance(effect, Requeue)]
    assert back.ticket == 2
    assert low.owed_tokens == low.gain * SHORT.total_tokens, "only what the other was given"


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
    assert started == 93
    assert dispatched(pool.arrive(200, "top", "t", SHORT, 1.0)) == [200]
    more = dispatched(pool.finish(0, None, 2.0 + COURTEOUS_S))
    assert len(more) == 6, "alone for a minute: all of it"
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
    pool = pool_of(TOP, LOW, slots=10, kv_tokens=99)
    pool.arrive(0, "top", "t", Shape(10, 40), 0.0)
    assert pool.arrive(1, "top", "t", Shape(10, 45), 0.0) == []
    pool.emitted(0, 20)  # now both would fit, which is found out once somebody looks at who could go
    effects = pool.arrive(2, "low", "t", Shape(5, 30), 0.0)
    assert effects == [Dispatch(1, "r0", "http://r0")], "the second let the third past it, and took its place at once"
    assert pool._tickets[2].preempted == 1
    pool.check()


def test_what_was_started_on_its_lanes_share_keeps_its_place() -> None:
    """Else each would be started four times for one that ends, and the share be a quarter of what is configured."""
    pool = pool_of(TOP, tier("low", 1, preemptible=True, min_share=0.25), slots=2)
    given = {"top": 0, "low": 0}
    running = dispatched(pool.arrive(0, "top", "t", SHORT, 0.0) + pool.arrive(1, "top", "t", SHORT, 0.0))
    for ticket in range(2, 600):
        pool.arrive(ticket, "low" if ticket % 2 else "top", "t", SHORT, 0.0)
    while running and sum(given.values()) < 400:
        ticket = running.pop(0)
        given["low" if ticket % 2 and ticket > 1 else "top"] += 1
        for effect in pool.finish(ticket, None, 0.0):
            assert isinstance(effect, Dispatch)
            running.append(effect.ticket)
    assert 95 <= given["low"] <= 105
    assert pool.preempted_total == 0
    pool.check()


# --- answers that have begun ------------------------------------------------------------------------------------------


def streams(resumable: dict[int, int | None], slots: int = 2, prefill_tokens_per_s: float = 100.0) -> Admission:
    """Of these tickets it is known how many tokens more of their answers would be prompt to whoever goes on with them."""

    def more_tokens(ticket: int) -> int | None:
        return resumable.get(ticket, None if pool._tickets[ticket].answered else 0)

    pool = Admission("chat", (TOP, LOW), 100_000, resumable=more_tokens)
    capacity = Capacity(10**6, slots, 10**6, prefill_tokens_per_s, 0.0, 10**6)
    pool.set_roster(RosterPool("chat", (RosterReplica("r0", "http://r0", capacity),)), 0.0)
    return pool


def begun(pool: Admission, ticket: int, now_s: float, shape: Shape = Shape(10, 100), tokens: int = 20) -> None:
    pool.arrive(ticket, "low", "t", shape, now_s)
    pool.first_token(ticket, now_s)
    pool.emitted(ticket, tokens)


def test_an_answer_that_has_begun_gives_its_place_up_where_it_can_be_gone_on_with() -> None:
    pool = streams({1: 21})
    for ticket in (1, 2):
        begun(pool, ticket, 0.0)
    assert pool.arrive(9, "top", "t", SHORT, 5.0) == [Requeue(1, "r0", 21), Dispatch(9, "r0", "http://r0")]
    pool.check()
    assert dispatched(pool.finish(9, None, 6.0)) == [1]
    replica = pool._replicas.listed[0]
    assert replica.prefill_tokens == 31, "its prompt and what is out of its answer are prefilled again"
    assert (pool._tickets[1].output, pool._tickets[1].total) == (79, 110)
    pool.check()


def test_one_with_which_fewer_seconds_are_lost_goes_first() -> None:
    """Prefilled again is 30 tokens at 100 a second; anew starts what began to run before."""
    for ran_s, victim in ((0.2, 2), (0.4, 1)):
        pool = streams({1: 20})
        begun(pool, 1, 0.0)
        pool.arrive(2, "low", "t", SHORT, 10.0 - ran_s)
        assert pool.arrive(9, "top", "t", SHORT, 10.0)[0].ticket == victim


def test_an_answer_gives_its_place_up_three_times_and_keeps_what_it_has() -> None:
    resumable: dict[int, int | None] = {1: 20}
    pool = streams(resumable, slots=1)
    begun(pool, 1, 0.0)
    for turn in range(PREEMPTIONS_MAX):
        assert pool.arrive(10 + turn, "top", "t", SHORT, float(turn))[0] == Requeue(1, "r0", 20)
        assert dispatched(pool.finish(10 + turn, None, float(turn))) == [1]
        assert pool._tickets[1].prompt == 30 + 20 * turn
        pool.first_token(1, float(turn))
        pool.emitted(1, 20)
    assert pool.arrive(99, "top", "t", SHORT, 99.0) == []
    pool.check()


def test_a_whole_answer_gives_its_place_up_however_much_of_it_the_engine_has() -> None:
    pool = streams({}, slots=1)
    pool.arrive(1, "low", "t", SHORT, 0.0, whole=True)
    assert pool.arrive(9, "top", "t", SHORT, 1000.0)[0] == Requeue(1, "r0")


def test_an_answer_that_has_ended_keeps_its_place_though_nothing_of_it_is_with_its_client() -> None:
    """It would be made a second time, and its place is free in a moment."""
    resumable: dict[int, int | None] = {1: None}
    pool = streams(resumable)
    for ticket in (2, 1):
        pool.arrive(ticket, "low", "t", SHORT, float(-ticket), whole=True)
    assert pool.arrive(8, "top", "t", SHORT, 1000.0)[0] == Requeue(2, "r0"), "the first started, since the last has ended"
    assert pool.arrive(9, "top", "t", SHORT, 1000.0) == []
    pool.check()


def test_a_client_that_would_not_wait_for_another_start_keeps_its_place() -> None:
    """It was promised more time by giving its place up than it had told that it has."""
    for patience_s, goes in ((30.0, True), (19.0, False)):
        pool = streams({}, slots=1)
        pool.arrive(1, "low", "t", SHORT, 0.0, patience_s=patience_s, whole=True)
        assert bool(pool.arrive(9, "top", "t", SHORT, 20.0)) == goes
        if goes:
            assert pool.next_deadline_s() == 30.0 - 0.1, "and no longer than its client waits, less its prefill"
    pool = streams({1: 20}, slots=1)
    pool.arrive(1, "low", "t", SHORT, 0.0, patience_s=19.0)
    pool.first_token(1, 0.0)
    assert pool.arrive(9, "top", "t", SHORT, 20.0), "a stream's client waits so long for each token"
    assert pool.next_deadline_s() == 20.0 + 19.0 - 0.3
