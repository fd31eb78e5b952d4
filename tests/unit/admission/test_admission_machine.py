"""The admission machine by hand: each refusal, each budget, and what a request's life looks like from outside."""

import math

import msgspec
import pytest

from forebay.admission.effects import Dispatch, Effect, Refuse
from forebay.admission.machine import NO_REPLICAS_HOLD_S, Admission
from forebay.admission.outcomes import Refusal
from forebay.admission.outliers import EJECT_S
from forebay.admission.prefixes import Prefix
from forebay.admission.pump import SKIPS_MAX
from forebay.admission.tickets import RETRIES_MAX
from forebay.admission.waits import NO_REPLICAS_RETRY_S, UNMEASURED_RETRY_S
from forebay.domain.due import Due
from forebay.domain.roster import Capacity, LaneLoad, Posture, ReplicaLoad, RosterPool, RosterReplica
from forebay.domain.shape import Shape, Usage
from forebay.spec.types import Tier

TIERS = (
    Tier("interactive", rank=0, ttft_s=1, longest_wait_s=30),
    Tier("standard", rank=1, ttft_s=5, longest_wait_s=120),
    Tier("batch", rank=2, ttft_s=3600, longest_wait_s=86_400, preemptible=True),
)
SHORT = Shape(prompt_tokens=10, output_tokens=10)


def capacity(kv_tokens: int = 1000, sequences: int = 1, prefill_tokens: int = 1000, per_s: float = 0.0) -> Capacity:
    return Capacity(kv_tokens, sequences, prefill_tokens, per_s, per_s, context_tokens=kv_tokens)


def roster(*names: str, of: Capacity | None = None, posture: Posture = Posture.OPEN, ready_in_s: float | None = None) -> RosterPool:
    listed = tuple(RosterReplica(name, f"http://{name}", of or capacity()) for name in names)
    return RosterPool("chat", listed, posture, ready_in_s)


def machine(*names: str, of: Capacity | None = None, queued_max: int = 10) -> Admission:
    made = Admission("chat", TIERS, queued_max)
    made.set_roster(roster(*names, of=of), 0.0)
    return made


def sent(ticket: int, replica: str) -> Dispatch:
    return Dispatch(ticket, replica, f"http://{replica}")


def whys(effects: list[Effect]) -> list[tuple[int, Refusal]]:
    return [(effect.ticket, effect.why) for effect in effects if isinstance(effect, Refuse)]


def retry_after_s(effects: list[Effect]) -> float | None:
    (effect,) = effects
    assert isinstance(effect, Refuse)
    return effect.retry_after_s


# --- starting and waiting -------------------------------------------------------------------------------------------


def test_what_fits_starts_at_once_and_what_waits_starts_when_something_ends() -> None:
    pool = machine("a")
    assert pool.arrive(1, "standard", "t", SHORT, 0.0) == [sent(1, "a")]
    assert pool.arrive(2, "standard", "t", SHORT, 1.0) == []
    assert pool.arrive(3, "standard", "t", SHORT, 2.0) == []
    assert pool.finish(1, None, 3.0) == [sent(2, "a")]
    assert pool.abandon(2, 3.0) == [sent(3, "a")]


def test_more_important_tiers_go_first_whatever_their_order_of_arrival() -> None:
    pool = machine("a")
    pool.arrive(1, "interactive", "t", SHORT, 0.0)
    for ticket, tier in enumerate(("batch", "standard", "interactive"), start=2):
        pool.arrive(ticket, tier, "t", SHORT, 0.0)
    order = []
    running = 1
    for _ in range(3):
        ((running, _, _),) = [(e.ticket, e.replica_id, e.url) for e in pool.finish(running, None, 1.0) if isinstance(e, Dispatch)]
        order.append(running)
    assert order == [4, 3, 2]


def test_a_head_that_fits_nowhere_lets_smaller_and_less_important_ones_past_it() -> None:
    pool = machine("a", of=capacity(kv_tokens=100, sequences=10))
    pool.arrive(1, "standard", "t", Shape(50, 10), 0.0)
    assert pool.arrive(2, "standard", "t", Shape(60, 10), 0.0) == []
    assert pool.arrive(3, "standard", "t", Shape(1, 1), 0.0) == [sent(3, "a")]
    assert pool.arrive(4, "batch", "t", Shape(1, 1), 0.0) == [sent(4, "a")]
    pool.first_token(4, 0.0)
    assert pool.arrive(5, "interactive", "t", Shape(1, 1), 0.0) == [sent(5, "a")], "what is more important isn't behind it"


def test_space_is_kept_for_a_head_that_was_passed_often_enough() -> None:
    pool = machine("a", of=capacity(kv_tokens=1000, sequences=100))
    pool.arrive(0, "standard", "t", Shape(500, 10), 0.0)
    pool.arrive(1, "standard", "t", Shape(600, 10), 0.0)
    small = [pool.arrive(2 + number, "standard", "t", Shape(1, 1), 0.0) for number in range(SKIPS_MAX + 1)]
    assert [len(effects) for effects in small] == [1] * SKIPS_MAX + [0]
    assert pool.arrive(90, "batch", "t", Shape(1, 1), 0.0) == []
    assert pool.arrive(91, "interactive", "t", Shape(1, 1), 0.0) == [sent(91, "a")], "space is kept from its lane and those behind"
    pool.check()
    assert pool.finish(0, None, 1.0) == [sent(1, "a"), sent(2 + SKIPS_MAX, "a")]
    assert pool.first_token(1, 2.0) == [sent(90, "a")], "batch takes only part of the prefill budget while others come"
    pool.check()


