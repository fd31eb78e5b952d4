"""A response that its engine goes on with though its client has its answer, or has left (``background: true``): its permit lasts as long.

The engine's word counts, not what was asked: an answer that says ``queued`` or ``in_progress``, and a stream whose response says that it is
``background``. From there on no client is held; the engine is asked until it has ended (`watching`), and that settles the call, once.
A client that leaves before it was told the response's id leaves nothing behind: what nobody could ask for is cancelled.
"""

import re
from typing import Final

from forebay.admission.effects import Dispatch, Refuse
from forebay.admission.prefixes import Prefix
from forebay.domain.shape import Shape, Usage
from forebay.domain.usage import How
from forebay.gateway.answers import ErrorReply, retry_after_real_s, unavailable
from forebay.gateway.ask import ResponsesAsk
from forebay.gateway.body import KEPT_ID
from forebay.gateway.call import nothing
from forebay.gateway.hop_counts import Count
from forebay.gateway.lending import Reclaim
from forebay.gateway.meters import Outcome
from forebay.gateway.request import LargeRequest
from forebay.gateway.surface import ResponsesCall
from forebay.gateway.typed import TypedStream
from forebay.gateway.watching import Watch, told_in
from forebay.ports.upstream import End
from forebay.spec.types import Tier

ALONE_REAL_S = 10.0
"""An engine whose client has left has so long to say what it was about to."""
FULL: Final = "Too many responses go on in the background. It was cancelled: ask again later, or without `background`."
FULL_S: Final = 10.0
"""World seconds that its client is asked to wait."""
_LEFT: Final = frozenset({Outcome.CLIENT_GONE, Outcome.CLIENT_SLOW})
_COMPLETED: Final = Outcome.COMPLETED  # in names of their own: a member of an enum is looked up by a function call
_GONE: Final = Outcome.CLIENT_GONE
_CUT_OFF: Final = frozenset({End.CUT, End.TIMEOUT, End.BAD_RESPONSE})
_BEGINNING = re.compile(rb'\s*\{\s*"id":\s*"([^"]{1,128})"')


