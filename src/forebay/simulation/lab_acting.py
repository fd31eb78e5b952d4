"""Carries out a count: what leaves, what is taken back, what is started, by the rules of the live controller or of a Deployment."""

from collections.abc import Sequence

from forebay.domain.replica import ReplicaState
from forebay.domain.scaling import ReplicaObservation
from forebay.scaling import starts, victims
from forebay.scaling.capacity import REPLICAS_MAX
from forebay.simulation.lab_life import Lives, Replica
from forebay.simulation.values import Scenario


def act(lives: Lives, scenario: Scenario, target: int, seen: Sequence[ReplicaObservation], now_s: float) -> None:
    """As the controller does: the surplus retreats, drains are called off before anything is started, an overdue start is replaced."""
    present = sum(replica.state is not ReplicaState.DRAINING for replica in seen)
    if present == target and not any(replica.overdue for replica in seen):
        return
    by_id = {replica.id: replica for replica in lives.replicas.values()}
    _dismiss(lives, scenario, [by_id[name] for name in victims.pick(seen, victims.surplus(target, seen))], now_s)
    missing = target - present
    back = [by_id[name] for name in victims.restorable(seen, len(seen))]
    back = [replica for replica in back if not replica.reclaimed][: max(0, missing)]
    for replica in back:
        lives.restore(replica, now_s)
    new = starts.to_start(target, seen, _starts_max(scenario), scenario.max_replicas)
    lives.request(max(0, min(new, missing - len(back))), now_s)


def act_on_count(lives: Lives, scenario: Scenario, target: int, seen: Sequence[ReplicaObservation], now_s: float) -> None:
    """As a Deployment does: every pod that isn't terminating counts, late ones too; a terminating one never comes back.

    The victims are still picked by live tokens, since a gateway can steer them (pod deletion cost), unless the actuator
    says that nobody does.
    """
    present = sum(replica.state is not ReplicaState.DRAINING for replica in seen)
    if present == target:
        return
    by_id = {replica.id: replica for replica in lives.replicas.values()}
    leaving = (victims.pick if scenario.actuator.steered else victims.newest)(seen, present - target)
    _dismiss(lives, scenario, [by_id[name] for name in leaving], now_s)
    slots = _starts_max(scenario) - sum(replica.expected_ready_s is not None for replica in seen)
    lives.request(max(0, min(target - present, slots)), now_s)


def _dismiss(lives: Lives, scenario: Scenario, leaving: Sequence[Replica], now_s: float) -> None:
    for replica in leaving:
        if replica.state is ReplicaState.READY:
            lives.drain(replica, now_s, scenario.drain_s_max)
        else:
            lives.stop(replica, now_s)


def _starts_max(scenario: Scenario) -> int:
    most = scenario.cold_start.starts_max
    return REPLICAS_MAX if most is None else most
