"""What a request that waits is told it waits for: the budget that really refuses it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.admission.machine import Admission
from forebay.admission.outcomes import Shortage
from forebay.domain.roster import Capacity, RosterPool, RosterReplica
from forebay.domain.shape import Shape
from forebay.spec.types import Tier

TIERS = (Tier("top", rank=0, ttft_s=1, longest_wait_s=30), Tier("low", rank=1, ttft_s=60, longest_wait_s=500, preemptible=True))
WIDE = Capacity(10**6, 100, 10**6, 0.0, 0.0, 10**6)


def pool_of(*capacities: Capacity) -> Admission:
    pool = Admission("chat", TIERS, 1000)
    listed = tuple(RosterReplica(f"r{number}", f"http://r{number}", capacity) for number, capacity in enumerate(capacities))
    pool.set_roster(RosterPool("chat", listed), 0.0)
    return pool


def short_of(pool: Admission, ticket: int) -> Shortage | None:
    at = pool.position(ticket, 0.0)
    assert at is not None
    return at.short_of


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"sequences": 1}, Shortage.SLOTS),
        ({"kv_tokens": 200}, Shortage.KV),
        ({"prefill_tokens": 150}, Shortage.PREFILL),
        ({"itl_s": 0.05, "step_per_sequence_s": 0.03}, Shortage.PACE),
    ],
)
def test_the_budget_that_is_missing_is_named(changes: dict[str, float], missing: Shortage) -> None:
    pool = pool_of(msgspec.structs.replace(WIDE, **changes))
    pool.arrive(1, "top", "t", Shape(100, 50), 0.0)
    pool.arrive(2, "top", "t", Shape(100, 50), 0.0)
    assert short_of(pool, 1) is None, "it runs"
    assert short_of(pool, 2) is missing


def test_without_a_replica_it_is_a_replica_that_is_missing() -> None:
    pool = pool_of()
    pool.arrive(1, "top", "t", Shape(100, 50), 0.0)
    assert short_of(pool, 1) is Shortage.REPLICA


def test_one_that_would_fit_behind_one_that_does_not_waits_for_its_turn_or_for_what_is_kept() -> None:
    pool = pool_of(msgspec.structs.replace(WIDE, kv_tokens=1000))
    pool.arrive(1, "top", "t", Shape(500, 100), 0.0)
    pool.arrive(2, "top", "t", Shape(700, 100), 0.0)
    (replica,) = pool._replicas.listed
    assert short_of(pool, 2) is Shortage.KV
    small = pool._tickets[2]
    small.total, small.prompt, small.output, small.expected = 20, 10, 10, 10
    assert replica.short_of(small) is Shortage.TURN
    replica.kept_index = 0
    assert replica.short_of(small) is Shortage.KEPT
    replica.kept_for = small
    assert replica.short_of(small) is Shortage.TURN


_SHAPES = st.builds(
    lambda prompt, output, cached, sequences: Shape(prompt, output * sequences, cached_tokens=min(cached, prompt), sequences=sequences),
    st.integers(1, 400),
    st.integers(1, 200),
    st.integers(0, 100),
    st.integers(1, 3),
)
_CAPACITIES = st.builds(
    lambda kv, slots, prefill, itl_s: Capacity(kv, slots, prefill, 0.0, 0.0, 2000, itl_s, 0.0, 0.01, 0.00001),
    st.integers(400, 3000),
    st.integers(1, 20),
    st.integers(100, 1000),
    st.sampled_from((0.0, 0.05)),
)


@given(_CAPACITIES, st.lists(st.tuples(st.sampled_from(("top", "low")), _SHAPES), max_size=24))
def test_it_is_short_of_something_exactly_where_it_does_not_fit(capacity: Capacity, wanted: list[tuple[str, Shape]]) -> None:
    pool = pool_of(capacity)
    for ticket, (tier, shape) in enumerate(wanted):
        pool.arrive(ticket, tier, "t", shape, 0.0)
    (replica,) = pool._replicas.listed
    for lane in pool._lanes:
        for entry in lane.order.live():
            assert (replica.short_of(entry) is Shortage.TURN) == replica.fits(entry)
