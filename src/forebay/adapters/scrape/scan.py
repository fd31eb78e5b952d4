"""Finds the few numbers wanted in an engine's metrics page by looking for their names, without parsing the page.

A vLLM page is 53 kB and 640 lines, of which nine matter; the standard parser takes a hundred times as long as this. The
price is that the names are known here: vLLM's, those of its older versions, and llama.cpp's. Labels are only read where
they carry the number (``cache_config_info``); several series of one name (one per engine under data parallelism) are joined.
"""

import math
import re
from collections.abc import Callable, Sequence

import msgspec

from forebay.domain.signal import Known, Signal, Unknown, reading
from forebay.ports.signals import EngineSignals

MALFORMED = "malformed"
_SERIES_MAX = 256
"""Series of one name that are read: more than any engine's data parallelism."""
_SAMPLE = re.compile(
    rb'(?:\{((?:[^"}]++|"(?:[^"\\\n]++|\\.)*+")*+)\})?[ \t]+([^ \t\r\n]+)'
    rb"[ \t]*(?:[-+0-9.eE]+[ \t]*)?(?:#[^\n]*)?\r?(?:\n|\Z)"
)
"""What follows a name: labels (quoted values may hold anything, escapes included), value, an optional timestamp and exemplar."""
_LABEL = re.compile(rb'(\w+)="((?:[^"\\]++|\\.)*+)"')
_CONFIG = b"vllm:cache_config_info"
_BY_REASON = b"vllm:num_requests_waiting_by_reason"
_LLAMACPP = b"llamacpp:"

Join = Callable[[Sequence[float]], float]


class Names(msgspec.Struct, frozen=True):
    """One signal: the names it has had, newest first, and how several series of it are joined."""

    signal: str
    names: tuple[bytes, ...]
    join: Join


VLLM = (
    Names("waiting", (b"vllm:num_requests_waiting",), sum),
    Names("running", (b"vllm:num_requests_running",), sum),
    # The fullest engine of a replica preempts first, whatever the others have free.
    Names("kv_usage", (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"), max),
    Names("generated_tokens_total", (b"vllm:generation_tokens_total",), sum),
    Names("prompt_tokens_total", (b"vllm:prompt_tokens_total",), sum),
    Names("preemptions_total", (b"vllm:num_preemptions_total",), sum),
)
LLAMACPP = (
    Names("waiting", (b"llamacpp:requests_deferred",), sum),
    Names("running", (b"llamacpp:requests_processing",), sum),
    Names("kv_usage", (b"llamacpp:kv_cache_usage_ratio",), max),
    Names("generated_tokens_total", (b"llamacpp:tokens_predicted_total",), sum),
    Names("prompt_tokens_total", (b"llamacpp:prompt_tokens_total",), sum),
)


class Page(msgspec.Struct, frozen=True):
    """A page, read. ``live_counters``: the token counters move while a request runs (llama.cpp's only when it ends)."""

    signals: EngineSignals
    live_counters: bool


def scan(page: bytes, at_s: float) -> Page:
    """The signals in ``page``, which was received at world time ``at_s``. Total: what is ill is Unknown, with the reason."""
    llamacpp = _find(page, _LLAMACPP, 0) >= 0
    found: dict[str, Signal] = dict.fromkeys(EngineSignals.__struct_fields__, Unknown("missing"))
    found.update((names.signal, _signal(page, names, at_s)) for names in (LLAMACPP if llamacpp else VLLM))
    if not llamacpp:
        found["kv_tokens"] = _kv_tokens(page, at_s)
        found["deferred"] = _deferred(page, at_s)
    return Page(EngineSignals(**found), live_counters=not llamacpp)


def _signal(page: bytes, names: Names, at_s: float) -> Signal:
    for name in names.names:
        samples = _samples(page, name)
        if samples:
            return _joined([value for _, value in samples], names.join, at_s)
    return Unknown("missing")


def _joined(texts: Sequence[bytes], join: Join, at_s: float) -> Signal:
    values = []
    for text in texts:
        value = _number(text)
        if value is None:
            return Unknown(MALFORMED)
        single = reading(value, at_s)
        if isinstance(single, Unknown):
            return single
        values.append(value)
    return reading(float(join(values)), at_s)


def _number(text: bytes) -> float | None:
    try:
        # float() takes "1_000", which no metrics page means.
        return None if b"_" in text else float(text)
    except ValueError:
        return None


def _find(page: bytes, name: bytes, start: int) -> int:
    """Where a line begins with ``name``, at or after ``start`` (which is 0 or just after a line's end); -1 if none does."""
    if page.startswith(name, start):
        return start
    found = page.find(b"\n" + name, start)
    return found + 1 if found >= 0 else -1


def _samples(page: bytes, name: bytes) -> list[tuple[bytes, bytes]]:
    """(labels, value) of every series of exactly ``name``. An ill line gives an ill value, never a missing one."""
    found: list[tuple[bytes, bytes]] = []
    start = _find(page, name, 0)
    while start >= 0 and len(found) < _SERIES_MAX:
        after = start + len(name)
        end = page.find(b"\n", after)
        if page[after : after + 1] in (b"{", b" ", b"\t", b"\n", b"\r", b""):
            match = _SAMPLE.match(page, after)
            found.append((match[1] or b"", match[2]) if match else (b"", MALFORMED.encode()))
            end = match.end() - 1 if match and match[0].endswith(b"\n") else end
        if end < 0:
            break
        start = _find(page, name, end + 1)
    return found


def _deferred(page: bytes, at_s: float) -> Signal:
    """Requests that wait for something other than a place; missing in vLLM's versions that don't tell the two apart."""
    series = [value for labels, value in _samples(page, _BY_REASON) if (b"reason", b"deferred") in _LABEL.findall(labels)]
    return _joined(series, sum, at_s) if series else Unknown("missing")


def _kv_tokens(page: bytes, at_s: float) -> Signal:
    """KV capacity of the whole replica in tokens.

    ``kv_cache_size_tokens`` is one engine's, so it is summed over the series. Older versions tell only blocks, and under
    data parallelism ``num_gpu_blocks`` on every engine's series is already the sum over all: there one series is enough.
    """
    series = [dict(_LABEL.findall(labels)) for labels, _ in _samples(page, _CONFIG)]
    if not series:
        return Unknown("missing")
    sizes = [_number(labels.get(b"kv_cache_size_tokens", b"None")) for labels in series]
    known = [size for size in sizes if size is not None]
    if len(known) == len(series):
        return _positive(sum(known), at_s)
    blocks, block_tokens = (_number(series[0].get(label, b"None")) for label in (b"num_gpu_blocks", b"block_size"))
    if blocks is None or block_tokens is None:
        return Unknown("missing")
    return _positive(blocks * block_tokens, at_s)


def _positive(value: float, at_s: float) -> Signal:
    return Known(value, at_s) if math.isfinite(value) and value > 0 else Unknown("nan")
