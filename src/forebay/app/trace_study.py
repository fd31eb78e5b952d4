"""One reading of a trace for `forebay trace stats`: the statistics, and what a picture of them needs."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from forebay.app.lab import recorded
from forebay.app.trace_files import format_of
from forebay.app.traces import open_arrivals, read_series
from forebay.demand.counts import Counts
from forebay.demand.series import RateSeries
from forebay.demand.statistics import LengthCounts, Meter, TraceStatistics, of_series
from forebay.demand.trace import RATE_FORMATS
from forebay.domain.errors import BadInput
from forebay.domain.units import format_duration, format_span


class Study(NamedTuple):
    """What was found."""

    statistics: TraceStatistics
    series: RateSeries
    """By the second for a trace of requests, else as published."""
    lengths: tuple[LengthCounts, LengthCounts] | None
    """Of prompts and answers; None for a trace of rates."""
    counts: Counts


def studied(
    path: Path, trace_format: str, span: tuple[float, float | None], column: str, lenient: bool, on_progress: Callable[[float], None]
) -> Study:
    """Read the part of ``path`` that ``span`` (start and duration in seconds) says; ``on_progress`` gets the share done.

    ``path`` may be a state folder of `forebay up`, of which ``column`` names the pool. Raises BadInput for what can't be used.
    """
    if recorded.holds_history(path):
        return _of_history(path, span, column)
    name = format_of(path, trace_format, column)
    if name in RATE_FORMATS:
        return _of_rates(path, name, span, column, lenient)
    opened = open_arrivals(
        path,
        name,
        lengths=None,
        shape=(1, 1),
        tiers=(),
        tier_weights=None,
        start_s=span[0],
        duration_s=span[1],
        rate_scale=1.0,
        noise=0.0,
        cv=1.0,
        column=column,
        seed=0,
        lenient=lenient,
    )
    meter = Meter()
    for chunk in opened.source():
        meter.add(chunk)
        on_progress(float(chunk.at_s[-1]) / opened.duration_s)
    found = meter.result(opened.name, opened.start_wall_s, opened.duration_s, opened.tiers)
    return Study(found, opened.series(1.0), (meter.prompt, meter.output), opened.counts)


def _of_rates(path: Path, name: str, span: tuple[float, float | None], column: str, lenient: bool) -> Study:
    counts = Counts()
    return _of_series(path, read_series(path, name, column, lenient=lenient, counts=counts), span, counts)


def _of_history(path: Path, span: tuple[float, float | None], pool: str) -> Study:
    """What a controller saw come to ``pool``; over what it did not see a line is drawn."""
    if not pool:
        raise BadInput(f"--column: found none, allowed: a pool whose history is in {path}, such as chat")
    past, counts = recorded.read(path, pool), Counts()
    requests = recorded.Buckets(past).requests
    known = np.flatnonzero(np.isfinite(requests))
    counts.rows, counts.filled = len(known), len(requests) - len(known)
    values = np.interp(np.arange(len(requests)), known, requests[known]) / past.bucket_s
    return _of_series(path, RateSeries(past.start_wall_s, past.bucket_s, values, name=f"{path} {pool}"), span, counts)


def _of_series(path: Path, whole: RateSeries, span: tuple[float, float | None], counts: Counts) -> Study:
    start, duration_s = span
    first = math.floor(start / whole.step_s)
    last = len(whole.values) if duration_s is None else math.ceil((start + duration_s) / whole.step_s)
    values = whole.values[first:last]
    if len(values) == 0:
        raise BadInput(f"{path}: nothing in the span {format_span(start, None)}: the trace is {format_duration(whole.duration_s)} long")
    wall_s = whole.start_wall_s + first * whole.step_s if whole.start_wall_s else 0.0
    part = whole._replace(values=np.ascontiguousarray(values), start_wall_s=wall_s)
    return Study(of_series(part), part, None, counts)
