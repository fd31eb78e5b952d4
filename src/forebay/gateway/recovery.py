"""What happens to a call whose replica fails it: sent elsewhere while nothing is out, continued elsewhere once something is.

Every second try takes from one budget, goes to a replica not tried before, and there are few of them. Where an answer
can't be continued exactly, the client is told so inside the stream.
"""

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Final

from forebay.admission.effects import Dispatch, Refuse
from forebay.admission.quotas import OverCap
from forebay.admission.spill import SpillAdmission
from forebay.gateway.answers import ErrorReply, chunk
from forebay.gateway.asking import NOTHING, UNASKED
from forebay.gateway.call import nothing
from forebay.gateway.continuing import CHAT, PATH, Translation
from forebay.gateway.emitted import Emitted
from forebay.gateway.ending import Ending
from forebay.gateway.meters import Outcome
from forebay.gateway.refusals import ENGINE_ASKS_KEY
from forebay.gateway.sse import EventStream, Trouble
from forebay.ports.upstream import ASKS_KEY, End, ResponseHead

RETRIES_MAX = 2
"""Tries after the first, each on a replica not tried before."""
APART_BYTES_MIN: Final = 64 * 1024
"""A body from this size on isn't copied behind its head to be sent."""
HOSTS_MAX = 4096
FOREIGN_REQUEST: Final = b"content-type: application/json\r\naccept: application/json, text/event-stream\r\nuser-agent: forebay\r\n"
"""What other people's engines are told in place of the client's own headers, which may say who it is, and more."""
SHUT = "The gateway is shutting down and the time for its last answers is over. Please ask again."

_UNSENT = frozenset({End.CONNECT_FAILED, End.REFUSED})
_RETRYABLE = _UNSENT | {End.STALE, End.CUT}


@lru_cache(HOSTS_MAX)
def _host(url: str) -> bytes:
    return url.partition("//")[2].encode()


