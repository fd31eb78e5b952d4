"""What came to each pool in the last four weeks, in buckets of five minutes: kept through the Store, shown to the policy.

A bucket is what gateways counted in the time for which that is known. Where too little of it is known, by a silent gateway or an
absent controller, there is no bucket: an outage is no idle time. Tokens are estimates as a request comes; once it has ended, the bucket
in which it came is corrected to what it took, as the ledger has it.
"""

import math
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from forebay.controller.came import Triple
from forebay.controller.remembered import remembered
from forebay.domain.roster import CORRECTED_BUCKET_S, CORRECTED_BUCKETS_MAX
from forebay.domain.scaling import History
from forebay.ports import DEMAND_BUCKETS_MAX, DemandBucket, Store

BUCKET_S = float(CORRECTED_BUCKET_S)
GAP_S_MAX = 60.0
"""What came in a longer time in which nothing was told is not known to have come evenly: it is left out."""
KNOWN_MIN = 0.8
"""Part of a bucket that must be known; the rest is taken to have been like it."""
SAVE_EVERY_S = 30.0
"""A restart forgets so much of the bucket that is not over."""


class Filling(msgspec.Struct, frozen=True):
    """A bucket that is not over: what came in the ``known_s`` for which that is known."""

    start_wall_s: float
    known_s: float = 0.0
    requests: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0


class Demand:
    """Past demand by pool. Times are the wall's: history is about Mondays and mornings."""

    def __init__(self, store: Store, pools: Iterable[str]) -> None:
        self._pools = {pool: _PoolDemand(store, pool) for pool in pools}

    def take(self, pool: str, came: Triple | None, corrections: Mapping[int, tuple[int, int]], now_s: float, wall_s: float) -> None:
        """Note how much has come by now, net of preemptible tiers; None: that is not known at present.

        ``corrections``: prompt and output tokens by which what came in the bucket of that start is wrong.
        """
        self._pools[pool].take(came, corrections, now_s, wall_s)

    def save(self) -> None:
        """Note what a restart goes on from."""
        for each in self._pools.values():
            each.save()

    def history(self, pool: str) -> History | None:
        """Up to the end of the last whole bucket; None where nothing is known of the last four weeks."""
        return self._pools[pool].history


class _PoolDemand:
    def __init__(self, store: Store, pool: str) -> None:
        self._store = store
        self._pool = pool
        self._filling: Filling | None = None
        self._known: tuple[float, Triple] | None = None
        """When it was last known what had come, and that."""
        self._saved_s = 0.0
        self._kept: list[DemandBucket] = []
        """The buckets of the last weeks, by time: at most DEMAND_BUCKETS_MAX."""
        self._late: dict[int, tuple[float, float]] = {}
        """Corrections of buckets that are over, until they are kept."""
        self._scales: dict[float, float] = {}
        """By which buckets that may still be corrected were made whole: at most CORRECTED_BUCKETS_MAX."""
        self.history: History | None = None

    def take(self, came: Triple | None, corrections: Mapping[int, tuple[int, int]], now_s: float, wall_s: float) -> None:
        start_wall_s = math.floor(wall_s / BUCKET_S) * BUCKET_S
        if self._filling is None:
            self._filling = remembered(self._store, self._key, Filling) or Filling(start_wall_s)
            self._look_back(start_wall_s)
        if came is not None:
            if self._known is not None and 0 < now_s - self._known[0] <= GAP_S_MAX:
                self._filling = _filled(self._filling, self._known[1], came, now_s - self._known[0])
            self._known = (now_s, came)
        if self._filling.start_wall_s != start_wall_s:
            self._over(self._filling)
            self._correct_kept()
            self._look_back(start_wall_s)
            self._filling = Filling(start_wall_s)
            self._saved_s = -math.inf
        for start, (prompt, output) in corrections.items():
            if start == self._filling.start_wall_s:
                self._filling = _corrected_filling(self._filling, prompt, output)
            else:
                so_far = self._late.get(start, (0.0, 0.0))
                self._late[start] = (so_far[0] + prompt, so_far[1] + output)
        if not 0 <= now_s - self._saved_s < SAVE_EVERY_S:
            self._saved_s = now_s
            self.save()

    def save(self) -> None:
        if self._filling is not None:
            self._correct_kept()
            self._store.put(self._key, msgspec.json.encode(self._filling))

    def _correct_kept(self) -> None:
        """Put right the buckets that are over; one that was not kept needs it not."""
        late, self._late = self._late, {}
        if not late:
            return
        for place in range(max(0, len(self._kept) - CORRECTED_BUCKETS_MAX), len(self._kept)):
            bucket = self._kept[place]
            if bucket.start_wall_s in late:
                scale = self._scales.get(bucket.start_wall_s, 1.0)
                prompt, output = late[int(bucket.start_wall_s)]
                self._kept[place] = corrected = msgspec.structs.replace(
                    bucket,
                    prompt_tokens=max(0.0, bucket.prompt_tokens + scale * prompt),
                    output_tokens=max(0.0, bucket.output_tokens + scale * output),
                )
                self._store.append_demand(self._pool, corrected)

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
        requests, prompt, output = (scale * max(0.0, total) for total in sums)
        bucket = DemandBucket(filling.start_wall_s, BUCKET_S, requests, prompt, output)
        self._store.append_demand(self._pool, bucket)
        self._kept.append(bucket)
        if len(self._scales) >= CORRECTED_BUCKETS_MAX:
            del self._scales[min(self._scales)]
        self._scales[bucket.start_wall_s] = scale

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


def _filled(filling: Filling, before: Triple, came: Triple, seconds: float) -> Filling:
    requests, prompt, output = (now - then for then, now in zip(before, came, strict=True))
    return Filling(
        filling.start_wall_s,
        filling.known_s + seconds,
        filling.requests + requests,
        filling.prompt_tokens + prompt,
        filling.output_tokens + output,
    )


def _corrected_filling(filling: Filling, prompt: float, output: float) -> Filling:
    return msgspec.structs.replace(filling, prompt_tokens=filling.prompt_tokens + prompt, output_tokens=filling.output_tokens + output)
