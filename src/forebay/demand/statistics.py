"""What a trace is like, in one pass and bounded memory: rates, seasons, bursts, lengths, shared prefixes."""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from forebay.demand.arrays import Arrivals
from forebay.demand.series import RateSeries
from forebay.demand.trace import SECONDS_MAX

EXACT_TOKENS = 2048
"""Lengths below are counted each by itself, above in bins of ``BIN_RATIO``."""
BIN_RATIO = 1.005
SEASON_STEP_S = 600.0
SEASONS_S: Mapping[str, float] = {"24h": 86_400.0, "7d": 604_800.0}
DISPERSION_S = (1, 10, 60)
MINUTE_S, HOUR_S = 60, 3600
Floats = npt.NDArray[np.float64]


class Rates(msgspec.Struct, frozen=True):
    """Requests per second; None where the trace is too short to say."""

    mean: float
    peak_minute: float | None
    peak_minute_at_s: float | None
    """None also where steps are longer than a minute: the peak is the busiest step then."""
    hourly_peak_to_mean: float | None
    hourly_peak_to_valley: float | None
    """None also where an hour had no requests."""
    acf: dict[str, float | None]
    """Correlation of ten-minute rates with those a day and a week before; None unless there are two of them."""


class Bursts(msgspec.Struct, frozen=True):
    """How uneven arrivals are."""

    gap_cv: float | None
    """Standard deviation of the time between requests ÷ its mean; 1 for Poisson."""
    longest_gap_s: float
    longest_gap_at_s: float
    dispersion: dict[str, float | None]
    """Variance of the count in windows of 1, 10 and 60 s ÷ its mean; 1 for Poisson."""
    busiest_second: int


class Tokens(msgspec.Struct, frozen=True):
    """Of one kind of length; quantiles above 2,048 are good to 0.5 %."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: int


class Prefixes(msgspec.Struct, frozen=True):
    """What prompts share with earlier ones of their group."""

    requests_share: float
    """Requests that share any token."""
    tokens_share: float
    """Shared prompt tokens ÷ prompt tokens: what an endless cache on one replica would save."""


class TraceStatistics(msgspec.Struct, frozen=True):
    """Everything `forebay trace stats` tells; parts that a trace of rates doesn't have are None."""

    name: str
    start_wall_s: float
    duration_s: float
    requests: int
    rates: Rates
    unit: str = "requests/s"
    bursts: Bursts | None = None
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    prefixes: Prefixes | None = None
    tiers: dict[str, int] = {}
    repeated: int = 0
    """Rows that are the row before over again, time and lengths."""


class Meter:
    """Takes chunks of one trace; `result` and the counts can be read at any time."""

    def __init__(self) -> None:
        self.requests = 0
        self.per_second: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self.prompt, self.output = LengthCounts(), LengthCounts()
        self._last: tuple[float, int, int] | None = None
        self._gaps, self._gap_sum, self._gap_squares = 0, 0.0, 0.0
        self._longest = (0.0, 0.0)
        self._repeated = 0
        self._shared, self._shared_tokens = 0, 0
        self._tiers: npt.NDArray[np.int64] = np.zeros(0, np.int64)

    def add(self, chunk: Arrivals) -> None:
        """Count the rows of ``chunk``, which come after those before it. Raises ValueError for a time beyond ``SECONDS_MAX``."""
        if len(chunk.at_s) == 0:
            return
        if chunk.at_s[-1] > SECONDS_MAX:
            raise ValueError(f"a row at {chunk.at_s[-1]:g} s; statistics are kept up to {SECONDS_MAX} s")
        self.requests += len(chunk.at_s)
        self.per_second = _plus(self.per_second, np.bincount(chunk.at_s.astype(np.int64)))
        self.prompt.add(chunk.prompt_tokens)
        self.output.add(chunk.output_tokens)
        shared = chunk.shared_tokens > 0
        self._shared += int(shared.sum())
        self._shared_tokens += int(chunk.shared_tokens.sum(dtype=np.int64))
        self._tiers = _plus(self._tiers, np.bincount(chunk.tier[chunk.tier >= 0]))
        self._add_gaps(chunk)

    def _add_gaps(self, chunk: Arrivals) -> None:
        at_s, prompt, output, *_ = chunk
        if self._last is not None:
            before_s, before_prompt, before_output = self._last
            at_s = np.concatenate((np.array([before_s]), at_s))
            prompt = np.concatenate((np.array([before_prompt], np.int32), prompt))
            output = np.concatenate((np.array([before_output], np.int32), output))
        gaps = np.diff(at_s)
        if len(gaps):
            longest = int(np.argmax(gaps))
            if gaps[longest] > self._longest[0]:
                self._longest = (float(gaps[longest]), float(at_s[longest]))
        self._gaps += len(gaps)
        self._gap_sum += float(gaps.sum())
        self._gap_squares += float((gaps * gaps).sum())
        self._repeated += int(np.count_nonzero((gaps == 0) & (np.diff(prompt) == 0) & (np.diff(output) == 0)))
        self._last = (float(at_s[-1]), int(prompt[-1]), int(output[-1]))

    def result(self, name: str, start_wall_s: float, duration_s: float, tiers: Sequence[str]) -> TraceStatistics:
        """The statistics of a trace of ``duration_s``. Raises ValueError for one without rows."""
        if not self.requests:
            raise ValueError("a trace without rows has no statistics")
        seconds = np.zeros(math.ceil(duration_s), np.int64)
        known = min(len(seconds), len(self.per_second))
        seconds[:known] = self.per_second[:known]
        sharing = Prefixes(self._shared / self.requests, self._shared_tokens / max(1.0, self.prompt.total)) if self._shared else None
        counts = {tier: int(count) for tier, count in zip(tiers, self._tiers.tolist(), strict=False)}
        return TraceStatistics(
            name=name,
            start_wall_s=start_wall_s,
            duration_s=duration_s,
            requests=self.requests,
            rates=_rates(seconds.astype(np.float64), 1.0, self.requests / duration_s),
            bursts=self._bursts(seconds),
            prompt_tokens=self.prompt.result(),
            output_tokens=self.output.result(),
            prefixes=sharing,
            tiers=counts if len(tiers) > 1 else {},
            repeated=self._repeated,
        )

    def _bursts(self, seconds: npt.NDArray[np.int64]) -> Bursts:
        cv = None
        if self._gaps > 1 and self._gap_sum > 0:
            mean = self._gap_sum / self._gaps
            cv = math.sqrt(max(0.0, self._gap_squares / self._gaps - mean * mean)) / mean
        dispersion = {f"{width}s": _dispersion(seconds, width) for width in DISPERSION_S}
        return Bursts(cv, *self._longest, dispersion, int(seconds.max()))


