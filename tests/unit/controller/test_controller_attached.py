"""A controller whose pool attaches to other engines: rosters follow, what leaves runs empty first, and its policy is of the new size."""

import msgspec
import pytest
from test_controller import ScriptedFleet, Silent, StillClock, drive

from forebay.app import wiring
from forebay.controller.service import Controller
from forebay.domain.errors import BadInput
from forebay.domain.replica import ReplicaState, ReplicaView
from forebay.domain.roster import Ack, Capacity, Hello, PoolLoad, ReplicaLoad, Snapshot
from forebay.domain.signal import Known
from forebay.engine.catalogue import PROFILES
from forebay.ports import EngineSignals
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Model, Pool, Scaling, Spec
from forebay.testing.events import ListSink
from forebay.testing.store import MemoryStore

A, B, C = "chat@10.0.0.1:8000", "chat@10.0.0.2:8000", "chat@10.0.0.3:8000"


def listing(*replicas):
    urls = tuple(f"http://{replica.partition('@')[2]}" for replica in replicas)
    scaling = Scaling(min_replicas=len(urls), max_replicas=len(urls), drain_s_max=50.0)
    return Spec(
        (Pool("chat", "m", EngineKind("attach", attach=urls), PROFILES["llama-3.1-8b-h100"], scaling=scaling),),
        (Model("m"),),
        DEFAULT_TIERS,
    )


class Busy(Silent):
    """Engines that serve others too."""

    async def read(self, replicas):
        return {name: EngineSignals(running=Known(7.0, 0.0), waiting=Known(0.0, 0.0)) for name in replicas}


class Stage:
    def __init__(self, *replicas):
        self.clock, self.sink, self.store = StillClock(), ListSink(), MemoryStore()
        self.fleet = ScriptedFleet(self.clock)
        for replica in replicas:
            self.listed(replica)
        spec, capacity = listing(*replicas), Capacity(10_000, 8, 1000, 1000.0, 100.0, 4096)
        self.controller = Controller(
            spec, self.clock, self.fleet, Busy(), self.store, self.sink, wiring.policies(spec), lambda pool, seen: capacity
        )
        self.controller.hear(Hello("g"))

    def listed(self, replica, state=ReplicaState.READY):
        self.fleet.views[replica] = ReplicaView(replica, "chat", state, 100.0, 100.0, f"http://{replica.partition('@')[2]}")

    def take(self, *replicas):
        """As the fleet does."""
        self.controller.use(listing(*replicas), wiring.policies(listing(*replicas)))
        for replica in self.fleet.views.keys() - set(replicas):
            self.listed(replica, ReplicaState.DRAINING)
        for replica in replicas:
            self.listed(replica)

    def step(self, **streams):
        self.clock.at_s += 1.0
        drive(self.controller.step())
        roster = self.controller.roster
        rows = tuple(ReplicaLoad(replica, count, 100 * count) for replica, count in streams.items())
        self.controller.hear(Ack("g", roster.term, roster.version))
        self.controller.hear(Snapshot("g", 0.0, roster.term, roster.version, (PoolLoad("chat", (), rows, ()),)))

    def told(self, kind):
        return [event.message for event in self.sink.events if event.kind == kind]

    @property
    def roster(self):
        return [replica.id for pool in self.controller.roster.pools for replica in pool.replicas]


@pytest.fixture
def stage():
    return Stage(A, B)


def test_an_engine_that_left_the_list_is_forgotten_once_no_gateway_has_streams_there(stage):
    stage.step()
    assert stage.roster == [A, B]
    stage.take(B, C)
    for _ in range(5):
        stage.step(**{A: 2})
        assert stage.roster == [B, C]
        assert A in stage.fleet.views
    for _ in range(3):
        stage.step(**{A: 0})
    assert A not in stage.fleet.views, "what others have there holds nothing up"
    stage.step()
    assert stage.controller.retreat.leaving() == frozenset()
    assert A not in stage.controller.rosters.capacities
    assert stage.told("attach_taken") == ["attach: +10.0.0.3:8000, -10.0.0.1:8000"]
    assert stage.told("engine_left") == [f"{A} is off the list, and nothing that came by here runs on it any more"]
    assert stage.store.events(limit=1000), "and it is in the history"


def test_at_its_deadline_it_is_forgotten_with_streams_that_go_on(stage):
    stage.step()
    stage.take(B)
    for _ in range(55):
        stage.step(**{A: 1})
    assert A not in stage.fleet.views
    assert stage.told("engine_left") == [f"{A} is off the list, and its streams go on"]
    assert stage.told("drain_deadline") == []


def test_one_that_was_never_in_a_roster_need_not_wait_for_its_deadline(stage):
    stage.step()
    stage.listed(C, ReplicaState.DRAINING)  # listed, healthy and off the list again between two ticks
    for _ in range(4):
        stage.step()
    assert C not in stage.fleet.views


@pytest.mark.parametrize("streams", [0, 1])
def test_one_that_is_listed_again_serves_again_however_far_it_was(stage, streams):
    stage.step()
    stage.take(B)
    stage.step(**{A: 1})
    stage.step(**{A: streams})
    stage.take(A, B)
    stage.step()
    assert sorted(stage.roster) == [A, B]
    for _ in range(3):
        stage.step(**{A: 1})
    assert sorted(stage.roster) == [A, B]
    assert ("stop", A) not in stage.fleet.take()


def test_one_that_is_listed_again_after_it_was_told_to_go_is_no_longer_waited_for(stage):
    stage.step()
    stage.take(B)
    for _ in range(3):
        stage.step(**{A: 0})
    assert A not in stage.fleet.views
    stage.take(A, B)
    stage.step()
    stage.step()
    assert sorted(stage.roster) == [A, B]


def test_the_pool_is_decided_by_its_new_size(stage):
    stage.step()
    assert stage.controller.wards["chat"].desired == 2
    stage.take(A, B, C)
    stage.step()
    assert stage.controller.wards["chat"].desired == 3
    stage.take(C)
    stage.step()
    assert stage.controller.wards["chat"].desired == 1
    assert stage.fleet.take() in ([("drain", A), ("drain", B)], [("drain", B), ("drain", A)])


def test_what_needs_a_new_start_changes_nothing(stage):
    spec = listing(B, C)
    (pool,) = spec.pools
    with pytest.raises(BadInput, match=r"pools.chat \(queued_max\)"):
        stage.controller.use(msgspec.structs.replace(spec, pools=(msgspec.structs.replace(pool, queued_max=5),)), wiring.policies(spec))
    assert stage.controller.spec == listing(A, B)
    assert stage.told("attach_taken") == []
