"""The lab's gateways tell when waiting batch is due, and the policy starts for it in time."""

import msgspec
from slot_fleet import BATCH, FIRST_S, INTERACTIVE, SLOTS, TOKEN_S, Watcher, played, rows, scenario

from forebay.domain.due import Due
from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.policy import QueueFirst
from forebay.simulation.values import MetricFault
from forebay.spec.types import Scaling

OUTPUT = 150
PER_S = SLOTS / (FIRST_S + OUTPUT * TOKEN_S)
TEN_MINUTES = msgspec.structs.replace(BATCH, longest_wait_s=600.0)
"""Slots of 50 s."""


def test_what_waits_is_told_by_its_deadlines_and_while_the_gateways_are_silent_as_they_told_last():
    watcher = Watcher()
    long = rows([0.0] * SLOTS + [5.0] * 3 + [55.0] * 2, tier=1, output=10_000)
    silent = MetricFault("error", 70.0, 100.0)
    played(scenario(91.0, (INTERACTIVE, TEN_MINUTES), initial_replicas=1, metric_faults=(silent,)), watcher, long)
    told = {seen.now_s: seen.preemptible_due for seen in watcher.seen}
    assert told[0.0] == ()
    assert told[15.0] == (Due(585.0, 3),)
    assert told[60.0] == (Due(540.0, 3), Due(590.0, 2))
    assert told[90.0] == (Due(510.0, 3), Due(560.0, 2))


class _Unaware(QueueFirst):
    def decide(self, observation):
        return super().decide(msgspec.structs.replace(observation, preemptible_due=()))


def test_batch_that_would_expire_gets_a_replica_in_time():
    """1000 at once, of which one replica starts 774 in their ten minutes: the second one has eight of them for the rest."""
    ended = []
    for kind in (QueueFirst, _Unaware):
        policy = kind(Scaling(min_replicas=1, max_replicas=9, interval_s=15.0), PoolCapacity(PER_S, cold_start_s=120.0))
        world = scenario(1200.0, (INTERACTIVE, TEN_MINUTES), initial_replicas=1)
        result, _ = played(world, policy, rows([1.0] * 1000, tier=1, output=OUTPUT))
        ended.append((result.tiers["batch"].totals.completed, result.tiers["batch"].totals.shed, max(row.ready for row in result.timeline)))
    assert ended[0] == (1000, 0, 2)
    assert ended[1][2] == 1
    assert ended[1][1] == 1000 - ended[1][0] > 200
