"""A call whose stream a relay worker carries for a while: what it does meanwhile is to have it back first.

Only usual streams are lent, on their first replica, over plain connections. All that can be asked of a call
while its stream is away is answered here; what ends the call at once just drops it.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from forebay.admission.effects import Refuse
from forebay.gateway.handing import Back, Count, Take
from forebay.gateway.lending import Lending, Reclaim
from forebay.gateway.meters import Outcome
from forebay.gateway.moving import Moving
from forebay.gateway.sse import EventStream
from forebay.gateway.told import ToldStream
from forebay.gateway.typed import TypedStream

LEND_EVENTS = 4
"""So many events of content, and a stream may be lent."""
UNSETTLED_MAX = 8
"""So often it is tried again after as many more, where it could not be; from then on at each report."""
WORTH_EVENTS = 64
"""A stream that comes back before so many events were carried came back early…"""
EARLY_MAX = 3
"""…and one that has done so this often stays."""
CARRIED = (EventStream, ToldStream, TypedStream)
"""Kinds of streams that workers know; not what is derived of them."""
PENDING_BYTES_MAX = 16 * 1024
"""Of ids that are reasoning, in the packet by which a stream is lent."""


class LentCall(Moving, ABC):
    """Lending, and what may happen while it is lent. Also `lending.Carriable`."""

    __slots__ = ()

    @abstractmethod
    def _report(self) -> None:
        """Tell admission how far the stream is."""

    # -- going --------------------------------------------------------------------------------------------------------

    def _onward(self) -> None:
        """It has gone on for so long that it will for longer: it may be lent, or is read in a cheaper way."""
        lending = self._context.lending
        if lending is not None:
            if self._lent is None:
                self._offer(lending)
        elif self._exchange is not None and self._open:
            self._exchange.flows()

    def _offer(self, lending: Lending) -> None:
        """It may be lent once what is written is sent."""
        stream = self._stream
        if self._early < EARLY_MAX and stream is not None and type(stream) in CARRIED:
            lending.soon(partial(self._lend, lending, stream))

    def _lend(self, lending: Lending, stream: EventStream) -> None:
        if self._lent is None and self._stream is stream:
            self._lent = lending.lend(self)
            if self._lent is not None:
                self._lent_events = stream.events
            elif self._unsettled < UNSETTLED_MAX:
                self._unsettled += 1
                stream.report_at = min(stream.report_at, stream.events + LEND_EVENTS)

    def settled(self) -> tuple[Take, asyncio.Transport, asyncio.Transport] | None:
        """See `lending.Carriable`."""
        stream, exchange, connection = self._stream, self._exchange, self._connection
        if stream is None or exchange is None or self._paused or not self._open or not stream.usual:
            return None
        if connection.by_peer or self._pool.peer or self._early >= EARLY_MAX:
            return None
        client, engine = connection.lendable(), exchange.lendable()
        if client is None or engine is None:
            return None
        take = Take(0, self._context.limits.client_buffer_bytes_max, typed=type(stream) is TypedStream)
        if isinstance(stream, ToldStream):
            emitted, tells = stream.emitted, stream.tells
            if len(emitted.pending) > PENDING_BYTES_MAX:
                return None
            take.told = tells.ids or tells.running_usage
            take.wants_ids, take.wants_running_usage = tells.ids, tells.running_usage
            take.pending, take.prompt_tokens = bytes(emitted.pending), emitted.prompt_tokens
            take.exact, take.reasons, take.unsure = emitted.exact, emitted.reasons, emitted.doubted
        return take, client, engine

    # -- while it is away ---------------------------------------------------------------------------------------------

    def gone_on(self, count: Count) -> None:
        """See `lending.Carriable`."""
        stream, emitted = self._stream, self._emitted
        if stream is None:
            return
        stream.wire_bytes += count.wire_bytes
        stream.events += count.events
        if emitted is not None:
            emitted.took(count.tokens, count.pending_bytes)
            if emitted.missing:
                emitted.forget(emitted.missing)
        if count.running:
            stream.came_back(count.running)
        if stream.events >= stream.report_at:
            self._report()

    def told_slow(self, slow: bool) -> None:
        """See `lending.Carriable`."""
        self._paused = slow
        if slow:
            self._first_s = None

    def sweep(self, now_s: float) -> None:
        """See `recovery.Recovery.sweep`."""
        lent = self._lent
        if lent is None:
            super().sweep(now_s)
            return
        wire_bytes = self._bytes_read()
        if wire_bytes != self._progress_bytes:
            self._progress_bytes = wire_bytes
            self._progress_s = now_s
        silent = now_s - self._progress_s > self._idle_s
        if silent and (self._paused or lent.recalled):
            # Its client has had its time, be it that what was recalled waits for that to take what is written.
            self._paused = True
            super().sweep(now_s)
        elif (silent or now_s - self._sent_s > self._total_s) and not lent.recalled:
            self._have_back(lambda: self.sweep(self._context.desk.now_s()))

    def moved_from(self, replica: str, why: str) -> None:
        """See `recovery.Recovery.moved_from`."""
        if self._lent is None:
            super().moved_from(replica, why)
        elif self._replica == replica:
            self._have_back(lambda: self.moved_from(replica, why))

    def shut(self, effect: Refuse) -> None:
        """See `recovery.Recovery.shut`."""
        if self._lent is None:
            super().shut(effect)
        else:
            self._have_back(lambda: self.shut(effect))

    def resumable(self) -> int | None:
        """See `desk.Caller`. Where it is away nobody knows; it is asked for, stays from then on, and admission looks again."""
        if self._lent is None:
            return super().resumable()
        if not self._lent.recalled:
            self._early = EARLY_MAX
            self._have_back(self._look_again)
        return None

    def _have_back(self, then: Callable[[], None]) -> None:
        """``then``, when it is here again, unless it is over by then."""
        lending = self._context.lending
        assert lending is not None
        assert self._lent is not None
        lending.recall(self._lent, lambda: None if self._over else then())

    def _look_again(self) -> None:
        self._context.desk.look_again(self._pool)

    def _drop_exchange(self) -> None:
        lent, self._lent = self._lent, None
        if lent is not None and self._context.lending is not None:
            self._context.lending.drop(lent)
        super()._drop_exchange()

    # -- coming back --------------------------------------------------------------------------------------------------

    def came_back(self, back: Back, from_client: bytes, from_engine: bytes, reclaim: Reclaim) -> None:
        """See `lending.Carriable`."""
        stream, emitted, exchange, connection = self._stream, self._emitted, self._exchange, self._connection
        self._lent = None
        self._paused = False
        assert stream is not None
        assert exchange is not None
        if stream.events - self._lent_events < WORTH_EVENTS:
            self._early += 1
            if self._context.lending is not None:
                self._context.lending.early_total += 1
        if emitted is not None:
            emitted.go_on_from(back.exact, back.reasons, back.unsure)
        stream.came_back(back.last)
        reclaim(connection.transport)
        if from_client:
            connection.data_received(from_client)
        exchange.reclaimed(from_engine, reclaim)

    def left(self, reclaim: Reclaim) -> None:
        """See `lending.Carriable`."""
        self._lent = None
        reclaim(self._connection.transport)
        self._connection.abort()

    def lost(self, why: str, reclaim: Reclaim) -> None:
        """See `lending.Carriable`. What the client has is unknown: it can be told nothing more."""
        self._lent = None
        self._why = why
        reclaim(self._connection.transport)
        self._end(Outcome.TRUNCATED, self._counted_usage())
        self._context.truncated(self._pool.name, why)
        self._connection.abort()
