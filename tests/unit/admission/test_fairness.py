"""Fairness among the teams of a lane: the bound as stated, and what it rests on."""

import random
from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from forebay.admission.effects import Dispatch, Effect
from forebay.admission.fairness import LATE_EVERY, OUTPUT_COST
from forebay.admission.machine import Admission
from forebay.domain.roster import Capacity, RosterPool, RosterReplica
from forebay.domain.shape import Shape, Usage
from forebay.spec.types import Tier

LONG = 1e9
TIERS = (Tier("only", rank=0, ttft_s=LONG, longest_wait_s=LONG),)
QUANTUM = 8


def pool_of(slots: int, replicas: int = 1, weights: dict[str, float] | None = None, tiers: Sequence[Tier] = TIERS) -> Admission:
    capacity = Capacity(10**9, slots, 10**9, 0.0, 0.0, 10**9)
    pool = Admission("chat", tiers, 100_000, weights)
    pool.set_roster(RosterPool("chat", tuple(RosterReplica(f"r{n}", f"http://r{n}", capacity) for n in range(replicas))), 0.0)
    return pool


def dispatched(effects: list[Effect]) -> list[int]:
    return [effect.ticket for effect in effects if isinstance(effect, Dispatch)]


class Fleet:
    """Engines that take a step at a time, and teams that always have something waiting."""

    def __init__(self, chance: random.Random, weights: dict[str, float], slots: int, error: float) -> None:
        self.chance, self.weights, self.error = chance, weights, error
        self.pool = pool_of(slots, 2, weights)
        self.given = dict.fromkeys(weights, 0.0)
        """Virtual tokens per weight that engines worked off for each team, counted at each token."""
        self.team: dict[int, str] = {}
        self.left: dict[int, int] = {}
        self.unreported: dict[int, int] = {}
        self.truth: dict[int, tuple[int, int]] = {}
        self.running: list[int] = []
        self.tickets = 0
        self.now_s = 0.0
        self.prompt_max = self.output_max = self.prompt_error_max = 0

    def send(self, team: str) -> None:
        prompt, output = self.chance.randint(1, 40), self.chance.randint(1, 20)
        guess = max(1, round(prompt * (1 + self.error * self.chance.uniform(-1, 1))))
        self.prompt_max = max(self.prompt_max, prompt, guess)
        self.prompt_error_max = max(self.prompt_error_max, abs(guess - prompt))
        self.output_max = max(self.output_max, output)
        self.tickets += 1
        self.team[self.tickets], self.truth[self.tickets] = team, (prompt, output)
        self.begin(self.pool.arrive(self.tickets, "only", team, Shape(guess, self.chance.randint(1, 20)), self.now_s))

    def begin(self, effects: list[Effect]) -> None:
        for ticket in dispatched(effects):
            prompt, output = self.truth[ticket]
            self.given[self.team[ticket]] += prompt / self.weights[self.team[ticket]]
            self.left[ticket], self.unreported[ticket] = output, 0
            self.running.append(ticket)

    def step(self) -> None:
        self.now_s += 1.0
        for ticket in self.running[:]:
            team = self.team[ticket]
            self.left[ticket] -= 1
            self.unreported[ticket] += 1
            self.given[team] += OUTPUT_COST / self.weights[team]
            if not self.left[ticket]:
                self.running.remove(ticket)
                self.begin(self.pool.finish(ticket, Usage(*self.truth[ticket]), self.now_s))
                self.send(team)
            elif self.unreported[ticket] == QUANTUM:
                self.pool.emitted(ticket, QUANTUM)
                self.unreported[ticket] = 0


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=2, max_size=4), st.integers(1, 6), st.floats(0, 0.5))
def test_two_teams_that_both_wait_are_given_the_same_per_weight_within_the_bound(
    seed: int, weights: list[float], slots: int, error: float
) -> None:
    fleet = Fleet(random.Random(seed), {f"t{number}": weight for number, weight in enumerate(weights)}, slots, error)
    on_fleet = 2 * slots
    for team in fleet.weights:  # everybody always waits: more than ever runs at once
        for _ in range(on_fleet + 2):
            fleet.send(team)
    least = min(weights)
    begun = None
    for step in range(300):
        fleet.step()
        if step == 50:  # from any moment on
            begun = dict(fleet.given)
        if begun is not None:
            grown = [fleet.given[team] - begun[team] for team in fleet.weights]
            errors = on_fleet * (fleet.prompt_error_max + OUTPUT_COST * QUANTUM)
            bound = 2 * (fleet.prompt_max + OUTPUT_COST * on_fleet * fleet.output_max + errors) / least
            assert max(grown) - min(grown) <= bound
    fleet.pool.check()


