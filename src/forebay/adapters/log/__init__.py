"""Events as lines of a log: one event, one line, for people or for machines.

Writing to a stream can block where its reader sleeps; a log that is lost under load would hide what mattered, so the
line is written at once. A stream that is gone is counted, and never an error of whoever emitted.
"""

import json
import sys
from datetime import UTC, datetime
from typing import TextIO

import msgspec

from forebay.domain.events import Event

MESSAGE_CHARS_MAX = 2000


class LogSink:
    """`ports.EventSink` that writes each event to ``stream`` (standard error by default), as text or (``as_json``) as a JSON object."""

    def __init__(self, stream: TextIO | None = None, *, as_json: bool = False) -> None:
        self.lost = 0
        """Events whose line could not be written."""
        self._stream = stream or sys.stderr
        self._render = _as_json if as_json else _as_text

    def emit(self, event: Event) -> None:
        """Write one line."""
        try:
            self._stream.write(self._render(event) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self.lost += 1


def _as_text(event: Event) -> str:
    """``2026-11-29T13:45:01.123Z alert pool=chat "…" replicas=3``: nothing in an event can start another line."""
    words = [_time(event.wall_s), event.kind]
    if event.pool:
        words.append(f"pool={event.pool}")
    if event.message:
        words.append(event.message[:MESSAGE_CHARS_MAX])
    words += [f"{key}={_value(value)}" for key, value in event.detail.items()]
    return "".join(character if character.isprintable() else " " for character in " ".join(words))


def _as_json(event: Event) -> str:
    line = {
        "time": _time(event.wall_s),
        "kind": event.kind,
        "pool": event.pool,
        "message": event.message[:MESSAGE_CHARS_MAX],
        "world_s": event.at_s,
        "detail": event.detail,
    }
    text = msgspec.json.encode(line).decode()
    # Some readers split lines at more than "\n" (U+0085, U+2028), which JSON leaves bare.
    return "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in text)


def _value(value: str | float | int | bool) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if text and " " not in text else msgspec.json.encode(text).decode()


def _time(wall_s: float) -> str:
    """UTC with milliseconds; the bare number where a calendar has no such date."""
    try:
        return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, OSError, ValueError):
        return f"{wall_s:g}"
