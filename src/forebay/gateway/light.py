"""What is asked without a permit: who is asked for it, in which order, and whether the one who asks may know the answer."""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Protocol

import msgspec

from forebay.admission.outliers import EJECT_S
from forebay.domain.roster import Roster
from forebay.gateway.answers import ErrorReply, bad_request
from forebay.gateway.ask import Ask, ResponsesAsk
from forebay.gateway.conversations import Conversations, Peers, Seek, Then, not_found, previous_not_found
from forebay.gateway.desk import Desk
from forebay.gateway.direct import Direct
from forebay.gateway.holders import Holder
from forebay.gateway.http import ClientConnection
from forebay.gateway.identity import Caller
from forebay.gateway.passed import PassedHeads
from forebay.gateway.pool_desk import PoolDesk
from forebay.gateway.refusals import ASKS_KEY_REPLY, NO_RETRY, OUT_OF_TIME_REPLY
from forebay.gateway.request import Request
from forebay.gateway.watching import Watching
from forebay.ports.clock import Clock, TimerHandle
from forebay.ports.upstream import Upstream
from forebay.spec.types import Spec

OUT = ErrorReply(
    503,
    "service_unavailable",
    "response_unavailable",
    "The replica that keeps this response takes no requests now. Please ask again.",
    retry_after_s=5.0,
)


def no_replica(of: str) -> ErrorReply:
    """503. ``of``: a pool, as a blank and its name; empty: of any."""
    return ErrorReply(503, "service_unavailable", "no_replicas", f"No replica{of} is there.", retry_after_s=5.0)


class Kept(msgspec.Struct, frozen=True):
    """The one replica that keeps what a request goes on from."""

    pool: PoolDesk
    replica: str
    tokens: int
    """Of the conversation so far; 0: not known."""