def test_long_runs_share_by_weight_whatever_the_sizes() -> None:
    fleet = Fleet(random.Random(3), {"small": 1.0, "large": 3.0}, 2, 0.3)
    for team in fleet.weights:
        for _ in range(6):
            fleet.send(team)
    for _ in range(2000):
        fleet.step()
    work = {team: fleet.given[team] * fleet.weights[team] for team in fleet.weights}
    assert work["large"] / work["small"] == pytest.approx(3.0, rel=0.05)


def test_one_request_of_a_quiet_team_does_not_stand_behind_a_hundred_of_another() -> None:
    pool = pool_of(1)
    pool.arrive(0, "only", "busy", Shape(100, 10), 0.0)
    for ticket in range(1, 101):
        pool.arrive(ticket, "only", "busy", Shape(100, 10), 0.0)
    pool.arrive(200, "only", "quiet", Shape(100, 10), 1.0)
    order, running = [], 0
    for second in range(3):
        (running,) = dispatched(pool.finish(running, Usage(100, 10), float(second + 2)))
        order.append(running)
    assert 200 in order


def test_neither_idleness_nor_debt_is_banked_by_pausing() -> None:
    pool = pool_of(1)
    running = 0
    pool.arrive(0, "only", "worker", Shape(100, 100), 0.0)
    for ticket in range(1, 50):  # much is given to one team while the other does nothing
        pool.finish(running, Usage(100, 100), float(ticket))
        pool.arrive(ticket, "only", "worker", Shape(100, 100), float(ticket))
        running = ticket
    accounts = pool._lanes[0].order.accounts
    for ticket in range(100, 110):
        pool.arrive(ticket, "only", "idler", Shape(100, 100), 60.0)
        pool.arrive(ticket + 100, "only", "worker", Shape(100, 100), 60.0)
    turns = []
    for second in range(12):
        (running,) = dispatched(pool.finish(running, Usage(100, 100), 61.0 + second))
        turns.append(running < 200)
    assert 4 <= sum(turns) <= 8, "they take turns: the idler has no credit"
    debt = accounts["worker"].counter
    assert accounts["idler"].counter == pytest.approx(debt, abs=400)


def test_usage_settles_what_was_estimated() -> None:
    pool = pool_of(1)
    pool.arrive(1, "only", "a", Shape(1000, 500), 0.0)
    account = pool._lanes[0].order.accounts["a"]
    assert account.counter == 1000, "the prompt, at dispatch"
    pool.emitted(1, 32)
    assert account.counter == 1000 + OUTPUT_COST * 32
    pool.finish(1, Usage(700, 40, cached_tokens=200), 1.0)
    assert account.counter == account.given_tokens == 500 + OUTPUT_COST * 40


def test_a_requeued_or_retried_request_is_charged_once() -> None:
    pool = pool_of(1, 2)
    pool.arrive(1, "only", "a", Shape(1000, 500), 0.0)
    pool.emitted(1, 32)
    assert dispatched(pool.retry(1, 1.0)) == [1]
    account = pool._lanes[0].order.accounts["a"]
    assert account.counter == 1000 + OUTPUT_COST * 32
    pool.emitted(1, 32)
    assert account.counter == 1000 + OUTPUT_COST * 32
    pool.emitted(1, 32)
    assert account.counter == 1000 + OUTPUT_COST * 64


