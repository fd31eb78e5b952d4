"""Traces by file name: opened whatever their packing and format, and played as often as anyone asks, each time the same.

A trace of requests is read once when it is opened, so that a broken row, an empty span and the length of the trace are
known before anything is simulated. A trace of rates has no requests: they are drawn, from the seed.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.app.trace_files import FORMATS, NAMED, SERVEGEN_LENGTHS, blocks, first_line, format_of, guess, is_clients, renames
from forebay.demand import columns, intensity, prometheus, series, servegen, synthesis, transform
from forebay.demand.arrays import ArrivalSource
from forebay.demand.counts import Counts
from forebay.demand.intensity import Intensity
from forebay.demand.lengths import FromRows, LengthSampler, Lognormal
from forebay.demand.series import RateSeries
from forebay.demand.trace import RATE_FORMATS, SECONDS_MAX
from forebay.domain.errors import BadInput
from forebay.domain.units import format_duration, format_span
from forebay.loadgen.files import lines

__all__ = ["DEFAULT_CV", "FORMATS", "Chances", "OpenedTrace", "length_sampler", "open_arrivals", "read_series"]

DEFAULT_CV = 2.0
"""Of gaps drawn for a published rate: over ten seconds it gives the dispersion, 3.9, of Azure's conversations of 2023."""
LENGTH_ROWS_MAX = 2_000_000
"""Rows of a ``--lengths`` trace that lengths are drawn from: its first ones."""


class OpenedTrace:
    """A trace with its span, scale and tiers chosen; the same seed gives the same bytes each time."""

    def __init__(
        self,
        name: str,
        source: Callable[[], ArrivalSource],
        rates: Intensity,
        start_wall_s: float,
        counts: Counts,
        tiers: Sequence[str],
        rate_only: bool,
        grouped: bool = False,
        lengths_counts: Counts | None = None,
    ) -> None:
        self.name = name
        self.tiers = tuple(tiers)
        """Names by the index that arrivals carry."""
        self.start_wall_s = start_wall_s
        """Unix time of second 0 of the span; 0.0 where the trace doesn't say."""
        self.counts = counts
        """What reading the file came to: rows, failures, broken ones."""
        self.lengths_counts = lengths_counts or Counts()
        """The same of the file whose lengths are drawn, where there is one."""
        self.rate_only = rate_only
        """Its requests are drawn from rates; else they are the trace's own."""
        self.grouped = grouped
        """Some of its requests share prefixes."""
        self.rates = rates
        """What arrivals are drawn from, noise included; of a trace of requests, their counts a second times the scale."""
        self._source = source

    @property
    def duration_s(self) -> float:
        """Length of the span: what was asked for, or less where the trace ends sooner."""
        return self.rates.duration_s

    @property
    def requests_expected(self) -> float:
        """Mean number of requests over seeds (of a trace of requests at scale 1: how many there are)."""
        return float(self.rates.cumulated()[-1])

    def source(self) -> ArrivalSource:
        """The arrivals from the beginning."""
        return self._source()

    def with_source(self, source: Callable[[], ArrivalSource], rates: Intensity | None = None) -> "OpenedTrace":
        """The same trace with other arrivals (and other rates behind them)."""
        changed = self.rates if rates is None else rates
        return OpenedTrace(
            self.name, source, changed, self.start_wall_s, self.counts, self.tiers, self.rate_only, self.grouped, self.lengths_counts
        )

    def series(self, step_s: float) -> RateSeries:
        """Mean requests per second of each step (the last one may be cut short), by ``rates``."""
        steps = max(1, math.ceil(self.duration_s / step_s - 1e-9))
        marks = np.minimum(np.arange(steps + 1) * step_s, self.duration_s)
        return RateSeries(self.start_wall_s, step_s, self.rates.expected(marks) / np.diff(marks), name=self.name)


class Chances:
    """Independent streams of chance by name, each the same whenever it is asked for."""

    def __init__(self, seed: int) -> None:
        self._seed = seed & 0xFFFF_FFFF_FFFF_FFFF

    def __call__(self, name: str) -> np.random.Generator:
        """A fresh one, at its beginning."""
        return np.random.default_rng([self._seed, zlib.crc32(name.encode())])


class _Wanted(NamedTuple):
    """What was asked for, beside the file."""

    path: Path
    tiers: Sequence[str]
    weights: Sequence[float]
    start_s: float
    duration_s: float
    rate_scale: float
    noise: float
    cv: float
    column: str
    lenient: bool
    chances: Chances
    tell: Callable[[float], None] | None

    def tiered(self, source: ArrivalSource) -> ArrivalSource:
        return synthesis.tiered(source, self.weights, self.chances("tiers")) if self.tiers else source

    def cut(self, rates: Intensity) -> Intensity:
        """The span of ``rates``, scaled."""
        try:
            return rates.window(self.start_s, self.duration_s).scaled(self.rate_scale)
        except ValueError:
            raise BadInput(
                f"{self.path}: nothing in the span {format_span(self.start_s, self.duration_s)}: the trace is "
                f"{format_duration(rates.duration_s)} long"
            ) from None


