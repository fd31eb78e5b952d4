"""The ``http_*`` families of vLLM's page: what the HTTP layer saw, by route, without the probes and scrapes themselves.

Label sets are bounded: handlers are this server's routes or ``none``, methods are those the parser knows.
"""

from forebay.emulator.page import HistogramLines, header, labels, number
from forebay.emulator.stats import Histogram

UNCOUNTED = frozenset({"/metrics", "/health", "/load", "/ping", "/version", "/emulator/fault"})
"""Handlers that vLLM leaves out of these families (and this emulator's own)."""

_FINE_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5),
    *(5.0, 7.5, 10.0, 30.0, 60.0),
)
_COARSE_S = (0.1, 0.5, 1.0)
_NOT_SPLIT = "Only value of header is respected. Otherwise ignored. No percentile calculated. "
_FINE_HELP = "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. "
_COARSE_HELP = "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. "


class _Handler:
    """Counts of one handler."""

    __slots__ = ("created", "requests", "request_bytes", "response_bytes")  # noqa: RUF023 - in order of the page

    def __init__(self, created: str) -> None:
        self.created = created
        self.requests = 0
        self.request_bytes = 0
        self.response_bytes = 0


class HttpStats:
    """Counts finished exchanges and renders their families."""

    def __init__(self, created_wall_s: float) -> None:
        self._created = number(created_wall_s)
        self._by_status: dict[tuple[str, str, str], list[int]] = {}
        self._status_created: dict[tuple[str, str, str], str] = {}
        self._handlers: dict[str, _Handler] = {}
        self._coarse: dict[tuple[str, str], tuple[Histogram, HistogramLines, str]] = {}
        self._fine = Histogram(_FINE_S)
        self._fine_lines = HistogramLines("http_request_duration_highr_seconds", {}, self._fine)
        self._dirty = True
        self._text = ""

    def ended(self, handler: str, method: str, status: int, sizes: tuple[int, int], seconds: float, wall_s: float) -> None:
        """Count one exchange; ``sizes`` are the content lengths of request and response (0 where there is none)."""
        if handler in UNCOUNTED:
            return
        self._dirty = True
        key = (handler, method, f"{status // 100}xx")
        if key not in self._by_status:
            self._by_status[key] = [0]
            self._status_created[key] = number(wall_s)
        self._by_status[key][0] += 1
        counts = self._handlers.get(handler)
        if counts is None:
            counts = self._handlers[handler] = _Handler(number(wall_s))
        counts.requests += 1
        counts.request_bytes += sizes[0]
        counts.response_bytes += sizes[1]
        self._fine.observe(seconds)
        pair = (handler, method)
        if pair not in self._coarse:
            histogram = Histogram(_COARSE_S)
            lines = HistogramLines("http_request_duration_seconds", {"handler": handler, "method": method}, histogram)
            self._coarse[pair] = (histogram, lines, number(wall_s))
        self._coarse[pair][0].observe(seconds)

    def render(self) -> str:
        """The families' text; written anew only if something was counted since."""
        if self._dirty:
            self._dirty = False
            self._text = "".join([*self._counters(), *self._sizes("request"), *self._sizes("response"), *self._durations()])
        return self._text

    def _counters(self) -> list[str]:
        help_text = "Total number of requests by method, status and handler."
        lines = [header("http_requests_total", "counter", help_text)]
        sets = {key: labels(dict(zip(("handler", "method", "status"), key, strict=True))) for key in self._by_status}
        lines += [f"http_requests_total{sets[key]} {number(count[0])}\n" for key, count in self._by_status.items()]
        created = [f"http_requests_created{sets[key]} {created}\n" for key, created in self._status_created.items()]
        return [*lines, *_created("http_requests_created", help_text, created)]

    def _sizes(self, side: str) -> list[str]:
        name = f"http_{side}_size_bytes"
        help_text = f"Content length of {'incoming requests' if side == 'request' else 'outgoing responses'} by handler. {_NOT_SPLIT}"
        lines = [header(name, "summary", help_text)]
        for handler, counts in self._handlers.items():
            total = counts.request_bytes if side == "request" else counts.response_bytes
            label_set = labels({"handler": handler})
            lines.append(f"{name}_count{label_set} {number(counts.requests)}\n{name}_sum{label_set} {number(total)}\n")
        created = [f"{name}_created{labels({'handler': handler})} {counts.created}\n" for handler, counts in self._handlers.items()]
        return [*lines, *_created(f"{name}_created", help_text, created)]

    def _durations(self) -> list[str]:
        fine, coarse = "http_request_duration_highr_seconds", "http_request_duration_seconds"
        lines = [header(fine, "histogram", _FINE_HELP), self._fine_lines.render()]
        lines += [header(f"{fine}_created", "gauge", _FINE_HELP), f"{fine}_created {self._created}\n"]
        lines.append(header(coarse, "histogram", _COARSE_HELP))
        lines += [rendered.render() for _, rendered, _ in self._coarse.values()]
        rows = []
        for (handler, method), (_, _, created) in self._coarse.items():
            rows.append(f"{coarse}_created{labels({'handler': handler, 'method': method})} {created}\n")
        return [*lines, *_created(f"{coarse}_created", _COARSE_HELP, rows)]


def _created(name: str, help_text: str, rows: list[str]) -> list[str]:
    """The family of creation times, which is not on the page at all while it has no sample."""
    return [header(name, "gauge", help_text), *rows] if rows else []
