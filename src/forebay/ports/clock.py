"""Time and identity come from outside. A Clock speaks the world's seconds, whatever speed the world runs at."""

import asyncio
from collections.abc import Callable
from typing import Protocol


class TimerHandle(Protocol):
    """A timer that has not fired can be cancelled."""

    def cancel(self) -> None:
        """Idempotent."""
        ...


class Clock(Protocol):
    """The event loop's own clock, in world seconds: with ``--speed 20`` one real second is twenty of these."""

    speed: float
    """World seconds per real second."""

    def now_s(self) -> float:
        """Monotonic world seconds."""
        ...

    def wall_s(self) -> float:
        """Unix time in the world (it advances ``speed`` times as fast as the real one)."""
        ...

    def call_at(self, at_s: float, callback: Callable[[], None]) -> TimerHandle:
        """Run ``callback`` at world time ``at_s``, or as soon as possible if that is past."""
        ...

    async def sleep_until(self, at_s: float) -> None:
        """Return at world time ``at_s`` or just after."""
        ...


class EventLoopClock:
    """World time is the running loop's own time × ``speed``, whether that loop is a real one or a virtual one."""

    now_s: Callable[[], float]
    """Monotonic world seconds."""

    def __init__(self, speed: float, wall_at_start_s: float) -> None:
        self.speed = speed
        self._loop = asyncio.get_running_loop()
        # At speed 1 the loop's own function, with nothing of ours around it: the data path asks a few times for every request.
        self.now_s = self._loop.time if speed == 1.0 else self._world_s
        self._wall_offset_s = wall_at_start_s - self.now_s()

    def _world_s(self) -> float:
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


class Ids(Protocol):
    """Where fresh identifiers come from: random ones live, a counter in a simulated world."""

    def fresh(self, prefix: str) -> str:
        """A string that has not been given before, such as ``req-9f2c…``; it is safe in a header and a file name."""
        ...
