"""What a person at the terminal should see while a fleet starts: the controller's few events that tell of it, as they come.

The log holds everything; this shows those lines of it that say a replica is there, has failed, or should worry somebody.
"""

from pathlib import Path

TOLD = frozenset({"replica_ready", "replica_failed", "engine_ended", "engine_given_up", "replica_given_up", "alert", "alert_over"})
READ_BYTES_MAX = 256 * 1024
LINES_MAX = 20
"""Shown at one look; the rest is counted."""


class Echo:
    """Follows ``log`` from its present end."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._at = self._size()
        self._rest = b""

    def look(self) -> list[str]:
        """The lines to show that have come since the last look, without their date."""
        size = self._size()
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
        told = [shown for line in lines if (shown := _shown(line.decode(errors="replace")))]
        return told if len(told) <= LINES_MAX else [*told[:LINES_MAX], f"… and {len(told) - LINES_MAX} more lines in {self._log}"]

    def _size(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:
            return 0


def _shown(line: str) -> str:
    """``line`` without its time, if its event is one of TOLD; else empty."""
    _, _, rest = line.partition(" ")
    kind, _, words = rest.partition(" ")
    return f"{kind.replace('_', ' ')}: {words}" if kind in TOLD else ""
