"""What those who wait are told, held against when they started: over a cold start, a fleet that grows, and an overload that goes on."""

import heapq
import random
from collections.abc import Iterator

import pytest

from forebay.admission.effects import Dispatch, Effect, Refuse
from forebay.admission.machine import Admission
from forebay.admission.outcomes import RETRY_AFTER_S_MAX
from forebay.domain.roster import Capacity, Posture, RosterPool, RosterReplica
from forebay.domain.shape import Shape, Usage
from forebay.spec.types import Tier

TIERS = (Tier("interactive", rank=0, ttft_s=2, longest_wait_s=60), Tier("batch", rank=1, ttft_s=60, longest_wait_s=900, preemptible=True))
SHAPE = Shape(100, 100)
SLOTS = 4
Change = tuple[float, int, float | None]


class Foretold:
    """``comes``: when. Each takes about ``mean_s``. Who waits is asked every ``each_s`` until ``asked_until_s``."""

    def __init__(self, comes: Iterator[float], changes: tuple[Change, ...], mean_s: float, asked_until_s: float, each_s: int = 1) -> None:
        self.pool = Admission("chat", TIERS, 10_000)
        self.ratios: list[tuple[float, float]] = []
        """When it was told, and told ÷ real."""
        self.unknown = 0
        self.refused: list[Refuse] = []
        self._mean_s, self._chance = mean_s, random.Random(1)
        self._told: dict[int, list[tuple[float, float | None]]] = {}
        self._agenda: list[tuple[float, int, object]] = [(at_s, number, "come") for number, at_s in enumerate(comes, 1)]
        self._agenda += [(change[0], 0, change) for change in changes]
        self._agenda += [(second + 0.001, 0, "look") for second in range(0, int(asked_until_s), each_s)]
        heapq.heapify(self._agenda)
        while self._agenda:
            now_s, ticket, what = heapq.heappop(self._agenda)
            while (due_s := self.pool.next_deadline_s()) is not None and due_s <= now_s:
                self._take(self.pool.advance(due_s), due_s)
            self._do(now_s, ticket, what)

    def told(self, quantile: float, since_s: float = 0.0) -> float:
        ratios = sorted(ratio for at_s, ratio in self.ratios if at_s >= since_s)
        assert len(ratios) > 20
        return ratios[int(quantile * len(ratios))]

    def _do(self, now_s: float, ticket: int, what: object) -> None:
        pool = self.pool
        if what == "come":
            self._take(pool.arrive(ticket, "interactive", f"team-{ticket % 2}", SHAPE, now_s), now_s)
        elif what == "end":
            self._take(pool.finish(ticket, Usage(100, 100), now_s), now_s)
        elif what == "look":
            for entry in pool._waiting.lanes[0].order.live():
                at = pool.position(entry.id, now_s)
                self._told.setdefault(entry.id, []).append((now_s, at.starts_in_s))
        else:
            _, count, ready_in_s = what
            self._take(pool.set_roster(roster(count, ready_in_s), now_s), now_s)

    def _take(self, effects: list[Effect], now_s: float) -> None:
        for effect in effects:
            if isinstance(effect, Refuse):
                self.refused.append(effect)
            elif isinstance(effect, Dispatch):
                heapq.heappush(self._agenda, (now_s + self._chance.uniform(0.5, 1.5) * self._mean_s, effect.ticket, "end"))
                for at_s, starts_in_s in self._told.pop(effect.ticket, ()):
                    if starts_in_s is None:
                        self.unknown += 1
                    elif now_s - at_s >= 1.0:
                        self.ratios.append((at_s, starts_in_s / (now_s - at_s)))


def roster(count: int, ready_in_s: float | None = None, posture: Posture = Posture.OPEN) -> RosterPool:
    capacity = Capacity(10**6, SLOTS, 10**6, 1e4, 1e3, 10**6, paced=False)
    return RosterPool("chat", tuple(RosterReplica(f"r{n}", f"http://r{n}", capacity) for n in range(count)), posture, ready_in_s)


def poisson(seed: int, per_s: float, since_s: float, until_s: float) -> Iterator[float]:
    chance, at_s = random.Random(seed), since_s
    while (at_s := at_s + chance.expovariate(per_s)) < until_s:
        yield at_s