def test_space_kept_on_one_replica_leaves_the_others_to_all() -> None:
    pool = machine("a", "b", of=capacity(kv_tokens=1000, sequences=100))
    for ticket, replica in ((0, "a"), (1, "b")):
        assert pool.arrive(ticket, "standard", "t", Shape(500, 10), 0.0) == [sent(ticket, replica)]
    pool.arrive(2, "standard", "t", Shape(600, 10), 0.0)
    where = [e.replica_id for n in range(60) for e in pool.arrive(3 + n, "standard", "t", Shape(1, 1), 0.0) if isinstance(e, Dispatch)]
    assert len(where) == 60
    assert len(set(where[SKIPS_MAX:])) == 1


def test_space_kept_for_one_that_leaves_is_for_all_again() -> None:
    pool = machine("a", of=capacity(kv_tokens=1000, sequences=100))
    pool.arrive(0, "standard", "t", Shape(500, 10), 0.0)
    pool.arrive(1, "standard", "t", Shape(600, 10), 0.0)
    for ticket in range(2, 3 + SKIPS_MAX):
        pool.arrive(ticket, "standard", "t", Shape(1, 1), 0.0)
    assert pool.abandon(1, 1.0) == [sent(2 + SKIPS_MAX, "a")]
    pool.check()


def test_equal_replicas_share_and_the_least_loaded_is_taken() -> None:
    pool = machine("a", "b", "c", of=capacity(sequences=4))
    assert [e.replica_id for t in range(6) for e in pool.arrive(t, "standard", "t", SHORT, 0.0) if isinstance(e, Dispatch)] == list(
        "abcabc"
    )
    pool.finish(1, None, 0.0)
    assert pool.arrive(6, "standard", "t", SHORT, 0.0) == [sent(6, "b")]


def test_turns_go_round_even_when_each_request_ends_before_the_next() -> None:
    pool = machine("a", "b", of=capacity(sequences=4))
    turns = []
    for ticket in range(4):
        turns += pool.arrive(ticket, "standard", "t", SHORT, 0.0)
        pool.finish(ticket, None, 0.0)
    assert turns == [sent(0, "a"), sent(1, "b"), sent(2, "a"), sent(3, "b")]


# --- the three budgets ----------------------------------------------------------------------------------------------


def test_kv_admits_by_the_peak_and_not_by_the_sum_of_worst_cases() -> None:
    pool = machine("a", of=capacity(kv_tokens=100, sequences=10))
    assert pool.arrive(1, "standard", "t", Shape(20, 60), 0.0) == [sent(1, "a")]
    # Worst cases add up to 130, but the second is gone after 10 steps, when they hold 20 + 10 and 40 + 10.
    assert pool.arrive(2, "standard", "t", Shape(40, 10), 0.0) == [sent(2, "a")]
    # A third would make 20 + 10, 40 + 10 and 15 + 10 at that moment: 105.
    assert pool.arrive(3, "standard", "t", Shape(15, 10), 0.0) == []


def test_an_outlived_estimate_takes_more_room() -> None:
    pool = machine("a", of=capacity(kv_tokens=100, sequences=10))
    pool.arrive(1, "standard", "t", Shape(40, 10), 0.0)
    pool.first_token(1, 0.0)
    pool.emitted(1, 40)  # holds 80, and is expected to go on for 20
    assert pool.arrive(2, "standard", "t", Shape(5, 1), 1.0) == [sent(2, "a")], "the second is gone before the first has grown"
    assert pool.arrive(3, "standard", "t", Shape(5, 15), 1.0) == []


def test_prefill_is_outstanding_until_the_first_token() -> None:
    pool = machine("a", of=capacity(sequences=10, prefill_tokens=100))
    pool.arrive(1, "standard", "t", Shape(80, 1), 0.0)
    assert pool.arrive(2, "standard", "t", Shape(30, 1), 0.0) == []
    assert pool.first_token(1, 1.0) == [sent(2, "a")]
    assert pool.first_token(1, 1.0) == [], "only the first counts"


def test_cached_prompt_tokens_need_no_prefill() -> None:
    pool = machine("a", of=capacity(sequences=10, prefill_tokens=100))
    pool.arrive(1, "standard", "t", Shape(80, 1), 0.0)
    assert pool.arrive(2, "standard", "t", Shape(30, 1, cached_tokens=20), 0.0) == [sent(2, "a")]


def test_a_prompt_above_the_whole_prefill_budget_runs_where_none_is_outstanding() -> None:
    pool = machine("a", of=capacity(sequences=10, prefill_tokens=100))
    assert pool.arrive(1, "standard", "t", Shape(500, 1), 0.0) == [sent(1, "a")]
    assert pool.arrive(2, "standard", "t", Shape(1, 1), 0.0) == []
    assert pool.finish(1, None, 1.0) == [sent(2, "a")]


