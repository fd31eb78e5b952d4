"""An observation made safe to compute with: each replica once, each number finite, and what isn't known said to be so.

What waits is summed over those that tell, so it is never more than the truth; KV is given twice, with the silent
replicas counted as empty (evidence for more) and as full (evidence for fewer).
"""

import math
from collections.abc import Sequence

import msgspec

from forebay.domain.replica import PENDING_STATES, ReplicaState
from forebay.domain.scaling import Observation, ReplicaObservation
from forebay.domain.signal import Known, Signal, Unknown
from forebay.scaling.capacity import REPLICAS_MAX
from forebay.spec.types import Scaling

SIGNAL_AGE_S_MAX = 60.0
"""An older reading is Unknown, whatever the driver thought of it; or five intervals, where those are longer."""
UNHEARD = frozenset({"no_gateway", "short"})
"""Why a signal of gateways is Unknown where none has spoken, or none for long."""


class Sight(msgspec.Struct, frozen=True):
    """What can be seen of one pool at one instant."""

    now_s: float
    desired: int
    ready: int
    pending: int
    """Starts that are in time: they count as supply."""
    overdue: int
    draining: int
    waiting: float
    """Requests known to wait: lanes and ready engines. More may wait where something is not known."""
    kv_least: float
    """Mean KV usage of the ready replicas, silent ones counted as empty."""
    kv_most: float
    """The same, silent ones counted as full."""
    silent: tuple[str, ...]
    """Ready replicas whose waiting or KV usage is not known."""
    missing: str
    """Why the load is not known, in words for people; empty where it is."""
    arrival_per_s: float | None
    tokens_per_s: tuple[float, float] | None
    attainment: float | None
    cold_start_s: float | None
    """Measured, to the whole second: noise must not turn 3 replicas into 4."""
    oldest_overdue_s: float | None
    """World time at which the oldest overdue start was asked for."""
    itl_attainment: float | None = None
    kv_middle: float = 0.0
    """KV usage of the replica in the middle (the lower of two), silent ones counted as empty: a few long contexts don't move it."""
    arriving_s: tuple[float, ...] = ()
    """Seconds until each start in time is expected to serve, soonest first; one that is late already, or that nobody dates, is left out."""

    in_engines: float = 0.0
    """Of ``waiting``, what waits inside ready engines, where no tier goes first."""
    failed: tuple[tuple[float, str], ...] = ()
    """World time since when each failed replica has been so, and its id; longest first."""
    late: float | None = None
    """First tokens that were late in the minutes of ``attainment``."""
    unheard: bool = False
    """No gateway has told yet how first tokens came: what is remembered of them is of another life."""

    @property
    def known(self) -> bool:
        """Whether enough is known to let replicas go."""
        return not self.missing

    @property
    def supply(self) -> int:
        """Replicas that serve or will in time."""
        return self.ready + self.pending


