"""The fair price of a miss: the one at which, over calm and restless hours alike, just the allowed share is expected to miss.

One price for all hours holds most where most is saved for it; were each hour to keep the promise by itself, calm ones would pay for
nothing and restless ones beyond measure. What would miss at each of some prices is therefore averaged over days, each minute by
its requests, as the outcomes so far foretell it, and the price is read off where that meets the allowed share. It is a
foresight: what really misses corrects it, slowly (`scaling.sustained`).
"""

import math

import numpy as np

from forebay.scaling.economics import HEADROOMS, STEEPNESS
from forebay.scaling.spread import Values

MULTIPLES: Values = np.exp(np.linspace(np.log(0.5), np.log(32.0), 13))
"""Of the default price."""
_LOGARITHMS: Values = np.log(MULTIPLES)
AVERAGED_MINUTES = 2880.0


def averaged(data: bytes, late: Values, came: float, allowed: float, demand: float) -> bytes:
    """``data`` after one more minute.

    ``late``: the share of the expected demand that would miss, by what is held (`economics.late`); ``came``: what is expected to come,
    of the same; ``demand``: requests per second of this minute, which is its weight.
    """
    prices = MULTIPLES / (STEEPNESS * allowed)
    held = (prices[:, None] * late + HEADROOMS).argmin(axis=1)
    now, before = np.zeros(len(MULTIPLES) + 2, "<f8"), _unpacked(data)
    now[:-2], now[-2] = late[held], came
    now *= demand
    minutes = min(AVERAGED_MINUTES, (0.0 if before is None else float(before[-1])) + 1.0)
    if before is not None:
        now = before + (now - before) / minutes
    now[-1] = minutes
    return now.tobytes()


def price(data: bytes, allowed: float, aim: float) -> float:
    """What the default price is to be multiplied with so that ``aim`` of the allowed share misses; 1 where nothing is known."""
    found = _unpacked(data)
    if found is None or not found[-2] > 0:
        return 1.0
    falling = -np.log(np.maximum(found[:-2] / found[-2], 1e-12))
    return math.exp(np.interp(-math.log(aim * allowed), falling, _LOGARITHMS))


def _unpacked(data: bytes) -> Values | None:
    values = np.frombuffer(data, "<f8") if len(data) == 8 * (len(MULTIPLES) + 2) else np.full(1, np.nan)
    return values if values.min() >= 0 and values.max() < math.inf else None
