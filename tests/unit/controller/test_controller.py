"""The control loop over fakes: what it asks of the fleet, what it tells the gateways, what it remembers."""

import math

import msgspec
import numpy as np
import pytest

from forebay.controller.gateways import BOOKED_AGE_SHARE
from forebay.controller.observing import OVERDUE_S_MIN
from forebay.controller.service import LEASE_S, Controller, PoolPolicy
from forebay.domain.profile import ColdStart, Profile, StepLaw
from forebay.domain.replica import ReplicaState, ReplicaView, StageTime
from forebay.domain.roster import Ack, Bye, Capacity, Hello, PoolLoad, ReplicaLoad, Snapshot, TierCounts
from forebay.domain.scaling import Alert, AlertKind, Decision, Term, TermKind
from forebay.domain.signal import Known
from forebay.ports import EngineSignals
from forebay.scaling.capacity import PoolCapacity
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Model, Pool, Scaling, Spec
from forebay.testing.events import ListSink
from forebay.testing.store import MemoryStore

PROFILE = Profile("p", "m", "h", 2, StepLaw(0.01, 0, 0, 0), 8, 10_000, 16, 512, 1, 4096, ColdStart(0, 1, 1, 0))
SPEC = Spec(
    pools=(
        Pool("chat", "m", EngineKind("emulated"), PROFILE, scaling=Scaling(min_replicas=1, max_replicas=9, starts_max=3, drain_s_max=50.0)),
    ),
    models=(Model("m"),),
    tiers=DEFAULT_TIERS,
)


class StillClock:
    """A clock that a test moves."""

    speed = 1.0

    def __init__(self):
        self.at_s = 100.0

    def now_s(self):
        return self.at_s

    def wall_s(self):
        return 1e9 + self.at_s

    async def sleep_until(self, at_s):
        self.at_s = max(self.at_s, at_s)


class ScriptedFleet:
    """Does what it is told at once, and writes it down."""

    def __init__(self, clock):
        self.clock = clock
        self.views = {}
        self.told = []

    async def observe(self):
        return tuple(self.views.values())

    async def ensure(self, pool, replica_ids):
        for name in replica_ids:
            if name not in self.views:
                self.told.append(("start", name))
                self.views[name] = ReplicaView(name, pool, ReplicaState.LOADING, self.clock.now_s(), self.clock.now_s())

    async def drain(self, replica_id, deadline_s):
        self.told.append(("drain", replica_id))
        self.set(replica_id, ReplicaState.DRAINING)

    async def cancel_drain(self, replica_id):
        self.told.append(("cancel", replica_id))
        self.set(replica_id, ReplicaState.READY)

    async def stop(self, replica_id):
        self.told.append(("stop", replica_id))
        self.views.pop(replica_id, None)

    def set(self, name, state):
        url = f"http://127.0.0.1:{len(name)}{name[-1]}"
        self.views[name] = msgspec.structs.replace(self.views[name], state=state, url=url, stages=(StageTime("load", 7.0),))

    def ready_all(self):
        for name in self.views:
            self.set(name, ReplicaState.READY)

    def take(self):
        told, self.told = self.told, []
        return told


class Silent:
    """A SignalSource without a word: every reading Unknown."""

    async def read(self, replicas):
        return {name: EngineSignals() for name in replicas}


class Scripted:
    """A policy that wants what a test says."""

    def __init__(self):
        self.wanted = 1
        self.alerts = ()
        self.seen = []

    def decide(self, observation):
        self.seen.append(observation)
        term = Term("script", TermKind.FLOOR, self.wanted, "the test wants it", binding=True)
        memory = observation.memory + b"."
        return Decision(
            "chat",
            observation.now_s,
            self.wanted,
            "script",
            (term,),
            alerts=self.alerts,
            look_again_at_s=observation.now_s + 1,
            memory=memory,
        )


