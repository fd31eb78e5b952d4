"""Deadlines of clients, Retry-After by team, and where a request stands."""

import pytest

from forebay.admission.budget import LAG_S
from forebay.admission.effects import Dispatch, Refuse
from forebay.admission.machine import Admission
from forebay.admission.outcomes import Refusal
from forebay.domain.roster import Capacity, RosterPool, RosterReplica
from forebay.domain.shape import Shape, Usage
from forebay.spec.types import Tier

TIERS = (Tier("top", rank=0, ttft_s=1, longest_wait_s=30), Tier("low", rank=1, ttft_s=60, longest_wait_s=500))
SHAPE = Shape(100, 50)  # 200 virtual tokens


def pool_of(per_s: float = 0.0, queued_max: int = 1000) -> Admission:
    pool = Admission("chat", TIERS, queued_max)
    capacity = Capacity(10**6, 1, 10**6, per_s, per_s, 10**6)
    pool.set_roster(RosterPool("chat", (RosterReplica("r0", "http://r0", capacity),)), 0.0)
    return pool


def drained(pool: Admission, tier: str, team: str, count: int) -> int:
    """One request a second of those that wait; returns the one that runs."""
    pool.arrive(0, tier, team, SHAPE, 0.0)
    for ticket in range(1, count):
        pool.arrive(ticket, tier, team, SHAPE, 0.0)
    running = 0
    for second in range(1, 11):
        (effect,) = pool.finish(running, Usage(100, 50), float(second))
        assert isinstance(effect, Dispatch)
        running = effect.ticket
    return running


def test_a_client_that_waits_less_than_its_tier_is_refused_when_it_has_gone_and_not_later() -> None:
    pool = pool_of()
    pool.arrive(0, "low", "t", SHAPE, 0.0)
    pool.arrive(1, "low", "t", SHAPE, 0.0, patience_s=7.0)
    assert pool.next_deadline_s() == 7.0
    (refusal,) = pool.advance(7.0)
    assert isinstance(refusal, Refuse)
    assert refusal.why is Refusal.EXPIRED


def test_whom_a_guess_takes_for_too_late_as_it_comes_may_be_the_next_to_start() -> None:
    """It was refused at once by the pace of all that waits, though the most urgent of its team goes first."""
    pool = pool_of()
    running = drained(pool, "low", "t", 40)
    assert pool.arrive(90, "low", "t", SHAPE, 10.0) == [], "the tier would wait"
    assert pool.arrive(91, "low", "t", SHAPE, 10.0, patience_s=5.0) == []
    assert [effect.ticket for effect in pool.finish(running, None, 11.0)] == [91]


@pytest.mark.parametrize(("patience_s", "refused"), [(5.0, True), (60.0, False)])
def test_whom_more_important_work_alone_makes_too_late_for_its_client_is_told_so_at_once(patience_s: float, refused: bool) -> None:
    pool = pool_of()
    drained(pool, "low", "t", 40)
    for ticket in range(50, 70):
        pool.arrive(ticket, "top", "t", SHAPE, 10.0)
    effects = pool.arrive(90, "low", "u", SHAPE, 10.0, patience_s=patience_s)
    assert [effect.why for effect in effects if isinstance(effect, Refuse)] == ([Refusal.WOULD_EXPIRE] if refused else [])


def test_what_can_not_start_in_time_for_its_client_is_told_so_at_the_next_look() -> None:
    pool = pool_of()
    drained(pool, "low", "t", 40)
    for ticket in range(90, 110):
        assert pool.arrive(ticket, "low", "t", SHAPE, 10.0, patience_s=5.0) == []
    refusals = pool.foresee(12.0)
    assert {effect.why for effect in refusals if isinstance(effect, Refuse)} == {Refusal.WOULD_EXPIRE}
    assert 12 <= len(refusals) < 20, "about five start in time"


def test_prefill_and_a_whole_answer_take_from_what_a_client_waits() -> None:
    pool = pool_of(per_s=10.0)
    pool.arrive(0, "low", "t", SHAPE, 0.0)
    pool.arrive(1, "low", "t", SHAPE, 0.0, patience_s=50.0)
    assert pool.next_deadline_s() == 40.0, "10 s of prefill"
    pool.arrive(2, "low", "t", SHAPE, 0.0, patience_s=50.0, whole=True)
    assert pool.next_deadline_s() == 35.0, "and 5 s of decoding"


