"""The fair price of a miss: the one at which, over calm and restless hours alike, just the allowed share is expected to miss.

One price for all hours holds most where most is saved for it; were each hour to keep the promise by itself, calm ones would pay for
nothing and restless ones beyond measure. What would miss at each of some prices is therefore averaged over days, each minute by
its requests, as the outcomes so far foretell it, and the price is read off where that meets the allowed share. It is a
foresight: what really misses corrects it, slowly (`scaling.sustained`).
"""

import math
from bisect import bisect_right
from functools import lru_cache
from struct import Struct

import numpy as np

from forebay.scaling.economics import ALLOWED_KEPT_MAX, HEADROOMS, STEEPNESS
from forebay.scaling.spread import Values

MULTIPLES: Values = np.exp(np.linspace(np.log(0.5), np.log(32.0), 13))
"""Of the default price."""
_LOGARITHMS: list[float] = np.log(MULTIPLES).tolist()
_LAYOUT = Struct(f"<{len(MULTIPLES) + 2}d")
AVERAGED_MINUTES = 2880.0


def averaged(data: bytes, late: Values, came: float, allowed: float, demand: float) -> bytes:
    """``data`` after one more minute.

    ``late``: the share of the expected demand that would miss, by what is held (`economics.late`); ``came``: what is expected to come,
    of the same; ``demand``: requests per second of this minute, which is its weight.
    """
    held = (_prices(allowed) * late + HEADROOMS).argmin(axis=1)
    now, before = [*late[held].tolist(), came], _unpacked(data)
    if before is None:
        return _LAYOUT.pack(*[each * demand for each in now], 1.0)
    minutes = min(AVERAGED_MINUTES, before[-1] + 1.0)
    return _LAYOUT.pack(*[then + (each * demand - then) / minutes for each, then in zip(now, before, strict=False)], minutes)


def price(data: bytes, allowed: float, aim: float) -> float:
    """What the default price is to be multiplied with so that ``aim`` of the allowed share misses; 1 where nothing is known."""
    found = _unpacked(data)
    if found is None or not found[-2] > 0:
        return 1.0
    falling = (-np.log(np.maximum(np.array(found[:-2]) / found[-2], 1e-12))).tolist()
    return math.exp(_between(-math.log(aim * allowed), falling))


def _between(at: float, falling: list[float]) -> float:
    """The logarithm of MULTIPLES that stands where ``at`` does in ``falling``, which rises: `numpy.interp`, which takes longer for one."""
    place = bisect_right(falling, at)
    if place == 0 or place == len(falling):
        return _LOGARITHMS[0 if place == 0 else -1]
    left, right = falling[place - 1], falling[place]
    slope = (_LOGARITHMS[place] - _LOGARITHMS[place - 1]) / (right - left)
    return slope * (at - left) + _LOGARITHMS[place - 1]


@lru_cache(maxsize=ALLOWED_KEPT_MAX)
def _prices(allowed: float) -> Values:
    """Of a miss, each of MULTIPLES of the default one: a column."""
    return np.asarray((MULTIPLES / (STEEPNESS * allowed))[:, None])


def _unpacked(data: bytes) -> tuple[float, ...] | None:
    """What would miss at each of MULTIPLES, what is expected to come, minutes."""
    values = _LAYOUT.unpack(data) if len(data) == _LAYOUT.size else (math.nan,)
    return values if all(map(math.isfinite, values)) and min(values) >= 0 else None
