"""What one look at an engine says: its health answer, and, once that is good, whether its metrics answer too.

An engine that starts refuses connections (vLLM), answers 503 with words (llama.cpp) or 503 with ``{"stage": …}`` (the
emulator, which plays the stages a node goes through). Ready means: healthy, and its metrics can be read, for a
replica that cannot be read would be Unknown from its first second.
"""

from enum import StrEnum

import msgspec

from forebay.ports.upstream import ASKS_KEY, End, FetchFailed, Upstream, fetch, get_request

METRICS_PATH = "/metrics"
KEY_PATHS = {"vllm": "/v1/models", "llamacpp": "/props"}
"""What each answers only to who shows its key (llama.cpp lists its models to anybody), and costs it nothing."""
BODY_BYTES_MAX = 4 * 2**20
STAGE_CHARS_MAX = 32


class HealthKind(StrEnum):
    """Kinds of answer."""

    REFUSED = "refused"
    STAGE = "stage"
    """Starting, and it says where it is."""
    SICK = "sick"
    """An answer that is neither, or none in time."""
    HEALTHY = "healthy"
    """Healthy, but the metrics do not answer (or were not asked for)."""
    SERVING = "serving"
    """Healthy, and its metrics answer."""


class Health(msgspec.Struct, frozen=True):
    """``detail``: the stage's name, or what was wrong."""

    kind: HealthKind
    detail: str = ""
    asks_key: int = 0
    """The status by which it says that it asks for a key; 0: it does not."""


class _StageBody(msgspec.Struct):
    stage: str


async def probe(upstream: Upstream, url: str, health_path: str, with_metrics: bool, timeout_real_s: float) -> Health:
    """One look at the engine at ``url``; never raises on what an engine does; at most twice ``timeout_real_s`` long."""
    try:
        status, body = await fetch(upstream, url, get_request(url, health_path), BODY_BYTES_MAX, timeout_real_s)
    except FetchFailed as failed:
        if failed.end in {End.CONNECT_FAILED, End.REFUSED}:
            return Health(HealthKind.REFUSED, "connection refused")
        return Health(HealthKind.SICK, f"{health_path}: {failed.end}")
    if status == 503:
        return _starting(body, health_path)
    if status != 200:
        return Health(HealthKind.SICK, f"{health_path} answered {status}", status if status in ASKS_KEY else 0)
    return await _metrics(upstream, url, timeout_real_s) if with_metrics else Health(HealthKind.HEALTHY)


async def asks_key(upstream: Upstream, url: str, metrics: str, timeout_real_s: float) -> int:
    """The status by which the engine at ``url`` says that it asks for a key that it isn't shown; 0: it does not.

    ``metrics``: whose it is. Its health says nothing of that: vLLM, SGLang and llama.cpp answer it to anybody.
    """
    try:
        status, _ = await fetch(upstream, url, get_request(url, KEY_PATHS[metrics]), BODY_BYTES_MAX, timeout_real_s)
    except FetchFailed:
        return 0
    return status if status in ASKS_KEY else 0


async def _metrics(upstream: Upstream, url: str, timeout_real_s: float) -> Health:
    try:
        status, _ = await fetch(upstream, url, get_request(url, METRICS_PATH), BODY_BYTES_MAX, timeout_real_s)
    except FetchFailed as failed:
        found = f"failed: {failed.end}"
    else:
        if status == 200:
            return Health(HealthKind.SERVING)
        found = f"answered {status}"
    return Health(HealthKind.HEALTHY, f"healthy, but its {METRICS_PATH} {found} (llama-server needs --metrics)")


def _starting(body: bytes, health_path: str) -> Health:
    try:
        stage = msgspec.json.decode(body, type=_StageBody).stage[:STAGE_CHARS_MAX]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        stage = ""
    return Health(HealthKind.STAGE, stage) if stage else Health(HealthKind.SICK, f"{health_path} answered 503")
