"""Meters that only ever count, read as what happened since the scrape before: how busy a GPU was, and what passes took.

A meter that fell was restarted in between: it has counted from nothing.
"""

from collections.abc import Iterable

from forebay.domain.scaling import Passes
from forebay.simulation.lab_life import Replica
from forebay.simulation.values import ReplicaReadings


class Meters:
    """Remembers the last scrape of each replica, by its number."""

    def __init__(self) -> None:
        self._last: dict[int, ReplicaReadings] = {}
        self._last_s = 0.0

    def since(
        self, now_s: float, replicas: Iterable[Replica], readings: dict[int, ReplicaReadings]
    ) -> tuple[dict[int, float], dict[int, Passes]]:
        """GPU utilisation (0..1) and passes since the last scrape, or since the engine's start, by replica number."""
        elapsed_s, last = now_s - self._last_s, self._last
        gpu_usage: dict[int, float] = {}
        passes: dict[int, Passes] = {}
        for replica in replicas:
            number = replica.number
            seen, past, over_s = readings[number], last.get(number), elapsed_s
            if past is None:
                over_s = now_s - replica.since_s
            elif seen.busy_s < past.busy_s:
                past = None
            if past is None:
                busy_s, before, passes_s = seen.busy_s, 0, seen.passes_s
                prefilled, read = seen.prefilled_tokens, seen.kv_tokens_read
            else:
                busy_s, before, passes_s = seen.busy_s - past.busy_s, past.passes, seen.passes_s - past.passes_s
                prefilled, read = seen.prefilled_tokens - past.prefilled_tokens, seen.kv_tokens_read - past.kv_tokens_read
            gpu_usage[number] = 0.0 if over_s <= 0 else busy_s / over_s if busy_s < over_s else 1.0
            count = seen.passes - before
            # In one piece: this is asked of every replica at every look.
            passes[number] = Passes(now_s, before, count, passes_s / (count or 1), prefilled / (count or 1), read / (count or 1))
        if elapsed_s > 0:
            self._last, self._last_s = readings, now_s
        return gpu_usage, passes
