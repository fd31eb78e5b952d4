"""How a team's limit is divided among gateways: by what is asked for, in whole units, and never more than there are."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from forebay.admission.asked import Asked
from forebay.admission.quotas import Cap, Hold, Quota
from forebay.admission.shares import IN_FLIGHT_TURN_S, TURN_S, Ask, Shares, divided
from forebay.domain.roster import LimitUse, SharesUsed
from forebay.spec.types import TeamLimits

LEASE_S = 15.0
RPM = Cap.REQUESTS_PER_MINUTE.value
ASKS = st.builds(Ask, st.integers(0, 500), st.integers(0, 120), st.integers(0, 100))


class Told:
    """A leader, and gateways that do as they are told, a second later."""

    def __init__(self, limit, names, cap=RPM, remembered=None):
        self.shares = Shares(LEASE_S, remembered, len(names), 0.0)
        self.limit, self.cap = limit, cap
        self.units = dict.fromkeys(names, 0)
        self.fill = dict.fromkeys(names, 0.0)
        self.wants, self.largest, self.used = dict.fromkeys(names, 0), dict.fromkeys(names, 1), dict.fromkeys(names, 0)
        self.freed, self.left = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
        self.seen = dict.fromkeys(names, 0)
        self.now_s = 0.0
        for name in names:
            self.shares.joined(name, 1.0, 0.0)

    def second(self, silent=()):
        for name in self.units:
            if name not in silent:
                row = LimitUse(
                    "team", self.cap, self.limit, self.units[name], self.used[name], self.wants[name], self.largest[name], self.freed[name]
                )
                self.freed[name] = 0.0
                given = self.shares.heard(name, SharesUsed(1.0, self.seen[name], (row,)), self.now_s)
                self.seen[name] = given.version
                for share in given.rows:
                    self.units[name], self.fill[name] = share.units, self.fill[name] + share.fill
                    self.freed[name] += max(0.0, self.left[name] - share.units)
        assert sum(self.units.values()) <= self.limit or silent
        self.now_s += 1.0
        self.shares.look(self.now_s)

    def seconds(self, count, silent=()):
        for _ in range(count):
            self.second(silent)
        return self.units


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 100), st.lists(ASKS, min_size=1, max_size=5), st.booleans())
def test_units_sum_up_to_the_limit_and_everybody_has_the_least(limit, asks, takes_turn):
    named = {f"g{number}": ask for number, ask in enumerate(asks)}
    made = divided(limit, named, "g0" if takes_turn else "")
    assert min(made.values()) >= 0
    assert sum(made.values()) == limit
    again = divided(limit, {name: Ask(ask.wants, ask.largest, made[name]) for name, ask in named.items()}, "g0" if takes_turn else "")
    assert again == made, "with the same demand nothing moves"
    if limit >= len(asks):
        assert min(made.values()) >= 1
    if takes_turn:
        least = min(limit // len(asks), max(1, limit // (10 * len(asks))))
        assert made["g0"] >= min(asks[0].largest, limit - least * (len(asks) - 1))


@pytest.mark.parametrize(
    ("wants", "made"),
    [
        ((0, 0), (30, 30)),
        ((600, 600), (30, 30)),
        ((600, 0), (57, 3)),
        ((600, 10), (50, 10)),
        ((20, 30), (30, 30)),
    ],
)
def test_what_is_wanted_is_given_and_what_nobody_wants_is_spread(wants, made):
    asks = {name: Ask(want, 1, 0) for name, want in zip("ab", wants, strict=True)}
    found = divided(60, asks)
    assert all(abs(found[name] - units) <= 5 for name, units in zip("ab", made, strict=True)), found
    assert all(found[name] >= min(want, 30) for name, want in zip("ab", wants, strict=True))


def test_who_is_not_short_keeps_what_it_has_and_a_little_gain_moves_nothing():
    assert divided(60, {"a": Ask(10, 1, 45), "b": Ask(15, 1, 15)}) == {"a": 45, "b": 15}
    assert divided(100, {"a": Ask(500, 1, 48), "b": Ask(500, 1, 52)}) == {"a": 48, "b": 52}


def test_the_first_division_is_full_and_what_moves_brings_what_is_left():
    told = Told(60, "ab")
    assert told.seconds(4) == {"a": 30, "b": 30}
    assert told.fill == {"a": 30.0, "b": 30.0}, "full at first"
    told.wants["a"] = 600
    told.left["b"] = 23.0
    told.seconds(4)
    assert told.units == {"a": 57, "b": 3}
    assert told.fill["a"] == 50.0, "what b had not used, and no more"


def test_a_controller_that_knows_who_has_shares_waits_for_their_word_and_gives_no_minutes_worth_twice():
    told = Told(60, "ab", remembered=["a", "b"])
    told.units["a"] = 60
    told.second(silent="b")
    told.second(silent="b")
    assert told.units == {"a": 60, "b": 0}
    assert told.seconds(5) == {"a": 30, "b": 30}
    assert told.fill == {"a": 0.0, "b": 0.0}


def test_a_gateway_that_is_silent_for_a_lease_has_nothing_any_more():
    told = Told(60, "ab")
    told.seconds(4)
    told.wants["a"] = 600
    told.units["a"] = told.seconds(14, silent="b")["a"]
    assert told.units["a"] == 30
    told.seconds(6, silent="b")
    assert told.units["a"] == 60
    told.seconds(4)
    assert sum(told.units.values()) <= 60, "it speaks again, and is told before it may go by what it had"


def test_where_nobody_was_heard_the_silent_may_go_on_until_somebody_is():
    told = Told(60, "ab")
    told.seconds(4)
    told.seconds(40, silent="ab")
    told.wants["a"] = 600
    assert told.seconds(6, silent="b")["a"] == 30, "b may not know yet that the controller is back"
    assert told.seconds(6, silent="b")["a"] == 60


def test_what_is_in_flight_counts_until_it_has_ended():
    told = Told(8, "ab", Cap.REQUESTS_IN_FLIGHT.value)
    told.used["a"] = 8
    told.wants["a"] = 8
    told.seconds(1, silent="b")
    told.units["a"] = 8
    told.seconds(3)
    told.wants["b"] = 8
    told.seconds(5)
    assert told.units == {"a": 4, "b": 0}
    told.used["a"] = 5
    assert told.seconds(3) == {"a": 4, "b": 3}
    told.used["a"] = 2
    assert told.seconds(3) == {"a": 4, "b": 4}


def test_a_request_larger_than_an_equal_share_gets_its_turn_at_each_gateway():
    told = Told(1000, "ab", Cap.TOKENS_PER_MINUTE.value)
    told.wants = {"a": 900, "b": 900}
    told.largest = {"a": 800, "b": 800}
    had = dict.fromkeys("ab", 0)
    for _ in range(int(3 * TURN_S)):
        told.second()
        for name, units in told.units.items():
            had[name] += units >= 800
    assert min(had.values()) >= TURN_S - 10
    told = Told(1, "ab")
    told.wants = {"a": 5, "b": 5}
    one = [dict(told.seconds(1)) for _ in range(int(2.5 * TURN_S))]
    assert all(any(units[name] for units in one) for name in "ab"), "nor does one unit stay where it is for ever"


@pytest.mark.parametrize(("cap", "turn_s"), [(Cap.REQUESTS_IN_FLIGHT.value, IN_FLIGHT_TURN_S), (RPM, TURN_S)])
@pytest.mark.parametrize(("limit", "names"), [(1, "ab"), (1, "abc"), (2, "abc"), (3, "abcde")])
def test_where_more_gateways_are_asked_than_there_are_units_none_is_without_for_long(cap, turn_s, limit, names):
    """Of two units among three gateways the one whose name came first had its own a minute in three."""
    told = Told(limit, names, cap)
    told.wants = dict.fromkeys(names, 5)
    told.seconds(5)
    without, had = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for _ in range(int(10 * len(names) * turn_s)):
        told.second()
        for name in names:
            had[name] += told.units[name]
            without[name] = 0 if told.units[name] else without[name] + 1
            assert without[name] <= (len(names) - limit) * turn_s + 4
    assert max(had.values()) <= 1.1 * min(had.values())


def test_only_whoever_is_asked_takes_turns():
    told = Told(1, "abc", Cap.REQUESTS_IN_FLIGHT.value)
    told.wants["b"] = 1
    assert told.seconds(5) == {"a": 0, "b": 1, "c": 0}
    for _ in range(int(3 * IN_FLIGHT_TURN_S)):
        assert told.seconds(1)["b"] == 1
    told.wants["b"], told.wants["c"] = 0, 1
    assert told.seconds(5) == {"a": 0, "b": 0, "c": 1}


def test_what_an_older_gateway_has_is_not_known():
    told = Told(60, "ab")
    told.seconds(4)
    assert told.shares.heard("old", None, 4.0).rows == ()
    assert told.shares.holders() == ["a", "b"]
    told.shares.left("a")
    assert told.seconds(2, silent="a")["b"] == 60


def test_what_was_refused_is_wanted_too_and_forgotten():
    asked = Asked()
    asked.lately(0.0, (0, 0))
    for second in range(1, 60):
        asked.one_more(100, 2, 200, let_in=False)
        asked.one_more(100, 2, 200, let_in=True)
        per_minute, in_flight, largest = asked.lately(float(second), (1e6, 1e6))
    assert per_minute == pytest.approx((120, 12_000), rel=0.05)
    assert in_flight == (4, 400)
    assert largest == (1, 100)
    for second in range(60, 260):
        per_minute, in_flight, largest = asked.lately(float(second), (1e6, 1e6))
    assert (per_minute, in_flight, largest) == ((0, 0), (0, 0), (0, 0))


def test_a_quota_with_shares_has_nothing_until_it_is_told_and_nothing_when_they_are_over():
    hold = Hold()
    hold.until_s = 100.0
    quota = Quota(TeamLimits(requests_per_minute=60, tokens_per_minute=1000, requests_in_flight=4), hold)
    over = quota.take(10, 0.0)
    assert (over.cap, over.limit, over.share, over.retry_after_s) == (Cap.REQUESTS_IN_FLIGHT, 4, 0, 3.0)
    for cap, units, fill in ((Cap.REQUESTS_PER_MINUTE, 30, 30.0), (Cap.TOKENS_PER_MINUTE, 500, 500.0), (Cap.REQUESTS_IN_FLIGHT, 2, 0.0)):
        quota.share(cap, units, fill, 0.0)
    over = quota.take(600, 0.0)
    assert (over.limit, over.share, over.retry_after_s) == (1000, 500, pytest.approx(12.0)), "it may come back: the limit is larger"
    assert quota.take(1001, 0.0).retry_after_s is None
    assert quota.take(100, 0.0) is None
    page = quota.headers(0.0, 1.0)
    assert b"limit-requests: 30\r\nx-ratelimit-remaining-requests: 29\r\n" in page
    assert b"limit-tokens: 500\r\nx-ratelimit-remaining-tokens: 400\r\n" in page
    assert quota.take(1, 100.0).share == 0
    assert b"remaining-requests: 0" in quota.headers(100.0, 1.0)


def test_a_share_that_shrinks_tells_what_it_has_no_place_for_and_one_that_grows_brings_what_comes_with_it():
    hold = Hold()
    hold.until_s = 100.0
    quota = Quota(TeamLimits(requests_per_minute=60), hold)
    quota.share(Cap.REQUESTS_PER_MINUTE, 60, 60.0, 0.0)
    for _ in range(10):
        assert quota.take(1, 0.0) is None
    quota.share(Cap.REQUESTS_PER_MINUTE, 20, 0.0, 0.0)
    (row,) = quota.told(0.0)
    assert row[-1] == 30.0
    assert quota.told(0.0)[0][-1] == 0.0, "once"
    quota.share(Cap.REQUESTS_PER_MINUTE, 60, 5.0, 0.0)
    assert [quota.take(1, 0.0) is None for _ in range(26)] == [True] * 25 + [False]


def test_new_limits_shrink_shares_at_once_and_grow_none():
    hold = Hold()
    hold.until_s = 100.0
    quota = Quota(TeamLimits(requests_per_minute=60, requests_in_flight=8), hold)
    quota.share(Cap.REQUESTS_PER_MINUTE, 30, 10.0, 0.0)
    quota.share(Cap.REQUESTS_IN_FLIGHT, 4, 0.0, 0.0)
    quota.use(TeamLimits(requests_per_minute=20, requests_in_flight=16, tokens_per_minute=100), 0.0)
    assert quota.shares == {Cap.REQUESTS_PER_MINUTE: 10, Cap.TOKENS_PER_MINUTE: 0, Cap.REQUESTS_IN_FLIGHT: 4}
    assert b"remaining-requests: 10\r\n" in quota.headers(0.0, 1.0)
    quota.undivide(0.0)
    assert b"limit-requests: 20\r\nx-ratelimit-remaining-requests: 20\r\n" in quota.headers(0.0, 1.0)
    assert quota.take(50, 0.0) is None
