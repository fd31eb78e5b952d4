"""Leases: whole replicas, one gateway each; revoked, acknowledged, granted; shares that follow demand and do not flap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.admission.leases import OFF_FOR_S, Grant, Lapse, Leases, Revoke, Wants, shares
from forebay.admission.lessee import Ask, Lessee, State, Use

LEASE_S = 15.0


def wants(replicas, live_tokens=None, **demand):
    return {"chat": Wants(replicas, demand, live_tokens or {})}


@pytest.fixture
def two():
    """Four replicas, two each."""
    leases = Leases(LEASE_S, {}, 2, 0.0)
    for gateway in ("a", "b"):
        leases.joined(gateway, (), 0.0)
    leases.balance(wants("1234", a=None, b=None), 0.0)
    assert [leases.holder(replica) for replica in "1234"] == ["a", "b", "a", "b"]
    leases.published(1, 1)
    return leases


def step(leases, pools, now_s, version=None):
    """One look at which both gateways have been heard, and a roster for it."""
    for gateway in ("a", "b"):
        leases.heard(gateway, now_s)
    effects = leases.balance(pools, now_s)
    leases.check()
    leases.published(1, version if version is not None else int(now_s))
    return effects


@pytest.mark.parametrize(
    ("replicas", "demand", "made"),
    [
        (4, {"a": 1.0, "b": 1.0}, {"a": 2.0, "b": 2.0}),
        (4, {"a": 3.0, "b": 1.0}, {"a": 3.0, "b": 1.0}),
        (4, {"a": 1.0, "b": 0.0}, {"a": 3.0, "b": 1.0}),
        (6, {"a": 10.0, "b": 1.0, "c": 1.0}, {"a": 4.0, "b": 1.0, "c": 1.0}),
        (1, {"a": 3.0, "b": 1.0}, {"a": 0.75, "b": 0.25}),
        (4, {"a": None, "b": 1.0}, {"a": 2.0, "b": 2.0}),
        (4, {"a": 0.0, "b": 0.0}, {"a": 2.0, "b": 2.0}),
        (0, {"a": 1.0}, {"a": 0.0}),
    ],
)
def test_shares(replicas, demand, made):
    assert shares(replicas, demand) == pytest.approx(made)


@given(st.integers(0, 40), st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0, 1e9), min_size=1))
def test_shares_are_all_there_is_and_one_each_where_there_are_enough(replicas, demand):
    made = shares(replicas, demand)
    assert sum(made.values()) == pytest.approx(replicas)
    assert replicas < len(demand) or min(made.values()) >= 1.0 - 1e-9


def test_a_lease_moves_by_revoke_acknowledge_grant(two):
    pools = wants("1234", {"1": 500.0, "3": 20.0}, a=100.0, b=900.0)
    assert step(two, pools, 10.0) == []
    assert step(two, pools, 10.0 + OFF_FOR_S) == [Revoke("3", "a")], "the emptiest"
    assert (two.holder("3"), two.may_use("3")) == ("", "a")
    assert step(two, pools, 41.0) == [], "nobody has it until its gateway has said so"
    two.acknowledged("a", 1, 39, 41.5)
    assert two.may_use("3") == "a", "an older roster says nothing"
    two.acknowledged("a", 1, 40, 42.0)
    assert step(two, pools, 43.0) == [Grant("3", "b")]


def test_one_move_at_a_time_and_none_back_and_forth(two):
    moved = []
    for second in range(10, 1000):
        effects = step(two, wants("1234", a=100.0, b=900.0), float(second))
        moved += [effect for effect in effects if isinstance(effect, Revoke)]
        assert len(effects) <= 1
        two.acknowledged("a", 1, second, second + 0.5)
    assert moved == [Revoke("1", "a")], "three and one, for good"


def test_demand_that_swings_faster_than_the_patience_moves_nothing(two):
    for second in range(10, 500):
        swing = (900.0, 100.0) if second // 20 % 2 else (100.0, 900.0)
        assert step(two, wants("1234", a=swing[0], b=swing[1]), float(second)) == []


@pytest.mark.parametrize("demand", [{"a": None, "b": 900.0}, {"a": 0.0, "b": 0.0}])
def test_where_nobody_knows_or_nobody_asks_shares_stay(two, demand):
    for second in range(10, 200):
        assert step(two, wants("1234", **demand), float(second)) == []


def test_a_gateway_that_joins_gets_its_first_replica_at_once():
    leases = Leases(LEASE_S, {}, 1, 0.0)
    leases.joined("a", (), 0.0)
    leases.balance(wants("12", a=50.0), 0.0)
    leases.joined("b", (), 1.0)
    pools = wants("12", a=50.0, b=None)
    assert leases.balance(pools, 1.0) == [Revoke("1", "a")]
    leases.published(1, 2)
    leases.acknowledged("a", 1, 2, 1.1)
    assert leases.balance(pools, 2.0) == [Grant("1", "b")]


def test_a_silent_gateway_loses_all_and_only_after_a_lease(two):
    for second in range(1, 15):
        two.heard("b", float(second))
        assert two.balance(wants("1234", a=1.0, b=1.0), float(second)) == []
    two.heard("b", 15.5)
    assert two.balance(wants("1234", a=1.0, b=1.0), 15.5) == [Lapse("a"), Grant("1", "b"), Grant("3", "b")]


def test_a_leader_that_was_stopped_itself_takes_nobody_for_silent(two):
    """It has not read yet what they said meanwhile; taken for silent, both would lose everything to whoever is read first."""
    assert two.balance(wants("1234", a=1.0, b=1.0), 60.0) == []
    assert two.held() == {"1": "a", "2": "b", "3": "a", "4": "b"}


def test_a_goodbye_frees_at_once(two):
    two.left("a")
    assert two.balance(wants("1234", b=1.0), 1.0) == [Grant("1", "b"), Grant("3", "b")]


def test_a_replica_that_leaves_the_roster_and_returns_is_not_granted_before_its_gateway_knows(two):
    assert step(two, wants("234", a=1.0, b=1.0), 5.0) == [Revoke("1", "a")]
    assert step(two, wants("1234", a=1.0, b=1.0), 6.0) == []
    two.acknowledged("a", 1, 5, 6.5)
    assert step(two, wants("1234", a=1.0, b=1.0), 7.0) == [Grant("1", "a")]


def test_the_next_leader_remembers(two):
    following = Leases(LEASE_S, two.held(), 2, 100.0)
    following.joined("b", ("2", "4"), 100.5)
    assert following.balance(wants("1234", a=1.0, b=1.0), 101.0) == []
    assert following.holder("1") == "a", "who has not come back yet keeps what it has for a lease"
    for second in range(102, 118):
        following.heard("b", float(second))
        following.balance(wants("1234", a=1.0, b=1.0), float(second))
    assert following.holder("1") == "b"


def test_a_leader_without_a_memory_waits_for_those_it_expects():
    leases = Leases(LEASE_S, None, 2, 0.0)
    leases.joined("b", ("2",), 1.0)
    assert leases.balance(wants("12", b=1.0), 2.0) == []
    leases.joined("a", ("1",), 3.0)
    assert leases.balance(wants("12", a=1.0, b=1.0), 4.0) == []
    assert leases.held() == {"2": "b", "1": "a"}, "what they said they hold"


def test_a_leader_without_a_memory_waits_no_longer_than_a_lease():
    leases = Leases(LEASE_S, None, 2, 0.0)
    for second in range(1, 15):
        leases.joined("b", (), float(second))
        assert leases.balance(wants("1", b=1.0), float(second)) == []
    leases.heard("b", 15.0)
    assert leases.balance(wants("1", b=1.0), 15.0) == [Grant("1", "b")]


# -- the gateway's side ------------------------------------------------------------------------------------------------


@pytest.fixture
def lessee():
    made = Lessee()
    assert made.next_deadline_s() is None
    assert made.renewed(0.0, LEASE_S, 0.1) == [Use(True)]
    return made


def test_answers_renew_from_when_the_question_was_sent(lessee):
    assert lessee.until_s == 9.0
    assert lessee.renewed(1.0, LEASE_S, 8.0) == []
    assert lessee.until_s == 10.0
    assert lessee.renewed(0.5, LEASE_S, 8.1) == [], "an older answer"
    assert lessee.until_s == 10.0


def test_a_lease_that_runs_out_is_not_used_and_the_others_are_asked(lessee):
    assert lessee.advance(8.9) == []
    assert lessee.next_deadline_s() == 9.0
    assert lessee.advance(9.0) == [Use(False), Ask()]
    assert lessee.asked(["b", "c"], 9.0) == []
    assert lessee.told("b", 9.3, 9.1) == []
    assert lessee.told("c", 0.7, 9.2) == []
    assert lessee.state is State.YIELDED
    assert lessee.next_deadline_s() is None
    assert lessee.renewed(20.0, LEASE_S, 20.1) == [Use(True)]


def test_leases_stand_where_nobody_hears_the_controller(lessee):
    lessee.advance(9.0)
    lessee.asked(["b", "c"], 9.0)
    lessee.told("b", 9.3, 9.1)
    assert lessee.told("c", None, 9.2) == [Use(True)]
    assert lessee.state is State.STANDING
    assert lessee.advance(lessee.next_deadline_s()) == [Ask()]
    lessee.asked(["b", "c"], 10.7)
    lessee.told("b", 12.0, 10.8)
    assert lessee.told("c", 0.1, 10.9) == [Use(False)], "the controller is back, and answers another"


def test_who_does_not_answer_is_no_witness(lessee):
    lessee.advance(9.0)
    assert lessee.asked(["b"], 9.0) == []
    assert lessee.advance(lessee.next_deadline_s()) == [Use(True)]


def test_alone_leases_stand_at_once(lessee):
    lessee.advance(9.0)
    assert lessee.asked([], 9.0) == [Use(True)]


def test_a_gateway_that_was_stopped_for_a_moment_while_its_leases_stood_asks_before_it_uses_them(lessee):
    lessee.advance(9.0)
    lessee.asked([], 9.0)
    assert lessee.until_s < 14.0
    assert lessee.advance(lessee.until_s + 0.1) == [Use(False), Ask()]


def test_a_gateway_that_was_stopped_for_long_while_its_leases_stood_uses_nothing_before_the_controller_answers(lessee):
    lessee.advance(9.0)
    lessee.asked([], 9.0)
    assert lessee.advance(80.0) == [Use(False)]
    assert lessee.state is State.YIELDED
    assert lessee.advance(200.0) == []
    assert lessee.renewed(200.0, 15.0, 200.1) == [Use(True)]


def test_a_yielded_lease_does_not_stand_when_the_controller_dies_later(lessee):
    """It gave the replicas away while it lived."""
    lessee.advance(9.0)
    lessee.asked(["b"], 9.0)
    lessee.told("b", 0.0, 9.1)
    assert lessee.advance(500.0) == []
    assert lessee.state is State.YIELDED


def test_an_answer_that_was_long_on_its_way_renews_nothing(lessee):
    lessee.advance(9.0)
    assert lessee.renewed(1.0, LEASE_S, 10.2) == []
    assert lessee.state is State.ASKING


def test_what_a_gateway_had_that_was_alone_waits_until_another_one_has_been_there_for_half_a_lease():
    """It may stand, as nobody heard the controller, until it has asked the new one, whatever that is called."""
    leases = Leases(15.0, None, 1, 0.0)
    leases.joined("a", (), 0.0)
    wants = {"chat": Wants(["1"], {}, {})}
    assert leases.balance(wants, 1.0) == [Grant("1", "a")]
    for second in range(2, 60):
        assert leases.balance(wants, float(second)) == []
    leases.joined("c", (), 60.0)
    effects = []
    for second in range(60, 70):
        leases.heard("c", float(second))
        effects += [(second, effect) for effect in leases.balance(wants, float(second))]
    assert effects == [(68, Lapse("a")), (68, Grant("1", "c"))]
    leases.check()
