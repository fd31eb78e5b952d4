"""What a replay came to, as values: counts that add up, quantiles in world seconds, and whether the generator kept up.

``requests = completed + truncated + shed + errors``, overall and in each tier.
"""

from typing import Any

import msgspec


class Quantiles(msgspec.Struct, frozen=True):
    """World seconds, to 0.5 %; None where nothing was measured."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class TierReport(msgspec.Struct, frozen=True):
    """One tier's share; fields as in ReplayReport."""

    requests: int
    completed: int
    truncated: int
    shed: int
    errors: int
    ttft_s: Quantiles
    itl_s: Quantiles
    e2e_s: Quantiles
    ttft_attainment: float | None = None


class RetryAfterReport(msgspec.Struct, frozen=True):
    """What refusals said about coming back. ``given`` + ``missing`` = refusing responses; ``asked_real_s`` is in real seconds."""

    given: int
    missing: int
    obeyed: int
    given_up: int
    """Refusals that were final: not told to obey, out of retries, or asked to wait too long."""
    asked_real_s: Quantiles


class Record(msgspec.Struct, frozen=True, gc=False):
    """One request: world seconds since the run began at which it was due, and what became of it."""

    at_s: float
    ttft_s: float | None
    e2e_s: float
    status: int
    """Of the last response; 0 if there was none."""
    truncated: bool
    outcome: str
    """``completed``, or why not."""
    tier: str
    output_tokens: int


class Progress(msgspec.Struct, frozen=True):
    """The run so far."""

    at_s: float
    """World seconds since it began."""
    sent: int
    in_flight: int
    completed: int
    truncated: int
    shed: int
    errors: int
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    lag_p99_s: float | None


class ReplayReport(msgspec.Struct, frozen=True):
    """A whole run. Durations are world seconds except ``*_real_s`` and ``wall_s``."""

    requests: int
    completed: int
    truncated: int
    """Streams of status 200 that began and did not end as asked; ``truncated_by`` says how."""
    errors: int
    shed: int
    """Refused with 429 or 503, as a status or as the only event of a stream."""
    statuses: dict[str, int]
    """Of every response, retried ones included."""
    ttft_s: Quantiles
    """From when the request was due (not from when it was sent) to its first content."""
    itl_s: Quantiles
    """Between content events; those read at once share the time since the read before."""
    e2e_s: Quantiles
    """Of completed requests, from when they were due."""
    longest_gap_s: Quantiles
    """Over streams: the longest silence after the first content."""
    generator_lag_s: Quantiles
    """From when a request was due to when it was sent."""
    by_tier: dict[str, TierReport]
    truncated_by: dict[str, int]
    errors_by: dict[str, int]
    error_samples: tuple[str, ...]
    stopped_early: int
    """Completed with fewer tokens than asked, by the model's own stop."""
    usage_missing: int
    retry_after: RetryAfterReport
    generator_bound: bool
    """The generator, not the target, may be what was measured."""
    generator_bound_because: str
    generator_cpu: float
    """CPU seconds of the generator's thread per real second."""
    lag_p99_real_s: float | None
    speed: float
    started_s: float
    """The clock's world time at which the run began."""
    duration_s: float
    wall_s: float
    """Real seconds."""
    chunks: int
    """Content events received."""
    prompt_tokens: int
    """Asked for, of all requests sent."""
    output_tokens: int
    """Received, as usages said."""
    connections_opened: int
    connection_waits: int
    """Requests that had to wait for one of ``connections_max`` connections."""
    resent: int
    """Requests sent again since a kept-alive connection had been closed."""
    unsent: bool
    """Stopped before the last row."""
    ttft_attainment: float | None = None
    """Of the requests that were not shed, the fraction whose first content came within the tier's TTFT."""
    ttft_attainment_of_all: float | None = None
    """The same with shed requests counted as missed."""
    records: tuple[Record, ...] = ()
    records_dropped: int = 0


def to_json(report: ReplayReport) -> dict[str, Any]:
    """Plain values for ``--json``; what was not asked for (attainment, records) is absent."""
    plain: dict[str, Any] = msgspec.to_builtins(report)
    for part in (plain, *plain["by_tier"].values()):
        for name in ("ttft_attainment", "ttft_attainment_of_all"):
            if name in part and part[name] is None:
                del part[name]
    if not report.records:
        del plain["records"], plain["records_dropped"]
    return plain
