"""Relay workers: processes that go on with the streams which the owner of the queue lends them.

What is lent are two open connections, a client's and an engine's. They stay the owner's too, which reads nothing from them meanwhile,
so that taking a stream back is to read again. Owner and worker speak in packets; what is in them is the services' business.
"""

import asyncio
from typing import Protocol

PACKET_BYTES_MAX = 64 * 1024
"""Of one packet; longer ones are never sent."""


class Line(Protocol):
    """One worker, as its owner sees it. A worker that was started again is another one."""

    name: str

    def lend(self, packet: bytes, client: asyncio.Transport, engine: asyncio.Transport) -> bool:
        """Send ``packet`` with both connections, of which nothing is read here from now on; False: nothing was sent, and they stay."""
        ...

    def send(self, packet: bytes) -> bool:
        """Send it, after those before; False: the worker is gone, or takes no more of them."""
        ...

    def kill(self) -> None:
        """End it at once; `Overseer.lost` follows."""
        ...


class Overseer(Protocol):
    """The owner's service, which hears of workers."""

    def told(self, line: Line, packet: bytes) -> None:
        """A packet came; the first one from a worker says that it has started."""
        ...

    def lost(self, line: Line, why: str) -> None:
        """The worker is gone, and what it had with it. Another one will be started."""
        ...


class Crew(Protocol):
    """Starts the workers, and starts others in place of those that end."""

    def start(self, overseer: Overseer) -> None:
        """Start them, and return before they have started. Called once, inside the running loop."""
        ...

    def reclaim(self, transport: asyncio.Transport) -> None:
        """Read again from a connection that was lent."""
        ...

    async def close(self) -> None:
        """End them all."""
        ...


class Ends(Protocol):
    """Two connections that came with a packet, as a worker sees them."""

    def open(self, client: asyncio.Protocol, engine: asyncio.Protocol) -> None:
        """Give them their protocols, soon, the client's first. One that can't be opened is lost at once.

        A transport's ``abort`` lets go of the connection without an end that the other side would see."""
        ...


class Owner(Protocol):
    """The owner, as a worker sees it."""

    def send(self, packet: bytes) -> None:
        """Send it, after those before; it waits here while the owner takes no more."""
        ...


class Helper(Protocol):
    """A worker's service."""

    def told(self, packet: bytes, ends: Ends | None) -> None:
        """A packet came, with two connections or none."""
        ...

    def close(self) -> None:
        """No more timers."""
        ...