class Recovery(Ending, ABC):
    """Sending, and sending again."""

    __slots__ = ()

    @abstractmethod
    def dispatch(self, effect: Dispatch) -> None:
        """See `desk.Caller`."""

    @abstractmethod
    def overflowed(self, effect: Refuse) -> bool:
        """See `desk.Caller`."""

    @abstractmethod
    def over_limit(self, over: OverCap) -> None:
        """See `desk.Caller`."""

    @abstractmethod
    def refused(self, effect: Refuse) -> None:
        """See `desk.Caller`."""

    @abstractmethod
    def _ask_more(self) -> None:
        """Ask the engine for what is metered, and continued from."""

    @abstractmethod
    def _hop_lines(self) -> bytes:
        """Header lines for another gateway."""

    @abstractmethod
    def _take_back(self) -> None:
        """The hop to another gateway has ended early: the request isn't that one's to count any more."""

    @abstractmethod
    def _elsewhere(self) -> bool:
        """Whether another gateway would take it."""

    @abstractmethod
    def _completed(self) -> None:
        """The whole response is here."""

    @abstractmethod
    def _open_stream(self, piece: bytes) -> None:
        """First content: ``piece`` goes out, and from here on this replica's answer is the answer."""

    @abstractmethod
    def answer(self, head: ResponseHead, body: bytes) -> None:
        """See `ports.ResponseSink`."""

    @abstractmethod
    def head(self, head: ResponseHead) -> None:
        """See `ports.ResponseSink`."""

    @abstractmethod
    def end(self, end: End, detail: str) -> None:
        """See `ports.ResponseSink`."""

    def shut(self, effect: Refuse) -> None:
        """The gateway ends before it does: said inside the answer where that has begun, and else as a refusal worth another try."""
        if self._over or self._ends():
            return
        if self._open:
            self._truncate(SHUT)
            return
        self._drop_exchange()
        self._forget_answer()
        desk = self._context.desk
        desk.abandon(self._pool, self, None, desk.now_s())
        self.refused(effect)

    def _send(self) -> None:
        if self._wants is UNASKED:
            self._wants = NOTHING
            self._ask_more()
        url, request, body, pool = self._replica_url, self._request, self._body, self._pool
        apart = len(body) >= APART_BYTES_MIN
        wire = b"POST %b%b HTTP/1.1\r\nhost: %b\r\n%b%bx-request-id: %b\r\ncontent-length: %b\r\n\r\n%b" % (
            pool.base,
            self._target,
            _host(url),
            FOREIGN_REQUEST if pool.foreign else request.facts.forwarded,
            pool.head if not pool.peer else self._hop_lines(),
            self._request_id,
            str(len(body)).encode(),
            b"" if apart else body,
        )
        try:
            self._exchange = self._context.upstream.send(url, wire, self, None, None, body if apart else b"")
        except ValueError as error:  # an address that is none: another replica may have one
            self._failed(End.CONNECT_FAILED, str(error))
            return
        if self._paused:
            self._exchange.pause()

    def _failed(self, end: End, detail: str) -> None:
        """The exchange ended without a whole answer."""
        if end in _UNSENT:
            self._hop = b""  # no other gateway knows of it
        else:
            self._take_back()
        if end is End.STALE and not self._resent:
            self._resent = True
            self._forget_answer()
            self._send()
        elif self._open:
            self._broken(f"The engine's answer broke off ({end}).", gone=end is End.REFUSED)
        elif end in _RETRYABLE:
            message = f"The engine could not be reached or broke off ({end})."
            self._try_elsewhere(message, detail=detail, paid=end not in _UNSENT, gone=end is End.REFUSED)
        elif end is End.TIMEOUT and not self._pool.foreign:
            self._blame("It did not answer in time.")
            who = f"gateway {self._pool.peer}, to which the request was forwarded," if self._pool.peer else "engine"
            self._give_up(ErrorReply(504, "server_error", "engine_timeout", f"The {who} did not answer in time."))
        else:  # what is there speaks no HTTP, or other people's engine was silent
            self._try_elsewhere(f"The engine did not answer ({end}).", detail=detail)

    def _locked_out(self, status: int) -> None:
        """Its engine asks for a key, which is no fault of the client's: it leaves routing at once, and others are asked."""
        self._context.asks_key(self._replica_url, status)
        if self._open:
            self._broken(ENGINE_ASKS_KEY)
        else:
            self._try_elsewhere(ENGINE_ASKS_KEY, blame=False)

    def _stream_trouble(self, stream: EventStream, trouble: Trouble) -> None:
        if self._over or stream is not self._stream:  # it may just have given its place up
            return
        if self._ends():
            return
        error = stream.error
        said = (error.message if error is not None else None) or f"The engine did not finish its answer ({trouble})."
        self._why = said
        if self._open:
            self._drop_exchange()
            self._broken(said)
            return
        self._drop_exchange()
        code = error.code if error is not None else None
        if code in ASKS_KEY and not (self._pool.foreign or self._pool.peer):
            self._locked_out(int(code))
        elif isinstance(code, int) and 400 <= code < 500 and code != 429 and not self._pool.foreign:
            reply = ErrorReply(code, (error and error.type) or "invalid_request_error", str(code), said, error.param if error else None)
            self._end(Outcome.REFUSED_BY_ENGINE, None)
            self._refuse(reply)
        else:
            self._try_elsewhere(said, blame=code != 429 or self._pool.foreign)

    def _try_elsewhere(self, message: str, *, blame: bool = True, detail: str = "", paid: bool = True, gone: bool = False) -> None:
        """Back to the head of its lane; admission refuses it where no other replica is left, and none is to come.

        ``detail``: what only the operator is told. ``paid``: other people's engines may charge for what they did. ``gone``: nobody
        listens where its replica was, so that it was no try.
        """
        self._why = message
        if blame:
            self._blame(f"{message} {detail}" if detail else message, gone=gone)
        admission = self._pool.admission
        if isinstance(admission, SpillAdmission):
            # It goes home, where it was not tried: that multiplies nothing, and needs no leave.
            if paid:
                admission.may_cost(self.ticket)
        elif why := self._no_retry(gone=gone):
            self._give_up(self._unserved(message, why))
            return
        self._meter.retries += 1
        self._forget_answer()
        desk = self._context.desk
        desk.retry(self._pool, self, desk.now_s(), reached=not gone)

    def _broken(self, message: str, *, gone: bool = False) -> None:
        """Something of an answer is out, and its replica goes on no more. ``gone``: see `_try_elsewhere`."""
        if self._ends():
            return
        self._why = message
        self._blame(message, gone=gone)
        if not self._streams:
            self._truncate(f"{message} It could not be continued: it is no stream of events.")
            return
        emitted, another = self._emitted, self._another_url()
        unsure = emitted.unsure() if emitted is not None and self._plan is not None and another else b""
        if unsure:
            self._context.detokenize(another, self._pool.model, unsure, lambda text: self._told(message, text))
        else:
            self._go_on(message)

    def _ends(self) -> bool:
        """Where all of its answer is here, and only the end of the response isn't, its client gets it: nobody is asked for it again."""
        stream, whole = self._stream, self._whole
        if stream is None:
            if self._answer is None or self._open or whole is None or not whole.ended:
                return False
            self._drop_exchange()
            self._completed()
            return True
        piece = stream.cut()
        if piece is not None:
            self._drop_exchange()
            if self._open:
                self._pass(piece, True)
            else:
                self._open_stream(piece)
            if not self._over:
                self._completed()
            return True
        if not self._has_all(stream):
            return False
        self._drop_exchange()
        self._take_back()
        if not self._open:
            self._open_stream(stream.take_withheld())
        if not self._over:
            self._conclude(stream)
        return True

    def _told(self, message: str, text: str | None) -> None:
        """An engine has said what tokens mean whose text may not be out."""
        emitted = self._emitted
        if self._over or emitted is None:
            return
        rest = emitted.told(text) if text is not None else ""
        if rest:
            event = self._translation(emitted).text(rest)
            self._connection.write(chunk(event) if self._request.modern else event)
        self._go_on(message)

    def _go_on(self, message: str) -> None:
        why = self._resume()
        if why:
            self._truncate(f"{message} It could not be continued: {why}.")

    def _translation(self, emitted: Emitted) -> Translation:
        return Translation(self._request.target.startswith(CHAT), self._ask, emitted)

    def _resume(self) -> str:
        """Have another replica go on; or say why not."""
        kept = self._reached()
        if isinstance(kept, str):
            return kept
        if denied := self._no_retry():
            return denied
        self._meter.continued += 1
        self._continued += 1
        desk = self._context.desk
        desk.retry(self._pool, self, desk.now_s(), self._go_back_to(kept))
        return ""

    def _reached(self) -> int | str:
        """Of how many tokens of its answer the client has exactly the text, so that another engine can go on; or why none can."""
        emitted, plan = self._emitted, self._plan
        if emitted is None or plan is None:
            return emitted.missing if emitted is not None and emitted.missing else "its engine tells no token ids"
        kept = emitted.place()
        if isinstance(kept, str):
            return kept
        if self._ask.return_token_ids and kept < emitted.tokens:
            return "token ids are out whose text is not"
        return kept if plan.left(emitted, kept) > 0 else "no token is left to it"

    def _go_back_to(self, kept: int) -> int:
        """What is sent next is the request to go on after so many tokens: how many more of them are prompt to its engine than last time."""
        emitted, plan = self._emitted, self._plan
        assert emitted is not None
        assert plan is not None
        emitted.keep()
        self._forget_answer()
        self._body = plan.body(emitted, kept)
        self._target = PATH
        more_prompt_tokens, self._resumed_tokens = kept - self._resumed_tokens, kept
        return more_prompt_tokens

    def resumable(self) -> int | None:
        """See `desk.Caller`."""
        stream = self._stream
        if self._over or (stream is not None and (stream.says_all or self._has_all(stream) or stream.trouble is not None)):
            return None
        if not self._open:
            return None if stream is None and self._computed() else 0
        if self._exchange is None or self._connection.by_peer:
            return None  # another gateway would take the silence for an engine's
        kept = self._reached()
        return None if isinstance(kept, str) else kept - self._resumed_tokens

    def _computed(self) -> bool:
        """Its engine has all of the answer, which comes whole: some of it, or its length, is here. Or has answered that there is none."""
        head = self._answer
        if head is None:
            return self._failure is not None
        return head.content_length is not None or self._whole is not None or self._exchange is None

    def requeued(self) -> None:
        """See `desk.Caller`."""
        self._pass_final()
        self._drop_exchange()
        self._meter.requeued += 1
        self._preempted += 1
        self._resent = False
        if self._open:
            kept = self._reached()
            assert isinstance(kept, int), kept  # admission has just asked
            self._go_back_to(kept)
        else:
            self._forget_answer()

    def _no_retry(self, *, gone: bool = False) -> str:
        """Why it is not tried again, for its client; empty: it is, and that is counted."""
        if self._retries >= RETRIES_MAX:
            return f"it was started {RETRIES_MAX + 1} times, as often as one may be; ask again"
        retries = self._context.retries
        if not retries.take():
            return retries.spent
        self._retries += 1
        self._resent = False
        if not gone:
            self._tried = (*self._tried, self._replica)
        return ""

    def _blame(self, why: str, *, gone: bool = False) -> None:
        """The replica failed this call by a fault of its own."""
        self._context.failures.note(self._pool.name, self._replica, self._replica_url, why)
        self._context.desk.failed(self._pool, self._replica, why, gone=gone)

    def _forget_answer(self) -> None:
        self._wire_bytes = self._bytes_read()
        self._stream = self._whole = self._answer = self._failure = None
        self._only = b""
        self._reported = 0
        self.data = nothing

    def _another(self) -> bool:
        """There is a replica in routing that has not been tried, or another gateway, and a try left."""
        if self._retries >= RETRIES_MAX:
            return False
        tried = (*self._tried, self._replica)
        return any(replica not in tried for replica in self._pool.routed) or self._elsewhere()

    def _lacks_adapter(self) -> bool:
        """Its engine does not know the adapter that it is for, which is remembered: whether another may."""
        pool, adapter = self._pool, self._ask.model
        if adapter not in pool.adapters or pool.foreign or pool.peer:
            return False
        pool.lacking.add(adapter, self._replica, self._context.desk.clock.now_s())
        return self._another()

    def _another_url(self) -> str:
        """The address of a replica in routing that has not been tried; empty where there is none."""
        tried = (*self._tried, self._replica)
        routed = self._pool.routed
        return next((each.url for each in self._pool.roster.replicas if each.id in routed and each.id not in tried), "")
