"""Latency on the metrics page, by team, model, tier and pool."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily

from forebay.domain.usage import UsageKey
from forebay.gateway.latencies import QUEUE_S, TOKEN_S, TOTAL_S, TTFT_S, Took

_LABELS = ["team", "model", "tier", "pool"]


def latency_families(rows: Iterable[tuple[UsageKey, Took]]) -> Iterator[HistogramMetricFamily]:
    """``rows`` of this start by key."""
    queue = HistogramMetricFamily("forebay_team_queue_seconds", "Arrival until it was first sent (world seconds).", labels=_LABELS)
    ttft = HistogramMetricFamily("forebay_team_ttft_seconds", "Arrival to first content of streams (world seconds).", labels=_LABELS)
    token = HistogramMetricFamily(
        "forebay_team_output_token_seconds", "Mean time between the tokens of a stream (world seconds).", labels=_LABELS
    )
    total = HistogramMetricFamily("forebay_team_request_seconds", "Arrival to the end of complete answers (world seconds).", labels=_LABELS)
    for key, took in sorted(rows, key=lambda row: row[0]):
        labels = list(key)
        queue.add_metric(labels, _cumulative(QUEUE_S, took.queue), took.queue_sum_s)
        ttft.add_metric(labels, _cumulative(TTFT_S, took.ttft), took.ttft_sum_s)
        token.add_metric(labels, _cumulative(TOKEN_S, took.token), took.token_sum_s)
        total.add_metric(labels, _cumulative(TOTAL_S, took.total), took.total_sum_s)
    yield from (queue, ttft, token, total)


def _cumulative(bounds_s: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    return list(zip((*map(str, bounds_s), "+Inf"), accumulate(counts), strict=True))
