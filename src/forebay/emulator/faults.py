"""What can be made to go wrong on command, as one value: ``POST /emulator/fault`` sends it, a test sets it directly.

Each kind is something that real engines have been seen to do. A page is spoilt after it was rendered, so a healthy
scrape pays nothing for it.
"""

import re
from collections.abc import Iterator
from enum import StrEnum

import msgspec


class Kind(StrEnum):
    """The faults."""

    CRASH = "crash"
    """The process dies: connections and port close at once, or after ``after_tokens`` more tokens."""
    ENGINE_DEAD = "engine_dead"
    """The engine process dies behind its HTTP server: streams end with an error event, the rest gets 500, then it exits."""
    HANG = "hang"
    """Steps stop; ``/health`` stays 200 and the gauges stay as they were."""
    SLOW = "slow"
    """Steps take ``factor`` times as long."""
    METRICS = "metrics"
    """``/metrics`` in ``mode`` missing (``status``), closed, frozen, nan or renamed."""
    OOM = "oom"
    """The weights don't fit: a start fails while it loads them."""
    ERROR_FIRST_EVENT = "error_first_event"
    """Streams get status 200, and an error as their first event; the rest gets 503."""
    ALL_500 = "all_500"
    """Every generation request gets 500 while ``/health`` stays 200."""
    ABORT = "abort"
    """Every answer under way ends with ``finish_reason`` ``abort`` and ``[DONE]``, as when vLLM is put to sleep or shut down."""
    CUT = "cut"
    """The connections of all answers under way are reset; the engine lives on."""
    MERGE = "merge"
    """Events carry ``tokens`` tokens each, as they do where the HTTP server is slower than the engine."""
    CLOSE = "close"
    """Connections are closed after a stream, though its head promised to keep them, as llama.cpp does."""
    DEAF = "deaf"
    """SIGTERM is ignored, as by an engine that was told to stop while it started; a second one is obeyed."""


class MetricsMode(StrEnum):
    """How a metrics page can be bad."""

    MISSING = "missing"
    CLOSED = "closed"
    FROZEN = "frozen"
    NAN = "nan"
    RENAMED = "renamed"


OLD_NAMES: dict[str, str] = {
    "vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc",
    "vllm:prefix_cache_queries": "vllm:gpu_prefix_cache_queries",
    "vllm:prefix_cache_hits": "vllm:gpu_prefix_cache_hits",
    "vllm:inter_token_latency_seconds": "vllm:time_per_output_token_seconds",
}
"""Names of before, as a mix of engine versions in one fleet has them."""


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fault. Only the fields that its kind reads matter."""

    kind: Kind
    factor: float = 4.0
    """slow"""
    mode: MetricsMode = MetricsMode.MISSING
    """metrics"""
    status: int = 404
    """metrics, missing: 404 or 500"""
    names: dict[str, str] = msgspec.field(default_factory=OLD_NAMES.copy)
    """metrics, renamed: present name to shown name"""
    after_tokens: int = 0
    """crash: let this many more tokens out first"""
    tokens: int = 4
    """merge"""
    times: int | None = None
    """error_first_event, all_500: that many requests; None: until cleared"""

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ValueError(f"factor must be above 0, not {self.factor}")
        if self.tokens < 1:
            raise ValueError(f"tokens must be at least 1, not {self.tokens}")
        if self.status not in {404, 500, 503}:
            raise ValueError(f"status must be 404, 500 or 503, not {self.status}")


class Command(msgspec.Struct, frozen=True, tag_field="kind", tag="clear", forbid_unknown_fields=True):
    """``{"kind": "clear"}`` ends all faults; with ``only``, that kind."""

    only: Kind | None = None


_GAUGES = re.compile(rb"^(vllm:(?:num_requests_\w+|kv_cache_usage_perc)\{[^}]*\}) .*$", re.MULTILINE)


def spoil(page: bytes, fault: Fault) -> bytes:
    """``page`` with its gauges NaN, or its names changed, as ``fault`` says."""
    if fault.mode is MetricsMode.NAN:
        return _GAUGES.sub(rb"\1 NaN", page)
    if fault.mode is MetricsMode.RENAMED:
        for name, shown in fault.names.items():
            page = page.replace(name.encode(), shown.encode())
    return page


class Faults:
    """The faults that are on, at most one a kind."""

    def __init__(self, *faults: Fault) -> None:
        self._on = {fault.kind: fault for fault in faults}
        self._used: dict[Kind, int] = {}

    def __iter__(self) -> Iterator[Fault]:
        return iter(tuple(self._on.values()))

    def get(self, kind: Kind) -> Fault | None:
        """The fault of ``kind``, if it is on."""
        return self._on.get(kind)

    def add(self, fault: Fault) -> None:
        """Switch ``fault`` on (in place of one of its kind)."""
        self._on[fault.kind] = fault
        self._used.pop(fault.kind, None)

    def clear(self, only: Kind | None = None) -> None:
        """Switch all off, or one kind."""
        for kind in [only] if only is not None else list(self._on):
            self._on.pop(kind, None)

    def take(self, kind: Kind) -> bool:
        """Whether a request should get ``kind`` now; counts it against ``times``."""
        fault = self._on.get(kind)
        if fault is None:
            return False
        used = self._used.get(kind, 0) + 1
        self._used[kind] = used
        if fault.times is not None and used >= fault.times:
            del self._on[kind]
        return True


def decode(body: bytes) -> Fault | Command:
    """The command in ``body``; raises ValueError that says what is allowed."""
    try:
        kind = msgspec.json.decode(body, type=_Kind).kind
        return msgspec.json.decode(body, type=Command if kind == "clear" else Fault)
    except msgspec.MsgspecError as error:
        allowed = ", ".join([*Kind, "clear"])
        raise ValueError(f"{error}; kind is one of {allowed}") from error


class _Kind(msgspec.Struct):
    kind: str
