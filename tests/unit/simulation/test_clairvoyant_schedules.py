"""The cheapest schedules, against every schedule there is: small cases are counted out by brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.simulation import clairvoyant_exact as exact
from forebay.simulation import clairvoyant_levels as levels
from forebay.simulation.clairvoyant_levels import Charges

MOST = 3
few = settings(max_examples=40)
"""Each example looks at up to a thousand schedules."""


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """The first call compiles."""
    levels.at_price(np.zeros((2, 2)), 1.0, Charges(1, 1))


def by_hand(replicas, charges):
    """Replica slots paid for, replica by replica: the longest-serving one stays, the newest goes."""
    slots = len(replicas)
    paid = 0
    for level in range(1, max(replicas, default=0) + 1):
        on = [count >= level for count in replicas]
        held = set()
        for t in range(slots):
            if on[t]:
                held.add(t)
                if t and not on[t - 1]:
                    paid += len(range(max(0, t - charges.start_slots), t))
            elif t and on[t - 1]:
                paid += len(range(t, min(slots, t + charges.stop_slots)))
        paid += len(held)
    return paid


def every(misses, charges):
    """(cost, misses) of every schedule."""
    for replicas in itertools.product(range(charges.least, misses.shape[1]), repeat=len(misses)):
        yield by_hand(replicas, charges), sum(int(misses[t, count]) for t, count in enumerate(replicas))


charges_drawn = st.builds(Charges, st.integers(0, 3), st.integers(0, 2), st.integers(0, 1))


@st.composite
def cases(draw, slots_max=5):
    """Demand in each slot, one to three requests a replica: what is beyond it is missed. Convex in the replicas."""
    demand = draw(st.lists(st.integers(0, 9), min_size=1, max_size=slots_max))
    each = draw(st.integers(1, 3))
    return np.array([[max(0, requests - each * count) for count in range(MOST + 1)] for requests in demand])


@few
@given(replicas=st.lists(st.integers(0, 4), min_size=1, max_size=12), charges=charges_drawn)
def test_costs_are_those_of_each_replicas_own_life(replicas, charges):
    assert levels.cost_slots(np.array(replicas), charges) == by_hand(replicas, charges)


@few
@given(misses=cases(), charges=charges_drawn, price=st.sampled_from([0.0, 0.3, 1.0, 1.5, 4.0, 100.0]))
def test_no_schedule_is_cheaper_at_a_price(misses, charges, price):
    replicas, total = levels.at_price(misses.astype(float), price, charges)
    assert replicas.min() >= charges.least
    assert total == pytest.approx(min(cost + price * missed for cost, missed in every(misses, charges)))
    assert total == pytest.approx(levels.cost_slots(replicas, charges) + price * levels.missed(misses.astype(float), replicas))


@few
@given(misses=cases(), charges=charges_drawn, budget=st.integers(0, 12))
def test_the_exact_schedule_is_the_cheapest_within_the_budget(misses, charges, budget):
    costs = [cost for cost, missed in every(misses, charges) if missed <= budget]
    found = exact.cheapest(misses, budget, charges)
    assert (found is None) == (not costs)
    if found is not None:
        assert found.cost_slots == min(costs)
        assert levels.cost_slots(found.replicas, charges) == found.cost_slots
        assert levels.missed(misses.astype(float), found.replicas) == found.misses <= budget


@few
@given(misses=cases(), charges=charges_drawn, budget=st.integers(0, 12))
def test_the_priced_schedule_keeps_the_budget_and_its_bound_is_one(misses, charges, budget):
    best = exact.cheapest(misses, budget, charges)
    found = levels.within(misses.astype(float), budget, charges)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        assert found.misses <= budget
        assert found.lower_bound_slots - 1e-6 <= best.cost_slots <= found.cost_slots


def test_a_short_gap_is_bridged_and_a_long_one_is_not():
    def replicas(gap):
        demand = [1, *[0] * gap, 1]
        misses = np.array([[requests * 1.0, 0.0] for requests in demand])
        found = levels.within(misses, 0, Charges(start_slots=3, stop_slots=1))
        assert found is not None
        return found.replicas.tolist()

    assert replicas(3) == [1] * 5
    assert replicas(5) == [1, 0, 0, 0, 0, 0, 1]


def test_starts_are_asked_for_ahead_and_no_earlier_than_the_beginning():
    asked = levels.wanted(np.array([1, 1, 2, 2, 2, 2, 5, 5, 1]), Charges(start_slots=3, stop_slots=0))
    assert asked.tolist() == [2, 2, 2, 5, 5, 5, 5, 5, 1]


def test_only_small_cases_are_counted_out():
    assert exact.affordable(slots=60, most=5, budget=1000)
    assert not exact.affordable(slots=40_320, most=200, budget=270_000)
