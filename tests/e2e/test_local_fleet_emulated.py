"""The fleet over the real emulator, read by the real scrape: stages as they were declared, a page that is understood, a clean end."""

import asyncio
import itertools
import os
import random
import time

import msgspec
import psutil
import pytest
import uvloop

from forebay.adapters.clock import LoopClock
from forebay.adapters.local import LocalFleet
from forebay.adapters.scrape import ScrapeSource
from forebay.adapters.sqlite import SqliteStore
from forebay.adapters.upstream import HttpUpstream
from forebay.domain.profile import ColdStart
from forebay.domain.replica import ReplicaState as S
from forebay.domain.signal import Known
from forebay.engine.catalogue import PROFILES
from forebay.spec.types import EngineKind, Model, Pool, Scaling, Spec
from forebay.testing.events import ListSink

pytestmark = pytest.mark.e2e
SPEED = 8.0
"""The shortest stage takes a second, in which a busy machine finds time for a look at it."""
COLD_START = ColdStart(provision_s=16.0, weights_bytes=12e9, weights_bandwidth_bytes_per_s=1e9, init_s=8.0)
WAIT_S = 30.0


def test_an_emulated_replica_from_start_to_stop(tmp_path):
    profile = msgspec.structs.replace(next(iter(PROFILES.values())), cold_start=COLD_START)
    pool = Pool("chat", "demo-8b", EngineKind("emulated", stop_grace_s=40.0), profile, scaling=Scaling(drain_s_max=30.0))
    spec = Spec((pool,), (Model("demo-8b"),), ())

    async def until(fleet, true):
        end = time.monotonic() + WAIT_S
        while not true(views := await fleet.observe()):
            assert time.monotonic() < end, views
            await asyncio.sleep(0.02)
        return views

    async def main():
        clock, upstream, store = LoopClock(SPEED), HttpUpstream(), SqliteStore(tmp_path / "history.db")
        read, write = os.pipe()
        fleet = LocalFleet(
            spec, clock, upstream, store, ListSink(), log_dir=tmp_path / "logs", lifeline_fd=read, chance=random.Random(os.getpid())
        )
        try:
            await fleet.ensure("chat", ["chat-1"])
            pid = fleet._keepers["chat-1"].life.pid
            seen = set()
            [view] = await until(fleet, lambda views: seen.add(views[0].state) or views[0].state in {S.READY, S.FAILED})
            assert view.state is S.READY, view.problem
            assert seen == {S.REQUESTED, S.PROVISIONING, S.LOADING, S.READY}
            stages = {stage.stage: stage.seconds for stage in view.stages}
            assert list(stages) == ["start", "provision", "weights", "init"]
            # Where one ends is seen a look later, on a busy machine a late one, so that some of the next one's time is its own; never before.
            until_s = dict(zip(stages, itertools.accumulate(stages.values()), strict=True))
            for stage, least_s in (("provision", 16.0), ("weights", 28.0), ("init", 36.0)):
                assert until_s[stage] >= least_s, stages
            signals = (await ScrapeSource(upstream, clock).read({"chat-1": view.url}))["chat-1"]
            for name in (
                "waiting",
                "running",
                "kv_usage",
                "generated_tokens_total",
                "prompt_tokens_total",
                "preemptions_total",
                "kv_tokens",
            ):
                assert isinstance(getattr(signals, name), Known), name
            assert signals.kv_tokens.value == pytest.approx(profile.kv_tokens, rel=0.01)
            await fleet.stop("chat-1")
            await until(fleet, lambda views: views[0].state is S.STOPPED)
            assert not psutil.pid_exists(pid)
        finally:
            await fleet.stop_all()
            await fleet.close()
            await upstream.close()
            store.close()
            os.close(write)
            os.close(read)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
