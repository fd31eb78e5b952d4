"""The read side over a live controller: nothing unknown becomes a number, and history is asked by time."""

import random

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from forebay.controller.reports import Reports, from_iso, iso
from forebay.controller.service import Controller, PoolPolicy
from forebay.controller.sturdy import SturdyStore
from forebay.domain.errors import BadInput
from forebay.domain.profile import ColdStart, Profile, StepLaw
from forebay.domain.reloads import WHY_CHARACTERS_MAX, Reloads
from forebay.domain.replica import StageTime
from forebay.domain.roster import Capacity, Hello, LaneLoad, PoolLoad, ReplicaLoad, Snapshot
from forebay.domain.signal import Known
from forebay.ports import EngineSignals
from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.policy import QueueFirst
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Model, Pool, Scaling, Slo, Spec
from forebay.testing import loop
from forebay.testing.clock import WALL_AT_START_S, LoopClock
from forebay.testing.events import ListSink
from forebay.testing.fleet import FakeFleet, FakeStart
from forebay.testing.store import MemoryStore

PROFILE = Profile("p", "m", "h", 2, StepLaw(0.01, 0, 0, 0), 8, 10_000, 16, 512, 1, 4096, ColdStart(0, 1, 1, 0), gpu_hour_usd=3.0)
SCALING = Scaling(min_replicas=2, max_replicas=4)
SPEC = Spec(
    pools=(Pool("chat", "m", EngineKind("emulated"), PROFILE, scaling=SCALING), Pool("code", "n", EngineKind("emulated"), PROFILE)),
    models=(Model("m"), Model("n")),
    tiers=DEFAULT_TIERS,
)
START = FakeStart((StageTime("load", 20.0),))


class Pages:
    """Every page that is asked for can be read."""

    async def read(self, replicas):
        return {name: EngineSignals(waiting=Known(0.0, 0.0), kv_usage=Known(0.25, 0.0)) for name in replicas}


class Stage:
    """A controller on a fake fleet, and what is reported of it. Make it inside a running world."""

    def __init__(self):
        self.clock = LoopClock()
        self.fleet = FakeFleet(self.clock, random.Random(1), {"chat": START, "code": START})
        self.memory = MemoryStore()
        self.store = SturdyStore(self.memory, lambda kind, message: None)
        capacity = PoolCapacity(rate_per_s=1.0, cold_start_s=20.0)
        policies = {pool.name: PoolPolicy(QueueFirst(pool.scaling, capacity, (), pool.name, Slo()), capacity) for pool in SPEC.pools}
        room = Capacity(10_000, 8, 1000, 1000.0, 100.0, 4096)
        self.controller = Controller(SPEC, self.clock, self.fleet, Pages(), self.store, ListSink(), policies, lambda pool, seen: room)
        self.reports = Reports(self.controller, self.store, self.clock)

    async def steps(self, count):
        for _ in range(count):
            await self.controller.step()
            await self.clock.sleep_until(self.clock.now_s() + 1.0)

    def gateway_says(self):
        self.controller.hear(Hello("g"))
        lane = LaneLoad("interactive", False, 5, 100, 1.0)
        loads = tuple(PoolLoad(pool.name, (lane,), (ReplicaLoad(f"{pool.name}-1", 3, 300),), ()) for pool in SPEC.pools)
        self.controller.hear(Snapshot("g", self.clock.now_s(), self.controller.roster.term, self.controller.roster.version, loads))

    def families(self):
        page = generate_latest(self.reports.registry).decode()
        return {family.name: family.samples for family in text_string_to_metric_families(page)}


def world(story):
    """Run ``story(stage)`` in a world of its own."""

    async def main():
        await story(Stage())

    loop.run(main)


def test_before_the_first_tick_nothing_is_claimed():
    async def story(stage):
        status = stage.reports.status()
        assert [pool.pool for pool in status.pools] == ["chat", "code"]
        assert (status.pools[0].desired, status.pools[0].replicas, status.pools[0].binding, status.pools[0].detail) == (2, {}, "", ())
        assert status.pools[0].waiting is None
        assert stage.reports.explain(None, None) == []
        assert "forebay_lanes_waiting" not in stage.families() or stage.families()["forebay_lanes_waiting"] == []

    world(story)