def test_several_answers_take_several_slots_and_share_the_prompt() -> None:
    pool = machine("a", of=capacity(kv_tokens=100, sequences=4))
    assert pool.arrive(1, "standard", "t", Shape(40, 60, sequences=3), 0.0) == [sent(1, "a")]
    assert pool.arrive(2, "standard", "t", Shape(1, 1, sequences=2), 0.0) == []
    pool.check()


def test_each_prompt_of_a_list_has_its_own_context() -> None:
    """The limit is on one sequence: together they may be longer than the context, and each no longer."""
    of = msgspec.structs.replace(capacity(kv_tokens=1000, sequences=8), context_tokens=100)
    pool = machine("a", of=of)
    assert pool.arrive(1, "standard", "t", Shape(360, 40, sequences=4, prompts=4), 0.0) == [sent(1, "a")]
    assert pool.arrive(2, "standard", "t", Shape(361, 40, sequences=4, prompts=4), 0.0) == [Refuse(2, Refusal.NEVER_FITS, None)]
    assert pool.arrive(3, "standard", "t", Shape(360, 40, sequences=4), 0.0) == [Refuse(3, Refusal.NEVER_FITS, None)]
    pool.check()


def test_inputs_that_are_only_read_take_the_prefill_of_all_and_the_kv_of_one() -> None:
    of = msgspec.structs.replace(capacity(kv_tokens=300, sequences=8, prefill_tokens=500), context_tokens=100)
    pool = machine("a", of=of)
    many = Shape(990, 1, 0, 1, 1, 891, 10)
    assert pool.arrive(1, "standard", "t", many, 0.0) == [sent(1, "a")], "it has to run somewhere"
    assert pool.arrive(2, "standard", "t", Shape(50, 1), 0.0) == [], "what is before it would have to be prefilled first"
    assert pool.finish(1, None, 1.0) == [sent(2, "a")]
    pool.check()


def test_a_kv_refusal_says_nothing_about_requests_of_another_shape() -> None:
    pool = machine("a", of=capacity(kv_tokens=100, sequences=10))
    pool.arrive(1, "standard", "t", Shape(40, 50), 0.0)
    assert pool.arrive(2, "batch", "t", Shape(30, 20), 0.0) == []
    assert pool.arrive(3, "standard", "t", Shape(31, 2), 0.0) == [sent(3, "a")], "a longer prompt, but it is gone soon"
    pool = machine("a", of=capacity(kv_tokens=100, sequences=10))
    pool.arrive(1, "standard", "t", Shape(40, 50), 0.0)
    assert pool.arrive(2, "batch", "t", Shape(30, 20), 0.0) == []
    assert pool.arrive(3, "standard", "t", Shape(30, 24, sequences=4), 0.0) == [sent(3, "a")], "four answers grow for a quarter as long"


# --- each refusal ---------------------------------------------------------------------------------------------------


def test_refused_never_fits() -> None:
    pool = machine("a")
    assert pool.arrive(1, "standard", "t", Shape(900, 200), 0.0) == [Refuse(1, Refusal.NEVER_FITS, None)]
    assert pool.arrive(2, "standard", "t", Shape(1, 2, sequences=2), 0.0) == [Refuse(2, Refusal.NEVER_FITS, None)]


def test_refused_never_fits_once_the_replica_that_could_has_left() -> None:
    pool = Admission("chat", TIERS, 10)
    large, small = RosterReplica("a", "http://a", capacity(1000)), RosterReplica("b", "http://b", capacity(100))
    pool.set_roster(RosterPool("chat", (large, small)), 0.0)
    pool.arrive(1, "standard", "t", Shape(500, 1), 0.0)
    pool.arrive(2, "standard", "t", Shape(500, 1), 0.0)
    pool.arrive(3, "standard", "t", SHORT, 0.0)
    assert pool.arrive(4, "standard", "t", SHORT, 0.0) == []
    assert pool.set_roster(RosterPool("chat", (small,)), 1.0) == [Refuse(2, Refusal.NEVER_FITS, None)]
    assert pool.finish(3, None, 2.0) == [sent(4, "b")]


def test_refused_queue_full_and_displaced_batch_first() -> None:
    pool = machine("a", queued_max=2)
    pool.arrive(0, "standard", "t", SHORT, 0.0)
    pool.arrive(1, "batch", "t", SHORT, 0.0)
    pool.arrive(2, "batch", "t", SHORT, 0.0)
    assert whys(pool.arrive(3, "batch", "t", SHORT, 0.0)) == [(3, Refusal.QUEUE_FULL)]
    assert whys(pool.arrive(4, "standard", "t", SHORT, 0.0)) == [(2, Refusal.DISPLACED)], "the newest of the lowest lane"
    assert whys(pool.arrive(5, "interactive", "t", SHORT, 0.0)) == [(1, Refusal.DISPLACED)]
    assert whys(pool.arrive(6, "standard", "t", SHORT, 0.0)) == [(6, Refusal.QUEUE_FULL)]
    assert whys(pool.arrive(7, "interactive", "t", SHORT, 0.0)) == [(4, Refusal.DISPLACED)]
    assert whys(pool.arrive(8, "interactive", "t", SHORT, 0.0)) == [(8, Refusal.QUEUE_FULL)]


