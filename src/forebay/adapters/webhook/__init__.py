"""Alerts to a webhook, in the background: whoever emits never waits, and a receiver that is down costs a bounded queue.

Each event is one POST of a JSON object, in order, tried a few times with growing, jittered pauses (real seconds: the
receiver lives in the real world). Answers that say the request is wrong are not tried again. What is given up, or falls
out of a full queue, is counted and told to ``problems``. The address may hold a secret, so only its host is ever named.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from urllib.parse import urlsplit

import aiohttp
import msgspec

from forebay.domain.errors import BadInput
from forebay.domain.events import Event
from forebay.ports.events import EventSink

QUEUE_MAX = 1000
ATTEMPTS_MAX = 5
PAUSE_FIRST_S = 1.0
PAUSE_MOST_S = 30.0
TIMEOUT_S = 10.0
CLOSE_S = 5.0
"""How long closing waits for what is queued."""
_TRY_AGAIN = frozenset({408, 425, 429})


class Pace(msgspec.Struct, frozen=True):
    """Real seconds."""

    attempts_max: int = ATTEMPTS_MAX
    pause_first_s: float = PAUSE_FIRST_S
    pause_most_s: float = PAUSE_MOST_S
    timeout_s: float = TIMEOUT_S
    queue_max: int = QUEUE_MAX


def is_alert(event: Event) -> bool:
    """The events a webhook gets by default: alerts, as they begin and end."""
    return event.kind.startswith("alert")


class Webhook:
    """`ports.EventSink`; make it inside a running loop, and ``close`` it there."""

    def __init__(
        self,
        url: str,
        chance: random.Random | None = None,
        problems: EventSink | None = None,
        wanted: Callable[[Event], bool] = is_alert,
        pace: Pace | None = None,
    ) -> None:
        """``chance`` jitters the pauses, if given; ``problems`` is told what could not be delivered.

        Raises BadInput on an address that isn't one.
        """
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise BadInput("webhook: found an address without http:// or https:// and a host; write https://host/path")
        self.delivered = 0
        self.dropped = 0
        self._url = url
        self._host = parts.hostname
        self._chance = chance
        self._problems = problems
        self._wanted = wanted
        self._pace = pace or Pace()
        self._queue: deque[Event] = deque()
        self._more = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task = asyncio.get_running_loop().create_task(self._send_all(), name="webhook")

    def emit(self, event: Event) -> None:
        """Queue ``event`` if it is wanted; the oldest falls out of a full queue."""
        if not self._wanted(event) or self._task.done():
            return
        if len(self._queue) >= self._pace.queue_max:
            self._lost(self._queue.popleft(), "the queue is full")
        self._queue.append(event)
        self._idle.clear()
        self._more.set()

    async def close(self) -> None:
        """Give what is queued a little time, then end; idempotent."""
        try:
            await asyncio.wait_for(self._idle.wait(), CLOSE_S)
        except TimeoutError:
            self.dropped += len(self._queue)
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _send_all(self) -> None:
        timeout = aiohttp.ClientTimeout(total=self._pace.timeout_s)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                await self._more.wait()
                while self._queue:
                    await self._send(session, self._queue.popleft())
                self._more.clear()
                self._idle.set()

    async def _send(self, session: aiohttp.ClientSession, event: Event) -> None:
        body = msgspec.json.encode(payload(event))
        why = ""
        for attempt in range(self._pace.attempts_max):
            if attempt:
                pause_s = min(self._pace.pause_most_s, self._pace.pause_first_s * 2.0 ** (attempt - 1))
                await asyncio.sleep(pause_s * (1.0 - 0.5 * self._chance.random()) if self._chance else pause_s)
            try:
                headers = {"content-type": "application/json"}
                async with session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                    status = response.status
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                why = type(error).__name__
                continue
            if status < 300:
                self.delivered += 1
                return
            why = f"it answered {status}"
            if status < 500 and status not in _TRY_AGAIN:
                break
        self._lost(event, why)

    def _lost(self, event: Event, why: str) -> None:
        self.dropped += 1
        if self._problems is not None:
            message = f"{event.kind} was not delivered to the webhook at {self._host}: {why}"
            self._problems.emit(Event("webhook_failed", event.at_s, event.wall_s, event.pool, message))


def payload(event: Event) -> dict[str, object]:
    """What is posted; ``text`` is what chat services show."""
    return {
        "text": f"[{event.pool or 'forebay'}] {event.kind}: {event.message}",
        "kind": event.kind,
        "pool": event.pool,
        "message": event.message,
        "wall_s": event.wall_s,
        "detail": event.detail,
    }
