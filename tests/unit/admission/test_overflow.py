"""Rungs open late, close later, and never flap; a budget is never overdrawn."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay.admission.overflow import Budget, Rung


def test_a_rung_opens_when_one_waits_too_long_and_closes_after_a_calm() -> None:
    rung = Rung(after_s=10.0, calm_s=60.0)
    assert not rung.waited(9.9, 0.0)
    assert rung.waited(10.0, 1.0)
    assert rung.is_open(60.9)
    assert not rung.is_open(61.0)
    assert rung.opened_total == 1


def test_an_open_rung_stays_open_while_anyone_waits_half_as_long() -> None:
    rung = Rung(after_s=10.0, calm_s=60.0)
    rung.refused(0.0)
    assert rung.waited(5.0, 50.0)
    assert rung.is_open(109.0)
    assert rung.waited(4.9, 100.0)
    assert not rung.is_open(110.0)


def test_half_the_wait_alone_does_not_open_a_rung() -> None:
    assert not Rung(after_s=10.0).waited(9.0, 5.0)


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 20)), max_size=60))
def test_a_rung_that_closed_was_calm_for_its_whole_calm(steps: list[tuple[float, float]]) -> None:
    rung, now_s, last_s = Rung(after_s=10.0, calm_s=25.0), 0.0, None
    for passed_s, wait_s in steps:
        now_s += passed_s
        was_open = last_s is not None and now_s < last_s + 25.0
        assert rung.is_open(now_s) == was_open
        rung.waited(wait_s, now_s)
        if wait_s >= 10.0 or (was_open and wait_s >= 5.0):
            last_s = now_s


def test_a_budget_gives_no_more_than_the_hour_and_gets_it_back_as_the_hour_slides() -> None:
    budget = Budget(10.0)
    assert budget.reserve(6.0, 0.0)
    assert not budget.reserve(5.0, 0.0)
    budget.settle(6.0, 2.0, 30.0)
    assert budget.reserve(8.0, 60.0)
    budget.settle(8.0, 8.0, 90.0)
    assert not budget.reserve(1.0, 3500.0)
    assert budget.reserve(2.0, 3601.0)


@given(st.lists(st.tuples(st.floats(0, 900), st.floats(0, 5), st.floats(0, 1)), max_size=80))
def test_a_budget_is_never_overdrawn_within_any_hour(steps: list[tuple[float, float, float]]) -> None:
    budget, now_s, spent = Budget(10.0), 0.0, []
    for passed_s, usd, share in steps:
        now_s += passed_s
        if budget.reserve(usd, now_s):
            budget.settle(usd, usd * share, now_s)
            spent.append((now_s, usd * share))
        assert sum(cost for at_s, cost in spent if at_s > now_s - 3540.0) <= 10.0 + 1e-9


@settings(max_examples=30)
@given(spends=st.lists(st.tuples(st.floats(0, 900), st.floats(0, 3)), max_size=20), asleep_s=st.floats(0, 5000))
@example(spends=[(1.43, 0.0), (1.77, 0.0), (509.0, 0.0), (148.76, 0.0), (899.5, 1.0), (487.95, 0.0), (1.72, 0.0)], asleep_s=3050.0)
@example(spends=[(60.0, 1.0)], asleep_s=3539.9)
@example(spends=[(119.0, 1.0)], asleep_s=3500.0)
def test_what_is_kept_and_restored_holds_the_bound_over_both_lives(spends, asleep_s) -> None:
    first, now_s, paid = Budget(10.0), 0.0, []
    for passed_s, usd in spends:
        now_s += passed_s
        if first.reserve(usd, now_s):
            first.settle(usd, usd, now_s)
            paid.append((now_s, usd))
    open_usd = 1.0 if first.reserve(1.0, now_s) else 0.0
    second = Budget(10.0)
    second.restore([(ago_s + asleep_s, usd) for ago_s, usd in first.kept(now_s)], now_s + asleep_s)
    now_s += asleep_s
    still = sum(usd for at_s, usd in paid if at_s > now_s - 3540.0) + (open_usd if asleep_s < 3540.0 else 0.0)
    assert second.used_usd(now_s) >= still - 1e-9
    assert second.used_usd(now_s + 3660.0) == 0.0
