"""What a person at the terminal should see of a fleet: the few events that tell of it, as they come, a line each.

The logs hold everything. While the fleet starts, those lines are shown that say a replica is there or has failed; after that
all but what belongs to the ordinary course, which would bury the rest.
"""

import re
from collections.abc import Callable
from pathlib import Path

TOLD = frozenset(
    {
        *("replica_ready", "replica_failed", "engine_ended", "engine_given_up", "replica_given_up", "alert", "alert_over"),
        *("context_differs", "kv_differs", "model_differs", "engine_asks_key", "engine_key_refused"),
    }
)
"""While it starts."""
ORDINARY = frozenset(
    {
        "gateway_config",  # its own log says it
        *("roster", "engine_started", "engine_adopted", "gateway_joined", "gateway_left", "gateway_drain", "gateway_drained"),
        "connections_bounded",
        *("replica_requested", "replica_provisioning", "replica_loading", "replica_stopped"),
    }
)
"""Not told afterwards."""
LAST = frozenset({"usage_lost"})
"""Told of what comes while it stops."""
READ_BYTES_MAX = 256 * 1024
LINES_MAX = 20
"""Shown at one look; the rest is counted."""
LINE_CHARS_MAX = 300
_EVENT = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z ([a-z_]+)(?: (.*))?")
_SAID = "forebay: "
"""What a process says without an event, such as that a certificate was read again."""


def starting(kind: str) -> bool:
    """Whether an event is told while the fleet starts."""
    return kind in TOLD


def running(kind: str) -> bool:
    """Whether an event is told from then on."""
    return kind not in ORDINARY


def stopping(kind: str) -> bool:
    """Whether an event is told while the fleet stops."""
    return kind in LAST


class Echo:
    """Follows ``log`` from its present end."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._at = self._size()
        self._rest = b""

    def look(self, tells: Callable[[str], bool] = starting) -> list[str]:
        """The lines to show that have come since the last look, without their date."""
        size = self._size()
        if size == self._at:
            return []
        if size < self._at:  # the log was cut to its bound
            self._at, self._rest = 0, b""
        try:
            with self._log.open("rb") as log:
                log.seek(self._at)
                read = log.read(READ_BYTES_MAX)
        except OSError:
            return []
        self._at += len(read)
        *lines, self._rest = (self._rest + read).split(b"\n")
        told = [shown for line in lines if (shown := _shown(line.decode(errors="replace"), tells))]
        return told if len(told) <= LINES_MAX else [*told[:LINES_MAX], f"… and {len(told) - LINES_MAX} more lines in {self._log}"]

    def _size(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:
            return 0


def _shown(line: str, tells: Callable[[str], bool]) -> str:
    """``line`` without its time, if its event is told; else empty."""
    event = _EVENT.fullmatch(line)
    if event is not None:
        shown = f"{event[1].replace('_', ' ')}: {event[2] or ''}".rstrip() if tells(event[1]) else ""
    else:
        shown = line.removeprefix(_SAID) if line.startswith(_SAID) and tells("") else ""
    return shown if len(shown) <= LINE_CHARS_MAX else f"{shown[:LINE_CHARS_MAX]}…"
