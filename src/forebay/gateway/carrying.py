"""A relay worker: goes on with streams that it was lent, for as long as nothing comes but what is usual.

It decides nothing. Whatever isn't a plain event of a running answer goes back unread to the owner of the queue, with the stream: the
end of an answer, an error, a call of a tool, a read that isn't HTTP's usual chunks, an engine that ends. What it relays it tells in
batches. It holds no more of a stream than a part of a chunk, and what its client has not taken yet, within the gateway's own bound.
"""

import asyncio
from collections.abc import Callable

from forebay.domain.chunks import CHUNK_SIZES
from forebay.gateway.asking import Wants
from forebay.gateway.emitted import Emitted
from forebay.gateway.handing import (
    PIECE_BYTES_MAX,
    Back,
    Count,
    Drop,
    Gone,
    Piece,
    Ready,
    Report,
    Slow,
    Take,
    decode_order,
    encode,
    reports,
)
from forebay.gateway.sse import EventStream
from forebay.gateway.straight import straighten
from forebay.gateway.told import ToldStream
from forebay.gateway.typed import TypedStream
from forebay.native import Reads
from forebay.ports.clock import Clock, TimerHandle
from forebay.ports.crew import Ends, Owner
from forebay.ports.upstream import Taker

REPORT_REAL_S = 0.1
"""So often the owner is told how far the streams are."""
HEARTBEAT_TICKS = 10
"""So many times it is told nothing where there is nothing to tell; then it is told that."""
PART_BYTES_MAX = 64 * 1024
"""Of a chunk that is not complete."""
PENDING_BYTES_MAX = 256 * 1024
"""Of token ids that are reasoning: of more, the owner keeps the count."""
UNSURE_BYTES_MAX = 4096
"""Of ids of one event that would tell, if asked for, whether the answer can be continued."""
NEVER = 1 << 62
"""A number of events that no stream comes to."""


def whole_chunks(data: bytes) -> tuple[int, list[bytes], bool]:
    """(end of the last whole chunk, what the chunks hold, whether something follows that is no part of a usual chunk)."""
    parts: list[bytes] = []
    at, size_bytes = 0, len(data)
    while at < size_bytes:
        begin = data.find(b"\r\n", at, at + 5) + 2
        if begin == 1:
            return at, parts, size_bytes - at >= 5
        size = CHUNK_SIZES.get(data[at : begin - 2])
        if size is None:
            return at, parts, True
        end = begin + size
        if end + 2 > size_bytes:
            return at, parts, False
        if data[end : end + 2] != b"\r\n":
            return at, parts, True
        parts.append(data[begin:end])
        at = end + 2
    return at, parts, False


class _Client(asyncio.Protocol):
    """The client's connection, and the stream until that is over."""

    __slots__ = ("carried", "transport")

    transport: asyncio.Transport | None

    def __init__(self, carried: "Carried") -> None:
        self.carried: Carried | None = carried
        self.transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self.carried is None:
            transport.abort()  # type: ignore[attr-defined]
            return
        self.transport = transport  # type: ignore[assignment]
        self.carried.client_open(transport)  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        """It asks for more before it has all: the owner's to keep, and as much as is in one read; it may take long to go back."""
        if self.carried is not None and self.transport is not None:
            self.transport.pause_reading()
            self.carried.client_bytes += data
            self.carried.leave()

    def pause_writing(self) -> None:
        if self.carried is not None:
            self.carried.clog(True)

    def resume_writing(self) -> None:
        if self.carried is not None:
            self.carried.clog(False)

    def connection_lost(self, _: Exception | None) -> None:
        if self.carried is not None:
            self.carried.client_gone()


class _Engine(Reads, asyncio.Protocol):
    """The engine's connection, and the stream until that is over."""

    __slots__ = ("carried", "lost", "transport")

    transport: asyncio.Transport | None

    def __init__(self, carried: "Carried") -> None:
        super().__init__()
        self.carried: Carried | None = carried
        self.transport = None
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self.carried is None:
            transport.abort()  # type: ignore[attr-defined]
            return
        self.transport = transport  # type: ignore[assignment]
        self.carried.engine_open()

    def renew(self, taker: Taker | None) -> None:
        """The next reads are for ``taker`` first."""
        self._taker = taker

    def received(self, data: bytes) -> None:
        """What was not taken."""
        if self.carried is not None:
            self.carried.read(data)

    def connection_lost(self, _: Exception | None) -> None:
        """The owner will find out how, when it reads on."""
        self.lost = True
        if self.carried is not None:
            self.carried.leave()


