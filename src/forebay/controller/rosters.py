"""The roster: which replicas gateways may use right now, and when more are expected. Versions count changes."""

from collections.abc import Callable, Iterable
from math import ceil

import msgspec

from forebay.controller.corrections import Corrections
from forebay.controller.ward import Ward
from forebay.domain.replica import ReplicaState
from forebay.domain.roster import Capacity, Roster, RosterPool, RosterReplica
from forebay.domain.signal import Known
from forebay.ports import EngineSignals
from forebay.spec.types import Pool

READY_IN_STEP_S = 5.0
"""Remaining cold starts are told in steps of this, so that a roster is not a new one each second."""

CapacityOf = Callable[[Pool, EngineSignals], Capacity]


class Rosters:
    """Makes rosters under one leader's term; the newest is ``current``."""

    def __init__(
        self, term: int, lease_s: float, capacity_of: CapacityOf, corrections: Corrections, holder: Callable[[str], str] | None = None
    ) -> None:
        """``holder``: the gateway that a replica is leased to; None: there are no leases."""
        self.current = Roster(term, 0, lease_s, (), leased=holder is not None)
        self._holder = holder
        self._outbid = False
        self._capacity_of = capacity_of
        self._corrections = corrections
        self.capacities: dict[str, Capacity] = {}
        """Of each replica listed, before correction."""

    def make(self, wards: Iterable[Ward], leaving: frozenset[str], now_s: float) -> bool:
        """Bring ``current`` up to date; True if it changed and must be published."""
        pools = tuple(self._pool(ward, leaving, now_s) for ward in wards)
        if self.current.version and pools == self.current.pools and not self._outbid:
            return False
        self._outbid = False
        self.current = msgspec.structs.replace(self.current, version=self.current.version + 1, pools=pools)
        return True

    def outbid(self, term: int) -> None:
        """Lead by a later term than ``term``, by which some gateway routes: it takes no roster of an earlier one."""
        self.current = msgspec.structs.replace(self.current, term=term + 1)
        self._outbid = True

    def _pool(self, ward: Ward, leaving: frozenset[str], now_s: float) -> RosterPool:
        replicas = tuple(
            RosterReplica(
                view.id,
                view.url,
                self._corrections.applied(view.id, self._capacity(ward, view.id)),
                "" if self._holder is None else self._holder(view.id),
            )
            for view in ward.views
            if view.state is ReplicaState.READY and view.id not in leaving
        )
        decision = ward.decision
        asking = sum(view.asks_key for view in ward.views)
        pool = RosterPool(ward.pool.name, replicas, next_ready_in_s=_next_ready_in_s(ward, now_s), asking=asking)
        return pool if decision is None else msgspec.structs.replace(pool, posture=decision.posture)

    def _capacity(self, ward: Ward, replica_id: str) -> Capacity:
        """Computed once a replica, and again only while an attached engine has not told its own."""
        known = self.capacities.get(replica_id)
        signals = ward.signals.get(replica_id, EngineSignals())
        if known is None or (ward.pool.profile is None and isinstance(signals.kv_tokens, Known)):
            known = self.capacities[replica_id] = self._capacity_of(ward.pool, signals)
        return known

    def forget(self, present: set[str]) -> None:
        """Drop what is remembered of replicas that are no more."""
        self.capacities = {name: capacity for name, capacity in self.capacities.items() if name in present}


def _next_ready_in_s(ward: Ward, now_s: float) -> float | None:
    if ward.observation is None:
        return None
    expected = [
        replica.expected_ready_s for replica in ward.observation.replicas if replica.expected_ready_s is not None and not replica.overdue
    ]
    if not expected:
        return None
    return max(1.0, ceil(max(0.0, min(expected) - now_s) / READY_IN_STEP_S) * READY_IN_STEP_S)
