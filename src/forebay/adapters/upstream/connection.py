"""One connection to one engine: the parser is fed on the side, so the bytes that were read are the bytes handed on.

The parser is told the head apart from the rest (the head's end is searched for here), since llhttp doesn't say where in
a read the body begins. It is not asked at all for what is usual: a head that this engine has sent before (`heads`) with
its whole body, and reads that are whole chunks. Where something else follows such a head, it is told that chunks began.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import httptools

from forebay.adapters.upstream.exchange import HttpExchange
from forebay.adapters.upstream.heads import no_head
from forebay.domain.chunks import CHUNK_SIZES, FRAMES, FRAMES_END
from forebay.native import Seat, framed
from forebay.ports.upstream import End, ResponseHead, ResponseSink, Taker

if TYPE_CHECKING:
    from forebay.adapters.upstream.client import Origin

_COMPLETE: Final = End.COMPLETE  # in a name of its own: a member of an enum is looked up by a function call

CHUNKS_BEGIN = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"

# In names of their own, that a compiled module need not look up.
_framed: Final = framed


def _to_nobody(wire: bytes, body: bytes, whole: bool, last: bool) -> None:
    """Where bytes go between exchanges; a connection must not keep the last sink alive."""
    del wire, body, whole, last


class EngineConnection:
    """Also the parser's listener: the ``on_…`` methods are llhttp's callbacks. An `asyncio.Protocol` in all but its base (compiled)."""

    __slots__ = (
        "_between_chunks",
        "_buffer",
        "_chunked",
        "_complete",
        "_hand_data",
        "_headers",
        "_keep_alive",
        "_length",
        "_overrun",
        "_parser",
        "_parser_asleep",
        "_parts",
        "_phase",
        "_raw_head",
        "_taker",
        "_whole",
        "exchange",
        "idle_since_s",
        "on_body",
        "origin",
        "seat",
        "transport",
        "used",
    )

    transport: asyncio.Transport

    def __init__(self, origin: "Origin") -> None:
        self.origin = origin
        self._taker: Taker | None = None
        self.seat: Seat | None = None
        """Its reads are done in turns with others' (`turns`), and not by the event loop."""
        self.exchange: HttpExchange | None = None
        self.idle_since_s = 0.0
        self.used = 0
        self._hand_data: Callable[[bytes, bytes, bool, bool], Taker | None] = _to_nobody
        self._parts: list[bytes] = []
        self.on_body = self._parts.append
        self._parser = httptools.HttpResponseParser(self)
        self._parser_asleep = False  # of this chunked response it knows nothing, and all that was read of it was whole chunks
        self._reset()

    def _reset(self) -> None:
        self._phase = 0  # 0: nothing read, 1: inside the head, 2: inside the body
        self._buffer = b""
        self._raw_head = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._chunked = False
        self._length: int | None = None
        self._complete = False
        self._overrun = False
        self._between_chunks = True
        self._whole = False  # all that was read of a chunked body ends between two chunks
        self._keep_alive = False
        self._parser_asleep = False

    # -- life ---------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport  # type: ignore[assignment]

    def start(self, exchange: HttpExchange) -> None:
        """Send ``exchange``'s request."""
        if self._phase:
            self._reset()
        self.exchange = exchange
        exchange.connection = self
        self.used += 1
        if exchange.paused:
            self.transport.pause_reading()
        if exchange.body:
            self.transport.writelines((exchange.request, exchange.body))
        else:
            self.transport.write(exchange.request)
        if exchange.more is not None:
            exchange.more.wanted()

    def eof_received(self) -> None:
        """The engine says no more: the transport closes."""

    def pause_writing(self) -> None:
        """The engine takes a body more slowly than it comes."""
        if self.exchange is not None and self.exchange.more is not None:
            self.exchange.more.unwanted()

    def resume_writing(self) -> None:
        """It has caught up."""
        if self.exchange is not None and self.exchange.more is not None:
            self.exchange.more.wanted()

    def detach(self) -> None:
        """The exchange is over: nothing that still comes is for its sink."""
        if self.seat is not None:
            self.origin.upstream.turns.rise(self, False)
        self.exchange = None
        self._whole = False
        self._taker = None
        self._hand_data = _to_nobody

    def connection_lost(self, error: Exception | None) -> None:
        """The engine closed, or we did."""
        self.origin.remove_idle(self)
        exchange = self.exchange
        if exchange is None:
            return
        detail = str(error) if error is not None else "the engine closed the connection"
        until_close = self._phase == 2 and not self._chunked and self._length is None and error is None
        self.exchange = None
        if until_close:
            self._hand_data(b"", b"", True, True)
            exchange.finish(End.COMPLETE, "")
        elif self._phase == 0 and self.used > 1:
            self.origin.close_idle()
            exchange.finish(End.STALE, detail)
        else:
            exchange.finish(End.CUT, detail)
        self.detach()

    # -- bytes --------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """A read: for the taker, else for `received`."""
        taker = self._taker
        if taker is None or not taker(data):
            self.received(data)

    def received(self, data: bytes) -> None:
        """Hand on what came, and what it decodes to, unless it was taken: whole chunks may be, without looking into them here."""
        if self._whole:
            size = len(data)
            if size < FRAMES_END:
                frame, begin = FRAMES[size]
                if data.startswith(frame) and data[-2:] == b"\r\n":
                    # One whole chunk, as most reads of a stream are: the parser would be where it is now, so it isn't asked.
                    self._renew(self._hand_data(data, data[begin:-2], True, False))
                    return
            if self._parser_asleep and self._take_chunks(data):
                return
        elif not self._phase and self._take_known(data):
            return
        self._parse(data)

    @property
    def between_chunks(self) -> bool:
        """All that was read of a chunked body ends between two of them, and more is to come."""
        return self._whole and self.exchange is not None and not self.transport.is_closing()

    def sit(self) -> None:
        """Have it read in turns with others, where that can be."""
        if self.seat is None and self._whole and self.exchange is not None:
            self.origin.upstream.turns.sit(self, self._taker)

    def go_on(self, data: bytes) -> None:
        """Somebody else has read whole chunks, and then ``data``."""
        self._taker = None
        if data:
            self.data_received(data)

    def _renew(self, taker: Taker | None) -> None:
        """The next whole chunks are for ``taker``, only while `_whole`: unless the exchange has ended meanwhile."""
        taker = self._taker = taker if self._whole else None
        if self.seat is not None:
            self.seat.taker = taker

    def _take_known(self, data: bytes) -> bool:
        """Do without the parser if ``data`` is a head that is known, with a whole body of known length or any part of chunks."""
        exchange = self.exchange
        if exchange is None or exchange.head_only or (sink := exchange.sink) is None:
            return False
        heads = self.origin.heads
        body = _framed(data, heads.before, heads.after)
        if body is not None:
            self._take_whole(exchange, sink, heads.last(len(body)), body)
            return True
        end = data.find(b"\r\n\r\n") + 4
        head = heads.find(data[:end]) if end > 3 else None
        if head is None:
            return False
        self._keep_alive = True
        body = data[end:]
        if head.content_length is None:
            self._phase = 2
            self._chunked = self._whole = self._parser_asleep = True
            sink.head(head)
            if exchange.sink is not None:
                self._hand_data = sink.data
                if body and not self._take_chunks(body):
                    self._parse(body)
            return True
        if head.content_length != len(body):
            return False
        self._take_whole(exchange, sink, head, body)
        return True

    def _take_whole(self, exchange: HttpExchange, sink: ResponseSink, head: ResponseHead, body: bytes) -> None:
        answer = sink.answer
        if answer is None:
            sink.head(head)
            if exchange.sink is not None:
                self._keep_alive = True
                sink.data(body, body, True, True)
                if self.exchange is exchange:
                    self._release(exchange)
            return
        self.exchange = None  # it is free before the sink is told, so that what that sends next can go over it
        if exchange.paused:
            self.transport.resume_reading()
        if exchange.more is None:
            self.origin.keep(self)
        else:
            self.transport.close()
        exchange.let_go()
        try:
            answer(head, body)
        except BaseException:
            sink.end(End.CUT, "its answer could not be handled")  # else it would wait for ever: nobody knows of the exchange any more
            raise

    def _take_chunks(self, data: bytes) -> bool:
        """Hand on ``data`` if it is nothing but whole chunks of usual size, or those and the end."""
        parts = []
        at = 0
        size_bytes = len(data)
        last = False
        while at < size_bytes:
            begin = data.find(b"\r\n", at, at + 5) + 2
            size = CHUNK_SIZES.get(data[at : begin - 2]) if begin > 1 else None
            if size is None:
                if data[at:] != b"0\r\n\r\n":
                    return False
                last = True
                break
            end = begin + size
            if data[end : end + 2] != b"\r\n":
                return False
            parts.append(data[begin:end])
            at = end + 2
        exchange = self.exchange
        self._renew(self._hand_data(data, parts[0] if len(parts) == 1 else b"".join(parts), True, last))
        if last and exchange is not None and self.exchange is exchange:
            self._release(exchange)
        return True

    def _parse(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:
            self.transport.abort()
            return
        try:
            if self._parser_asleep:
                self._parser.feed_data(CHUNKS_BEGIN)
                self._parser_asleep = False
            if self._phase != 2:
                data = self._feed_head(data)
                if self._phase != 2 or self.exchange is not exchange or not (data or self._complete):
                    return
            if data:
                self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            exchange.drop(End.BAD_RESPONSE, f"not HTTP: {error}")
            return
        except httptools.HttpParserUpgrade:
            exchange.drop(End.BAD_RESPONSE, "the engine switched protocols")
            return
        self._hand_on(exchange, data)

    def _hand_on(self, exchange: HttpExchange, data: bytes) -> None:
        parts = self._parts
        if self._overrun:
            exchange.drop(End.BAD_RESPONSE, "bytes after the end of the response")
            return
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        complete = self._complete
        whole = self._whole = self._chunked and self._between_chunks and data.endswith(b"\r\n")
        self._renew(self._hand_data(data, body, whole or not self._chunked, complete))
        if complete and self.exchange is exchange:
            self._release(exchange)

    def _release(self, exchange: HttpExchange) -> None:
        """The response is whole: keep the connection if the engine will."""
        if self.seat is not None:
            self.origin.upstream.turns.rise(self, True)
        self.detach()
        if exchange.paused:
            self.transport.resume_reading()
        if self._keep_alive and exchange.more is None and not self.transport.is_closing():
            self.origin.keep(self)
        else:
            self.transport.close()
        exchange.finish(_COMPLETE, "")

    def _feed_head(self, data: bytes) -> bytes:
        """Feed the head up to its end; returns what was read beyond it."""
        self._phase = 1
        buffer = self._buffer + data if self._buffer else data
        while True:
            end = buffer.find(b"\r\n\r\n") + 4
            if end == 3:
                self._buffer = buffer
                if self.exchange is not None and (why := no_head(buffer)):
                    self.exchange.drop(End.BAD_RESPONSE, why)
                return b""
            self._raw_head = buffer[:end]
            self._parser.feed_data(self._raw_head)
            buffer = buffer[end:]
            if self._phase == 2:
                self._buffer = b""
                return buffer

    # -- llhttp's callbacks -------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A second message inside one exchange is bytes that nobody asked for."""
        if self._complete:
            self._overrun = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep it."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Tell the sink, unless it is an interim (1xx) response."""
        if self._parser_asleep or self._overrun:
            return
        status = self._parser.get_status_code()
        exchange = self.exchange
        if status < 200 or exchange is None or exchange.sink is None:
            self._headers = []
            return
        self._phase = 2
        fields = dict(self._headers)
        self._chunked = b"transfer-encoding" in fields and fields[b"transfer-encoding"].lower().endswith(b"chunked")
        self._length = int(fields[b"content-length"]) if b"content-length" in fields else None
        self._keep_alive = self._parser.should_keep_alive()
        if status in (204, 304) or exchange.head_only:
            self._chunked, self._length = False, 0
            self._complete = exchange.head_only
            self._keep_alive = self._keep_alive and not exchange.head_only
        head = ResponseHead(status, tuple(self._headers), self._chunked, self._length)
        if self._keep_alive and not exchange.head_only:
            head = self.origin.heads.remember(self._raw_head, head)
        exchange.sink.head(head)
        if exchange.sink is not None:
            self._hand_data = exchange.sink.data

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        """A chunk ended."""
        self._between_chunks = True

    def on_message_complete(self) -> None:
        """The response (or an interim one) is whole."""
        if self._phase == 2:
            self._complete = True
