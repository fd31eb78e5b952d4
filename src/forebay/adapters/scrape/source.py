"""Reads engines by scraping their ``/metrics``: every id gets an answer in bounded time, Known or Unknown with the reason.

A wedged engine goes on answering with the numbers of its last step. So a page that says requests run (or wait) while
nothing in it has moved for a while is ``frozen``: an idle engine is flat too, but says that it is idle. Where only the end of
a request moves the counters (llama.cpp) a long answer looks the same, so there it isn't judged.
"""

import asyncio
from collections.abc import Mapping

import msgspec

from forebay.adapters.scrape.scan import Page, scan
from forebay.domain.signal import Known, Signal, Unknown
from forebay.ports.clock import Clock
from forebay.ports.signals import EngineSignals
from forebay.ports.upstream import ASKS_KEY, End, FetchFailed, Upstream, fetch, get_request

PATH = "/metrics"
TIMEOUT_REAL_S = 2.0
"""vLLM answers a scrape in 2-50 ms idle and in up to 0.6 s under load."""
CONCURRENT_MAX = 64
PAGE_BYTES_MAX = 4 * 2**20
FROZEN_AFTER_S = 30.0
FROZEN_AFTER_REAL_S = 5.0
"""However fast the world runs, an engine that merely waits for a busy machine's CPU is not frozen."""
REMEMBERED_MAX = 10_000
"""Replicas whose last page is remembered; beyond, the one longest unread is forgotten."""
_WHY = {
    End.CONNECT_FAILED: "refused",
    End.REFUSED: "refused",
    End.TIMEOUT: "timeout",
    End.CUT: "cut",
    End.STALE: "cut",
    End.BAD_RESPONSE: "bad_response",
    End.ABORTED: "timeout",
}


class _Seen(msgspec.Struct, frozen=True):
    """What a replica's page said, and since when it has said just that."""

    numbers: tuple[float | str, ...]
    since_s: float


class ScrapeSource:
    """`ports.SignalSource` over HTTP. One read takes at most twice the time-out, however many replicas are silent."""

    def __init__(
        self,
        upstream: Upstream,
        clock: Clock,
        *,
        timeout_real_s: float = TIMEOUT_REAL_S,
        concurrent_max: int = CONCURRENT_MAX,
        frozen_after_s: float = FROZEN_AFTER_S,
    ) -> None:
        self._upstream = upstream
        self._clock = clock
        self._timeout_real_s = timeout_real_s
        self._slots = asyncio.Semaphore(concurrent_max)
        self._frozen_after_s = max(frozen_after_s, FROZEN_AFTER_REAL_S * clock.speed)
        self._seen: dict[str, _Seen] = {}

    async def read(self, replicas: Mapping[str, str]) -> dict[str, EngineSignals]:
        """Signals by replica id for ``replicas`` (id → base URL)."""
        if not replicas:
            return {}
        tasks = {replica_id: asyncio.create_task(self._one(replica_id, url)) for replica_id, url in replicas.items()}
        try:
            _, late = await asyncio.wait(tasks.values(), timeout=2 * self._timeout_real_s)
        except asyncio.CancelledError:
            late = set(tasks.values())
            raise
        finally:
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        return {replica_id: _unknown("timeout") if task.cancelled() else task.result() for replica_id, task in tasks.items()}

    async def _one(self, replica_id: str, url: str) -> EngineSignals:
        try:
            async with self._slots:
                status, body = await fetch(self._upstream, url, get_request(url, PATH), PAGE_BYTES_MAX, self._timeout_real_s)
        except FetchFailed as failed:
            return _unknown(_WHY.get(failed.end, "failed"))
        except (OSError, ValueError):
            return _unknown("bad_url")
        if status != 200:
            return _unknown("asks_key" if status in ASKS_KEY else "status")
        at_s = self._clock.now_s()
        return self._judged(replica_id, scan(body, at_s), at_s)

    def _judged(self, replica_id: str, page: Page, at_s: float) -> EngineSignals:
        """The page's signals, or ``frozen`` for all of them."""
        signals = page.signals
        numbers = tuple(
            _face(signal)
            for signal in (
                signals.waiting,
                signals.running,
                signals.kv_usage,
                signals.generated_tokens_total,
                signals.prompt_tokens_total,
                signals.preemptions_total,
            )
        )
        seen = self._seen.pop(replica_id, None)
        if seen is None or seen.numbers != numbers or not page.live_counters or not _busy(signals):
            seen = _Seen(numbers, at_s)
        self._seen[replica_id] = seen
        if len(self._seen) > REMEMBERED_MAX:
            del self._seen[next(iter(self._seen))]
        return _unknown("frozen") if at_s - seen.since_s > self._frozen_after_s else signals


def _busy(signals: EngineSignals) -> bool:
    """Work is said to be there, and the counter that work moves can be read."""
    tells = isinstance(signals.generated_tokens_total, Known)
    return tells and any(isinstance(signal, Known) and signal.value > 0 for signal in (signals.running, signals.waiting))


def _face(signal: Signal) -> float | str:
    return signal.value if isinstance(signal, Known) else signal.why


def _unknown(why: str) -> EngineSignals:
    return EngineSignals(**{name: Unknown(why) for name in EngineSignals.__struct_fields__})
