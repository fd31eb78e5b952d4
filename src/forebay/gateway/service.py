"""The gateway: routes, identity and models in front; admission's desk behind; the relay between.

It never proxies anything but the routes named here: engines have admin endpoints that no client may reach.
"""

import random
import socket
import ssl
from collections.abc import Mapping
from functools import partial
from typing import Final

from forebay.admission.prefixes import Prefix, prefix_of
from forebay.domain.reloads import Reloads
from forebay.domain.roster import Ack, Roster, Snapshot
from forebay.domain.shape import Shape
from forebay.gateway import hops, long_context, overflow, reloading, shutting
from forebay.gateway.answers import ErrorReply
from forebay.gateway.ask import Ask
from forebay.gateway.body import choices_of, lead_of, output_tokens_max, previous_of
from forebay.gateway.bounds import HELD_IDS_BYTES_MAX
from forebay.gateway.catalogue import Catalogue, no_model
from forebay.gateway.conversations import Seek
from forebay.gateway.desk import Desk
from forebay.gateway.direct import Direct
from forebay.gateway.door import Door
from forebay.gateway.duties import nobody
from forebay.gateway.elsewhere import Question
from forebay.gateway.failures import Failures
from forebay.gateway.families import registry
from forebay.gateway.heads import content_type
from forebay.gateway.http import ClientConnection, HttpServer
from forebay.gateway.identity import UNAUTHORIZED, Caller, Identity
from forebay.gateway.large import call_for
from forebay.gateway.latencies import Latencies
from forebay.gateway.lending import Lending
from forebay.gateway.light import Kept, Light
from forebay.gateway.metering import Metering
from forebay.gateway.pages import Pages
from forebay.gateway.passed import PassedHeads
from forebay.gateway.peek import form_peek, peek_for
from forebay.gateway.peering import Peering
from forebay.gateway.pool_desk import PoolDesk
from forebay.gateway.prober import Prober
from forebay.gateway.recorded import live
from forebay.gateway.records import Records
from forebay.gateway.relay import Call
from forebay.gateway.request import LargeRequest, Peek, Request
from forebay.gateway.retries import HeldIds, RetryBudget
from forebay.gateway.roster import static_roster
from forebay.gateway.routes import POSTS, Route, kept_response, unknown_url
from forebay.gateway.shaping import shape_of
from forebay.gateway.shown import Shown
from forebay.ports.clock import Clock, Ids, TimerHandle
from forebay.ports.crew import Crew
from forebay.ports.events import EventSink
from forebay.ports.journal import Journal, NoJournal
from forebay.ports.upstream import Upstream
from forebay.spec.live import check_live
from forebay.spec.types import Spec, Tier

SWEEP_REAL_S = 1.0
FORM_BYTES: Final = 4096
"""What a form is taken for where tokens are estimated from bytes: those of sound and pictures say nothing."""
READS: Final = frozenset({b"GET", b"HEAD"})
_QUERY: Final = b"?"[0]