def test_refused_expired_after_the_longest_wait_of_its_tier() -> None:
    pool = machine("a")
    pool.arrive(1, "standard", "t", SHORT, 0.0)
    pool.arrive(2, "interactive", "t", SHORT, 5.0)
    pool.arrive(3, "standard", "t", SHORT, 6.0)
    assert pool.next_deadline_s() == 35.0
    assert pool.advance(34.9) == []
    assert whys(pool.advance(35.0)) == [(2, Refusal.EXPIRED)]
    assert pool.next_deadline_s() == 126.0
    assert pool.finish(1, None, 126.0) == [sent(3, "a")], "what can start at the instant it would expire is started"
    assert pool.next_deadline_s() is None


def test_a_teams_own_promise_goes_before_its_tiers() -> None:
    """A team may accept a shorter longest wait than its tier's: it is refused then, and others of the tier wait on."""
    lanes = machine("a")
    lanes.arrive(1, "interactive", "other", SHORT, 0.0)
    lanes.arrive(2, "interactive", "hasty", SHORT, 0.0, longest_wait_s=5.0)
    lanes.arrive(3, "interactive", "other", SHORT, 0.0)
    assert lanes.next_deadline_s() == 5.0
    assert whys(lanes.advance(5.0)) == [(2, Refusal.EXPIRED)]
    assert whys(lanes.advance(30.0)) == [(3, Refusal.EXPIRED)]
    lanes.check()


def test_an_expired_head_unblocks_those_behind_it() -> None:
    pool = machine("a", of=capacity(kv_tokens=1000, sequences=100))
    pool.arrive(0, "standard", "t", Shape(500, 10), 0.0)
    pool.arrive(1, "interactive", "t", Shape(600, 10), 0.0)
    for ticket in range(2, 3 + SKIPS_MAX):
        pool.arrive(ticket, "standard", "t", Shape(1, 1), 0.0)
    effects = pool.advance(30.0)
    assert whys(effects) == [(1, Refusal.EXPIRED)]
    assert effects[1:] == [sent(2 + SKIPS_MAX, "a")]


def test_a_tier_that_accepts_no_wait_is_refused_at_once() -> None:
    pool = Admission("chat", (Tier("now", rank=0, ttft_s=1, longest_wait_s=0),), 10)
    pool.set_roster(roster("a"), 0.0)
    assert pool.arrive(1, "now", "t", SHORT, 0.0) == [sent(1, "a")]
    assert whys(pool.arrive(2, "now", "t", SHORT, 0.0)) == [(2, Refusal.EXPIRED)]


def test_refused_would_expire_only_at_a_measured_pace() -> None:
    pool = machine("a", queued_max=200)
    tickets = iter(range(1000))
    running = next(tickets)
    pool.arrive(running, "interactive", "t", SHORT, 0.0)
    while (waiting := pool.load(0.0)[0][0].waiting) < 20:
        assert pool.arrive(next(tickets), "interactive", "t", SHORT, 0.0) == [], f"nothing is measured with {waiting} waiting"
    for second in range(1, 11):  # one request, 20 tokens, per second
        (effect,) = pool.finish(running, None, float(second))
        running = effect.ticket
    ticket = next(tickets)
    for _ in range(20):
        assert pool.arrive(ticket, "interactive", "t", SHORT, 10.0) == []
        ticket = next(tickets)
    refusal = pool.arrive(ticket, "interactive", "t", SHORT, 10.0)
    assert whys(refusal) == [], "30 requests ahead take 30 s, which is accepted"
    refusal = pool.arrive(next(tickets), "interactive", "t", SHORT, 10.0)
    assert whys(refusal) == [(ticket + 1, Refusal.WOULD_EXPIRE)]
    assert retry_after_s(refusal) == pytest.approx(31.0, rel=0.1)
    assert pool.arrive(next(tickets), "standard", "t", SHORT, 10.0) == [], "a more patient tier waits"
    pool.set_roster(roster("a", ready_in_s=20.0), 10.0)
    assert pool.arrive(next(tickets), "interactive", "t", SHORT, 10.0) == [], "capacity is due within its longest wait"


def test_a_pace_of_seconds_is_not_stretched_over_a_day() -> None:
    pool = machine("a", of=capacity(kv_tokens=10_000_000), queued_max=200)
    for ticket in range(20):
        pool.arrive(ticket, "batch", "t", SHORT, 0.0)
    for second in range(10):
        pool.finish(second, None, float(second + 1))
    pool.arrive(20, "batch", "t", Shape(9_000_000, 10), 10.0)  # five days at 20 tokens a second
    assert pool.arrive(21, "batch", "t", SHORT, 10.0) == []


