"""Relay workers of a world in a box: each runs in this process, on the world's loop, and dies when it is told to.

A connection that was lent has two readers in turn, as an open socket that two processes hold: closing it here or there lets go of
one hold, and what the other side does is seen by whoever reads.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from forebay.ports.crew import PACKET_BYTES_MAX, Helper, Overseer, Owner
from forebay.testing.network import MemoryTransport

RESTART_S = 0.25
LATENCY_S = 0.0002


class _Shared(asyncio.Protocol):
    """What stands at a connection while it is lent."""

    def __init__(self, end: MemoryTransport) -> None:
        self.end = end
        self.owner: Any = end.get_protocol()
        self.hold: _Hold | None = None
        self.eof = False
        self.reset: Exception | None = None
        end.pause_reading()
        end.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        assert self.hold is not None, "nobody reads it"
        self.hold.protocol.data_received(data)

    def eof_received(self) -> bool:
        self.eof = True
        if self.hold is not None:
            self.hold.lose(None)
        return True

    def pause_writing(self) -> None:
        (self.hold.protocol if self.hold is not None else self.owner).pause_writing()

    def resume_writing(self) -> None:
        (self.hold.protocol if self.hold is not None else self.owner).resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Closed by the owner, or reset by the other side: of that the owner hears when it reads."""
        self.reset = error
        if self.hold is not None:
            self.hold.lose(error)
        if error is None:
            self.owner.connection_lost(None)

    def give_back(self) -> None:
        """The owner reads on."""
        self.end.set_protocol(self.owner)
        loop = asyncio.get_running_loop()
        if self.reset is not None:
            loop.call_soon(self.owner.connection_lost, self.reset)
        elif self.eof:
            loop.call_soon(self._end)
        self.end.resume_reading()

    def _end(self) -> None:
        if not self.owner.eof_received():
            self.end.close()


class _Hold(asyncio.Transport):
    """A worker's hold on a connection."""

    def __init__(self, shared: _Shared, protocol: Any) -> None:
        super().__init__({})
        self._shared = shared
        self._limits = shared.end.get_write_buffer_limits()
        self._closed = False
        self.protocol = protocol
        shared.hold = self

    def begin(self) -> None:
        """Tell the protocol, and read."""
        self.protocol.connection_made(self)
        shared = self._shared
        if shared.eof or shared.reset is not None or shared.end.is_closing():
            self.lose(shared.reset)
        elif not self._closed:
            shared.end.resume_reading()

    def lose(self, error: Exception | None) -> None:
        """It is over for the worker."""
        if not self._closed:
            self.let_go()
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, error)

    def let_go(self) -> None:
        """As when the worker's process ends."""
        self._closed = True
        shared = self._shared
        shared.hold = None
        shared.end.pause_reading()
        low, high = self._limits
        shared.end.set_write_buffer_limits(high=high, low=low)

    def abort(self) -> None:
        self.lose(None)

    def close(self) -> None:
        self.lose(None)

    def is_closing(self) -> bool:
        return self._closed

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closed:
            self._shared.end.write(data)

    def pause_reading(self) -> None:
        if not self._closed:
            self._shared.end.pause_reading()

    def resume_reading(self) -> None:
        if not self._closed:
            self._shared.end.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._shared.end.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._shared.end.set_write_buffer_limits(high, low)


class _Ends:
    """`ports.crew.Ends`."""

    def __init__(self, line: "FakeLine", client: _Shared, engine: _Shared) -> None:
        self._line, self._client, self._engine = line, client, engine

    def open(self, client: asyncio.Protocol, engine: asyncio.Protocol) -> None:
        """See `ports.crew.Ends`."""
        holds = [_Hold(self._client, client), _Hold(self._engine, engine)]
        self._line.holds += holds

        def begin() -> None:
            for hold in holds:
                if self._line.alive and not hold.is_closing():
                    hold.begin()

        asyncio.get_running_loop().call_soon(begin)