class Carried:
    """One stream at a worker."""

    __slots__ = (
        "_clogged",
        "_emitted",
        "_engine",
        "_events",
        "_known",
        "_rest",
        "_running",
        "_tells",
        "_told",
        "_wire_bytes",
        "client",
        "client_bytes",
        "leaving",
        "number",
        "stream",
        "worker",
    )

    stream: EventStream
    _emitted: Emitted | None
    _told: ToldStream | None

    def __init__(self, worker: "Worker", take: Take, ends: Ends) -> None:
        self.worker = worker
        self.number = take.number
        self._events = self._wire_bytes = 0  # told so far
        self._rest = self.client_bytes = self._running = b""
        self._clogged = self.leaving = False
        self._tells = take.wants_running_usage
        self._emitted = self._told = None
        if take.typed:
            self.stream = TypedStream(True, True)
        elif take.told:
            self._emitted = emitted = Emitted()
            emitted.pending += take.pending
            emitted.go_on_from(take.exact, take.reasons, take.unsure)
            emitted.prompt_tokens = take.prompt_tokens
            wants = Wants(running_usage=take.wants_running_usage, ids=take.wants_ids)
            self.stream = self._told = ToldStream(True, True, wants, emitted)
        else:
            self.stream = EventStream(True, True)
        self._known = len(take.pending)  # bytes of ids, and of pending after them, that the owner has
        self.stream.go_on()
        self.client, self._engine = _Client(self), _Engine(self)
        ends.open(self.client, self._engine)

    # -- connections --------------------------------------------------------------------------------------------------

    def client_open(self, transport: asyncio.Transport) -> None:
        """The client is there: nothing is read for it before."""
        stream = self.stream
        stream.report_at = NEVER
        transport.set_write_buffer_limits(high=self.worker.buffer_bytes_max)
        stream.attach(transport.write, self._attend, _never)
        straighten(stream, transport)

    def engine_open(self) -> None:
        """Both are there."""
        if self.leaving:
            self.leaving = False
            self.leave()

    def client_gone(self) -> None:
        """It has left: the owner stops the engine."""
        count = self._last_count()
        self.end()
        self.worker.owner.send(encode(Gone(count)))

    def clog(self, clogged: bool) -> None:
        """The client reads too slowly, or has caught up."""
        self._clogged = clogged
        if self.leaving:
            if not clogged:
                self._left()
            return
        engine = self._engine.transport
        if engine is not None and not engine.is_closing():
            (engine.pause_reading if clogged else engine.resume_reading)()
        self.worker.owner.send(encode(Slow(self.number, clogged)))

    # -- bytes --------------------------------------------------------------------------------------------------------

    def read(self, data: bytes) -> None:
        """What is not one usual chunk, or comes after a part of one."""
        if self._rest:
            data = self._rest + data
        if self.leaving:
            self._rest = data
            return
        end, parts, strange = whole_chunks(data)
        self._rest = data[end:]
        taker = self.stream.data(data[:end], b"".join(parts), True, False) if parts else None
        if strange or len(self._rest) > PART_BYTES_MAX:
            self.leave()
        self._engine.renew(None if self.leaving or self._rest else taker)

    def _attend(self, wire: bytes, body: bytes, whole: bool, last: bool) -> None:
        """What the stream doesn't know as plain: events of an answer that goes on, or something that is not for a worker."""
        stream = self.stream
        if not (body.endswith(b"\n\n") and stream.goes_on(body)):
            stream.wire_bytes -= len(wire)
            self._rest = wire + self._rest
            self.leave()
            return
        piece = stream.feed(wire, body, whole, last)
        if piece and self.client.transport is not None:
            self.client.transport.write(piece)

    # -- telling ------------------------------------------------------------------------------------------------------

    def counts(self) -> list[Count]:
        """What there is to tell since the last time, in the order in which it is to be told."""
        stream, emitted = self.stream, self._emitted
        events, wire_bytes = stream.events - self._events, stream.wire_bytes - self._wire_bytes
        if not wire_bytes:
            return []
        self._events, self._wire_bytes = stream.events, stream.wire_bytes
        tokens, pending_bytes, running = b"", 0, b""
        if emitted is not None:
            ids, pending = emitted.ids, emitted.pending
            out = len(ids)
            tokens = bytes(ids[self._known :] + pending) if self._known <= out else bytes(pending[self._known - out :])
            ids.clear()
            self._known = pending_bytes = len(pending)
            if self._told is not None and self._told.running != self._running:
                self._running = self._told.running
                running = self._running if len(self._running) <= PIECE_BYTES_MAX else b""
        counts = []
        while len(tokens) > PIECE_BYTES_MAX:  # ids are told to be pending until the last of them
            counts.append(Count(self.number, 0, 0, tokens[:PIECE_BYTES_MAX], NEVER))
            tokens = tokens[PIECE_BYTES_MAX:]
        return [*counts, Count(self.number, events, wire_bytes, tokens, pending_bytes, running)]

    def look(self) -> None:
        """It may have grown too large to be carried."""
        if self._emitted is not None and len(self._emitted.pending) > PENDING_BYTES_MAX:
            self.leave()

    def _last_count(self) -> Count:
        counts = self.counts() or [Count(self.number, 0, 0, b"", self._known)]
        for packet in reports(counts[:-1]):
            self.worker.owner.send(packet)
        return counts[-1]

    # -- the end of it ------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Give it back as soon as its client has taken what is written."""
        if self.leaving:
            return
        self.leaving = True
        self._engine.renew(None)
        client, engine = self.client.transport, self._engine.transport
        if client is None or (engine is None and not self._engine.lost):
            return  # when both are open
        if engine is not None and not engine.is_closing() and not self._clogged:
            engine.pause_reading()
        if client.get_write_buffer_size():
            client.set_write_buffer_limits(high=0)
        else:
            self._left()

    def _left(self) -> None:
        owner, emitted, count = self.worker.owner, self._emitted, self._last_count()
        last = self.stream.last if isinstance(self.stream, TypedStream) else b""
        self.end()
        for from_client, data in ((True, self.client_bytes), (False, self._rest)):
            for at in range(0, len(data), PIECE_BYTES_MAX):
                owner.send(encode(Piece(self.number, from_client, data[at : at + PIECE_BYTES_MAX])))
        if emitted is None:
            owner.send(encode(Back(count, last=last if len(last) <= PIECE_BYTES_MAX else b"")))
            return
        unsure = emitted.doubted if len(emitted.doubted) <= UNSURE_BYTES_MAX else b""
        owner.send(encode(Back(count, emitted.exact, emitted.reasons, unsure)))

    def end(self) -> None:
        """It is not here any more: both connections are the owner's alone. Nothing is left that knows it, so that it is freed at once."""
        self.leaving = True
        del self.worker.streams[self.number]
        self.client.carried = self._engine.carried = None
        self._engine.renew(None)
        for transport in (self.client.transport, self._engine.transport):
            if transport is not None:
                transport.abort()
        self._emitted = self._told = None
        del self.stream


