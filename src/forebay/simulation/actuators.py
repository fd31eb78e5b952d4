"""What stands between a decision and the fleet: nothing, or a HorizontalPodAutoscaler with the decision as its metric, and KEDA for zero.

The rules of the HPA are those of Kubernetes' horizontal controller (autoscaling/v2, external metric, AverageValue with
target 1): every sync, ``|metric ÷ replicas − 1|`` within the tolerance changes nothing, else the metric rounded up is
recommended. Down: the highest recommendation of the time that it stabilises over. Up: the lowest of its own such time, and
at most the larger of ``up_percent`` and ``up_replicas`` above what there was ``period_s`` ago. Zero is KEDA's alone: its
poll wakes the fleet to one, and puts it to sleep once the metric has been zero for the cooldown.

Two consequences are the point of offering it: near a count of ten a change by one is swallowed by the tolerance, and the
way down takes five minutes longer than the decision.
"""

import math
from collections import deque
from typing import Protocol

from forebay.domain.errors import BadInput
from forebay.simulation.values import Actuator, Scenario

KINDS = ("direct", "hpa")
WINDOW_S_MAX = 3600.0
"""Of stabilisation, as Kubernetes allows."""
PERIOD_S = (1.0, 3600.0)
"""Of its clocks: the live loop's own pace is the fastest."""
TOLERANCE_MAX = 0.99
EVENTS_MAX = 4096
"""Recommendations and changes kept: more than the longest stabilisation of them at one a second."""


class Acting(Protocol):
    """Turns decisions into the count that the fleet is told."""

    count_only: bool
    """Whether only a count is passed on: drains can't be called off then, and a start that is late is not replaced."""
    syncs_s: tuple[float, ...]
    """Periods of its own clocks."""

    @property
    def target(self) -> int:
        """The count that the fleet is told now."""
        ...

    def decided(self, replicas: int, now_s: float) -> None:
        """The policy wants ``replicas``."""
        ...

    def sync(self, clock: int, now_s: float, present: int) -> None:
        """Clock number ``clock`` of ``syncs_s`` ticks; ``present`` replicas exist that aren't draining."""
        ...


class Direct:
    """The fleet is told what was decided, at once."""

    count_only = False
    syncs_s: tuple[float, ...] = ()

    def __init__(self, target: int) -> None:
        self.target = target

    def decided(self, replicas: int, now_s: float) -> None:
        """It is the count."""
        del now_s
        self.target = replicas

    def sync(self, clock: int, now_s: float, present: int) -> None:
        """There is no clock."""


class Hpa:
    """An HPA between one and ``most``, and KEDA below one where ``least`` is zero."""

    count_only = True

    def __init__(self, settings: Actuator, target: int, least: int, most: int) -> None:
        self._settings = settings
        self._least = least
        self._most = most
        self._metric = target
        self._target = target
        self._recommended: deque[tuple[float, int]] = deque(maxlen=EVENTS_MAX)
        self._changes: deque[tuple[float, int]] = deque(maxlen=EVENTS_MAX)
        """(when, by how many), of the HPA alone: KEDA's waking is no event of its."""
        self._active_s = 0.0
        self.syncs_s: tuple[float, ...] = (settings.sync_s, *((settings.polling_s,) if least == 0 else ()))

    @property
    def target(self) -> int:
        """The scale's replicas."""
        return self._target

    def decided(self, replicas: int, now_s: float) -> None:
        """The metric's value from now on."""
        del now_s
        self._metric = replicas

    def sync(self, clock: int, now_s: float, present: int) -> None:
        """0: the HPA looks; 1: KEDA polls."""
        if clock:
            self._poll(now_s)
        elif self._target > 0:
            self._look(now_s, present)

    def _poll(self, now_s: float) -> None:
        if self._metric > 0:
            self._active_s = now_s
            self._target = max(1, self._target)
        elif now_s - self._active_s >= self._settings.cooldown_s:
            self._target = 0

    def _look(self, now_s: float, present: int) -> None:
        wanted = self._stabilised(self._recommendation(present), now_s)
        before = self._target
        if wanted > before:
            wanted = min(wanted, max(before, self._up_limit(now_s)))
        self._target = max(1, self._least, min(self._most, wanted))
        if self._target != before:
            self._changes.append((now_s, self._target - before))

    def _recommendation(self, present: int) -> int:
        """By the metric alone, within the tolerance the number that there is."""
        tolerance = self._settings.tolerance
        if present > 0 and 1.0 - tolerance <= self._metric / present <= 1.0 + tolerance:
            return present
        return max(1, self._least, min(self._most, self._metric))

    def _stabilised(self, recommendation: int, now_s: float) -> int:
        """Up to the lowest recommendation of the one time, down to the highest of the other; between the two it stays."""
        up_s, down_s = self._settings.up_stabilisation_s, self._settings.down_stabilisation_s
        while self._recommended and self._recommended[0][0] <= now_s - max(up_s, down_s):
            self._recommended.popleft()
        lowest = min((count for at_s, count in self._recommended if at_s > now_s - up_s), default=recommendation)
        highest = max((count for at_s, count in self._recommended if at_s > now_s - down_s), default=recommendation)
        self._recommended.append((now_s, recommendation))
        return min(max(self._target, min(recommendation, lowest)), max(recommendation, highest))

    def _up_limit(self, now_s: float) -> int:
        """The larger of both rules, from what there was one period ago."""
        settings = self._settings
        since_s = now_s - settings.period_s
        began = self._target - sum(by for at_s, by in self._changes if at_s > since_s)
        return max(math.ceil(round(began * (1 + settings.up_percent), 9)), began + settings.up_replicas)


def actuator(scenario: Scenario) -> Acting:
    """The one that the scenario names. Raises BadInput for one that does not exist."""
    settings = scenario.actuator
    if settings.kind == "direct":
        return Direct(scenario.initial_replicas)
    if settings.kind == "hpa":
        return Hpa(settings, scenario.initial_replicas, scenario.min_replicas, scenario.max_replicas)
    raise BadInput(f"actuator: found {settings.kind!r}; allowed: {', '.join(KINDS)}")
