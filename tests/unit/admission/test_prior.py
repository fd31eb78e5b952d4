"""Overload in the first seconds of a gateway: who can't start in time is told at once, and for how long to stay away."""

import heapq
import random

import pytest

from forebay.admission.effects import Dispatch, Refuse
from forebay.admission.machine import Admission
from forebay.admission.outcomes import RETRY_AFTER_S_MAX, Refusal
from forebay.admission.prior import ENDED_MAX, ENDED_MIN, MARGIN, RUN_S_MIN, Served
from forebay.domain.roster import Capacity, RosterPool, RosterReplica
from forebay.domain.shape import Shape, Usage
from forebay.spec.types import Tier

TIERS = (Tier("interactive", rank=0, ttft_s=1, longest_wait_s=30),)
SHAPE = Shape(100, 100)  # 300 virtual tokens
SLOTS = 8


def pool_of(paced: bool = False, per_s: float = 0.0, slots: int = SLOTS, queued_max: int = 10_000) -> Admission:
    pool = Admission("chat", TIERS, queued_max)
    capacity = Capacity(10**6, slots, 10**6, 10 * per_s or 1e4, per_s or 1e3, 10**6, paced=paced)
    pool.set_roster(RosterPool("chat", (RosterReplica("r0", "http://r0", capacity),)), 0.0)
    return pool


class Played:
    """A pool whose requests each take a time of their own once they are started, and ``per_s`` of which come."""

    def __init__(self, pool: Admission, seed: int, per_s: float, until_s: float, mean_s: float) -> None:
        chance = random.Random(seed)
        self.refused: list[tuple[float, float, Refuse]] = []
        """When it came, when it was refused, and what it was told."""
        self.started: list[float] = []
        self.pool = pool
        self._chance, self._mean_s = chance, mean_s
        self._agenda: list[tuple[float, int, bool]] = []
        self._came: dict[int, float] = {}
        at_s, ticket = 0.0, 0
        while (at_s := at_s + chance.expovariate(per_s)) < until_s:
            ticket += 1
            heapq.heappush(self._agenda, (at_s, ticket, True))
        while self._agenda:
            at_s, ticket, comes = heapq.heappop(self._agenda)
            while (due_s := pool.next_deadline_s()) is not None and due_s <= at_s:
                self._take(pool.advance(due_s), due_s)
            if comes:
                self._came[ticket] = at_s
                self._take(pool.arrive(ticket, "interactive", f"team-{ticket % 3}", SHAPE, at_s), at_s)
            else:
                self._take(pool.finish(ticket, Usage(100, 100), at_s), at_s)

    def _take(self, effects, now_s):
        for effect in effects:
            if isinstance(effect, Refuse):
                self.refused.append((self._came[effect.ticket], now_s, effect))
            elif isinstance(effect, Dispatch):
                self.started.append(now_s)
                heapq.heappush(self._agenda, (now_s + self._chance.uniform(0.5, 1.5) * self._mean_s, effect.ticket, False))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("paced", "at_once"), [(True, 0.93), (False, 0.87)])
def test_a_fresh_gateway_that_is_overloaded_refuses_at_once_and_serves_as_much(seed, paced, at_once):
    """8 slots of 20 s, and 8 a second come: what can start within 30 s is full after 3 s; a lane's own pace is known after about 20."""
    played = Played(pool_of(paced, per_s=40.0), seed, per_s=8.0, until_s=60.0, mean_s=20.0)
    soon = [ended_s - came_s < 1.0 for came_s, ended_s, _ in played.refused]
    assert sum(soon) >= at_once * len(soon)
    assert {refusal.why for _, _, refusal in played.refused} <= {Refusal.WOULD_EXPIRE, Refusal.EXPIRED}
    assert len(played.started) >= 0.9 * 0.4 * (60.0 + 30.0), "nothing of the 60 s, and of the line at their end, is lost by refusing"
    told = [refusal.retry_after_s for _, _, refusal in played.refused if refusal.why is Refusal.WOULD_EXPIRE]
    assert all(25.0 <= each <= RETRY_AFTER_S_MAX for each in told)