def test_a_status_counts_by_state_and_says_why():
    async def story(stage):
        await stage.steps(2)
        (chat, _) = stage.reports.status().pools
        assert chat.replicas == {"loading": 2}
        assert (chat.waiting, chat.unknown["lanes_waiting"]) == (None, "no_gateway")
        stage.gateway_says()
        await stage.steps(23)
        stage.gateway_says()
        await stage.steps(1)
        status = stage.reports.status()
        (chat, code) = status.pools
        assert status.gateways == {"g": "ok"}
        assert status.at == iso(WALL_AT_START_S + stage.clock.now_s())
        assert (chat.replicas, code.replicas) == ({"ready": 2}, {"ready": 1})
        assert (chat.binding, chat.because, chat.waiting) == ("min", "never fewer than 2", 5.0)
        assert "lanes_waiting" not in chat.unknown
        first = chat.detail[0]
        assert (first.id, first.state, first.streams, first.kv_usage, first.cold_start_s) == ("chat-1", "ready", 3, 0.25, 20.0)
        assert chat.gpu_hours == pytest.approx(2 * 2 * 25 / 3600, rel=0.1)
        assert chat.cost_usd == pytest.approx(3.0 * chat.gpu_hours, abs=3e-4)
        await stage.clock.sleep_until(stage.clock.now_s() + 60.0)
        assert stage.reports.status().gateways == {"g": "silent"}
        assert [row.streams for row in stage.reports.status().pools[0].detail] == [None, None], "what it said last is no news"

    world(story)


def test_a_configuration_that_is_refused_stands_in_the_status_with_who_refuses_it_and_why():
    """It was in the logs and on metrics pages only: who looked at the status went by a file that was none."""

    async def story(stage):
        def says(name, refused):
            stage.controller.hear(Hello(name))
            roster = stage.controller.roster
            stage.controller.hear(Snapshot(name, stage.clock.now_s(), roster.term, roster.version, (), refused=refused))

        assert stage.reports.status().problems == ()
        says("g", "forebay.yaml:3: colour")
        told = "the configuration file is refused by {}, and the one before goes on: {}"
        assert stage.reports.status().problems == (told.format("gateway g", "forebay.yaml:3: colour"),)
        stage.controller.reloads.refuse(BadInput("forebay.yaml:3: colour; nothing was started"))
        assert stage.reports.status().problems == (told.format("the controller and gateway g", "forebay.yaml:3: colour"),)
        says("g", "no key in it")
        for name in "hijk":
            says(name, "no key in it")
        assert stage.reports.status().problems[0].startswith(told.format("gateways g, h, i and 2 more", "no key in it"))
        assert len(stage.reports.status().problems) == 2
        for name in "ghijk":
            says(name, "")
        assert stage.controller.reloads.accept()
        assert stage.reports.status().problems == ()
        words = [
            event.message for event in stage.reports.recent_events(100) if event.kind == "gateway_config" and "gateway g" in event.message
        ]
        before = "gateway g keeps the configuration before: "
        assert words == [f"{before}forebay.yaml:3: colour", f"{before}no key in it", "gateway g goes by the configuration file again"]

    world(story)


def test_what_is_said_of_a_refused_file_is_bounded():
    reloads = Reloads()
    words = reloads.refuse(BadInput("x" * 5_000))
    assert (len(words), len(reloads.why)) == (5_000, WHY_CHARACTERS_MAX + 2)


def test_an_engine_that_its_gateway_has_ejected_says_so_before_who_runs_it_knows():
    """It was called ready for 15 s after nobody listened there any more."""

    async def story(stage):
        await stage.steps(25)
        roster = stage.controller.roster

        def out(*replicas):
            stage.controller.hear(Hello("g"))
            load = PoolLoad("chat", (), (), (), ejected=replicas)
            stage.controller.hear(Snapshot("g", stage.clock.now_s(), roster.term, roster.version, (load,)))
            (chat, _) = stage.reports.status().pools
            return [(row.state, row.ejected) for row in chat.detail]

        first = stage.reports.status().pools[0].detail[0].id
        assert out() == [("ready", False), ("ready", False)]
        assert out(first) == [("ready", True), ("ready", False)]
        await stage.clock.sleep_until(stage.clock.now_s() + 60.0)
        (chat, _) = stage.reports.status().pools
        assert not any(row.ejected for row in chat.detail), "of a gateway that is silent nothing is known"

    world(story)


