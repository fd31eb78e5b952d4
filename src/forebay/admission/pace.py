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

    __slots__ = ("_busy_s", "_busy_until_s", "_dispatches", "_now_s", "_tokens")

    def __init__(self) -> None:
        self._now_s = -math.inf
        self._busy_until_s = -math.inf
        self._tokens = 0.0
        self._dispatches = 0.0
        self._busy_s = 0.0

    def move(self, now_s: float, backlogged: bool) -> None:
        """Time has passed until ``now_s``, during all of which the lane was ``backlogged`` or not."""
        if backlogged:
            passed_s = now_s - self._now_s
            if passed_s > 0:
                kept = math.exp(-passed_s / PACE_TAU_S)
                self._tokens *= kept
                self._dispatches *= kept
                self._busy_s = self._busy_s * kept + PACE_TAU_S * (1 - kept)
            self._busy_until_s = now_s
        elif now_s - self._busy_until_s > PACE_AGE_S_MAX:
            self._tokens = self._dispatches = self._busy_s = 0.0
        self._now_s = now_s

    def dispatched(self, tokens: int) -> None:
        """A request of so many ``tokens`` left the lane, at the instant last moved to."""
        self._tokens += tokens
        self._dispatches += 1

    def tokens_per_s(self, now_s: float, backlogged: bool) -> Signal:
        """The pace as of ``now_s``, or why there is none."""
        self.move(now_s, backlogged)
        if self._busy_s < PACE_BUSY_S_MIN or self._dispatches < PACE_DISPATCHES_MIN or self._tokens <= 0:
            return Unknown("never")
        return Known(self._tokens / self._busy_s, now_s)
