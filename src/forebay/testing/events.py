"""A listener that remembers, bounded."""

from collections import deque

from forebay.domain.events import Event

EVENTS_MAX = 100_000


class ListSink:
    """Keeps the newest events for assertions."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque(maxlen=EVENTS_MAX)

    def emit(self, event: Event) -> None:
        """Remember ``event``."""
        self.events.append(event)

    def kinds(self) -> list[str]:
        """The kinds seen, in order."""
        return [event.kind for event in self.events]
