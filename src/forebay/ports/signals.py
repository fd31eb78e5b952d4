"""What engines say of themselves: each number Known with its time, or Unknown with a reason."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from forebay.domain.signal import Signal, Unknown


class EngineSignals(msgspec.Struct, frozen=True):
    """One replica's page, read. Gauges as they are; counters as totals since the engine started."""

    waiting: Signal = Unknown()
    running: Signal = Unknown()
    kv_usage: Signal = Unknown()
    generated_tokens_total: Signal = Unknown()
    prompt_tokens_total: Signal = Unknown()
    preemptions_total: Signal = Unknown()
    kv_tokens: Signal = Unknown()
    """KV capacity in tokens, where the engine tells it."""
    sequences_max: Signal = Unknown()
    """Slots, where the engine tells it."""
    deferred: Signal = Unknown()
    """Of those waiting, the ones that no place would help (a LoRA adapter's turn, a KV transfer), where the engine tells it."""


class SignalSource(Protocol):
    """Reads engines: by scraping them, by asking Prometheus, or out of a simulator."""

    async def read(self, replicas: Mapping[str, str]) -> dict[str, EngineSignals]:
        """Signals by replica id for ``replicas`` (id → base URL); never raises, never omits an id; bounded in time."""
        ...
