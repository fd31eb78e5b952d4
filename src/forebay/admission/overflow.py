"""Where a request goes that its own pool can't start in time: first the smaller sibling, then somebody else's engines, then 429.

Each way out is a rung with hysteresis: it opens when requests wait longer than ``after_s``, and closes again once for
``calm_s`` none has waited half as long. While it is open, requests that would have to wait take it at once; a pool that
flaps between the two would give every other client another model. What others' engines cost is bounded by the hour:
each request reserves what it may cost at most before it is sent, and is settled with what it did cost.
"""

from collections import deque
from collections.abc import Iterable

CALM_S = 60.0
"""Long against the minute that a burst takes, short against the hour that a rung would be paid for."""
BACK_SHARE = 0.5
HOLD_OFF_S = 15.0
HOUR_S = 3600.0
WINDOW_PARTS = 60
"""The hour slides minute by minute."""


class Rung:
    """One way out of a pool. Times are world seconds and never go backwards."""

    __slots__ = ("_held_until_s", "_open_until_s", "after_s", "calm_s", "opened_total")

    def __init__(self, after_s: float, calm_s: float = CALM_S) -> None:
        self.after_s = after_s
        self.calm_s = calm_s
        self.opened_total = 0
        self._open_until_s = self._held_until_s = float("-inf")

    def stands(self, now_s: float) -> bool:
        """Whether it was opened, and the calm that closes it has not passed."""
        return now_s < self._open_until_s

    def is_open(self, now_s: float) -> bool:
        """Whether requests that would have to wait leave at once."""
        return self._held_until_s <= now_s < self._open_until_s

    def hold_off(self, now_s: float) -> None:
        """What it leads to failed: nobody goes there for a while."""
        self._held_until_s = now_s + HOLD_OFF_S

    def waited(self, wait_s: float, now_s: float) -> bool:
        """A request has waited so long, and waits on or was just started; returns whether the rung is open then."""
        if wait_s >= self.after_s:
            self.refused(now_s)
        elif now_s < self._open_until_s and wait_s >= self.after_s * BACK_SHARE:
            self._open_until_s = now_s + self.calm_s
        return self.is_open(now_s)

    def refused(self, now_s: float) -> None:
        """A request was about to be refused because others were in its way: as good as waited too long."""
        if now_s >= self._open_until_s:
            self.opened_total += 1
        self._open_until_s = now_s + self.calm_s


class Budget:
    """US dollars an hour. What is reserved counts until it is settled, so that the bound holds even if everything costs its most."""

    __slots__ = ("_reserved_usd", "_spent", "_spent_usd", "usd_per_hour")

    def __init__(self, usd_per_hour: float) -> None:
        self.usd_per_hour = usd_per_hour
        self._reserved_usd = 0.0
        self._spent: deque[tuple[int, float]] = deque()
        """``(minute, US dollars)``, one a minute."""
        self._spent_usd = 0.0

    def reserve(self, usd: float, now_s: float) -> bool:
        """Set ``usd`` aside, if the last hour leaves as much."""
        if self.used_usd(now_s) + usd > self.usd_per_hour:
            return False
        self._reserved_usd += usd
        return True

    def settle(self, reserved_usd: float, cost_usd: float, now_s: float) -> None:
        """What was reserved cost this much in the end."""
        self._reserved_usd = max(0.0, self._reserved_usd - reserved_usd)
        minute = int(now_s // (HOUR_S / WINDOW_PARTS))
        if self._spent and self._spent[-1][0] == minute:
            self._spent[-1] = (minute, self._spent[-1][1] + cost_usd)
        else:
            self._spent.append((minute, cost_usd))
        self._spent_usd += cost_usd

    def kept(self, now_s: float) -> list[tuple[float, float]]:
        """What must not be forgotten: (seconds ago, US dollars) of the last hour. What is reserved may be spent by the time it is read."""
        used_usd = self.used_usd(now_s)
        # As of each minute's end: another process's minutes begin elsewhere, and may let go of nothing sooner than this one.
        spent = [(max(0.0, now_s - (minute + 1) * (HOUR_S / WINDOW_PARTS)), usd) for minute, usd in self._spent]
        return [*spent, (0.0, self._reserved_usd)] if used_usd else []

    def restore(self, kept: Iterable[tuple[float, float]], now_s: float) -> None:
        """Count what another process kept, before anything is spent here."""
        for ago_s, usd in sorted(kept, reverse=True):
            self.settle(0.0, usd, now_s - max(0.0, ago_s))

    def used_usd(self, now_s: float) -> float:
        """Spent within the last hour, and reserved now."""
        oldest = int(now_s // (HOUR_S / WINDOW_PARTS)) - WINDOW_PARTS
        while self._spent and self._spent[0][0] <= oldest:
            self._spent_usd -= self._spent.popleft()[1]
        if not self._spent:
            self._spent_usd = 0.0
        return self._spent_usd + self._reserved_usd
