"""A request that costs no GPU: counting tokens, or an answer that an engine keeps. It waits in no lane and holds no permit.

It is sent to one replica after the other until one answers; an answer passes as it comes. All of these may be asked twice, so that one
that is silent is given up soon while there is another.
"""

from collections.abc import Callable
from typing import Protocol

from forebay.gateway.answers import LAST_CHUNK, ErrorReply, chunk
from forebay.gateway.dialects import in_shape
from forebay.gateway.events import is_json
from forebay.gateway.http import ClientConnection
from forebay.gateway.passed import PassedHead, PassedHeads, passed_answer
from forebay.gateway.refusals import ASKS_KEY_REPLY
from forebay.gateway.request import Request
from forebay.ports.clock import TimerHandle
from forebay.ports.upstream import ASKS_KEY, End, Exchange, ResponseHead, Upstream

TRIED_MAX = 16
"""Replicas asked for one request."""
DIRECT_S = 60.0
"""Real seconds from asking one replica to the end of its answer."""
STREAM_S = 7200.0
"""The same where a stream may follow…"""
HEAD_S = 60.0
"""…whose head comes within this…"""
HEAD_BEFORE_NEXT_S = 5.0
"""…and that of any answer within this where another replica can be asked: one that hangs keeps nobody from it."""
NOT_HERE = frozenset({404, 405})
"""One more replica is asked: it may be that the first is no engine of this model."""
LATE = ErrorReply(504, "server_error", "engine_timeout", "The engine did not answer in time.")
ERROR_BYTES_MAX = 64 * 1024
_STOPS = frozenset({b"POST", b"DELETE"})
"""What may be done to a response that is kept, besides looking at it."""


class DirectContext(Protocol):
    """What it needs of its gateway."""

    upstream: Upstream
    passed_heads: PassedHeads

    def asks_key(self, url: str, status: int) -> None:
        """The engine at ``url`` asks for a key that it isn't shown."""
        ...

    def failed(self, error: ErrorReply) -> ErrorReply:
        """``error``, by which each replica that was asked has failed it, with when to come back."""
        ...

    def later(self, real_s: float, due: Callable[[], None]) -> TimerHandle:
        """Call ``due`` in so many real seconds."""
        ...

    def over(self, direct: "Direct", deleted: str) -> None:
        """It has ended, and ``deleted`` (an id, or nothing) is no longer kept."""
        ...