def test_refused_shed_by_posture_only_what_cannot_start_at_once() -> None:
    pool = machine("a", of=capacity(sequences=2))
    pool.set_roster(roster("a", of=capacity(sequences=2), posture=Posture.SHED_PREEMPTIBLE), 0.0)
    assert pool.arrive(1, "batch", "t", SHORT, 0.0) == [sent(1, "a")]
    pool.first_token(1, 0.0)
    assert pool.arrive(2, "standard", "t", SHORT, 0.0) == [sent(2, "a")]
    assert whys(pool.arrive(3, "batch", "t", SHORT, 0.0)) == [(3, Refusal.SHED)]
    assert pool.arrive(4, "standard", "t", SHORT, 0.0) == []
    pool.set_roster(roster("a", of=capacity(sequences=2), posture=Posture.SHED_LOW), 0.0)
    assert whys(pool.arrive(5, "standard", "t", SHORT, 0.0)) == [(5, Refusal.SHED)]
    assert pool.arrive(6, "interactive", "t", SHORT, 0.0) == []


def test_refused_no_replicas_after_the_hold_and_scale_from_zero_is_held() -> None:
    pool = Admission("chat", TIERS, 10)
    assert pool.arrive(1, "interactive", "t", SHORT, 100.0) == [], "held even before the first roster"
    assert pool.next_deadline_s() == 100.0 + NO_REPLICAS_HOLD_S
    pool.set_roster(roster(), 101.0)
    assert pool.advance(110.0) == []
    assert pool.advance(116.0) == [Refuse(1, Refusal.NO_REPLICAS, NO_REPLICAS_RETRY_S)]
    pool.arrive(2, "interactive", "t", SHORT, 120.0)
    pool.arrive(3, "standard", "t", SHORT, 120.0)
    pool.set_roster(roster(ready_in_s=50.0), 121.0)
    assert pool.next_deadline_s() == 150.0, "held for its tier's longest wait while a replica is on its way"
    assert pool.advance(150.0) == [Refuse(2, Refusal.NO_REPLICAS, 21.0)], "the rest of the cold start"
    assert pool.set_roster(roster("a"), 171.0) == [sent(3, "a")]


def test_repeated_rosters_without_replicas_do_not_prolong_the_hold() -> None:
    pool = machine("a")
    pool.arrive(1, "standard", "t", SHORT, 0.0)
    pool.arrive(2, "standard", "t", SHORT, 0.0)
    for second in range(1, 15):
        assert pool.set_roster(roster(), float(second)) == []
    assert pool.next_deadline_s() == 1.0 + NO_REPLICAS_HOLD_S, "the hold runs from when the last replica left"
    assert whys(pool.set_roster(roster(), 16.0)) == [(2, Refusal.NO_REPLICAS)]


# --- Retry-After ----------------------------------------------------------------------------------------------------


def test_retry_after_from_the_declared_pace_where_none_is_measured() -> None:
    pool = machine("a", of=capacity(kv_tokens=4000, prefill_tokens=4000, per_s=100.0), queued_max=1)
    pool.arrive(1, "standard", "t", SHORT, 0.0)
    pool.arrive(2, "standard", "t", Shape(1000, 2000), 0.0)
    assert retry_after_s(pool.arrive(3, "standard", "t", SHORT, 0.0)) == 20.0
    pool.set_roster(roster("a", of=capacity(per_s=100.0, kv_tokens=4000), ready_in_s=12.5), 0.0)
    assert retry_after_s(pool.arrive(4, "standard", "t", SHORT, 2.0)) == 10.5, "a replica is ready before that"
    pool.set_roster(roster("a", of=capacity(kv_tokens=4000)), 2.0)
    assert retry_after_s(pool.arrive(5, "standard", "t", SHORT, 2.0)) == UNMEASURED_RETRY_S


# --- rosters --------------------------------------------------------------------------------------------------------


def test_a_draining_replica_keeps_its_permits_gets_no_new_ones_and_counts_them_when_it_returns() -> None:
    pool = machine("a", "b", of=capacity(sequences=1))
    pool.arrive(1, "standard", "t", SHORT, 0.0)
    pool.arrive(2, "standard", "t", SHORT, 0.0)
    pool.set_roster(roster("b"), 1.0)
    assert pool.arrive(3, "standard", "t", SHORT, 1.0) == []
    assert {load.replica: load.streams for load in pool.load(1.0)[1]} == {"a": 1, "b": 1}
    assert pool.set_roster(roster("a", "b"), 2.0) == [], "it came back as full as it left"
    assert pool.finish(1, None, 3.0) == [sent(3, "a")]
    pool.set_roster(roster("b"), 4.0)
    assert pool.finish(3, None, 5.0) == []
    assert [load.replica for load in pool.load(5.0)[1]] == ["b"], "gone with its last permit"
    pool.check()


def test_a_smaller_capacity_revokes_nothing_and_a_larger_one_is_used_at_once() -> None:
    pool = machine("a", of=capacity(sequences=2))
    pool.arrive(1, "standard", "t", SHORT, 0.0)
    pool.arrive(2, "standard", "t", SHORT, 0.0)
    pool.set_roster(roster("a", of=capacity(sequences=1)), 1.0)
    pool.check()
    pool.arrive(3, "standard", "t", SHORT, 1.0)
    assert pool.finish(1, None, 2.0) == []
    assert pool.set_roster(roster("a", of=capacity(sequences=3)), 3.0) == [sent(3, "a")]


# --- failures -------------------------------------------------------------------------------------------------------


