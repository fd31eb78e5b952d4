"""Batch that would expire in its lane gets a replica in time: live gateway, controller and engines, in virtual time."""

import msgspec
import pytest

from forebay.app.world.clients import Wish
from forebay.app.world.plan import KEYS, draw
from forebay.app.world.run import World
from forebay.scaling import deadlines
from forebay.spec.types import Tier
from forebay.testing.loop import run

BATCH = 200
"""Of 11 s each, two at a time: 18 minutes of one replica."""
LONGEST_WAIT_S = 900.0


def lived(seed=1):
    plan = draw(seed)
    pool = plan.spec.pools[0]
    scaling = msgspec.structs.replace(pool.scaling, replica_rate_per_s=0.18, buffer=False, max_replicas=5)
    spec = msgspec.structs.replace(
        plan.spec,
        pools=(msgspec.structs.replace(pool, scaling=scaling, queued_max=2 * BATCH),),
        tiers=(
            Tier("high", 0, ttft_s=5.0, longest_wait_s=60.0),
            Tier("low", 2, ttft_s=LONGEST_WAIT_S, longest_wait_s=LONGEST_WAIT_S, preemptible=True),
        ),
        limits=msgspec.structs.replace(plan.spec.limits, total_s=2000.0),
    )
    profile = msgspec.structs.replace(plan.profile, sequences_max=2, kv_tokens=8192)
    wishes = tuple(Wish(number, 10.0 + number / 100, 50, 40, True, KEYS[1], 10_000.0) for number in range(BATCH))
    pool = msgspec.structs.replace(spec.pools[0], profile=profile)
    plan = msgspec.structs.replace(plan, spec=msgspec.structs.replace(spec, pools=(pool,)), profile=profile, wishes=wishes, events=())

    async def main():
        world = World(plan)
        return world.verdict(await world.live()), world.store.decisions("pool", limit=10_000)

    return run(main, seed, time_limit_s=4000.0)


@pytest.mark.timeout(300)
def test_batch_that_waits_gets_a_replica_and_is_started_before_it_expires(monkeypatch):
    verdict, decisions = lived()
    assert verdict.ok, verdict.broken
    assert verdict.told["complete"] == BATCH
    assert verdict.replicas_max == 2, "and no more than it takes"
    assert "deadlines" in {record.decision.reason for record in decisions}
    monkeypatch.setattr(deadlines, "dated", lambda *facts: None)
    verdict, _ = lived()
    assert verdict.replicas_max == 1
    assert BATCH - verdict.told["complete"] > 30, "without them one replica is all it gets"
