"""Made-up arrivals with a declared rate: a renewal process in operational time, bent to the rate by inverting its integral.

Unit-mean gamma gaps with coefficient of variation ``cv`` (1 is Poisson, above it bursts, 0 a metronome) are laid on
the axis of *expected arrivals*; each is then found on the axis of seconds. The rate is taken as linear within steps of
``STEP_S``, which is exact for a piecewise-linear rate whose corners are whole steps.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from forebay.demand.trace import TraceRow

STEP_S = 1.0


def arrivals(rate_at: Callable[[float], float], until_s: float, chance: random.Random, cv: float = 1.0) -> Iterator[float]:
    """Times in seconds, rising, within ``[0, until_s)``; ``rate_at(t)`` is per second. Raises ValueError for a bad rate or ``cv``."""
    if not (math.isfinite(cv) and cv >= 0):
        raise ValueError(f"a coefficient of variation is 0 or more, not {cv}")
    due = _gap(chance, cv)
    passed = 0.0
    start_s, start_rate = 0.0, _checked(rate_at(0.0), 0.0)
    while start_s < until_s:
        end_s = min(start_s + STEP_S, until_s)
        end_rate = _checked(rate_at(end_s), end_s)
        expected = (start_rate + end_rate) / 2 * (end_s - start_s)
        while due < passed + expected:
            at_s = start_s + _inverse(due - passed, start_rate, end_rate, end_s - start_s)
            if at_s < until_s:
                yield at_s
            due += _gap(chance, cv)
        passed += expected
        start_s, start_rate = end_s, end_rate


def _checked(rate: float, at_s: float) -> float:
    if not (math.isfinite(rate) and rate >= 0):
        raise ValueError(f"the rate at {at_s} s is {rate}; a rate is finite and 0 or more")
    return rate


def _gap(chance: random.Random, cv: float) -> float:
    if cv == 0:
        return 1.0
    shape = 1.0 / (cv * cv)
    return chance.gammavariate(shape, 1.0 / shape)


def _inverse(area: float, start_rate: float, end_rate: float, width_s: float) -> float:
    """Where the integral of a rate that goes linearly over ``width_s`` reaches ``area``: the stable root of a quadratic."""
    slope = (end_rate - start_rate) / width_s
    root = math.sqrt(max(0.0, start_rate * start_rate + 2 * slope * area))
    denominator = start_rate + root
    return min(width_s, 2 * area / denominator) if denominator > 0 else width_s


def piecewise_linear(points: Sequence[tuple[float, float]]) -> Callable[[float], float]:
    """The rate through ``(seconds, per second)`` corners, level before the first and after the last.

    Raises ValueError unless the times rise.
    """
    times = [at_s for at_s, _ in points]
    if not times or any(later <= sooner for sooner, later in pairwise(times)):
        raise ValueError("the corners of a rate need rising times, and at least one of them")

    def rate_at(at_s: float) -> float:
        right = bisect_right(times, at_s)
        if right == 0:
            return points[0][1]
        if right == len(times):
            return points[-1][1]
        (left_s, left), (right_s, rate) = points[right - 1], points[right]
        return left + (rate - left) * (at_s - left_s) / (right_s - left_s)

    return rate_at


def sized(
    times: Iterable[float], prompt_tokens: float, output_tokens: float, chance: random.Random, cv: float = 0.0, tier: str = ""
) -> Iterator[TraceRow]:
    """Rows at ``times`` whose lengths have these means: fixed where ``cv`` is 0, else lognormal with that variation."""
    sigma = math.sqrt(math.log1p(cv * cv))
    for at_s in times:
        stretch = (1.0, 1.0)
        if sigma > 0:
            stretch = (chance.lognormvariate(-sigma * sigma / 2, sigma), chance.lognormvariate(-sigma * sigma / 2, sigma))
        yield TraceRow(at_s, max(1, round(prompt_tokens * stretch[0])), max(1, round(output_tokens * stretch[1])), tier)
