"""What came to each pool in the last four weeks, in buckets of five minutes: kept through the Store, shown to the policy.

A bucket is the integral of the rates that gateways tell over the time for which they are known. Where too little of it is
known, by a silent gateway or an absent controller, there is no bucket: an outage is no idle time.
"""

import math
from collections.abc import Iterable

import msgspec
import numpy as np

from forebay.controller.gateways import RATE_WINDOW_S
from forebay.controller.remembered import remembered
from forebay.domain.scaling import History
from forebay.domain.signal import Known, Signal
from forebay.ports import DEMAND_BUCKETS_MAX, DemandBucket, Store

BUCKET_S = 300.0
KNOWN_MIN = 0.8
"""Part of a bucket that must be known; the rest is taken to have been like it."""
SAVE_EVERY_S = 30.0
"""A restart forgets so much of the bucket that is not over."""


class Filling(msgspec.Struct, frozen=True):
    """A bucket that is not over: sums of rates over the ``known_s`` for which they are known."""

    start_wall_s: float
    known_s: float = 0.0
    requests: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0


class Demand:
    """Past demand by pool. Times are the wall's: history is about Mondays and mornings."""

    def __init__(self, store: Store, pools: Iterable[str]) -> None:
        self._pools = {pool: _PoolDemand(store, pool) for pool in pools}

    def take(self, pool: str, rates: tuple[Signal, Signal, Signal], now_s: float, wall_s: float) -> None:
        """Note the present rates per second of requests, prompt tokens and output tokens, net of preemptible tiers."""
        self._pools[pool].take(rates, now_s, wall_s)

    def history(self, pool: str) -> History | None:
        """Up to the end of the last whole bucket; None where nothing is known of the last four weeks."""
        return self._pools[pool].history


class _PoolDemand:
    def __init__(self, store: Store, pool: str) -> None:
        self._store = store
        self._pool = pool
        self._filling: Filling | None = None
        self._taken_s = 0.0
        self._saved_s = 0.0
        self._kept: list[DemandBucket] = []
        """The buckets of the last weeks, by time: at most DEMAND_BUCKETS_MAX."""
        self.history: History | None = None

    def take(self, rates: tuple[Signal, Signal, Signal], now_s: float, wall_s: float) -> None:
        start_wall_s = math.floor(wall_s / BUCKET_S) * BUCKET_S
        elapsed_s, self._taken_s = now_s - self._taken_s, now_s
        if self._filling is None:
            self._filling, elapsed_s = remembered(self._store, self._key, Filling) or Filling(start_wall_s), 0.0
            self._look_back(start_wall_s)
        if self._filling.start_wall_s != start_wall_s:
            self._over(self._filling)
            self._look_back(start_wall_s)
            self._filling = Filling(start_wall_s)
            self._saved_s = -math.inf
        known = [signal.value for signal in rates if isinstance(signal, Known)]
        if len(known) == len(rates) and elapsed_s > 0:
            self._filling = _filled(self._filling, known, min(elapsed_s, RATE_WINDOW_S))
        if not 0 <= now_s - self._saved_s < SAVE_EVERY_S:
            self._saved_s = now_s
            self._store.put(self._key, msgspec.json.encode(self._filling))

    @property
    def _key(self) -> str:
        return f"demand_now/{self._pool}"

    def _over(self, filling: Filling) -> None:
        # One that a controller kept just before it crashed comes back as its last note, which is not whole.
        kept_already = bool(self._kept) and self._kept[-1].start_wall_s >= filling.start_wall_s
        if filling.known_s < KNOWN_MIN * BUCKET_S or kept_already:
            return
        scale = BUCKET_S / filling.known_s
        sums = (filling.requests, filling.prompt_tokens, filling.output_tokens)
        requests, prompt, output = (scale * total for total in sums)
        bucket = DemandBucket(filling.start_wall_s, BUCKET_S, requests, prompt, output)
        self._store.append_demand(self._pool, bucket)
        self._kept.append(bucket)

    def _look_back(self, end_wall_s: float) -> None:
        """History is what is kept of the weeks before ``end_wall_s``; the Store says it at first, and where the clock was set back."""
        since_wall_s = end_wall_s - DEMAND_BUCKETS_MAX * BUCKET_S
        if not self._kept or self._kept[-1].start_wall_s >= end_wall_s:
            stored = self._store.demand(self._pool, since_wall_s, end_wall_s)
            self._kept = [bucket for bucket in stored if bucket.bucket_s == BUCKET_S]
        self._kept = [bucket for bucket in self._kept if bucket.start_wall_s >= since_wall_s]
        self.history = laid_out(self._kept, end_wall_s)


def laid_out(buckets: list[DemandBucket], end_wall_s: float) -> History | None:
    """``buckets`` (of one width, by time) as columns up to ``end_wall_s``, what is missing between them not known; None for none."""
    if not buckets:
        return None
    start_wall_s, bucket_s = buckets[0].start_wall_s, buckets[0].bucket_s
    columns = np.full((3, round((end_wall_s - start_wall_s) / bucket_s)), math.nan, "<f4")
    places = [round((bucket.start_wall_s - start_wall_s) / bucket_s) for bucket in buckets]
    columns[:, places] = np.array([(bucket.requests, bucket.prompt_tokens, bucket.output_tokens) for bucket in buckets]).T
    return History(start_wall_s, bucket_s, *(column.tobytes() for column in columns))


def _filled(filling: Filling, rates: list[float], seconds: float) -> Filling:
    requests, prompt, output = rates
    return Filling(
        filling.start_wall_s,
        filling.known_s + seconds,
        filling.requests + seconds * requests,
        filling.prompt_tokens + seconds * prompt,
        filling.output_tokens + seconds * output,
    )
