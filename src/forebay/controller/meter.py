"""Every GPU-second has an owner: seconds × GPUs by pool and replica state, counted from request to stop."""

from collections.abc import Iterable, Mapping

import msgspec

from forebay.controller.remembered import remembered
from forebay.domain.replica import ReplicaState, ReplicaView
from forebay.ports import Store

KEY = "gpu_meter"
COUNTED = frozenset(set(ReplicaState) - {ReplicaState.STOPPED})


class Saved(msgspec.Struct, frozen=True):
    """What a restart must not forget: totals by pool and state, and until when they count (world seconds)."""

    gpu_seconds: dict[str, dict[str, float]] = {}
    counted_s: float | None = None


class Meter:
    """Adds up GPU-seconds; its totals survive a restart through the Store."""

    def __init__(self, store: Store, gpus: Mapping[str, int]) -> None:
        self._store = store
        self._gpus = gpus
        past = remembered(store, KEY, Saved) or Saved()
        self.gpu_seconds = past.gpu_seconds
        self._counted_s = past.counted_s

    def count(self, views: Iterable[ReplicaView], now_s: float) -> None:
        """Charge the time since the last call to the states that the replicas are in now.

        The time between two controllers is charged as well: a replica that was asked for before it has run throughout.
        """
        elapsed_s = 0.0 if self._counted_s is None else max(0.0, now_s - self._counted_s)
        self._counted_s = now_s
        for view in views:
            charged_s = min(elapsed_s, max(0.0, now_s - view.requested_s))
            if view.state in COUNTED and charged_s:
                by_state = self.gpu_seconds.setdefault(view.pool, {})
                by_state[view.state] = by_state.get(view.state, 0.0) + charged_s * self._gpus.get(view.pool, 1)

    def save(self) -> None:
        """Make the totals durable."""
        self._store.put(KEY, msgspec.json.encode(Saved(self.gpu_seconds, self._counted_s)))

    def gpu_hours(self, pool: str) -> float:
        """GPU-hours of ``pool`` so far."""
        return sum(self.gpu_seconds.get(pool, {}).values()) / 3600.0