class Stage:
    def __init__(self, store=None):
        self.clock, self.policy, self.sink = StillClock(), Scripted(), ListSink()
        self.fleet = ScriptedFleet(self.clock)
        self.store = store or MemoryStore()
        self.pages = Silent()
        self.controller = self.make()

    def make(self):
        policies = {"chat": PoolPolicy(self.policy, PoolCapacity(rate_per_s=1.0, cold_start_s=10.0))}
        capacity = Capacity(10_000, 8, 1000, 1000.0, 100.0, 4096)
        return Controller(SPEC, self.clock, self.fleet, self.pages, self.store, self.sink, policies, lambda pool, seen: capacity)

    def step(self, wanted=None, seconds=1.0):
        if wanted is not None:
            self.policy.wanted = wanted
        self.clock.at_s += seconds
        return drive(self.controller.step())

    def hear(self, *messages):
        for message in messages:
            self.controller.hear(message)

    def snapshot(self, streams=(), version=None):
        rows = tuple(ReplicaLoad(name, count, 100 * count) for name, count in streams)
        roster = self.controller.roster
        return Snapshot("g", 0.0, roster.term, roster.version if version is None else version, (PoolLoad("chat", (), rows, ()),))

    def roster(self):
        return [replica.id for pool in self.controller.roster.pools for replica in pool.replicas]


