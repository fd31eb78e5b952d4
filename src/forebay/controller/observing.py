"""From what ports returned to what a policy may look at: one Observation per pool, nothing guessed.

`simulation.sensing` tells a simulated fleet's the same way. Left Unknown here: percentiles (a gateway keeps no sketch of
the last minute, and no policy reads them) and what only the inside of an engine knows.
"""

from collections.abc import Mapping, Sequence

import msgspec

from forebay.controller.gateways import GatewayBook
from forebay.domain.replica import PENDING_STATES, ReplicaState, ReplicaView
from forebay.domain.scaling import History, Observation, ReplicaObservation
from forebay.domain.signal import Known, Signal, Unknown, fresh
from forebay.ports import EngineSignals

OVERDUE_FACTOR = 1.5
OVERDUE_S_MIN = 30.0
"""A start is late by so many seconds at least: of short starts, the larger part is how busy the machine is."""
SIGNAL_AGE_S_MAX = 15.0


class PoolFacts(msgspec.Struct, frozen=True):
    """What the controller knows of one pool besides readings."""

    pool: str
    desired: int
    memory: bytes
    kv_tokens: int | None
    cold_start_s: Signal
    assumed_cold_start_s: float
    past_ramps_per_s2: tuple[float, ...]
    history: History | None = None


def observation(
    facts: PoolFacts,
    views: Sequence[ReplicaView],
    signals: Mapping[str, EngineSignals],
    book: GatewayBook,
    now_s: float,
    wall_s: float,
) -> Observation:
    """One pool at one instant. ``views``: its replicas; ``signals`` by replica id."""
    pool = facts.pool
    cold_start_s = facts.cold_start_s.value if isinstance(facts.cold_start_s, Known) else facts.assumed_cold_start_s
    return Observation(
        pool=pool,
        now_s=now_s,
        wall_s=wall_s,
        desired=facts.desired,
        replicas=tuple(_replica(view, signals.get(view.id, EngineSignals()), facts, book, cold_start_s, now_s) for view in views),
        lanes_waiting=book.lanes_waiting(pool, now_s),
        arrival_per_s=book.rate(pool, "arrived", now_s),
        arrival_prompt_tokens_per_s=book.rate(pool, "arrived_prompt_tokens", now_s),
        arrival_output_tokens_per_s=book.rate(pool, "arrived_output_tokens", now_s),
        ttft_attainment=book.attainment(pool, now_s),
        running=book.running(pool, now_s),
        completed_per_s=book.rate(pool, "completed", now_s),
        completed_output_tokens_per_s=book.rate(pool, "completed_output_tokens", now_s),
        itl_attainment=book.attainment(pool, now_s, "itl"),
        cold_start_s=facts.cold_start_s,
        past_ramps_per_s2=facts.past_ramps_per_s2,
        history=facts.history,
        memory=facts.memory,
        preemptible_due=book.preemptible_due(pool, now_s),
        ttft_missed=book.ttft_missed(pool, now_s),
    )


def _replica(
    view: ReplicaView, signals: EngineSignals, facts: PoolFacts, book: GatewayBook, cold_start_s: float, now_s: float
) -> ReplicaObservation:
    live, preemptible = book.live_tokens(facts.pool, view.id)
    pending = view.state in PENDING_STATES
    # After a restart in place the first request says nothing of this attempt: its stages say when it began.
    begun_s = view.since_s - sum(stage.seconds for stage in view.stages) if view.restarts else view.requested_s
    expected_ready_s = begun_s + cold_start_s if pending else None
    return ReplicaObservation(
        id=view.id,
        state=view.state,
        since_s=view.since_s,
        requested_s=view.requested_s,
        waiting=_for_capacity(fresh(signals.waiting, now_s, SIGNAL_AGE_S_MAX), signals.deferred),
        running=fresh(signals.running, now_s, SIGNAL_AGE_S_MAX),
        kv_usage=_net_kv(fresh(signals.kv_usage, now_s, SIGNAL_AGE_S_MAX), preemptible, facts.kv_tokens),
        live_tokens=live,
        expected_ready_s=expected_ready_s,
        overdue=pending and now_s - begun_s > _late_s(cold_start_s, facts.assumed_cold_start_s),
    )


def _late_s(cold_start_s: float, assumed_s: float) -> float:
    """From when on a start is overdue: one quick start that was measured does not make the next, on a busy machine, late."""
    expected_s = max(cold_start_s, assumed_s)
    return max(OVERDUE_FACTOR * expected_s, expected_s + OVERDUE_S_MIN)


def _for_capacity(waiting: Signal, deferred: Signal) -> Signal:
    """What waits for a place. What waits for an adapter's turn or a transfer would wait on more replicas as well; untold, all counts."""
    if isinstance(waiting, Unknown) or isinstance(deferred, Unknown):
        return waiting
    return Known(max(0.0, waiting.value - deferred.value), waiting.at_s)


def _net_kv(usage: Signal, preemptible_tokens: float, kv_tokens: int | None) -> Signal:
    """KV usage without the part that backfilling work holds: that work is never a reason to scale."""
    if isinstance(usage, Unknown) or not kv_tokens:
        return usage
    return Known(max(0.0, usage.value - preemptible_tokens / kv_tokens), usage.at_s)


def ready_urls(views: Sequence[ReplicaView]) -> dict[str, str]:
    """Base URLs by id of the replicas that have a page to read."""
    return {view.id: view.url for view in views if view.state in {ReplicaState.READY, ReplicaState.DRAINING} and view.url}
