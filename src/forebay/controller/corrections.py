"""What each replica's KV budget is corrected by (`admission.reconcile`), from its engine's page and what gateways have booked there.

A replica that is new begins with what its pool has come to, and so does a controller that was restarted.
"""

from collections.abc import Mapping

import msgspec

from forebay.admission.reconcile import Correction
from forebay.controller.gateways import GatewayBook
from forebay.controller.remembered import remembered
from forebay.controller.ward import Ward
from forebay.domain.replica import ReplicaState
from forebay.domain.roster import Capacity
from forebay.ports import EngineSignals, Store


class SavedRatio(msgspec.Struct, frozen=True):
    """What a restart must not forget."""

    ratio: float


class Corrections:
    """One for each replica that serves; bounded by the replicas there are."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._of: dict[str, Correction] = {}
        self._ratios: dict[str, float] = {}
        """Of each pool, the mean of its replicas."""
        self.preemptions_total: dict[str, int] = {}
        """Of each pool."""

    def correction(self, replica: str) -> Correction | None:
        """The one of ``replica``; None: it doesn't serve."""
        return self._of.get(replica)

    def take(self, ward: Ward, capacities: Mapping[str, Capacity], book: GatewayBook, now_s: float) -> None:
        """The readings of this tick, for every replica of the roster; ``capacities``: their own, before correction."""
        pool = ward.pool.name
        found: list[Correction] = []
        for view in ward.views:
            capacity = capacities.get(view.id)
            if view.state is not ReplicaState.READY or capacity is None:
                continue
            correction = self._of.get(view.id)
            if correction is None:
                correction = self._of[view.id] = Correction(self._ratio(pool))
            before = correction.preemptions_total
            seen = ward.signals.get(view.id, EngineSignals())
            booked = book.booked(pool, view.id, now_s)
            correction.take(seen.kv_usage, seen.generated_tokens_total, seen.preemptions_total, booked, capacity.kv_tokens)
            self.preemptions_total[pool] = self.preemptions_total.get(pool, 0) + correction.preemptions_total - before
            found.append(correction)
        if found:
            self._ratios[pool] = sum(correction.ratio for correction in found) / len(found)

    def applied(self, replica: str, capacity: Capacity) -> Capacity:
        """``capacity`` with the KV tokens that may be booked."""
        correction = self._of.get(replica)
        kv_tokens = capacity.kv_tokens if correction is None else correction.budget_tokens(capacity.kv_tokens)
        if kv_tokens == capacity.kv_tokens:
            return capacity
        return msgspec.structs.replace(capacity, kv_tokens=kv_tokens, kv_tokens_alone=capacity.kv_tokens)

    def forget(self, present: set[str]) -> None:
        """Drop what is remembered of replicas that are no more."""
        self._of = {name: correction for name, correction in self._of.items() if name in present}

    def save(self) -> None:
        """Keep what the pools have come to."""
        for pool, ratio in self._ratios.items():
            self._store.put(_key(pool), msgspec.json.encode(SavedRatio(ratio)))

    def _ratio(self, pool: str) -> float:
        if pool not in self._ratios:
            saved = remembered(self._store, _key(pool), SavedRatio)
            self._ratios[pool] = 1.0 if saved is None else saved.ratio
        return self._ratios[pool]


def _key(pool: str) -> str:
    return f"kv_ratio/{pool}"
