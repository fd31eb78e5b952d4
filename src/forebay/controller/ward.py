"""What the controller keeps of one pool between ticks: its policy, its last decision, and what it last saw."""

from collections.abc import Mapping, Sequence

import msgspec

from forebay.controller.remembered import remembered, remembered_number
from forebay.domain.replica import ReplicaState, ReplicaView
from forebay.domain.scaling import Alert, AlertKind, Decision, Observation, Policy
from forebay.ports import DecisionRecord, EngineSignals, Store
from forebay.scaling.capacity import PoolCapacity
from forebay.spec.types import Pool

RECORD_EVERY_S = 60.0


class Saved(msgspec.Struct, frozen=True):
    """What a restart must not forget."""

    desired: int
    memory: bytes


class Ward:
    """One pool. ``desired`` is what the last decision wanted."""

    def __init__(self, pool: Pool, policy: Policy, capacity: PoolCapacity, store: Store) -> None:
        self.pool = pool
        self.policy = policy
        self.capacity = capacity
        self._store = store
        past = remembered(store, self._key, Saved) or Saved(pool.scaling.min_replicas, b"")
        self.desired = past.desired
        self.memory = past.memory
        self.look_at_s = 0.0
        self.observation: Observation | None = None
        self.decision: Decision | None = None
        self.views: tuple[ReplicaView, ...] = ()
        self.signals: Mapping[str, EngineSignals] = {}
        self._given = 0
        """The highest number that a replica is known to have had."""
        self._recorded: Decision | None = None
        self._alerts: dict[AlertKind, Alert] = {}

    @property
    def _key(self) -> str:
        return f"policy/{self.pool.name}"

    def fresh_names(self, count: int) -> list[str]:
        """Names for new replicas, such as ``chat-7``: short, for people, and never given twice, even while the Store fails."""
        key = f"named/{self.pool.name}"
        given = max(self._given, remembered_number(self._store, key))
        self._given = given + count
        self._store.put(key, str(self._given).encode())
        return [f"{self.pool.name}-{number}" for number in range(given + 1, given + count + 1)]

    @property
    def attached(self) -> bool:
        """Whether its engines are somebody else's to start and stop."""
        return self.pool.engine.kind == "attach"

    def use(self, pool: Pool, policy: Policy, capacity: PoolCapacity) -> None:
        """Go by these from now on; what is remembered stays."""
        self.pool, self.policy, self.capacity = pool, policy, capacity
        self.look_at_s = 0.0

    def see(self, views: Sequence[ReplicaView], signals: Mapping[str, EngineSignals]) -> None:
        """Take this tick's replicas and readings."""
        self.views = tuple(view for view in views if view.pool == self.pool.name)
        numbers = (view.id.removeprefix(f"{self.pool.name}-") for view in self.views)
        self._given = max([self._given, *(int(number) for number in numbers if number.isascii() and number.isdecimal())])
        self.signals = signals

    def decided(self, observation: Observation, decision: Decision, wall_s: float) -> tuple[list[Alert], list[Alert]]:
        """Keep the decision; returns (alerts that begin, alerts that end)."""
        self.observation, self.decision = observation, decision
        if (decision.replicas, decision.memory) != (self.desired, self.memory):
            self.desired, self.memory = decision.replicas, decision.memory
            self._store.put(self._key, msgspec.json.encode(Saved(self.desired, self.memory)))
        self.look_at_s = decision.look_again_at_s
        if self._worth_recording(decision):
            # Four weeks of demand are in the Store already: a copy with each decision would fill the disk within days.
            self._store.append_decision(DecisionRecord(wall_s, msgspec.structs.replace(observation, history=None), decision))
            self._recorded = decision
        now = {alert.kind: alert for alert in decision.alerts}
        begun = [alert for kind, alert in now.items() if kind not in self._alerts]
        over = [alert for kind, alert in self._alerts.items() if kind not in now]
        self._alerts = now
        return begun, over

    def _worth_recording(self, decision: Decision) -> bool:
        past = self._recorded
        if past is None or decision.at_s - past.at_s >= RECORD_EVERY_S:
            return True
        return _gist(past) != _gist(decision)

    def count(self, state: ReplicaState) -> int:
        """Replicas in ``state``."""
        return sum(view.state is state for view in self.views)


def _gist(decision: Decision) -> tuple[object, ...]:
    return (decision.replicas, decision.reason, decision.posture, tuple(alert.kind for alert in decision.alerts))
