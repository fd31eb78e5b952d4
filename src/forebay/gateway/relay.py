"""One request's way through: waiting, sent, answered; and back to the queue while nothing of an answer is out.

The client's connection and the engine's exchange call in here, and nothing else writes to the client meanwhile. Up to
the first content every failure can be tried on another replica, and the client sees only that it took longer. After
it, a failure ends the stream with a proper error event: never a silent truncation. The permit lasts until the engine's
last byte, a refusal, or the client's leaving, whichever comes first; each of the three ends it exactly once.
"""

from functools import lru_cache

from forebay.admission.effects import Dispatch, Refuse
from forebay.admission.outcomes import Refusal
from forebay.admission.quotas import OverCap
from forebay.domain.shape import Shape, Usage
from forebay.gateway.answers import (
    DONE_EVENT,
    LAST_CHUNK,
    ErrorReply,
    chunk,
    passed_answer,
    retry_after_real_s,
    unavailable,
)
from forebay.gateway.call import CallState, nothing
from forebay.gateway.meters import Outcome
from forebay.gateway.refusals import over_limit_reply, refusal_reply
from forebay.gateway.sse import EventStream, Trouble
from forebay.gateway.whole import WholeBody, looked_at, usage_in_tail
from forebay.ports.upstream import End, ResponseHead
from forebay.spec.types import Tier

RETRIES_MAX = 2
"""Tries after the first, each on a replica not tried before."""
REPORT_EVENTS = 32
"""Emitted tokens are reported to admission in steps of this many."""
ENGINE_RETRY_AFTER_S = 5.0
"""World seconds a client is asked to wait after engines failed its request."""

HOSTS_MAX = 4096

_RETRYABLE = frozenset({End.CONNECT_FAILED, End.STALE, End.CUT})
# In names of their own: a member of an enum is looked up by a function call.
_COMPLETE = End.COMPLETE
_ABORTED = End.ABORTED
_COMPLETED = Outcome.COMPLETED
_TRUNCATED = Outcome.TRUNCATED


@lru_cache(HOSTS_MAX)
def _host(url: str) -> bytes:
    return url.partition("//")[2].encode()


