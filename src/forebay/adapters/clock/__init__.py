"""The event loop's clock in world seconds, and random ids: the only places that read real time and real chance."""

import asyncio
import secrets
import time
from collections.abc import Callable


class LoopClock:
    """World time is the running loop's time × ``speed``; the wall starts at the real one and runs as fast."""

    def __init__(self, speed: float = 1.0, wall_at_start_s: float | None = None) -> None:
        self.speed = speed
        self._loop = asyncio.get_running_loop()
        self._wall_offset_s = (time.time() if wall_at_start_s is None else wall_at_start_s) - self.now_s()

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
        """Return at world time ``at_s`` or just after."""
        await asyncio.sleep(max(0.0, (at_s - self.now_s()) / self.speed))


class MeasuringClock(LoopClock):
    """The same world seconds, read anew at each call: uvloop's own time has whole milliseconds and stands still
    within one turn of the loop, which hides exactly the lateness that a load generator must see in itself."""

    def now_s(self) -> float:
        """Monotonic world seconds (every real loop's time is ``time.monotonic``)."""
        return time.monotonic() * self.speed


class RandomIds:
    """Ids that nobody has had before, by chance of 2⁻⁹⁶."""

    def fresh(self, prefix: str) -> str:
        """``prefix`` and 24 hexadecimal digits."""
        return f"{prefix}-{secrets.token_hex(12)}"
