"""An engine that says it is idle while gateways have streams on it is wedged: its gauges are written by steps that no longer come.

vLLM's ``/health`` stays 200 and its page fresh in that state, so only the two views together show it. What such an
engine says of itself is Unknown from then on, never "idle".
"""

from collections.abc import Mapping, Sequence

import msgspec

from forebay.controller.gateways import GatewayBook
from forebay.domain.replica import ReplicaView
from forebay.domain.signal import Known, Signal, Unknown
from forebay.ports import EngineSignals

WEDGED_AFTER_S = 30.0
WEDGED_REAL_S = 3.0
"""Snapshots and scrapes are taken at different moments, so an accelerated world is given this much real time at least."""
WEDGED = EngineSignals(*(Unknown("wedged") for _ in EngineSignals.__struct_fields__))


class Doubt(msgspec.Struct, frozen=True):
    """Since when an engine has claimed to be idle under streams, and how many tokens it had made by then."""

    since_s: float
    generated: float


class Wedges:
    """Remembers doubts between ticks; bounded by the replicas there are."""

    def __init__(self, speed: float) -> None:
        self._after_s = max(WEDGED_AFTER_S, WEDGED_REAL_S * speed)
        self._doubts: dict[str, Doubt] = {}

    def judged(
        self, views: Sequence[ReplicaView], readings: Mapping[str, EngineSignals], book: GatewayBook, now_s: float
    ) -> dict[str, EngineSignals]:
        """``readings``, those of wedged engines Unknown."""
        judged = dict(readings)
        doubts: dict[str, Doubt] = {}
        for view in views:
            signals = readings.get(view.id)
            if signals is None or not book.streams(view.pool, view.id, now_s) or not _claims_idle(signals):
                continue
            generated = _value(signals.generated_tokens_total)
            doubt = self._doubts.get(view.id)
            if doubt is None or doubt.generated != generated:
                doubt = Doubt(now_s, generated)
            doubts[view.id] = doubt
            if now_s - doubt.since_s >= self._after_s:
                judged[view.id] = WEDGED
        self._doubts = doubts
        return judged


def _claims_idle(signals: EngineSignals) -> bool:
    return all(isinstance(signal, Known) and signal.value == 0 for signal in (signals.running, signals.waiting))


def _value(signal: Signal) -> float:
    return signal.value if isinstance(signal, Known) else -1.0
