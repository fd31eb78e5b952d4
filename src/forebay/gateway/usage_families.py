"""Usage on the metrics page: by team, model, tier and pool, and how much of it could still be lost."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from forebay.domain.usage import CACHED, COUNTED, OUTPUT, PROMPT, QUEUE_MS, How, UsageKey

KEYS_SHOWN_MAX = 200
"""Those with most tokens; the ledger has them all."""
_LABELS = ["team", "model", "tier", "pool"]
_TOKENS = {"prompt": PROMPT, "cached": CACHED, "output": OUTPUT, "counted": COUNTED}


def usage_families(
    sums: Iterable[tuple[UsageKey, list[int]]], kept: tuple[int, int, int]
) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
    """``sums`` of this start by key; ``kept``: `meters.Gauges.usage_kept`."""
    requests = CounterMetricFamily("forebay_usage_requests", "Requests ended, by who pays and how.", labels=[*_LABELS, "how"])
    tokens = CounterMetricFamily(
        "forebay_usage_tokens",
        "Tokens metered; cached are part of the prompt, counted are those that no engine told.",
        labels=[*_LABELS, "kind"],
    )
    queued = CounterMetricFamily("forebay_usage_queue_seconds", "Time in lanes (world seconds).", labels=_LABELS)
    for key, counts in sorted(sums, key=lambda row: -row[1][PROMPT] - row[1][OUTPUT])[:KEYS_SHOWN_MAX]:
        for how in How:
            requests.add_metric([*key, how.name.lower()], counts[how])
        for kind, place in _TOKENS.items():
            tokens.add_metric([*key, kind], counts[place])
        queued.add_metric(list(key), counts[QUEUE_MS] / 1000)
    unreported, unwritten, lost = kept
    yield from (requests, tokens, queued)
    yield GaugeMetricFamily("forebay_usage_unreported_requests", "Requests ended whose usage no ledger has yet.", value=unreported)
    yield GaugeMetricFamily(
        "forebay_usage_unwritten_requests",
        "Of those, requests that are in memory only, as the journal can't be written: a crash would lose their usage.",
        value=unwritten,
    )
    yield CounterMetricFamily("forebay_usage_lost_requests", "Requests whose usage is in no ledger and never will be.", value=lost)
