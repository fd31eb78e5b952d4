"""Requests that only one replica can serve: they wait for that one's room, are refused once it is out, and keep no other from anybody."""

import pytest
from test_admission_machine import SHORT, capacity, machine, roster, sent, whys

from forebay.admission.outcomes import Refusal, Shortage
from forebay.admission.pump import SKIPS_MAX
from forebay.admission.waiting import LOOK_MAX
from forebay.admission.waits import HOLDER_RETRY_S
from forebay.domain.roster import Posture
from forebay.domain.shape import Shape

TWO = capacity(sequences=2)


def test_it_starts_where_it_must_though_another_has_more_room() -> None:
    pool = machine("a", "b", of=TWO)
    pool.arrive(1, "interactive", "t", SHORT, 0.0, only="a")
    assert pool.arrive(2, "interactive", "t", SHORT, 0.0, only="a") == [sent(2, "a")]
    pool.check()


def test_it_waits_for_the_room_of_that_one_beside_another_that_is_idle() -> None:
    pool = machine("a", "b")
    pool.arrive(1, "interactive", "t", SHORT, 0.0, only="a")
    assert pool.arrive(2, "interactive", "t", SHORT, 0.0, only="a") == []
    position = pool.position(2, 1.0)
    assert position is not None
    assert position.short_of is Shortage.SLOTS
    assert pool.finish(1, None, 2.0) == [sent(2, "a")]
    assert [(one.replica, one.short_of) for one in pool.weighed(2).candidates] == [("a", ""), ("b", Shortage.ELSEWHERE)]
    pool.check()


def test_it_expires_as_any_other() -> None:
    pool = machine("a", "b")
    pool.arrive(1, "interactive", "t", SHORT, 0.0, only="a")
    pool.arrive(2, "interactive", "t", SHORT, 0.0, only="a")
    assert whys(pool.advance(30.0)) == [(2, Refusal.EXPIRED)]


@pytest.mark.parametrize("waiting", [1, LOOK_MAX + 1, 60])
def test_those_that_wait_for_a_full_replica_keep_nobody_from_one_that_is_idle(waiting: int) -> None:
    """More of them stand before it than are looked at behind a head, and it is passed by more than a head lets past."""
    pool = machine("a", "b", queued_max=1000)
    pool.arrive(0, "interactive", "t", SHORT, 0.0, only="a")
    for ticket in range(1, waiting + 1):
        assert pool.arrive(ticket, "interactive", f"team-{ticket % 3}", SHORT, 0.0, only="a") == []
    for ticket in range(1000, 1000 + 2 * SKIPS_MAX):
        assert pool.arrive(ticket, "interactive", "other", SHORT, 0.0) == [sent(ticket, "b")]
        assert pool.arrive(ticket + 500, "interactive", "other", SHORT, 0.0) == [], "it waits for the first of the two"
        assert pool.finish(ticket, None, 0.0) == [sent(ticket + 500, "b")]
        assert pool.finish(ticket + 500, None, 0.0) == []
        pool.check()
    assert pool.finish(0, None, 0.0)[0].ticket <= waiting, "and who waits for it has its replica next"


def test_a_shedding_pool_starts_what_can_start_at_once_beside_those_that_wait_for_another_replica() -> None:
    pool = machine("a", "b")
    pool.arrive(1, "interactive", "t", SHORT, 0.0, only="a")
    pool.arrive(2, "interactive", "t", SHORT, 0.0, only="a")
    pool.set_roster(roster("a", "b", posture=Posture.SHED_LOW), 0.0)
    assert pool.arrive(3, "standard", "t", SHORT, 0.0) == [sent(3, "b")]


def test_a_large_one_is_not_passed_for_ever_on_its_own_replica() -> None:
    pool = machine("a", "b", of=capacity(kv_tokens=100, sequences=4))
    large = Shape(80, 10)
    pool.arrive(0, "interactive", "t", SHORT, 0.0, only="a")
    assert pool.arrive(1, "interactive", "t", large, 0.0, only="a") == []
    running, started = 0, 0
    for ticket in range(2, 2 + 2 * SKIPS_MAX):
        effects = pool.arrive(ticket, "interactive", "t", SHORT, 0.0, only="a")
        if effects == [sent(ticket, "a")]:
            started += 1
            pool.finish(running, None, 0.0)
            running = ticket
        pool.check()
    assert started == SKIPS_MAX
    assert pool.arrive(100, "interactive", "t", SHORT, 0.0) == [sent(100, "b")], "nothing is kept elsewhere"
    assert pool.finish(running, None, 0.0)[0] == sent(1, "a")