def test_a_retry_goes_elsewhere_or_to_the_head_of_its_lane() -> None:
    pool = machine("a", "b")
    pool.arrive(1, "standard", "t", SHORT, 0.0)
    assert pool.retry(1, 1.0) == [sent(1, "b")]
    pool.arrive(2, "standard", "t", SHORT, 2.0)
    pool.arrive(3, "standard", "t", SHORT, 3.0)
    assert pool.retry(2, 4.0) == [sent(3, "a")], "only the other one may take it, and that is full"
    pool.arrive(4, "standard", "t", SHORT, 4.0)
    assert pool.finish(1, None, 5.0) == [sent(2, "b")], "before the fourth"


def test_a_retry_keeps_what_was_left_of_its_longest_wait() -> None:
    pool = machine("a", "b")
    pool.arrive(1, "interactive", "t", SHORT, 0.0)
    pool.arrive(2, "interactive", "t", SHORT, 0.0)
    pool.arrive(3, "interactive", "t", SHORT, 0.0)
    pool.finish(1, None, 20.0)  # the third starts after 20 of its 30 s
    assert pool.retry(3, 500.0) == []
    assert pool.next_deadline_s() == 510.0
    assert pool.load(505.0)[0][0].oldest_wait_s == 505.0


def test_a_retry_forgets_the_deadline_it_was_queued_with_before() -> None:
    pool = machine("a", "b")
    for ticket in (1, 2):
        pool.arrive(ticket, "interactive", "t", SHORT, 0.0)
    pool.arrive(3, "standard", "t", SHORT, 0.0)  # to 120
    pool.finish(1, None, 100.0)  # starts with 20 s left
    pool.arrive(4, "standard", "t", SHORT, 110.0)  # to 230
    assert pool.retry(3, 215.0) == [sent(4, "a")]  # to 235
    assert pool.next_deadline_s() == 235.0


def test_a_retry_does_not_pass_what_is_more_important() -> None:
    pool = machine("a", "b", of=capacity(kv_tokens=100, sequences=10))
    pool.arrive(1, "standard", "t", SHORT, 0.0)
    pool.arrive(2, "standard", "t", SHORT, 0.0)
    assert pool.arrive(3, "interactive", "t", Shape(90, 10), 0.0) == []
    assert pool.retry(1, 1.0) == [sent(3, "a"), sent(1, "b")], "b has room for the first all along, but the head goes before it"


def test_refused_no_replicas_when_every_one_has_failed_it() -> None:
    pool = machine("a")
    pool.arrive(1, "standard", "t", SHORT, 0.0)
    pool.arrive(2, "standard", "t", SHORT, 0.0)
    assert pool.retry(1, 1.0) == [Refuse(1, Refusal.NO_REPLICAS, EJECT_S), sent(2, "a")]


def test_one_that_never_reached_its_replica_waits_for_it_to_come_back() -> None:
    """Who came after the roster had lost the replica was held, and who came a moment before was refused."""
    pool = machine("a")
    pool.arrive(1, "standard", "t", SHORT, 0.0)
    assert pool.set_roster(roster(), 1.0) == []
    assert pool.retry(1, 1.0, reached=False) == []
    pool.check()
    assert pool.next_deadline_s() == 1.0 + NO_REPLICAS_HOLD_S
    assert pool.set_roster(roster("a"), 5.0) == [sent(1, "a")]
    assert pool.retry(1, 6.0, reached=False) == [Refuse(1, Refusal.NO_REPLICAS, EJECT_S)], "one that is listed was a try"


def test_retries_are_bounded() -> None:
    names = [f"r{number}" for number in range(RETRIES_MAX + 5)]
    pool = machine(*names)
    pool.arrive(1, "standard", "t", SHORT, 0.0)
    for _ in range(RETRIES_MAX):
        assert isinstance(pool.retry(1, 1.0)[0], Dispatch)
    assert whys(pool.retry(1, 1.0)) == [(1, Refusal.NO_REPLICAS)]


def test_a_retry_is_not_counted_by_the_bound_of_the_queue_for_it_was_let_in_before() -> None:
    pool = machine("a", "b", queued_max=1)
    pool.arrive(1, "standard", "t", SHORT, 0.0)
    pool.arrive(2, "interactive", "t", SHORT, 0.0)
    pool.arrive(3, "standard", "t", SHORT, 0.0)
    pool.arrive(4, "standard", "t", SHORT, 0.0)
    assert pool.retry(1, 1.0) == [sent(3, "a")], "the first is excluded from a, and b is full"
    assert pool.load(1.0)[0][1].waiting == 1
    pool.check()


def test_the_end_of_an_ended_ticket_is_nothing_and_other_calls_for_it_are_errors() -> None:
    pool = machine("a")
    pool.arrive(1, "standard", "t", SHORT, 0.0)
    pool.arrive(2, "standard", "t", SHORT, 0.0)
    with pytest.raises(ValueError, match="has not ended"):
        pool.arrive(1, "standard", "t", SHORT, 0.0)
    with pytest.raises(ValueError, match="holds no permit"):
        pool.finish(2, None, 0.0)
    pool.finish(1, Usage(10, 11), 0.0)
    assert pool.outlived_total == 1
    assert pool.abandon(1, 0.0) == []
    with pytest.raises(ValueError, match="holds no permit"):
        pool.first_token(1, 0.0)
    with pytest.raises(ValueError, match="no tier 'gold'; it has interactive, standard, batch"):
        pool.arrive(3, "gold", "t", SHORT, 0.0)


