"""Every GPU-second has an owner: seconds × GPUs by pool and replica state, counted from request to stop."""

from collections.abc import Iterable, Mapping

import msgspec

from forebay.domain.replica import ReplicaState, ReplicaView
from forebay.ports import Store

KEY = "gpu_seconds"
COUNTED = frozenset(set(ReplicaState) - {ReplicaState.STOPPED})
GAP_S_MAX = 60.0
"""A controller that was away longer than this does not know what ran meanwhile, and counts this much."""


class Meter:
    """Adds up GPU-seconds; its totals survive a restart through the Store."""

    def __init__(self, store: Store, gpus: Mapping[str, int]) -> None:
        self._store = store
        self._gpus = gpus
        saved = store.get(KEY)
        self.gpu_seconds: dict[str, dict[str, float]] = msgspec.json.decode(saved, type=dict[str, dict[str, float]]) if saved else {}
        self._counted_s: float | None = None

    def count(self, views: Iterable[ReplicaView], now_s: float) -> None:
        """Charge the time since the last call to the states that the replicas are in now."""
        elapsed_s = 0.0 if self._counted_s is None else min(GAP_S_MAX, max(0.0, now_s - self._counted_s))
        self._counted_s = now_s
        for view in views:
            if view.state in COUNTED and elapsed_s:
                by_state = self.gpu_seconds.setdefault(view.pool, {})
                by_state[view.state] = by_state.get(view.state, 0.0) + elapsed_s * self._gpus.get(view.pool, 1)

    def save(self) -> None:
        """Make the totals durable."""
        self._store.put(KEY, msgspec.json.encode(self.gpu_seconds))

    def gpu_hours(self, pool: str) -> float:
        """GPU-hours of ``pool`` so far."""
        return sum(self.gpu_seconds.get(pool, {}).values()) / 3600.0
