"""CPU of one controller tick over 200 replicas: scan 200 metrics pages of about 50 kB, observe, decide, make the roster.

python bench/tick.py [--replicas 200] [--json PATH]
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from forebay.adapters.scrape import scan
from forebay.adapters.sqlite import SqliteStore
from forebay.app import wiring
from forebay.domain.replica import ReplicaState, ReplicaView, StageTime
from forebay.domain.roster import Hello, LaneLoad, PoolLoad, ReplicaLoad, Snapshot, TierCounts
from forebay.emulator.engine_server import EngineServer
from forebay.engine.catalogue import PROFILES
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Model, Pool, Scaling, Spec
from forebay.testing.clock import LoopClock
from forebay.testing.events import ListSink
from forebay.testing.loop import run

GOAL_CPU_S = 0.250
TICKS = 15


class StillFleet:
    """``count`` ready replicas."""

    def __init__(self, count):
        self.views = tuple(
            ReplicaView(f"chat-{i}", "chat", ReplicaState.READY, 0.0, 0.0, f"http://127.0.0.1:{20_000 + i}", (StageTime("load", 300.0),))
            for i in range(count)
        )

    async def observe(self):
        return self.views

    async def ensure(self, pool, replica_ids):
        pass

    drain = cancel_drain = stop = ensure


class ScannedPages:
    """A SignalSource that scans a page per replica, fetched already."""

    def __init__(self, page, clock):
        self.page, self.clock = page, clock

    async def read(self, replicas):
        now_s = self.clock.now_s()
        return {name: scan(self.page, now_s).signals for name in replicas}


def spec_of(count):
    profile = PROFILES["llama-3.1-8b-h100"]
    scaling = Scaling(min_replicas=1, max_replicas=count, replica_rate_per_s=1.0)
    pool = Pool("chat", profile.model, EngineKind("emulated"), profile, scaling=scaling)
    return Spec((pool,), (Model(profile.model, profile.context_tokens),), DEFAULT_TIERS)


def snapshot(count, arrived, version):
    rows = tuple(ReplicaLoad(f"chat-{i}", 5, 5000) for i in range(count))
    counts = (TierCounts("interactive", False, arrived, arrived * 1000, arrived * 200, arrived, 0, 0, 0, arrived, 0),)
    return Snapshot("gateway-0", 0.0, 1, version, (PoolLoad("chat", (LaneLoad("interactive", False, 0, 0, 0.0),), rows, counts),))


async def ticks(count, folder):
    clock = LoopClock()
    spec = spec_of(count)
    engine = EngineServer(spec.pools[0].profile, "m", clock)
    page = engine._render()
    store = SqliteStore(Path(folder) / "bench.db")
    controller = wiring.build_controller(spec, clock, StillFleet(count), ScannedPages(page, clock), store, ListSink())
    controller.hear(Hello("gateway-0"))
    cost_s = []
    for number in range(TICKS + 3):
        await asyncio.sleep(1.0)
        controller.hear(snapshot(count, number * count, controller.roster.version))
        began_s = time.process_time()
        await controller.step()
        cost_s.append(time.process_time() - began_s)
    store.close()
    return cost_s[3:], len(page)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=200)
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cost_s, page_bytes = run(lambda: ticks(arguments.replicas, folder))
    median_s = statistics.median(cost_s)
    result = {
        "replicas": arguments.replicas,
        "page_bytes": page_bytes,
        "tick_cpu_ms": round(median_s * 1000, 1),
        "tick_cpu_ms_max": round(max(cost_s) * 1000, 1),
        "goal_ms": GOAL_CPU_S * 1000,
        "of_goal": round(median_s / GOAL_CPU_S, 3),
    }
    print(json.dumps(result, indent=2))
    if arguments.json and arguments.json != "-":
        Path(arguments.json).write_text(json.dumps(result))
    return 0 if median_s <= GOAL_CPU_S else 1


if __name__ == "__main__":
    sys.exit(main())
