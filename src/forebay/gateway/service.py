"""The gateway: routes, identity and models in front; admission's desk behind; the relay between.

It never proxies anything but the routes named here: engines have admin endpoints that no client may reach.
"""

import random
import socket
from collections.abc import Callable, Iterable

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from forebay.admission.fairness import TeamLoad
from forebay.domain.events import Event
from forebay.domain.roster import Ack, Roster, Snapshot
from forebay.gateway.answers import JSON, ErrorReply, PassedHeads
from forebay.gateway.body import ENGINE_TIERS, decode, rewritten
from forebay.gateway.desk import Desk, PoolDesk
from forebay.gateway.http import ClientConnection, HttpServer
from forebay.gateway.identity import UNAUTHORIZED, Caller, Identity
from forebay.gateway.meters import TierMeter, registry
from forebay.gateway.relay import Call
from forebay.gateway.request import Request
from forebay.gateway.roster import static_roster
from forebay.ports.clock import Clock, Ids, TimerHandle
from forebay.ports.events import EventSink
from forebay.ports.upstream import Upstream
from forebay.spec.types import Spec

SWEEP_REAL_S = 1.0
DRAIN_POLL_REAL_S = 0.05
CREATED_UNIX_S = 1_700_000_000
"""``created`` of a listed model: clients' types require one, and a deployment has none that means anything."""