@pytest.mark.parametrize("seed", range(3))
def test_the_time_of_a_cold_start_is_in_no_ones_wait_once_it_is_over(seed):
    """99 s were told where it took 2: requests had waited for the first replica, and that was taken for the pace at which they go."""
    found = Foretold(poisson(seed, 3.0, 0.0, 60.0), ((0.0, 0, 30.0), (30.0, 1, None)), mean_s=0.8, asked_until_s=50.0)
    assert 0.5 < found.told(0.5, since_s=30.0) < 1.5
    assert found.told(0.95, since_s=30.0) < 3.0
    assert 0.4 < found.told(0.5) < 1.5, "and while it lasts, it is what is told"
    assert not found.refused, "nor is it a reason to refuse anybody, as those who came after it were"


@pytest.mark.parametrize("seed", range(3))
def test_replicas_that_were_gone_for_a_while_are_no_slower_for_it(seed):
    changes = ((0.0, 1, None), (20.0, 0, None), (34.0, 1, None))
    found = Foretold(poisson(seed, 3.5, 0.0, 90.0), changes, mean_s=0.8, asked_until_s=50.0)
    assert 0.5 < found.told(0.5, since_s=34.0) < 1.8
    assert found.told(0.95, since_s=34.0) < 4.0


@pytest.mark.parametrize("seed", range(3))
def test_a_fleet_that_has_grown_is_told_of_at_once(seed):
    found = Foretold(poisson(seed, 6.0, 0.0, 50.0), ((0.0, 1, None), (30.0, 4, None)), mean_s=1.0, asked_until_s=50.0)
    assert 0.5 < found.told(0.5, since_s=30.0) < 1.5
    assert found.told(0.95, since_s=30.0) < 2.0


@pytest.mark.parametrize("seed", range(3))
def test_over_an_overload_that_goes_on_half_are_told_about_right_and_few_too_much(seed):
    """Those who are late let others go first that are not, seven times of eight: what they were told was an eighth of their wait."""
    found = Foretold(poisson(seed, 7.0, 0.0, 150.0), ((0.0, 1, None),), mean_s=0.8, asked_until_s=90.0, each_s=9)
    assert 0.7 < found.told(0.5) < 1.4
    assert found.told(0.1) > 0.3
    assert found.told(0.9) < 2.5


def test_while_there_is_no_replica_the_start_of_the_next_one_is_told():
    pool = Admission("chat", TIERS, 100)
    pool.set_roster(roster(0, 40.0), 0.0)
    for ticket in range(3):
        pool.arrive(ticket, "interactive", "t", SHAPE, 0.0)
    assert [pool.position(ticket, 10.0).starts_in_s for ticket in range(3)] == [30.0, 30.0, 30.0]
    assert pool.position(0, 41.0).starts_in_s is None, "it is overdue: nothing is known"
    pool.set_roster(roster(0, None), 42.0)
    assert pool.position(0, 42.0).starts_in_s is None


def test_nobody_is_told_of_a_start_after_its_own_end():
    found = Foretold(iter([0.01 * number for number in range(200)]), ((0.0, 1, None),), mean_s=4.0, asked_until_s=0.0)
    assert found.refused
    assert all(refusal.retry_after_s <= RETRY_AFTER_S_MAX for refusal in found.refused)
    pool = found.pool
    for ticket in range(1000, 1050):
        pool.arrive(ticket, "interactive", "t", SHAPE, 500.0)
    for at in [pool.position(ticket, 520.0) for ticket in range(1000, 1050)]:
        if at is not None and at.starts_in_s is not None:
            assert at.starts_in_s <= at.refused_in_s


def test_what_is_held_back_for_an_event_has_no_start_that_is_known_and_no_pace_of_that_time():
    pool = Admission("chat", TIERS, 100)
    pool.set_roster(roster(1), 0.0)
    for ticket in range(SLOTS + 20):
        pool.arrive(ticket, "batch", "t", SHAPE, 0.0)
    for ticket in range(12):
        pool.finish(ticket, Usage(100, 100), 1.0 + ticket)
    last = SLOTS + 19
    before_s = pool.position(last, 12.0).starts_in_s
    pool.set_roster(roster(1, None, Posture.HOLD_PREEMPTIBLE), 12.0)
    assert pool.position(last, 60.0).starts_in_s is None
    pool.set_roster(roster(1), 120.0)
    assert pool.position(last, 120.0).starts_in_s == pytest.approx(before_s, rel=0.1)