def test_explanations_are_of_all_pools_or_one_and_exactly_one_term_binds():
    async def story(stage):
        await stage.steps(3)
        assert [found.pool for found in stage.reports.explain(None, None)] == ["chat", "code"]
        (code,) = stage.reports.explain("code", None)
        assert (code.pool, code.desired) == ("code", 1)
        for found in stage.reports.explain(None, None):
            assert [term.name for term in found.terms if term.binding] == [found.reason]
        with pytest.raises(BadInput, match="pool: found 'nope'; allowed: chat, code"):
            stage.reports.explain("nope", None)

    world(story)


def test_the_past_is_asked_by_time():
    async def story(stage):
        await stage.steps(70)
        (then,) = stage.reports.explain("chat", iso(WALL_AT_START_S + 30.0))
        (now,) = stage.reports.explain("chat", None)
        assert then.at == iso(WALL_AT_START_S)
        assert now.at == iso(WALL_AT_START_S + 69.0)
        assert [term.name for term in then.terms if term.binding] == [then.reason]
        with pytest.raises(BadInput, match="at: nothing was decided yet at 2020-01-01T00:00:00Z; the history begins later"):
            stage.reports.explain(None, "2020-01-01")

    world(story)


def test_events_are_the_newest_oldest_first():
    async def story(stage):
        await stage.steps(25)
        kinds = [event.kind for event in stage.reports.recent_events(1000)]
        assert kinds[-3:] == ["replica_ready"] * 3
        assert [event.kind for event in stage.reports.recent_events(2)] == kinds[-2:]

    world(story)


def test_metrics_have_no_sample_for_what_is_not_known():
    async def story(stage):
        await stage.steps(23)
        families = stage.families()
        assert families.get("forebay_lanes_waiting", []) == []
        desired = {sample.labels["pool"]: sample.value for sample in families["forebay_replicas_desired"]}
        assert desired == {"chat": 2.0, "code": 1.0}
        ready = {sample.labels["pool"]: sample.value for sample in families["forebay_replicas"] if sample.labels["state"] == "ready"}
        assert ready == {"chat": 2.0, "code": 1.0}
        assert sum(sample.value for sample in families["forebay_term_binding"] if sample.labels["pool"] == "chat") == 1.0
        assert [sample.value for sample in families["forebay_history_kept"]] == [1.0]
        stage.gateway_says()
        await stage.steps(1)
        assert {sample.value for sample in stage.families()["forebay_lanes_waiting"]} == {5.0}

    world(story)


def test_a_store_that_refuses_is_shown():
    async def story(stage):
        stage.memory.broken = True
        await stage.steps(2)
        (problem,) = stage.reports.status().problems
        assert problem.startswith("history is not kept, scaling goes on")
        assert [sample.value for sample in stage.families()["forebay_history_kept"]] == [0.0]
        stage.memory.broken = False
        await stage.steps(12)
        assert stage.reports.status().problems == ()

    world(story)


@pytest.mark.parametrize(
    ("text", "wall_s"),
    [("1970-01-02", 86_400.0), ("1970-01-01T01:00:00+01:00", 0.0), ("1970-01-01T00:00:10Z", 10.0), ("1970-01-01 00:01", 60.0)],
)
def test_iso_times_are_utc_unless_they_say_otherwise(text, wall_s):
    assert from_iso(text, NOW_WALL_S) == wall_s


NOW_WALL_S = 20 * 86_400.0 + 12 * 3600.0


@pytest.mark.parametrize(
    ("text", "wall_s"),
    [("-10m", NOW_WALL_S - 600), ("-1h30m", NOW_WALL_S - 5400), ("11:30", NOW_WALL_S - 1800), ("9:05", NOW_WALL_S - 10_500)],
)
def test_times_as_people_on_call_type_them(text, wall_s):
    assert from_iso(text, NOW_WALL_S) == wall_s


@pytest.mark.parametrize("text", ["12:30", "1970-02-01", "9999-01-01"])
def test_a_time_that_is_still_to_come_is_refused(text):
    with pytest.raises(BadInput, match="still to come"):
        from_iso(text, NOW_WALL_S)


@pytest.mark.parametrize(
    "text", ["", "now", "25:00", "2026-13-01", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "1790000000", "x" * 10_000]
)
def test_a_time_that_is_none_says_what_is_allowed(text):
    with pytest.raises(BadInput, match="allowed: an ISO time such as 2026-11-29T08:00:00Z") as caught:
        from_iso(text, NOW_WALL_S)
    assert len(str(caught.value)) < 300