class LengthCounts:
    """How often each length came, exactly or in bins; memory doesn't grow with the trace."""

    def __init__(self) -> None:
        self.total = 0.0
        self._counts: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._max = 0

    def add(self, tokens: npt.NDArray[np.int32]) -> None:
        """Count ``tokens``."""
        self.total += float(tokens.sum(dtype=np.int64))
        self._max = max(self._max, int(tokens.max()))
        over = np.maximum(tokens / EXACT_TOKENS, 1.0)
        place = np.where(tokens < EXACT_TOKENS, tokens, EXACT_TOKENS + (np.log(over) / math.log(BIN_RATIO)).astype(np.int64))
        self._counts = _plus(self._counts, np.bincount(place))

    def distribution(self) -> tuple[Floats, Floats]:
        """Lengths that came, rising, and the share of requests up to each."""
        places = np.flatnonzero(self._counts)
        upto = np.cumsum(self._counts[places])
        return np.minimum(_length(places), self._max), upto / upto[-1]

    def result(self) -> Tokens:
        """Mean, quantiles, maximum."""
        lengths, upto = self.distribution()
        p50, p90, p99 = (float(lengths[int(np.searchsorted(upto, share - 1e-12))]) for share in (0.5, 0.9, 0.99))
        return Tokens(self.total / float(self._counts.sum()), p50, p90, p99, self._max)


def of_series(series: RateSeries) -> TraceStatistics:
    """The statistics that a bare series of rates allows; ``requests`` is 0 where tokens are counted."""
    requests = 0 if series.unit != "requests/s" else round(series.mean * series.duration_s)
    rates = _rates(series.values, series.step_s, series.mean)
    return TraceStatistics(series.name, series.start_wall_s, series.duration_s, requests, rates, str(series.unit))


def _rates(values: Floats, step_s: float, mean: float) -> Rates:
    """From rates (or counts a second) of even steps."""
    minutes = _means(values, MINUTE_S / step_s)
    peak = int(np.argmax(minutes)) if len(minutes) else None
    hours = _means(values, HOUR_S / step_s)
    enough = len(hours) >= 2 and mean > 0
    valley = float(hours.min()) if enough else 0.0
    tens = _means(values, SEASON_STEP_S / step_s)
    return Rates(
        mean=mean,
        peak_minute=None if peak is None else float(minutes[peak]),
        peak_minute_at_s=None if peak is None or step_s > MINUTE_S else peak * float(MINUTE_S),
        hourly_peak_to_mean=float(hours.max()) / mean if enough else None,
        hourly_peak_to_valley=float(hours.max()) / valley if valley > 0 else None,
        acf={name: _autocorrelation(tens, round(lag_s / SEASON_STEP_S)) for name, lag_s in SEASONS_S.items()},
    )


def _means(values: Floats, width: float) -> Floats:
    """Means of consecutive groups of ``width`` values, whole groups only; steps longer than the width are taken as they are."""
    if width < 1.5:
        return values
    whole = round(width)
    count = len(values) // whole
    means: Floats = values[: count * whole].reshape(count, whole).mean(axis=1)
    return means


def _autocorrelation(values: Floats, lag: int) -> float | None:
    if len(values) < 2 * lag:
        return None
    off = values - values.mean()
    square = float((off * off).sum())
    return float((off[lag:] * off[:-lag]).sum()) / square * len(off) / (len(off) - lag) if square > 0 else None


def _dispersion(seconds: npt.NDArray[np.int64], width: int) -> float | None:
    count = len(seconds) // width
    if count < 2:
        return None
    counts = seconds[: count * width].reshape(count, width).sum(axis=1)
    mean = float(counts.mean())
    return float(counts.var()) / mean if mean > 0 else None


def _plus(sums: npt.NDArray[np.int64], more: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if len(more) > len(sums):
        # By half as much again, so that a long trace is not copied at every chunk.
        sums = np.concatenate((sums, np.zeros(len(more) + len(more) // 2 - len(sums), np.int64)))
    sums[: len(more)] += more
    return sums


def _length(places: npt.NDArray[np.int64]) -> Floats:
    beyond = np.maximum(places - EXACT_TOKENS, -0.5)
    return np.where(places < EXACT_TOKENS, places, EXACT_TOKENS * BIN_RATIO ** (beyond + 0.5))
