"""Where a change goes: with starts of minutes into the band, so that the next one is not due at once."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.domain.scaling import History, Term, TermKind
from forebay.scaling import economics, floors, weighing
from forebay.scaling.arrivals import Demand
from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.outlook import Outlook
from forebay.scaling.weighing import Facts, _landed
from forebay.spec.types import Scaling

WALL_S = 1_700_000_000.0
EACH = PoolCapacity(rate_per_s=1.0, origin="declared")


def history(now_s, per_min):
    end_s = now_s // 300.0 * 300.0
    column = struct.pack("<36f", *[per_min * 5.0] * 36)
    return History(WALL_S + end_s - 36 * 300.0, 300.0, column, column, column)


def played(make_pool, cold_start_s, desired, looks=30, per_min=1000):
    """Decisions of half an hour at 1000/min, twenty replicas' worth, on a fleet that gets what it asks for."""
    pool = make_pool(max_replicas=60, buffer=False, capacity=PoolCapacity(rate_per_s=50 / 60, cold_start_s=cold_start_s, origin="declared"))
    pool.desired = desired
    found = []
    for _ in range(looks):
        now_s = pool.now_s + 60.0
        found.append(pool.at(now_s, per_min=per_min, history=history(now_s, per_min)))
    return pool, found


def edges(pool, decision):
    """What was worth starting, and what was worth keeping."""
    numbers = pool.term(decision, "forecast").numbers
    return tuple(numbers["expected_replicas"] * numbers[each] for each in ("headroom", "headroom_keep"))


@pytest.mark.parametrize(("cold_start_s", "part"), [(30.0, 0.0), (90.0, 0.0), (225.0, 0.25), (360.0, 0.5), (900.0, 0.5)])
def test_the_slower_a_start_the_further_a_change_goes(cold_start_s, part):
    assert economics.landed(cold_start_s, economics.SWING_RESTLESS) == pytest.approx(part)


@pytest.mark.parametrize("cold_start_s", [30.0, 90.0, 360.0, 900.0])
def test_where_the_forecast_hardly_strays_a_change_goes_to_the_middle_however_quick_a_start_is(cold_start_s):
    assert economics.landed(cold_start_s, 0.0) == economics.landed(cold_start_s, economics.SWING_STILL) == economics.LANDED_SLOW
    assert economics.landed_on_demand(0.0) == economics.LANDED_SLOW


@given(st.floats(0, 3600), st.floats(0.03, 0.7))
def test_a_change_that_demand_asks_for_goes_no_further_than_one_that_the_forecast_does(cold_start_s, swing):
    """Else more load, which has the forecast ask where demand did, would mean fewer replicas."""
    assert 0 <= economics.landed_on_demand(swing) <= economics.landed(cold_start_s, swing) <= economics.LANDED_SLOW
    assert economics.landed_on_demand(economics.SWING_RESTLESS) == 0


def landed(desired, demanded, *, worth_starting=18, on_demand=economics.LANDED_SLOW, spares=0):
    """What the forecast's floor comes to over a band of 18 to 23 replicas where present demand asks for ``demanded`` of ``desired``."""
    term = Term("forecast", TermKind.FLOOR, worth_starting, "x")
    fields = {"sight": type("Sight", (), {"desired": desired})(), "settings": Scaling(spare_replicas=spares), "capacity": EACH}
    fields |= {"outlook": Outlook(20.0, 20.0, 20.0, 360.0, "level", 0.9, 1.15), "prices": type("Prices", (), {"allowed": 0.01})()}
    facts = type("Few", (), {**fields, "landed": 0.5, "landed_on_demand": on_demand})()
    assert set(vars(type(facts))) & set(Facts.__struct_fields__) == {*fields, "landed", "landed_on_demand"}
    return _landed(term, Term("demand", TermKind.FLOOR, demanded, "y"), facts)


def test_a_change_that_present_demand_asks_for_goes_into_the_band_too():
    found = landed(19, 20)
    assert found.replicas == 21 == floors.landing(Outlook(20.0, 20.0, 20.0, 360.0, "level", 0.9, 1.15), EACH, 0.01, 0.5)
    assert found.because.endswith("; 20 would do, and once there is a change it goes as far as 21")


def test_where_the_forecast_strays_a_change_goes_no_further_than_present_demand_asks():
    assert landed(19, 20, on_demand=0.0).replicas == 18


def test_demand_that_asks_for_no_more_than_there_is_or_for_all_of_the_landing_changes_nothing():
    assert landed(20, 20).replicas == landed(19, 22).replicas == 18
    assert landed(20, 19, spares=1).replicas == 18
    assert landed(19, 19, spares=1).replicas == 21


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 40), st.floats(0, economics.LANDED_SLOW))
def test_a_false_rise_of_demand_costs_no_more_than_what_is_worth_keeping(desired, demanded, more, on_demand):
    found = landed(desired, demanded, on_demand=on_demand).replicas
    assert found <= floors.landing(Outlook(20.0, 20.0, 20.0, 360.0, "level", 0.9, 1.15), EACH, 0.01, 1.0)
    assert max(found, demanded, desired) <= max(landed(desired, demanded + more, on_demand=on_demand).replicas, demanded + more, desired)


