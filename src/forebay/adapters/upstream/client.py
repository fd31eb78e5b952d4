"""A pool of kept-alive connections per engine, newest first, bounded in number and in age.

The idle age stays below uvicorn's five seconds (what vLLM serves with), so that an engine seldom closes a connection
just as a request is written to it; where it does, the exchange ends STALE and the sender sends again.
"""

import asyncio
import ssl
from typing import cast
from urllib.parse import urlsplit

from forebay.adapters.upstream.connection import EngineConnection
from forebay.adapters.upstream.exchange import HttpExchange
from forebay.adapters.upstream.heads import KnownHeads
from forebay.adapters.upstream.turns import Turns
from forebay.ports.upstream import BodySource, End, Exchange, ResponseSink

IDLE_PER_ORIGIN_MAX = 256
IDLE_S = 4.0
CONNECT_S = 5.0
ORIGINS_MAX = 4096
"""Engines remembered; beyond, those without idle connections are forgotten."""


class Origin:
    """One engine's address and its idle connections."""

    __slots__ = ("forgotten", "heads", "host", "idle", "key", "port", "tls", "upstream")

    def __init__(self, upstream: "HttpUpstream", url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an engine's address; write http://host:port or https://host")
        self.upstream = upstream
        self.host = parts.hostname
        self.tls = upstream.tls() if parts.scheme == "https" else None
        self.port = parts.port or (80 if self.tls is None else 443)
        self.idle: list[EngineConnection] = []
        self.heads = KnownHeads()
        self.key = upstream.keys.get(url, b"")
        """The header line that its requests get; empty: none."""
        self.forgotten = False

    def keep(self, connection: EngineConnection) -> None:
        """Take back a connection whose response is whole."""
        if self.forgotten or self.upstream.closed or len(self.idle) >= self.upstream.idle_per_origin_max:
            connection.transport.close()
            return
        upstream = self.upstream
        connection.idle_since_s = upstream.loop.time()
        self.idle.append(connection)
        if not upstream.watching_idle:
            upstream.watch_idle()

    def remove_idle(self, connection: EngineConnection) -> None:
        """The engine closed it."""
        if connection in self.idle:
            self.idle.remove(connection)

    def close_idle(self) -> None:
        """Close them all."""
        idle, self.idle = self.idle, []
        for connection in idle:
            connection.transport.close()


class HttpUpstream:
    """`ports.Upstream` over HTTP/1.1. Times are real seconds: sockets don't know the world's speed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        idle_per_origin_max: int = IDLE_PER_ORIGIN_MAX,
        idle_s: float = IDLE_S,
        connect_s: float = CONNECT_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``tls``: who is trusted behind https; the machine's own authorities by default."""
        self.loop = loop or asyncio.get_running_loop()
        self.idle_per_origin_max = idle_per_origin_max
        self.closed = False
        self.live: set[HttpExchange] = set()
        self.keys: dict[str, bytes] = {}
        """By address the header line for engines that ask for a key."""
        self._idle_s = idle_s
        self._connect_s = connect_s
        self._tls = tls
        self._origins: dict[str, Origin] = {}
        self.watching_idle = False
        """A timer will look at idle connections."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self.turns = Turns(self.loop)

    def send(
        self,
        url: str,
        request: bytes,
        sink: ResponseSink,
        timeout_s: float | None = None,
        more: BodySource | None = None,
        body: bytes = b"",
    ) -> Exchange:
        """Send ``request`` to ``url``; the sink is never called before this returns. Raises ValueError on an address that isn't one."""
        origin = self._origins.get(url) or self._remember(url)
        if origin.key:
            request = _with_key(request, origin.key)
        exchange = HttpExchange(self, origin, request, sink, body)
        self.live.add(exchange)
        if timeout_s is not None:
            exchange.timer = self.loop.call_later(timeout_s, exchange.expire)
        if more is None:
            idle = origin.idle
            while idle:  # the one used last, if it is alive
                connection = idle.pop()
                if not connection.transport.is_closing():
                    connection.start(exchange)
                    return exchange
        exchange.more = more
        exchange.task = self.loop.create_task(self._connect(exchange))
        return exchange

    def authorize(self, url: str, key: bytes) -> None:
        """Show ``key`` with all that is sent to ``url`` from now on; an empty one: nothing."""
        line = b"authorization: Bearer %b\r\n" % key if key else b""
        if line:
            self.keys[url] = line
        else:
            self.keys.pop(url, None)
        origin = self._origins.get(url)
        if origin is not None:
            origin.key = line

    def tls(self) -> ssl.SSLContext:
        """What https connections are made with; reading the machine's authorities takes milliseconds, so it is done once."""
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def forget(self, url: str) -> None:
        """Close idle connections to ``url``."""
        origin = self._origins.pop(url, None)
        if origin is not None:
            origin.forgotten = True
            origin.close_idle()

    async def close(self) -> None:
        """Abort what runs and close every connection."""
        self.closed = True
        for exchange in list(self.live):
            exchange.abort()
        for origin in self._origins.values():
            origin.close_idle()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self.turns.close()
        await asyncio.sleep(0)

    @property
    def idle_connections(self) -> int:
        """How many are kept."""
        return sum(len(origin.idle) for origin in self._origins.values())

    def watch_idle(self) -> None:
        """See to it that what is idle now is closed in time."""
        if not self.watching_idle:
            self.watching_idle = True
            self._idle_timer = self.loop.call_later(self._idle_s / 2, self._close_old)

    def _remember(self, url: str) -> Origin:
        if len(self._origins) >= ORIGINS_MAX:
            for known in [known for known, origin in self._origins.items() if not origin.idle]:
                self._origins.pop(known).forgotten = True
        origin = self._origins[url] = Origin(self, url)
        return origin

    def _close_old(self) -> None:
        self.watching_idle = False
        oldest_s = self.loop.time() - self._idle_s / 2
        for origin in self._origins.values():
            old = [connection for connection in origin.idle if connection.idle_since_s <= oldest_s]
            if old:
                origin.idle = [connection for connection in origin.idle if connection.idle_since_s > oldest_s]
                for connection in old:
                    connection.transport.close()
        if self.idle_connections:
            self.watch_idle()

    async def _connect(self, exchange: HttpExchange) -> None:
        origin = exchange.origin
        connection = EngineConnection(origin)
        protocol = cast("asyncio.Protocol", connection)
        try:
            async with asyncio.timeout(self._connect_s):
                await self.loop.create_connection(lambda: protocol, origin.host, origin.port, ssl=origin.tls)
        except TimeoutError:
            exchange.finish(End.CONNECT_FAILED, f"no connection within {self._connect_s:g} s")
            return
        except ConnectionRefusedError as error:
            exchange.finish(End.REFUSED, str(error))
            return
        except (OSError, UnicodeError) as error:  # the latter: a name that can be none
            exchange.finish(End.CONNECT_FAILED, str(error))
            return
        if exchange.sink is None:
            connection.transport.abort()
            return
        if connection.transport.is_closing():  # it said something before it was asked, or left: nobody would hear of that
            exchange.finish(End.CUT, "the engine closed the connection, or spoke first")
            return
        exchange.task = None
        connection.start(exchange)


def _with_key(request: bytes, line: bytes) -> bytes:
    """``request`` with one header line more, unless its head has a key of its own, as where a pool spills to the same address."""
    at = request.find(b"\r\n") + 2
    if request.find(b"\r\nauthorization: ", at - 2, request.find(b"\r\n\r\n", at - 2)) >= 0:
        return request
    return b"%b%b%b" % (request[:at], line, request[at:])