def look(observation: Observation, settings: Scaling) -> Sight:
    """``observation`` as a Sight. Its ``now_s`` must be finite."""
    now_s = observation.now_s
    age_s_max = max(SIGNAL_AGE_S_MAX, 5 * settings.interval_s)

    replicas = {replica.id: replica for replica in reversed(observation.replicas)}.values()
    serving = ReplicaState.READY
    ready = [replica for replica in replicas if replica.state is serving]
    others = [replica for replica in replicas if replica.state is not serving] if len(ready) < len(replicas) else []
    pending = [replica for replica in others if replica.state in PENDING_STATES]
    overdue = [replica for replica in pending if replica.overdue]
    waits = _values([replica.waiting for replica in ready], now_s, age_s_max)
    usages = _values([replica.kv_usage for replica in ready], now_s, age_s_max)
    told_waits, told_usages = [value for value in waits if value is not None], [value for value in usages if value is not None]
    silent: tuple[str, ...] = ()
    if min(len(told_waits), len(told_usages)) < len(ready):
        each = zip(ready, waits, usages, strict=True)
        silent = tuple(sorted(replica.id for replica, waiting, kv in each if waiting is None or kv is None))
    kv_sum = math.fsum(told_usages if max(told_usages, default=0.0) <= 1 else [min(kv, 1.0) for kv in told_usages])
    kv_silent, in_engines = len(ready) - len(told_usages), sum(told_waits)
    of_pool = (
        observation.lanes_waiting,
        observation.arrival_per_s,
        observation.arrival_prompt_tokens_per_s,
        observation.arrival_output_tokens_per_s,
        observation.ttft_attainment,
        observation.itl_attainment,
        observation.ttft_missed,
    )
    lanes, arrival, prompt, output, attainment, itl_attainment, late = _values(of_pool, now_s, age_s_max)
    cold = observation.cold_start_s.value if isinstance(observation.cold_start_s, Known) else math.nan
    measured_s = float(round(min(cold, 1e7))) if math.isfinite(cold) and cold >= 0 else None
    return Sight(
        now_s=now_s,
        desired=max(0, min(observation.desired, REPLICAS_MAX)),
        ready=len(ready),
        pending=len(pending) - len(overdue),
        overdue=len(overdue),
        draining=sum([replica.state is ReplicaState.DRAINING for replica in others]),
        waiting=min(1e12, (lanes or 0.0) + in_engines),
        kv_least=kv_sum / len(ready) if ready else 0.0,
        kv_most=(kv_sum + kv_silent) / len(ready) if ready else 0.0,
        silent=silent,
        missing=_missing(lanes, arrival, len(silent), len(ready), settings.in_known_fraction),
        arrival_per_s=arrival,
        tokens_per_s=(prompt, output) if prompt is not None and output is not None else None,
        attainment=attainment,
        cold_start_s=measured_s,
        oldest_overdue_s=_oldest(overdue) if overdue else None,
        itl_attainment=itl_attainment,
        kv_middle=_middle(told_usages, kv_silent),
        arriving_s=_arriving_s(pending, now_s) if pending else (),
        in_engines=min(1e12, in_engines),
        failed=_failed(others) if others else (),
        late=late,
        unheard=isinstance(missed := observation.ttft_missed, Unknown) and missed.why in UNHEARD,
    )


def _values(signals: Sequence[Signal], now_s: float, age_s_max: float) -> list[float | None]:
    """What each says; None where that isn't known, is too old or is no number from 0 on. `signal.reading` and `signal.fresh` in one,
    and all at once: this is asked of every replica at every look."""
    return [
        signal.value if isinstance(signal, Known) and not now_s - signal.at_s > age_s_max and 0 <= signal.value < math.inf else None
        for signal in signals
    ]


def _missing(lanes: float | None, arrival: float | None, silent: int, ready: int, fraction: float) -> str:
    if lanes is not None and arrival is not None and not silent:
        return ""
    reasons = []
    if lanes is None:
        reasons.append("what waits in the lanes")
    if arrival is None:
        reasons.append("the arrival rate")
    if ready and (ready - silent) / ready < fraction:
        reasons.append(f"the load of {silent} of {ready} ready replicas")
    return " and ".join(reasons)


def _middle(usages: list[float], silent: int) -> float:
    place = (len(usages) + silent - 1) // 2 - silent
    if place < 0:
        return 0.0
    middle = sorted(usages)[place]
    return middle if middle < 1.0 else 1.0


def _arriving_s(pending: list[ReplicaObservation], now_s: float) -> tuple[float, ...]:
    dated = [each.expected_ready_s - now_s for each in pending if each.expected_ready_s is not None and not each.overdue]
    return tuple(sorted(in_s for in_s in dated if 0 < in_s < math.inf))


def _oldest(overdue: list[ReplicaObservation]) -> float | None:
    return min((replica.requested_s for replica in overdue if math.isfinite(replica.requested_s)), default=None)


def _failed(others: list[ReplicaObservation]) -> tuple[tuple[float, str], ...]:
    failed = [replica for replica in others if replica.state is ReplicaState.FAILED and math.isfinite(replica.since_s)]
    return tuple(sorted((replica.since_s, replica.id) for replica in failed))