class Gateway(Door):
    """One process's data path. ``chance`` jitters Retry-After; every time is the ``clock``'s."""

    def __init__(
        self,
        spec: Spec,
        clock: Clock,
        ids: Ids,
        upstream: Upstream,
        chance: random.Random,
        sink: EventSink,
        name: str,
        tls: ssl.SSLContext | None = None,
        keys: Mapping[str, str] | None = None,
        ledger: overflow.Ledger | None = None,
        journal: Journal | None = None,
        crew: Crew | None = None,
    ) -> None:
        """``crew``: relay workers that streams are lent to."""
        self.spec = spec
        self.clock, self.upstream, self.chance = clock, upstream, chance
        self.limits, self.speed, self.name = spec.limits, clock.speed, name
        self.passed_heads, self.foreign_heads = PassedHeads(), PassedHeads(foreign=True)
        self.retries, self.latencies = RetryBudget(), Latencies()
        self.held_ids = HeldIds(HELD_IDS_BYTES_MAX)
        self.failures = Failures(clock, self._emit)
        self.desk = Desk(spec, clock, self._on_ejection)
        self.lending = Lending(crew, clock, self._emit) if crew is not None else None
        overflow.join(spec, self.desk, keys or {}, self._emit, ledger)
        long_context.join(spec, self.desk.pools)
        self.http = HttpServer(spec.limits, self._handle, self._peek, self._handle_large, tls, self.spread, self._named, self._admits)
        self.reloads, self.draining = Reloads(), False
        self._request_prefix, self._requests = ids.fresh("req").encode(), 0
        """Fresh for each gateway; a count makes it a request's."""
        self.http.is_called(name, self._request_prefix)
        self._sink, self._identity = sink, Identity(spec)
        self._roster, self._urls = Roster(0, 0, 0.0, ()), frozenset()
        self._sweeper: TimerHandle | None = None
        self._prober, self.meet, self._asked = Prober(upstream), nobody, set()
        self._truncations, self._truncation = 0, ("", "")
        self.url = ""
        """Where other gateways reach this one."""
        self.peering: Peering | None = None
        """From the first roster under leases on."""
        self.servers = [self.http]
        self._light = Light(self)
        self.holders, self.background = self._light.holders, self._light.background
        self.records = Records(clock, partial(live, self.desk))
        self.metering = Metering(name, journal or NoJournal(ids.fresh("journal")), clock, self._emit)
        self.usage = self.metering.book
        self._catalogue = Catalogue(spec, self.desk)
        self._meters = [meter for pool in (*self.desk.pools.values(), *self.desk.spills) for meter in pool.meters.values()]
        self.shown = Shown(self.desk, self.servers, self.metering, self.records, self.reloads, self.lending, self.retries, self.latencies)
        pages = registry(self._meters, self.shown), self.records, self._catalogue, self.desk
        self._pages = Pages(*pages, lambda: not self.draining, lambda: self.peering)

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self, host: str, port: int) -> int:
        """Accept requests; returns the port. Raises OSError where it can't listen."""
        self._start()
        return await self.http.start(host, port)

    async def start_on(self, listening: socket.socket) -> None:
        """Accept requests on a socket that is open already, handed down by a supervisor."""
        self._start()
        await self.http.start_on(listening)

    async def take_hops_on(self, listening: socket.socket | None, host: str = "127.0.0.1", port: int = 0) -> None:
        """Be reachable for other gateways, on a socket that is open already or on ``port`` of ``host``; before the link is begun."""
        self.url = await hops.listen(self, listening, host, port)

    def _start(self) -> None:
        self._sweep_later()
        self.metering.start()
        if self.lending is not None:
            self.lending.start()

    async def drain(self) -> None:
        """Accept no more connections, let what is inside end (at most ``limits.drain_s``), tell the rest that it is cut, close."""
        self.draining = True
        for server in self.servers:
            server.closing = True
            server.stop_listening()
        self._emit("gateway_drain", f"{shutting.live(self)} requests are inside")
        await shutting.until_empty(self, self.clock.now_s() + self.limits.drain_s)
        self._emit("gateway_drained", f"{await shutting.cut(self)} requests were cut")
        if self.peering is not None:
            await self.peering.counts.settled()
        await self.close()

    def reload(self, spec: Spec) -> None:
        """Serve by ``spec`` from the next request on; what is inside keeps what it came with. Raises BadInput, with nothing changed."""
        check_live(self.spec, spec)
        reloading.apply(spec, self.desk)
        self.spec, self.limits = spec, spec.limits
        for server in self.servers:
            server.limits = spec.limits
            server.forget_heads()
        self._identity = Identity(spec, self._identity)
        self._catalogue = self._pages.catalogue = Catalogue(spec, self.desk)

    async def close(self) -> None:
        """Close at once: clients that are still served see a reset."""
        self.draining = True
        if self.peering is not None:
            self.peering.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for server in self.servers:
            server.closing = True
            server.close()
        await self._prober.close()
        await self.background.close()
        await self.upstream.close()
        if self.lending is not None:
            await self.lending.close()
        self.desk.close()
        await self.metering.close()

    # -- the controller's side ----------------------------------------------------------------------------------------

    @property
    def roster(self) -> Roster:
        """The one routed by."""
        return self._roster

    def apply(self, roster: Roster) -> Ack:
        """Route by ``roster``, unless it is older than the present one; the answer names the one routed by."""
        present = self._roster
        if (roster.term, roster.version) > (present.term, present.version):
            self._roster = roster
            self._meet(roster)
            if roster.leased and self.peering is None:
                self.peering = Peering(self)
            if self.peering is None:
                self.desk.shares.end(self.clock.now_s())
                self.desk.apply(roster.pools)
            else:
                self.peering.apply(roster)
            urls = frozenset(replica.url for pool in roster.pools for replica in pool.replicas)
            for url in self._urls - urls:
                self.upstream.forget(url)
            if urls != self._urls:
                self._emit("roster", f"{len(urls)} replicas under term {roster.term}, version {roster.version}")
            self._urls = urls
        return Ack(self.name, self._roster.term, self._roster.version)

    def pools_served(self) -> frozenset[str]:
        """Names of the pools that have a replica in the present roster."""
        return frozenset(pool.pool for pool in self._roster.pools if pool.replicas)

    def snapshot(self) -> Snapshot:
        """Lanes, what is in flight, and counters, now."""
        loads, refused = self.desk.loads(), self.reloads.why
        return Snapshot(self.name, self.clock.now_s(), self._roster.term, self._roster.version, loads, refused=refused)

    def report(self) -> Snapshot:
        """The same for the controller, with the limits of teams where it divides them."""
        return self.desk.shares.told_with(self.snapshot())

    @property
    def direct(self) -> set[Direct | Seek | Question]:
        """Requests inside that need no permit, or not yet."""
        return {*self._light.inside, *self._pages.elsewhere.live}

    def check(self) -> None:
        """Raises AssertionError unless permits are exactly the live exchanges, and nothing is left of what ended."""
        self.shown.check(len(self.direct) - self.background.apart)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _handle(self, connection: ClientConnection, request: Request) -> None:
        path = request.target
        if _QUERY in path:
            path = path.partition(b"?")[0]
        route = POSTS.get(path)
        if route is not None:
            if request.method == b"POST":
                self._infer(connection, request, route, None if not route.multipart else form_peek(request))
            else:
                self._not_allowed(connection, request, "POST")
            return
        kept = kept_response(path)
        if kept is not None:
            self._ask_holder(connection, request, *kept)
            return
        page = self._pages.at(path)
        if page is None:
            self._refuse(connection, unknown_url(path), self._request_id(request))
        elif request.method not in READS:
            self._not_allowed(connection, request, "GET, HEAD")
        else:
            page(connection, request, self._caller(request), self._request_id(request))

    def _peek(self, request: Request) -> Peek | None:
        """How to look into a large body: only those of requests that wait for a replica are taken."""
        route = POSTS.get(request.target.partition(b"?")[0])
        if route is None or route.light or request.method != b"POST":
            return None
        return peek_for(content_type(request.facts), route.multipart, route.lists, whole=route.stateful)

    def _handle_large(self, connection: ClientConnection, request: Request) -> None:
        route = POSTS[request.target.partition(b"?")[0]]
        self._infer(connection, request, route, request.peek if isinstance(request, LargeRequest) else None)

    def _infer(self, connection: ClientConnection, request: Request, route: Route, peek: Peek | None = None) -> None:
        facts = request.facts
        request_id = facts.request_id
        if not request_id:
            self._requests += 1
            request_id = b"%b-%x" % (self._request_prefix, self._requests)
        caller = facts.caller if facts.known_to is self._identity else self._caller(request)
        if caller is None:
            self._refuse(connection, UNAUTHORIZED, request_id)
            return
        body = request.body
        # What engines keep is here as a whole, and read by a parser as theirs is: what one would find and the other not, as a name
        # that is spelled with an escape, could be another team's conversation.
        looked = None if route.stateful else peek
        ask = route.decode(body if looked is None else looked.fields())
        if type(ask) is ErrorReply:  # `isinstance` is slow for Structs
            self._refuse(connection, ask, request_id)
            return
        pool = self._catalogue.of(ask.model, caller.residency)
        tier = caller.tier if ask.service_tier is None else self._identity.tier(caller, ask.service_tier)
        if pool is None or type(tier) is ErrorReply:
            self._refuse(connection, tier if type(tier) is ErrorReply else no_model(ask.model), request_id)
            return
        if ask.service_tier is not None or ask.model != pool.model:
            fitting = self._catalogue.for_engines(ask, body, pool.model, looked)
            if isinstance(fitting, ErrorReply):
                self._refuse(connection, fitting, request_id)
                return
            body = fitting
        if route.plain and peek is None and pool.long is None:
            team = caller.team
            shape, sized = shape_of(self.desk.estimator, route, pool, ask, team, body, len(body), None)
            call = connection.reply = Call(self, connection, request, pool, pool.meters[tier.name], ask, team, body, request_id)
            call.sized = sized
            prefix = self._prefix(pool, ask, body, len(body), shape) if pool.by_prefix and route.generates else None
            call.start(tier, shape, self.desk.now_s(), facts.patience_s, prefix)
        elif route.light:
            adapter = ask.model if ask.model in pool.adapters else ""
            stand_in = pool.ways.stand_in(caller.team, adapter) if pool.ways is not None else None
            self._light.any_of((stand_in or pool).name, connection, request, body, request_id)
        elif route.stateful and (previous := previous_of(ask)) is not None:
            start = partial(self._start_call, connection, request, route, pool, tier, ask, caller, body, request_id, peek)
            self._light.go_on(previous, pool, caller, connection, request_id, start)
        else:
            self._start_call(connection, request, route, pool, tier, ask, caller, body, request_id, peek, None)

    def _start_call(
        self,
        connection: ClientConnection,
        request: Request,
        route: Route,
        pool: PoolDesk,
        tier: Tier,
        ask: Ask,
        caller: Caller,
        body: bytes,
        request_id: bytes,
        peek: Peek | None,
        kept: Kept | None,
    ) -> None:
        taken = self._light.taken(ask, caller.team) if route.stateful else None
        if taken is not None:
            self._refuse(connection, taken, request_id)
            return
        pool, history_tokens = (pool, 0) if kept is None else (kept.pool, kept.tokens)
        size = len(body) if peek is None else FORM_BYTES if route.multipart else request.size_bytes
        shape, sized = shape_of(self.desk.estimator, route, pool, ask, caller.team, body, size, peek, history_tokens)
        way, spoken = b"", route.generates and not route.multipart
        if pool.long is not None and spoken and kept is None and ask.model not in self._catalogue.adapters:
            asked = long_context.Asked(caller.team, size, output_tokens_max(ask), choices_of(ask), sized, shape.prompts)
            prefix_of_shape = partial(self._prefix, pool, ask, body, size, typed=route.typed)
            pool, shape, way = pool.long.choose(self.desk.estimator, asked, shape, prefix_of_shape, caller.residency)
        call = call_for(route, request)(self, connection, request, pool, pool.meters[tier.name], ask, caller.team, body, request_id)
        connection.reply = call
        call.sized, call.way, call.kept_at = sized, way, kept.replica if kept is not None else ""
        looks = pool.by_prefix and spoken and not history_tokens
        prefix = self._prefix(pool, ask, body, size, shape, typed=route.typed) if looks else None
        call.start(tier, shape, self.clock.now_s(), request.facts.patience_s, prefix)

    def _prefix(self, pool: PoolDesk, ask: Ask, body: bytes, size: int, shape: Shape, *, typed: bool = False) -> Prefix | None:
        """What of its prompt may be cached: one model has one cache under all its aliases, each adapter its own, and so each salt."""
        model, salt = ask.model if ask.model in self._catalogue.adapters else pool.model, ask.cache_salt
        apart = salt if type(salt) is str else repr(salt) if salt else ""
        return prefix_of(body, size, shape.prompt_tokens, model, apart, lead_of(body) if typed else b"")

    def _ask_holder(self, connection: ClientConnection, request: Request, response_id: str, methods: tuple[bytes, ...]) -> None:
        """An answer is asked for that some engine keeps."""
        request_id = self._request_id(request)
        caller = self._caller(request)
        if request.method not in methods:
            self._not_allowed(connection, request, b", ".join(methods).decode())
        elif caller is None:
            self._refuse(connection, UNAUTHORIZED, request_id)
        else:
            self._light.holder_of(response_id, caller.team, connection, request, request_id)

    # -- timers and events --------------------------------------------------------------------------------------------

    def _sweep_later(self) -> None:
        self._sweeper = self.clock.call_at(self.clock.now_s() + SWEEP_REAL_S * self.speed, self._sweep)

    def _sweep(self) -> None:
        self._sweep_later()
        self.failures.sweep()
        if self.lending is not None:
            self.lending.sweep()
        if self._truncations:
            pool, why = self._truncation
            self._emit("streams_truncated", f"{self._truncations} streams were broken off; the last: {why}", pool)
            self._truncations = 0
        self.desk.sweep()  # last: it may raise


__all__ = ["Gateway", "static_roster"]
