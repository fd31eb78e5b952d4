"""The orderly retreat: nothing stops under a stream, before every gateway knows, or is taken back too late."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay.scaling.drain import PHASES, Phase, Restore, Retreat, Stop, Withdraw

LEASE_S, DRAIN_S = 10.0, 600.0


@pytest.fixture
def retreat():
    return Retreat(LEASE_S, DRAIN_S)


def test_the_whole_way(retreat):
    assert retreat.begin("a", 100.0) == [Withdraw("a", 700.0)]
    assert retreat.roster_published(1, 7, ["a"], ["g1", "g2"], 101.0) == []
    assert retreat.acknowledged("g1", 1, 7, 102.0) == []
    assert retreat.phase("a") is Phase.AWAITING
    assert retreat.acknowledged("g2", 1, 7, 103.0) == []
    assert retreat.phase("a") is Phase.EMPTYING
    assert retreat.live("a", 2, 104.0) == []
    assert retreat.live("a", 0, 150.0) == [Stop("a", cut_streams=False)]
    assert retreat.leaving() == {"a"}
    retreat.gone("a")
    assert retreat.leaving() == frozenset()
    assert retreat.next_deadline_s() is None


def test_a_zero_seen_before_everybody_knows_is_no_proof(retreat):
    """A gateway that had not acknowledged could have sent one more request after that look."""
    retreat.begin("a", 0.0)
    retreat.roster_published(1, 1, ["a"], ["g"], 1.0)
    assert retreat.live("a", 0, 2.0) == []
    assert retreat.acknowledged("g", 1, 1, 3.0) == []
    assert retreat.live("a", 0, 4.0) == [Stop("a", cut_streams=False)]


def test_an_older_roster_is_no_acknowledgement_and_a_newer_one_is(retreat):
    retreat.begin("a", 0.0)
    retreat.roster_published(2, 5, ["a"], ["g"], 1.0)
    retreat.acknowledged("g", 2, 4, 2.0)
    retreat.acknowledged("g", 1, 99, 2.0)
    assert retreat.phase("a") is Phase.AWAITING
    retreat.acknowledged("g", 3, 0, 3.0)
    assert retreat.phase("a") is Phase.EMPTYING


def test_a_lost_gateway_holds_a_stop_back_for_one_lease(retreat):
    retreat.begin("a", 0.0)
    retreat.roster_published(1, 1, ["a"], ["g"], 1.0)
    retreat.gateway_lost("g", 2.0)
    assert retreat.next_deadline_s() == 12.0
    retreat.advance(11.9)
    assert retreat.phase("a") is Phase.AWAITING
    retreat.advance(12.0)
    assert retreat.phase("a") is Phase.EMPTYING
    assert retreat.live("a", None, 13.0) == []


def test_a_gateway_heard_again_in_time_is_waited_for(retreat):
    retreat.begin("a", 0.0)
    retreat.roster_published(1, 1, ["a"], ["g"], 1.0)
    retreat.gateway_lost("g", 2.0)
    retreat.gateway_joined("g", 5.0)
    retreat.advance(20.0)
    assert retreat.phase("a") is Phase.AWAITING


def test_a_gateway_that_joins_late_must_acknowledge_too(retreat):
    retreat.begin("a", 0.0)
    retreat.roster_published(1, 1, ["a"], [], 1.0)
    assert retreat.phase("a") is Phase.EMPTYING
    retreat.gateway_joined("g", 2.0)
    assert retreat.live("a", 0, 3.0) == []
    retreat.acknowledged("g", 1, 1, 4.0)
    assert retreat.live("a", 0, 5.0) == [Stop("a", cut_streams=False)]


def test_a_gateway_that_says_goodbye_is_not_waited_for(retreat):
    retreat.begin("a", 0.0)
    retreat.roster_published(1, 1, ["a"], ["g"], 1.0)
    retreat.gateway_left("g", 2.0)
    assert retreat.phase("a") is Phase.EMPTYING


def test_the_deadline_cuts(retreat):
    retreat.begin("a", 0.0)
    retreat.roster_published(1, 1, ["a"], ["g"], 1.0)
    retreat.acknowledged("g", 1, 1, 2.0)
    retreat.live("a", 3, 3.0)
    assert retreat.next_deadline_s() == 600.0
    assert retreat.advance(599.9) == []
    assert retreat.advance(600.0) == [Stop("a", cut_streams=True)]
    assert retreat.advance(601.0) == []


def test_streams_not_known_are_waited_for_until_the_deadline(retreat):
    retreat.begin("a", 0.0, drain_s_max=50.0)
    retreat.roster_published(1, 1, ["a"], [], 1.0)
    assert retreat.live("a", None, 49.0) == []
    assert retreat.advance(50.0) == [Stop("a", cut_streams=True)]


@pytest.mark.parametrize("acknowledged", [False, True])
def test_load_returns_and_the_replica_serves_again(retreat, acknowledged):
    retreat.begin("a", 0.0)
    retreat.roster_published(1, 1, ["a"], ["g"], 1.0)
    if acknowledged:
        retreat.acknowledged("g", 1, 1, 2.0)
    assert retreat.cancellable("a")
    assert retreat.cancel("a", 3.0) == [Restore("a")]
    assert retreat.leaving() == frozenset()
    assert retreat.begin("a", 4.0) == [Withdraw("a", 604.0)]


def test_after_the_signal_there_is_no_way_back(retreat):
    retreat.begin("a", 0.0)
    retreat.roster_published(1, 1, ["a"], [], 1.0)
    retreat.live("a", 0, 2.0)
    assert not retreat.cancellable("a")
    assert retreat.cancel("a", 3.0) == []
    assert retreat.leaving() == {"a"}


def test_a_cancel_at_the_deadline_comes_too_late(retreat):
    retreat.begin("a", 0.0)
    assert retreat.cancel("a", 600.0) == [Stop("a", cut_streams=True)]


def test_begin_twice_is_once_and_strangers_are_ignored(retreat):
    retreat.begin("a", 0.0)
    assert retreat.begin("a", 100.0) == []
    assert retreat.next_deadline_s() == 600.0
    assert retreat.cancel("b", 1.0) == []
    assert retreat.live("b", 0, 1.0) == []
    retreat.gone("b")


def test_a_table_that_only_ends_in_stopped():
    assert not PHASES[Phase.STOPPED]
    assert all(Phase.STOPPED in targets for phase, targets in PHASES.items() if phase is not Phase.STOPPED)


class RetreatMachine(RuleBasedStateMachine):
    """Two replicas, one retreating from the start, and a model of what each of two gateways may still do, on whole-second clocks."""

    @initialize()
    def start(self):
        self.retreat = Retreat(LEASE_S, DRAIN_S)
        self.now_s, self.version = 0.0, 0
        self.without = {0: frozenset()}
        self.applied = {"g1": 0, "g2": 0}
        self.connected = {"g1": True, "g2": True}
        self.lost_s = {}
        self.began_s = {}
        self.zero_s = {}
        self.stopped = set()
        self.begin("a")
        self.publish()

    def take(self, effects):
        for effect in effects:
            assert effect.replica_id not in self.stopped
            if isinstance(effect, Stop):
                self.stopped.add(effect.replica_id)
                late = self.now_s >= self.began_s[effect.replica_id] + DRAIN_S
                assert late or not effect.cut_streams
                assert late or self.nobody_sends(effect.replica_id)
                assert late or effect.replica_id in self.zero_s

    def nobody_sends(self, replica):
        """Every gateway applied a roster without it, or is gone for longer than its lease."""
        return all(
            replica in self.without[version] or (gateway in self.lost_s and self.now_s >= self.lost_s[gateway] + LEASE_S)
            for gateway, version in self.applied.items()
        )

    @rule(replica=st.sampled_from("ab"))
    def start_retreat(self, replica):
        self.begin(replica)

    def begin(self, replica):
        if replica not in self.retreat.leaving():
            self.began_s[replica] = self.now_s
            self.zero_s.pop(replica, None)
        self.take(self.retreat.begin(replica, self.now_s))

    @rule()
    def publish_roster(self):
        self.publish()

    def publish(self):
        self.version += 1
        self.without[self.version] = self.retreat.leaving()
        record = [gateway for gateway in self.applied if self.connected[gateway] or self.now_s < self.lost_s[gateway] + LEASE_S]
        self.take(self.retreat.roster_published(1, self.version, self.without[self.version], record, self.now_s))

    @rule(gateway=st.sampled_from(["g1", "g2"]), behind=st.sampled_from([0, 0, 1]))
    def acknowledge(self, gateway, behind):
        """The newest roster, or the one before it if that message is still on its way."""
        if self.connected[gateway]:
            self.applied[gateway] = max(self.applied[gateway], self.version - behind)
            self.take(self.retreat.acknowledged(gateway, 1, self.applied[gateway], self.now_s))

    @rule(gateway=st.sampled_from(["g1", "g2"]))
    def lose(self, gateway):
        if self.connected[gateway]:
            self.connected[gateway] = False
            self.lost_s[gateway] = self.now_s
            self.take(self.retreat.gateway_lost(gateway, self.now_s))

    @rule(gateway=st.sampled_from(["g1", "g2"]))
    def join(self, gateway):
        if not self.connected[gateway]:
            self.connected[gateway] = True
            del self.lost_s[gateway]
            self.take(self.retreat.gateway_joined(gateway, self.now_s))

    @rule(replica=st.sampled_from("ab"), streams=st.sampled_from([None, 0, 0, 1]))
    def look(self, replica, streams):
        if streams == 0 and self.nobody_sends(replica):
            self.zero_s[replica] = self.now_s
        self.take(self.retreat.live(replica, streams, self.now_s))

    @rule(replica=st.sampled_from("ab"))
    def cancel(self, replica):
        before = self.retreat.phase(replica)
        effects = self.retreat.cancel(replica, self.now_s)
        self.take(effects)
        if Restore(replica) in effects:
            assert before in {Phase.LISTED, Phase.AWAITING, Phase.EMPTYING}
            assert replica not in self.retreat.leaving()

    @precondition(lambda self: self.stopped)
    @rule()
    def gone(self):
        replica = self.stopped.pop()
        self.retreat.gone(replica)
        self.without = {version: absent - {replica} for version, absent in self.without.items()}

    @rule(seconds=st.sampled_from([0.0, 1.0, 5.0, 10.0, 10.0, 200.0]))
    def pass_time(self, seconds):
        self.now_s += seconds
        self.take(self.retreat.advance(self.now_s))

    @rule()
    def pass_to_deadline(self):
        deadline_s = self.retreat.next_deadline_s()
        if deadline_s is not None and deadline_s <= self.now_s + 3 * LEASE_S:
            assert deadline_s >= self.now_s
            self.now_s = deadline_s
            self.take(self.retreat.advance(self.now_s))

    @invariant()
    def holds(self):
        if hasattr(self, "retreat"):
            self.retreat.check()


TestRetreatMachine = RetreatMachine.TestCase
TestRetreatMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
