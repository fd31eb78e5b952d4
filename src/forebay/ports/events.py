"""Logs, metrics and the console are listeners: logic emits values and never formats a line."""

from typing import Protocol

from forebay.domain.events import Event


class EventSink(Protocol):
    """Takes events; must not block and must not raise."""

    def emit(self, event: Event) -> None:
        """Record ``event``."""
        ...