class Direct:
    """One such request: `http.Reply` for the client, `ports.ResponseSink` for the engine.

    ``urls``: replicas in the order in which they are asked. ``response_id``: of an answer that one of them keeps, if it isn't empty:
    one that answers 404 only doesn't know it, so the next is asked.
    """

    __slots__ = (
        "_body",
        "_connection",
        "_context",
        "_doubtful",
        "_due",
        "_exchange",
        "_failed",
        "_framed",
        "_head",
        "_held",
        "_keep_alive",
        "_open",
        "_over",
        "_passed",
        "_paused",
        "_request",
        "_request_id",
        "_resent",
        "_response_id",
        "_tried",
        "_urls",
        "_wrong",
    )

    _passed: PassedHead
    answer = None
    """It takes each answer step by step."""

    def __init__(
        self,
        context: DirectContext,
        connection: ClientConnection,
        request: Request,
        body: bytes,
        request_id: bytes,
        urls: list[str],
        response_id: str,
    ) -> None:
        self._context = context
        self._connection = connection
        self._request = request
        self._body = body
        self._request_id = request_id
        self._urls = urls[:TRIED_MAX]
        self._response_id = response_id
        self._tried = 0
        self._exchange: Exchange | None = None
        self._due: TimerHandle | None = None
        """When the head of an answer is overdue."""
        self._wrong = False
        """What comes is no engine's answer, but a page or a way elsewhere."""
        self._head: ResponseHead | None = None
        self._held = b""  # of an answer that isn't passed on yet
        self._failed = ErrorReply(502, "server_error", "engines_failed", "No engine could be reached.")
        self._doubtful = False
        """One that may keep it did not say."""
        self._resent = self._open = self._over = self._paused = self._framed = self._keep_alive = False

    @property
    def url(self) -> str:
        """The replica asked last."""
        return self._urls[min(self._tried, len(self._urls) - 1)]

    @property
    def stops(self) -> str:
        """The id of a response that it asks to be stopped or forgotten; empty: it doesn't."""
        return self._response_id if self._request.method in _STOPS else ""

    def start(self) -> None:
        """Ask the first replica."""
        self._send()

    def _send(self) -> None:
        if self._tried == len(self._urls):
            self._end()
            self._refuse(self._context.failed(self._failed))
            return
        request, url = self._request, self._urls[self._tried]
        wire = b"%b %b HTTP/1.1\r\nhost: %b\r\n%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n%b" % (
            request.method,
            request.target,
            url.partition("//")[2].encode(),
            request.facts.forwarded,
            self._request_id,
            len(self._body),
            self._body,
        )
        self._head, self._held = None, b""
        try:
            streams = self._response_id and b"stream=true" in request.target
            self._exchange = self._context.upstream.send(url, wire, self, STREAM_S if streams else DIRECT_S)
        except ValueError:
            self._next()
            return
        if self._due is None:
            self._due = self._context.later(HEAD_S if self._tried + 1 == len(self._urls) else HEAD_BEFORE_NEXT_S, self._overdue)
        if self._paused:
            self._exchange.pause()

    def _overdue(self) -> None:
        """The head of the answer did not come in time."""
        exchange, self._exchange, self._due = self._exchange, None, None
        if exchange is not None:
            exchange.abort()
        self._fail(LATE)

    def _fail(self, error: ErrorReply) -> None:
        """This one does not say."""
        self._failed, self._doubtful = error, True
        self._next()

    def _in_time(self) -> None:
        due, self._due = self._due, None
        if due is not None:
            due.cancel()

    def _next(self) -> None:
        self._in_time()
        self._tried += 1
        self._resent = False
        self._send()

    # -- the client ---------------------------------------------------------------------------------------------------

    def client_gone(self) -> None:
        """Nobody waits for it."""
        if not self._over:
            self._end()

    def client_slow(self) -> None:
        """Read no more."""
        self._paused = True
        if self._exchange is not None:
            self._exchange.pause()

    def client_ready(self) -> None:
        """Read again."""
        self._paused = False
        if self._exchange is not None:
            self._exchange.resume()

    def shut(self, error: ErrorReply) -> None:
        """The gateway ends before it does: told so, unless its answer has begun, which can only be cut."""
        if self._over:
            return
        self._end()
        if self._open:
            self._connection.abort()
        else:
            self._refuse(error)

    # -- the engine ---------------------------------------------------------------------------------------------------

    def head(self, head: ResponseHead) -> None:
        """See `ports.ResponseSink`."""
        self._in_time()
        self._head = head
        self._passed = self._context.passed_heads.of(head)
        self._wrong = 300 <= head.status < 400 or (head.status < 300 and self._passed.html)

    def data(self, wire: bytes, body: bytes, whole: bool, last: bool) -> None:
        """Errors are held until they are whole; all else passes, from where it may be an answer."""
        del wire, whole
        head = self._head
        assert head is not None
        if not self._open and head.status < 300 and not self._wrong:
            self._held, body = b"", self._held + body
            if not (last or body.strip() or len(body) > ERROR_BYTES_MAX):  # it has not begun
                self._held = body
                return
            self._wrong = self._is_none(body, last)
        if head.status >= 400 or self._wrong:
            self._held = (self._held + body)[:ERROR_BYTES_MAX]
        elif self._open:
            piece = chunk(body) + (LAST_CHUNK if last else b"") if self._framed else body
            if piece:
                self._connection.write(piece)
        else:
            length = len(body) if last else head.content_length
            self._framed = length is None and self._request.modern
            self._write_head(chunk(body) if self._framed else body, length)

    def _is_none(self, body: bytes, last: bool) -> bool:
        """Whether there is nothing in an answer, or in its beginning no JSON, which each of these answers is that is no stream."""
        text, passed = body.strip(), self._passed
        if not text:
            return self._request.method != b"DELETE"  # that it is gone may be said by nothing
        if passed.events or passed.coded:
            return False
        return not (is_json(text) if last else text.startswith((b"{", b"[")))

    def end(self, end: End, detail: str) -> None:
        """See `ports.ResponseSink`."""
        del detail
        if self._over or end is End.ABORTED:
            return
        self._exchange = None
        head = self._head
        if end is End.COMPLETE and head is not None:
            self._complete(head)
        elif self._open:
            self._end()
            self._connection.abort()
        elif end is End.STALE and not self._resent:
            self._resent = True
            self._send()
        elif end is End.TIMEOUT:
            self._fail(LATE)
        else:
            self._fail(ErrorReply(502, "server_error", "engines_failed", f"The engine could not be reached or broke off ({end})."))

    def _complete(self, head: ResponseHead) -> None:
        if self._wrong:
            said = f"What the engine answered ({head.status}) is neither JSON nor an error, but nothing, a page or a way elsewhere."
            self._fail(ErrorReply(502, "server_error", "engines_failed", said))
            return
        if head.status < 400:
            self._end(self._response_id if self._request.method == b"DELETE" else "")
            self._connection.finish(self._keep_alive)
            return
        if head.status in ASKS_KEY:
            self._context.asks_key(self._urls[self._tried], head.status)
            self._fail(ASKS_KEY_REPLY)
            return
        shaped = in_shape(head.status, self._held, self._request.target)
        if head.status >= 500 or head.status == 429 or (head.status == 404 and self._response_id):
            if head.status != 404 or not self._doubtful:
                self._failed = shaped or ErrorReply(head.status, "invalid_request_error", None, "No engine keeps this response.")
            self._doubtful = self._doubtful or head.status != 404
            self._next()
            return
        if head.status in NOT_HERE and not self._tried and len(self._urls) > 1:
            self._failed = shaped or self._failed
            self._next()
            return
        self._end()
        if shaped is not None:
            self._refuse(shaped)
        else:
            self._write_head(self._held, len(self._held))
            self._connection.finish(self._keep_alive)

    def _write_head(self, first: bytes, length: int | None) -> None:
        self._open = True
        connection = self._connection
        keep_alive = self._keep_alive = (self._framed or length is not None) and connection.keep_alive
        connection.write(passed_answer(self._passed, self._request_id, length, self._framed, keep_alive, first))

    def _refuse(self, error: ErrorReply) -> None:
        self._connection.refuse(error, b"x-request-id: %b\r\n" % self._request_id)

    def _end(self, deleted: str = "") -> None:
        self._over = True
        self._in_time()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.abort()
        self._context.over(self, deleted)
