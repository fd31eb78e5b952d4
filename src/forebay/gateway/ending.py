"""How a call ends: settled once, its permit let go, its engine stopped; and what the client is told where it ends badly."""

from typing import Final

from forebay.admission.outliers import EJECT_S
from forebay.domain.shape import Usage
from forebay.gateway.answers import LAST_CHUNK, ErrorReply, chunk, retry_after_real_s, unavailable
from forebay.gateway.call import nothing
from forebay.gateway.continuing import CHAT, asks_usage, usage_event
from forebay.gateway.dialects import error_end
from forebay.gateway.emitted import Emitted, Stops, opening_of
from forebay.gateway.meters import Outcome
from forebay.gateway.recorded import Recorded
from forebay.gateway.refusals import ENGINE_ASKS_KEY
from forebay.gateway.several import Several
from forebay.gateway.sse import EventStream

_COMPLETED: Final = Outcome.COMPLETED  # in names of their own: a member of an enum is looked up by a function call
_TRUNCATED: Final = Outcome.TRUNCATED

ENGINE_RETRY_AFTER_S: Final = EJECT_S
"""World seconds a client is asked to wait after engines failed its request."""


class Ending(Recorded):
    """The last part of every way through."""

    __slots__ = ()

    def _end(self, outcome: Outcome, usage: Usage | None, *, abandon: bool = False, let_go: bool = False) -> None:
        """Once per call: settle the meters, let go of the permit (unless admission has ``let_go``), stop the engine if it still runs."""
        self._over = True
        if self._exchange is not None:
            self._drop_exchange()
        meter, pool, desk, stream = self._meter, self._pool, self._context.desk, self._stream
        meter.response_bytes += self._wire_bytes if stream is None else self._wire_bytes + stream.wire_bytes
        now_s = desk.now_s()
        self._recorded(outcome, usage, now_s)
        self._pass_final()
        if usage is not None and outcome is _COMPLETED:
            meter.completed_output_tokens += usage.output_tokens
            if self._first_s is not None:
                # The last content came just before the end, so nothing is looked at per event.
                meter.stream_completed(now_s - self._first_s, usage.output_tokens // self._estimate.sequences)
            if usage.exact and not self.kept_at and pool.should_learn():  # most of its prompt is in no body
                desk.estimator.learn(self._team, pool.model, self._body_bytes, usage, self._estimate.sequences, self.sized)
                pool.errors.observe(self._estimate, usage)
                if not self._ask.stream:
                    pool.took_whole(self.ticket, now_s - self._sent_s, usage.output_tokens // self._estimate.sequences)
        if outcome is _TRUNCATED and self._open:
            meter.itl_missed += 1
        self._body = b""
        self._stream = None  # it knows this call, and this call it
        if self._emitted is not None:
            self._forget_emitted()
        self.data = nothing
        if abandon:
            desk.abandon(pool, self, usage, now_s)
        elif not let_go:
            desk.finish(pool, self, usage, now_s)

    def _forget_emitted(self) -> None:
        if self._emitted is not None:
            self._context.held_ids.held_bytes -= self._emitted.held
            self._emitted = None

    def _emits_anew(self, stops: Stops | None, several: Several | None) -> Emitted:
        """Of an answer none of which is out; what was held of one that is not to be the answer is held no longer."""
        self._forget_emitted()
        self._emitted = emitted = Emitted(stops, several)
        return emitted

    def _bytes_read(self) -> int:
        return self._wire_bytes + (self._stream.wire_bytes if self._stream is not None else 0)

    def break_off(self) -> None:
        """See `pool_desk.Caller`. Bare, since anything else of it may be what fails."""
        self._over = True
        self._forget_emitted()
        self._drop_exchange()
        self._connection.abort()

    def _drop_exchange(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.abort()
            if self._pool.engine.abort_by_id:
                self._context.abort_by_id(self._replica_url, self._target, self._request_id)

    def _counted_usage(self) -> Usage | None:
        """What was seen of a stream: as its engine told, or counted."""
        stream, emitted = self._stream, self._emitted
        told = stream.counted() if stream is not None else None
        if told is not None:
            return told
        counted = emitted.counted(self._estimate.prompt_tokens) if emitted is not None else None
        if counted is not None:
            return counted
        return None if stream is None else Usage(self._estimate.prompt_tokens, stream.events, exact=False)

    def _refuse(self, error: ErrorReply, extra: bytes = b"") -> None:
        extra += self._context.desk.limits_left(self._team) + self._place()
        self._connection.refuse(error, b"x-request-id: %b\r\n%b" % (self._request_id, extra))

    def _tell_here(self) -> None:
        """What a client is told by this gateway shows in its pool's meters, though it was forwarded: the place's are shown nowhere."""
        if self._pool.peer:
            self._meter = self._home.meters[self._tier.name]

    def _give_up(self, error: ErrorReply) -> None:
        if self._orphaned:
            self._tell_here()
        self._why, self._retry_after_s = error.message, error.retry_after_s
        self._end(Outcome.FAILED, None)
        self._refuse(error)

    def _failed_wait_s(self) -> float:
        """Real seconds, spread, after which engines that failed are asked anew."""
        return retry_after_real_s(ENGINE_RETRY_AFTER_S, self._context.speed, self._context.chance)

    def _unserved(self, message: str, why: str) -> ErrorReply:
        """No engine serves it, and ``why`` no other one is tried."""
        wait_s = self._failed_wait_s()
        text = f"{message} It is not tried again: {why}."
        return unavailable(text, "engine_asks_key" if message == ENGINE_ASKS_KEY else "engines_failed", wait_s)

    def _truncate(self, message: str, *, let_go: bool = False) -> None:
        """Say so inside the stream, and end it properly; a body that isn't a stream can only be cut."""
        if self._orphaned:  # else these are the words of the gateway that it was forwarded to, and shown there
            self._tell_here()
        self._why = message
        connection, streams = self._connection, self._streams
        ending = self._withheld() + self._end_of_stream(ErrorReply(502, "server_error", "stream_truncated", message)) if streams else b""
        waits = not let_go and not self._pool.admission.runs(self.ticket)
        self._end(_TRUNCATED, self._counted_usage(), abandon=waits, let_go=let_go)
        self._context.truncated(self._pool.name, message)
        if not streams:
            connection.abort()
            return
        connection.write(chunk(ending) + LAST_CHUNK if self._request.modern else ending)
        connection.finish(self._keep_alive)

    def _end_of_stream(self, error: ErrorReply) -> bytes:
        """The events that end a stream which went wrong."""
        return error_end(error, self._request.target)

    def _conclude(self, stream: EventStream) -> None:
        """The client has every token and the finish reason; what its engine did not send any more is said in its place."""
        connection, emitted = self._connection, self._emitted
        usage = self._counted_usage()
        last = stream.closing
        if usage is not None and stream.finish_event and not stream.usage_passed and asks_usage(self._ask):
            opening = emitted.opening if emitted is not None else None
            chat = self._request.target.startswith(CHAT)
            last = usage_event(chat, opening or opening_of(stream.finish_event), usage) + last
        last = self._withheld() + last
        self._end(_COMPLETED, usage)
        connection.write(chunk(last) + LAST_CHUNK if self._request.modern else last)
        connection.finish(self._keep_alive)

    def _has_all(self, stream: EventStream) -> bool:
        """Every choice has ended, so that nothing is missing but what its engine says behind."""
        return stream.has_all

    def _withheld(self) -> bytes:
        """An event that its client still lacks."""
        return self._stream.withheld if self._stream is not None else b""

    @property
    def _streams(self) -> bool:
        """The client gets events."""
        return self._stream is not None or self._emitted is not None
