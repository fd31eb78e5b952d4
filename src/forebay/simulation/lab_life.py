"""The lives of simulated replicas: asked for, provisioned, loading, ready, draining, gone; crashed ones are restarted where they were.

It carries out what is wanted (`request`, `drain`, `restore`, `stop`) and what befalls (`crash`, `reclaim`), moves every
replica along `domain.replica`'s table, and charges each state to the meter.
"""

import math
import random
from collections.abc import Callable, Iterable

from forebay.domain.replica import ReplicaState, moved
from forebay.simulation.accounting import Meter
from forebay.simulation.fleet import SimulatedFleet
from forebay.simulation.lab_agenda import Agenda, Turn
from forebay.simulation.starts import ColdStarts, Pulls, StageTimes
from forebay.simulation.values import Scenario, Shortage
from forebay.simulation.warm_nodes import WarmNode, WarmNodes

RESTART_S = 10.0
"""From a crash to the restart in place, as the live fleet's first backoff."""
DRAIN_LOOK_S = 5.0
"""How often draining replicas are looked at: one that is empty is paid for at most so much longer."""
DAY_S = 86_400.0
S = ReplicaState


class Replica:
    """One replica of the pool."""

    __slots__ = (
        "begun_s",
        "deadline_s",
        "epoch",
        "id",
        "node_s",
        "number",
        "reclaimed",
        "requested_s",
        "restarts",
        "row",
        "since_s",
        "state",
        "warm_node",
    )

    def __init__(self, number: int, pool: str, now_s: float) -> None:
        self.number = number
        self.id = f"{pool}-{number}"
        self.state = S.REQUESTED
        self.since_s = self.requested_s = now_s
        self.begun_s = now_s
        """When this attempt began: an overdue start is one that began long ago."""
        self.node_s = now_s
        """When its node was asked for: it is paid for from here."""
        self.warm_node: WarmNode | None = None
        """The node it started on, where that was held warm."""
        self.restarts = 0
        self.row = -1
        """Its row in the fleet; -1 while it has none."""
        self.epoch = 0
        """Counts attempts and ends: an event of an earlier epoch is void."""
        self.deadline_s = 0.0
        """While it drains: when it is stopped at the latest."""
        self.reclaimed = False
        """Its node is being taken away: that drain can't be called off."""


