"""What is asked without a permit: who is asked for it, in which order, and whether the one who asks may know the answer."""

from typing import Protocol

from forebay.domain.roster import Roster
from forebay.gateway.answers import ErrorReply
from forebay.gateway.direct import Direct
from forebay.gateway.holders import Holders
from forebay.gateway.http import ClientConnection
from forebay.gateway.passed import PassedHeads
from forebay.gateway.refusals import ASKS_KEY_REPLY
from forebay.gateway.request import Request
from forebay.gateway.watching import Watching
from forebay.ports.clock import Clock
from forebay.ports.upstream import Upstream

NO_ENGINE = ErrorReply(503, "service_unavailable", "no_replicas", "No replica of this model is there.", retry_after_s=5.0)


class LightContext(Protocol):
    """What it needs of its gateway."""

    upstream: Upstream
    passed_heads: PassedHeads
    clock: Clock

    def spread(self, error: ErrorReply) -> ErrorReply:
        """With its ``Retry-After`` jittered."""
        ...

    def asks_key(self, url: str, status: int) -> None:
        """The engine at ``url`` asks for a key that it isn't shown."""
        ...

    def is_locked(self, url: str) -> bool:
        """Whether it does."""
        ...

    def out(self) -> set[str]:
        """Addresses of replicas that are ejected."""
        ...

    @property
    def roster(self) -> Roster:
        """The one routed by."""
        ...


class Light:
    """All such requests of one gateway."""

    def __init__(self, context: LightContext) -> None:
        self.upstream = context.upstream
        self.passed_heads = context.passed_heads
        self.holders = Holders()
        self.background = Watching(context.upstream, context.clock)
        self.live: set[Direct] = set()
        self._context = context
        self._turn = 0

    def any_of(self, pool: str, connection: ClientConnection, request: Request, body: bytes, request_id: bytes) -> None:
        """One of the pool's replicas, beginning with another one each time."""
        urls = [replica.url for each in self._context.roster.pools if each.pool == pool for replica in each.replicas]
        self._turn += 1
        at = self._turn % len(urls) if urls else 0
        self._start(connection, request, body, request_id, urls[at:] + urls[:at], "")

    def holder_of(self, response_id: str, team: str, connection: ClientConnection, request: Request, request_id: bytes) -> None:
        """The replica that is known to keep the answer, or else each."""
        refusal = self.not_theirs(response_id, team)
        if refusal is not None:
            connection.refuse(refusal, b"x-request-id: %b\r\n" % request_id)
            return
        holder = self.holders.find(response_id)
        everywhere = [replica.url for pool in self._context.roster.pools for replica in pool.replicas]
        urls = [holder.url] if holder is not None and holder.url in everywhere else everywhere
        self._start(connection, request, request.body, request_id, urls, response_id)

    def not_theirs(self, response_id: str | None, team: str) -> ErrorReply | None:
        """Another team's answer is none that there is."""
        holder = self.holders.find(response_id) if response_id else None
        if holder is None or holder.team == team:
            return None
        return ErrorReply(404, "invalid_request_error", None, f"Response with id '{response_id}' not found.", "response_id")

    def asks_key(self, url: str, status: int) -> None:
        """See `direct.DirectContext`."""
        self._context.asks_key(url, status)

    def over(self, direct: Direct, deleted: str) -> None:
        """One has ended; ``deleted`` is no longer kept."""
        self.live.discard(direct)
        if direct.stops:
            self.background.touched(direct.url, direct.stops, deleted=bool(deleted))
        if deleted:
            self.holders.forget(deleted)

    def _start(
        self, connection: ClientConnection, request: Request, body: bytes, request_id: bytes, urls: list[str], response_id: str
    ) -> None:
        usable = [url for url in urls if not self._context.is_locked(url)]
        if out := self._context.out():
            usable.sort(key=out.__contains__)  # those are asked last
        if not usable:
            connection.refuse(self._context.spread(ASKS_KEY_REPLY if urls else NO_ENGINE), b"x-request-id: %b\r\n" % request_id)
            return
        direct = connection.reply = Direct(self, connection, request, body, request_id, usable, response_id)
        self.live.add(direct)
        direct.start()