# --- what is reported, and bounds -----------------------------------------------------------------------------------


def test_displacing_one_that_was_preempted_lets_nobody_in() -> None:
    """It is over the queue's bound already: the queue once held one more than it may for each that came back."""
    pool = machine("a", queued_max=1)
    pool.arrive(1, "batch", "t", SHORT, 0.0)
    pool.arrive(2, "interactive", "t", SHORT, 1.0)
    assert pool.preempted_total == 1
    assert pool.arrive(3, "interactive", "t", SHORT, 2.0) == []
    assert whys(pool.arrive(4, "interactive", "t", SHORT, 3.0)) == [(4, Refusal.QUEUE_FULL)]
    assert pool.waiting == 2
    pool.check()


@pytest.mark.parametrize(
    ("patience_s", "refused"), [(0.0, True), (-1.0, True), (0.4, True), (0.9, True), (1.0, False), (1.5, False), (math.inf, False)]
)
def test_whose_time_is_over_or_too_short_for_its_prompt_alone_starts_nowhere_though_there_is_room(patience_s: float, refused: bool) -> None:
    """It was started, and answered to nobody. What is only foreseen, such as how long an answer takes, refuses nobody who could start."""
    pool = machine("a", of=capacity(prefill_tokens=1000, per_s=10.0))
    effects = pool.arrive(1, "interactive", "t", SHORT, 5.0, patience_s=patience_s, whole=True)
    assert (effects == [Refuse(1, Refusal.OUT_OF_TIME, None)]) is refused
    assert (effects == [sent(1, "a")]) is not refused
    assert sum(replica.streams for replica in pool.load(5.0)[1]) == (0 if refused else 1)
    pool.check()


def test_a_prompt_that_may_be_cached_or_is_of_no_profile_is_not_certain_to_take_too_long() -> None:
    """A conversation of ten thousand tokens, of which the last hundred are new, takes no more than those to prefill."""
    long, prefix = Shape(prompt_tokens=500, output_tokens=10), Prefix((1, 2, 3, 4), 120)
    pool = machine("a", of=capacity(prefill_tokens=1000, per_s=100.0))
    pool.arrive(1, "interactive", "t", long, 0.0, prefix=prefix)
    pool.finish(1, Usage(500, 10), 1.0)
    assert pool.arrive(2, "interactive", "t", long, 2.0, patience_s=1.0, prefix=prefix) == [sent(2, "a")]
    other = Prefix((9,), 120)
    assert pool.arrive(3, "interactive", "t", long, 3.0, patience_s=1.0, prefix=other) == [Refuse(3, Refusal.OUT_OF_TIME, None)]
    unknown = machine("a", of=msgspec.structs.replace(capacity(prefill_tokens=1000, per_s=100.0), paced=False))
    assert unknown.arrive(1, "interactive", "t", long, 0.0, patience_s=1.0) == [sent(1, "a")]


def test_a_whole_answer_that_is_foreseen_to_take_too_long_is_not_refused_for_that_as_it_comes() -> None:
    """It was told so at once where it had to wait for a moment, though answers turn out shorter than they are estimated."""
    pool = machine("a", of=capacity(kv_tokens=10_000, prefill_tokens=1000, per_s=10.0))
    pool.arrive(1, "interactive", "t", SHORT, 0.0)
    assert pool.arrive(2, "interactive", "t", Shape(10, 5000), 0.0, patience_s=20.0, whole=True) == []
    assert pool.finish(1, Usage(10, 10), 3.0) == [sent(2, "a")]
    pool.arrive(3, "interactive", "t", Shape(10, 5000), 4.0, patience_s=20.0, whole=True)
    assert pool.advance(23.9) == []
    (refusal,) = pool.advance(24.0)
    assert isinstance(refusal, Refuse)
    assert refusal.why is Refusal.EXPIRED, "when its client has gone"


def test_whom_each_replica_has_failed_is_told_to_come_back_when_they_may_be_well_again() -> None:
    """It was told half a minute, as where nothing is there."""
    pool = machine("a", "b")
    assert pool.arrive(1, "interactive", "t", SHORT, 0.0) == [sent(1, "a")]
    assert pool.retry(1, 1.0) == [sent(1, "b")]
    assert pool.retry(1, 2.0) == [Refuse(1, Refusal.NO_REPLICAS, EJECT_S)]


def test_batch_of_a_client_that_waits_ten_minutes_is_not_due_as_it_comes() -> None:
    """Slots of two hours told an SDK's default of 600 s as due in 0 s: no start of a replica would have been in time for it."""
    for now_s in (0.0, 7_000.0, 7_250.0):
        pool = machine("a")
        pool.arrive(1, "batch", "t", SHORT, now_s)
        pool.arrive(2, "batch", "t", SHORT, now_s, patience_s=600.0)
        pool.arrive(3, "batch", "t", SHORT, now_s)
        soon, late = pool.load(now_s)[0][2].due
        assert (soon.requests, 540.0 <= soon.in_s <= 600.0) == (1, True)
        assert (late.requests, 79_200.0 <= late.in_s <= 86_400.0) == (1, True)
        pool.check()


