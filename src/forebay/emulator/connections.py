"""The open connections of one port, within a bound, and the idle ones' time: uvicorn closes them after five seconds.

That close is what makes a kept-alive connection go stale under a client's hands, so it is worth having. Its five
seconds are real ones: they belong to the network, not to the world that runs faster.
"""

from forebay.emulator.http import Connection
from forebay.ports import Clock, TimerHandle

CONNECTIONS_MAX = 20_000


class Connections:
    """Who is connected. One timer watches the longest idle connection."""

    def __init__(self, clock: Clock, keep_alive_real_s: float) -> None:
        self._clock = clock
        self._keep_alive_s = keep_alive_real_s * clock.speed
        self._open: dict[Connection, None] = {}
        self._idle_since_s: dict[Connection, float] = {}
        self._timer: TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, connection: Connection) -> bool:
        """Take it in; False past the bound."""
        if len(self._open) >= CONNECTIONS_MAX:
            return False
        self._open[connection] = None
        return True

    def closed(self, connection: Connection) -> None:
        """It is gone."""
        self._open.pop(connection, None)
        self._idle_since_s.pop(connection, None)

    def idle(self, connection: Connection, is_idle: bool) -> None:
        """It begins, or ends, to have nothing to do."""
        self._idle_since_s.pop(connection, None)
        if is_idle and connection in self._open:
            self._idle_since_s[connection] = self._clock.now_s()
            if self._timer is None:
                self._timer = self._clock.call_at(self._clock.now_s() + self._keep_alive_s, self._sweep)

    def close_idle(self) -> None:
        """Close those with nothing to do."""
        for connection in list(self._idle_since_s):
            connection.close()

    def abort(self) -> None:
        """Drop all, as the end of a process does."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self._open):
            connection.abort()

    def _sweep(self) -> None:
        self._timer = None
        now_s = self._clock.now_s()
        for connection, since_s in list(self._idle_since_s.items()):
            # The dict is in order of idleness. A millisecond of slack spares a timer for the clock's rounding.
            if since_s + self._keep_alive_s > now_s + 0.001:
                self._timer = self._clock.call_at(since_s + self._keep_alive_s, self._sweep)
                return
            del self._idle_since_s[connection]
            connection.close()