def open_arrivals(
    trace: Path,
    trace_format: str,
    *,
    lengths: Path | None,
    shape: tuple[int, int],
    tiers: Sequence[str],
    tier_weights: Mapping[str, float] | None,
    start_s: float,
    duration_s: float | None,
    rate_scale: float,
    noise: float,
    cv: float,
    column: str,
    seed: int,
    lenient: bool,
    tell: Callable[[float], None] | None = None,
) -> OpenedTrace:
    """The part of ``trace`` from ``start_s`` on, ``rate_scale`` times its rate, ready to be played.

    ``trace_format`` may be ``auto``. For rates: ``lengths`` names a trace whose lengths are drawn (None: lognormal around the
    means ``shape``), ``cv`` is the variation of gaps, ``noise`` that of the rate from minute to minute, ``column`` the column of an
    ``o365`` file. A ``csv``, and JSON lines, take ``column`` as new names for their columns (``at_s=when,prompt_tokens=in``). Requests
    that name no tier get one by ``tier_weights``, without those the first of ``tiers``; with no ``tiers`` they keep the names they
    bring, if any.
    ``tell`` is told what fraction of a trace of requests has been read: of a large one that takes a while.
    Raises BadInput for anything that can't be used.
    """
    if not 0 < rate_scale < math.inf:
        raise BadInput(f"rate scale: found {rate_scale}, allowed: a number above 0")
    if start_s > SECONDS_MAX:
        raise BadInput(f"span: found a beginning {start_s:.4g} s after the trace's; allowed: up to {SECONDS_MAX} s, longer than any trace")
    if not start_s >= 0 or (duration_s is not None and not duration_s > 0):
        raise BadInput(f"span: found {duration_s} s from {start_s} s; allowed: a duration above 0, from 0 s or later")
    if not (0 <= cv < math.inf and 0 <= noise < math.inf):
        raise BadInput(f"variation: found {cv} of gaps and {noise} of the rate, allowed: numbers of at least 0")
    try:
        weights = synthesis.tier_weights(tiers, tier_weights)
    except ValueError as error:
        raise BadInput(f"weights of tiers: {error}") from None
    span_s = math.inf if duration_s is None else duration_s
    wanted = _Wanted(trace, tiers, weights, start_s, span_s, rate_scale, noise, cv, column, lenient, Chances(seed), tell)
    name = format_of(trace, trace_format, column)
    if name not in RATE_FORMATS:
        return _of_requests(wanted, name)
    of_lengths = Counts()
    sampler = length_sampler(lengths, shape, lenient, of_lengths)
    if name == "servegen" and is_clients(trace):
        return _of_clients(wanted, sampler, of_lengths)
    return _of_rates(wanted, name, sampler, of_lengths)


def begins_wall_s(trace: Path, trace_format: str, column: str = "", *, lenient: bool = False) -> float:
    """Unix time at which ``trace`` begins, from its first rows; 0 where it has no dates. Raises BadInput for what can't be used."""
    name = format_of(trace, trace_format)
    if name in RATE_FORMATS:
        return read_series(trace, name, column, lenient=lenient).start_wall_s
    names = renames(column) if name in NAMED else {}
    reader = columns.Reader(name, str(trace), None, lenient=lenient, renamed=names)
    next(iter(reader.read(blocks(trace))), None)
    return reader.start_wall_s


def read_series(path: Path, name: str, column: str = "", *, lenient: bool = False, counts: Counts | None = None) -> RateSeries:
    """The rates of a file in one of ``RATE_FORMATS``, as published; of ServeGen's clients, their sum."""
    text = lines(str(path))
    if name == "azure2024-rate":
        return series.azure2024_rate(text, str(path), lenient=lenient, counts=counts)
    if name == "o365":
        return series.o365(text, column, str(path), lenient=lenient, counts=counts)
    if name == "prometheus":
        return prometheus.series(text, str(path), lenient=lenient, counts=counts)
    if is_clients(path):
        return RateSeries(
            0.0, servegen.WINDOW_S, servegen.clients(text, str(path), lenient=lenient, counts=counts).totals(), name=str(path)
        )
    return series.servegen_totals(text, str(path), lenient=lenient, counts=counts)


def _of_rates(wanted: _Wanted, name: str, sampler: LengthSampler, of_lengths: Counts) -> OpenedTrace:
    counts = Counts()
    published = read_series(wanted.path, name, wanted.column, lenient=wanted.lenient, counts=counts)
    whole = intensity.smooth(published.in_requests(sampler.prompt_tokens_mean).values, published.step_s)
    # Noise before the cut: a minute of the trace has the same noise in whatever span it is played.
    rates = wanted.cut(whole.noisy(wanted.noise, synthesis.NOISE_CELL_S, wanted.chances("noise")))

    def source() -> ArrivalSource:
        at_s = synthesis.times(rates, wanted.cv, wanted.chances("gaps"))
        return wanted.tiered(synthesis.requests(at_s, sampler, wanted.chances("lengths")))

    wall_s = published.start_wall_s + wanted.start_s if published.start_wall_s else 0.0
    return OpenedTrace(published.name, source, rates, wall_s, counts, wanted.tiers, rate_only=True, lengths_counts=of_lengths)


