"""Latencies in buckets whose bounds grow by a constant factor: a quantile is right to 1 %, two sketches add up, and memory is fixed.

The bucket of ``x`` ends at the first power of ``(1 + e) ÷ (1 - e)`` that is no less (DDSketch, Masson et al., VLDB 2019).
"""

import math

import numpy as np
import numpy.typing as npt

from forebay.simulation.kernel.compiling import kernel
from forebay.simulation.kernel.layout import World
from forebay.simulation.kernel.memory import bound_at, bucket_at, recent_at, share_at, sum_at, tier_at
from forebay.simulation.kernel.numbers import BUCKETS, ITL, KINDS, SKETCH_ERROR, SKETCH_LEAST_S, TPOT

_GROWTH = (1 + SKETCH_ERROR) / (1 - SKETCH_ERROR)
_PER_LOG = 1 / math.log(_GROWTH)
_SHIFT = -math.log(SKETCH_LEAST_S) * _PER_LOG


def bounds() -> npt.NDArray[np.float64]:
    """(BUCKETS,): the upper bound of each bucket, s; what is beyond the last is counted in the last."""
    return SKETCH_LEAST_S * _GROWTH ** np.arange(BUCKETS, dtype=np.float64)


def quantile_s(counts: npt.NDArray[np.int64], quantile: float) -> float:
    """The smallest value that at least ``quantile`` of all do not exceed, to `SKETCH_ERROR`; NaN for none."""
    upto = counts.cumsum()
    total = int(upto[-1])
    if not total:
        return math.nan
    bucket = int(upto.searchsorted(max(1, math.ceil(quantile * total))))
    if not bucket:
        return 0.0
    return float(SKETCH_LEAST_S * _GROWTH**bucket * (1 - SKETCH_ERROR))


@kernel
def bucket_of(x_s: float) -> int:
    """Where ``x_s`` is counted."""
    if x_s <= SKETCH_LEAST_S:
        return 0
    return min(math.ceil(math.log(x_s) * _PER_LOG + _SHIFT), BUCKETS - 1)


@kernel
def observe(fleet: World, tier: int, kind: int, x_s: float) -> None:
    """One latency of one request."""
    bucket = bucket_of(x_s)
    bucket_at(fleet, tier * KINDS + kind, bucket).count += 1
    seen = sum_at(fleet, tier * KINDS + kind)
    seen.total_s += x_s
    seen.most_s = max(seen.most_s, x_s)
    if kind <= TPOT and not tier_at(fleet, tier).preemptible:
        recent_at(fleet, kind, bucket).count += 1


@kernel
def _count(fleet: World, row: int, bucket: int, steps: int) -> None:
    for tier in range(fleet.tiers):
        bucket_at(fleet, tier * KINDS + ITL, bucket).count += steps * share_at(fleet, row, tier).count


@kernel
def observe_run(fleet: World, row: int, steps: int, first_s: float, growth_s: float, total_s: float) -> None:
    """``steps`` steps of ``first_s``, ``first_s + growth_s``, …, ``total_s`` in all: a token each for whoever decodes on ``row``."""
    last_s = first_s + growth_s * (steps - 1)
    for tier in range(fleet.tiers):
        decoding = share_at(fleet, row, tier).count
        if decoding:
            seen = sum_at(fleet, tier * KINDS + ITL)
            seen.total_s += decoding * total_s
            seen.most_s = max(seen.most_s, last_s)
    bucket, last = bucket_of(first_s), bucket_of(last_s)
    done = 0
    while bucket < last:
        # Steps up to the bucket's bound, of those not counted yet.
        upto = min(steps, max(done, int((bound_at(fleet, bucket).upto_s - first_s) / growth_s) + 1))
        _count(fleet, row, bucket, upto - done)
        done = upto
        bucket += 1
    _count(fleet, row, bucket, steps - done)
