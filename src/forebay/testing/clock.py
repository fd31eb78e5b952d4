"""The running loop's clock as a port, with a wall that starts at a fixed date: no test depends on today."""

import asyncio
from collections.abc import Callable

WALL_AT_START_S = 1_790_000_000.0
"""2026-09-21 13:33:20 UTC, a Monday."""


class LoopClock:
    """World seconds are the loop's × ``speed``."""

    def __init__(self, speed: float = 1.0, wall_at_start_s: float = WALL_AT_START_S) -> None:
        self.speed = speed
        self._loop = asyncio.get_running_loop()
        self._wall_offset_s = wall_at_start_s

    def now_s(self) -> float:
        """Monotonic world seconds."""
        return self._loop.time() * self.speed

    def wall_s(self) -> float:
        """Unix time in the world."""
        return self._wall_offset_s + self.now_s()

    def call_at(self, at_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Run ``callback`` at world time ``at_s``."""
        return self._loop.call_at(at_s / self.speed, callback)

    async def sleep_until(self, at_s: float) -> None:
        """Return at world time ``at_s``."""
        await asyncio.sleep(max(0.0, (at_s - self.now_s()) / self.speed))
