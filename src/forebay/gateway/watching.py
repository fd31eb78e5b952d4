"""Answers that go on in an engine after their client was told so (``background: true``): it is asked until they have really ended.

Only the engine knows when that is. So each is asked for where it is kept, over one connection at a time: after a tenth of the time that it
has taken so far, within bounds, so that what it holds is held little longer than it works. What is told is the call's to settle.
"""

import asyncio
import contextlib
import re
from typing import Protocol

import msgspec

from forebay.domain.shape import Usage
from forebay.gateway.events import UNREADABLE
from forebay.gateway.meters import Outcome
from forebay.gateway.typed import TypedUsage
from forebay.gateway.whole import usage_object
from forebay.ports.clock import Clock
from forebay.ports.upstream import End, FetchFailed, Upstream, fetch, get_request

WATCHED_MAX = 4096
"""At once. One more is cancelled, and its client told to come back."""
ASKED_MAX = 4
"""Questions under way at once at one engine; others wait their turn, and those at other engines for nobody."""
FIRST_REAL_S = 0.5
"""The shortest time before an engine is asked again…"""
EVERY_REAL_S_MAX = 5.0
"""…and the longest; between them it is…"""
EVERY_SHARE = 0.1
"""…this share of the time that the answer has taken."""
ANSWER_REAL_S = 5.0
"""An engine that hasn't said by then was asked in vain."""
IN_VAIN_MAX = 3
"""An engine that was asked so often in vain, one time after the other, has lost the answer."""
CANCELS_MAX = 1024
"""Under way at once; one beyond it is left out."""
TOLD_BYTES_MAX = 1024 * 1024
"""Of what an engine tells; of more than that only the end is looked at."""
USAGE_BYTES_MAX = 16 * 1024
"""So near to that end stands the usage."""
FORGOTTEN = "Its engine knows nothing more of what it did in the background: it has started anew, or forgotten it."
_RUNS = frozenset({"queued", "in_progress"})
_ENDED_WELL = frozenset({"completed", "incomplete"})
_STATUS = re.compile(rb'"status":\s*"([a-z_]{1,32})"')


class Watched(Protocol):
    """A call whose answer goes on without its client (`background.BackgroundCall`)."""

    def ended_alone(self, outcome: Outcome, usage: Usage | None, why: str, gone: bool) -> None:
        """It has. ``why``: what went wrong, if anything; ``gone``: nobody listens where its engine was."""
        ...


class Told(msgspec.Struct):
    """What is read of an answer that an engine keeps."""

    id: str = ""
    status: str = ""
    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()

    @property
    def runs(self) -> bool:
        """It is not over."""
        return self.status in _RUNS

    def usage_told(self) -> Usage | None:
        """What it took, as far as that can be read."""
        try:
            told = _decode_usage(self.usage) if self.usage else None
        except UNREADABLE:
            return None
        return None if told is None else told.usage()


class _Error(msgspec.Struct):
    message: str = ""


_decode = msgspec.json.Decoder(Told).decode
_decode_usage = msgspec.json.Decoder(TypedUsage | None).decode
_decode_error = msgspec.json.Decoder(_Error | None).decode


def told_in(body: bytes) -> Told | None:
    """What an engine says of an answer that it keeps; None: nothing that can be read. Of a long one only the end need be there."""
    try:
        return _decode(body)
    except UNREADABLE:
        found = _STATUS.findall(body)
        if not found or len(body) < TOLD_BYTES_MAX:
            return None
        return Told(status=found[-1].decode(), usage=msgspec.Raw(usage_object(body[-USAGE_BYTES_MAX:])))


class _Engine:
    """One at which answers are watched."""

    __slots__ = ("turns", "watched")

    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(ASKED_MAX)
        self.watched = 0


class Watch:
    """One answer that is watched."""

    __slots__ = ("call", "due", "in_vain", "response_id", "since_s", "task", "url")

    def __init__(self, call: Watched, url: str, response_id: str, since_s: float) -> None:
        self.call, self.url, self.response_id, self.since_s = call, url, response_id, since_s
        self.due = asyncio.Event()
        """It is time to ask."""
        self.in_vain = 0
        self.task: asyncio.Task[None] | None = None


