"""Misses that no number of replicas prevents: prompts longer than a TTFT's worth of prefill, short answers that one prompt stalls.

Blamed on load they would buy replicas without end: fewer requests each, the same share missed, and more bought. What tells
them apart is a range of load. Each minute's share of misses goes to a bin of the use it was seen at; where the bins
span some range, ``floor + misses(use × factor)`` is fitted to them, and the floor is what stays however low the use.
"""

import math
from functools import lru_cache

import numpy as np

from forebay.scaling.economics import ALLOWED_KEPT_MAX, misses
from forebay.scaling.spread import Values

BINS = 14
LEAST_USE, WIDTH = 0.1, 0.1
"""Use of the profile's capacity at the SLO, uncorrected: bins from 0.1 to 1.5, the outer ones open."""
FADES_MINUTES = 90.0
"""An hour after the lengths have changed, most of what is remembered is of the new ones."""
SPAN_MIN = 1.2
"""Uses must differ by a fifth to tell a floor from a slope."""
WEIGHT_MIN = 2.0
"""Minutes' worth of requests in a bin that counts."""
PER_MINUTE = 0.3
_USES: Values = np.asarray(LEAST_USE + (np.arange(BINS) + 0.5) * WIDTH, np.float64)
_FLOORS: Values = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0])
_FACTORS: Values = np.exp(np.linspace(math.log(0.6), math.log(4.0), 40))
SHYNESS = 0.02
"""Of two floors that fit alike the lower is taken."""
LEFT_MIN = 0.25
"""Of the allowed share: so much may be missed for load even where the floor alone breaks the promise."""


def noted(bins: tuple[float, ...], use: float, weight: float, missed: float) -> tuple[float, ...]:
    """``bins`` (weights, then missed weights) after one more minute, in which requests of ``weight`` mean minutes came at ``use``."""
    kept = np.array(bins if len(bins) == 2 * BINS else (0.0,) * (2 * BINS)) * math.exp(-1 / FADES_MINUTES)
    place = min(BINS - 1, max(0, int((use - LEAST_USE) / WIDTH)))
    kept[place] += weight
    kept[BINS + place] += weight * missed
    return tuple(float(value) for value in kept)


def floor(before: float, bins: tuple[float, ...], allowed: float) -> float:
    """The floor, from the one ``before``: a share of requests. It stays where ``bins`` span too little to tell."""
    if len(bins) != 2 * BINS:
        return before
    weights, missed = np.array(bins[:BINS]), np.array(bins[BINS:])
    told = np.flatnonzero(weights >= WEIGHT_MIN)
    if not len(told):
        return before
    if _USES[told[-1]] < SPAN_MIN * _USES[told[0]]:
        return before
    shares = missed[told] / weights[told]
    believed = weights[told] / np.maximum(shares, allowed / 2)
    expected = _FLOORS[:, None, None] * allowed + _misses_by(allowed)[None, :, told]
    off = ((expected - shares) ** 2 * believed).sum(axis=2) / weights[told].sum()
    best = off.min(axis=1) / allowed + SHYNESS * _FLOORS
    return before + PER_MINUTE * (float(_FLOORS[int(np.argmin(best))]) * allowed - before)


@lru_cache(maxsize=ALLOWED_KEPT_MAX)
def _misses_by(allowed: float) -> Values:
    """Shape (factors, BINS): the share that load alone makes miss in each bin."""
    return misses(_USES * _FACTORS[:, None], allowed)


def of_load(missed: float, allowed: float, floor_share: float) -> tuple[float, float]:
    """The part of ``missed`` that load causes, and the part of ``allowed`` that is left for it."""
    return max(0.0, missed - floor_share), max(LEFT_MIN * allowed, allowed - floor_share)
