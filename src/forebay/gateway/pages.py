"""What a gateway tells at GET: its health, what it can serve with, its metrics, the models there are, and what is known of a request."""

from collections.abc import Callable

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry

from forebay.gateway.answers import JSON, ErrorReply
from forebay.gateway.catalogue import MODELS, Catalogue
from forebay.gateway.desk import Desk
from forebay.gateway.http import ClientConnection
from forebay.gateway.identity import UNAUTHORIZED, Caller
from forebay.gateway.records import REQUESTS, Records
from forebay.gateway.request import Request

Answer = Callable[[ClientConnection, Request, Caller | None, bytes], None]
"""Connection, request, who asks (None: nobody known), and the request's id."""


class _Serves(msgspec.Struct):
    """Replicas with which a pool's requests can be served now."""

    replicas: int
    elsewhere: int
    """Other gateways'."""


class Pages:
    """Of one gateway. ``healthy``: whether it takes requests, which is another question than whether one could start now."""

    def __init__(
        self, registry: CollectorRegistry, records: Records, catalogue: Catalogue, desk: Desk, healthy: Callable[[], bool]
    ) -> None:
        self.catalogue = catalogue
        self._registry = registry
        self._records = records
        self._desk = desk
        self._healthy = healthy
        self._pages: dict[bytes, Answer] = {
            b"/health": self._health,
            b"/ready": self._ready,
            b"/metrics": self._metrics,
            MODELS: self._models,
        }

    def at(self, path: bytes) -> Answer | None:
        """What answers at ``path``; None: there is no such page."""
        page = self._pages.get(path)
        if page is None and path.startswith(MODELS + b"/"):
            return self._models
        return self._requests if page is None and path.startswith(REQUESTS) else page

    def _health(self, connection: ClientConnection, *_: object) -> None:
        status, text = (200, b'{"status":"ok"}') if self._healthy() else (503, b'{"status":"draining"}')
        connection.answer(status, JSON, text)

    def _ready(self, connection: ClientConnection, *_: object) -> None:
        pools = {}
        for pool in self._desk.pools.values():
            peers = pool.ways.peers if pool.ways is not None else None
            pools[pool.name] = _Serves(len(pool.routed), 0 if peers is None else peers.replicas(pool.name))
        able = any(serves.replicas or serves.elsewhere for serves in pools.values())
        said = "draining" if not self._healthy() else "ready" if able else "waiting"
        connection.answer(200 if said == "ready" else 503, JSON, msgspec.json.encode({"status": said, "pools": pools}))

    def _metrics(self, connection: ClientConnection, *_: object) -> None:
        connection.answer(200, CONTENT_TYPE_LATEST.encode(), generate_latest(self._registry))

    def _models(self, connection: ClientConnection, request: Request, caller: Caller | None, request_id: bytes) -> None:
        told = UNAUTHORIZED if caller is None else self.catalogue.told(request.target.partition(b"?")[0], caller.residency)
        _tell(connection, told, request_id)

    def _requests(self, connection: ClientConnection, request: Request, caller: Caller | None, request_id: bytes) -> None:
        told = UNAUTHORIZED if caller is None else self._records.told(request.target.partition(b"?")[0], caller.team)
        _tell(connection, told, request_id)


def _tell(connection: ClientConnection, told: bytes | ErrorReply, request_id: bytes) -> None:
    if isinstance(told, ErrorReply):
        connection.refuse(told, b"x-request-id: %b\r\n" % request_id)
    else:
        connection.answer(200, JSON, told, b"x-request-id: %b\r\n" % request_id)