class BackgroundCall(ResponsesCall):
    """Any call of ``/v1/responses``; also `watching.Watched`."""

    __slots__ = ("_alone_until_s", "_deserted", "_left_stream", "_running", "_seen", "_spared", "_watch")

    _alone_until_s: float
    """Nobody waits for it any more, and its engine may be about to say which response it has begun; 0: that isn't so."""
    _deserted: bool
    """Its client left before it was told anything: there is no connection to write to, and an event loop need not bear it."""
    _left_stream: bool
    """Its client left within the stream."""
    _running: str
    """The id of a whole answer that says that it has not ended."""
    _seen: Usage | None
    """What was seen of a stream that its client has left."""
    _spared: bool
    """Its engine goes on, though nothing of it is read any more."""
    _watch: Watch | None

    def start(self, tier: Tier, shape: Shape, now_s: float, patience_s: float, prefix: Prefix | None = None) -> None:
        """See `relay.Call`."""
        self._alone_until_s = 0.0
        self._deserted = self._left_stream = self._spared = False
        self._running = ""
        self._seen = None
        self._watch = None
        super().start(tier, shape, now_s, patience_s, prefix)

    def dispatch(self, effect: Dispatch) -> None:
        """It is never begun a second time for another's sake: the first would go on all the same."""
        if self._asked_for:
            self._pool.admission.answered(self.ticket)
        super().dispatch(effect)

    # -- going on without a client ------------------------------------------------------------------------------------

    def _look_at(self, body: bytes) -> tuple[Usage | None, bool]:
        found = super()._look_at(body)
        if self._here and (b'"queued"' in body or b'"in_progress"' in body):
            told = told_in(body)
            if told is not None and told.runs and KEPT_ID.fullmatch(told.id):
                self._running = told.id
        return found

    def _write_head(self, first: bytes, length: int | None, chunked: bool, last: bool = False) -> None:
        whole = self._whole
        if whole is not None and whole.flowing and self._asked_for and self._here:  # too long to be looked at
            match = _BEGINNING.match(first)
            self._running = match[1].decode("ascii", "replace") if match is not None else ""
            self._running = self._running if KEPT_ID.fullmatch(self._running) else ""
        if self._deserted:
            self._end(_GONE, None, abandon=True)
        else:
            super()._write_head(first, length, chunked, last)

    def _write_whole(self, body: bytes) -> None:
        if not (self._deserted or (self._running and self._context.background.full)):
            super()._write_whole(body)

    def _served(self, outcome: Outcome, usage: Usage | None) -> None:
        running = self._running
        if running and (self._alone_until_s or not self._open):  # nothing was written, or to nobody
            self._context.background.cancel(self._replica_url, running)
            self._running = ""
        if self._alone_until_s:
            self._end(_GONE, None, abandon=True)
        elif not running or outcome is not _COMPLETED:
            super()._served(outcome, usage)
        elif not self._open:
            context = self._context
            self._give_up(unavailable(FULL, "overloaded", retry_after_real_s(FULL_S, context.speed, context.chance)))
        else:
            desk = self._context.desk
            desk.served(self._pool, self._replica, desk.now_s())
            self._go_alone(running)
            self._pass_final()
            self._connection.finish(self._keep_alive)

    def _end(self, outcome: Outcome, usage: Usage | None, *, abandon: bool = False, let_go: bool = False) -> None:
        """See `ending.Ending`; but an answer that is ``background`` does not end when its client leaves within it."""
        told = self._open and not self._alone_until_s
        if outcome in _LEFT and told and self._response_id and not self._context.background.full:
            self._outlive(usage)
            return
        self._alone_no_more()
        super()._end(outcome, usage, abandon=abandon, let_go=let_go)

    def _alone_no_more(self) -> None:
        if self._alone_until_s:
            self._alone_until_s = 0.0
            self._context.background.alone -= 1

    def _outlive(self, usage: Usage | None) -> None:
        response_id = self._response_id
        self._seen, self._left_stream, self._spared = usage, True, True
        self._wire_bytes = self._bytes_read()
        self._drop_exchange()
        self._stream = None
        self._go_alone(response_id)

    def _go_alone(self, response_id: str) -> None:
        """From here on only its engine knows how far it is."""
        self._let_body_go()
        self._only = b""
        self._whole = None
        self._first_s = None  # of its pace nothing is known any more
        self.data = nothing
        self._pool.admission.answered(self.ticket)
        self._watch = self._context.background.begin(self, self._replica_url, response_id)

    def ended_alone(self, outcome: Outcome, usage: Usage | None, why: str, gone: bool) -> None:
        """See `watching.Watched`."""
        watch, self._watch = self._watch, None
        if self._over:
            return
        if watch is not None and outcome is _COMPLETED:
            self._measure(watch.response_id, usage)
        self._why = why
        if gone:
            self._blame(why, gone=True)
        elif outcome is Outcome.FAILED:
            self._context.failures.note(self._pool.name, self._replica, self._replica_url, why)
        self._end(outcome, self._seen if usage is None else usage, abandon=outcome is _GONE)

    def _unwatched(self, why: str) -> None:
        """It has ended as far as this gateway goes."""
        self._watch_no_more()
        self._why = why
        self._end(Outcome.FAILED, self._seen)

    def _watch_no_more(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            self._context.background.stop(watch)

    # -- what may happen meanwhile ------------------------------------------------------------------------------------

    def sweep(self, now_s: float) -> None:
        """See `recovery.Recovery.sweep`."""
        watch = self._watch
        if watch is None:
            if self._alone_until_s and now_s > self._alone_until_s:
                self._end(_GONE, None, abandon=True)
            else:
                super().sweep(now_s)
        elif now_s - self._sent_s > self._total_s:
            self._context.background.cancel(watch.url, watch.response_id)
            self._unwatched("It went on in the background for longer than its tier's requests may.")

    def resumable(self) -> int | None:
        """See `desk.Caller`. An engine that may be about to go on with it unread can't be stopped: it would be made twice."""
        return None if self._exchange is not None and self._unnamed else super().resumable()

    def shut(self, effect: Refuse) -> None:
        """See `recovery.Recovery.shut`. The engine goes on with what its client can ask for later."""
        if self._watch is not None:
            self._unwatched("The gateway ended before it did: what it took after that is not metered.")
        elif self._alone_until_s:
            self._end(_GONE, None, abandon=True)
        else:
            self._spared = self._open
            super().shut(effect)

    def break_off(self) -> None:
        """See `pool_desk.Caller`. Its client's connection is none of it any more."""
        if self._watch is None:
            self._alone_no_more()
            super().break_off()
        else:
            self._over = True
            self._watch_no_more()

    def lost(self, why: str, reclaim: Reclaim) -> None:
        """See `lending.Carriable`."""
        if self._response_id:
            self._lent = None
            reclaim(self._connection.transport)
            self._end(_GONE, self._counted_usage(), abandon=True)
            self._connection.abort()
        else:
            super().lost(why, reclaim)

    def _counted_usage(self) -> Usage | None:
        return super()._counted_usage() if self._watch is None else self._seen

    def _count_once(self, how: How, reason: str, count: Count) -> None:
        # Whoever forwarded a stream that was left may have taken its hop for broken.
        super()._count_once(How.LEFT if self._left_stream else how, reason, count)

    # -- before its client knows the id -------------------------------------------------------------------------------

    def client_gone(self) -> None:
        """See `http.Reply`. Where its engine may be about to go on with it, that is waited for, and cancelled."""
        if self._over or self._watch is not None:
            return
        request = self._request
        sent = self._exchange is not None and not (isinstance(request, LargeRequest) and not request.ended)
        if sent and self._unnamed:
            context = self._context
            self._deserted = True
            self._alone_until_s = context.desk.now_s() + ALONE_REAL_S * context.speed
            context.background.alone += 1
        else:
            super().client_gone()

    def _take_stream(self, wire: bytes, body: bytes, whole: bool, last: bool) -> None:
        stream = self._stream
        if not self._alone_until_s or stream is None:
            super()._take_stream(wire, body, whole, last)
            return
        opens = stream.feed(wire, body, whole, last)
        if opens or self._response_id or stream.trouble is not None:
            self._end(_GONE, None, abandon=True)

    def _try_elsewhere(self, message: str, *, blame: bool = True, detail: str = "", paid: bool = True, gone: bool = False) -> None:
        if self._alone_until_s:
            self._end(_GONE, None, abandon=True)
        else:
            super()._try_elsewhere(message, blame=blame, detail=detail, paid=paid, gone=gone)

    def _refuse(self, error: ErrorReply, extra: bytes = b"") -> None:
        if not self._deserted:
            super()._refuse(error, extra)

    # -- the engine ---------------------------------------------------------------------------------------------------

    @property
    def _asked_for(self) -> bool:
        """Its client asked for it: whether the engine does it is another thing."""
        return isinstance(self._ask, ResponsesAsk) and bool(self._ask.background)

    @property
    def _unnamed(self) -> bool:
        """It was asked for, and its engine has not said yet by which id it goes on with it."""
        return self._asked_for and self._here and not self._open and not self._response_id

    @property
    def _here(self) -> bool:
        """This gateway is the one that holds its permit with the engine."""
        return not (self._pool.peer or self._pool.foreign)

    @property
    def _response_id(self) -> str:
        """Of an answer under way that its engine would go on with unread; empty: it is none."""
        stream = self._stream
        if self._running and self._whole is not None:
            return self._running
        if not isinstance(stream, TypedStream) or not stream.background or stream.done or stream.trouble is not None or not self._here:
            return ""
        return stream.response_id if KEPT_ID.fullmatch(stream.response_id) else ""

    def _drop_exchange(self) -> None:
        if self._exchange is not None:
            self._stop_engine()
        super()._drop_exchange()

    def _failed(self, end: End, detail: str) -> None:
        if end in _CUT_OFF:
            self._stop_engine()
        super()._failed(end, detail)

    def _stop_engine(self) -> None:
        """To hang up is not enough for it to stop."""
        response_id = self._response_id
        if response_id and not self._spared:
            self._context.background.cancel(self._replica_url, response_id)
            self._running = ""
            if isinstance(self._stream, TypedStream):
                self._stream.background = False  # once
