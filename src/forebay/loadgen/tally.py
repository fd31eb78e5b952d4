"""Counts and histograms of a run while it goes on: one tally per tier, summed when asked. Every label set is bounded."""

from forebay.loadgen.histogram import Histogram
from forebay.loadgen.report import Quantiles, RetryAfterReport, TierReport

TIERS_MAX = 32
"""Tiers measured apart; further ones count as ``other``."""
SAMPLES_MAX = 8
SAMPLE_CHARS_MAX = 200
REASONS_MAX = 64


def quantiles(histogram: Histogram) -> Quantiles:
    """p50, p95 and p99."""
    return Quantiles(histogram.quantile(0.50), histogram.quantile(0.95), histogram.quantile(0.99))


def count(counts: dict[str, int], reason: str) -> None:
    """One more of ``reason``, or of ``other`` where there are ``REASONS_MAX`` kinds already."""
    if reason not in counts and len(counts) >= REASONS_MAX:
        reason = "other"
    counts[reason] = counts.get(reason, 0) + 1


class Tally:
    """One tier."""

    def __init__(self, ttft_promise_s: float | None) -> None:
        self.ttft_promise_s = ttft_promise_s
        self.requests = 0
        self.completed = 0
        self.truncated = 0
        self.shed = 0
        self.errors = 0
        self.ttft_met = 0
        self.ttft = Histogram()
        self.itl = Histogram()
        self.e2e = Histogram()

    def first_content(self, ttft_s: float) -> None:
        """A first content came after ``ttft_s``."""
        self.ttft.add(ttft_s)
        if self.ttft_promise_s is not None and ttft_s <= self.ttft_promise_s:
            self.ttft_met += 1

    @property
    def concluded(self) -> int:
        """Requests whose fate is known."""
        return self.completed + self.truncated + self.shed + self.errors

    def report(self) -> TierReport:
        """As it stands."""
        served = self.concluded - self.shed
        attainment = self.ttft_met / served if self.ttft_promise_s is not None and served else None
        counts = (self.concluded, self.completed, self.truncated, self.shed, self.errors)
        return TierReport(*counts, quantiles(self.ttft), quantiles(self.itl), quantiles(self.e2e), attainment)


class Totals:
    """The whole run."""

    def __init__(self, ttft_promises_s: dict[str, float]) -> None:
        self._promises_s = ttft_promises_s
        self.tiers: dict[str, Tally] = {}
        self.statuses: dict[str, int] = {}
        self.truncated_by: dict[str, int] = {}
        self.errors_by: dict[str, int] = {}
        self.samples: list[str] = []
        self.lag = Histogram()
        self.longest_gap = Histogram()
        self.retry_after = Histogram()
        self.retry_given = self.retry_missing = self.retry_obeyed = self.retry_given_up = 0
        self.stopped_early = self.usage_missing = 0
        self.chunks = self.prompt_tokens = self.output_tokens = 0

    def tier(self, name: str) -> Tally:
        """The tally of ``name`` ("" is called ``default``)."""
        name = name or "default"
        tally = self.tiers.get(name)
        if tally is None:
            if len(self.tiers) >= TIERS_MAX:
                name = "other"
                if name in self.tiers:
                    return self.tiers[name]
            tally = self.tiers[name] = Tally(self._promises_s.get(name, self._promises_s.get("")))
        return tally

    def sample(self, text: str) -> None:
        """Keep ``text`` if it is among the first few that differ."""
        text = text[:SAMPLE_CHARS_MAX]
        if len(self.samples) < SAMPLES_MAX and text not in self.samples:
            self.samples.append(text)

    def merged(self) -> Tally:
        """All tiers as one; its attainment counts are of the tiers that have a promise."""
        whole = Tally(None)
        for tally in self.tiers.values():
            for name in ("requests", "completed", "truncated", "shed", "errors"):
                setattr(whole, name, getattr(whole, name) + getattr(tally, name))
            whole.ttft.merge(tally.ttft)
            whole.itl.merge(tally.itl)
            whole.e2e.merge(tally.e2e)
        return whole

    def attainment(self) -> tuple[float | None, float | None]:
        """Fraction with their first content in time: of the requests not shed, and of all; over the tiers with a promise."""
        promised = [tally for tally in self.tiers.values() if tally.ttft_promise_s is not None]
        met = sum(tally.ttft_met for tally in promised)
        everyone = sum(tally.concluded for tally in promised)
        served = everyone - sum(tally.shed for tally in promised)
        return (met / served if served else None), (met / everyone if everyone else None)

    def retry_report(self) -> RetryAfterReport:
        """What refusals said."""
        return RetryAfterReport(self.retry_given, self.retry_missing, self.retry_obeyed, self.retry_given_up, quantiles(self.retry_after))
