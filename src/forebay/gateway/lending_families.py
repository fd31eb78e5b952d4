"""What the metrics page says of relay workers, where there are some."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from forebay.gateway.lending import Lending


def lending_families(lending: Lending) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
    """Workers, and the streams that they carry, have carried, and were lost with."""
    yield GaugeMetricFamily("forebay_relay_workers", "Relay worker processes that take streams.", value=lending.workers)
    yield GaugeMetricFamily("forebay_relay_worker_streams", "Streams that relay workers carry.", value=lending.streams)
    yield CounterMetricFamily("forebay_relay_streams_lent", "Times that a stream was lent to a relay worker.", value=lending.lent_total)
    early = "Times that a stream came back before it was worth it."
    yield CounterMetricFamily("forebay_relay_streams_back_early", early, value=lending.early_total)
    yield CounterMetricFamily("forebay_relay_workers_lost", "Relay worker processes that ended.", value=lending.workers_lost)
    lost = "Streams that ended with their relay worker: their clients saw the connection close."
    yield CounterMetricFamily("forebay_relay_streams_lost", lost, value=lending.streams_lost)