def test_load_tells_until_when_what_waits_of_a_preemptible_tier_must_have_begun() -> None:
    """Batch may wait for a day: slots of two hours. Whoever is sent away keeps what was left of its day, and what its client gave it."""
    pool = machine("a")
    slot_s = 7200.0
    pool.arrive(1, "batch", "t", SHORT, 0.0)
    for ticket, at_s in ((2, 10.0), (3, 20.0), (4, slot_s + 1.0)):
        pool.arrive(ticket, "batch", "t", SHORT, at_s)
    now_s = slot_s + 2.0
    assert pool.load(now_s)[0][2].due == (Due(12 * slot_s - now_s, 2), Due(13 * slot_s - now_s, 1))
    pool.arrive(5, "interactive", "t", SHORT, now_s)  # takes the first one's place, which had all of its day left
    assert pool.load(now_s)[0][2].due == (Due(12 * slot_s - now_s, 2), Due(13 * slot_s - now_s, 2))
    pool.arrive(6, "batch", "t", SHORT, now_s, patience_s=slot_s)
    assert pool.load(now_s)[0][2].due[0] == Due(slot_s - 2.0, 1)
    assert all(not lane.due for lane in pool.load(now_s)[0][:2])
    for ticket in (2, 3, 4, 6):
        pool.check()
        pool.abandon(ticket, now_s)
    pool.finish(5, None, now_s)
    assert pool.load(now_s)[0][2].due == ()
    pool.check()


def test_load_tells_what_waits_and_what_runs_net_of_preemptible() -> None:
    pool = machine("a", of=capacity(sequences=2))
    pool.arrive(1, "batch", "t", SHORT, 0.0)
    pool.first_token(1, 0.0)
    pool.arrive(2, "standard", "t", SHORT, 0.0)
    pool.arrive(3, "standard", "t", Shape(5, 7), 4.0)
    pool.emitted(1, 3)
    lanes, replicas = pool.load(10.0)
    assert lanes == (
        LaneLoad("interactive", False, 0, 0, 0.0),
        LaneLoad("standard", False, 1, 12, 6.0),
        LaneLoad("batch", True, 0, 0, 0.0),
    )
    assert replicas == (
        ReplicaLoad("a", streams=2, kv_tokens=23, preemptible_streams=1, preemptible_kv_tokens=13, kv_tokens_least=13, kv_tokens_most=55),
    )


def test_what_was_abandoned_in_the_middle_is_not_kept_for_ever() -> None:
    pool = machine("a", queued_max=1000)
    pool.arrive(0, "batch", "t", SHORT, 0.0)
    pool.arrive(1, "batch", "t", SHORT, 0.0)
    for ticket in range(2, 2000):
        pool.arrive(ticket, "batch", "t", SHORT, 0.0)
        pool.abandon(ticket, 0.0)
    lane = pool._lanes[2]
    assert len(lane.deadlines.live()) <= 70
    assert len(lane.order.accounts["t"]._line) <= 70
    assert len(lane.deadlines._heap) <= 140
    pool.check()


def test_a_pool_without_tiers_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one tier"):
        Admission("chat", (), 10)


def test_what_is_left_is_estimated_anew_from_what_was_emitted() -> None:
    seen = []

    def outlook(team: str, emitted: int) -> int | None:
        seen.append((team, emitted))
        return 400 if emitted < 300 else None

    pool = Admission("chat", TIERS, 10, outlook=outlook)
    pool.set_roster(roster("a", of=capacity(kv_tokens=1000, sequences=10)), 0.0)
    pool.arrive(1, "standard", "t", Shape(100, 200), 0.0)
    for _ in range(12):
        pool.emitted(1, 32)
    assert seen == [("t", 64), ("t", 128), ("t", 192), ("t", 288)]
    replica = pool._replicas.listed[0]
    assert replica.worst_tokens == 100 + 400
    pool.check()
    capped = Admission("chat", TIERS, 10, outlook=outlook)
    capped.set_roster(roster("a", of=capacity(kv_tokens=1000, sequences=10)), 0.0)
    capped.arrive(1, "standard", "t", Shape(100, 200, output_tokens_max=250), 0.0)
    capped.emitted(1, 64)
    assert capped._replicas.listed[0].worst_tokens == 100 + 250


def test_what_a_corrected_budget_is_too_small_for_runs_alone() -> None:
    corrected = Capacity(800, 4, 1000, 0.0, 0.0, context_tokens=1000, kv_tokens_alone=1000)
    pool = machine("a", of=corrected)
    assert pool.arrive(1, "standard", "t", Shape(500, 400), 0.0) == [sent(1, "a")]
    assert pool.arrive(2, "standard", "t", Shape(500, 400), 0.0) == []
    assert pool.finish(1, None, 3.0) == [sent(2, "a")]
    assert whys(pool.arrive(3, "standard", "t", Shape(700, 400), 3.0)) == [(3, Refusal.NEVER_FITS)]
