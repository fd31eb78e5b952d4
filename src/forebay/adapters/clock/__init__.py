"""The event loop's clock in world seconds, and random ids: the only places that read real time and real chance."""

import secrets
import time

from forebay.ports import EventLoopClock


class LoopClock(EventLoopClock):
    """The wall starts at the real one, and runs ``speed`` times as fast."""

    def __init__(self, speed: float = 1.0, wall_at_start_s: float | None = None) -> None:
        super().__init__(speed, time.time() if wall_at_start_s is None else wall_at_start_s)


class MeasuringClock(LoopClock):
    """The same world seconds, read anew at each call: uvloop's own time has whole milliseconds and stands still
    within one turn of the loop, which hides exactly the lateness that a load generator must see in itself."""

    def __init__(self, speed: float = 1.0, wall_at_start_s: float | None = None) -> None:
        super().__init__(speed, wall_at_start_s)
        self.now_s = self._measured_s

    def _measured_s(self) -> float:
        """Every real loop's time is ``time.monotonic``."""
        return time.monotonic() * self.speed


class RandomIds:
    """Ids that nobody has had before, by chance of 2⁻⁹⁶."""

    def fresh(self, prefix: str) -> str:
        """``prefix`` and 24 hexadecimal digits."""
        return f"{prefix}-{secrets.token_hex(12)}"
