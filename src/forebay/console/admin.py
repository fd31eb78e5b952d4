"""The admin API: status, explain, usage, events and metrics over HTTP, read-only, for the CLI, dashboards and scripts.

It knows only a ``Source``: whatever can answer the questions, live or recorded. Answers are JSON; errors name what was
wrong and what is allowed.
"""

import asyncio
import socket
from typing import Any, Protocol

import msgspec
import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forebay.domain.errors import BadInput

EVENTS_MAX = 1000


class Source(Protocol):
    """Answers the questions of the admin API."""

    registry: CollectorRegistry

    def status(self) -> Any:
        """The fleet at this instant (a msgspec value)."""
        ...

    def explain(self, pool: str | None, at: str | None) -> Any:
        """Explanations (a list of msgspec values); raises BadInput for an unknown pool or a bad time."""
        ...

    def usage(self, since: str | None, until: str | None, by: str | None) -> Any:
        """The ledger (a msgspec value); raises BadInput for a bad day or name."""
        ...

    def recent_events(self, limit: int) -> Any:
        """The newest events, oldest first."""
        ...


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def application(source: Source) -> Starlette:
    """The ASGI application over ``source``."""

    async def health(_: Request) -> Response:
        return _json({"status": "ok"})

    async def status(_: Request) -> Response:
        return _json(source.status())

    async def explain(request: Request) -> Response:
        try:
            return _json(source.explain(request.query_params.get("pool"), request.query_params.get("at")))
        except BadInput as error:
            return _json({"error": str(error)}, 400)

    async def usage(request: Request) -> Response:
        asked = request.query_params
        try:
            return _json(source.usage(asked.get("since"), asked.get("until"), asked.get("by")))
        except BadInput as error:
            return _json({"error": str(error)}, 400)

    async def events(request: Request) -> Response:
        text = request.query_params.get("limit", "100")
        if not text.isdecimal() or len(text) > len(str(EVENTS_MAX)) or not 1 <= int(text) <= EVENTS_MAX:
            return _json({"error": f"limit: found {text[:100]!r}; allowed: a whole number from 1 to {EVENTS_MAX}"}, 400)
        return _json(source.recent_events(int(text)))

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(source.registry), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/status", status),
            Route("/v1/explain", explain),
            Route("/v1/usage", usage),
            Route("/v1/events", events),
            Route("/metrics", metrics),
        ]
    )


class AdminServer:
    """Serves the application inside the running loop."""

    def __init__(self, source: Source) -> None:
        config = uvicorn.Config(application(source), log_config=None, access_log=False, lifespan="off", ws="none")
        self._server = uvicorn.Server(config)
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen and serve; returns the port."""
        listening = socket.create_server((host, port))
        await self.start_on(listening)
        return int(listening.getsockname()[1])

    async def start_on(self, listening: socket.socket) -> None:
        """Serve on a socket that is already open, handed down by a supervisor."""
        self._socket = listening
        # serve() would install signal handlers, which are the process's own business.
        self._task = asyncio.get_running_loop().create_task(self._server._serve([self._socket]), name="admin api")

    async def stop(self) -> None:
        """Stop serving and close the socket."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        if self._socket is not None:
            self._socket.close()
