"""What is known of one request inside the gateway: given when it came, or found on its way. `relay` says what happens to it.

Slots, since this is made and dropped for every request, and read many times in between.
"""

from abc import ABC
from typing import TYPE_CHECKING

from forebay.admission.candidates import UNWEIGHED, Weighed
from forebay.domain.shape import Shape, Sized
from forebay.gateway.ask import Ask
from forebay.gateway.asking import NOTHING, Wants
from forebay.gateway.context import Context
from forebay.gateway.continuing import Plan
from forebay.gateway.emitted import Emitted
from forebay.gateway.http import ClientConnection
from forebay.gateway.lending import Lent
from forebay.gateway.meters import TierMeter
from forebay.gateway.passed import PassedHead
from forebay.gateway.pool_desk import Caller, PoolDesk
from forebay.gateway.request import Request
from forebay.gateway.sse import EventStream, Sink
from forebay.gateway.whole import WholeBody
from forebay.ports.upstream import Exchange, ResponseHead
from forebay.spec.types import Tier

if TYPE_CHECKING:
    from forebay.gateway.doubting import Doubt


def nothing(wire: bytes, body: bytes, whole: bool, last: bool) -> None:
    """Takes the bytes of a call that has no answer yet, or is over."""
    del wire, body, whole, last


class CallState(Caller, ABC):
    """One request's, from its arrival to its end."""

    __slots__ = (
        "_abroad",
        "_answer",
        "_arrived_s",
        "_ask",
        "_begun_s",
        "_body",
        "_body_bytes",
        "_connection",
        "_context",
        "_continued",
        "_demanded",
        "_doubt",
        "_early",
        "_emitted",
        "_estimate",
        "_exchange",
        "_failure",
        "_final",
        "_first_due_s",
        "_first_s",
        "_home",
        "_hop",
        "_idle_s",
        "_keep_alive",
        "_left",
        "_lent",
        "_lent_events",
        "_meter",
        "_only",
        "_open",
        "_orphaned",
        "_over",
        "_passed",
        "_patience_s",
        "_paused",
        "_plan",
        "_pool",
        "_preempted",
        "_progress_bytes",
        "_progress_s",
        "_queue_s",
        "_replica",
        "_replica_url",
        "_reported",
        "_request",
        "_request_id",
        "_resent",
        "_resumed_tokens",
        "_retries",
        "_retry_after_s",
        "_sampled",
        "_sent_s",
        "_stream",
        "_target",
        "_team",
        "_tier",
        "_total_s",
        "_tried",
        "_ttft_promise_s",
        "_ttft_s",
        "_unsettled",
        "_wait_counted",
        "_waited_for",
        "_wants",
        "_weighed",
        "_whole",
        "_why",
        "_wire_bytes",
        "data",
        "sized",
        "way",
    )

    _abroad: bool
    """Its answer began here and goes on at another gateway: it is counted here, and there not at all."""
    _demanded: tuple[TierMeter, int, int] | None
    """Where it counts as demand, and for how many prompt and output tokens until it has ended; None: at another gateway."""
    _doubt: "Doubt | None"
    """What its first replica said, which knows nothing of what it asks for, while another is asked."""
    _answer: ResponseHead | None
    """Of an answer that isn't a failure to be tried elsewhere."""
    _arrived_s: float
    _weighed: Weighed
    """What was decided when it was last sent, where that was looked at."""
    _begun_s: float | None
    """When a stream's first content came."""
    _early: int
    """Times that a relay worker gave the stream back early."""
    _emitted: Emitted | None
    """Of a stream whose engine tells token ids, over all replicas."""
    _estimate: Shape
    _exchange: Exchange | None
    _failure: ResponseHead | None
    """A failure whose body is read to its end and dropped."""
    _final: bytes
    """The last bytes that its client gets, until it is counted."""
    _first_due_s: float
    """Of a stream: until when there should be a first content."""
    _first_s: float | None
    """When a stream's first content came; None again once the client read too slowly: that says nothing of the engine's pace."""
    _home: PoolDesk
    """The pool it was asked of."""
    _hop: bytes
    """The hop to another gateway by which it was last forwarded; empty: none that can have reached that."""
    _idle_s: float
    _left: tuple[str, ...]
    """Pools that did not start it in time."""
    _lent: Lent | None
    """Where a relay worker carries the stream."""
    _lent_events: int
    """How many there were when it was last lent."""
    _patience_s: float
    _tier: Tier
    way: bytes
    """Header lines that say where it was answered instead, or why there."""
    _keep_alive: bool
    """As the head said that is out."""
    _only: bytes
    """A body that came in one read."""
    _open: bool
    """The head is out: the client has the beginning of an answer."""
    _orphaned: bool
    """It was forwarded, and the hop has ended early: this gateway counts it, unless the other one has (`hop_counts`)."""
    _passed: PassedHead
    """What the client is told of the answer's head."""
    _plan: Plan | None
    """How the answer would be continued; None: it can't be, and ``_emitted`` says why."""
    _progress_s: float
    _queue_s: float
    """In its lane before it was first sent."""
    _replica: str
    _replica_url: str
    _resumed_tokens: int
    """Tokens of the answer that are part of the present replica's prompt."""
    _retry_after_s: float | None
    """Real seconds, as the client was told."""
    _sampled: bool
    """Its record goes into the history however it ends."""
    _sent_s: float
    _stream: EventStream | None
    _target: bytes
    """Where it is sent: a continuation goes elsewhere than the client asked."""
    _total_s: float
    _tried: tuple[str, ...]
    """Replicas that failed it."""
    _ttft_promise_s: float | None
    """The tier's promise; None once it was counted as missed."""
    _ttft_s: float
    """The same, and never None."""
    _unsettled: int
    """Times that the stream could not be lent just then."""
    _waited_for: str
    """What it was short of when it came; empty: it did not wait."""
    _wants: Wants
    """What was asked of the engine beyond what the client asked."""
    _whole: WholeBody | None
    """A body that came in several reads."""
    _why: str
    """What last went wrong, in the words the client is told."""
    _wire_bytes: int
    """Read from engines, but for the present stream's."""
    data: Sink
    """`ports.ResponseSink.data`: chosen by the head, as a stream's reads take another way than a whole body's."""

    sized: Sized | None
    """What is known of its body beside its size."""

    def __init__(
        self,
        context: Context,
        connection: ClientConnection,
        request: Request,
        pool: PoolDesk,
        meter: TierMeter,
        ask: Ask,
        team: str,
        body: bytes,
        request_id: bytes,
    ) -> None:
        self._context = context
        self._connection = connection
        self._request = request
        self._target = request.target
        self._pool = self._home = pool
        self._meter = meter
        self._ask = ask
        self._team = team
        self._body = body
        self._body_bytes = len(body)
        self._request_id = request_id
        self.ticket = context.desk.next_ticket()
        self.data = nothing
        self._first_s = self._exchange = self._stream = self._answer = self._failure = self._whole = self._emitted = self._plan = None
        self._begun_s = self._retry_after_s = self.sized = self._lent = self._demanded = self._doubt = None
        self._only = self._hop = self._final = b""
        self._replica = self._waited_for = self._why = self.kept_at = ""
        self._queue_s = 0.0
        self._tried = self._left = ()
        self._weighed = UNWEIGHED
        self.way = b""
        self._wants = NOTHING
        self._open = self._keep_alive = self._over = self._paused = self._resent = self._wait_counted = self._sampled = False
        self._orphaned = self._abroad = False
        self._retries = self._reported = self._progress_bytes = self._wire_bytes = self._resumed_tokens = self._continued = (
            self._preempted
        ) = self._early = self._unsettled = 0
