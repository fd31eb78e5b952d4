"""Replicas kept clear of prompts for what is not preemptible, where that is sent, and that preemptible work has all the rest."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from forebay.admission.budget import BACKFILL_PREFILL, LAG_S, LAG_S_MAX, RESERVE, Replica
from forebay.admission.effects import Dispatch, Effect, Requeue
from forebay.admission.machine import Admission
from forebay.admission.outcomes import Shortage
from forebay.admission.preempting import PREEMPTIONS_MAX
from forebay.admission.reserve import AGAIN_S_MIN, DEMAND_TAU_S, LAG_SHARE, PATIENCE_S, Reserve, idle_share, patience_s
from forebay.admission.young import UNBEGUN_LAG
from forebay.domain.roster import Capacity, RosterPool, RosterReplica
from forebay.domain.shape import Shape
from forebay.spec.types import Tier

TIERS = (
    Tier("top", rank=0, ttft_s=1, longest_wait_s=30),
    Tier("batch", rank=2, ttft_s=3600, longest_wait_s=80_000, preemptible=True),
)
PER_S = 10_000.0
SEQUENCES = 100
ROOM = SEQUENCES - int(RESERVE * SEQUENCES)
LONG, SHORT = Shape(1000, 10), Shape(1, 10)


def pool_of(replicas: int, tiers: tuple[Tier, ...] = TIERS, sequences: int = SEQUENCES) -> Admission:
    pool = Admission("chat", tiers, 10_000)
    capacity = Capacity(10**6, sequences, 5000, PER_S, 1000.0, 10**6)
    pool.set_roster(RosterPool("chat", tuple(RosterReplica(f"r{n}", f"http://r{n}", capacity) for n in range(replicas))), 0.0)
    return pool


def replica_of(effects: list[Effect]) -> str:
    (effect,) = effects
    assert isinstance(effect, Dispatch)
    return effect.replica_id


def filled(pool: Admission, tickets: range, now_s: float) -> None:
    """So many short batch requests run, and are prefilled."""
    for ticket in tickets:
        assert pool.arrive(ticket, "batch", "b", SHORT, now_s)
        pool.first_token(ticket, now_s)


def busy_pool(replicas: int = 2, running: int = 2 * ROOM - 2) -> Admission:
    """Interactive demand is known, and batch has nearly all that it may have."""
    pool = pool_of(replicas)
    filled(pool, range(1000, 1000 + running), 0.0)
    pool.arrive(0, "top", "t", LONG, 0.0)
    pool.first_token(0, 0.1)
    pool.finish(0, None, 0.1)
    pool._replicas.reserve.arrived_tokens += 5 * 30 * 1000
    pool._replicas.reserve.tokens_per_s(30.0)
    return pool


# -- the demand ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prompts_per_s", "listed", "kept"), [(5, 2, 1), (5, 8, 1), (15, 8, 2), (25, 8, 3), (500, 8, 7), (5, 1, 0)])
def test_as_many_replicas_are_kept_clear_as_prompts_keep_busy_and_never_all(prompts_per_s: int, listed: int, kept: int) -> None:
    reserve = Reserve()
    for second in range(1, 200):
        reserve.arrived_tokens += prompts_per_s * 1000
        reserve.tokens_per_s(float(second))
    assert reserve.replicas(listed, PER_S, 199.0) == kept


def test_the_reserve_decays_when_nothing_comes() -> None:
    reserve = Reserve()
    reserve.arrived_tokens = 100_000
    assert reserve.replicas(4, PER_S, DEMAND_TAU_S) == 1
    assert reserve.replicas(4, PER_S, DEMAND_TAU_S * 8) == 0


@given(asked_ms=st.lists(st.integers(20, 50_000), min_size=1, max_size=20))
def test_how_often_it_is_asked_changes_nothing_about_steady_demand(asked_ms: list[int]) -> None:
    """1000 tokens a second for long; then the same, with questions in between or without."""
    often, seldom, now_s = Reserve(), Reserve(), 300.0
    for reserve in (often, seldom):
        reserve.tokens_per_s(0.0)
        reserve.arrived_tokens = 300_000
        reserve.tokens_per_s(now_s)
    for passed_ms in asked_ms:
        now_s += passed_ms / 1000
        often.arrived_tokens += passed_ms
        often.tokens_per_s(now_s)
    seldom.arrived_tokens += sum(asked_ms)
    assert often.tokens_per_s(now_s) == pytest.approx(seldom.tokens_per_s(now_s))


def test_it_may_be_asked_twice_within_no_time() -> None:
    reserve = Reserve()
    reserve.arrived_tokens = 30_000
    assert reserve.tokens_per_s(0.0) == 1000.0
    assert reserve.tokens_per_s(1.5e-194) == 1000.0


def test_an_unknown_pace_keeps_nothing_clear() -> None:
    reserve = Reserve()
    reserve.arrived_tokens = 10**6
    assert reserve.replicas(4, 0.0, 1.0) == 0


# -- when batch starts --------------------------------------------------------------------------------------------------


def test_batch_waits_while_the_only_other_replica_prefills_and_starts_when_that_is_over() -> None:
    pool = busy_pool()
    taken = replica_of(pool.arrive(1, "top", "t", Shape(3000, 10), 30.0))
    assert pool.arrive(2, "batch", "b", LONG, 30.0) == [], "it fits on the other, which is then not clear either"
    assert pool.position(2, 30.0).short_of is Shortage.PREFILL  # type: ignore[union-attr]
    pool.check()
    (started,) = pool.first_token(1, 30.2)
    assert isinstance(started, Dispatch)
    assert started.ticket == 2
    assert taken in {"r0", "r1"}
    pool.check()


def test_when_the_batch_that_waited_for_a_clear_replica_leaves_nothing_is_held_any_more() -> None:
    """Its client hung up, and the machine went on as if somebody waited, with nobody to tell."""
    pool = busy_pool()
    pool.arrive(1, "top", "t", LONG, 30.0)
    assert pool.arrive(2, "batch", "b", LONG, 30.0) == []
    assert pool._replicas.held
    pool.abandon(2, 30.01)
    pool.first_token(1, 30.2)
    pool.check()


def test_batch_that_waits_for_a_clear_replica_is_told_though_that_one_is_full() -> None:
    """The replica that prefills has no slot left when its prompt is over: what was held for the other starts all the same."""
    pool = pool_of(2, sequences=2)
    for ticket in (0, 1):
        pool.arrive(ticket, "top", "t", SHORT, 0.0)
        pool.first_token(ticket, 0.0)
    full = replica_of(pool.arrive(2, "top", "t", Shape(5000, 10), 0.0))
    assert pool.arrive(3, "batch", "b", LONG, 0.0) == []
    pool.check()
    (started,) = pool.first_token(2, 0.5)
    assert isinstance(started, Dispatch)
    assert (started.ticket, started.replica_id != full) == (3, True)


def test_the_more_is_idle_the_longer_the_way_to_a_clear_replica_may_be() -> None:
    for running, starts in ((2 * ROOM - 2, False), (2 * ROOM - 40, False), (ROOM, True)):
        pool = busy_pool(running=running)
        pool.arrive(1, "top", "t", Shape(2000, 10), 30.0)
        other = next(one for one in pool._replicas.listed if 1 not in one.permits)
        taker = next(one for one in pool._replicas.listed if 1 in one.permits)
        assert (patience_s(other) >= taker.clear_in_s(30.0)) == starts
        assert bool(pool.arrive(2, "batch", "b", LONG, 30.0)) == starts, f"{running} run"


def test_a_replica_that_is_clear_before_the_prompt_begins_is_clear_soon_enough() -> None:
    """Batch waited for another replica to be clear when it was sent; it begins only a while after that, and places stood idle for it."""
    for clear_in_s, starts in ((LAG_SHARE * LAG_S - 0.001, True), (LAG_SHARE * LAG_S + 0.001, False)):
        pool = busy_pool(running=2 * (ROOM - 2))
        taken = replica_of(pool.arrive(1, "top", "t", LONG, 30.0))
        taker, other = sorted(pool._replicas.listed, key=lambda one: one.id != taken)
        other.lag_s = LAG_S
        taker.horizon_s = 30.0 + clear_in_s + PATIENCE_S * idle_share(other)
        assert bool(pool.arrive(2, "batch", "b", LONG, 30.0)) == starts
        pool.check()


def test_a_moment_that_comes_by_the_passing_of_time_is_not_missed() -> None:
    """Batch was looked at again only when something was freed: where the way to a clear replica grew short meanwhile, places stood idle."""
    pool = busy_pool(running=ROOM)
    pool.arrive(1, "top", "t", Shape(5000, 10), 30.0)
    taker = next(one for one in pool._replicas.listed if 1 in one.permits)
    other = next(one for one in pool._replicas.listed if one is not taker)
    assert pool.arrive(2, "batch", "b", LONG, 30.0) == []
    moment_s = pool.next_deadline_s()
    assert moment_s == pytest.approx(taker.horizon_s - patience_s(other))
    assert pool.quiet_until_s() == moment_s
    assert pool.advance(moment_s - 0.01) == []
    (started,) = pool.advance(pool.next_deadline_s() or 0.0)
    assert isinstance(started, Dispatch)
    assert (started.ticket, started.replica_id) == (2, other.id)
    pool.check()


def test_a_foreseen_moment_is_asked_for_a_few_times_at_most() -> None:
    pool = busy_pool(running=ROOM)
    pool.arrive(1, "top", "t", Shape(5000, 10), 30.0)
    pool.arrive(2, "batch", "b", LONG, 30.0)
    now_s, asked = 30.0, 0
    while pool.waiting:
        before_s, now_s = now_s, pool.next_deadline_s() or 0.0
        assert now_s - before_s >= AGAIN_S_MIN / 2
        asked += 1
        pool.advance(now_s)
    assert asked <= 3


def test_without_others_batch_has_everything() -> None:
    pool = pool_of(2)
    for ticket in range(2 * SEQUENCES):
        assert pool.arrive(ticket, "batch", "b", SHORT, 0.0), "no reserve for nobody"
    assert pool.arrive(999, "batch", "b", SHORT, 0.0) == []


def test_a_lane_that_is_owed_its_share_waits_for_no_moment() -> None:
    pool = busy_pool()
    pool.arrive(1, "top", "t", Shape(3000, 10), 30.0)
    pool._lanes[1].owed_tokens = 5.0
    assert len(pool.arrive(2, "batch", "b", LONG, 30.0)) == 1


def test_one_replica_has_no_other_to_keep_clear() -> None:
    pool = busy_pool(replicas=1, running=10)
    assert len(pool.arrive(2, "batch", "b", LONG, 30.0)) == 1


@settings(max_examples=25)
@given(
    came=st.lists(st.tuples(st.booleans(), st.integers(1, 3000), st.floats(0.0, 0.3)), max_size=40),
    replicas=st.integers(2, 4),
    running=st.integers(0, 60),
)
def test_batch_leaves_replicas_clear_while_it_has_its_places_and_is_never_stuck(
    came: list[tuple[bool, int, float]], replicas: int, running: int
) -> None:
    pool, now_s = pool_of(replicas, sequences=25), 0.0
    filled(pool, range(1000, 1000 + min(running, 20 * replicas)), 0.0)
    live = pool._replicas
    for ticket, (top, prompt, passed_s) in enumerate(came):
        now_s += passed_s
        pool.advance(now_s)
        before = {one.id: (one.clear_in_s(now_s), patience_s(one)) for one in live.listed}
        owed = pool._lanes[1].owed_tokens
        effects = pool.arrive(ticket, "top" if top else "batch", "t", Shape(prompt, 10), now_s, whole=not top)
        started = [effect for effect in effects if isinstance(effect, Dispatch) and effect.ticket == ticket]
        if started and not top and live.courteous and owed <= 0:  # what is owed waits for no moment
            kept = live.reserve.replicas(replicas, PER_S, now_s)
            others = sorted(clear_s for name, (clear_s, _) in before.items() if name != started[0].replica_id)
            assert not kept or others[kept - 1] <= before[started[0].replica_id][1] + 1e-9
        pool.check()
    # All that runs gives its first token and ends; all that waits must have started by then.
    for _ in range(10_000):
        running_now = [ticket for one in live.listed for ticket in one.permits]
        if not running_now:
            break
        now_s += 0.05
        pool.advance(now_s)
        pool.first_token(running_now[0], now_s)
        pool.finish(running_now[0], None, now_s)
        pool.check()
    assert pool.waiting == 0, "it waits, and nothing would ever start it"


# -- where others go, and what is foreseen ------------------------------------------------------------------------------


def test_a_request_goes_where_its_first_token_comes_soonest_not_where_fewer_tokens_were_sent() -> None:
    pool = pool_of(2)
    first = replica_of(pool.arrive(0, "top", "t", Shape(1000, 10), 0.0))
    second = replica_of(pool.arrive(1, "top", "t", Shape(900, 10), 0.09))
    assert first != second
    assert replica_of(pool.arrive(2, "top", "t", LONG, 0.1)) == first, "its prompt is nearly over; the other has just begun"


def test_what_is_much_fuller_is_not_taken_for_a_short_wait() -> None:
    pool = pool_of(2)
    for ticket in range(100, 180):
        pool.arrive(ticket, "top", "t", SHORT, 0.0)
        pool.first_token(ticket, 0.0)
    fuller = next(one for one in pool._replicas.listed if 100 in one.permits)
    emptier = next(one for one in pool._replicas.listed if one is not fuller)
    for ticket in list(emptier.permits):
        pool.finish(ticket, None, 0.0)
    assert replica_of(pool.arrive(1, "top", "t", Shape(100, 10), 1.0)) == emptier.id
    assert replica_of(pool.arrive(2, "top", "t", SHORT, 1.0)) == emptier.id, "0.04 s for less than half as much on it"


def one_replica() -> tuple[Admission, Replica]:
    pool = pool_of(1)
    return pool, pool._replicas.listed[0]


def test_a_first_token_tells_that_what_was_sent_before_is_prefilled() -> None:
    pool, replica = one_replica()
    pool.arrive(0, "batch", "b", Shape(1000, 10), 0.0, whole=True)
    pool.arrive(1, "top", "t", Shape(1000, 10), 0.01)
    pool.arrive(2, "top", "t", Shape(500, 10), 0.02)
    assert replica.prefill_tokens == 2500
    assert replica.clear_in_s(0.02) == pytest.approx(LAG_S + 0.25 - 0.02)
    pool.first_token(1, 0.15)
    assert replica.prefill_tokens == 500
    assert replica.clear_in_s(0.15) == pytest.approx(0.05)
    pool.first_token(2, 0.2)
    assert replica.clear_in_s(0.2) == 0.0


def test_a_prompt_sent_just_before_a_first_token_begins_no_sooner_for_it() -> None:
    """It is on its way while the engine begins its next step without it; others were sent there as if it had begun at once."""
    pool, replica = one_replica()
    pool.arrive(0, "top", "t", Shape(1000, 10), 0.0)
    pool.arrive(1, "top", "t", Shape(500, 10), 0.12)
    pool.first_token(0, 0.13)
    assert replica.clear_in_s(0.13) == pytest.approx(replica.lag_s - 0.01 + 0.05)
    pool.arrive(2, "top", "t", Shape(500, 10), 0.131)
    pool.abandon(2, 0.132)
    pool.first_token(1, 0.2)
    assert replica.clear_in_s(0.2) == 0.0
    pool.check()


def test_a_prompt_that_left_before_it_was_prefilled_is_not_waited_for() -> None:
    pool, replica = one_replica()
    pool.arrive(0, "top", "t", Shape(1000, 10), 0.0)
    pool.arrive(1, "top", "t", Shape(2000, 10), 0.0)
    pool.abandon(1, 0.0)
    assert replica.clear_in_s(0.0) == pytest.approx(LAG_S + 0.1)


@given(late_s=st.lists(st.floats(-1.0, 5.0), max_size=40))
def test_the_lag_is_learned_and_stays_in_its_bounds(late_s: list[float]) -> None:
    pool, replica = one_replica()
    now_s = 0.0
    for ticket, late in enumerate(late_s):
        pool.arrive(ticket, "top", "t", LONG, now_s)
        now_s = max(now_s, replica.horizon_s + late)
        pool.first_token(ticket, now_s)
        pool.finish(ticket, None, now_s)
        assert 0.0 <= replica.lag_s <= LAG_S_MAX


def test_an_engine_far_slower_than_declared_has_the_longest_lag() -> None:
    pool, replica = one_replica()
    pool.arrive(0, "top", "t", LONG, 0.0)
    pool.first_token(0, 10.0)
    assert replica.lag_s == LAG_S_MAX


def test_a_steady_lag_is_found() -> None:
    pool, replica = one_replica()
    for ticket in range(200):
        pool.arrive(ticket, "top", "t", LONG, float(ticket))
        pool.first_token(ticket, ticket + 0.1 + 0.12)
        pool.finish(ticket, None, ticket + 0.5)
    assert replica.lag_s == pytest.approx(0.12, abs=0.001)


def test_small_batch_prompts_share_the_little_that_is_theirs() -> None:
    pool = busy_pool(running=10)
    most = int(BACKFILL_PREFILL * 5000)
    sent = [bool(pool.arrive(ticket, "batch", "b", Shape(most // 4, 10), 30.0)) for ticket in range(2, 20)]
    assert sum(sent) == 8, "four on each of two replicas"


# -- what has not begun -------------------------------------------------------------------------------------------------


def test_a_batch_prompt_that_has_not_begun_is_taken_back_and_one_that_has_is_not() -> None:
    for later_s, taken_back in ((UNBEGUN_LAG * LAG_S / 2, True), (UNBEGUN_LAG * LAG_S * 2, False)):
        pool = busy_pool(replicas=1, running=10)
        pool._replicas.listed[0].lag_s = LAG_S
        assert replica_of(pool.arrive(2, "batch", "b", LONG, 30.0)) == "r0"
        effects = pool.arrive(3, "top", "t", LONG, 30.0 + later_s)
        assert isinstance(effects[0], Requeue) == taken_back
        assert [effect.ticket for effect in effects if isinstance(effect, Dispatch)] == [3], "it does not come back behind the other"
        pool.check()
        assert bool(pool.first_token(3, 30.3)) == taken_back


def test_a_request_goes_where_only_a_prompt_is_that_has_not_begun() -> None:
    pool = busy_pool()
    busy = replica_of(pool.arrive(1, "top", "t", LONG, 30.0))
    for one in pool._replicas.listed:  # as if the other were clear enough
        one.horizon_s, one.lag_s = 30.0, LAG_S
    other = replica_of(pool.arrive(2, "batch", "b", Shape(2000, 10), 30.05))
    assert other != busy
    pool._replicas.listed[int(busy[1])].horizon_s = 30.1
    effects = pool.arrive(3, "top", "t", LONG, 30.051)
    assert effects[0] == Requeue(2, other, 0)
    assert isinstance(effects[1], Dispatch)
    assert effects[1].replica_id == other
    pool.check()


def sent_while_clear(replicas: int, prompt: int = 1000) -> tuple[Admission, str]:
    """Interactive demand is known, and few places are idle; a batch prompt has just been sent, and no replica has another."""
    pool = busy_pool(replicas, running=replicas * (ROOM - 3))
    for one in pool._replicas.listed:
        one.lag_s = LAG_S
    return pool, replica_of(pool.arrive(2, "batch", "b", Shape(prompt, 10), 30.0))


def test_a_moment_that_is_lost_before_the_prompt_begins_is_undone() -> None:
    """A request went to the last clear replica, and the batch prompt that had not begun on the other was in the way of the next one."""
    pool, risked = sent_while_clear(2)
    started, undone = pool.arrive(3, "top", "t", LONG, 30.001)
    assert isinstance(started, Dispatch)
    assert started.replica_id != risked
    assert undone == Requeue(2, risked, 0)
    pool.check()
    assert replica_of(pool.arrive(4, "top", "t", LONG, 30.002)) == risked, "nothing is in its way there"
    pool.first_token(4, 30.1)
    assert [effect.ticket for effect in pool.first_token(3, 30.1)] == [2], "the moment is there again"
    pool.check()


def test_a_moment_is_not_undone_while_another_replica_is_clear_or_once_the_prompt_has_begun() -> None:
    for replicas, later_s in ((3, 0.001), (2, UNBEGUN_LAG * LAG_S * 2)):
        pool, risked = sent_while_clear(replicas)
        assert replica_of(pool.arrive(3, "top", "t", LONG, 30.0 + later_s)) != risked
        assert pool.runs(2)
        pool.check()


def test_a_moment_is_not_undone_for_little_or_where_hardly_anybody_else_comes() -> None:
    pool, _ = sent_while_clear(2, prompt=200)
    replica_of(pool.arrive(3, "top", "t", Shape(200, 10), 30.001))
    assert pool.runs(2)
    pool, _ = sent_while_clear(2)
    pool._replicas.reserve = Reserve()
    replica_of(pool.arrive(3, "top", "t", Shape(20, 10), 30.001))
    assert pool.runs(2)


def test_a_replica_that_left_the_roster_is_not_regretted() -> None:
    pool, risked = sent_while_clear(3)
    others = [RosterReplica(one.id, one.url, one.capacity) for one in pool._replicas.listed if one.id != risked]
    pool.set_roster(RosterPool("chat", tuple(others)), 30.001)
    taken = {replica_of(pool.arrive(ticket, "top", "t", LONG, 30.002)) for ticket in (3, 4)}
    assert taken == {other.id for other in others}, "neither is clear any more"
    assert pool.runs(2)
    pool.check()


def test_prompts_that_are_little_together_are_left_alone() -> None:
    pool = busy_pool(replicas=1, running=10)
    pool.arrive(2, "batch", "b", Shape(200, 10), 30.0)
    assert replica_of(pool.arrive(3, "top", "t", Shape(200, 10), 30.001)) == "r0"


def test_what_is_taken_back_three_times_is_left_then() -> None:
    pool, now_s = busy_pool(replicas=1, running=10), 30.0
    pool.arrive(2, "batch", "b", LONG, now_s)
    for ticket in range(3, 3 + PREEMPTIONS_MAX):
        assert pool.arrive(ticket, "top", "t", LONG, now_s)[0] == Requeue(2, "r0")
        now_s += 1.0
        pool.first_token(ticket, now_s)
        assert [effect.ticket for effect in pool.finish(ticket, None, now_s)] in ([2], [])
        assert pool.runs(2)
    assert len(pool.arrive(99, "top", "t", LONG, now_s)) == 1
    pool.check()
