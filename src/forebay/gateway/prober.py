"""Small requests of the gateway's own to engines: a probe of one that is ejected or silent, the text of tokens, an abort by id.

Each is one task with a bound on its time; what an engine answers to an abort is nobody's news.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from forebay.gateway.continuing import CHAT, PATH
from forebay.gateway.events import UNREADABLE
from forebay.ports.upstream import FetchFailed, Upstream, fetch, get_request

PROBE_REAL_S = 5.0
"""A probe without an answer by then has failed."""
PAGE_REAL_S = 2.0
PAGE_BYTES_MAX = 4 * 1024 * 1024
ANSWER_BYTES_MAX = 64 * 1024
TASKS_MAX = 1024
"""Under way at once; a probe beyond it has failed, an abort beyond it is left out."""
TEXT_BYTES_MAX = 1024 * 1024
_ABORT = b"/abort_requests"
_DETOKENIZE = b"/detokenize"
_QUESTIONS: Final[dict[bytes, dict[str, Any]]] = {
    PATH: {"prompt": "ping", "max_tokens": 1},
    CHAT: {"messages": [{"role": "user", "content": "ping"}], "max_tokens": 1},
    b"/v1/embeddings": {"input": "ping"},
}
"""The smallest request of each path."""
_COUNTS: Final = re.compile(rb"^[a-z_]+:(?:\w*tokens?\w*_total|n_decode_total|iteration_tokens\w*_sum)(?:\{[^\n]*\})? [^\n]*", re.MULTILINE)
"""vLLM, SGLang and llama.cpp count as they compute: these counters grow with each step, or with each answer."""


class _Text(msgspec.Struct):
    prompt: str


_decode_any = msgspec.json.Decoder(msgspec.Raw).decode
_decode_text = msgspec.json.Decoder(_Text).decode


class Prober:
    """One gateway's. Its tasks end with ``close``."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._tasks: set[asyncio.Task[None]] = set()

    def probe(self, url: str, model: str, done: Callable[[int | None], None], target: bytes = PATH) -> None:
        """Ask the engine at ``url`` for one token; ``done`` is told the status of its answer, or None where there was none.

        ``target``: the path of a request that it failed, and is asked again as far as it is known how. A 200 that isn't JSON is none.
        """
        if len(self._tasks) >= TASKS_MAX:
            done(None)
            return

        async def run() -> None:
            done(await self._one_token(url, model, target, PROBE_REAL_S))

        self._start(run())

    def listen(self, url: str, model: str, target: bytes, wait_real_s: float, done: Callable[[int | None, bool | None], None]) -> None:
        """As `probe`, waiting so long; told where there is no answer is also whether the engine has counted tokens meanwhile (None: it
        doesn't say)."""
        if len(self._tasks) >= TASKS_MAX:
            done(None, True)
            return

        async def run() -> None:
            before = await self._counted(url)
            status = await self._one_token(url, model, target, wait_real_s)
            after = await self._counted(url) if status is None and before else []
            done(status, before != after if before and after else None)

        self._start(run())

    async def _one_token(self, url: str, model: str, target: bytes, wait_real_s: float) -> int | None:
        path = target if target in _QUESTIONS else PATH
        body = msgspec.json.encode({"model": model, **_QUESTIONS[path]})
        try:
            status, answer = await fetch(self._upstream, url, _post(url, path, body), ANSWER_BYTES_MAX, wait_real_s)
            if status == 200:
                _decode_any(answer)
        except (FetchFailed, ValueError, *UNREADABLE):
            return None
        return status

    async def _counted(self, url: str) -> list[bytes]:
        """The lines of its metrics page that count tokens or steps; empty where it tells none."""
        try:
            status, page = await fetch(self._upstream, url, get_request(url, "/metrics"), PAGE_BYTES_MAX, PAGE_REAL_S)
        except (FetchFailed, ValueError):
            return []
        return _COUNTS.findall(page) if status == 200 else []

    def detokenize(self, url: str, model: str, ids: bytes, done: Callable[[str | None], None]) -> None:
        """Ask the engine at ``url`` for the text of tokens (``ids``: in decimal, a comma after each); None: it doesn't say."""
        body = b'{"model":%b,"tokens":[%b]}' % (msgspec.json.encode(model), ids[:-1])
        if len(self._tasks) >= TASKS_MAX:
            done(None)
            return

        async def run() -> None:
            text = None
            with contextlib.suppress(FetchFailed, ValueError, *UNREADABLE):
                status, answer = await fetch(self._upstream, url, _post(url, _DETOKENIZE, body), TEXT_BYTES_MAX, PROBE_REAL_S)
                text = _decode_text(answer).prompt if status == 200 else None
            done(text)

        self._start(run())

    def abort(self, url: str, path: bytes, request_id: bytes) -> None:
        """Have the engine at ``url`` forget a request by the id it made of ours."""
        prefix = b"chatcmpl-" if path.startswith(CHAT) else b"cmpl-"
        body = msgspec.json.encode({"request_ids": [(prefix + request_id).decode("latin-1")]})
        if len(self._tasks) >= TASKS_MAX:
            return

        async def run() -> None:
            with contextlib.suppress(FetchFailed, ValueError):
                await fetch(self._upstream, url, _post(url, _ABORT, body), ANSWER_BYTES_MAX, PROBE_REAL_S)

        self._start(run())

    async def close(self) -> None:
        """End what runs."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _post(url: str, path: bytes, body: bytes) -> bytes:
    host = url.partition("//")[2].encode()
    head = b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (path, host, len(body)) + body
