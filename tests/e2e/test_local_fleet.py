"""The fleet over real processes: the life of a replica, crashes, ends by force, and a controller that comes back."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest
import uvloop

from forebay.adapters.clock import LoopClock
from forebay.adapters.local import AttachedFleet, CompositeFleet, FleetTaken, LocalFleet, Pace
from forebay.adapters.local.fleet import STORE_KEY
from forebay.adapters.local.life import Life
from forebay.adapters.upstream import HttpUpstream
from forebay.domain.replica import ReplicaState as S
from forebay.spec.types import EngineKind, Model, Pool, Spec
from forebay.testing.events import ListSink
from forebay.testing.store import MemoryStore

pytestmark = pytest.mark.e2e
ENGINE = Path(__file__).parents[1] / "fixtures" / "engines" / "tiny_engine.py"
SPEED = 20.0
WAIT_S = 20.0
PACE = Pace(stop_real_s_least=0.3, sick_s=2.0, sick_real_s=0.1)


def engine(*options, **more):
    command = (sys.executable, "-I", "-S", str(ENGINE), "--port", "{port}", *options)
    return EngineKind(kind="command", command=command, **{"stop_grace_s": 6.0, **more})


def spec_of(**engines):
    return Spec(pools=tuple(Pool(name, "tiny", kind) for name, kind in engines.items()), models=(Model("tiny"),), tiers=())


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Yard:
    """One machine: a log folder, a store and a sink that outlive the fleets made on it."""

    def __init__(self, tmp_path):
        self.log_dir = tmp_path / "logs"
        self.store = MemoryStore()
        self.sink = ListSink()
        self.read, self.write = os.pipe()
        self.fleets = []

    def fleet(self, spec, pace=PACE, seed=None):
        fleet = LocalFleet(
            spec,
            LoopClock(SPEED),
            HttpUpstream(),
            self.store,
            self.sink,
            log_dir=self.log_dir,
            lifeline_fd=self.read,
            chance=random.Random(os.getpid() if seed is None else seed),
            pace=pace,
        )
        self.fleets.append(fleet)
        return fleet

    def event(self, kind):
        return next((event for event in self.sink.events if event.kind == kind), None)


async def until(fleet, true, what="it never came"):
    end = time.monotonic() + WAIT_S
    while not true(views := await fleet.observe()):
        assert time.monotonic() < end, (what, views)
        await asyncio.sleep(0.01)
    return views


async def none_left(fleet, pids):
    """All of a group are sent the same signal: who is told of one's end may be told before the others have ended."""
    await until(fleet, lambda _: not any(alive(pid) for pid in pids), "something survived")


def in_state(*states):
    return lambda views: [view.state for view in views] == list(states)


def play(tmp_path, scenario, factory=uvloop.new_event_loop):
    """Runs ``scenario(yard)``; whatever it leaves is killed and then looked for."""
    yard = Yard(tmp_path)

    async def main():
        try:
            await asyncio.wait_for(scenario(yard), 45)
        finally:
            for fleet in yard.fleets:
                await fleet.stop_all()
                await fleet.close()
                await fleet._yard.upstream.close()

    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())
    finally:
        os.close(yard.write)
        os.close(yard.read)


