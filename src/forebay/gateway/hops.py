"""The address at which a gateway takes what other gateways forward. It has one only where there are several."""

import socket
from typing import Protocol

from forebay.gateway.answers import ErrorReply
from forebay.gateway.http import ClientConnection, HttpServer
from forebay.gateway.peering import NO_HOP, Peering
from forebay.gateway.request import Request


class Taker(Protocol):
    """The gateway."""

    http: HttpServer
    servers: list[HttpServer]
    peering: Peering | None


async def listen(gateway: Taker, listening: socket.socket | None, host: str, port: int = 0) -> str:
    """Take hops on ``listening``, or on ``port`` of ``host`` (0: a free one); the URL. What comes is handled as what clients send is."""

    def handle(connection: ClientConnection, request: Request) -> None:
        if _admitted(gateway, connection, request):
            gateway.http.handle(connection, request)

    def handle_large(connection: ClientConnection, request: Request) -> None:
        if _admitted(gateway, connection, request):
            gateway.http.handle_large(connection, request)

    def admits(request: Request) -> ErrorReply | None:
        return None if gateway.peering is not None and gateway.peering.knows(request) else NO_HOP

    clients = gateway.http
    server = HttpServer(clients.limits, handle, clients.peek, handle_large, None, clients.spread, clients.request_id, admits)
    server.by_peer, server.itself = True, clients.itself
    gateway.servers.append(server)
    if listening is None:
        return f"http://{host}:{await server.start(host, port)}"
    await server.start_on(listening)
    own_host, own_port = listening.getsockname()[:2]
    return f"http://{f'[{own_host}]' if ':' in own_host else own_host}:{own_port}"


def _admitted(gateway: Taker, connection: ClientConnection, request: Request) -> bool:
    if gateway.peering is not None:
        return gateway.peering.admits(connection, request)
    connection.refuse(NO_HOP)
    return False