class Lives:
    """All replicas of the pool that are not stopped, in the order in which they were asked for."""

    def __init__(self, scenario: Scenario, fleet: SimulatedFleet, agenda: Agenda, meter: Meter, pool: str) -> None:
        self._scenario = scenario
        self._fleet = fleet
        self._agenda = agenda
        self._meter = meter
        self._pool = pool
        self._stages = StageTimes(scenario.cold_start, scenario.seed)
        self._pulls = Pulls(scenario.cold_start)
        self._pulls_version = 0
        self._given = 0
        self._looking = False
        self.warm_nodes = WarmNodes(self._stages, meter)
        self.cold_starts = ColdStarts()
        self.warm_starts = ColdStarts()
        """On warm nodes, from node to ready."""
        self.replicas: dict[int, Replica] = {}
        self.starts = 0
        """Nodes asked for so far, the first replicas left out."""
        self.peak = 0
        """Most nodes held at once."""
        for shortage in scenario.shortages:
            agenda.at(shortage.until_s, Turn.TROUBLE, self._provision)

    def begin_with(self, count: int) -> None:
        """``count`` replicas are ready at second 0."""
        for _ in range(count):
            replica = self._new(0.0)
            self._move(replica, S.READY, 0.0)
            replica.row = self._fleet.add(self._scenario.initial_warm)
            self._draw_crash(replica, 0.0)
        self._count(0.0)

    def request(self, count: int, now_s: float) -> None:
        """``count`` more are wanted; their nodes begin to come as far as there are any."""
        for _ in range(count):
            self._new(now_s)
        self._provision(now_s)

    def hold_warm(self, count: int, now_s: float) -> None:
        """Hold ``count`` warm nodes, as far as a shortage leaves any."""
        nodes = self.warm_nodes
        nodes.give_back(nodes.held - count, now_s)
        if nodes.held >= count:
            return
        room = _nodes_max(self._scenario.shortages, now_s) - self.nodes
        while nodes.held < count and room > 0:
            room -= 1
            self.starts += 1
            nodes.ask(now_s)
        self.peak = max(self.peak, self.nodes)

    def drain(self, replica: Replica, now_s: float, drain_s_max: float, reclaimed: bool = False) -> None:
        """Nothing new goes there; it is stopped when empty, or at the deadline. A drain under way keeps the sooner deadline."""
        if replica.state is S.READY:
            self._fleet.drain(replica.row)
            self._move(replica, S.DRAINING, now_s)
            replica.deadline_s = now_s + drain_s_max
        replica.deadline_s = min(replica.deadline_s, now_s + drain_s_max)
        replica.reclaimed |= reclaimed
        self._agenda.at(replica.deadline_s, Turn.DRAIN, self._look)
        if not self._looking:
            self._looking = True
            self._agenda.at(now_s + DRAIN_LOOK_S, Turn.DRAIN, self._look_again)

    def restore(self, replica: Replica, now_s: float) -> None:
        """The drain is off: it serves again."""
        self._fleet.cancel_drain(replica.row)
        self._move(replica, S.READY, now_s)
        self._count(now_s)

    def stop(self, replica: Replica, now_s: float) -> None:
        """It is gone, and its node is given back."""
        if replica.state is S.LOADING:
            self._pulls.cancel(replica.number, now_s)
        self._leave(replica)
        self._move(replica, S.STOPPED, now_s)
        del self.replicas[replica.number]
        self._count(now_s)
        self._provision(now_s)

    def crash(self, replica: Replica, now_s: float) -> None:
        """Its engine is gone at once; it is restarted on the same node after RESTART_S."""
        if replica.state is S.DRAINING:
            self.stop(replica, now_s)
            return
        if replica.state is S.LOADING:
            self._pulls.cancel(replica.number, now_s)
        self._leave(replica)
        self._move(replica, S.FAILED, now_s)
        self._count(now_s)
        self._later(replica, now_s + RESTART_S, Turn.STAGE, self._restart)

    def reclaim(self, replica: Replica, now_s: float, notice_s: float) -> None:
        """Its node is taken away: drained for as long as the notice lasts, then gone whatever runs there."""
        if replica.state in {S.READY, S.DRAINING} and notice_s > 0:
            self.drain(replica, now_s, notice_s, reclaimed=True)
        else:
            self.stop(replica, now_s)

    def close(self, until_s: float) -> None:
        """The scenario is over: charge what is still held."""
        for replica in self.replicas.values():
            self._meter.spent(replica.state, replica.since_s, until_s)
        self.warm_nodes.give_back(self.warm_nodes.held, until_s)

    def in_state(self, *states: ReplicaState) -> list[Replica]:
        """Those in one of ``states``."""
        return [replica for replica in self.replicas.values() if replica.state in states]

    @property
    def nodes(self) -> int:
        """Nodes that are paid for now, warm ones included."""
        return sum(replica.state is not S.REQUESTED for replica in self.replicas.values()) + self.warm_nodes.held

    def _new(self, now_s: float) -> Replica:
        self._given += 1
        replica = self.replicas[self._given] = Replica(self._given, self._pool, now_s)
        return replica

    def _move(self, replica: Replica, state: ReplicaState, now_s: float) -> None:
        self._meter.spent(replica.state, replica.since_s, now_s)
        replica.state = moved(replica.state, state)
        replica.since_s = now_s
        replica.epoch += state not in {S.DRAINING, S.READY}

    def _leave(self, replica: Replica) -> None:
        if replica.row >= 0:
            self._fleet.stop(replica.row)
            replica.row = -1

    def _provision(self, now_s: float) -> None:
        """Nodes for those that are requested, oldest first: warm ones, then new ones as far as a shortage leaves any."""
        room = _nodes_max(self._scenario.shortages, now_s) - self.nodes
        for replica in self.in_state(S.REQUESTED):
            node = self.warm_nodes.take(now_s)
            if node is not None:
                self._move(replica, S.PROVISIONING, now_s)
                replica.warm_node = node
                self._later(replica, max(now_s, node.ready_s), Turn.STAGE, self._load)
                continue
            if room <= 0:
                break
            room -= 1
            self.starts += 1
            self._move(replica, S.PROVISIONING, now_s)
            replica.node_s = now_s
            self._later(replica, now_s + self._stages.draw(replica.number, 0)[0], Turn.STAGE, self._load)
        self.peak = max(self.peak, self.nodes)

    def _later(self, replica: Replica, at_s: float, turn: Turn, then: Callable[[Replica, float], None]) -> None:
        """``then`` at ``at_s``, unless the replica's attempt is over by then."""
        epoch = replica.epoch

        def act(now_s: float) -> None:
            if replica.epoch == epoch:
                then(replica, now_s)

        self._agenda.at(at_s, turn, act)

    def _draw_crash(self, replica: Replica, now_s: float) -> None:
        rate_per_day = self._scenario.crashes_per_replica_day
        if rate_per_day > 0:
            chance = random.Random(f"{self._scenario.seed}/crash/{replica.number}/{replica.restarts}")
            self._later(replica, now_s + chance.expovariate(rate_per_day / DAY_S), Turn.TROUBLE, self.crash)

    def _load(self, replica: Replica, now_s: float) -> None:
        self._move(replica, S.LOADING, now_s)
        self._draw_crash(replica, now_s)
        self._pulls.begin(replica.number, self._stages.draw(replica.number, replica.restarts)[1], now_s)
        self._watch_pulls()

    def _watch_pulls(self) -> None:
        self._pulls_version += 1
        version = self._pulls_version

        def act(now_s: float) -> None:
            if version == self._pulls_version:
                for number in self._pulls.finished(now_s):
                    replica = self.replicas[number]
                    init_s = self._stages.draw(number, replica.restarts)[2]
                    self._later(replica, now_s + init_s, Turn.STAGE, self._ready)
                self._watch_pulls()

        self._agenda.at(self._pulls.next_s, Turn.STAGE, act)

    def _ready(self, replica: Replica, now_s: float) -> None:
        loading_s, node = now_s - replica.since_s, replica.warm_node
        self._move(replica, S.READY, now_s)
        replica.row = self._fleet.add()
        # A restart in place has its node already: it says nothing of how long a new one takes.
        if not replica.restarts and node is None:
            self.cold_starts.take(now_s - replica.node_s)
        elif not replica.restarts and node is not None:
            # With the time its node took to come, it is as long as a cold start would have been.
            self.cold_starts.take(node.provision_s + loading_s)
            self.warm_starts.take(loading_s)
        self._count(now_s)

    def _restart(self, replica: Replica, now_s: float) -> None:
        self._move(replica, S.REQUESTED, now_s)
        replica.begun_s = now_s
        replica.restarts += 1
        self._load(replica, now_s)

    def _count(self, now_s: float) -> None:
        """The number of replicas that could serve weights may have changed, and of pulls."""
        self._pulls.peers(len(self.in_state(S.READY, S.DRAINING)), now_s)
        self._watch_pulls()
        self.peak = max(self.peak, self.nodes)

    def _look_again(self, now_s: float) -> None:
        self._look(now_s)
        self._looking = bool(self.in_state(S.DRAINING))
        if self._looking:
            self._agenda.at(now_s + DRAIN_LOOK_S, Turn.DRAIN, self._look_again)

    def _look(self, now_s: float) -> None:
        for replica in self.in_state(S.DRAINING):
            if now_s >= replica.deadline_s or self._fleet.idle(replica.row):
                self.stop(replica, now_s)


def _nodes_max(shortages: Iterable[Shortage], now_s: float) -> float:
    """Nodes that can be had at ``now_s``, those held already included."""
    return min((shortage.replicas_max for shortage in shortages if shortage.from_s <= now_s < shortage.until_s), default=math.inf)
