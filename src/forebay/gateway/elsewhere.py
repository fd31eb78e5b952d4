"""What the other gateways know of a request: to a client all of them are one address, and each has the records of its own requests.

The gateway that is asked for a record which isn't here, or may be told in full elsewhere, asks every other one, once and at the same
time, with the client's own key. None is waited for longer than a second; where nobody knows the request and one was silent, that is said.
"""

import asyncio
import http
from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from forebay.gateway.answers import ErrorReply, unavailable
from forebay.gateway.http import ClientConnection
from forebay.gateway.meters import Outcome
from forebay.gateway.records import Record, encoded, not_here
from forebay.gateway.request import Request
from forebay.ports.upstream import FetchFailed, Upstream, fetch

ASKING_MAX = 256
"""Clients for whom others are asked at one time; beyond it only what is known here is told."""
ASK_REAL_S = 1.0
ANSWER_BYTES_MAX = 16 * 1024
RETRY_AFTER_S = 2.0
"""Real seconds, by which a gateway that is gone is no longer taken for one that is silent, or answers again."""
AT_A_PEER = "/"
"""In the name of a pool where another gateway has the request (`forwarding`); no configured pool's has it."""
_LEFT = frozenset({Outcome.CLIENT_GONE.value, Outcome.CLIENT_SLOW.value})
"""To a gateway that serves what another one forwards, that one is the client."""
_TOLD_BY_ITSELF = frozenset({Outcome.FAILED.value, Outcome.TRUNCATED.value, Outcome.SHED.value})
"""What a client is told by the gateway that forwarded its request."""
_decode = msgspec.json.Decoder(Record).decode


def tells_most(record: Record) -> tuple[int, float]:
    """For sorting: what became of it is known where it was answered, or, where only the other gateway left there, to that one."""
    ended_s = record.arrived_unix_s + record.total_s
    if AT_A_PEER in record.pool:
        if record.continued:  # the other one knows only the end of the answer
            return 4, ended_s
        return (2 if record.outcome in _TOLD_BY_ITSELF else 0), ended_s
    return (1 if record.outcome in _LEFT else 3), ended_s


class Others(Protocol):
    """The other gateways."""

    @property
    def raw(self) -> Upstream:
        """What reaches them."""
        ...

    @property
    def urls(self) -> Mapping[str, str]:
        """By name, of those too that the controller hasn't heard lately: what they know is asked for all the same."""
        ...

    @property
    def present(self) -> frozenset[str]:
        """Those that it has heard: one of them that is silent may know."""
        ...


class Elsewhere:
    """All such questions of one gateway."""

    def __init__(self) -> None:
        self.live: set[Question] = set()

    def tell(
        self, connection: ClientConnection, request: Request, request_id: bytes, asked: bytes, own: Record | None, others: Others | None
    ) -> None:
        """Answer with the record of the request called ``asked``, of which ``own`` is what is known here."""
        here = own is not None and own.state != "finished" and AT_A_PEER not in own.pool
        if here or connection.by_peer or others is None or not others.urls:
            _answer(connection, request_id, own, not_here(asked))
        elif len(self.live) >= ASKING_MAX:
            _answer(connection, request_id, own, _silent(len(others.urls)))
        else:
            question = Question(self, connection, request_id, own)
            connection.reply = question
            self.live.add(question)
            question.task = asyncio.ensure_future(question.ask(others, request, asked))


class Question:
    """One: `request.Reply` for its client."""

    task: asyncio.Task[None]

    def __init__(self, asking: Elsewhere, connection: ClientConnection, request_id: bytes, own: Record | None) -> None:
        self._asking = asking
        self._connection = connection
        self._request_id = request_id
        self._own = own

    async def ask(self, others: Others, request: Request, asked: bytes) -> None:
        """Ask all, and answer by what tells most."""
        urls = dict(others.urls)
        told = await asyncio.gather(*(_ask_one(others.raw, url, request) for url in urls.values()))
        self._asking.live.discard(self)
        found = [record for record in (self._own, *told) if isinstance(record, Record)]
        silent = sum(record is _SILENT and name in others.present for name, record in zip(urls, told, strict=True))
        self._connection.reply = None  # it is no pool's, and counted as what is refused before it is one's
        record = max(found, key=tells_most) if found else None
        _answer(self._connection, self._request_id, record, _silent(silent) if silent else not_here(asked))

    def shut(self, error: ErrorReply) -> None:
        """The gateway ends before they have answered."""
        self.client_gone()
        self._connection.reply = None
        _answer(self._connection, self._request_id, None, error)

    def client_gone(self) -> None:
        """See `request.Reply`."""
        self._asking.live.discard(self)
        self.task.cancel()

    def client_slow(self) -> None:
        """See `request.Reply`."""

    def client_ready(self) -> None:
        """See `request.Reply`."""


_SILENT: Final = object()


async def _ask_one(upstream: Upstream, url: str, request: Request) -> object:
    """Its record, None where the gateway at ``url`` knows of none, `_SILENT` where it doesn't say."""
    authorization = request.facts.authorization
    wire = b"GET %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (
        request.target.partition(b"?")[0],
        url.partition("//")[2].encode(),
        b"authorization: %b\r\n" % authorization if authorization else b"",
    )
    try:
        status, body = await fetch(upstream, url, wire, ANSWER_BYTES_MAX, ASK_REAL_S)
        if status == http.HTTPStatus.OK:
            return _decode(body)
    except (FetchFailed, ValueError, msgspec.MsgspecError):  # ValueError: its address is none
        return _SILENT
    return None if status == http.HTTPStatus.NOT_FOUND else _SILENT


def _silent(gateways: int) -> ErrorReply:
    return unavailable(
        f"The request is not known here, and {gateways} of the other gateways did not answer within {ASK_REAL_S:g} s. Please ask again.",
        "gateway_silent",
        RETRY_AFTER_S,
    )


def _answer(connection: ClientConnection, request_id: bytes, record: Record | None, otherwise: ErrorReply) -> None:
    extra = b"x-request-id: %b\r\n" % request_id
    if record is None:
        connection.refuse(otherwise, extra)
    else:
        connection.answer(http.HTTPStatus.OK, b"application/json", encoded(record), extra)
