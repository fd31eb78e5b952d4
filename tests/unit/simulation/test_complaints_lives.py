"""Complaints 3 to 6: answers cut by a scale-in, a platform that does not drain, the wrong victim, and two loops that fight."""

import msgspec
import pytest
from complaint_worlds import STREAMS, rival, streams
from test_scenarios import compiled, forebay, played, top, world  # noqa: F401 (an autouse fixture)

from forebay.domain.replica import ReplicaState
from forebay.domain.scaling import ReplicaObservation
from forebay.scaling import victims
from forebay.simulation.values import Actuator, Dispatch
from forebay.spec.types import Scaling

pytestmark = pytest.mark.timeout(900)
"""The first test may have to compile the kernel."""

OWN_DRAIN_S = Scaling().drain_s_max


def evening(policy, drain_s_max):
    """Load falls from four replicas' worth to little more than one; answers take a minute."""
    it = world(STREAMS, initial_replicas=6, duration_s=2400.0, drain_s_max=drain_s_max)
    return played(it, policy, streams((600.0, 4.0), (2400.0, 1.2)))


@pytest.mark.parametrize(("number", "name", "grace_s"), [(3, "dynamo-throughput", 5.0), (4, "kthena", 30.0)])
def test_complaints_3_and_4_a_scale_in_cuts_nobody(number, name, grace_s):
    """A worker that is killed some seconds after SIGTERM, and a platform whose only drain is a grace of 30 s."""
    killed = evening(rival(name, STREAMS), grace_s)
    assert top(killed).totals.cut > 40, f"complaint {number}"
    kept = evening(forebay(STREAMS), OWN_DRAIN_S)
    assert top(kept).totals.cut == 0
    assert top(kept).totals.completed == kept.requests
    assert kept.timeline[-1].ready <= 2, "and replicas were let go"
    drains = 6 - kept.timeline[-1].ready
    mean_s = kept.gpu_hours_by_state["draining"] * 3600.0 / drains
    assert mean_s < OWN_DRAIN_S / 3, "by what is in flight, not by waiting for the deadline"


def test_complaints_3_and_4_it_is_the_drain_and_not_the_policy():
    assert top(evening(forebay(STREAMS), 5.0)).totals.cut > 0


def test_complaint_5_the_busiest_is_not_the_victim():
    """The newest replica has taken the burst for which it was started."""
    fleet = tuple(
        ReplicaObservation(f"chat-{number}", ReplicaState.READY, since_s, since_s - 90.0, live_tokens=tokens)
        for number, (since_s, tokens) in enumerate([(0.0, 900.0), (500.0, 40_000.0), (1000.0, 160_000.0)])
    )
    assert victims.newest(fleet, 1) == ("chat-2",)
    assert victims.pick(fleet, 1) == ("chat-0",)


@pytest.mark.parametrize("name", ["kpa", "forebay"])
def test_complaint_5_kubernetes_own_choice_cuts_more(name):
    """A few long answers are left on a fleet behind a plain load balancer, and pods have 30 s to end."""

    def cut(steered):
        base = world(STREAMS, initial_replicas=6, duration_s=1800.0, drain_s_max=30.0)
        rules = msgspec.structs.replace(base.rules, dispatch=Dispatch.ROUND_ROBIN)
        it = msgspec.structs.replace(base, rules=rules, actuator=Actuator("hpa", tolerance=0.0, steered=steered))
        runs = (
            played(it, forebay(STREAMS) if name == "forebay" else rival(name, STREAMS), streams((600.0, 4.0), (1800.0, 0.3), seed=seed))
            for seed in range(1, 7)
        )
        return sum(top(run).totals.cut for run in runs)

    assert cut(steered=False) > 1.1 * cut(steered=True) > 0


class SecondLoop:
    """Another controller that writes the same number: each second quarter of a minute it lowers the count to ``most``."""

    def __init__(self, policy, most):
        self._policy, self._most = policy, most

    def decide(self, observation):
        decision = self._policy.decide(observation)
        lowers = int(observation.now_s // 15.0) % 2
        return msgspec.structs.replace(decision, replicas=min(decision.replicas, self._most)) if lowers else decision


def test_complaint_6_a_fight_of_two_loops_costs_no_replica():
    """A Deployment ends pods for good each time, and starts others; here the drain is called off."""
    six = msgspec.structs.replace(STREAMS, scaling=msgspec.structs.replace(STREAMS.scaling, min_replicas=6, max_replicas=6))
    base = world(STREAMS, initial_replicas=6, duration_s=1200.0)

    def fought(policy, actuator):
        return played(msgspec.structs.replace(base, actuator=actuator), SecondLoop(policy, 4), streams((1200.0, 5.8)))

    at_once = Actuator("hpa", tolerance=0.0, down_stabilisation_s=0.0)
    evicted = fought(rival("wva-v2", six), at_once)
    assert evicted.starts > 50
    assert top(evicted).ttft_attainment < 0.96
    kept = fought(forebay(six), Actuator())
    assert kept.scale_actions > 50, "the other loop did write"
    assert kept.starts == 0
    assert top(kept).totals.cut == 0
    assert top(kept).ttft_attainment > 0.99