class Call(CallState):
    """One request inside the gateway: `http.Reply` for the client, `ports.ResponseSink` for the engine, `desk.Caller` for admission."""

    __slots__ = ()

    def start(self, tier: Tier, shape: Shape, now_s: float, patience_s: float) -> None:
        """Queue it, under the promises of ``tier`` (its team's own, where it has some), for as many real seconds as the client waits."""
        self._estimate = shape
        self._arrived_s = now_s
        self._ttft_promise_s = tier.ttft_s
        self._meter.arrive(shape)
        self._context.desk.arrive(self._pool, self, tier, self._team, shape, now_s, patience_s, not self._ask.stream)

    # -- admission ----------------------------------------------------------------------------------------------------

    def dispatch(self, effect: Dispatch) -> None:
        """Send it: it holds a permit on this replica."""
        now_s = self._context.desk.clock.now_s()
        if not self._wait_counted:
            self._wait_counted = True
            self._meter.queue_wait.observe(now_s - self._arrived_s)
        self._sent_s = self._progress_s = now_s
        self._replica_url = effect.url
        self._send()

    def requeued(self) -> None:
        """Another took its place: stop the engine, and wait to be sent again. Nothing of an answer is out."""
        self._drop_exchange()
        self._meter.requeued += 1
        self._resent = False
        self._forget_answer()

    def refused(self, effect: Refuse) -> None:
        """Tell the client, in OpenAI's shape. Admission has already let go of the ticket."""
        context = self._context
        self._over = True
        self._meter.shed[effect.why] += 1
        self._meter.outcomes[Outcome.SHED] += 1
        self._refuse(refusal_reply(effect, context.speed, context.chance))

    def over_limit(self, over: OverCap) -> None:
        """Tell the client which limit of its team that is, and whether coming back will help."""
        self._over = True
        self._meter.shed[Refusal.OVER_LIMIT] += 1
        self._meter.outcomes[Outcome.SHED] += 1
        self._refuse(*over_limit_reply(over, self._context.speed, self._context.chance))

    # -- the client ---------------------------------------------------------------------------------------------------

    def client_gone(self) -> None:
        """Stop the engine at once, in whatever phase this is."""
        if not self._over:
            self._end(Outcome.CLIENT_GONE, self._counted_usage(), abandon=True)

    def client_slow(self) -> None:
        """Read no more from the engine until the client has caught up."""
        self._paused = True
        self._first_s = None
        if self._exchange is not None:
            self._exchange.pause()

    def client_ready(self) -> None:
        """Read again."""
        self._paused = False
        if self._exchange is not None:
            self._exchange.resume()

    # -- the engine ---------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        url, request, body = self._replica_url, self._request, self._body
        wire = b"POST %b HTTP/1.1\r\nhost: %b\r\n%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n%b" % (
            request.target,
            _host(url),
            request.facts.forwarded,
            self._request_id,
            len(body),
            body,
        )
        try:
            self._exchange = self._context.upstream.send(url, wire, self)
        except ValueError as error:  # an address that is none: another replica may have one
            self._failed(End.CONNECT_FAILED, str(error))
            return
        if self._paused:
            self._exchange.pause()

    def head(self, head: ResponseHead) -> None:
        """Decide what kind of answer this is; nothing is sent yet."""
        status = head.status
        if status >= 500 or status == 429:
            self._failure = head
            self.data = self._take
            return
        self._answer = head
        passed = self._passed = self._context.passed_heads.of(head)
        if passed.events and status == 200 and self._ask.stream:
            stream = self._stream = EventStream(head.chunked, self._request.modern)
            stream.attend_at = REPORT_EVENTS
            self.data = stream.attach(self._connection.write, self._take_stream)
        else:
            self.data = self._take

    def _take_stream(self, wire: bytes, body: bytes, whole: bool, last: bool) -> None:
        """What is not a plain event on its way through."""
        stream = self._stream
        assert stream is not None
        piece = stream.feed(wire, body, whole, last)
        if piece and self._open:
            self._connection.write(piece)
        elif piece:
            self._open_stream(piece)
        if stream.trouble is not None:
            self._stream_trouble(stream, stream.trouble)
        elif stream.events >= stream.attend_at:
            self._pool.admission.emitted(self.ticket, stream.events - self._reported)
            self._reported = stream.events
            stream.attend_at = stream.events + REPORT_EVENTS

    def end(self, end: End, detail: str) -> None:
        """The exchange is over; that we aborted it ourselves is no news."""
        if self._over or end is _ABORTED:
            return
        self._exchange = None
        if end is _COMPLETE:
            self._completed()
            return
        stream = self._stream
        if stream is not None and (piece := stream.cut()) is not None:
            if self._open:
                self._connection.write(piece)
            else:
                self._open_stream(piece)
            self._completed()
        elif self._open:
            self._truncate(f"The engine's answer broke off ({end}).")
        else:
            self._failed(end, detail)

    # -- streams ------------------------------------------------------------------------------------------------------

    def _open_stream(self, piece: bytes) -> None:
        """First content: from here on this replica's answer is the answer."""
        now_s = self._context.desk.clock.now_s()
        if not self._paused:
            self._first_s = now_s
        self._write_head(piece, None, self._request.modern)
        self._meter.first_content(now_s - self._arrived_s, self._ttft_promise_s)
        self._context.desk.first_token(self._pool, self, now_s)

    def _stream_trouble(self, stream: EventStream, trouble: Trouble) -> None:
        if self._over:
            return
        error = stream.error
        said = (error.message if error is not None else None) or f"The engine did not finish its answer ({trouble})."
        if self._open:
            self._truncate(said)
            return
        self._drop_exchange()
        code = error.code if error is not None else None
        if isinstance(code, int) and 400 <= code < 500 and code != 429:
            reply = ErrorReply(code, (error and error.type) or "invalid_request_error", str(code), said, error.param if error else None)
            self._end(Outcome.REFUSED_BY_ENGINE, None)
            self._refuse(reply)
        else:
            self._try_elsewhere(said)

    def _truncate(self, message: str) -> None:
        """Say so inside the stream, and end it properly; a body that isn't a stream can only be cut."""
        stream, connection = self._stream, self._connection
        self._end(_TRUNCATED, self._counted_usage())
        self._context.truncated(self._pool.name, message)
        if stream is None:
            connection.abort()
            return
        error = ErrorReply(502, "server_error", "stream_truncated", message).event() + DONE_EVENT
        connection.write(chunk(error) + LAST_CHUNK if self._request.modern else error)
        connection.finish(self._keep_alive)

    # -- whole answers and failures -----------------------------------------------------------------------------------

    def _take(self, wire: bytes, body: bytes, whole: bool, last: bool) -> None:
        del whole
        self._wire_bytes += len(wire)
        head = self._answer
        if head is None:
            return  # a failure's body: read to its end, which keeps the connection, and dropped
        held = self._whole
        if held is None:
            if last:
                self._only = body
                return
            held = self._whole = WholeBody(head, self._request.modern)
        if self._open:
            piece = held.flow(body, last)
            if piece:
                self._connection.write(piece)
        elif not held.add(body) and not last:
            self._pool.admission.answered(self.ticket)
            self._write_head(held.flow(held.take(), False), head.content_length, held.framed)

    def _completed(self) -> None:
        """The whole response is here."""
        head, whole = self._answer, self._whole
        outcome = _COMPLETED
        if head is None:
            status = self._failure.status if self._failure is not None else 502
            self._try_elsewhere(f"The engine answered {status}.")
            return
        if self._stream is not None:
            usage = self._counted_usage()
        else:
            if whole is not None and whole.flowing:
                usage = usage_in_tail(whole.tail)
            else:
                body = self._only if whole is None else whole.take()
                usage, aborted = looked_at(body)
                if aborted:
                    self._try_elsewhere("The engine broke its answer off.")
                    return
                self._write_head(body, len(body), False)
            if head.status >= 400:
                outcome = Outcome.REFUSED_BY_ENGINE
        self._end(outcome, usage)
        self._connection.finish(self._keep_alive)

    def _failed(self, end: End, detail: str) -> None:
        """Nothing of an answer is out."""
        if end is End.STALE and not self._resent:
            self._resent = True
            self._forget_answer()
            self._send()
        elif end in _RETRYABLE:
            self._try_elsewhere(f"The engine could not be reached or broke off ({end}).")
        elif end is End.TIMEOUT:
            self._give_up(ErrorReply(504, "server_error", "engine_timeout", "The engine did not answer in time."))
        else:
            self._give_up(ErrorReply(502, "server_error", "bad_engine_response", f"The engine's answer is not one ({detail})."))

    def _try_elsewhere(self, message: str) -> None:
        """Back to the head of its lane; admission refuses it where no other replica is left."""
        if self._retries >= RETRIES_MAX:
            wait_s = retry_after_real_s(ENGINE_RETRY_AFTER_S, self._context.speed, self._context.chance)
            self._give_up(unavailable(message, "engines_failed", wait_s))
            return
        self._retries += 1
        self._meter.retries += 1
        self._resent = False
        self._forget_answer()
        desk = self._context.desk
        desk.retry(self._pool, self, desk.clock.now_s())

    def _forget_answer(self) -> None:
        self._wire_bytes = self._bytes_read()
        self._stream = self._whole = self._answer = self._failure = None
        self._only = b""
        self.data = nothing

    def _give_up(self, error: ErrorReply) -> None:
        self._end(Outcome.FAILED, None)
        self._refuse(error)

    # -- the end ------------------------------------------------------------------------------------------------------

    def sweep(self, now_s: float) -> None:
        """An engine that is silent for too long, or a client that reads nothing, ends the call."""
        promise_s = self._ttft_promise_s
        if promise_s is not None and self._ask.stream and not self._open and now_s - self._arrived_s > promise_s:
            # Missed already, though no first content has come: one that never comes must not look like none was late.
            self._meter.ttft_missed += 1
            self._ttft_promise_s = None
        if self._exchange is None:
            return
        limits = self._context.limits
        wire_bytes = self._bytes_read()
        if wire_bytes != self._progress_bytes:
            self._progress_bytes = wire_bytes
            self._progress_s = now_s
        silent = now_s - self._progress_s > limits.idle_s
        if self._paused and silent:
            self._connection.abort()
        elif silent or now_s - self._sent_s > limits.total_s:
            self._drop_exchange()
            if self._open:
                self._truncate("The engine did not go on in time.")
            else:
                self._failed(End.TIMEOUT, "")

    def _end(self, outcome: Outcome, usage: Usage | None, *, abandon: bool = False) -> None:
        """Once per call: settle the meters, let go of the permit, stop the engine if it still runs."""
        self._over = True
        if self._exchange is not None:
            self._drop_exchange()
        meter, pool, desk, stream = self._meter, self._pool, self._context.desk, self._stream
        meter.outcomes[outcome] += 1
        meter.response_bytes += self._wire_bytes if stream is None else self._wire_bytes + stream.wire_bytes
        now_s = desk.clock.now_s()
        if usage is not None:
            meter.prompt_tokens += usage.prompt_tokens
            meter.output_tokens += usage.output_tokens
            if outcome is _COMPLETED:
                meter.completed_output_tokens += usage.output_tokens
                sequences = self._ask.n or 1
                if self._first_s is not None:
                    # The last content came just before the end, so nothing is looked at per event.
                    meter.stream_completed(now_s - self._first_s, usage.output_tokens // sequences)
                if usage.exact and pool.should_learn():
                    desk.estimator.learn(self._team, pool.model, self._body_bytes, usage, sequences)
        self._body = b""
        if stream is not None:
            if outcome is _TRUNCATED:
                meter.itl_missed += 1
            self._stream = None  # it knows this call, and this call it
        self.data = nothing
        if abandon:
            desk.abandon(pool, self, usage, now_s)
        else:
            desk.finish(pool, self, usage, now_s)

    def _bytes_read(self) -> int:
        return self._wire_bytes + (self._stream.wire_bytes if self._stream is not None else 0)

    def _drop_exchange(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.abort()

    def _counted_usage(self) -> Usage | None:
        """What was seen of a stream that told no usage."""
        stream = self._stream
        if stream is None:
            return None
        return stream.usage or Usage(self._estimate.prompt_tokens, stream.events, exact=False)

    def _write_head(self, first: bytes, length: int | None, chunked: bool) -> None:
        """The engine's head and the first bytes after it, in one write; nothing can be tried again after it."""
        self._open = True
        connection = self._connection
        keep_alive = self._keep_alive = (chunked or length is not None) and connection.keep_alive
        more = self._context.desk.limits_left(self._team)
        connection.write(passed_answer(self._passed, self._request_id, length, chunked, keep_alive, first, more))
        self._body = b""
        connection.release(self._request)

    def _refuse(self, error: ErrorReply, extra: bytes = b"") -> None:
        extra += self._context.desk.limits_left(self._team)
        self._connection.refuse(error, b"x-request-id: %b\r\n%b" % (self._request_id, extra))
