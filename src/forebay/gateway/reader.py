"""Bytes of one client's connection to requests, one at a time: what follows a request is not looked at until that one is answered.

Every head is parsed whole, by llhttp, and every body is cut off at its last byte here, so that where reads end never
changes what is understood. No socket, no clock: the connection feeds it, and sees to what it finds.
"""

import re

import httptools

from forebay.gateway import bounds
from forebay.gateway.answers import BAD_HTTP, HEAD_TOO_LARGE, LOOPED, ErrorReply, body_too_large, too_many_fields, too_much_framing
from forebay.gateway.chunks import BadChunk, Chunks
from forebay.gateway.heads import HeadFacts, without_upgrade
from forebay.gateway.intake import Intake
from forebay.gateway.request import LargeRequest, Request, hold, whole

BETWEEN, HEAD, BODY = 0, 1, 2
_HEAD_END = b"\r\n\r\n"
_START = re.compile(rb"[A-Z][A-Z-]* [!-~]+ HTTP/1\.[01]\r\n")
"""Of a head. llhttp would take other protocols too, and versions that there are none of."""


class RequestReader:
    """Feed it reads; the ``on_…`` methods are llhttp's callbacks."""

    __slots__ = (
        "_behind_ticks",
        "_chunks",
        "_framing_bytes_max",
        "_fresh",
        "_headers",
        "_intake",
        "_known",
        "_known_headers",
        "_large",
        "_left",
        "_length",
        "_paced_bytes",
        "_paced_tick",
        "_parser",
        "_partial",
        "_pieces",
        "_request",
        "facts",
        "fed_bytes",
        "phase",
        "refused",
        "repeats",
        "started",
        "target",
        "waits_for_leave",
        "whole",
    )

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._parser: httptools.HttpRequestParser | None = None
        self._partial = bytearray()  # of a head
        self.target = b""
        """Of the last head."""
        self.facts: HeadFacts | None = None
        """What that head said; None where it could not be read."""
        self._headers: list[tuple[bytes, bytes]] = []
        self._length = 0
        # Of the last request, and what they mean. A list of its own: the first head is read into the other one.
        self._known_headers: list[tuple[bytes, bytes]] = []
        self._known = HeadFacts(self._known_headers, intake.itself)
        self._fresh: Request | None = None  # whose head the parser has just ended
        self._request: Request | None = None  # whose body is being read
        self._large: LargeRequest | None = None  # the same, if it is one
        self._pieces: list[bytes | bytearray] = []
        self._chunks: Chunks | None = None
        self._left = 0  # of a body of known length
        self._framing_bytes_max = 0
        self._behind_ticks = 0.0  # of the least pace of bodies, by…
        self._paced_tick = self._paced_bytes = 0  # …when so much had come
        self.repeats = False
        """The last head's fields were those of the one before it."""
        self.phase = BETWEEN
        self.fed_bytes = 0
        """Of the present request."""
        self.started = 0
        """The tick at which it began."""
        self.waits_for_leave = False
        """The client sends the body once it is told to."""
        self.whole: Request | None = None
        """One that can be handled now; whoever takes it sets None."""
        self.refused: ErrorReply | None = None
        """What is wrong; nothing is read any more."""

    def feed(self, data: bytes) -> bytes:
        """Take what was read, up to the end of one request (or the part of it that suffices); returns the rest, for later."""
        at, size = 0, len(data)
        while at < size and self.whole is None and self.refused is None:
            begun = at
            if self.phase != BODY:
                at = self._feed_head(data, at)
            else:
                at = self._feed_body(data, at)
                if self.phase == BETWEEN:
                    break
            self.fed_bytes += at - begun
            if self.phase == BODY and self.fed_bytes > self._framing_bytes_max:
                self.refuse(too_much_framing(self._framing_bytes_max))
        if self.phase == BETWEEN:
            self.fed_bytes = 0
        elif self._large is not None and self.whole is self._large:
            self.whole.body = bytes(self._large.peek.held)
        return data[at:] if at < size else b""

    def refuse(self, error: ErrorReply) -> None:
        """What is being read is not answered but by ``error``; the first refusal counts."""
        if self.refused is not None:
            return
        self.refused = error
        self._pieces = []
        large = self._large
        if large is not None and large.taker is not None:
            large.taker.body_refused(error)
        elif self._request is not None:
            self._intake.let_go(self._request)
        self._request = self._large = self.whole = None

    def close(self) -> None:
        """The connection is lost: nothing is held any more."""
        if self._request is not None and (self._large is None or self._large.taker is None):
            self._intake.let_go(self._request)
        self._request = self._large = None
        self._pieces = []

    def goes_on(self, tick: int) -> None:
        """Its client is read again: meanwhile it could send nothing."""
        self._paced_tick, self._paced_bytes = tick, self.fed_bytes

    def dawdles(self, tick: int) -> bool:
        """Whether the body is further behind the least pace than it may be. What came faster before is no merit: who sends most of a body
        at once, and the rest by drops, would hold it for minutes."""
        came = (self.fed_bytes - self._paced_bytes) / bounds.BODY_BYTES_PER_TICK_MIN
        self._behind_ticks = max(0.0, self._behind_ticks - came) + (tick - self._paced_tick)
        self.goes_on(tick)
        return self._behind_ticks > bounds.BODY_GRACE_TICKS

    # -- heads --------------------------------------------------------------------------------------------------------

    def _feed_head(self, data: bytes, at: int) -> int:
        partial = self._partial
        if not partial:
            while at < len(data) and data[at] in _HEAD_END:
                at += 1  # RFC 9112 §2.2: empty lines before a request are ignored
            if at == len(data):
                return at
            self.phase = HEAD
            self.started = self._intake.tick
            end = data.find(_HEAD_END, at) + 4
            if end > 3:
                self._head(data[at:end])
                return end
            partial += data[at:]
        else:
            searched = max(0, len(partial) - 3)
            before = len(partial)
            partial += data[at:]
            end = partial.find(_HEAD_END, searched) + 4
            if end > 3:
                head = bytes(partial[:end])
                self._partial = bytearray()
                self._head(head)
                return at + end - before
        if not 0x41 <= partial[0] <= 0x5A:
            self._refuse_head(BAD_HTTP)
        elif len(partial) > self._intake.limits.head_bytes_max:
            self._refuse_head(HEAD_TOO_LARGE)
        return len(data)

    def _head(self, head: bytes) -> None:
        if not 0x41 <= head[0] <= 0x5A:
            self._refuse_head(BAD_HTTP)
            return
        if len(head) > self._intake.limits.head_bytes_max:
            self._refuse_head(HEAD_TOO_LARGE)
            return
        if _START.match(head) is None:
            self._refuse_head(BAD_HTTP)
            return
        parser = self._parser
        if parser is None:
            parser = self._parser = httptools.HttpRequestParser(self)
        self._forget_head()
        try:
            parser.feed_data(without_upgrade(head))
        except (httptools.HttpParserUpgrade, httptools.HttpParserError):  # CONNECT is an upgrade
            self._refuse_head(BAD_HTTP)
            return
        if self._fresh is None:
            self._refuse_head(BAD_HTTP)
        else:
            self._judge(self._fresh)

    def _forget_head(self) -> None:
        """A method of its own: to a type checker, and so to C, what is set None here would be None after the parser's callbacks too."""
        self.target = b""
        self._fresh = None
        self._length = 0
        if self._headers:
            self._headers = []

    def _refuse_head(self, error: ErrorReply) -> None:
        """Of what asked nothing that could be read, nothing is known: what came before it is no part of it."""
        self.target, self.facts = b"", None
        self.refuse(error)

    def on_url(self, url: bytes) -> None:
        """The target may come in pieces."""
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep it; the body's length apart, since the rest is mostly what it was the last time."""
        if len(name) == 14 and name.lower() == b"content-length":
            self._length = int(value)
        else:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Ask the parser what it will have forgotten after this."""
        parser = self._parser
        assert parser is not None
        request = self._fresh = Request(self.target)
        request.method = parser.get_method()
        request.modern = parser.get_http_version() == "1.1"
        # Of HTTP/1.0 no connection is kept: who knows nothing of it waits for the end.
        request.keep_alive = request.modern and parser.should_keep_alive()

    def _judge(self, request: Request) -> None:
        """Say what the head means, before any of the body is read."""
        headers = self._headers
        self.repeats = headers == self._known_headers
        if not self.repeats:
            self._known_headers, self._known = headers, HeadFacts(headers, self._intake.itself)
        self._headers = []
        facts = self.facts = request.facts = self._known
        if len(headers) > bounds.HEADERS_MAX:
            self.refuse(HEAD_TOO_LARGE)
        elif facts.looped:
            self.refuse(LOOPED)
        elif facts.coding and (facts.coding != b"chunked" or not request.modern):
            self.refuse(BAD_HTTP)
        else:
            self._begin_body(request, bool(facts.coding))

    def _begin_body(self, request: Request, chunked: bool) -> None:
        limits = self._intake.limits
        if not chunked and not self._length:
            self.phase = BETWEEN
            self.whole = request
            return
        self._parser = None  # this one would wait for the body
        self.phase = BODY
        self._behind_ticks = 0.0
        self.goes_on(self._intake.tick)
        admits = self._intake.admits
        request.refusal = admits(request) if admits is not None else None
        short = not chunked and self._length <= min(bounds.UNHELD_BYTES_MAX, limits.body_bytes_max)
        if request.refusal is not None and (not short or request.facts.expects):
            self.refuse(request.refusal)
            return
        self._request = request
        self._chunks = Chunks() if chunked else None
        self._left = self._length
        self.waits_for_leave = request.facts.expects and request.modern  # HTTP/1.0 knows no interim answers
        self._framing_bytes_max = limits.head_bytes_max + bounds.FRAMING_FACTOR_MAX * limits.body_bytes_max
        if self._length > limits.body_bytes_max:
            self._grow(request)

    # -- bodies -------------------------------------------------------------------------------------------------------

    def _feed_body(self, data: bytes, at: int) -> int:
        chunks = self._chunks
        if chunks is None:
            part = data if not at and len(data) <= self._left else data[at : at + self._left]  # compiled, a slice of all is a copy
            self._left -= len(part)
            self._take(part)
            if not self._left:
                self._end_body()
            return at + len(part)
        parts: list[bytes] = []
        try:
            at = chunks.feed(data, at, parts)
        except BadChunk:
            self.refuse(BAD_HTTP)
            return len(data)
        for part in parts:
            self._take(part)
        if chunks.done:
            self._end_body()
        return at

    def _take(self, part: bytes) -> None:
        """Keep it within the bounds, or pass it on."""
        request, large = self._request, self._large
        if request is None or request.refusal is not None:
            return
        intake, size = self._intake, len(part)
        limits = intake.limits
        if large is not None:
            large.received_bytes += size
            if large.received_bytes > limits.streamed_body_bytes_max:
                self.refuse(body_too_large(limits.streamed_body_bytes_max))
                return
            if large.taker is not None:
                large.taker.body_part(part)
                return
        if large is None and request.held_bytes + size > limits.body_bytes_max:
            large = self._grow(request)
            if large is None:
                return
            large.received_bytes += size
        if large is None:
            hold(self._pieces, part)
            full = intake.hold(request, size, 1.0)
        else:
            full = self._look(large, part)
        if full is not None:
            self.refuse(full)

    def _look(self, large: LargeRequest, part: bytes) -> ErrorReply | None:
        """Whether it is known now where the beginning of ``large`` goes; returns why it won't be."""
        peek, limits = large.peek, self._intake.limits
        peek.feed(part)
        if peek.too_many and not peek.found:
            return too_many_fields(limits.body_bytes_max)
        if peek.found and self.whole is None:
            large.hand_over()
            self.whole = large
        return self._intake.hold(large, len(part), 1.0 if peek.found else bounds.LARGE_BODIES_FRACTION)

    def _grow(self, request: Request) -> LargeRequest | None:
        """It is over the bound of what is held: go on in the way of large ones, if there is one for it and it isn't over their bound."""
        limits = self._intake.limits
        peek = self._intake.peek(request)
        if peek is None or self._length > limits.streamed_body_bytes_max:
            self.refuse(body_too_large(limits.body_bytes_max if peek is None else limits.streamed_body_bytes_max))
            return None
        for piece in self._pieces:
            peek.feed(bytes(piece))
        self._pieces = []
        large = self._request = self._large = LargeRequest(request, peek, self._length or None)
        self._framing_bytes_max = limits.head_bytes_max + bounds.FRAMING_FACTOR_MAX * limits.streamed_body_bytes_max
        return large

    def _end_body(self) -> None:
        request, large = self._request, self._large
        self.phase = BETWEEN
        self._request = self._large = self._chunks = None
        if request is None:
            return
        if large is not None:
            large.ended = True
            large.keep_alive = large.stays_alive
            if large.taker is not None:
                large.taker.body_end()
                return
            large.body = bytes(large.peek.held)
        else:
            request.body = whole(self._pieces)
            self._pieces = []
        self.whole = request