def _never() -> None:
    """No stream comes to so many events."""


class Worker:
    """All streams of one worker; `ports.crew.Helper`."""

    def __init__(self, clock: Clock, owner: Owner) -> None:
        self.owner = owner
        self.streams: dict[int, Carried] = {}
        self.buffer_bytes_max = 0
        """Of what a client has not taken."""
        self._clock = clock
        self._quiet_ticks = 0
        owner.send(encode(Ready()))
        self._timer: TimerHandle = self._later(self._tick)

    def told(self, packet: bytes, ends: Ends | None) -> None:
        """See `ports.crew.Helper`."""
        order = decode_order(packet)
        if isinstance(order, Take) and ends is None:
            # This process may open no more files: the connections have not come along.
            count = Count(order.number, pending_bytes=len(order.pending))
            self.owner.send(encode(Back(count, order.exact, order.reasons, order.unsure)))
            return
        if isinstance(order, Take):
            assert ends is not None
            self.buffer_bytes_max = order.client_buffer_bytes_max
            self.streams[order.number] = Carried(self, order, ends)
            return
        carried = self.streams.get(order.number)
        if carried is None:
            return  # it is on its way back
        if isinstance(order, Drop):
            carried.end()
        else:
            carried.leave()

    def close(self) -> None:
        """See `ports.crew.Helper`."""
        self._timer.cancel()

    def _later(self, what: Callable[[], None]) -> TimerHandle:
        return self._clock.call_at(self._clock.now_s() + REPORT_REAL_S * self._clock.speed, what)

    def _tick(self) -> None:
        self._timer = self._later(self._tick)
        counts = [count for carried in self.streams.values() for count in carried.counts()]
        packets = reports(counts)
        self._quiet_ticks = 0 if packets else self._quiet_ticks + 1
        if self._quiet_ticks >= HEARTBEAT_TICKS:
            self._quiet_ticks = 0
            packets = [encode(Report([]))]
        for packet in packets:
            self.owner.send(packet)
        for carried in list(self.streams.values()):
            carried.look()