def rises_on_a_ramp(make_pool, monkeypatch, lands):
    """Rises while demand climbs evenly by two fifths in three quarters of an hour, below what the forecast finds worth starting."""
    monkeypatch.setattr(economics, "landed_on_demand", lambda _: economics.LANDED_SLOW if lands else 0.0)
    monkeypatch.setattr(weighing, "worth_now", lambda *_: 1.0)
    capacity = PoolCapacity(rate_per_s=50 / 60, cold_start_s=90.0, origin="declared")
    pool = make_pool(max_replicas=60, buffer=False, capacity=capacity, forecast_calm_s=600.0, start_share=0.85)
    pool.desired, rises = 22, 0
    for minute in range(50):
        before, per_min = pool.desired, 1000 * (1 + max(0, minute - 5) / 112)
        pool.at(pool.now_s + 60.0, per_min=per_min, history=history(pool.now_s + 60.0, 1000))
        rises += pool.desired > before
    return rises, pool.desired


def test_on_a_ramp_in_a_wide_band_where_demand_asks_first_half_as_many_changes_are_made(make_pool, monkeypatch):
    one_by_one, most = rises_on_a_ramp(make_pool, monkeypatch, False)
    landed_in_the_band, reached = rises_on_a_ramp(make_pool, monkeypatch, True)
    assert 2 * landed_in_the_band <= one_by_one
    assert most <= reached <= 1.25 * most


def test_a_rise_goes_into_the_band_and_no_further(make_pool):
    pool, decisions = played(make_pool, 360.0, 15, per_min=1035)
    rise = next(each for each in decisions if each.reason == "forecast")
    start, keep = edges(pool, rise)
    assert start + 0.5 < rise.replicas <= keep
    assert f"once there is a change it goes as far as {rise.replicas}" in pool.term(rise, "forecast").because
    assert {each.replicas for each in decisions[decisions.index(rise) :]} == {rise.replicas}, "and then it stays"


def test_with_a_quick_start_a_rise_stops_at_what_is_worth_starting(make_pool):
    pool, decisions = played(make_pool, 90.0, 15)
    rise = next(each for each in decisions if each.reason == "forecast")
    assert "once there is a change" not in pool.term(rise, "forecast").because
    assert rise.replicas <= round(edges(pool, rise)[0])


def test_a_scale_in_goes_below_what_was_just_not_worth_keeping(make_pool):
    pool, decisions = played(make_pool, 360.0, 30, looks=60)
    steps = [each for each in decisions if each.terms and any(term.kind is TermKind.SCALE_IN for term in each.terms)]
    last = steps[-1]
    start, keep = edges(pool, last)
    assert start - 0.5 <= last.replicas < int(keep)
    assert decisions[-1].replicas == last.replicas, "and then it stays"


@given(st.floats(0.1, 60), st.floats(0.8, 2), st.floats(0, 1), st.floats(0, 1), st.floats(1, 3))
def test_a_landing_lies_in_the_band_and_never_falls_as_demand_rises(expected, start, width, part, more):
    def lands(per_s):
        outlook = Outlook(per_s, per_s, per_s, 360.0, "level", start, start + width)
        return floors.landing(outlook, EACH, 0.01, part), outlook

    least, outlook = lands(expected)
    assert floors.landing(outlook, EACH, 0.01, 0.0) <= least <= floors.landing(outlook, EACH, 0.01, 1.0)
    assert least <= lands(expected * more)[0]


@given(st.floats(0.1, 60), st.floats(0, 90), st.floats(0.8, 2), st.floats(0, 1), st.floats(0, 1))
def test_a_scale_in_leaves_what_the_landing_and_the_highest_demand_take_and_all_of_the_band_at_most(expected, peak, start, width, part):
    outlook = Outlook(expected, peak, expected, 360.0, "level", start, start + width)
    level = Outlook(peak, peak, peak, 360.0, "level", 1.0, 1.0)
    left = floors.kept(outlook, EACH, 0.01, part)
    assert left == max(floors.landing(outlook, EACH, 0.01, part), floors.landing(level, EACH, 0.01, 0.0))
    assert left <= floors.kept(outlook, EACH, 0.01)


@given(st.floats(0.7, 1.6), st.floats(0.03, 0.4))
def test_present_demand_asks_for_what_is_worth_a_start_where_the_forecast_hardly_strays(headroom_start, swing):
    worth = economics.worth_now(headroom_start, swing)
    assert min(1.0, headroom_start) <= worth <= 1.0
    assert worth == 1.0 or swing < economics.SWING_RESTLESS
    if swing <= economics.SWING_STILL:
        assert worth == pytest.approx(min(1.0, headroom_start))


def test_a_start_that_is_not_worth_it_yet_is_not_asked_for_by_present_demand():
    """The floor of demand asked for the nineteenth while eighteen were worth their misses, so the band was as narrow as that."""
    found = Demand(19.2, 19.2, 16.0, 960.0, "requests")
    asked_s, worth_s = (floors.demanded(found, EACH, floors.FRACTION_FORESEEN, worth) for worth in (1.0, 0.93))
    assert (asked_s.replicas, worth_s.replicas) == (19, 18)
    assert "worth it from 93% of that on" in worth_s.because
    assert "worth it" not in asked_s.because