def drive(coroutine):
    """Run a coroutine that never really waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits for something")


@pytest.fixture
def stage():
    return Stage()


def test_starts_are_limited_and_named_once(stage):
    stage.step(wanted=5)
    assert stage.fleet.take() == [("start", "chat-1"), ("start", "chat-2"), ("start", "chat-3")]
    stage.step()
    assert stage.fleet.take() == []
    stage.fleet.ready_all()
    stage.step()
    assert stage.fleet.take() == [("start", "chat-4"), ("start", "chat-5")]
    assert stage.roster() == ["chat-1", "chat-2", "chat-3"]


@pytest.mark.parametrize("damaged", [b"\xff\x00\x07", b"[]", b"{", b'"5"', b"-1", b"9" * 5000, b'{"day": 3}'])
def test_a_controller_starts_over_values_that_a_disk_has_damaged(damaged):
    """Each of these ended every start of a controller at the same byte, for ever."""
    store = MemoryStore()
    for key in ("term", "policy/chat", "named/chat", "cold_starts/chat", "ramp_today/chat", "gpu_meter"):
        store.put(key, damaged)
    stage = Stage(store)
    stage.controller.ramps.take("chat", 0.1, stage.clock.wall_s())
    stage.step(wanted=2)
    assert stage.fleet.take() == [("start", "chat-1"), ("start", "chat-2")]
    assert stage.controller.roster.term == 1
    assert stage.make().roster.term == 2


def ready_fleet(stage, count):
    stage.hear(Hello("g"))
    for _ in range(3):
        stage.step(wanted=count)
        stage.fleet.ready_all()
    stage.step()
    stage.hear(stage.snapshot())
    stage.fleet.take()


def test_a_drain_is_a_roster_first_then_an_acknowledgement_then_empty_then_a_stop(stage):
    ready_fleet(stage, 3)
    before = stage.controller.roster.version
    assert stage.step(wanted=2)
    (verb, victim), *more = stage.fleet.take()
    assert (verb, more) == ("drain", [])
    assert victim not in stage.roster()
    assert stage.controller.roster.version == before + 1
    stage.step()
    assert stage.fleet.take() == [], "no gateway has acknowledged yet"
    stage.hear(Ack("g", 1, before + 1), stage.snapshot([(victim, 2)]))
    stage.step()
    stage.step()
    assert stage.fleet.take() == [], "two streams are live"
    stage.hear(stage.snapshot())
    stage.step()
    assert stage.fleet.take() == [("stop", victim)]


def test_an_old_acknowledgement_stops_nothing(stage):
    ready_fleet(stage, 2)
    before = stage.controller.roster.version
    stage.step(wanted=1)
    stage.fleet.take()
    stage.hear(Ack("g", 1, before), stage.snapshot(version=before))
    stage.step()
    assert stage.fleet.take() == []


def test_a_silent_gateway_holds_a_stop_back_for_its_lease_and_no_longer(stage):
    ready_fleet(stage, 2)
    stage.step(wanted=1)
    ((_, victim),) = stage.fleet.take()
    stage.controller.lost("g")
    stage.step(seconds=LEASE_S - 2)
    assert stage.fleet.take() == []
    for _ in range(4):
        stage.step(seconds=LEASE_S)
    assert stage.fleet.take() == [("stop", victim)]


def test_a_gateway_that_is_silent_on_a_standing_connection_is_told_of_once_and_when_it_is_heard_again(stage):
    """It was said of broken connections only, and a process that is stopped breaks none."""
    ready_fleet(stage, 1)
    told = stage.sink.kinds
    before = told().count("gateway_joined")
    stage.step(seconds=LEASE_S - 2)
    assert told().count("gateway_lost") == 0
    for _ in range(3):
        stage.step(seconds=LEASE_S)
    assert told().count("gateway_lost") == 1
    stage.hear(stage.snapshot())
    stage.step()
    assert told().count("gateway_joined") == before + 1
    for _ in range(2):
        stage.step(seconds=LEASE_S)
    assert told().count("gateway_lost") == 2


def test_load_that_returns_cancels_the_drain_and_starts_nothing(stage):
    ready_fleet(stage, 3)
    stage.step(wanted=2)
    ((_, victim),) = stage.fleet.take()
    stage.hear(stage.snapshot([(victim, 1)]))
    stage.step()
    stage.step(wanted=3)
    assert stage.fleet.take() == [("cancel", victim)]
    stage.step()
    assert victim in stage.roster()
    assert stage.fleet.take() == []


def test_what_is_not_ready_is_stopped_without_a_drain(stage):
    stage.step(wanted=3)
    stage.fleet.take()
    stage.step(wanted=1)
    assert [verb for verb, _ in stage.fleet.take()] == ["stop", "stop"]


def test_a_replica_that_crashes_while_it_drains_is_let_go(stage):
    ready_fleet(stage, 2)
    stage.step(wanted=1)
    ((_, victim),) = stage.fleet.take()
    stage.fleet.set(victim, ReplicaState.FAILED)
    stage.step()
    stage.step()
    assert ("stop", victim) in stage.fleet.take()
    assert victim not in stage.controller.retreat.leaving()


def test_a_restart_forgets_neither_the_wish_nor_the_policys_memory(stage):
    ready_fleet(stage, 3)
    memory = stage.controller.wards["chat"].memory
    again = stage.make()
    assert again.wards["chat"].desired == 3
    assert again.wards["chat"].memory == memory
    assert again.roster.term == stage.controller.roster.term + 1


def test_no_gateway_makes_lanes_unknown_and_a_goodbye_is_no_outage(stage):
    stage.step()
    assert stage.policy.seen[-1].lanes_waiting.why == "no_gateway"
    stage.hear(Hello("g"), Hello("h"), stage.snapshot(), msgspec.structs.replace(stage.snapshot(), gateway="h"))
    stage.step()
    assert stage.policy.seen[-1].lanes_waiting.value == 0
    stage.hear(Bye("h"))
    stage.step()
    assert stage.policy.seen[-1].lanes_waiting.value == 0
    stage.controller.lost("g")
    stage.step(seconds=LEASE_S + 1)
    assert stage.policy.seen[-1].lanes_waiting.why == "gateway_lost"


def test_an_alert_is_told_when_it_begins_and_when_it_ends(stage):
    stage.policy.alerts = (Alert(AlertKind.SLO_BREACH, "chat", "late", 0.0),)
    stage.step()
    stage.step()
    stage.policy.alerts = ()
    stage.step()
    told = [event.kind for event in stage.sink.events if event.kind.startswith("alert")]
    assert told == ["alert", "alert_over"]
    assert [event.kind for event in stage.store.events() if event.kind.startswith("alert")] == told


def test_a_pending_start_past_its_time_is_overdue(stage):
    stage.step(wanted=1)
    stage.step(seconds=10.0 + OVERDUE_S_MIN)
    assert not stage.policy.seen[-1].replicas[0].overdue, "a few seconds are how busy the machine is"
    stage.step(seconds=1.0)
    assert stage.policy.seen[-1].replicas[0].overdue
    assert stage.controller.roster.pools[0].next_ready_in_s is None


def test_the_roster_says_when_the_next_replica_is_expected(stage):
    stage.step(wanted=2)
    stage.step()
    (pool,) = stage.controller.roster.pools
    assert pool.next_ready_in_s == 10.0


def test_decisions_are_recorded_when_they_differ_and_once_a_minute(stage):
    for _ in range(130):
        stage.step(wanted=1)
    recorded = stage.store.decisions("chat", limit=100)
    assert 3 <= len(recorded) <= 4
    stage.step(wanted=2)
    assert stage.store.decisions("chat")[0].decision.replicas == 2


def test_demand_is_counted_net_of_preemptible_work_and_shown_to_the_policy_and_kept_out_of_the_record(stage):
    stage.hear(Hello("g"))
    for second in range(700):
        tiers = tuple(
            TierCounts(tier, preemptible, 2 * second, 2000 * second, 200 * second, 0, 0, 0, 0, 0, 0)
            for tier, preemptible in (("interactive", False), ("batch", True))
        )
        load = PoolLoad("chat", (), (), tiers)
        stage.hear(msgspec.structs.replace(stage.snapshot(), at_s=float(second), pools=(load,)))
        stage.step()
    history = stage.policy.seen[-1].history
    assert np.frombuffer(history.requests, "<f4").tolist()[-1] == pytest.approx(600, rel=0.01)
    assert np.frombuffer(history.prompt_tokens, "<f4").tolist()[-1] == pytest.approx(600_000, rel=0.01)
    assert history.start_wall_s + history.bucket_s * len(history.requests) / 4 <= stage.clock.wall_s()
    assert stage.store.decisions("chat")[0].observation.history is None
    again = stage.make()
    stage.controller = again
    stage.step()
    assert stage.policy.seen[-1].history == history


def test_stop_all_ends_every_replica(stage):
    ready_fleet(stage, 3)
    drive(stage.controller.stop_all())
    assert stage.fleet.views == {}


@pytest.mark.parametrize("readable", [True, False])
def test_a_store_that_keeps_nothing_does_not_stop_the_fleet_from_growing(readable):
    class Forgetful(MemoryStore):
        def put(self, key, value):
            pass

        def get(self, key):
            return super().get(key) if readable else None

    stage = Stage(Forgetful())
    for wanted in (1, 2, 3):
        stage.step(wanted=wanted)
    assert [name for _, name in stage.fleet.take()] == ["chat-1", "chat-2", "chat-3"]
    stage.fleet.ready_all()
    stage.controller = stage.make()
    stage.step(wanted=4)
    assert stage.fleet.take() == [("start", "chat-4")]


def test_a_term_that_nobody_remembers_is_outbid(stage):
    """The history was moved away while a gateway routes by a later term: it would take no roster of an earlier one."""
    ready_fleet(stage, 2)
    stage.step(wanted=1)
    ((_, victim),) = stage.fleet.take()
    stage.hear(Ack("g", 7, 99), msgspec.structs.replace(stage.snapshot(), term=7, version=99))
    assert stage.step()
    assert (stage.controller.roster.term, stage.store.get("term")) == (8, b"8")
    stage.step()
    assert stage.fleet.take() == [], "a roster of another term does not say that the victim is left out"
    assert not stage.step(), "told once"
    stage.hear(Ack("g", 8, stage.controller.roster.version), stage.snapshot())
    stage.step()
    assert stage.fleet.take() == [("stop", victim)]


class FullPages:
    """Engines that hold a quarter more than is booked on them, and go on generating."""

    def __init__(self, clock):
        self.clock = clock

    async def read(self, replicas):
        now_s = self.clock.now_s()
        page = EngineSignals(
            kv_usage=Known(0.5, now_s), generated_tokens_total=Known(100 * now_s, now_s), preemptions_total=Known(now_s // 50, now_s)
        )
        return dict.fromkeys(replicas, page)


def kv_budgets(stage):
    return {each.capacity.kv_tokens for pool in stage.controller.roster.pools for each in pool.replicas}


def booked(stage, tokens=4000):
    (pool,) = stage.snapshot([("chat-1", 9)]).pools
    rows = (ReplicaLoad("chat-1", 9, tokens, kv_tokens_least=tokens, kv_tokens_most=tokens),)
    return msgspec.structs.replace(stage.snapshot(), pools=(msgspec.structs.replace(pool, replicas=rows),))


def test_a_kv_budget_follows_what_its_engine_holds_and_a_restart_remembers(stage):
    stage.controller._source = FullPages(stage.clock)
    ready_fleet(stage, 1)
    assert kv_budgets(stage) == {10_000}
    for _ in range(120):
        stage.hear(booked(stage))
        stage.step()
    (budget,) = kv_budgets(stage)
    assert 7000 < budget <= 8000
    (listed,) = stage.controller.roster.pools[0].replicas
    assert listed.capacity.kv_tokens_alone == 10_000
    assert stage.controller.corrections.preemptions_total == {"chat": 2}
    assert stage.controller.roster.version < 40
    stage.controller = stage.make()
    stage.step()
    stage.step()
    (again,) = kv_budgets(stage)
    assert 7900 < again <= 8200


def test_what_is_held_is_not_compared_while_a_gateway_has_not_just_told(stage):
    stage.controller._source = FullPages(stage.clock)
    ready_fleet(stage, 1)
    stage.hear(booked(stage, 2000))
    for _ in range(math.ceil(BOOKED_AGE_SHARE * LEASE_S)):
        stage.step()
    held = stage.controller.corrections.correction("chat-1").ratio
    assert held > 1.0
    for _ in range(40):
        stage.step()
    assert stage.controller.corrections.correction("chat-1").ratio == held
    stage.hear(stage.snapshot([("chat-1", 9)]))  # of an older gateway
    stage.step()
    assert stage.controller.corrections.correction("chat-1").ratio == held
    stage.hear(booked(stage, 2000))
    stage.step()
    assert stage.controller.corrections.correction("chat-1").ratio > held


class Told:
    """A SignalSource of pages that say how much KV there is."""

    def __init__(self, kv_tokens):
        self.kv_tokens = kv_tokens

    async def read(self, replicas):
        return {
            replica: EngineSignals(kv_tokens=Known(self.kv_tokens[replica], 0.0)) if replica in self.kv_tokens else EngineSignals()
            for replica in replicas
        }


def test_an_engine_that_holds_other_kv_than_its_profile_says_is_told_once_and_stays_in_the_status(stage):
    pages = stage.pages = Told({})
    stage.controller = stage.make()
    ready_fleet(stage, 2)
    first, second = sorted(stage.fleet.views)

    def told(**kv_tokens):
        pages.kv_tokens = kv_tokens
        stage.step()
        return [event.message for event in stage.sink.events if event.kind == "kv_differs"]

    assert told(**{first: 9_100.0, second: 10_900.0}) == []
    (words,) = told(**{first: 100_000.0, second: 10_000.0})
    assert words.startswith(f"kv of profile p is 10000, but {first} holds 100000 tokens: places are left empty; set it to 100000")
    assert told() == [words]
    assert stage.controller.kv_told.differs("chat") == (words,)
    assert told(**{first: 10_000.0, second: 5_000.0})[1:] == [
        f"kv of profile p is 10000, but {second} holds 5000 tokens: it is sent more than it holds, and preempts; set it to 5000"
    ]
    assert len(stage.controller.kv_told.differs("chat")) == 1