def _of_clients(wanted: _Wanted, sampler: LengthSampler, of_lengths: Counts) -> OpenedTrace:
    counts = Counts()
    sent = servegen.clients(lines(str(wanted.path)), str(wanted.path), lenient=wanted.lenient, counts=counts)
    rates = wanted.cut(intensity.level(sent.totals(), servegen.WINDOW_S))

    def source() -> ArrivalSource:
        span = (wanted.start_s, wanted.duration_s)
        return wanted.tiered(servegen.arrivals(sent, sampler, wanted.rate_scale, *span, wanted.chances("clients")))

    return OpenedTrace(str(wanted.path), source, rates, 0.0, counts, wanted.tiers, rate_only=True, lengths_counts=of_lengths)


def _of_requests(wanted: _Wanted, name: str) -> OpenedTrace:
    names = renames(wanted.column) if name in NAMED else {}

    def reader(tiers: Sequence[str] | None) -> columns.Reader:
        return columns.Reader(name, str(wanted.path), tiers, lenient=wanted.lenient, renamed=names)

    first = reader(wanted.tiers or None)
    per_second, grouped = _counted(first.read(blocks(wanted.path, wanted.tell)), wanted, first.counts)
    rates = intensity.level(per_second, 1.0).window(0.0, wanted.duration_s).scaled(wanted.rate_scale)

    def source() -> ArrivalSource:
        rows = transform.window(reader(first.tiers).read(blocks(wanted.path)), wanted.start_s, wanted.duration_s)
        return wanted.tiered(transform.resampled(rows, wanted.rate_scale, wanted.chances("scale")))

    wall_s = first.start_wall_s + wanted.start_s if first.start_wall_s else 0.0
    return OpenedTrace(str(wanted.path), source, rates, wall_s, first.counts, first.tiers, False, grouped)


def _counted(rows: ArrivalSource, wanted: _Wanted, counts: Counts) -> tuple[npt.NDArray[np.float64], bool]:
    """Requests in each second of the span, and whether any is in a group. The trace ends with the second of its last row."""
    per_second, last_s, grouped = np.zeros(0, np.int64), None, False
    for chunk in rows:
        last_s = float(chunk.at_s[-1])
        grouped = grouped or bool(np.any(chunk.group >= 0))
        inside = chunk.at_s[slice(*np.searchsorted(chunk.at_s, (wanted.start_s, wanted.start_s + wanted.duration_s)))]
        if len(inside):
            more = np.bincount((inside - wanted.start_s).astype(np.int64))
            if len(more) > len(per_second):
                per_second = np.concatenate((per_second, np.zeros(len(more) - len(per_second), np.int64)))
            per_second[: len(more)] += more
        if last_s >= wanted.start_s + wanted.duration_s:
            ends = math.ceil(wanted.duration_s)
            per_second = np.concatenate((per_second, np.zeros(max(0, ends - len(per_second)), np.int64)))
            break
    if not np.any(per_second):
        where = (
            counts.nothing_left() or "the trace has no rows"
            if last_s is None
            else f"its rows that were read end at {format_duration(last_s)}"
        )
        raise BadInput(f"{wanted.path}: no row in the span {format_span(wanted.start_s, wanted.duration_s)}: {where}")
    return per_second.astype(np.float64), grouped


def length_sampler(
    path: Path | None, shape: tuple[int, int], lenient: bool = False, counts: Counts | None = None, column: str = ""
) -> LengthSampler:
    """Lengths as in the trace of requests (or ServeGen's lengths) ``path``; None: lognormal around the means ``shape``. Raises BadInput.

    ``counts`` is told what reading the file came to; ``column`` may say what its columns are called.
    """
    if path is None:
        try:
            return Lognormal(*shape)
        except ValueError as error:
            raise BadInput(f"shape: {error}") from None
    name = guess(first_line(path))
    if name == SERVEGEN_LENGTHS:
        return servegen.ClientLengths(lines(str(path)), str(path), lenient=lenient, counts=counts)
    name, counts = format_of(path, column=column), counts or Counts()
    if name in RATE_FORMATS:
        raise BadInput(f"{path}: a trace of rates has no lengths to draw; name a trace of requests or ServeGen's lengths")
    prompt, output, rows = [], [], 0
    for chunk in columns.Reader(name, str(path), None, lenient=lenient, renamed=renames(column), counts=counts).read(blocks(path)):
        prompt.append(chunk.prompt_tokens)
        output.append(chunk.output_tokens)
        rows += len(chunk.at_s)
        if rows >= LENGTH_ROWS_MAX:
            break
    if not rows:
        raise BadInput(f"{path}: no lengths to draw: {counts.nothing_left() or 'the trace has no rows'}")
    return FromRows(np.concatenate(prompt)[:LENGTH_ROWS_MAX], np.concatenate(output)[:LENGTH_ROWS_MAX])
