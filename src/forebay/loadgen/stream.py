"""Watches one streamed answer: when its first content came, how its events followed, whether it ended as it should.

JSON is parsed at the two ends only. Up to the first content every event is decoded, since engines open with an empty
one; from there on events are counted by their opening bytes, as that content event was spelled; and the last few
kilobytes are decoded when the stream has ended. Between the ends an event costs two searches of its bytes.
"""

from enum import StrEnum

import msgspec

from forebay.loadgen.histogram import Histogram

TAIL_BYTES = 16 * 1024
"""Kept of the end of a stream: the last content, the finish reason, the usage and the terminator fit in many times over."""
TAIL_PIECES_MAX = 64
HEAD_BYTES_MAX = 1 << 20
"""An event before the first content may be this long; what is longer is not looked at."""


class Ending(StrEnum):
    """How a stream of status 200 ended; all but GOOD and STOPPED_EARLY are answers the client can't use as they are."""

    GOOD = "good"
    STOPPED_EARLY = "stopped_early"
    """Fewer tokens than asked, by the model's own stop: the endpoint does not ignore its end-of-sequence token."""
    CUT = "cut"
    """The connection ended inside the response."""
    ERROR_EVENT = "error_event"
    ABORTED = "aborted"
    """``finish_reason: abort``: the engine gave up."""
    NO_FINISH_REASON = "no_finish_reason"
    NO_DONE = "no_done"
    WRONG_LENGTH = "wrong_length"
    """``usage.completion_tokens`` is not what was asked for."""


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    def has_content(self) -> bool:
        delta = self.delta
        return bool(self.text or (delta and (delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)))


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


_NULL = msgspec.Raw(b"null")


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = _NULL
    """``Raw | None`` would take only null."""
    object: str | None = None
    code: int | str | None = None


class _Error(msgspec.Struct):
    code: int | str | None = None
    message: str | None = None


_NEVER = b"\x00"
"""Bytes that JSON text never holds."""
_decode = msgspec.json.Decoder(_Event).decode
_decode_error = msgspec.json.Decoder(_Error).decode


def events_in(text: bytes) -> list[bytes]:
    """The ``data`` of each event in ``text``, in order; a last one without its blank line counts too."""
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    lines = (line for line in text.split(b"\n") if line.startswith(b"data:"))
    return [line[5:].strip() for line in lines]


def _event(data: bytes) -> _Event | None:
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class StreamWatch:
    """Feed it the decoded body as it comes, then ask for its ending. Times are whatever clock the caller reads."""

    __slots__ = (
        "_finish",
        "_head",
        "_marker",
        "_pieces",
        "error_code",
        "events",
        "finish_reason",
        "first_s",
        "gap_s_max",
        "gaps",
        "last_s",
        "usage",
    )

    def __init__(self, gaps: Histogram) -> None:
        self.gaps = gaps
        """Gets the time between content events: those that came in one read share the time since the read before."""
        self.first_s: float | None = None
        self.last_s = 0.0
        self.gap_s_max = 0.0
        """The longest silence between two reads after the first content."""
        self.events = 0
        self.finish_reason: str | None = None
        self.usage: int | None = None
        self.error_code: int | None = None
        self._head = b""
        self._pieces: list[bytes] = []
        self._marker = b""
        self._finish = b""

    def feed(self, body: bytes, now_s: float) -> None:
        """``body`` was read at ``now_s``."""
        pieces = self._pieces
        pieces.append(body)
        if len(pieces) > TAIL_PIECES_MAX:
            self._pieces = [b"".join(pieces)[-TAIL_BYTES:]]
        if self.first_s is None:
            self._seek_content(body, now_s)
            return
        count = self._content_events(body) if self._finish in body else body.count(self._marker)
        if count:
            gap_s = now_s - self.last_s
            self.gaps.add(gap_s / count, count)
            if gap_s > self.gap_s_max:
                self.gap_s_max = gap_s
            self.last_s = now_s
            self.events += count

    def _seek_content(self, body: bytes, now_s: float) -> None:
        self._head += body
        end = max(self._head.rfind(b"\n\n"), self._head.rfind(b"\r\n\r\n"))
        if end < 0:
            if len(self._head) > HEAD_BYTES_MAX:
                self._head = b""
            return
        whole, self._head = self._head[:end], self._head[end:]
        contents, finished = 0, False
        for data in events_in(whole):
            event = _event(data)
            if event is None:
                continue
            finished = finished or any(choice.finish_reason for choice in event.choices or ())
            if any(choice.has_content() for choice in event.choices or ()):
                if contents == 0:
                    self._learn_spelling(whole, data)
                contents += 1
        if contents:
            if finished:
                self._finish = self._marker = _NEVER
            self._head = b""
            self.first_s = self.last_s = now_s
            self.events = contents
            if contents > 1:
                self.gaps.add(0.0, contents - 1)

    def _learn_spelling(self, whole: bytes, data: bytes) -> None:
        """JSON may have a space after its colons or not, and SSE after ``data:``: count events as this server spells them."""
        spaced = b"data: " + data[:2] in whole
        self._marker = (b"data: " if spaced else b"data:") + data[:2]
        self._finish = b'"finish_reason": "' if b'": ' in data else b'"finish_reason":"'

    def _content_events(self, body: bytes) -> int:
        """The slow way, for the read that holds the finish: its events may or may not carry content.

        The closing usage event, which has no choices, is what must not count as a token; after it nothing does.
        """
        self._finish = self._marker = _NEVER
        known = [event for event in map(_event, events_in(body)) if event is not None]
        return sum(1 for event in known if any(choice.has_content() for choice in event.choices or ()))

    def ending(self, complete: bool, asked_tokens: int) -> Ending:
        """How it went; ``complete``: the HTTP response was received whole. Fills in usage, finish reason and error code."""
        failed, done = False, False
        for data in events_in(b"".join(self._pieces)):
            if data == b"[DONE]":
                done = True
                continue
            event = _event(data)
            if event is None:
                continue
            if bytes(event.error) != b"null":
                failed = True
                self.error_code = _code_of(event.error)
            elif event.object == "error":
                failed = True
                self.error_code = _number(event.code)
            for choice in event.choices or ():
                self.finish_reason = choice.finish_reason or self.finish_reason
            if event.usage is not None and event.usage.completion_tokens is not None:
                self.usage = event.usage.completion_tokens
        return self._verdict(complete, failed, done, asked_tokens)

    def _verdict(self, complete: bool, failed: bool, done: bool, asked_tokens: int) -> Ending:
        if failed:
            return Ending.ERROR_EVENT
        if not complete:
            return Ending.CUT
        if self.finish_reason == "abort":
            return Ending.ABORTED
        if self.finish_reason is None:
            return Ending.NO_FINISH_REASON
        if not done:
            return Ending.NO_DONE
        if self.usage is None or self.usage == asked_tokens:
            return Ending.GOOD
        return Ending.STOPPED_EARLY if self.finish_reason == "stop" and self.usage < asked_tokens else Ending.WRONG_LENGTH


def _code_of(error: bytes | msgspec.Raw) -> int | None:
    try:
        return _number(_decode_error(error).code)
    except msgspec.DecodeError:
        return None


def _number(code: int | str | None) -> int | None:
    if isinstance(code, str):
        return int(code) if code.isascii() and code.isdigit() and len(code) < 6 else None
    return code
