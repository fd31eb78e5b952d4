"""A call whose body is passed on as it comes: too large to be held, so it can't be sent twice.

It waits for its replica with the client held back, and begins on a connection of its own. From the first byte that the
engine takes beyond the beginning, a failure is final; before that another replica may be tried.
"""

import msgspec

from forebay.admission.prefixes import Prefix
from forebay.domain.shape import Shape, Usage
from forebay.gateway.answers import LAST_CHUNK, ErrorReply, chunk
from forebay.gateway.background import BackgroundCall
from forebay.gateway.dialects import RESPONSES
from forebay.gateway.meters import Outcome
from forebay.gateway.refusals import ENGINE_ASKS_KEY
from forebay.gateway.relay import Call
from forebay.gateway.request import LargeRequest, Request
from forebay.gateway.routes import POSTS, Route
from forebay.gateway.sse import EventStream
from forebay.gateway.surface import BinaryCall, TypedCall
from forebay.gateway.whole import looked_at
from forebay.ports.upstream import End, ResponseHead
from forebay.spec.types import Tier


class LargeCall(BackgroundCall):
    """Also `request.BodyTaker` for the client's connection, and `ports.BodySource` for the engine's."""

    __slots__ = ("_begun", "_large", "_length")

    _large: LargeRequest

    def start(self, tier: Tier, shape: Shape, now_s: float, patience_s: float, prefix: Prefix | None = None) -> None:
        """Queue it; the client sends no more until its turn."""
        large = self._request
        assert isinstance(large, LargeRequest)
        self._large = large
        self._begun = False
        grown = len(self._body) - len(large.body)  # another name for the model
        self._length = None if large.length is None else large.length + grown
        large.taker = self
        self._connection.hold_back(True)
        super().start(tier, shape, now_s, patience_s, prefix)

    def _send(self) -> None:
        url, request, body = self._replica_url, self._request, self._body
        framing = b"transfer-encoding: chunked" if self._length is None else b"content-length: %d" % self._length
        wire = b"POST %b HTTP/1.1\r\nhost: %b\r\n%b%bx-request-id: %b\r\n%b\r\n\r\n%b" % (
            request.target,
            url.partition("//")[2].encode(),
            request.facts.forwarded,
            b"" if not self._pool.peer else self._hop_lines(),
            self._request_id,
            framing,
            chunk(body) if self._length is None else body,
        )
        try:
            self._exchange = self._context.upstream.send(url, wire, self, more=self)
        except ValueError as error:
            self._failed(End.CONNECT_FAILED, str(error))
            return
        if self._paused:
            self._exchange.pause()

    # -- the body -----------------------------------------------------------------------------------------------------

    def wanted(self) -> None:
        """The engine takes more."""
        if not self._begun:
            self._begun = True
            self._body = b""
            self._large.peek.held = bytearray()
            self._connection.release(self._request)
        self._connection.hold_back(False)

    def unwanted(self) -> None:
        """It takes no more for now."""
        self._connection.hold_back(True)

    def body_part(self, part: bytes) -> None:
        """The client sent some."""
        if self._exchange is not None:
            self._exchange.write(part if self._length is not None else chunk(part))

    def body_end(self) -> None:
        """That was all."""
        if self._exchange is not None:
            if self._length is None:
                self._exchange.write(LAST_CHUNK)
            self._exchange.written()

    def body_refused(self, error: ErrorReply) -> None:
        """The rest is not HTTP, or too much: the engine will never have a whole request."""
        if self._over:
            return
        self._end(Outcome.FAILED, None)
        if self._open:
            self._connection.abort()
        else:
            self._refuse(error)

    def _has_all(self, stream: EventStream) -> bool:
        """Of how many choices that would be stands in a part of the body that nobody has read; an answer with typed events has one."""
        return stream.says_all and super()._has_all(stream)

    # -- the answer ---------------------------------------------------------------------------------------------------

    def _stream_of(self, head: ResponseHead) -> EventStream:
        typed = POSTS[self._request.target.partition(b"?")[0]].typed
        return super()._stream_of(head) if typed else EventStream(head.chunked, self._request.modern)

    def head(self, head: ResponseHead) -> None:
        """Whether a stream was asked for stands in the body, and need not have been seen."""
        self._may_stream(head)
        super().head(head)

    def answer(self, head: ResponseHead, body: bytes) -> None:
        """As for `head`."""
        self._may_stream(head)
        super().answer(head, body)

    def _may_stream(self, head: ResponseHead) -> None:
        if not self._ask.stream and head.status == 200 and self._context.passed_heads.of(head).events:
            self._ask = msgspec.structs.replace(self._ask, stream=True)

    def _try_elsewhere(self, message: str, *, blame: bool = True, detail: str = "", paid: bool = True, gone: bool = False) -> None:
        if not self._begun:
            super()._try_elsewhere(message, blame=blame, detail=detail, paid=paid, gone=gone)
            return
        if blame:
            self._context.failures.note(self._pool.name, self._replica, self._replica_url, f"{message} {detail}".strip())
        why = f"{message} A body this large is not held, so it can't be sent again."
        code = "engine_asks_key" if message == ENGINE_ASKS_KEY else "engines_failed"
        self._give_up(ErrorReply(502, "server_error", code, why, retry_after_s=self._failed_wait_s()))

    def _elsewhere(self) -> bool:
        return not self._begun and super()._elsewhere()

    def _doubts(self, status: int, body: bytes, error: ErrorReply | None) -> bool:
        return not self._begun and super()._doubts(status, body, error)

    def resumable(self) -> int | None:
        """See `desk.Caller`: what was passed on of its body is gone."""
        return None if self._begun else super().resumable()

    def owes_whole(self) -> str:
        """See `pool_desk.Caller`: its engine may still wait for the rest of its body."""
        return ""

    def _look_at(self, body: bytes) -> tuple[Usage | None, bool]:
        return super()._look_at(body) if self._request.target.startswith(RESPONSES) else looked_at(body)


def call_for(route: Route, request: Request) -> type[Call]:
    """The kind of call that a request of this route is."""
    if isinstance(request, LargeRequest) and not request.ended:
        return LargeCall
    if route.stateful:
        return BackgroundCall
    if route.binary:
        return BinaryCall
    return TypedCall if route.typed else Call
