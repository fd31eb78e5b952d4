"""What the fleet's past teaches: measured cold starts and the steepest ramp of each day, kept through the Store."""

from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from forebay.controller.remembered import remembered
from forebay.domain.replica import ReplicaView
from forebay.domain.signal import Known, Signal, Unknown
from forebay.ports import Store

COLD_STARTS_MAX = 20
COLD_START_QUANTILE = 0.9
RAMP_DAYS_MAX = 28


class ColdStarts:
    """The recent cold starts of each pool; a high quantile of them sizes the buffer."""

    def __init__(self, store: Store, pools: Iterable[str]) -> None:
        self._store = store
        self._seen: set[tuple[str, float]] = set()
        self._measured: dict[str, deque[float]] = {}
        for pool in pools:
            past = remembered(store, f"cold_starts/{pool}", list[float])
            self._measured[pool] = deque(past or (), maxlen=COLD_STARTS_MAX)
        self._first = True

    def take(self, views: Iterable[ReplicaView]) -> None:
        """Note those replicas that have become ready since the last call (an earlier controller's too)."""
        first, self._first = self._first, False
        present: set[tuple[str, float]] = set()
        for view in views:
            cold_start_s = view.cold_start_s
            if cold_start_s is None:
                continue
            key = (view.id, cold_start_s)
            present.add(key)
            # What an adopted replica took was noted by the controller that saw it start: the very same number.
            noted = key in self._seen or (first and cold_start_s in self._measured.get(view.pool, ()))
            if not noted and view.pool in self._measured:
                self._measured[view.pool].append(cold_start_s)
                self._store.put(f"cold_starts/{view.pool}", msgspec.json.encode(list(self._measured[view.pool])))
        self._seen = present

    def signal(self, pool: str, now_s: float) -> Signal:
        """The COLD_START_QUANTILE of the measured ones, rounded to the second: noise must not turn 3 into 4."""
        measured = sorted(self._measured.get(pool, ()))
        if not measured:
            return Unknown("never")
        index = min(len(measured) - 1, int(COLD_START_QUANTILE * len(measured)))
        return Known(float(round(measured[index])), now_s)


class Today(msgspec.Struct, frozen=True):
    """The steepest ramp of a day that is not over."""

    day: str
    largest_per_s2: float


class Ramps:
    """The largest ramp that the policy measured within each day.

    A day counts as past once it is over: the present ramp is the policy's to measure, and it knows noise from a ramp.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._today: dict[str, Today] = {}

    def take(self, pool: str, ramp_per_s2: float, wall_s: float) -> None:
        """Note the present ramp; the day's largest is kept."""
        day = datetime.fromtimestamp(wall_s, UTC).date().isoformat()
        today = self._today.get(pool) or self._saved(pool)
        if today is not None and today.day != day:
            self._store.append_ramp(pool, today.day, today.largest_per_s2)
            today = None
        if today is None or ramp_per_s2 > today.largest_per_s2:
            today = Today(day, max(0.0, ramp_per_s2))
            self._store.put(f"ramp_today/{pool}", msgspec.json.encode(today))
        self._today[pool] = today

    def _saved(self, pool: str) -> Today | None:
        return remembered(self._store, f"ramp_today/{pool}", Today)

    def past(self, pool: str) -> tuple[float, ...]:
        """The largest ramp of each past day, oldest first."""
        return tuple(self._store.ramps(pool, RAMP_DAYS_MAX))
