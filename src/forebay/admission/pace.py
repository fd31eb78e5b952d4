"""How fast a lane drains: tokens dispatched per second and replica, measured only while the lane is backlogged and could be served.

Without a backlog a lane passes on what arrives, and without a replica nothing, neither of which says what it could: so the clock of
this average stands still then. It is an average over seconds of ``now_s``, never over calls, and Unknown until it has seen enough.

It is a pace for each replica, times those there are: a fleet that doubles drains twice as fast from that moment on, not half a minute
later. What a roster lets start at the instant it comes fills replicas that were empty, and is no pace.

Its tokens are those that were estimated at arrival, as are those of what waits, so that an error is on both sides. But an estimate
learns: where answers turned out eight times as long, what was started is known by the old one, and who comes by the new. So what ended
says how much more it took than was thought, and as far as what waits is estimated so, the pace is as much faster.
"""

import math
from typing import Final

from forebay.domain.signal import Known, Signal, Unknown

PACE_TAU_S = 30.0
"""Time constant: what happened this long ago counts 1/e."""
PACE_BUSY_S_MIN = 5.0
PACE_DISPATCHES_MIN = 4.0
"""Fewer dispatches than this in the window are chance, not a pace."""
PACE_DISPATCHES_MAX: Final = 64.0
"""As many tell a pace well: older ones weigh half, where what is left is still of `PACE_BUSY_S_MIN`, so that a fast lane follows soon."""
PACE_AGE_S_MAX = 300.0
"""A pace measured longer ago is of other requests."""
PACE_CALM_S: Final = 30.0
"""After a calm of so long a new backlog is like the last one by a guess, which what it does itself soon outweighs."""
PACE_ENDED_KEPT: Final = 31 / 32
"""What each request that ended leaves of the weight of those before it."""
PACE_QUIET: Final = 3.0
"""Where so many should have come and none has, it is no chance any more (5 %): those that came on time have ended coming."""


class Pace:
    """``move`` it to each instant at which the lane changes, with whether it was backlogged until then."""

    __slots__ = (
        "_busy_s",
        "_estimated",
        "_last",
        "_now_s",
        "_replica_s",
        "_took",
        "busy_until_s",
        "dispatches",
        "on_time",
        "replicas",
        "tokens",
    )

    def __init__(self, replicas: int = 1) -> None:
        self._now_s = -math.inf
        self.busy_until_s = -math.inf
        """When it was last moved and backlogged: to move it to this very time changes nothing."""
        self.tokens = 0.0
        """Dispatched, and how often; whoever dispatches adds to both, at the instant last moved to."""
        self.dispatches = 0.0
        self.on_time = 0.0
        """Of the tokens, those of requests that could still meet their TTFT."""
        self._busy_s = 0.0
        self._replica_s = 0.0
        """Seconds of replicas in that time."""
        self.replicas = replicas
        """That serve it; whoever sets another number has moved it to that instant."""
        self._last = replicas or 1
        """The same when there were some last."""
        self._estimated = self._took = 0.0
        """Tokens of those that ended lately: as estimated at arrival, and what they took."""

    def move(self, now_s: float, backlogged: bool) -> None:
        """Time has passed until ``now_s``, during all of which the lane was ``backlogged`` or not."""
        if backlogged:
            passed_s = now_s - self._now_s
            replicas = self.replicas
            if passed_s > 0 and replicas:
                self._last = replicas
                kept = math.exp(-passed_s / PACE_TAU_S)
                if self.dispatches > PACE_DISPATCHES_MAX and self._busy_s > 2 * PACE_BUSY_S_MIN:
                    kept /= 2
                more_s = PACE_TAU_S * (1 - math.exp(-passed_s / PACE_TAU_S))
                self._keep(kept)
                self._busy_s += more_s
                self._replica_s += more_s * replicas
            self.busy_until_s = now_s
        elif now_s - self.busy_until_s > PACE_AGE_S_MAX:
            self._keep(0.0)
        self._now_s = now_s

    def begin(self, now_s: float) -> None:
        """A backlog begins: after a calm what was measured before weighs no more than it takes to be known."""
        calm_s = now_s - self.busy_until_s
        self.move(now_s, False)
        if calm_s > PACE_CALM_S:
            self.on_time = 0.0
        if calm_s > PACE_CALM_S and self._busy_s > PACE_BUSY_S_MIN and self.dispatches > PACE_DISPATCHES_MIN:
            self._keep(max(PACE_BUSY_S_MIN / self._busy_s, PACE_DISPATCHES_MIN / self.dispatches))

    def on_time_share(self, per_s: float, quiet_s: float) -> float:
        """Of a pace of ``per_s``, how much goes to those that come and are on time; 0 where for ``quiet_s`` suspiciously none came.

        They come as often as before, however many replicas there are now.
        """
        if self.tokens <= 0 or self._busy_s <= 0 or per_s <= 0:
            return 0.0
        each_s = self._busy_s / self.dispatches * self.tokens
        if self.on_time * quiet_s > PACE_QUIET * each_s:
            return 0.0
        return min(1.0, self.on_time / self._busy_s / per_s)

    def ended(self, estimated: int, took: int) -> None:
        """One that was started ended, and took so many tokens."""
        self._estimated = self._estimated * PACE_ENDED_KEPT + estimated
        self._took = self._took * PACE_ENDED_KEPT + took

    def outgrown(self, before: float, now: float) -> float:
        """Times by which a pace of requests of ``before`` tokens each is faster in those of what waits, of ``now`` each: what they took
        more than was estimated, as far as the estimate has followed. 1 where they took no more, however much larger those are that wait."""
        if now <= before or before <= 0 or self._took <= self._estimated:
            return 1.0
        return min(now / before, self._took / max(1.0, self._estimated))

    def _keep(self, kept: float) -> None:
        self.tokens *= kept
        self.dispatches *= kept
        self.on_time *= kept
        self._busy_s *= kept
        self._replica_s *= kept

    def per_s(self, now_s: float, backlogged: bool, each_tokens: float = 0.0) -> float:
        """The pace as of ``now_s`` in tokens per second; 0: there is none. Without a replica it is that of those there were.

        ``each_tokens``: of one that waits, in whose tokens the pace is then; 0: in those of what was started.
        """
        if self.busy_until_s != now_s:
            self.move(now_s, backlogged)
        if self._busy_s < PACE_BUSY_S_MIN or self.dispatches < PACE_DISPATCHES_MIN or self.tokens <= 0:
            return 0.0
        per_s = self.tokens / self._replica_s * (self.replicas or self._last)
        return per_s * self.outgrown(self.tokens / self.dispatches, each_tokens) if each_tokens else per_s

    def tokens_per_s(self, now_s: float, backlogged: bool, each_tokens: float = 0.0) -> Signal:
        """The same, or why there is none."""
        per_s = self.per_s(now_s, backlogged, each_tokens)
        return Known(per_s, now_s) if per_s else Unknown("never")
