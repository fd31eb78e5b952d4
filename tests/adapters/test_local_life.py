"""A replica's life without processes: the table holds, stages add up, and no order of events makes it forget a wish."""

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forebay.adapters.local.health import Health, HealthKind
from forebay.adapters.local.life import STAGES_MAX, Life, backoff_s, new_life
from forebay.domain.replica import ReplicaState as S
from forebay.domain.replica import StageTime

REFUSED = Health(HealthKind.REFUSED, "connection refused")
SICK = Health(HealthKind.SICK, "answered 500")
HEALTHY = Health(HealthKind.HEALTHY, "its /metrics answered 404")
SERVING = Health(HealthKind.SERVING)


def stage(name):
    return Health(HealthKind.STAGE, name)


def started(reports_stages=True):
    life = new_life("r", "chat", 10.0)
    life.spawned(7, 1.0, "http://127.0.0.1:1", reports_stages, 10.0)
    return life


def test_reported_stages_are_timed_and_add_up():
    life = started()
    steps = [
        (11.0, REFUSED),
        (12.0, stage("provision")),
        (20.0, stage("provision")),
        (30.0, stage("weights")),
        (50.0, stage("init")),
        (60.0, HEALTHY),
        (61.0, SERVING),
    ]
    states = []
    for now_s, health in steps:
        life.saw(health, now_s)
        states.append(life.state)
    assert states == [S.REQUESTED, S.PROVISIONING, S.PROVISIONING, S.LOADING, S.LOADING, S.LOADING, S.READY]
    assert life.stages == (
        StageTime("start", 2.0),
        StageTime("provision", 18.0),
        StageTime("weights", 20.0),
        StageTime("init", 10.0),
        StageTime("metrics", 1.0),
    )
    assert life.view().cold_start_s == 51.0
    assert life.since_s == 61.0


def test_one_that_reports_no_stages_is_loading_at_once_and_never_goes_back():
    life = started(reports_stages=False)
    assert life.state is S.LOADING
    life.saw(stage("provision"), 11.0)
    assert life.state is S.LOADING
    life.saw(SERVING, 15.0)
    assert life.view().cold_start_s == 5.0


def test_a_flapping_engine_does_not_grow_its_record():
    life = started()
    for number in range(100):
        life.saw(stage(f"s{number % 2}"), 11.0 + number)
    assert len(life.stages) == STAGES_MAX


def test_sickness_is_dated_from_its_first_sign_and_forgiven_by_a_good_answer():
    life = started()
    life.saw(SERVING, 11.0)
    life.saw(SICK, 20.0)
    life.saw(REFUSED, 30.0)
    assert life.sick_since_s == 20.0
    life.saw(HEALTHY, 31.0)
    assert life.sick_since_s is None
    assert life.state is S.READY


def test_failures_in_a_row_are_forgiven_only_by_being_ready_for_long():
    life = started()
    life.saw(SERVING, 11.0)
    life.ended("crash", 600.0, 12.0)
    life.restarting(13.0)
    life.spawned(8, 1.0, "http://127.0.0.1:2", True, 13.0)
    assert (life.stages, life.restarts, life.attempt_s) == ((), 1, 13.0)
    life.ended("crash", 600.0, 14.0)
    assert life.failures_in_a_row == 2
    life.restarting(15.0)
    life.spawned(9, 1.0, "", True, 15.0)
    life.saw(SERVING, 16.0)
    life.ended("crash", 600.0, 616.0)
    assert (life.failures_in_a_row, life.state, life.problem) == (1, S.FAILED, "crash")


def test_ready_clears_the_problem_of_before():
    life = started()
    life.ended("crash", 600.0, 12.0)
    life.restarting(13.0)
    life.spawned(8, 1.0, "", True, 13.0)
    assert life.problem == "crash"
    life.saw(SERVING, 14.0)
    assert life.problem == ""


