"""One request's way through: waiting, sent, answered; and back to the queue where its replica fails it.

The client's connection and the engine's exchange call in here, and nothing else writes to the client meanwhile. Up to the first content
every failure can be tried on another replica, and the client sees only that it took longer. After it, another replica goes on with the
answer where it can do so exactly (`recovery`), and else a failure ends the stream with a proper error event: never a silent truncation. The
permit lasts until the engine's last byte, a refusal, or the client's leaving, whichever comes first; each ends it exactly once (`ending`).
"""

import math
from typing import Final

from forebay.admission.effects import Dispatch, Refuse
from forebay.admission.outcomes import BACK, Refusal
from forebay.admission.prefixes import Prefix
from forebay.admission.quotas import OverCap
from forebay.domain.shape import Shape, Usage
from forebay.gateway.asking import NOTHING, UNASKED, asking
from forebay.gateway.continuing import plan
from forebay.gateway.dialects import in_shape
from forebay.gateway.doubting import BROKEN_OFF, NO_ANSWER, UNKNOWN_HERE
from forebay.gateway.emitted import Emitted, Stops
from forebay.gateway.lent import LEND_EVENTS, LentCall
from forebay.gateway.meters import Outcome, TierMeter
from forebay.gateway.moving import FAILURES
from forebay.gateway.pool_desk import UNKNOWN_CONTEXT_TOKENS
from forebay.gateway.recorded import refused_a_stranger
from forebay.gateway.refusals import ENGINE_ASKS_KEY, NO_RETRY, broke_off, over_limit_reply, refusal_reply
from forebay.gateway.several import Several
from forebay.gateway.sse import EventStream
from forebay.gateway.straight import straighten
from forebay.gateway.told import ContinuedStream, ToldStream
from forebay.gateway.whole import WholeBody, looked_at, usage_in_tail
from forebay.ports.upstream import End, ResponseHead
from forebay.spec.types import Tier

REPORT_EVENTS = 32
"""Emitted tokens are reported to admission in steps of this many."""

# In names of their own: a member of an enum is looked up by a function call.
_COMPLETE: Final = End.COMPLETE
_ABORTED: Final = End.ABORTED
_COMPLETED: Final = Outcome.COMPLETED
_NEVER_S: Final = -math.inf


