"""What the metrics page says of the ways out of pools, where there are some."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from forebay.gateway.overflow import Look

_LABELS = ["pool", "way", "to"]


def overflow_families(looks: Iterable[Look]) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
    """Which are open, how often they opened, how many requests took them, and what those cost; nothing where no pool has one."""
    shown = list(looks)
    if not shown:
        return
    is_open = GaugeMetricFamily("forebay_overflow_open", "1 while what would have to wait leaves the pool that way.", labels=_LABELS)
    began = CounterMetricFamily("forebay_overflow_began", "Times that it was opened.", labels=_LABELS)
    requests = CounterMetricFamily("forebay_overflow_requests", "Requests that left their pool that way.", labels=_LABELS)
    used = GaugeMetricFamily("forebay_spill_used_usd", "US dollars spent there within the last hour, and reserved.", labels=["pool", "to"])
    budget = GaugeMetricFamily("forebay_spill_budget_usd", "US dollars that may be, within any hour.", labels=["pool", "to"])
    for look in shown:
        labels = [look.pool, look.way, look.to]
        is_open.add_metric(labels, float(look.open))
        began.add_metric(labels, look.opened_total)
        requests.add_metric(labels, look.requests_total)
        if look.way == "spill":
            used.add_metric([look.pool, look.to], look.used_usd)
            budget.add_metric([look.pool, look.to], look.budget_usd)
    yield from (is_open, began, requests, used, budget)
