"""What a run is charged and judged by: GPU-seconds by state, changes of the count, minutes under the promise, alerts, one row a minute.

Only what happens before the end of the scenario counts; the fleet's own totals are read, never kept twice.
"""

from collections.abc import Sequence

from forebay.domain.replica import ReplicaState
from forebay.domain.scaling import Decision
from forebay.simulation.values import TierTotals

REVERSAL_S = 1800.0
MINUTE_S = 60.0
ALERT_KINDS_MAX = 64
"""Alert kinds are an enumeration; a policy that makes up names without end is told no more than these."""

PAID_AS = {
    ReplicaState.PROVISIONING: "starting",
    ReplicaState.LOADING: "starting",
    ReplicaState.READY: "ready",
    ReplicaState.DRAINING: "draining",
    ReplicaState.FAILED: "failed",
}
"""A node is paid for whatever its replica does; one that is only requested is not there yet."""


class Meter:
    """GPU-seconds by state, up to the end of the scenario."""

    def __init__(self, gpus: int, until_s: float, warm_share: float | None = None) -> None:
        """``warm_share``: what a GPU-second of a warm node counts as; None: there are no such nodes."""
        self._gpus = gpus
        self._until_s = until_s
        self._warm_share = warm_share or 0.0
        states = ("starting", "ready", "draining", "failed", *(() if warm_share is None else ("warm",)))
        self.gpu_seconds = dict.fromkeys(states, 0.0)

    def spent(self, state: ReplicaState, from_s: float, now_s: float) -> None:
        """A replica was in ``state`` from ``from_s`` to ``now_s``."""
        name = PAID_AS.get(state)
        if name is not None:
            self.gpu_seconds[name] += max(0.0, min(now_s, self._until_s) - from_s) * self._gpus

    def spent_warm(self, from_s: float, now_s: float) -> None:
        """A warm node was held from ``from_s``, when it was asked for, to ``now_s``."""
        self.gpu_seconds["warm"] += max(0.0, min(now_s, self._until_s) - from_s) * self._gpus * self._warm_share

    @property
    def gpu_hours(self) -> float:
        """All states together."""
        return sum(self.gpu_seconds.values()) / 3600.0


class Actions:
    """Changes of the count that the fleet is told, and how often they turned round."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._last: tuple[float, int] | None = None
        self.changes = 0
        self.reversals = 0

    def take(self, target: int, now_s: float) -> None:
        """The fleet is told ``target`` from now on."""
        if target == self._target:
            return
        direction = 1 if target > self._target else -1
        if self._last is not None and direction != self._last[1] and now_s - self._last[0] <= REVERSAL_S:
            self.reversals += 1
        self.changes += 1
        self._last = (now_s, direction)
        self._target = target


class AlertLog:
    """When each kind of alert began."""

    def __init__(self) -> None:
        self.begun: dict[str, int] = {}
        self.first_s: dict[str, float] = {}
        self._now: frozenset[str] = frozenset()

    def take(self, decision: Decision, now_s: float) -> None:
        """The alerts that hold now."""
        now = frozenset(alert.kind.value for alert in decision.alerts)
        for kind in sorted(now - self._now):
            if kind in self.begun or len(self.begun) < ALERT_KINDS_MAX:
                self.begun[kind] = self.begun.get(kind, 0) + 1
                self.first_s.setdefault(kind, now_s)
        self._now = now


def judged(totals: Sequence[TierTotals]) -> tuple[int, int]:
    """(requests that kept both promises, requests that did not), so far: a shed or cut one kept none."""
    met = sum(tier.both_met for tier in totals)
    ended = sum(tier.completed + tier.shed + tier.cut for tier in totals)
    return met, ended - met


class Breaches:
    """Runs of consecutive minutes in which attainment was under the promise.

    A minute in which nothing ended, but first tokens were late, is under it too: a jam must not look like a calm.
    """

    def __init__(self, promise: float) -> None:
        self._promise = promise
        self._before = (0, 0, 0)
        self._run = 0
        self.count = 0
        self.longest_s = 0.0

    def minute(self, totals: Sequence[TierTotals]) -> None:
        """One more minute is over; ``totals`` of the tiers that are promised something."""
        met, missed = judged(totals)
        late = sum(tier.ttft_missed for tier in totals)
        now = (met, missed, late)
        good, bad, lately = (new - old for new, old in zip(now, self._before, strict=True))
        self._before = now
        under = good < self._promise * (good + bad) if good + bad else lately > 0
        self._run = self._run + 1 if under else 0
        self.count += self._run == 1
        self.longest_s = max(self.longest_s, self._run * MINUTE_S)
