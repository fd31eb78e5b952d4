"""How Dynamo's planner learns what a pass takes: least squares over samples that a grid keeps spread over what was seen.

Each look gives one sample per engine. Both axes are cut into four between the least and the most ever seen; beyond 64
samples, the oldest of the fullest cell goes. So a place that is seldom visited keeps its samples for ever, those of an engine
that was not warm yet among them (ai-dynamo/dynamo#12430): that one's remedy is `FitSettings.skip_first`. A fit by which more
tokens take less time is refused. Dynamo's sample is an engine's latest pass; here it is the mean of those since the last scrape,
on the same plane. Source: planner/core/perf_model/base.py 439d6458, agg.py 518a7027, state_machine.py 0272cbdd.
"""

import math
from collections import Counter
from collections.abc import Iterable

import msgspec
import numpy as np

from forebay.domain.scaling import Passes, ReplicaObservation
from forebay.scaling.baselines.dynamo_model import Plane
from forebay.scaling.baselines.reading import VALUE_MAX

Sample = tuple[float, float, float]
"""Prefill tokens, KV tokens, seconds."""


class FitSettings(msgspec.Struct, frozen=True):
    """``samples_max`` in ``cells`` × ``cells`` are kept, and ``samples_min`` are needed (planner's defaults: 64 in 16, 5)."""

    samples_max: int = 64
    cells: int = 4
    samples_min: int = 5
    skip_first: int = 0
    """Of each engine, so many first passes are left out, as #12430 asks for. 0: none, as Dynamo has it."""


class Fit(msgspec.Struct, frozen=True, array_like=True):
    """What is remembered: ``samples``, oldest first, the least and most ever seen of both axes, and when the last ones were scraped."""

    samples: tuple[Sample, ...] = ()
    bounds: tuple[float, float, float, float] | None = None
    scraped_s: float | None = None


def observed(fit: Fit, replicas: Iterable[ReplicaObservation], settings: FitSettings) -> Fit:
    """``fit`` with what ``replicas`` tell that was not told at the last look."""
    new: list[Sample] = []
    scraped_s = fit.scraped_s
    for replica in replicas:
        told = replica.passes
        if not isinstance(told, Passes) or not _sane(told) or (fit.scraped_s is not None and told.at_s <= fit.scraped_s):
            continue
        scraped_s = told.at_s if scraped_s is None else max(scraped_s, told.at_s)
        if told.count and told.before >= settings.skip_first:
            new.append((told.prefill_tokens, told.kv_tokens, told.mean_s))
    samples, bounds = fit.samples[-settings.samples_max :], fit.bounds
    if new:
        samples, bounds = _added(list(samples), bounds, new, settings)
    return Fit(samples, bounds, scraped_s)


def plane(fit: Fit, settings: FitSettings) -> Plane | None:
    """The plane through the samples; None for too few of them, or where it falls. What never varied costs nothing by it."""
    if len(fit.samples) < settings.samples_min:
        return None
    told = np.array(fit.samples)
    means = told.mean(axis=0)
    about = np.where(np.ptp(told, axis=0) > 0, told - means, 0.0)
    slopes = np.linalg.lstsq(about[:, :2], about[:, 2], rcond=None)[0]
    if not np.isfinite(slopes).all() or slopes.min() < 0:
        return None
    return Plane(float(means[2] - slopes @ means[:2]), float(slopes[0]), float(slopes[1]))


def _sane(told: Passes) -> bool:
    numbers = (told.at_s, told.mean_s, told.prefill_tokens, told.kv_tokens)
    return all(math.isfinite(number) and 0 <= number <= VALUE_MAX for number in numbers) and 0 <= told.count <= VALUE_MAX


def _added(
    samples: list[Sample], bounds: tuple[float, float, float, float] | None, new: list[Sample], settings: FitSettings
) -> tuple[tuple[Sample, ...], tuple[float, float, float, float]]:
    """``new`` ones one by one, each at the cost of the oldest of the fullest cell where there are too many."""
    low_prefill, high_prefill, low_kv, high_kv = bounds or (math.inf, -math.inf, math.inf, -math.inf)
    cells: list[tuple[int, int]] = []
    stale = True
    for prefill, kv, seconds in new:
        if not (low_prefill <= prefill <= high_prefill and low_kv <= kv <= high_kv):
            low_prefill, high_prefill = min(low_prefill, prefill), max(high_prefill, prefill)
            low_kv, high_kv = min(low_kv, kv), max(high_kv, kv)
            stale = True
        samples.append((prefill, kv, seconds))
        fresh = samples if stale else samples[-1:]
        found = [(_cell(x, low_prefill, high_prefill, settings.cells), _cell(y, low_kv, high_kv, settings.cells)) for x, y, _ in fresh]
        cells = found if stale else cells + found
        stale = False
        if len(samples) > settings.samples_max:
            counts = Counter(cells)
            most = max(counts.values())
            oldest = next(place for place, cell in enumerate(cells) if counts[cell] == most)
            del samples[oldest], cells[oldest]
    return tuple(samples), (low_prefill, high_prefill, low_kv, high_kv)


def _cell(value: float, low: float, high: float, cells: int) -> int:
    """Which of ``cells`` equal parts of the axis it lies in."""
    return 0 if high <= low else max(0, min(int((value - low) / (high - low) * cells), cells - 1))