# --- within a team --------------------------------------------------------------------------------------------------


def test_those_that_can_still_be_in_time_go_before_the_late_who_are_served_all_the_same() -> None:
    tiers = (Tier("only", rank=0, ttft_s=10.0, longest_wait_s=1000.0),)
    pool = pool_of(1, tiers=tiers)
    pool.arrive(0, "only", "a", Shape(10, 10), 0.0)
    for ticket in range(1, 4):
        pool.arrive(ticket, "only", "a", Shape(10, 10), 0.0)  # late from 10 s on
    for ticket in range(10, 30):
        pool.arrive(ticket, "only", "a", Shape(10, 10), 11.0)
    order, running = [], 0
    for _ in range(23):
        (running,) = dispatched(pool.finish(running, None, 12.0))
        order.append(running)
    on_time = list(range(10, 30))
    first, second = LATE_EVERY - 1, 2 * LATE_EVERY - 2
    assert order == [*on_time[:first], 1, *on_time[first:second], 2, *on_time[second:], 3]


def test_a_long_prompt_needs_an_earlier_start_and_gets_it() -> None:
    tiers = (Tier("only", rank=0, ttft_s=10.0, longest_wait_s=1000.0),)
    pool = pool_of(1, tiers=tiers)
    capacity = Capacity(10**9, 1, 10**9, 100.0, 10.0, 10**9)
    pool.set_roster(RosterPool("chat", (RosterReplica("r0", "http://r0", capacity),)), 0.0)
    pool.arrive(0, "only", "a", Shape(10, 10), 0.0)
    pool.arrive(1, "only", "a", Shape(10, 10), 0.0)
    pool.arrive(2, "only", "a", Shape(500, 10), 1.0)  # 5 s of prefill: late from 6 s on
    assert dispatched(pool.finish(0, None, 2.0)) == [2]


def test_a_teams_own_ttft_orders_its_line() -> None:
    pool = pool_of(1)
    pool.arrive(0, "only", "a", Shape(10, 10), 0.0)
    pool.arrive(1, "only", "a", Shape(10, 10), 0.0)
    pool.arrive(2, "only", "a", Shape(10, 10), 0.0, ttft_s=5.0)
    assert dispatched(pool.finish(0, None, 1.0)) == [2]


def test_a_full_queue_displaces_the_team_that_fills_it() -> None:
    pool = Admission("chat", TIERS, 4)
    pool.set_roster(RosterPool("chat", (RosterReplica("r0", "http://r0", Capacity(1000, 1, 1000, 0, 0, 1000)),)), 0.0)
    for ticket in range(5):
        pool.arrive(ticket, "only", "hog", Shape(10, 10), float(ticket))
    (displaced,) = pool.arrive(10, "only", "guest", Shape(10, 10), 9.0)
    assert displaced.ticket == 4
    (refused,) = pool.arrive(11, "only", "hog", Shape(10, 10), 9.0)
    assert refused.ticket == 11
    pool.check()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(1, 60)), max_size=80), st.integers(0, 10**6))
def test_an_order_keeps_every_ticket_through_any_joining_and_leaving(moves: list[tuple[int, int, int]], seed: int) -> None:
    chance = random.Random(seed)
    pool = pool_of(1)
    pool.arrive(0, "only", "t0", Shape(5, 5), 0.0)
    waiting: list[int] = []
    now_s = 0.0
    for number, (team, ttft_s, prompt) in enumerate(moves, start=1):
        now_s += chance.randint(0, 3)
        pool.arrive(number, "only", f"t{team}", Shape(prompt, 5), now_s, ttft_s=float(ttft_s))
        waiting.append(number)
        if len(waiting) > 3 and chance.random() < 0.4:
            pool.abandon(waiting.pop(chance.randrange(len(waiting))), now_s)
        pool.check()
    running = 0
    while waiting:
        (running,) = dispatched(pool.finish(running, None, now_s))
        waiting.remove(running)
        pool.check()