@pytest.mark.parametrize(("health", "state"), [(SERVING, S.DRAINING), (stage("weights"), S.LOADING), (stage("provision"), S.PROVISIONING)])
def test_a_stop_drains_what_is_ready_and_leaves_what_is_pending(health, state):
    life = started()
    life.saw(health, 11.0)
    assert life.stop(12.0)
    assert not life.stop(13.0)
    assert life.state is state
    assert not life.cancel_drain(13.0)
    life.ended("died of signal 15", 600.0, 14.0)
    assert (life.state, life.problem) == (S.STOPPED, "")


def test_a_stop_between_two_attempts_needs_no_process():
    life = started()
    life.ended("crash", 600.0, 12.0)
    assert life.stop(13.0)
    assert life.state is S.STOPPED


def test_an_adopted_one_has_no_time_in_the_future():
    life = started()
    life.saw(SERVING, 500.0)
    life.adopted(100.0)
    assert (life.requested_s, life.since_s, life.attempt_s, life.stage_since_s) == (10.0, 100.0, 10.0, 100.0)
    assert life.view().cold_start_s == 490.0


def test_backoff_doubles_to_its_bound_and_jitter_takes_off_at_most_half():
    assert [backoff_s(n, 1.0, 10.0, 0.0) for n in (0, 1, 2, 3, 4, 5, 1000)] == [1.0, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert backoff_s(4, 1.0, 10.0, 1.0) == 4.0


class LifeMachine(RuleBasedStateMachine):
    """Any order of probes, ends, wishes and restarts."""

    def __init__(self):
        super().__init__()
        self.now_s = 0.0
        self.life = new_life("r", "chat", 0.0)
        self.wished = False

    def tick(self):
        self.now_s += 1.0
        return self.now_s

    @precondition(lambda self: self.life.pid == 0 and self.life.state is S.REQUESTED)
    @rule(reports_stages=st.booleans())
    def spawn(self, reports_stages):
        self.life.spawned(1, 1.0, "http://127.0.0.1:1", reports_stages, self.tick())

    @precondition(lambda self: self.life.pid)
    @rule(health=st.sampled_from([REFUSED, SICK, HEALTHY, SERVING, stage("provision"), stage("weights"), stage("other")]))
    def see(self, health):
        before = self.life.state
        assert self.life.saw(health, self.tick()) == (self.life.state is not before)

    @precondition(lambda self: self.life.pid)
    @rule()
    def end(self):
        leaving = self.wished or self.life.state is S.DRAINING
        self.life.ended("crash", 5.0, self.tick())
        assert self.life.state is (S.STOPPED if leaving else S.FAILED)

    @precondition(lambda self: self.life.state is S.FAILED and not self.wished)
    @rule()
    def restart(self):
        self.life.restarting(self.tick())

    @rule()
    def drain(self):
        ready = self.life.state is S.READY
        assert self.life.drain(self.tick()) == ready

    @rule()
    def cancel(self):
        back = self.life.cancel_drain(self.tick())
        assert not (back and self.wished)

    @rule()
    def stop(self):
        self.life.stop(self.tick())
        self.wished = True

    @rule()
    def store_and_load(self):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(self.life), type=Life) == self.life
        self.life = msgspec.msgpack.decode(msgspec.msgpack.encode(self.life), type=Life)

    @invariant()
    def holds(self):
        life = self.life
        assert 0.0 <= life.since_s <= self.now_s
        assert life.state is not S.READY or not life.stopping
        assert life.state not in {S.FAILED, S.STOPPED} or life.pid == 0
        assert not (life.stopping and life.state is S.FAILED)
        if life.state is S.READY and life.restarts == 0:
            assert (
                abs(sum(one.seconds for one in life.stages) - (life.stage_since_s - life.attempt_s)) < 1e-9
                or len(life.stages) == STAGES_MAX
            )


LifeMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestLifeMachine = LifeMachine.TestCase