@pytest.mark.parametrize("seed", range(4))
def test_a_burst_that_can_be_served_in_time_is_not_refused(seed):
    """40 at once over 8 slots of 4 s: the last starts after 20 s."""
    for paced in (True, False):
        played = Played(pool_of(paced, per_s=200.0), seed, per_s=400.0, until_s=0.1, mean_s=4.0)
        assert len(played.refused) == 0


def test_a_declared_pace_refuses_before_anything_has_ended():
    pool = pool_of(paced=True, per_s=100.0)
    for ticket in range(SLOTS + 46):
        assert not any(isinstance(effect, Refuse) for effect in pool.arrive(ticket, "interactive", "t", SHAPE, 0.0)), ticket
    (refusal,) = pool.arrive(999, "interactive", "t", SHAPE, 0.0)
    assert isinstance(refusal, Refuse)
    assert refusal.why is Refusal.WOULD_EXPIRE
    assert refusal.retry_after_s == pytest.approx(MARGIN * 30.0, rel=0.05)


def test_a_guessed_pace_refuses_nobody_until_what_runs_has_shown_it():
    pool = pool_of(paced=False, per_s=1.0)
    for ticket in range(SLOTS + 80):
        assert not any(isinstance(effect, Refuse) for effect in pool.arrive(ticket, "interactive", "t", SHAPE, 0.0))
    assert pool.position(SLOTS, 0.0).starts_in_s is None
    assert pool.arrive(998, "interactive", "t", SHAPE, RUN_S_MIN - 1.0) == []
    (refusal,) = pool.arrive(999, "interactive", "t", SHAPE, RUN_S_MIN)
    assert isinstance(refusal, Refuse)
    assert refusal.why is Refusal.WOULD_EXPIRE, "81 wait, and 8 in 5 s is the most that is possible"
    assert refusal.retry_after_s == pytest.approx(81 / 8 * 5, rel=0.01)


def test_who_waited_in_vain_is_not_told_to_come_back_at_once():
    """Those that expired last, with nothing before them any more, were told 1 s: into the same slots, taken by the same long requests."""
    pool = pool_of(paced=False, slots=1)
    pool.arrive(0, "interactive", "t", SHAPE, 0.0)
    pool.arrive(1, "interactive", "newcomer", SHAPE, 0.0)
    (refusal,) = pool.advance(30.0)
    assert isinstance(refusal, Refuse)
    assert refusal.why is Refusal.EXPIRED
    assert refusal.retry_after_s == pytest.approx(30.0, rel=0.01)


def test_the_pace_is_of_the_last_requests_and_of_what_runs():
    served = Served()
    pool = pool_of()
    replicas = pool._replicas.listed
    assert served.tokens_per_s(replicas, 0.0) is None
    pool.arrive(1, "interactive", "t", SHAPE, 0.0)
    pool.arrive(2, "interactive", "t", SHAPE, 0.0)
    for _ in range(int(ENDED_MIN) - 1):
        served.ended(300, 10.0)
    assert served.tokens_per_s(replicas, 0.0) is None
    served.ended(300, 10.0)
    assert served.tokens_per_s(replicas, 0.0) == pytest.approx(60.0)
    for _ in range(int(5 * ENDED_MAX)):
        served.ended(300, 1.0)
    assert served.tokens_per_s(replicas, 0.0) == pytest.approx(600.0, rel=0.05)


def test_a_pool_that_stands_still_is_told_by_the_age_of_what_runs():
    pool = pool_of()
    replicas = pool._replicas.listed
    served = Served()
    assert served.best_per_s(replicas, 0.0) is None
    pool.arrive(1, "interactive", "t", SHAPE, 0.0)
    pool.arrive(2, "interactive", "t", SHAPE, 0.0)
    assert served.best_per_s(replicas, RUN_S_MIN - 1) is None
    assert served.best_per_s(replicas, 10.0) == pytest.approx(60.0)
    assert served.best_per_s(replicas, 60.0) == pytest.approx(10.0)
