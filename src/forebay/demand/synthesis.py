"""Made-up arrivals from a rate: gamma gaps on the axis of expected arrivals, bent to seconds, lengths and tiers drawn beside.

Streamed a chunk at a time. With a rate that itself varies by chance (`Intensity.noisy`) the process is doubly
stochastic: short bursts from the gaps, slower ones from the rate.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from forebay.demand.arrays import CHUNK_ROWS, Arrivals, ArrivalSource
from forebay.demand.intensity import Intensity
from forebay.demand.lengths import LengthSampler

NOISE_CELL_S = 60.0
"""Rates that were read off a picture are smoother than they were: noise is put back a minute at a time."""
WARM_UP = 10.0
"""Expected arrivals, times ``cv`` squared, that went before the beginning: a process that begins with an arrival begins with a burst."""
UNSAID = -1
"""The tier of a row that names none, until it is drawn."""


def times(intensity: Intensity, cv: float, chance: np.random.Generator) -> Iterator[npt.NDArray[np.float64]]:
    """Rising times in chunks of at most ``CHUNK_ROWS``; gaps have the coefficient of variation ``cv`` (1: Poisson, 0: a metronome).

    Raises ValueError for a ``cv`` that is none.
    """
    if not (math.isfinite(cv) and cv >= 0):
        raise ValueError(f"a coefficient of variation is 0 or more, not {cv}")
    cumulated = intensity.cumulated()
    total = float(cumulated[-1])
    passed, last_s = -WARM_UP * cv * cv, 0.0
    while passed < total:
        due = passed + np.cumsum(_gaps(min(CHUNK_ROWS, int(total - passed) + 64), cv, chance))
        passed = float(due[-1])
        due = due[slice(*np.searchsorted(due, (0.0, total)))]
        if len(due):
            at_s = np.maximum(intensity.times(due, cumulated), last_s)
            last_s = float(at_s[-1])
            yield at_s


def _gaps(count: int, cv: float, chance: np.random.Generator) -> npt.NDArray[np.float64]:
    if cv == 0:
        return np.ones(count)
    if cv == 1:
        return chance.standard_exponential(count)
    shape = 1.0 / (cv * cv)
    return chance.standard_gamma(shape, count) / shape


def requests(at_s: Iterator[npt.NDArray[np.float64]], lengths: LengthSampler, chance: np.random.Generator) -> ArrivalSource:
    """Rows at these times with lengths drawn; their tier is unsaid, and they share no prefix."""
    for chunk_s in at_s:
        prompt, output = lengths.draw(len(chunk_s), chance)
        yield bare(chunk_s, prompt, output)


def bare(at_s: npt.NDArray[np.float64], prompt: npt.NDArray[np.int32], output: npt.NDArray[np.int32]) -> Arrivals:
    """A chunk without tiers and prefixes."""
    count = len(at_s)
    return Arrivals(at_s, prompt, output, np.full(count, UNSAID, np.int16), np.full(count, -1, np.int64), np.zeros(count, np.int32))


def tiered(source: ArrivalSource, weights: Sequence[float], chance: np.random.Generator) -> ArrivalSource:
    """Rows whose tier is unsaid get one, drawn in proportion to ``weights`` (one a tier); the others keep theirs.

    Raises ValueError for weights that are none.
    """
    upto = np.cumsum(np.array(weights, np.float64))
    if len(upto) == 0 or min(weights) < 0 or not 0 < upto[-1] < math.inf:
        raise ValueError(f"weights of tiers: found {list(weights)}, allowed: numbers of at least 0, not all 0")
    only = int(np.flatnonzero(weights)[0]) if np.count_nonzero(weights) == 1 else None
    for chunk in source:
        unsaid = np.flatnonzero(chunk.tier == UNSAID)
        if len(unsaid) == 0:
            yield chunk
            continue
        tier = chunk.tier.copy()
        if only is not None:
            tier[unsaid] = only
        else:
            drawn = np.searchsorted(upto, chance.random(len(unsaid)) * upto[-1], "right")
            tier[unsaid] = np.minimum(drawn, int(np.flatnonzero(weights)[-1]))
        yield chunk._replace(tier=tier)


def tier_weights(tiers: Sequence[str], weights: Mapping[str, float] | None) -> list[float]:
    """A weight for each of ``tiers``; without ``weights`` everything is of the first. Raises ValueError for a name that is no tier."""
    if not weights:
        return [1.0] + [0.0] * (len(tiers) - 1)
    unknown = [name for name in weights if name not in tiers]
    if unknown:
        raise ValueError(f"tier {unknown[0]!r} is none of {', '.join(tiers)}")
    return [float(weights.get(name, 0.0)) for name in tiers]