class FakeLine:
    """One worker: `ports.crew.Line` for its owner, `ports.crew.Owner` for itself."""

    def __init__(self, crew: "FakeCrew", name: str) -> None:
        self.name = name
        self.alive = True
        self.holds: list[_Hold] = []
        self._crew = crew
        self._loop = asyncio.get_running_loop()
        self._to_helper: deque[tuple[bytes, _Ends | None]] = deque()
        self._to_owner: deque[bytes] = deque()
        self.helper: Helper | None = None

    # -- the owner's side ---------------------------------------------------------------------------------------------

    def lend(self, packet: bytes, client: asyncio.Transport, engine: asyncio.Transport) -> bool:
        """See `ports.crew.Line`."""
        if not self.alive or self._crew.full:
            return False
        assert isinstance(client, MemoryTransport)
        assert isinstance(engine, MemoryTransport)
        self._crew.lent_total += 1
        self._hand_down(packet, _Ends(self, self._crew.share(client), self._crew.share(engine)))
        return True

    def send(self, packet: bytes) -> bool:
        """From whoever calls: the owner's packets go to the worker. See `ports.crew.Line`."""
        if self.alive:
            self._hand_down(packet, None)
        return self.alive

    def kill(self) -> None:
        """As SIGKILL does: what it has told is told, what it holds is let go of, and another one is started."""
        if not self.alive:
            return
        self.alive = False
        for hold in self.holds:
            if not hold.is_closing():
                hold.let_go()
        if self.helper is not None:
            self.helper.close()
        self._loop.call_later(LATENCY_S, self._crew.ended, self)

    def _hand_down(self, packet: bytes, ends: _Ends | None) -> None:
        assert len(packet) <= PACKET_BYTES_MAX
        self._to_helper.append((packet, ends))
        self._loop.call_later(LATENCY_S, self._down)

    def _down(self) -> None:
        packet, ends = self._to_helper.popleft()
        if self.alive and self.helper is not None:
            self.helper.told(packet, ends)

    # -- the worker's side --------------------------------------------------------------------------------------------

    def hand_up(self, packet: bytes) -> None:
        """The worker's packets go to its owner."""
        assert len(packet) <= PACKET_BYTES_MAX
        if self.alive:
            self._to_owner.append(packet)
            self._loop.call_later(LATENCY_S, self._up)

    def _up(self) -> None:
        overseer, packet = self._crew.overseer, self._to_owner.popleft()
        if overseer is not None:
            overseer.told(self, packet)


class _Up:
    """`ports.crew.Owner`."""

    def __init__(self, line: FakeLine) -> None:
        self.send = line.hand_up


class FakeCrew:
    """`ports.crew.Crew` of ``count`` workers, each made by ``made``."""

    def __init__(self, count: int, made: Callable[[Owner], Helper]) -> None:
        self.lines: list[FakeLine] = []
        self.full = False
        """No worker takes anything."""
        self.lent_total = 0
        self.overseer: Overseer | None = None
        self._count = count
        self._made = made
        self._shared: dict[MemoryTransport, _Shared] = {}
        self._closed = False

    def start(self, overseer: Overseer) -> None:
        """See `ports.crew.Crew`."""
        self.overseer = overseer
        for number in range(self._count):
            self._start(f"worker-{number}")

    def share(self, end: MemoryTransport) -> _Shared:
        """From now on it is lent."""
        shared = self._shared[end] = _Shared(end)
        return shared

    def reclaim(self, transport: asyncio.Transport) -> None:
        """See `ports.crew.Crew`."""
        assert isinstance(transport, MemoryTransport)
        self._shared.pop(transport).give_back()

    def ended(self, line: FakeLine) -> None:
        """One is gone: tell, and start another."""
        self.lines.remove(line)
        if self._closed or self.overseer is None:
            return
        self.overseer.lost(line, "was ended by signal 9")
        asyncio.get_running_loop().call_later(RESTART_S, self._start, line.name)

    def _start(self, name: str) -> None:
        if not self._closed:
            line = FakeLine(self, name)
            self.lines.append(line)
            line.helper = self._made(_Up(line))

    async def close(self) -> None:
        """See `ports.crew.Crew`."""
        self._closed = True
        self.overseer = None
        for line in list(self.lines):
            line.kill()
