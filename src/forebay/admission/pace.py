"""How fast a lane drains: tokens dispatched per second, measured only while the lane is backlogged.

Without a backlog a lane passes on what arrives, which says nothing about what it could: so the clock of this average
stands still then. It is an average over seconds of ``now_s``, never over calls, and Unknown until it has seen enough.
"""

import math

from forebay.domain.signal import Known, Signal, Unknown

PACE_TAU_S = 30.0
"""Time constant: what happened this long ago counts 1/e."""
PACE_BUSY_S_MIN = 5.0
PACE_DISPATCHES_MIN = 4.0
"""Fewer dispatches than this in the window are chance, not a pace."""
PACE_AGE_S_MAX = 300.0
"""A pace measured longer ago is of another fleet."""


class Pace:
    """``move`` it to each instant at which the lane changes, with whether it was backlogged until then."""

    __slots__ = ("_busy_s", "_now_s", "busy_until_s", "dispatches", "tokens")

    def __init__(self) -> None:
        self._now_s = -math.inf
        self.busy_until_s = -math.inf
        """When it was last moved and backlogged: to move it to this very time changes nothing."""
        self.tokens = 0.0
        """Dispatched, and how often; whoever dispatches adds to both, at the instant last moved to."""
        self.dispatches = 0.0
        self._busy_s = 0.0

    def move(self, now_s: float, backlogged: bool) -> None:
        """Time has passed until ``now_s``, during all of which the lane was ``backlogged`` or not."""
        if backlogged:
            passed_s = now_s - self._now_s
            if passed_s > 0:
                kept = math.exp(-passed_s / PACE_TAU_S)
                self.tokens *= kept
                self.dispatches *= kept
                self._busy_s = self._busy_s * kept + PACE_TAU_S * (1 - kept)
            self.busy_until_s = now_s
        elif now_s - self.busy_until_s > PACE_AGE_S_MAX:
            self.tokens = self.dispatches = self._busy_s = 0.0
        self._now_s = now_s

    def per_s(self, now_s: float, backlogged: bool) -> float:
        """The pace as of ``now_s`` in tokens per second; 0: there is none."""
        if self.busy_until_s != now_s:
            self.move(now_s, backlogged)
        if self._busy_s < PACE_BUSY_S_MIN or self.dispatches < PACE_DISPATCHES_MIN or self.tokens <= 0:
            return 0.0
        return self.tokens / self._busy_s

    def tokens_per_s(self, now_s: float, backlogged: bool) -> Signal:
        """The same, or why there is none."""
        per_s = self.per_s(now_s, backlogged)
        return Known(per_s, now_s) if per_s else Unknown("never")