class LightContext(Protocol):
    """What it needs of its gateway."""

    spec: Spec
    clock: Clock
    desk: Desk
    upstream: Upstream
    passed_heads: PassedHeads

    @property
    def peering(self) -> Peers | None:
        """The other gateways."""
        ...

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

    def is_out(self, url: str) -> bool:
        """Whether the replica at ``url`` is ejected."""
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
        self.conversations = Conversations(context.upstream)
        self.holders = self.conversations.holders
        self.background = Watching(context.upstream, context.clock)
        self.live: set[Direct] = set()
        self._context = context
        self._turn = 0

    def any_of(self, pool: str, connection: ClientConnection, request: Request, body: bytes, request_id: bytes) -> None:
        """One of the pool's replicas, beginning with another one each time."""
        urls = [replica.url for each in self._context.roster.pools if each.pool == pool for replica in each.replicas]
        self._turn += 1
        at = self._turn % len(urls) if urls else 0
        self._start(connection, request, body, request_id, urls[at:] + urls[:at], "", f" of pool {pool}")

    def holder_of(self, response_id: str, team: str, connection: ClientConnection, request: Request, request_id: bytes) -> None:
        """The replica that keeps the answer; where nobody can tell which, and there are no teams, each."""

        def ask(found: Holder | ErrorReply | None) -> None:
            everywhere = [replica.url for pool in self._context.roster.pools for replica in pool.replicas]
            if isinstance(found, Holder):
                found = self._lost(response_id, found, everywhere) or found
            if isinstance(found, ErrorReply):
                connection.refuse(self._context.spread(found), b"x-request-id: %b\r\n" % request_id)
            else:
                urls = everywhere if found is None else [found.url]
                self._start(connection, request, request.body, request_id, urls, response_id)

        # Each replica is asked for the answer itself below, so that nobody need look for it first.
        self._find(response_id, team, connection, request_id, ask, replicas=())

    def taken(self, ask: Ask, team: str) -> ErrorReply | None:
        """What a request is refused with that calls its answer as another team's is called: an engine would keep it in that one's place."""
        named = ask.request_id if isinstance(ask, ResponsesAsk) else None
        holder = self.holders.find(named) if named else None
        if holder is None or holder.team == team:
            return None
        return bad_request(f"`request_id` {named!r} is taken. Leave it out, or change it.", "request_id")

    def go_on(
        self,
        previous: str,
        pool: PoolDesk,
        caller: Caller,
        connection: ClientConnection,
        request_id: bytes,
        start: Callable[[Kept | None], None],
    ) -> None:
        """Have ``start`` send what goes on from ``previous`` to the replica that keeps it; None: to any, as nobody knows of it."""

        def place(found: Holder | ErrorReply | None) -> None:
            if isinstance(found, Holder):
                kept = self._kept(found, pool, caller.residency)
                if kept is not None:
                    start(kept)
                    return
                found = previous_not_found(previous, f": no replica of {pool.model} that serves now keeps it")
            if found is None:
                start(None)
                return
            if found.status == HTTPStatus.NOT_FOUND and found.code is None:
                found = previous_not_found(previous)
            connection.refuse(self._context.spread(found), b"x-request-id: %b\r\n" % request_id)

        usable = [replica.url for each in self._context.roster.pools if each.pool == pool.name for replica in each.replicas]
        self._find(previous, caller.team, connection, request_id, place, replicas=[url for url in usable if not self._context.is_out(url)])

    def _find(
        self, response_id: str, team: str, connection: ClientConnection, request_id: bytes, then: Then, replicas: Sequence[str]
    ) -> None:
        asked = None if self._context.spec.teams else replicas
        self.conversations.find(response_id, team, self._context.peering, asked, connection, request_id, then)

    def _kept(self, holder: Holder, pool: PoolDesk, residency: tuple[str, ...]) -> Kept | None:
        """Its replica, if that serves the same model, where a team of this ``residency`` may be served."""
        pools = self._context.desk.pools
        for listed in self._context.roster.pools:
            there = pools.get(listed.pool)
            if there is not None and there.model == pool.model and there.within(residency):
                for replica in listed.replicas:
                    if replica.url == holder.url:
                        return Kept(there, replica.id, holder.tokens)
        return None

    def _lost(self, response_id: str, holder: Holder, everywhere: Sequence[str]) -> ErrorReply | None:
        """Why the answer can't be had now, where the replica that keeps it serves nobody."""
        if holder.url not in everywhere:
            return not_found(response_id)
        return OUT if self._context.is_out(holder.url) and not self._context.is_locked(holder.url) else None

    @property
    def inside(self) -> set[Direct | Seek]:
        """All of them, and those that wait until it is known who is asked."""
        return {*self.live, *self.conversations.seeking}

    def later(self, real_s: float, due: Callable[[], None]) -> TimerHandle:
        """See `direct.DirectContext`."""
        clock = self._context.clock
        return clock.call_at(clock.now_s() + real_s * clock.speed, due)

    def failed(self, error: ErrorReply) -> ErrorReply:
        """See `direct.DirectContext`."""
        if error.status >= 500 and error.retry_after_s is None:
            error = msgspec.structs.replace(error, retry_after_s=EJECT_S / self._context.clock.speed)
        return self._context.spread(error)

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
        self,
        connection: ClientConnection,
        request: Request,
        body: bytes,
        request_id: bytes,
        urls: list[str],
        response_id: str,
        of: str = "",
    ) -> None:
        if request.facts.patience_s <= 0:
            connection.refuse(OUT_OF_TIME_REPLY, b"x-request-id: %b\r\n%b" % (request_id, NO_RETRY))
            return
        usable = [url for url in urls if not self._context.is_locked(url)]
        if out := self._context.out():
            usable.sort(key=out.__contains__)  # those are asked last, and may be well by then
        if not usable:
            connection.refuse(self._context.spread(ASKS_KEY_REPLY if urls else no_replica(of)), b"x-request-id: %b\r\n" % request_id)
            return
        direct = connection.reply = Direct(self, connection, request, body, request_id, usable, response_id)
        self.live.add(direct)
        direct.start()
