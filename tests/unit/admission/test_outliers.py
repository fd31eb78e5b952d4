"""Ejection: after failures in a row, for a growing time, of a bounded share, and back by a probe."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from forebay.admission.outliers import EJECT_S, EJECT_S_MAX, FAILURES_IN_A_ROW, GOOD_FOR_S, LOCKED_S_MAX, Eject, Outliers, Probe, Readmit


def _pool(*replicas):
    outliers = Outliers()
    assert outliers.roster(replicas) == []
    return outliers


def _fail(outliers, replica, now_s, times=FAILURES_IN_A_ROW):
    effects = []
    for _ in range(times):
        effects += outliers.bad(replica, "500", now_s)
    return effects


def test_failures_in_a_row_eject_and_a_success_between_them_does_not():
    outliers = _pool("a", "b")
    assert _fail(outliers, "a", 0.0, FAILURES_IN_A_ROW - 1) == []
    outliers.good("a", 0.0)
    assert _fail(outliers, "a", 0.0, FAILURES_IN_A_ROW - 1) == []
    assert outliers.bad("a", "500", 1.0) == [Eject("a", "500", EJECT_S, stalled=False)]
    assert outliers.out == ["a"]
    assert outliers.bad("a", "500", 1.0) == []  # what still comes in from before


def test_a_stall_ejects_at_once():
    assert _pool("a", "b").stalled("a", "silent", 0.0) == [Eject("a", "silent", EJECT_S, stalled=True)]


def test_one_that_was_asked_and_is_something_else_is_out_at_once_and_keeps_what_it_streams():
    assert _pool("a", "b").wrong("a", "404", 0.0) == [Eject("a", "404", EJECT_S, stalled=False)]
    outliers = _pool("a", "b")
    outliers.stalled("b", "silent", 0.0)
    assert outliers.wrong("a", "404", 0.0) == [], "half of them are out"


def test_a_first_answer_is_news_and_later_ones_only_of_what_failed_or_is_watched():
    outliers = _pool("a", "b")
    assert outliers.suspects == {"a", "b"}
    assert not outliers.proven("a")
    outliers.good("a", 0.0)
    assert (outliers.suspects, outliers.proven("a"), outliers.proven("nobody")) == ({"b"}, True, False)
    outliers.watch("a")
    outliers.watch("nobody")
    assert outliers.suspects == {"a", "b"}
    outliers.good("a", 1.0)
    outliers.stalled("a", "silent", 2.0)
    outliers.watch("a")
    assert outliers.suspects == {"b"}
    outliers.advance(2.0 + EJECT_S)
    outliers.probed("a", True, 2.0 + EJECT_S)
    outliers.check()
    assert outliers.suspects == {"b"}, "it has answered before, and the probe"


def test_no_more_than_half_of_a_pool_is_out_and_a_pool_of_one_never():
    outliers = _pool("a", "b", "c")
    assert len(_fail(outliers, "a", 0.0)) == 1
    assert _fail(outliers, "b", 0.0) == []
    assert outliers.stalled("c", "silent", 0.0) == []
    outliers.check()
    assert _fail(_pool("only"), "only", 0.0) == []


def test_the_last_one_is_out_too_where_another_gateway_has_one_in_routing():
    outliers = _pool("only")
    outliers.elsewhere(1, 0, 0.0)
    assert _fail(outliers, "only", 0.0) == [Eject("only", "500", EJECT_S, stalled=False)]
    outliers.check()
    outliers = _pool("only")
    outliers.elsewhere(0, 1, 0.0)
    assert _fail(outliers, "only", 0.0) == [], "what the other has is out: something of the pool stays in"
    outliers.check()


def test_half_of_all_may_be_out_and_never_less_than_half_of_those_here():
    outliers = _pool("a", "b", "c", "d")
    outliers.elsewhere(2, 0, 0.0)
    assert [len(_fail(outliers, replica, 0.0)) for replica in "abcd"] == [1, 1, 1, 0]
    outliers = _pool("a", "b", "c", "d")
    outliers.elsewhere(0, 9, 0.0)
    assert [len(_fail(outliers, replica, 0.0)) for replica in "abcd"] == [1, 1, 0, 0]


def test_one_that_makes_no_tokens_is_out_be_it_the_last_of_every_gateway():
    outliers = _pool("a", "b")
    outliers.elsewhere(0, 1, 0.0)
    for replica in "ab":
        assert outliers.stalled(replica, "silent", 0.0) == [Eject(replica, "silent", EJECT_S, stalled=True)]
    assert outliers.silent == ["a", "b"]
    outliers.check()
    assert outliers.elsewhere(0, 0, 1.0) == [], "it makes none, whoever else is there"
    assert outliers.advance(EJECT_S) == [Probe("a"), Probe("b")]
    assert outliers.probed("a", True, EJECT_S) == [Readmit("a")]
    assert outliers.silent == ["b"]
    outliers.check()


def test_where_nothing_of_the_pool_is_in_routing_it_is_looked_for_every_few_seconds():
    """A replica that recovers is not left out for minutes while nobody is served."""
    outliers, now_s = _pool("a"), 0.0
    outliers.elsewhere(1, 0, now_s)
    outliers.stalled("a", "silent", now_s)
    for _ in range(6):
        now_s = outliers.next_deadline_s()
        outliers.advance(now_s)
        outliers.probed("a", False, now_s)
    assert outliers.next_deadline_s() - now_s > 20 * EJECT_S, "while another serves"
    outliers.elsewhere(0, 1, now_s + 1.0)
    outliers.advance(now_s + 1.0)
    assert outliers.next_deadline_s() == now_s + 1.0 + EJECT_S


def test_where_two_gateways_have_taken_out_too_many_they_are_taken_back_and_stay_in_for_a_while_that_doubles():
    outliers, now_s, stays = _pool("only"), 0.0, []
    outliers.elsewhere(1, 0, now_s)
    for _ in range(8):
        tried_s = now_s
        while not _fail(outliers, "only", now_s):
            now_s += 1.0
        stays.append(now_s - tried_s)
        assert outliers.elsewhere(0, 1, now_s) == [Readmit("only")]
        outliers.check()
        outliers.elsewhere(1, 0, now_s)
    assert stays == [0.0, *[EJECT_S * 2**times for times in range(6)], EJECT_S_MAX]


def test_where_nobody_listens_nothing_is_sent_be_it_the_last():
    outliers = _pool("a", "b", "c")
    assert outliers.gone("a", "refused", 0.0) == [Eject("a", "refused", EJECT_S, stalled=False)]
    assert outliers.gone("a", "refused", 0.0) == [], "what still comes in from before"
    assert len(_fail(outliers, "b", 0.0)) == 1, "its share is that of those that answer"
    assert outliers.gone("c", "refused", 0.0) == [Eject("c", "refused", EJECT_S, stalled=False)]
    outliers.check()
    assert outliers.advance(EJECT_S) == [Probe("a"), Probe("b"), Probe("c")]
    assert outliers.probed("c", True, EJECT_S) == [Readmit("c")]
    assert outliers.stalled("c", "silent", EJECT_S) == [], "it answers, and is one of too many again"
    outliers.check()


def test_one_that_asks_for_a_key_is_out_at_once_be_it_the_last_and_asked_ever_more_seldom():
    outliers, now_s, waits = _pool("a"), 0.0, []
    assert outliers.locked("a", "401", now_s) == [Eject("a", "401", EJECT_S, stalled=False, locked=True)]
    assert outliers.locked("a", "401", now_s) == [], "what still comes in from before"
    for _ in range(8):
        due_s = outliers.next_deadline_s()
        waits.append(due_s - now_s)
        now_s = due_s
        assert outliers.advance(now_s) == [Probe("a")]
        assert outliers.locked("a", "401", now_s) == []
        assert outliers.probed("a", False, now_s) == []
        outliers.check()
    assert waits[0] == EJECT_S
    assert waits == sorted(waits)
    assert waits[-1] == LOCKED_S_MAX
    outliers.knock(now_s)
    assert outliers.advance(now_s) == [Probe("a")]
    assert outliers.probed("a", True, now_s) == [Readmit("a")]
    assert outliers.asking == []
    outliers.check()


def test_one_that_was_gone_and_comes_back_behind_a_key_is_told():
    outliers = _pool("a", "b")
    outliers.gone("a", "refused", 0.0)
    assert outliers.advance(EJECT_S) == [Probe("a")]
    assert outliers.locked("a", "401", EJECT_S) == [Eject("a", "401", EJECT_S, stalled=False, locked=True)]
    assert outliers.probed("a", False, EJECT_S) == []
    assert outliers.asking == ["a"]
    outliers.check()


def test_one_that_is_gone_is_looked_for_at_the_same_pace_however_long_its_start_takes():
    """The time doubled, so that an engine which started in three minutes was found up to three minutes later."""
    outliers = _pool("a")
    outliers.gone("a", "refused", 0.0)
    for number in range(1, 60):
        assert outliers.next_deadline_s() == number * EJECT_S
        assert outliers.advance(number * EJECT_S) == [Probe("a")]
        assert outliers.probed("a", False, number * EJECT_S) == []
    outliers.advance(60 * EJECT_S)
    assert outliers.probed("a", True, 60 * EJECT_S) == [Readmit("a")]
    assert outliers.gone("a", "refused", 301.0) == [Eject("a", "refused", EJECT_S * 2, stalled=False)], "one that comes and goes is"


def test_one_that_could_not_be_ejected_is_when_there_is_room_and_it_fails_again():
    outliers = _pool("a", "b")
    _fail(outliers, "a", 0.0)
    assert _fail(outliers, "b", 0.0) == []
    outliers.roster(["b", "c"])
    outliers.check()
    assert outliers.bad("b", "500", 1.0) == [Eject("b", "500", EJECT_S, stalled=False)]


def test_the_time_out_grows_with_each_bad_probe_up_to_a_bound_and_is_forgiven():
    outliers = _pool("a", "b")
    _fail(outliers, "a", 0.0)
    now_s, waits = 0.0, []
    for _ in range(10):
        due_s = outliers.next_deadline_s()
        waits.append(due_s - now_s)
        now_s = due_s
        assert outliers.advance(now_s) == [Probe("a")]
        assert outliers.advance(now_s) == []
        assert outliers.next_deadline_s() is None
        assert outliers.probed("a", False, now_s) == []
    assert waits[:3] == [EJECT_S, 2 * EJECT_S, 4 * EJECT_S]
    assert waits[-1] == EJECT_S_MAX
    now_s = outliers.next_deadline_s()
    outliers.advance(now_s)
    assert outliers.probed("a", True, now_s) == [Readmit("a")]
    assert _fail(outliers, "a", now_s)[0].for_s == EJECT_S_MAX  # it is not forgotten so soon
    outliers.advance(now_s + EJECT_S_MAX)
    outliers.probed("a", True, now_s + EJECT_S_MAX)
    outliers.bad("a", "500", now_s + EJECT_S_MAX)
    outliers.good("a", now_s + EJECT_S_MAX + GOOD_FOR_S)
    assert _fail(outliers, "a", now_s + EJECT_S_MAX + GOOD_FOR_S)[0].for_s == EJECT_S


def test_a_smaller_roster_takes_back_what_would_be_too_many():
    outliers = _pool("a", "b", "c", "d")
    _fail(outliers, "a", 0.0)
    _fail(outliers, "b", 1.0)
    assert outliers.roster(["a", "b"]) == [Readmit("a")]
    outliers.check()
    assert outliers.roster(["b"]) == [Readmit("b")]


def test_a_replica_that_left_is_forgotten():
    outliers = _pool("a", "b")
    _fail(outliers, "a", 0.0)
    outliers.advance(EJECT_S)
    outliers.roster(["b", "c"])
    assert outliers.probed("a", True, EJECT_S) == []
    assert outliers.bad("a", "500", EJECT_S) == []
    assert outliers.out == []


class Ejections(RuleBasedStateMachine):
    """Any order of events; the effects alone say who is in routing, and that must be what the machine thinks."""

    replicas = st.sampled_from("abcdef")

    @initialize(replicas=st.sets(replicas, min_size=1))
    def begin(self, replicas):
        self.outliers = Outliers()
        self.now_s = 0.0
        self.names = replicas
        self.out: set[str] = set()
        self.gone: set[str] = set()
        self.silent: set[str] = set()
        self.probing: set[str] = set()
        self.elsewhere = (0, 0)
        self.take(self.outliers.roster(replicas))

    def take(self, effects):
        for effect in effects:
            if isinstance(effect, Eject):
                assert effect.replica not in self.out or effect.locked
                assert 0 < effect.for_s <= EJECT_S_MAX
                self.out.add(effect.replica)
            elif isinstance(effect, Readmit):
                self.out.remove(effect.replica)
                self.gone.discard(effect.replica)
                self.silent.discard(effect.replica)
                self.probing.discard(effect.replica)
            else:
                assert effect.replica in self.out - self.probing
                self.probing.add(effect.replica)

    @rule(replica=replicas)
    def bad(self, replica):
        self.take(self.outliers.bad(replica, "500", self.now_s))

    @rule(replica=replicas)
    def good(self, replica):
        self.outliers.good(replica, self.now_s)

    @rule(replica=replicas)
    def nobody_listens(self, replica):
        self.gone |= {replica} & self.names - self.out
        self.take(self.outliers.gone(replica, "refused", self.now_s))
        assert replica in self.out or replica not in self.names

    @rule(replica=replicas)
    def asks_for_a_key(self, replica):
        self.gone |= {replica} & self.names
        self.take(self.outliers.locked(replica, "401", self.now_s))
        assert (replica in self.outliers.asking) == (replica in self.names)

    @rule()
    def another_key(self):
        self.outliers.knock(self.now_s)
        self.take(self.outliers.advance(self.now_s))
        assert set(self.outliers.asking) <= self.probing

    @rule(replica=replicas)
    def stalled(self, replica):
        if any(self.elsewhere):
            self.silent |= {replica} & self.names - self.out
        self.take(self.outliers.stalled(replica, "silent", self.now_s))
        assert self.silent <= self.out, "be it the last: others have replicas"

    @rule(replicas=st.integers(0, 4), out=st.integers(0, 4))
    def told_of_others(self, replicas, out):
        before = self.out - self.gone - self.silent
        self.elsewhere = replicas, out
        self.take(self.outliers.elsewhere(replicas, out, self.now_s))
        assert self.outliers.others == any(self.elsewhere)
        assert self.out - self.gone - self.silent <= before, "news of others take nobody out"

    @rule(replica=replicas)
    def wrong(self, replica):
        self.take(self.outliers.wrong(replica, "404", self.now_s))

    @rule(replica=replicas)
    def watch(self, replica):
        self.outliers.watch(replica)

    @rule(replicas=st.sets(replicas, min_size=1))
    def roster(self, replicas):
        self.out &= replicas
        self.gone &= replicas
        self.silent &= replicas
        self.probing &= replicas
        self.names = replicas
        self.take(self.outliers.roster(replicas))

    @rule(replica=replicas, well=st.booleans())
    def probed(self, replica, well):
        if replica in self.probing:
            self.take(self.outliers.probed(replica, well, self.now_s))
            self.probing.discard(replica)

    @rule(seconds=st.floats(0.1, 400.0))
    def wait(self, seconds):
        self.now_s += seconds
        self.take(self.outliers.advance(self.now_s))
        due_s = self.outliers.next_deadline_s()
        assert due_s is None or due_s > self.now_s
        if not (self.elsewhere[0] or self.names - self.out or self.outliers.asking or self.probing):
            assert due_s <= self.now_s + EJECT_S, "nothing serves, and nobody looks for it soon"

    @invariant()
    def holds(self):
        if hasattr(self, "outliers"):
            self.outliers.check()
            assert set(self.outliers.out) == self.out
            serving, out = self.elsewhere
            wrong = self.out - self.gone - self.silent
            assert len(wrong) <= max(len(self.names) / 2, (len(self.names) + serving + out) / 2 - out)
            assert wrong < self.names or serving, "all that answers is out, everywhere"
            assert set(self.outliers.silent) == self.silent
            assert self.outliers.out == [] or self.outliers.next_deadline_s() is not None or self.probing


TestEjections = Ejections.TestCase
TestEjections.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize("replica", ["nobody", ""])
def test_strangers_are_ignored(replica):
    outliers = _pool("a")
    assert outliers.bad(replica, "500", 0.0) == []
    assert outliers.probed(replica, True, 0.0) == []
    outliers.good(replica, 0.0)
