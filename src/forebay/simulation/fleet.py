"""The fleet as its driver sees it: a Protocol with two implementations, the fast one here and the plain one that judges it in the tests.

The driver owns time between decisions, the life of replicas and all that is counted in hours; a fleet owns requests: arrivals,
lanes, dispatch, engines, tokens. Rows are small integers, reused after a stop.

Order within one instant: ends of engine steps (by row), then expiries of lanes, then arrivals, then the driver's calls. What
frees room is followed by dispatch at the same instant.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from forebay.domain.roster import Posture
from forebay.simulation.values import ReplicaReadings, TierResult, TierTotals


class SimulatedFleet(Protocol):
    """Requests and engines of one pool. Times never go backwards."""

    @property
    def now_s(self) -> float:
        """How far the world has been played."""
        ...

    @property
    def exhausted(self) -> bool:
        """Whether the trace has ended and nothing is in flight or waiting."""
        ...

    def run_until(self, at_s: float) -> None:
        """Play everything up to and including ``at_s``. Raises BadInput naming the row where arrivals are ill or out of order."""
        ...

    def add(self, warm: bool = False) -> int:
        """A replica is ready now; returns its row. ``warm``: it has its warm-up behind it. Raises ValueError beyond ``replicas_max``."""
        ...

    def drain(self, row: int) -> None:
        """Nothing new goes to ``row``; what runs there goes on."""
        ...

    def cancel_drain(self, row: int) -> None:
        """``row`` takes requests again."""
        ...

    def set_posture(self, posture: Posture) -> None:
        """What the front queue does from now on with an arrival that can't start at once; what waits already goes on waiting."""
        ...

    def idle(self, row: int) -> bool:
        """Whether nothing is in flight on ``row``."""
        ...

    def stop(self, row: int) -> int:
        """``row`` is gone (drained, stopped at its deadline, or crashed): answers after their first token are cut, others go
        back to the head of their lane (engine queueing: to another replica, or wait). Returns how many were cut."""
        ...

    def read(self, row: int, net: bool = False) -> ReplicaReadings:
        """What a scrape of ``row`` shows now; ``net``: waiting, running and KV without the preemptible tiers."""
        ...

    def totals(self, tier: int) -> TierTotals:
        """Counters and gauges of one tier."""
        ...

    def waiting_since_s(self, tier: int) -> npt.NDArray[np.float64]:
        """When each request of one tier arrived that waits in a lane now, in no order."""
        ...

    def recent_quantile_s(self, what: str, quantile: float) -> float:
        """Of ``ttft`` or ``tpot`` since the last call of `forget_recent`, over tiers that aren't preemptible; NaN where there was none."""
        ...

    def forget_recent(self) -> None:
        """Begin a new window for `recent_quantile_s`."""
        ...

    def results(self, tier: int) -> TierResult:
        """Totals, attainments and quantiles of one tier over the whole run."""
        ...

    def check(self) -> None:
        """Assert the invariants: nothing lost, nothing doubled, limits held."""
        ...
