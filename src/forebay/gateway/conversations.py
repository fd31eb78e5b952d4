"""Whose an answer is that an engine keeps, and which replica keeps it: known here, or to another gateway, or to nobody.

What is known here is told at once. Else every other gateway is asked, while the client waits. An id that none of them knows is from
before Forebay, or was forgotten: where there are teams nobody can say whose it is, so to all of them it is none. Where there are none,
the replicas themselves are asked which of them has it.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from forebay.gateway.answers import ErrorReply
from forebay.gateway.holders import Holder, Holders
from forebay.gateway.http import ClientConnection
from forebay.ports.upstream import End, ResponseHead, Upstream, get_request

SEEKING_MAX: Final = 256
"""Ids looked for at once."""
ASKED_MAX: Final = 16
"""Replicas asked for one id…"""
ASK_REAL_S: Final = 2.0
"""…and how long each has for the head of its answer."""
RETRY_AFTER_S: Final = 5.0
_FOUND: Final = 200
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
SHOWN_CHARS: Final = 200
"""Of an id, in words for its asker."""

BUSY = ErrorReply(503, "service_unavailable", "gateway_overloaded", "Too many responses are looked for at once.", retry_after_s=1.0)


def not_found(response_id: str) -> ErrorReply:
    """404, as for one that never was."""
    return ErrorReply(404, "invalid_request_error", None, f"Response with id '{response_id[:SHOWN_CHARS]}' not found.", "response_id")


def previous_not_found(response_id: str, why: str = "") -> ErrorReply:
    """The same for one that is to be gone on from, by OpenAI's code."""
    message = f"Previous response with id '{response_id[:SHOWN_CHARS]}' not found{why}. Send the whole conversation as input."
    return ErrorReply(404, "invalid_request_error", "previous_response_not_found", message, "previous_response_id")


def unsure(response_id: str) -> ErrorReply:
    """Somebody who may know it does not say."""
    message = f"Who keeps response '{response_id}' can't be told now: not all that may know it answer. Please ask again."
    return ErrorReply(503, "service_unavailable", "previous_response_unavailable", message, retry_after_s=RETRY_AFTER_S)


class Peers(Protocol):
    """The other gateways, of one of several."""

    async def holder(self, response_id: str) -> tuple[Holder | None, bool]:
        """Who keeps it, as another gateway knows; and, where none knows, whether each has said so."""
        ...


Then = Callable[[Holder | ErrorReply | None], None]
"""Told who keeps it, and that it is its asker's; or what to tell that; None: nobody knows, and any replica may be asked."""


class Seek:
    """One client that waits until it is known who keeps an answer: `http.Reply`."""

    def __init__(self, connection: ClientConnection, over: Callable[["Seek"], None], request_id: bytes) -> None:
        self._connection = connection
        self._over = over
        self._request_id = request_id
        self.task: asyncio.Task[None] | None = None

    def client_gone(self) -> None:
        """Nobody waits for it."""
        self.end()

    def client_slow(self) -> None:
        """Nothing is written."""

    def client_ready(self) -> None:
        """Nothing is written."""

    def shut(self, error: ErrorReply) -> None:
        """The gateway ends before it is known."""
        self.end()
        self._connection.refuse(error, b"x-request-id: %b\r\n" % self._request_id)

    def end(self) -> None:
        """Look no more."""
        self._over(self)
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()


class Conversations:
    """All that is known of kept answers to one gateway, and who looks for one."""

    def __init__(self, upstream: Upstream) -> None:
        self.holders = Holders()
        self.seeking: set[Seek] = set()
        self._upstream = upstream

    def find(
        self,
        response_id: str,
        team: str,
        peers: Peers | None,
        replicas: Iterable[str] | None,
        connection: ClientConnection,
        request_id: bytes,
        then: Then,
    ) -> None:
        """Tell ``then`` at once where it is known here; else when others have said. ``replicas`` are asked too; None: there are teams."""
        holder = self.holders.find(response_id)
        if holder is not None or (peers is None and not replicas) or _ID.fullmatch(response_id) is None:
            then(self._theirs(response_id, holder, team, among_teams=replicas is None))
            return
        if len(self.seeking) >= SEEKING_MAX:
            then(BUSY)
            return
        seek = Seek(connection, self.seeking.discard, request_id)
        connection.reply = seek
        self.seeking.add(seek)
        seek.task = asyncio.ensure_future(self._seek(seek, response_id, team, peers, replicas, connection, then))

    def _theirs(self, response_id: str, holder: Holder | None, team: str, *, among_teams: bool) -> Holder | ErrorReply | None:
        if holder is None:
            return not_found(response_id) if among_teams else None
        return holder if holder.team == team else not_found(response_id)

    async def _seek(
        self,
        seek: Seek,
        response_id: str,
        team: str,
        peers: Peers | None,
        replicas: Iterable[str] | None,
        connection: ClientConnection,
        then: Then,
    ) -> None:
        known, sure = (None, True) if peers is None else await peers.holder(response_id)
        if known is None and replicas is not None:
            url = await self._look(response_id, replicas)
            known = Holder(url, team) if url else None
        if known is not None:
            self.holders.learn(response_id, known)
        seek.end()
        connection.reply = None
        found = self._theirs(response_id, known, team, among_teams=replicas is None)
        try:
            then(unsure(response_id) if isinstance(found, ErrorReply) and known is None and not sure else found)
        except Exception:
            connection.abort()  # a fault of ours: nobody else would tell its client
            raise

    async def _look(self, response_id: str, replicas: Iterable[str]) -> str:
        """The address of the replica that has it; empty: none says so."""
        looks = [self._ask(url, response_id) for url in list(replicas)[:ASKED_MAX]]
        return next((url for url in await asyncio.gather(*looks) if url), "")

    async def _ask(self, url: str, response_id: str) -> str:
        sink = _Status()
        with contextlib.suppress(ValueError):
            exchange = self._upstream.send(url, get_request(url, f"/v1/responses/{response_id}"), sink, ASK_REAL_S)
            try:
                return url if await sink.done == _FOUND else ""
            finally:
                exchange.abort()
        return ""


class _Status:
    """Waits for the status of an answer, and reads no more of it."""

    answer = None

    def __init__(self) -> None:
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def head(self, head: ResponseHead) -> None:
        """See `ports.ResponseSink`."""
        self._tell(head.status)

    def data(self, wire: bytes, body: bytes, whole: bool, last: bool) -> None:
        """See `ports.ResponseSink`."""

    def end(self, end: End, detail: str) -> None:
        """See `ports.ResponseSink`."""
        del end, detail
        self._tell(0)

    def _tell(self, status: int) -> None:
        if not self.done.done():
            self.done.set_result(status)
