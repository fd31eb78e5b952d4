"""What is preemptible waits for a scheduled event, whatever room there is, and goes on once it is over."""

import pytest

from forebay.admission.effects import Dispatch
from forebay.admission.machine import Admission
from forebay.admission.outcomes import Shortage
from forebay.domain.roster import Capacity, Posture, RosterPool, RosterReplica
from forebay.domain.shape import Shape, Usage
from forebay.spec.types import DEFAULT_TIERS

SHAPE = Shape(100, 50)


def roster(posture: Posture, slots: int = 4) -> RosterPool:
    return RosterPool("chat", (RosterReplica("r0", "http://r0", Capacity(10**6, slots, 10**6, 1e4, 1e3, 10**6)),), posture)


def pool_of(posture: Posture = Posture.HOLD_PREEMPTIBLE, slots: int = 4) -> Admission:
    pool = Admission("chat", DEFAULT_TIERS, 100)
    pool.set_roster(roster(posture, slots), 0.0)
    return pool


def started(effects: list) -> list[int]:
    return [effect.ticket for effect in effects if isinstance(effect, Dispatch)]


def test_batch_waits_while_all_others_start() -> None:
    pool = pool_of()
    assert pool.arrive(1, "batch", "t", SHAPE, 0.0) == []
    assert started(pool.arrive(2, "interactive", "t", SHAPE, 1.0)) == [2]
    assert started(pool.arrive(3, "standard", "t", SHAPE, 1.0)) == [3]
    assert pool.finish(2, Usage(100, 50), 2.0) == []
    assert pool.advance(10.0) == []
    at = pool.position(1, 10.0)
    assert at is not None
    assert at.short_of is Shortage.EVENT
    assert started(pool.set_roster(roster(Posture.OPEN), 60.0)) == [1]
    pool.check()


def test_what_runs_goes_on_and_may_be_passed_over_for_others() -> None:
    pool = pool_of(Posture.OPEN, slots=1)
    assert started(pool.arrive(1, "batch", "t", SHAPE, 0.0, whole=True)) == [1]
    assert pool.set_roster(roster(Posture.HOLD_PREEMPTIBLE, 1), 1.0) == []
    assert pool.runs(1)
    assert started(pool.arrive(2, "interactive", "t", SHAPE, 2.0)) == [2], "it gives its place up as ever"
    assert pool.finish(2, Usage(100, 50), 3.0) == [], "and is held back then"
    assert started(pool.set_roster(roster(Posture.OPEN, 1), 60.0)) == [1]


def test_nothing_is_owed_to_it_for_the_time_it_was_held() -> None:
    """Else it would go before everybody when the event has begun."""
    pool = pool_of(slots=1)
    pool.arrive(0, "batch", "t", SHAPE, 0.0)
    for ticket in range(1, 60):
        pool.arrive(ticket, "interactive", "t", SHAPE, 0.0)
    for ticket in range(1, 50):
        assert started(pool.finish(ticket, Usage(100, 50), float(ticket) / 10)) == [ticket + 1]
    pool.set_roster(roster(Posture.OPEN, 1), 6.0)
    assert started(pool.finish(50, Usage(100, 50), 7.0)) == [51]


@pytest.mark.parametrize("posture", list(Posture))
def test_only_shedding_refuses(posture: Posture) -> None:
    pool = pool_of(posture, slots=1)
    pool.arrive(1, "interactive", "t", SHAPE, 0.0)
    effects = pool.arrive(2, "batch", "t", SHAPE, 0.0)
    assert bool(effects) is posture.sheds
