"""The running loop's clock as a port, with a wall that starts at a fixed date: no test depends on today."""

from forebay.ports import EventLoopClock

WALL_AT_START_S = 1_790_000_000.0
"""2026-09-21 13:33:20 UTC, a Monday."""


class LoopClock(EventLoopClock):
    """World seconds are the loop's × ``speed``."""

    def __init__(self, speed: float = 1.0, wall_at_start_s: float = WALL_AT_START_S) -> None:
        super().__init__(speed, wall_at_start_s)