class Watching:
    """All of one gateway. Its tasks end with ``close``."""

    def __init__(self, upstream: Upstream, clock: Clock) -> None:
        self._upstream, self._clock = upstream, clock
        self._watched: dict[Watch, None] = {}
        self._cancels: set[asyncio.Task[None]] = set()
        self._engines: dict[str, _Engine] = {}

        self.alone = 0
        """Calls without a client that are not watched yet."""

    @property
    def apart(self) -> int:
        """Calls inside that no client's connection has."""
        return len(self._watched) + self.alone

    @property
    def full(self) -> bool:
        """There is no room for one more."""
        return len(self._watched) >= WATCHED_MAX

    def begin(self, call: Watched, url: str, response_id: str) -> Watch:
        """Ask the engine at ``url`` about it until it has ended."""
        watch = Watch(call, url, response_id, self._clock.now_s())
        self._watched[watch] = None
        self._engines.setdefault(url, _Engine()).watched += 1
        watch.task = asyncio.get_running_loop().create_task(self._watch(watch), name=f"watch {response_id}")
        return watch

    def stop(self, watch: Watch) -> None:
        """Ask no more."""
        self._forget(watch)
        if watch.task is not None:
            watch.task.cancel()

    def cancel(self, url: str, response_id: str) -> None:
        """Have the engine at ``url`` stop working on it; what it answers is nobody's news."""
        if len(self._cancels) < CANCELS_MAX:
            task = asyncio.get_running_loop().create_task(self._cancel(url, response_id))
            self._cancels.add(task)
            task.add_done_callback(self._cancels.discard)

    def touched(self, url: str, response_id: str, *, deleted: bool) -> None:
        """A client has just had the engine at ``url`` stop it, or forget it (``deleted``)."""
        for watch in [each for each in self._watched if each.url == url and each.response_id == response_id]:
            if deleted:
                self.stop(watch)
                watch.call.ended_alone(Outcome.CLIENT_GONE, None, "Its client deleted it.", False)
            else:
                watch.due.set()

    async def close(self) -> None:
        """Ask nobody any more."""
        tasks = [watch.task for watch in self._watched if watch.task is not None] + list(self._cancels)
        self._watched.clear()
        self._engines.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, watch: Watch) -> None:
        if watch in self._watched:
            del self._watched[watch]
            engine = self._engines[watch.url]
            engine.watched -= 1
            if not engine.watched:
                del self._engines[watch.url]

    async def _watch(self, watch: Watch) -> None:
        path, turns = f"/v1/responses/{watch.response_id}", self._engines[watch.url].turns
        while True:
            await self._pause(watch)
            status, body, failed, gone = 0, b"", "", False
            question = get_request(watch.url, path)
            async with turns:
                try:
                    status, body = await fetch(self._upstream, watch.url, question, TOLD_BYTES_MAX, ANSWER_REAL_S, only_end=True)
                except FetchFailed as error:
                    failed, gone = str(error), error.end is End.REFUSED
                except ValueError as error:
                    failed = str(error)
            if self._learn(watch, status, body, failed, gone=gone):
                return

    async def _pause(self, watch: Watch) -> None:
        """Until it is time to ask, by the time it has taken, or by one who knows."""
        speed = self._clock.speed
        taken_real_s = (self._clock.now_s() - watch.since_s) / speed
        wait_real_s = min(EVERY_REAL_S_MAX, max(FIRST_REAL_S, EVERY_SHARE * taken_real_s))
        timer = self._clock.call_at(self._clock.now_s() + wait_real_s * speed, watch.due.set)
        try:
            await watch.due.wait()
        finally:
            timer.cancel()
        watch.due.clear()

    def _learn(self, watch: Watch, status: int, body: bytes, failed: str, *, gone: bool) -> bool:
        """What the engine has answered; whether that was the end."""
        told = told_in(body) if status == 200 else None
        if told is not None and told.runs:
            watch.in_vain = 0
            return False
        if told is not None and told.status:
            usage = told.usage_told()
            outcome, why = _outcome(told)
        elif status == 404:
            usage, outcome, why = None, Outcome.FAILED, FORGOTTEN
        else:
            watch.in_vain += 1
            if watch.in_vain < IN_VAIN_MAX and not gone:
                return False
            said = failed or (f"it answered {status}" if status != 200 else "what it answers can't be read")
            usage, outcome, why = None, Outcome.FAILED, f"Its engine can't be asked about what it did in the background ({said})."
        self._forget(watch)
        watch.call.ended_alone(outcome, usage, why, gone)
        return True

    async def _cancel(self, url: str, response_id: str) -> None:
        host = url.partition("//")[2]
        request = f"POST /v1/responses/{response_id}/cancel HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\n\r\n".encode()
        with contextlib.suppress(FetchFailed, ValueError):
            await fetch(self._upstream, url, request, TOLD_BYTES_MAX, ANSWER_REAL_S, only_end=True)


def _outcome(told: Told) -> tuple[Outcome, str]:
    if told.status in _ENDED_WELL:
        return Outcome.COMPLETED, ""
    if told.status == "cancelled":
        return Outcome.CLIENT_GONE, "It was cancelled."
    said = f"Its engine says {told.status!r} of what it did in the background"
    with contextlib.suppress(*UNREADABLE):
        error = _decode_error(told.error) if told.error else None
        said += f": {error.message}" if error is not None and error.message else ""
    return Outcome.FAILED, f"{said}."