@pytest.mark.parametrize("factory", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_a_replica_lives(tmp_path, factory):
    async def scenario(yard):
        fleet = yard.fleet(spec_of(chat=engine("--stages", "weights:0.15,init:0.15", "--say", "hello from {replica} as {model}")))
        await fleet.ensure("chat", ["chat-1"])
        [view] = await fleet.observe()
        assert (view.id, view.pool, view.state) == ("chat-1", "chat", S.LOADING)
        await fleet.ensure("chat", ["chat-1"])
        [view] = await until(fleet, in_state(S.READY))
        assert [stage.stage for stage in view.stages] == ["start", "weights", "init"]
        assert view.stages[1].seconds == pytest.approx(0.15 * SPEED, abs=0.13 * SPEED)
        assert view.cold_start_s == pytest.approx(view.since_s - view.requested_s, abs=0.05 * SPEED)
        assert "hello from chat-1 as tiny" in (yard.log_dir / "chat-1.log").read_text()
        await fleet.drain("chat-1", 1e9)
        assert in_state(S.DRAINING)(await fleet.observe())
        await fleet.cancel_drain("chat-1")
        assert in_state(S.READY)(await fleet.observe())
        await fleet.drain("chat-1", 1e9)
        await fleet.stop("chat-1")
        await fleet.stop("chat-1")
        await fleet.cancel_drain("chat-1")
        assert in_state(S.DRAINING)(await fleet.observe())
        views = await until(fleet, in_state(S.STOPPED))
        assert views[0].problem == ""
        assert await fleet.observe() == ()
        await fleet.stop("chat-1")
        assert yard.sink.kinds() == ["engine_started"]

    play(tmp_path, scenario, factory)


def test_a_replica_that_refuses_connections_is_loading_and_its_metrics_make_it_ready(tmp_path):
    async def scenario(yard):
        fleet = yard.fleet(spec_of(chat=engine("--refuse", "0.3"), deaf=engine("--metrics-status", "404")))
        await fleet.ensure("chat", ["chat-1"])
        await fleet.ensure("deaf", ["deaf-1"])
        await until(fleet, in_state(S.READY, S.LOADING))
        views = await until(fleet, lambda views: views[1].problem)
        assert "/metrics answered 404" in views[1].problem
        assert views[1].state is S.LOADING

    play(tmp_path, scenario)


def test_a_crash_is_restarted_in_place_and_says_why(tmp_path):
    async def scenario(yard):
        once = str(tmp_path / "died")
        fleet = yard.fleet(
            spec_of(chat=engine("--say", "CUDA error: out of memory", "--die-after", "0.2", "--die-once", once, "--code", "7"))
        )
        await fleet.ensure("chat", ["chat-1"])
        [view] = await until(fleet, lambda views: views[0].restarts == 1 and views[0].state is S.READY)
        assert view.problem == ""
        failed = yard.event("engine_ended")
        assert "out of memory: exited by itself with code 7; its log ends: CUDA error: out of memory" in failed.message
        assert failed.pool == "chat"
        assert (yard.log_dir / "chat-1.log.1").exists()

    play(tmp_path, scenario)


def test_a_crash_loop_backs_off_and_is_given_up(tmp_path):
    async def scenario(yard):
        pace = Pace(failures_in_a_row_max=3, backoff_first_s=0.2, stop_real_s_least=0.3)
        fleet = yard.fleet(spec_of(chat=EngineKind(kind="command", command=("no-such-engine", "{port}"))), pace)
        await fleet.ensure("chat", ["chat-1"])
        await until(fleet, lambda _: yard.event("engine_given_up"))
        [view] = await fleet.observe()
        assert (view.state, view.restarts) == (S.FAILED, 2)
        assert "given up after 3 failures in a row" in view.problem
        assert "cannot start no-such-engine" in view.problem
        await fleet.stop("chat-1")
        await until(fleet, in_state(S.STOPPED))

    play(tmp_path, scenario)


def test_one_that_does_not_get_ready_in_time_fails(tmp_path):
    async def scenario(yard):
        fleet = yard.fleet(spec_of(chat=engine("--never-healthy", "--stubborn", ready_timeout_s=6.0)))
        await fleet.ensure("chat", ["chat-1"])
        await until(fleet, lambda views: views[0].restarts >= 1)
        assert "not ready within 6s" in yard.event("engine_ended").message

    play(tmp_path, scenario)


def test_a_ready_one_that_stays_sick_is_replaced(tmp_path):
    async def scenario(yard):
        fleet = yard.fleet(spec_of(chat=engine("--sick-after", "0.4")))
        await fleet.ensure("chat", ["chat-1"])
        await until(fleet, lambda views: views[0].restarts >= 1)
        assert "no good health answer" in yard.event("engine_ended").message
        assert "/health answered 500" in yard.event("engine_ended").message

    play(tmp_path, scenario)


def test_a_draining_one_that_dies_is_stopped_not_restarted(tmp_path):
    async def scenario(yard):
        fleet = yard.fleet(spec_of(chat=engine()))
        await fleet.ensure("chat", ["chat-1"])
        await until(fleet, in_state(S.READY))
        await fleet.drain("chat-1", 1e9)
        for child in psutil.Process(fleet._keepers["chat-1"].life.pid).children():
            child.kill()
        [view] = await until(fleet, in_state(S.STOPPED))
        assert "SIGKILL" in view.problem

    play(tmp_path, scenario)


@pytest.mark.parametrize("kill_shim", [False, True], ids=["shim alive", "shim frozen"])
def test_a_stubborn_tree_is_gone_after_twice_the_grace(tmp_path, kill_shim):
    async def scenario(yard):
        pids = tmp_path / "pids"
        fleet = yard.fleet(spec_of(chat=engine("--stubborn", "--helper", "--pids", str(pids))))
        await fleet.ensure("chat", ["chat-1"])
        await until(fleet, in_state(S.READY))
        noted = [int(line) for line in pids.read_text().split()]
        if kill_shim:
            os.kill(fleet._keepers["chat-1"].life.pid, signal.SIGSTOP)
            os.kill(noted.pop(), signal.SIGKILL)
        await fleet.stop("chat-1")
        await until(fleet, in_state(S.STOPPED))
        await none_left(fleet, noted)

    play(tmp_path, scenario)


def test_a_shim_killed_by_force_leaves_no_member_of_its_group(tmp_path):
    async def scenario(yard):
        pids = tmp_path / "pids"
        fleet = yard.fleet(spec_of(chat=engine("--helper", "--pids", str(pids))))
        await fleet.ensure("chat", ["chat-1"])
        await until(fleet, in_state(S.READY))
        main, helper, apart = [int(line) for line in pids.read_text().split()]
        os.kill(fleet._keepers["chat-1"].life.pid, signal.SIGKILL)
        await until(fleet, lambda views: views[0].restarts == 1)
        await none_left(fleet, [main, helper])
        os.kill(apart, signal.SIGKILL)

    play(tmp_path, scenario)


def test_engines_outlive_a_fleet_and_are_adopted(tmp_path):
    async def scenario(yard):
        spec = spec_of(chat=engine())
        first = yard.fleet(spec)
        await first.ensure("chat", ["chat-1", "chat-2", "chat-3"])
        before = await until(first, in_state(S.READY, S.READY, S.READY))
        await first.drain("chat-2", 1e9)
        pids = {life.id: life.pid for life in msgspec.msgpack.decode(yard.store.get(STORE_KEY), type=list[Life])}
        with pytest.raises(FleetTaken, match=f"process {os.getpid()}"):
            await yard.fleet(spec).adopt()
        await first.close()
        os.kill(pids["chat-3"], signal.SIGKILL)
        await asyncio.to_thread(os.waitpid, pids["chat-3"], 0)
        second = yard.fleet(spec)
        await second.adopt()
        views = await second.observe()
        assert [view.id for view in views] == ["chat-1", "chat-2"]
        assert [view.state for view in views] == [S.READY, S.DRAINING]
        assert (views[0].url, views[0].stages) == (before[0].url, before[0].stages)
        assert "chat-3: its process is gone" in yard.event("engine_forgotten").message
        await second.ensure("chat", ["chat-1"])
        assert second._keepers["chat-1"].life.pid == pids["chat-1"]
        await second.stop("chat-2")
        await until(second, in_state(S.READY, S.STOPPED))
        os.kill(psutil.Process(pids["chat-1"]).children()[0].pid, signal.SIGSEGV)
        await until(second, lambda views: views[0].restarts == 1 and views[0].state is S.READY)
        assert "died of signal 11" in yard.event("engine_ended").message

    play(tmp_path, scenario)


CONTROLLER = """
import asyncio, os, random, sys
from pathlib import Path
import msgspec
from forebay.adapters.clock import LoopClock
from forebay.adapters.local import LocalFleet
from forebay.adapters.sqlite import SqliteStore
from forebay.adapters.upstream import HttpUpstream
from forebay.spec.types import Spec
from forebay.testing.events import ListSink

async def main():
    folder, lifeline_fd = Path(sys.argv[1]), int(sys.argv[2])
    spec = msgspec.json.decode(sys.argv[3], type=Spec)
    fleet = LocalFleet(spec, LoopClock(20.0), HttpUpstream(), SqliteStore(folder / "history.db"), ListSink(),
                       log_dir=folder / "logs", lifeline_fd=lifeline_fd, chance=random.Random(os.getpid()))
    await fleet.adopt()
    await fleet.ensure("chat", ["chat-1", "chat-2"])
    while [view.state for view in await fleet.observe()] != ["ready", "ready"]:
        await asyncio.sleep(0.01)
    print(*[keeper.life.pid for keeper in fleet._keepers.values()], flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_a_controller_killed_by_force_costs_no_engine_and_a_closed_lifeline_ends_them_all(tmp_path):
    spec = spec_of(chat=engine("--stubborn", "--helper"))
    read, write = os.pipe()
    words = [sys.executable, "-c", CONTROLLER, str(tmp_path), str(read), msgspec.json.encode(spec).decode()]
    try:
        pids = []
        for _ in range(2):
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, pass_fds=(read,)) as controller:
                pids.append(controller.stdout.readline().split())
                controller.kill()
        assert len(pids[0]) == 2
        assert pids[0] == pids[1]
        engines = [child.pid for shim in pids[0] for child in psutil.Process(int(shim)).children(recursive=True)]
        assert len(engines) == 6
    finally:
        os.close(write)
    end = time.monotonic() + WAIT_S
    while left := [pid for pid in engines if alive(pid)]:
        assert time.monotonic() < end, left
        time.sleep(0.02)
    os.close(read)


def test_devices_are_handed_out_and_given_back(tmp_path):
    async def scenario(yard):
        kind = msgspec.structs.replace(engine("--say", "on {devices}"), env=(("CUDA_VISIBLE_DEVICES", "{devices}"),))
        fleet = yard.fleet(spec_of(chat=kind))
        await fleet.ensure("chat", ["chat-1", "chat-2"])
        await until(fleet, in_state(S.READY, S.READY))
        await fleet.stop("chat-1")
        await until(fleet, in_state(S.READY))
        await fleet.ensure("chat", ["chat-3"])
        await until(fleet, in_state(S.READY, S.READY))
        said = {name: (yard.log_dir / f"{name}.log").read_text().splitlines()[0] for name in ("chat-1", "chat-2", "chat-3")}
        assert said == {"chat-1": "on 0", "chat-2": "on 1", "chat-3": "on 0"}

    play(tmp_path, scenario)


def test_an_engine_that_was_never_noted_is_found_by_its_mark_and_ended(tmp_path):
    async def scenario(yard):
        first = yard.fleet(spec_of(chat=engine()))
        await first.ensure("chat", ["chat-1"])
        pid = first._keepers["chat-1"].life.pid
        await until(first, in_state(S.READY))
        yard.store.put(STORE_KEY, b"\xc1 not msgpack")
        await first.close()
        second = yard.fleet(spec_of(chat=engine()))
        await second.adopt()
        await until(second, lambda _: not alive(pid))
        assert yard.event("fleet_error") is not None
        assert str(pid) in yard.event("engine_forgotten").message

    play(tmp_path, scenario)


@pytest.mark.parametrize("quits", [signal.SIG_DFL, signal.SIG_IGN], ids=["in front", "behind"])
def test_a_replica_of_a_pool_that_is_gone_is_ended(tmp_path, quits):
    """Also by a controller that a shell started with ``&``, which ignores SIGQUIT."""

    async def scenario(yard):
        first = yard.fleet(spec_of(old=engine()))
        await first.ensure("old", ["old-1"])
        pid = first._keepers["old-1"].life.pid
        await first.close()
        second = yard.fleet(spec_of(chat=engine()))
        await second.adopt()
        await until(second, lambda _: not alive(pid), yard.sink.events)
        assert await second.observe() == ()
        with pytest.raises(KeyError):
            await second.ensure("old", ["old-2"])

    before = signal.signal(signal.SIGQUIT, quits)
    try:
        play(tmp_path, scenario)
    finally:
        signal.signal(signal.SIGQUIT, before)


def test_a_store_that_fails_is_told_and_loses_no_replica(tmp_path):
    async def scenario(yard):
        yard.store.broken = True
        fleet = yard.fleet(spec_of(chat=engine()))
        await fleet.ensure("chat", ["chat-1"])
        await until(fleet, in_state(S.READY))
        assert "could not be stored" in yard.event("fleet_error").message

    play(tmp_path, scenario)


def test_attached_engines_are_watched_and_never_touched(tmp_path):
    async def scenario(yard):
        fleet = yard.fleet(spec_of(chat=engine()))
        await fleet.ensure("chat", ["chat-1"])
        [chat] = await until(fleet, in_state(S.READY))
        spec = spec_of(there=EngineKind(kind="attach", attach=(chat.url, "http://127.0.0.1:9")))
        upstream = HttpUpstream()
        both = CompositeFleet([fleet, AttachedFleet(spec, LoopClock(SPEED), upstream, yard.sink, pace=PACE)])
        await both.adopt()
        views = await until(both, in_state(S.READY, S.READY, S.FAILED))
        there = views[1].id
        assert there == f"there@{chat.url.removeprefix('http://')}"
        assert both.pools == {"chat", "there"}
        for _ in range(2):
            await both.ensure("there", ["there-9"])
        await both.drain(there, 1e9)
        await both.stop(there)
        await both.stop("nobody")
        assert [view.state for view in await both.observe()] == [S.READY, S.READY, S.FAILED]
        advice = [event.message for event in yard.sink.events if event.kind == "scaling_advice"]
        assert len(advice) == 2
        await both.stop("chat-1")
        await until(both, in_state(S.FAILED, S.FAILED))
        await both.close()
        await upstream.close()

    play(tmp_path, scenario)
