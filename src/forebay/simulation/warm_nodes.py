"""Warm nodes of a simulated pool: asked for, there after the stage of provisioning, taken by a start or given back, paid for all the while.

A node is paid at its share from the moment it is asked for: its GPUs are nobody else's from then on. What a start takes is
the node that is there soonest, one still on its way included, since no new one could be there before it.
"""

from typing import NamedTuple

from forebay.simulation.accounting import Meter
from forebay.simulation.starts import StageTimes


class WarmNode(NamedTuple):
    """One node without an engine."""

    ready_s: float
    number: int
    """Its own draw of the stage's time; negative, so that replicas keep theirs whatever is held beside them."""
    asked_s: float

    @property
    def provision_s(self) -> float:
        """How long it took to come."""
        return self.ready_s - self.asked_s


class WarmNodes:
    """All nodes held for starts to come."""

    def __init__(self, stages: StageTimes, meter: Meter) -> None:
        self._stages = stages
        self._meter = meter
        self._nodes: list[WarmNode] = []
        """Soonest there first."""
        self._given = 0

    @property
    def held(self) -> int:
        """Nodes there or on their way."""
        return len(self._nodes)

    def ask(self, now_s: float) -> None:
        """One more is provisioned from now on."""
        self._given += 1
        self._nodes.append(WarmNode(now_s + self._stages.draw(-self._given, 0)[0], -self._given, now_s))
        self._nodes.sort()

    def take(self, now_s: float) -> WarmNode | None:
        """The node that is there soonest, from now on a replica's; None where none is held."""
        if not self._nodes:
            return None
        node = self._nodes.pop(0)
        self._meter.spent_warm(node.asked_s, now_s)
        return node

    def give_back(self, count: int, now_s: float) -> None:
        """``count`` fewer are held: those that would be there last."""
        for _ in range(min(count, len(self._nodes))):
            self._meter.spent_warm(self._nodes.pop().asked_s, now_s)
