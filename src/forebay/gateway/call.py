"""What is known of one request inside the gateway: given when it came, or found on its way. `relay` says what happens to it.

Slots, since this is made and dropped for every request, and read many times in between.
"""

from forebay.domain.shape import Shape
from forebay.gateway.answers import PassedHead
from forebay.gateway.body import Ask
from forebay.gateway.context import Context
from forebay.gateway.desk import PoolDesk
from forebay.gateway.http import ClientConnection
from forebay.gateway.meters import TierMeter
from forebay.gateway.request import Request
from forebay.gateway.sse import EventStream, Sink
from forebay.gateway.whole import WholeBody
from forebay.ports.upstream import Exchange, ResponseHead


def nothing(wire: bytes, body: bytes, whole: bool, last: bool) -> None:
    """Takes the bytes of a call that has no answer yet, or is over."""
    del wire, body, whole, last


class CallState:
    """One request's, from its arrival to its end."""

    __slots__ = (
        "_answer",
        "_arrived_s",
        "_ask",
        "_body",
        "_body_bytes",
        "_connection",
        "_context",
        "_estimate",
        "_exchange",
        "_failure",
        "_first_s",
        "_keep_alive",
        "_meter",
        "_only",
        "_open",
        "_over",
        "_passed",
        "_paused",
        "_pool",
        "_progress_bytes",
        "_progress_s",
        "_replica_url",
        "_reported",
        "_request",
        "_request_id",
        "_resent",
        "_retries",
        "_sent_s",
        "_stream",
        "_team",
        "_ttft_promise_s",
        "_wait_counted",
        "_whole",
        "_wire_bytes",
        "data",
        "ticket",
    )

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
        self._pool = pool
        self._meter = meter
        self._ask = ask
        self._team = team
        self._body = body
        self._body_bytes = len(body)
        self._request_id = request_id
        self.ticket = context.desk.next_ticket()
        self.data: Sink = nothing
        """`ports.ResponseSink.data`: chosen by the head, as a stream's reads take another way than a whole body's."""
        self._estimate: Shape
        self._arrived_s: float
        self._ttft_promise_s: float | None
        """None once it was counted as missed."""
        self._replica_url: str
        self._sent_s: float
        self._progress_s: float
        self._first_s: float | None = None
        """When a stream's first content came; None again once the client read too slowly: that says nothing of the engine's pace."""
        self._exchange: Exchange | None = None
        self._stream: EventStream | None = None
        self._answer: ResponseHead | None = None
        """Of an answer that isn't a failure to be tried elsewhere."""
        self._passed: PassedHead
        """What the client is told of it."""
        self._failure: ResponseHead | None = None
        """A failure whose body is read to its end and dropped."""
        self._whole: WholeBody | None = None
        """A body that came in several reads."""
        self._only = b""
        """One that came in one."""
        self._keep_alive = False
        """As the head said that is out."""
        self._open = False
        """The head is out: this replica answers, or nobody does."""
        self._over = self._paused = self._resent = self._wait_counted = False
        self._wire_bytes = 0
        """Read from engines, but for the present stream's."""
        self._retries = self._reported = self._progress_bytes = 0