def test_space_is_kept_on_each_replica_for_one_that_only_that_can_serve() -> None:
    pool = machine("a", "b", of=capacity(kv_tokens=100, sequences=9), queued_max=1000)
    for number, replica in enumerate("ab"):
        pool.arrive(number, "interactive", "t", Shape(20, 20), 0.0, only=replica)
        pool.arrive(10 + number, "interactive", "t", Shape(80, 10), 0.0, only=replica)
    for number in range(2 * SKIPS_MAX):
        for at, replica in enumerate("ab"):
            ticket = 100 + 2 * number + at
            if pool.arrive(ticket, "interactive", "t", SHORT, 0.0, only=replica):
                pool.finish(ticket, None, 0.0)
            pool.check()
    assert sent(11, "b") in pool.finish(1, None, 0.0), "each has its replica once that is empty"
    assert sent(10, "a") in pool.finish(0, None, 0.0)


def test_it_takes_the_place_of_batch_on_its_own_replica_alone() -> None:
    pool = machine("a", "b")
    pool.arrive(1, "batch", "t", SHORT, 0.0, only="a")
    pool.arrive(2, "batch", "t", SHORT, 0.0, only="b")
    effects = pool.arrive(3, "interactive", "t", SHORT, 1.0, only="b")
    assert sent(3, "b") in effects
    assert [effect.ticket for effect in effects] == [2, 3]
    assert pool.finish(3, None, 2.0) == [sent(2, "b")], "and that waits for its own again"
    pool.check()


def test_what_waits_for_its_replica_does_not_keep_others_from_taking_the_place_of_batch() -> None:
    pool = machine("a", "b")
    pool.arrive(1, "interactive", "t", SHORT, 0.0, only="a")
    pool.arrive(2, "batch", "t", SHORT, 0.0)
    pool.arrive(3, "interactive", "t", SHORT, 0.0, only="a")
    assert sent(4, "b") in pool.arrive(4, "interactive", "t", SHORT, 1.0)
    pool.check()


@pytest.mark.parametrize("listed", [("b",), ()])
def test_one_whose_replica_is_out_is_refused_at_once_and_not_held(listed: tuple[str, ...]) -> None:
    pool = machine(*listed)
    (refused,) = pool.arrive(1, "interactive", "t", SHORT, 0.0, only="a")
    assert (refused.why, refused.retry_after_s) == (Refusal.HOLDER_OUT, HOLDER_RETRY_S)


def test_those_that_wait_are_told_as_soon_as_their_replica_is_out() -> None:
    """Not when they would have been next, or have waited as long as their tier accepts."""
    pool = machine("a", "b", queued_max=100)
    pool.arrive(0, "interactive", "t", SHORT, 0.0)
    pool.arrive(1, "interactive", "t", SHORT, 0.0)
    pool.arrive(2, "interactive", "t", SHORT, 0.0)
    for ticket in range(3, 20):
        pool.arrive(ticket, "interactive", "t", SHORT, 0.0, only="a")
    effects = pool.set_roster(roster("b"), 1.0)
    assert whys(effects) == [(ticket, Refusal.HOLDER_OUT) for ticket in range(3, 20)]
    assert pool.waiting == 1
    pool.check()


def test_one_that_its_replica_failed_is_refused_and_tried_nowhere_else() -> None:
    pool = machine("a", "b")
    pool.arrive(1, "interactive", "t", SHORT, 0.0, only="a")
    assert whys(pool.retry(1, 0.0)) == [(1, Refusal.HOLDER_OUT)]
    pool.check()


def test_one_that_its_replica_could_never_hold_is_told_that() -> None:
    pool = machine("a", of=capacity(kv_tokens=100))
    assert whys(pool.arrive(1, "interactive", "t", Shape(200, 10), 0.0, only="a")) == [(1, Refusal.NEVER_FITS)]
