"""How many requests an engine runs at once, seen where it lets others wait: no page says so, and what waits there waits in no order.

While requests wait inside an engine whose KV cache has room, those that run take all its places. It is told a little more
than that, so that one or two go on waiting there for as long as there is a queue, and show that the number still holds;
where none does any more and all it may have runs, it has more places than were seen.
"""

from collections.abc import Mapping, Sequence

import msgspec

from forebay.domain.replica import ReplicaView
from forebay.domain.signal import Known, Signal
from forebay.ports import EngineSignals

LOOKS = 3
"""In a row: a request that came this instant waits for a step, and not for a place."""
KV_ROOM = 0.8
"""Above this use it may be the cache that has no room for another."""
SPARE_PART = 16
"""A sixteenth of the places on top, and one at least."""
GROWTH = 1.5


class _Seen(msgspec.Struct):
    looks: int = 0
    """In a row at which requests waited for a place."""
    most: int = 0
    """That ran at those."""
    idle_looks: int = 0
    """In a row at which none waited, though all ran that may be there."""
    places: int = 0
    """0: not known."""

    @property
    def told(self) -> int:
        return self.places + max(1, self.places // SPARE_PART)


class Places:
    """Remembers what was seen between ticks; bounded by the replicas there are."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def judged(self, views: Sequence[ReplicaView], readings: Mapping[str, EngineSignals], now_s: float) -> dict[str, EngineSignals]:
        """``readings``, with ``sequences_max`` where an engine doesn't tell and it has been seen."""
        judged = dict(readings)
        seen = {view.id: self._seen.get(view.id, _Seen()) for view in views if view.id in readings}
        for name, each in seen.items():
            signals = readings[name]
            if isinstance(signals.sequences_max, Known):
                continue
            _look(each, signals)
            if each.places:
                judged[name] = msgspec.structs.replace(signals, sequences_max=Known(float(each.told), now_s))
        self._seen = seen
        return judged


def _look(seen: _Seen, signals: EngineSignals) -> None:
    running, waiting, kv = _value(signals.running), _value(signals.waiting), _value(signals.kv_usage)
    if running is None or waiting is None or kv is None:
        return
    waits = waiting - (_value(signals.deferred) or 0.0) >= 1
    if waits and running >= 1 and kv < KV_ROOM:
        seen.looks, seen.most, seen.idle_looks = seen.looks + 1, max(seen.most, int(running)), 0
        if seen.looks >= LOOKS:
            seen.places = seen.most
        return
    seen.looks = seen.most = 0
    seen.idle_looks = seen.idle_looks + 1 if seen.places and not waits and running >= seen.told else 0
    if seen.idle_looks >= LOOKS:
        seen.places, seen.idle_looks = int(seen.places * GROWTH) + 1, 0


def _value(signal: Signal) -> float | None:
    return signal.value if isinstance(signal, Known) else None