def test_the_most_urgent_client_of_a_team_goes_first() -> None:
    pool = pool_of()
    pool.arrive(0, "low", "t", SHAPE, 0.0)
    pool.arrive(1, "low", "t", SHAPE, 0.0)
    pool.arrive(2, "low", "t", SHAPE, 0.0, patience_s=20.0)
    assert [effect.ticket for effect in pool.finish(0, None, 1.0)] == [2]


def test_a_team_with_nothing_in_line_is_not_told_to_wait_for_anothers_backlog() -> None:
    pool = pool_of(queued_max=60)
    drained(pool, "low", "hog", 61)
    for ticket in range(100, 110):
        pool.arrive(ticket, "low", "hog", SHAPE, 10.0)
    (hog,) = pool.arrive(901, "low", "hog", SHAPE, 10.0)
    assert isinstance(hog, Refuse)
    assert hog.retry_after_s == pytest.approx(60.0, rel=0.1)
    pool.arrive(902, "low", "guest", SHAPE, 10.0)
    guest = pool.position(902, 10.0)
    assert guest is not None
    assert guest.ahead == 0
    other = pool._waiting.lanes[1].order.account("third")
    assert pool._waiting.lanes[1].order.ahead(other, 0)[0] == 0


def test_a_position_counts_what_fairness_starts_first() -> None:
    pool = pool_of()
    running = drained(pool, "low", "hog", 31)
    for ticket in (900, 901, 902):
        pool.arrive(ticket, "low", "guest", SHAPE, 10.0)
    assert pool.position(12345, 10.0) is None
    at = pool.position(running, 11.0)
    assert at is not None
    assert not at.waiting
    places = [pool.position(ticket, 10.0) for ticket in (900, 901, 902)]
    assert [place.ahead for place in places if place is not None] == [0, 2, 4]
    last = pool.position(30, 10.0)
    assert last is not None
    assert last.ahead == 19 + 3
    assert last.starts_in_s == pytest.approx(22.0, rel=0.2)
    assert last.refused_in_s == 490.0
    pool.arrive(950, "top", "x", SHAPE, 12.0)
    behind = pool.position(900, 12.0)
    assert behind is not None
    assert behind.ahead == 1


def test_positions_tell_who_goes_next() -> None:
    pool = pool_of()
    pool.arrive(0, "low", "a", SHAPE, 0.0)
    for ticket in range(1, 20):
        pool.arrive(ticket, "low", "abc"[ticket % 3], Shape(100 + ticket, 50), 1.0)
    running = 0
    for second in range(2, 21):
        waiting = [ticket for ticket in range(1, 20) if (place := pool.position(ticket, float(second))) is not None and place.waiting]
        nearest = min(waiting, key=lambda ticket: pool.position(ticket, float(second)).ahead_tokens)  # type: ignore[union-attr]
        assert pool.position(nearest, float(second)).ahead == 0  # type: ignore[union-attr]
        (effect,) = pool.finish(running, None, float(second))
        running = effect.ticket


def test_the_prefill_of_an_answer_that_comes_whole_is_foreseen_and_others_start_then() -> None:
    """Nothing tells of its first token: its prompt must not keep others out for as long as it is answered."""
    pool = Admission("chat", TIERS, 100)
    capacity = Capacity(10**6, 10, 1000, 100.0, 100.0, 10**6)
    pool.set_roster(RosterPool("chat", (RosterReplica("r0", "http://r0", capacity),)), 0.0)
    pool.arrive(0, "low", "t", Shape(800, 500), 0.0, whole=True)
    pool.arrive(1, "low", "t", Shape(100, 500), 0.0, whole=True)
    assert pool.arrive(2, "low", "t", Shape(300, 500), 0.0) == []
    assert pool.next_deadline_s() == 8.0 + LAG_S, "800 tokens at 100 a second"
    assert pool.advance(7.9) == []
    assert [effect.ticket for effect in pool.advance(8.0 + LAG_S)] == [2]
    pool.check()
    assert len(pool.arrive(3, "low", "t", Shape(700, 5), 9.0 + LAG_S)) == 1, "the second is prefilled too; the third will tell"
    assert len(pool.arrive(4, "low", "t", Shape(1, 5), 9.0 + LAG_S)) == 0