INFERENCE = frozenset({b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings"})
EMBEDDINGS = b"/v1/embeddings"
READS = frozenset({b"GET", b"HEAD"})
MODELS = b"/v1/models"
_QUERY = b"?"[0]


class Gateway:
    """One process's data path. ``chance`` jitters Retry-After; every time is the ``clock``'s."""

    def __init__(self, spec: Spec, clock: Clock, ids: Ids, upstream: Upstream, chance: random.Random, sink: EventSink, name: str) -> None:
        self.spec = spec
        self.clock = clock
        self.upstream = upstream
        self.chance = chance
        self.limits = spec.limits
        self.speed = clock.speed
        self.name = name
        self.passed_heads = PassedHeads()
        self.desk = Desk(spec, clock)
        self.http = HttpServer(spec.limits, self._handle)
        self.draining = False
        self._request_prefix = ids.fresh("req").encode()
        """Fresh for each gateway; a count makes it a request's."""
        self._requests = 0
        self._sink = sink
        self._identity = Identity(spec)
        self._roster = Roster(0, 0, 0.0, ())
        self._urls: frozenset[str] = frozenset()
        self._sweeper: TimerHandle | None = None
        self._truncations = 0
        self._truncation = ("", "")
        self._models = _models(spec, self.desk)
        self._meters: list[TierMeter] = [meter for pool in self.desk.pools.values() for meter in pool.meters.values()]
        self._registry = registry(self._meters, self)
        self._gets: dict[bytes, Callable[[ClientConnection, Request], None]] = {
            b"/health": self._health,
            b"/metrics": self._metrics,
            MODELS: self._list_models,
        }

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self, host: str, port: int) -> int:
        """Accept requests; returns the port. Raises OSError where it can't listen."""
        self._sweep_later()
        return await self.http.start(host, port)

    async def start_on(self, listening: socket.socket) -> None:
        """Accept requests on a socket that is open already, handed down by a supervisor."""
        self._sweep_later()
        await self.http.start_on(listening)

    async def drain(self) -> None:
        """Accept no more connections, let what is inside end (at most ``limits.drain_s``), close."""
        self.draining = self.http.closing = True
        self.http.stop_listening()
        deadline_s = self.clock.now_s() + self.limits.drain_s
        self._emit("gateway_drain", f"{self.desk.live} requests are inside")
        # What was written last is still on its way to slow clients when the engines are done.
        while (self.desk.live or self.http.unsent_bytes()) and self.clock.now_s() < deadline_s:
            await self.clock.sleep_until(min(deadline_s, self.clock.now_s() + DRAIN_POLL_REAL_S * self.speed))
        self._emit("gateway_drained", f"{self.desk.live} requests were cut")
        await self.close()

    async def close(self) -> None:
        """Close at once: clients that are still served see a reset."""
        self.draining = self.http.closing = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self.http.close()
        await self.upstream.close()
        self.desk.close()

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
            self.desk.apply(roster.pools)
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
        return Snapshot(self.name, self.clock.now_s(), self._roster.term, self._roster.version, self.desk.loads())

    def check(self) -> None:
        """Raises AssertionError unless permits are exactly the live exchanges, and nothing is left of what ended."""
        waiting = permits = 0
        for pool in self.desk.pools.values():
            pool.admission.check()
        for load in self.desk.loads():
            waiting += sum(lane.waiting for lane in load.lanes)
            permits += sum(replica.streams for replica in load.replicas)
        assert waiting + permits == self.desk.live, f"{waiting} wait and {permits} hold permits, but {self.desk.live} calls are inside"
        answered = sum(connection.reply is not None for connection in self.http.connections)
        assert answered == self.desk.live, f"{self.desk.live} calls are inside, and {answered} clients wait for one"
        assert self.http.bodies_bytes >= 0, "a body was released twice"
        assert self.http.connections or not self.http.bodies_bytes, f"{self.http.bodies_bytes} bytes of bodies without a client"

    # -- what is shown (`meters.Gauges`) -------------------------------------------------------------------------------------

    def lanes(self) -> Iterable[tuple[str, str, int, int]]:
        """Waiting, by pool and tier."""
        return [(load.pool, lane.tier, lane.waiting, lane.waiting_tokens) for load in self.desk.loads() for lane in load.lanes]

    def replicas(self) -> Iterable[tuple[str, str, int, int]]:
        """In flight, by pool and replica."""
        return [(load.pool, one.replica, one.streams, one.kv_tokens) for load in self.desk.loads() for one in load.replicas]

    def teams(self) -> Iterable[tuple[str, TeamLoad]]:
        """What waits and was given, by pool and team."""
        return [(pool.name, team) for pool in self.desk.pools.values() for team in pool.admission.teams()]

    def over_limits(self) -> Iterable[tuple[str, str, int]]:
        """What was refused at a limit, by team."""
        return [(team, cap.value, count) for team, quota in self.desk.quotas.items() for cap, count in quota.refused.items() if count]

    def connections(self) -> int:
        """Open client connections."""
        return len(self.http.connections)

    def bodies_bytes(self) -> int:
        """Request bodies held."""
        return self.http.bodies_bytes

    def truncated(self, pool: str, why: str) -> None:
        """A stream was broken off; told once a sweep, however many there were."""
        self._truncations += 1
        self._truncation = (pool, why)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _handle(self, connection: ClientConnection, request: Request) -> None:
        path = request.target
        if _QUERY in path:
            path = path.partition(b"?")[0]
        if path in INFERENCE:
            if request.method == b"POST":
                self._infer(connection, request, path)
            else:
                connection.refuse(_method_not_allowed("POST"), b"allow: POST\r\n")
            return
        answer = self._gets.get(path) or (self._one_model if path.startswith(MODELS + b"/") else None)
        if answer is None:
            connection.refuse(ErrorReply(404, "invalid_request_error", "unknown_url", f"Unknown request URL: {_shown(path)}."))
        elif request.method not in READS:
            connection.refuse(_method_not_allowed("GET"), b"allow: GET, HEAD\r\n")
        else:
            answer(connection, request)

    def _infer(self, connection: ClientConnection, request: Request, path: bytes) -> None:
        facts = request.facts
        request_id = facts.request_id
        if not request_id:
            self._requests += 1
            request_id = b"%b-%x" % (self._request_prefix, self._requests)
        caller = facts.caller if facts.identified else self._caller(request)
        if caller is None:
            self._refuse(connection, UNAUTHORIZED, request_id)
            return
        body = request.body
        ask = decode(body)
        if isinstance(ask, ErrorReply):
            self._refuse(connection, ask, request_id)
            return
        pool = self._models.get(ask.model)
        if pool is None:
            self._refuse(connection, _no_model(ask.model), request_id)
            return
        tier = caller.tier if ask.service_tier is None else self._identity.tier(caller, ask.service_tier)
        if isinstance(tier, ErrorReply):
            self._refuse(connection, tier, request_id)
            return
        foreign_tier = ask.service_tier is not None and ask.service_tier not in ENGINE_TIERS
        if foreign_tier or ask.model != pool.model:
            body = rewritten(body, pool.model, foreign_tier)
        output_max = 1 if path == EMBEDDINGS else ask.output_tokens_max
        shape = self.desk.estimator.shape(caller.team, pool.model, len(body), output_max, ask.n or 1, pool.context_tokens)
        call = connection.reply = Call(self, connection, request, pool, pool.meters[tier.name], ask, caller.team, body, request_id)
        call.start(tier, shape, self.clock.now_s(), facts.patience_s)

    def _caller(self, request: Request) -> Caller | None:
        """Who asks; looked up once for each head that differs."""
        facts = request.facts
        if not facts.identified:
            facts.caller = self._identity.caller(facts.authorization)
            facts.identified = True
        return facts.caller

    def _refuse(self, connection: ClientConnection, error: ErrorReply, request_id: bytes) -> None:
        connection.refuse(error, b"x-request-id: %b\r\n" % request_id)

    def _health(self, connection: ClientConnection, _: Request) -> None:
        status, text = (503, b'{"status":"draining"}') if self.draining else (200, b'{"status":"ok"}')
        connection.answer(status, JSON, text)

    def _metrics(self, connection: ClientConnection, _: Request) -> None:
        connection.answer(200, CONTENT_TYPE_LATEST.encode(), generate_latest(self._registry))

    def _list_models(self, connection: ClientConnection, request: Request) -> None:
        if self._caller(request) is None:
            connection.refuse(UNAUTHORIZED)
            return
        data = [_model_object(name) for name in self._models]
        connection.answer(200, JSON, msgspec.json.encode({"object": "list", "data": data}))

    def _one_model(self, connection: ClientConnection, request: Request) -> None:
        if self._caller(request) is None:
            connection.refuse(UNAUTHORIZED)
            return
        name = _shown(request.target.partition(b"?")[0][len(MODELS) + 1 :])
        if name not in self._models:
            connection.refuse(_no_model(name))
        else:
            connection.answer(200, JSON, msgspec.json.encode(_model_object(name)))

    # -- timers and events --------------------------------------------------------------------------------------------

    def _sweep_later(self) -> None:
        self._sweeper = self.clock.call_at(self.clock.now_s() + SWEEP_REAL_S * self.speed, self._sweep)

    def _sweep(self) -> None:
        self._sweep_later()
        self.desk.sweep()
        if self._truncations:
            pool, why = self._truncation
            self._emit("streams_truncated", f"{self._truncations} streams were broken off; the last: {why}", pool)
            self._truncations = 0

    def _emit(self, kind: str, message: str, pool: str = "") -> None:
        self._sink.emit(Event(kind, self.clock.now_s(), self.clock.wall_s(), pool, message, {"gateway": self.name}))


def _models(spec: Spec, desk: Desk) -> dict[str, PoolDesk]:
    """Every name a client may use → its pool; of several pools that serve one model the first declared."""
    names: dict[str, PoolDesk] = {}
    for pool in spec.pools:
        names.setdefault(pool.model, desk.pools[pool.name])
    for model in spec.models:
        if model.name in names:
            for alias in model.aliases:
                names.setdefault(alias, names[model.name])
    return names


def _model_object(name: str) -> dict[str, str | int]:
    return {"id": name, "object": "model", "created": CREATED_UNIX_S, "owned_by": "forebay"}


def _no_model(name: str) -> ErrorReply:
    message = f"The model {name[:200]!r} does not exist or you do not have access to it."
    return ErrorReply(404, "invalid_request_error", "model_not_found", message, "model")


def _method_not_allowed(allowed: str) -> ErrorReply:
    return ErrorReply(405, "invalid_request_error", "method_not_allowed", f"Only {allowed} is allowed here.")


def _shown(raw: bytes) -> str:
    return raw[:200].decode("utf-8", "replace")


__all__ = ["Gateway", "static_roster"]
