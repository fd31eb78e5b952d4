"""Who waits and won't be started in time is told so when that is known, not when the time is over; and nobody else is."""

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.admission.effects import Dispatch, Refuse
from forebay.admission.machine import Admission
from forebay.admission.outcomes import Refusal
from forebay.domain.roster import Capacity, RosterPool, RosterReplica
from forebay.domain.shape import Shape, Usage
from forebay.spec.types import Tier

TIERS = (Tier("top", rank=0, ttft_s=1, longest_wait_s=30), Tier("low", rank=1, ttft_s=3600, longest_wait_s=86_400, preemptible=True))
SHAPE = Shape(100, 50)
ONE_SLOT = RosterPool("chat", (RosterReplica("r0", "http://r0", Capacity(10**6, 1, 10**6, 0.0, 0.0, 10**6)),))


def burst(count: int, tier: str = "top", teams: tuple[str, ...] = ("t",)) -> Admission:
    """So many at once, before there is any pace."""
    pool = Admission("chat", TIERS, 10_000)
    pool.set_roster(ONE_SLOT, 0.0)
    for ticket in range(count):
        pool.arrive(ticket, tier, teams[ticket % len(teams)], SHAPE, 0.0)
    return pool


def played(
    pool: Admission, each_s: float, until_s: float = 40.0, *, looks: bool = True
) -> tuple[list[int], dict[int, tuple[float, Refusal]]]:
    """One slot, each request takes as long: who was started, and who was refused when and why."""
    started, refused = [0], {}
    now_s = next_s = 0.0
    while now_s < until_s:
        now_s += 0.5
        effects = [*pool.advance(now_s), *(pool.foresee(now_s) if looks else ())]
        if now_s - next_s >= each_s and pool.runs(started[-1]):
            next_s = now_s
            effects += pool.finish(started[-1], Usage(100, 50), now_s)
        for effect in effects:
            if isinstance(effect, Dispatch):
                started.append(effect.ticket)
            elif isinstance(effect, Refuse):
                refused[effect.ticket] = now_s, effect.why
        pool.check()
    return started, refused


def test_a_burst_that_came_before_there_was_a_pace_is_told_when_there_is_one():
    """All of them waited for their thirty seconds, though after ten it was plain that most of them would in vain."""
    started, refused = played(burst(100), each_s=2.0)
    assert len(started) == 15
    early = [ticket for ticket, (at_s, why) in refused.items() if at_s <= 12.0 and why is Refusal.WOULD_EXPIRE]
    assert len(early) > 70
    assert min(early) > 15, "those that were before them"
    assert sum(why is Refusal.EXPIRED for _, why in refused.values()) <= 8


def test_who_makes_it_is_never_told_otherwise():
    started, refused = played(burst(15), each_s=2.0)
    assert started == list(range(15))
    assert refused == {}


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 60), st.floats(0.5, 9.0), st.integers(1, 3))
def test_as_many_are_started_as_without_it(count, each_s, teams):
    names = tuple(f"t{number}" for number in range(teams))
    with_it, _ = played(burst(count, teams=names), each_s)
    without, _ = played(burst(count, teams=names), each_s, looks=False)
    assert len(with_it) == len(without)


def test_what_may_wait_for_hours_is_not_foreseen():
    _, refused = played(burst(400, tier="low"), each_s=2.0)
    assert refused == {}


def test_replicas_that_are_expected_in_time_are_waited_for():
    pool = burst(100)
    pool.set_roster(RosterPool("chat", ONE_SLOT.replicas, next_ready_in_s=25.0), 0.0)
    _, refused = played(pool, each_s=2.0, until_s=20.0)
    assert refused == {}
