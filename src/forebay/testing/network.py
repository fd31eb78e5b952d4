"""A network in memory with TCP's manners: bytes in order, latency, back-pressure, half-close, reset, refusal.

Each direction of a connection is a queue of what is on its way; a delivery takes the head of that queue, so order
within a connection holds whatever order the loop runs simultaneous deliveries in. Faults are calls on ``Network``.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any

HIGH_WATER_BYTES = 64 * 1024
FIRST_FREE_PORT = 20_000
EARLY_S = 2e-9
"""A loop runs timers that are within its clock's resolution of the first at that one's time: so early what is due may be handed over."""
_EOF = object()


class Network:
    """Who listens where, and every connection that is open."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.latency_s = 0.0001
        self.refused_ports: set[int] = set()
        self.held_ports: set[int] = set()
        self.connections: dict[int, list[MemoryTransport]] = {}
        self.connected_total = 0
        self._listeners: dict[int, MemoryServer] = {}
        self._next_port = FIRST_FREE_PORT
        self._chance: random.Random | None = None

    def draw_latency(self, chance: random.Random) -> None:
        """From now on each connection has a latency of its own, drawn from ``chance``; some have none, so that events tie."""
        self._chance = chance

    def listen(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> "MemoryServer":
        """Start to accept at ``port`` (0: a free one)."""
        if port == 0:
            while self._next_port in self._listeners:
                self._next_port += 1
            port = self._next_port
            self._next_port += 1
        if port in self._listeners:
            raise OSError(98, f"address already in use: port {port}")
        server = MemoryServer(self, factory, host, port)
        self._listeners[port] = server
        return server

    async def connect(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> tuple["MemoryTransport", Any]:
        """A connection to the listener at ``port``; raises ConnectionRefusedError without one."""
        latency_s = self._latency_s()
        await asyncio.sleep(latency_s)
        server = self._listeners.get(port)
        if server is None or port in self.refused_ports:
            raise ConnectionRefusedError(111, f"connection refused: {host}:{port}")
        self.connected_total += 1
        near_address, far_address = ("127.0.0.1", 50_000 + self.connected_total % 10_000), (host, port)
        near = MemoryTransport(self, port, latency_s, near_address, far_address)
        far = MemoryTransport(self, port, latency_s, far_address, near_address)
        near.peer, far.peer = far, near
        self.connections.setdefault(port, []).extend((near, far))
        far.attach(server.factory())
        client = factory()
        made = self.loop.create_future()
        near.attach(client, made)
        await made
        return near, client

    def cut(self, port: int) -> int:
        """Reset every connection to ``port``; returns how many ends saw it."""
        ends = list(self.connections.get(port, ()))
        for end in ends:
            end.lose(ConnectionResetError(104, "connection reset by peer"))
        return len(ends)

    def refuse(self, port: int, refused: bool = True) -> None:
        """New connections to ``port`` are refused (or accepted again)."""
        (self.refused_ports.add if refused else self.refused_ports.discard)(port)

    def hold(self, port: int, held: bool = True) -> None:
        """Bytes to and from ``port`` stay on their way until released: a partition, or a stalled path."""
        if held:
            self.held_ports.add(port)
            return
        self.held_ports.discard(port)
        for end in list(self.connections.get(port, ())):
            end.deliver_soon()

    def close_listener(self, server: "MemoryServer") -> None:
        """Stop accepting; open connections live on."""
        if self._listeners.get(server.port) is server:
            del self._listeners[server.port]

    def forget(self, transport: "MemoryTransport") -> None:
        """Drop a finished end from the books."""
        ends = self.connections.get(transport.port, [])
        if transport in ends:
            ends.remove(transport)
        if not ends:
            self.connections.pop(transport.port, None)

    def abort_all(self) -> None:
        """End the world's connections."""
        for ends in list(self.connections.values()):
            for end in list(ends):
                end.abort()
        self._listeners.clear()

    def _latency_s(self) -> float:
        if self._chance is None:
            return self.latency_s
        return self._chance.choice((0.0, self.latency_s, self._chance.uniform(0.0, 0.002)))


class MemoryServer:
    """What ``create_server`` returns."""

    def __init__(self, network: Network, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> None:
        self.factory = factory
        self.port = port
        self.sockets = (_Socket(host, port),)
        self._network = network
        self._serving = True

    def close(self) -> None:
        """Stop accepting."""
        self._serving = False
        self._network.close_listener(self)

    def is_serving(self) -> bool:
        """Whether it accepts."""
        return self._serving

    async def wait_closed(self) -> None:
        """Return at once: accepted connections are their owners' business."""

    async def start_serving(self) -> None:
        """It has accepted since it was made."""

    async def __aenter__(self) -> "MemoryServer":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class _Socket:
    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)

    def getsockname(self) -> tuple[str, int]:
        return self._address


class MemoryTransport(asyncio.Transport):
    """One end of a connection. ``peer`` is the other."""

    peer: "MemoryTransport"

    def __init__(self, network: Network, port: int, latency_s: float, own: tuple[str, int], other: tuple[str, int]) -> None:
        super().__init__({"sockname": own, "peername": other})
        self.port = port
        self._network = network
        self._latency_s = latency_s
        self._protocol: asyncio.Protocol | None = None
        self._inbox: deque[bytes | object] = deque()
        self._inbox_due: deque[float] = deque()
        self._unread_bytes = 0
        self._reading = True
        self._made = False
        self._made_waiter: asyncio.Future[None] | None = None
        self._closing = False
        self._lost = False
        self._eof_sent = False
        self._writer_paused = False
        self._high_bytes, self._low_bytes = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4

    def attach(self, protocol: Any, made: "asyncio.Future[None] | None" = None) -> None:
        """Give the end its protocol and tell it soon that the connection is made; ``made`` is resolved after that."""
        self._protocol = protocol
        self._made_waiter = made
        self._network.loop.call_soon(self._tell_made)

    def _tell_made(self) -> None:
        if self._protocol is not None and not self._lost:
            self._made = True
            self._protocol.connection_made(self)
            self.deliver_soon()
        if self._made_waiter is not None and not self._made_waiter.done():
            self._made_waiter.set_result(None)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Put ``data`` on its way. Raises RuntimeError where the connection is gone, or its end was said, as uvloop's transports do."""
        if self._lost:
            raise RuntimeError(f"the connection on port {self.port} is closed")
        if self._eof_sent:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or not data:
            return
        self.peer.receive(bytes(data))
        self._pause_writer()

    def _pause_writer(self) -> None:
        if not self._writer_paused and self.peer.unread_bytes > self._high_bytes and self._protocol is not None:
            self._writer_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        """Write the pieces as one."""
        self.write(b"".join(list_of_data))

    @property
    def unread_bytes(self) -> int:
        """Bytes on their way to this end."""
        return self._unread_bytes

    def receive(self, item: bytes | object) -> None:
        """Called by the peer: ``item`` (bytes or the end of its stream) sets out for this end."""
        if self._lost:
            return
        if isinstance(item, bytes):
            self._unread_bytes += len(item)
        self._inbox.append(item)
        self._inbox_due.append(self._network.loop.time() + self._latency_s)
        self._network.loop.call_later(self._latency_s, self._deliver)

    def deliver_soon(self) -> None:
        """Try again to hand over what has arrived."""
        self._network.loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        while self._inbox and self._made and self._reading and not self._lost and self.port not in self._network.held_ports:
            if self._inbox_due[0] > self._network.loop.time() + EARLY_S:
                return
            item = self._inbox.popleft()
            self._inbox_due.popleft()
            assert self._protocol is not None
            if item is _EOF:
                if not self._protocol.eof_received():
                    self.close()
                continue
            assert isinstance(item, bytes)
            self._unread_bytes -= len(item)
            self.peer.reader_took()
            self._protocol.data_received(item)

    def reader_took(self) -> None:
        """Called by the peer when bytes of ours were read there."""
        if self._writer_paused and self.peer.unread_bytes <= self._low_bytes and not self._lost:
            self._writer_paused = False
            if self._protocol is not None:
                self._protocol.resume_writing()

    def close(self) -> None:
        """Send what was written, then end."""
        if self._closing or self._lost:
            return
        self._closing = True
        if not self._eof_sent:
            self.peer.receive(_EOF)
        self._network.loop.call_soon(self.lose, None)

    def abort(self) -> None:
        """End at once; the peer sees a reset."""
        if self._lost:
            return
        self._closing = True
        self._network.loop.call_later(self._latency_s, self.peer.lose, ConnectionResetError(104, "connection reset by peer"))
        self._network.loop.call_soon(self.lose, None)

    def lose(self, why: Exception | None) -> None:
        """This end is gone; idempotent."""
        if self._lost:
            return
        if self._protocol is not None and not self._made:
            self._made = True
            self._protocol.connection_made(self)
        self._lost = self._closing = True
        self._inbox.clear()
        self._inbox_due.clear()
        self._unread_bytes = 0
        self._network.forget(self)
        self.peer.reader_took()
        if self._protocol is not None:
            self._protocol.connection_lost(why)

    def write_eof(self) -> None:
        """Half-close. Raises RuntimeError as `write` does."""
        if self._lost:
            raise RuntimeError(f"the connection on port {self.port} is closed")
        if not self._eof_sent and not self._closing:
            self._eof_sent = True
            self.peer.receive(_EOF)

    def can_write_eof(self) -> bool:
        """True, as for TCP."""
        return True

    def is_closing(self) -> bool:
        """Whether close, abort or loss has begun."""
        return self._closing

    def pause_reading(self) -> None:
        """Leave what arrives on its way; the sender is told to pause when much has gathered."""
        self._reading = False

    def resume_reading(self) -> None:
        """Take bytes again."""
        self._reading = True
        self.deliver_soon()

    def is_reading(self) -> bool:
        """Whether bytes are taken."""
        return self._reading and not self._closing

    def get_write_buffer_size(self) -> int:
        """Bytes written here and not yet read there."""
        return self.peer.unread_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """(low, high) marks in bytes."""
        return self._low_bytes, self._high_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """As asyncio's: ``low`` defaults to a quarter of ``high``."""
        self._high_bytes = HIGH_WATER_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low
        self._pause_writer()

    def set_protocol(self, protocol: Any) -> None:
        """Hand the connection to another protocol."""
        self._protocol = protocol

    def get_protocol(self) -> Any:
        """The present protocol."""
        return self._protocol