class Call(LentCall):
    """One request inside the gateway: `http.Reply` for the client, `ports.ResponseSink` for the engine, `desk.Caller` for admission."""

    __slots__ = ()

    def start(self, tier: Tier, shape: Shape, now_s: float, patience_s: float, prefix: Prefix | None = None) -> None:
        """Queue it, under the promises of ``tier`` (its team's own, where it has some), for as many real seconds as the client waits."""
        self._estimate = shape
        # What it has waited at the gateway that forwarded it counts as if it had waited here; its deadline is what was left of it there.
        facts, by_peer = self._request.facts, self._connection.by_peer
        before_s = facts.hop_waited_s if by_peer else 0.0
        self._arrived_s = now_s - before_s * self._context.speed
        self._tier, self._patience_s = tier, patience_s + before_s
        ttft_s = self._ttft_s = tier.ttft_s
        self._ttft_promise_s = None if by_peer and facts.hop_late else ttft_s
        limits = self._context.limits
        self._idle_s, self._total_s = tier.idle_s or limits.idle_s, tier.total_s or limits.total_s
        stream = bool(self._ask.stream)
        self.quiet_until_s = self._arrived_s + ttft_s if stream else math.inf
        self._wants = UNASKED if stream else NOTHING
        pool = self._pool
        if pool.lacking and not self.kept_at:
            self._tried = pool.lacking.replicas(self._known_as(), pool.routed, now_s)
        self._context.retries.arrived_total += 1
        if by_peer:  # counted where it came in
            if self._continues:
                self._meter = TierMeter(pool.name, tier, 0.0)  # all of it there, so this is shown nowhere
            waits = self._waits_left(tier, now_s)
            self._context.desk.move(pool, pool, self, tier, self._team, shape, now_s, waits, prefix, self._tried)
        else:
            self._demanded = (self._meter, shape.prompt_tokens, self._meter.arrive(shape))
            self._context.desk.arrive(pool, self, tier, self._team, shape, now_s, patience_s, not stream, prefix, self._tried)
        if not self._wait_counted:
            self._waits(now_s)
            if pool.ways is not None:
                self._look_around(now_s)

    def _ask_more(self) -> None:
        self._body, self._wants = asking(self._ask, self._body, self._pool.engine)

    # -- admission ----------------------------------------------------------------------------------------------------

    def dispatch(self, effect: Dispatch) -> None:
        """Send it: it holds a permit on this replica."""
        now_s = self._context.desk.now_s()
        if not self._wait_counted:
            self._wait_counted = True
            queue_s = self._queue_s = now_s - self._arrived_s
            if queue_s:
                self._meter.queue_wait.observe(queue_s)
            else:
                self._meter.queue_wait.counts[0] += 1
        self._sent_s = self._progress_s = now_s
        self.quiet_until_s = _NEVER_S
        leaving = self._context.records.leaving
        leaving.until_sample -= 1
        if leaving.until_sample <= 0 or ((self._waited_for or self._retries) and leaving.weighed_left > 0):
            self._weigh(leaving)
        if self._home.ways is not None and self._pool is self._home:
            self._home.ways.waited(self._tier, now_s - self._arrived_s, now_s)
        self._replica = effect.replica_id
        self._replica_url = effect.url
        if self._ask.stream:
            self._first_due_s = now_s + self._pool.firsts.timeout_s(self._ttft_s)
        self._send()

    def refused(self, effect: Refuse) -> None:
        """Tell the client, in OpenAI's shape. Admission has already let go of the ticket."""
        if self._open:
            self._truncate(broke_off(effect.why, self._home.name), let_go=True)
            return
        if self._doubt is not None and self._says_doubted():
            return
        effect, context = self._as_told(effect), self._context
        self._over = True
        self._forget_emitted()
        self._tell_here()
        ends = effect.why in BACK
        # Another gateway that serves it still counts it, as one whose client has left.
        self._orphaned = self._orphaned or (bool(self._pool.peer) and not ends)
        self._meter.shed[effect.why] += 1
        home, asks_key = self._home, self._why == ENGINE_ASKS_KEY
        reply = refusal_reply(effect, home.name, context.speed, context.chance, asks_key=home.asks_key or asks_key)
        self._turned_away(effect.why, reply)
        if ends and self._connection.by_peer:  # as by one that is not there: without a pool's name
            self._connection.refuse(reply, b"x-request-id: %b\r\n" % self._request_id)
        else:
            self._refuse(reply, b"" if effect.retry_after_s is not None else NO_RETRY)

    def over_limit(self, over: OverCap) -> None:
        """Tell the client which limit of its team that is, and whether coming back will help."""
        self._over = True
        self._meter.over_limit(self._estimate)
        reply, extra = over_limit_reply(over, self._context.speed, self._context.chance)
        self._turned_away(Refusal.OVER_LIMIT, reply)
        self._refuse(reply, extra)

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

    def head(self, head: ResponseHead) -> None:
        """Decide what kind of answer this is; nothing is sent yet."""
        status = head.status
        foreign = self._pool.foreign
        passed = (self._context.foreign_heads if foreign else self._context.passed_heads).of(head)
        streams = passed.events and status == 200 and self._ask.stream
        # What other people's engines answer but an answer, such as that our key is wrong, is nobody's business but the operator's.
        no_answer = foreign and (status != 200 or not (streams if self._ask.stream else passed.json))
        failed = status >= 500 or status in FAILURES or 300 <= status < 400 or (self._open and not streams) or no_answer
        failed = failed or (passed.odd and status == 200 and self._unfit(passed)) or (status == 404 and self._lacks_adapter())
        # What another gateway says is final: it has tried what there was to try. Unless it knows neither who asks nor for what.
        if (failed and (self._open or not self._pool.peer)) or (self._pool.peer and refused_a_stranger(head)):
            self._failure = head
            self.data = self._take
            return
        self._answer = head
        if streams:
            stream = self._stream = self._stream_of(head)
            if self._estimate.sequences > 1:
                stream.choices = self._estimate.sequences
            stream.report_at = 1 if self._open else REPORT_EVENTS if self._context.lending is None else LEND_EVENTS
            self.data = stream.attach(self._connection.write, self._take_stream, self._report)
            straighten(stream, self._connection.transport)
        if not self._open:
            self._passed = passed
        if not streams:
            self.data = self._take

    def answer(self, head: ResponseHead, body: bytes) -> None:
        """See `ports.ResponseSink`: what most requests that are no streams are answered with, in fewer steps."""
        exchange, pool = self._exchange, self._pool
        passed = self._context.passed_heads.of(head) if head.status == 200 and not (self._ask.stream or pool.foreign or pool.peer) else None
        if passed is not None and not passed.odd:
            self._exchange = None
            self._answer, self._passed = head, passed
            self._wire_bytes += len(body)
            usage, aborted = self._look_at(body)
            if aborted or ((usage is None or body[:1] != b"{") and self._is_none(body)):
                self._try_elsewhere(BROKEN_OFF if aborted else NO_ANSWER)
            else:
                self._write_whole(body)
                self._served(_COMPLETED, usage)
            return
        self.head(head)
        self.data(body, body, True, True)
        if self._exchange is exchange:  # else it was given up, and may be under way again
            self.end(_COMPLETE, "")

    def _stream_of(self, head: ResponseHead) -> EventStream:
        """What takes this stream's reads."""
        ask, wants, modern = self._ask, self._wants, self._request.modern
        if self._open:
            emitted = self._emitted
            assert emitted is not None
            return ContinuedStream(head.chunked, modern, emitted, self._translation(emitted))
        if not (wants.ids or wants.running_usage or ask.return_token_ids):
            return EventStream(head.chunked, modern, wants.usage)
        stop = ask.stop
        stops = Stops([stop] if isinstance(stop, str) else stop, bool(ask.include_stop_str_in_output)) if stop else None
        several = Several(self._estimate.prompts, self._estimate.sequences) if self._estimate.sequences > 1 else None
        return ToldStream(head.chunked, modern, wants, self._emits_anew(stops, several))

    def _look_at(self, body: bytes) -> tuple[Usage | None, bool]:
        """The usage in a whole answer, and whether the engine broke it off."""
        return looked_at(body)

    def _take_stream(self, wire: bytes, body: bytes, whole: bool, last: bool) -> None:
        """What is not a plain event on its way through."""
        stream = self._stream
        assert stream is not None
        piece = stream.feed(wire, body, whole, last)
        if self._open:
            self._pass(piece, stream.good)
        elif piece:
            self._open_stream(piece)
        if stream.trouble is not None:
            self._stream_trouble(stream, stream.trouble)
        elif stream.events >= stream.report_at:
            self._report()

    def _report(self) -> None:
        """Now and then: tell admission how far the stream is, and count what is held of its ids."""
        stream = self._stream
        if stream is None:
            return
        desk = self._context.desk
        self._pool.admission.emitted(self.ticket, stream.events - self._reported)
        if self._open and not self._reported:
            desk.first_token(self._pool, self, desk.now_s())
            if self._stream is not stream:
                return  # its place was given up for what that made room for
        self._reported = stream.events
        stream.report_at = stream.events + REPORT_EVENTS
        if self._emitted is not None:
            self._hold(self._emitted)
        self._onward()

    def _hold(self, emitted: Emitted) -> None:
        """Count what is held of token ids against the bound of all; what finds no room isn't held."""
        if emitted.missing:
            emitted.forget(emitted.missing)
        more = emitted.size_bytes - emitted.held
        if self._context.held_ids.grow(more):
            emitted.held += more
        else:
            emitted.forget("too many token ids are held")

    def end(self, end: End, detail: str) -> None:
        """The exchange is over; that we aborted it ourselves is no news."""
        if self._over or end is _ABORTED:
            return
        self._exchange = None
        if end is _COMPLETE:
            self._completed()
            return
        if not self._ends():
            self._failed(end, detail)

    # -- streams ------------------------------------------------------------------------------------------------------

    def _open_stream(self, piece: bytes) -> None:
        """First content: from here on this replica's answer is the answer."""
        now_s = self._context.desk.now_s()
        if not self._paused:
            self._first_s = now_s
        self._begun_s = now_s
        self._pool.firsts.took(now_s - self._sent_s)
        self._context.desk.served(self._pool, self._replica, now_s)
        if self._doubt is not None:
            self._confirm()
        if self._emitted is not None:
            self._prepare(self._emitted)
        self._write_head(piece, None, self._request.modern, self._stream is not None and self._stream.good)
        self._let_body_go()
        self._meter.first_content(now_s - self._arrived_s, self._ttft_promise_s)
        self._context.desk.first_token(self._pool, self, now_s)

    def _prepare(self, emitted: Emitted) -> None:
        """Before the body is let go: how the answer would be continued."""
        pool = self._pool
        known = pool.context_tokens if pool.context_tokens < UNKNOWN_CONTEXT_TOKENS else None
        target = self._target.partition(b"?")[0]
        tells = pool.engine.tells_ids
        made = plan(self._body, target, self._ask, known, self._estimate.sequences) if tells else "its pool says so"
        if isinstance(made, str):
            emitted.forget(made)
        else:
            self._plan = made
            self._hold(emitted)

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
            self._pass(held.flow(body, last), last)
        elif not held.add(body) and not last:
            begun = held.take()
            if head.status < 300 and self._is_none(begun, begins=True):
                self._drop_exchange()
                self._try_elsewhere(NO_ANSWER)
                return
            self._pool.admission.answered(self.ticket)
            self._write_head(held.flow(begun, False), head.content_length, held.framed)
            self._let_body_go()

    def _completed(self) -> None:
        """The whole response is here."""
        head, whole = self._answer, self._whole
        if head is None:
            self._failed_with(self._failure.status if self._failure is not None else 502)
            return
        if self._stream is not None:
            self._served(_COMPLETED, self._counted_usage())
        elif whole is None:
            self._answered(head, self._only)
        elif not whole.flowing:
            self._answered(head, whole.take())
        else:
            self._served(_COMPLETED if head.status < 400 else Outcome.REFUSED_BY_ENGINE, usage_in_tail(whole.tail))

    def _answered(self, head: ResponseHead, body: bytes) -> None:
        """The whole answer is held, and none of it is with the client."""
        outcome = _COMPLETED
        if head.status >= 400:
            outcome = Outcome.REFUSED_BY_ENGINE
            error = in_shape(head.status, body, self._request.target)
            if head.status in UNKNOWN_HERE and self._doubts(head.status, body, error):
                return
            if error is not None:
                self._end(outcome, None)
                self._refuse(error)
                return
        usage, aborted = self._look_at(body)
        if aborted or ((usage is None or body[:1] != b"{") and head.status < 300 and self._is_none(body)):
            self._try_elsewhere(BROKEN_OFF if aborted else NO_ANSWER)
            return
        self._write_whole(body)
        self._served(outcome, usage)

    def _served(self, outcome: Outcome, usage: Usage | None) -> None:
        """The client has all of its answer."""
        desk = self._context.desk
        if self._replica in self._pool.outliers.suspects:
            desk.served(self._pool, self._replica, desk.now_s())
        if self._doubt is not None and outcome is _COMPLETED:
            self._confirm()
        self._end(outcome, usage)
        self._connection.finish(self._keep_alive)

    def _let_body_go(self) -> None:
        """The head is out: it is not sent again, and what is left of the answer may take long."""
        self._body = b""
        if self._request.held_bytes or self._request.body:
            self._connection.release(self._request)
