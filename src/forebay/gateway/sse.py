"""A stream of server-sent events on its way through: looked at on the side, and never more parsed than it must be.

Almost every read is a whole event in a whole chunk that differs from the one before in nothing but its text: it is
known by the bytes around that, and goes on as the very bytes that came (`native`). Of what is one or more whole events three
substring searches say whether anything in it has to be understood. Everything else takes the slow path, which frames the
complete events anew and holds back a partial one. So a client never gets half an event, and a stream that goes wrong
can always be ended by a proper error event. The trade-off is a slow path that re-frames when an engine writes chunks
that don't end where its events do.
"""

import re
from collections.abc import Callable
from enum import StrEnum

from forebay.domain.shape import Usage
from forebay.gateway.answers import DONE_EVENT, LAST_CHUNK, chunk
from forebay.gateway.events import (
    UNREADABLE,
    Choice,
    EngineError,
    Event,
    complete_bytes,
    data_of,
    decode_event,
    is_json,
    with_fingerprint_of,
)
from forebay.native import Takes
from forebay.ports.upstream import Taker

Data = Callable[[bytes], None]
Sink = Callable[[bytes, bytes, bool, bool], Taker | None]
Attend = Callable[[bytes, bytes, bool, bool], None]

HELD_BYTES_MAX = 1024 * 1024
"""Of one event that is not complete, and of what comes before the first content."""
LEARNS_MAX = 4
"""Times that the shape of a stream's events is learned; where it changes more often, each event is searched through."""
_CONTENT = re.compile(rb'"(?:content|reasoning_content|reasoning|text)":"(?=[^"]*")')
_QUOTE = ord('"')
_EVENT_END = re.compile(rb"\r?\n\r?\n")
_FINGERPRINT = b'"system_fingerprint":'
_STRANGE = re.compile(rb'"error"|"prompt_token_ids"\s*:\s*\[|"(?:tool_calls|function_call)"\s*:\s*(?!null|\[\]|\{\})')
"""May stand in events that are not plain, though the answer goes on. Inside a string each quotation mark is escaped."""
_FINISHED = re.compile(rb'"finish_reason"\s*:\s*"')


class Trouble(StrEnum):
    """Why a stream can't be taken for an answer."""

    ERROR_EVENT = "error_event"
    ABORTED = "aborted"
    """The engine ended it with ``finish_reason: "abort"``, as vLLM does when it is shut down."""
    UNFINISHED = "unfinished"
    """It ended cleanly, but neither with ``[DONE]`` nor with a finish reason."""
    NO_EVENT = "no_event"
    """What came where its first content should be is no JSON."""
    TOO_LONG = "too_long"
    """One event is longer than may be held back."""


def all_open(body: bytes) -> bool:
    """Whether each event in ``body`` leaves its choice open, and none calls a tool, tells a prompt or says that something is wrong."""
    return body.count(b'"finish_reason":null') == body.count(b"\n\n") and _STRANGE.search(body) is None


class EventStream(Takes):
    """Feed it reads, send what it returns. ``chunked``: engine and client both speak chunked framing, so bytes may pass as they are."""

    __slots__ = (
        "_aligned",
        "_alike",
        "_attend",
        "_drops_usage",
        "_ended",
        "_finished_at",
        "_held",
        "_held_bytes",
        "_learns",
        "_passes",
        "_plain",
        "_reframe",
        "_tail",
        "choices",
        "done",
        "error",
        "finish_event",
        "finishes",
        "good",
        "opened",
        "trouble",
        "usage",
        "usage_passed",
        "withheld",
    )

    _attend: Attend

    def __init__(self, engine_chunked: bool, client_chunked: bool, drops_usage: bool = False) -> None:
        """``drops_usage``: the chunk that has only usage is not for the client."""
        super().__init__()
        self._drops_usage = drops_usage
        self._passes = engine_chunked and client_chunked
        self._reframe = client_chunked
        self._plain = False  # whole events in whole chunks may pass unread
        self._aligned = True  # what was read so far ended between two chunks
        self._tail = b""  # the part of an event that is not complete
        self._held: list[bytes] = []  # complete, but may not be sent yet
        self._held_bytes = 0
        self._finished_at = -1  # so many events there were with the last finish reason
        self._alike = False  # the shape of a plain event is known, and plain events may pass
        self._learns = LEARNS_MAX
        self._ended: set[bytes] | None = None  # numbers of choices, where there are several
        self.withheld = b""
        """The event that ended the answer, until the next one is there: it may have to say what the chunk of usage says that is dropped."""
        self.opened = False
        """First content was seen: what is returned may be sent from now on."""
        self.done = False
        """``[DONE]`` was seen; it is held until the response has ended well."""
        self.good = False
        """The response has ended, and is an answer."""
        self.choices = 1
        """As many as were asked for, over all prompts."""
        self.finishes = 0
        """Choices that have ended."""
        self.finish_event = b""
        """The last of those with a finish reason."""
        self.usage: Usage | None = None
        self.usage_passed = False
        """The chunk that has only usage was seen."""
        self.error: EngineError | None = None
        self.trouble: Trouble | None = None
        """Set: nothing more will be returned, and the caller ends the stream."""

    @property
    def usual(self) -> bool:
        """Its usual event is known, and nothing else is begun: somebody else may go on with it (`handing`)."""
        return self._plain and self._text_start > 0

    def go_on(self) -> None:
        """It is one that somebody else has begun, at its first content or after, and all before that is sent."""
        self.opened = True
        self._plain = self._passes

    def goes_on(self, body: bytes) -> bool:
        """Whether the events that ``body`` is are nothing but parts of an answer that goes on."""
        return body.find(b'_tokens"') < 0 and all_open(body)

    def came_back(self, last: bytes) -> None:
        """Somebody else has gone on with it for a while; ``last``: an event that the stream remembers, where there was one."""

    def attach(self, write: Data, attend: Attend, report: Callable[[], None]) -> Sink:
        """The function that takes the stream's reads: it writes the usual ones itself, and leaves the others to ``attend``."""
        self._write = write
        self._attend = attend
        self._report = report
        return self.data

    def data(self, wire: bytes, body: bytes, whole: bool, last: bool) -> Taker | None:
        """What isn't taken."""
        self.wire_bytes += len(wire)
        if (
            self._plain
            and whole
            and not last
            and body.endswith(b"\n\n")
            and body.find(b'"finish_reason":null') >= 0
            and body.find(b'_tokens"') < 0
            and body.find(b"\n\n") == len(body) - 2
        ):
            self.events += 1
            self._write(wire)
            if self.events >= self.report_at:
                self._report()
            if self._learns:
                self._learn(body)
        else:
            self._attend(wire, body, whole, last)
            self._alike = self._plain and self._text_start > 0
        return self.take_plain if self._alike else None

    def _learn(self, body: bytes) -> None:
        """Remember a plain event around its content: one that differs only there, by a text that ends no string, is as plain."""
        self._learns -= 1
        match = _CONTENT.search(body)
        if match is not None:
            start, end = match.end(), body.find(_QUOTE, match.end())
            self._shape_plain(body[:start], body[end:] + b"\r\n")
            self._alike = True

    def feed(self, wire: bytes, body: bytes, whole: bool, last: bool) -> bytes:
        """Bytes to send now, framed for the client; the arguments are those of `ports.ResponseSink.data`."""
        if self._plain and whole and not last and body.endswith(b"\n\n") and body.find(b'_tokens"') < 0:
            # An event with an open finish reason is no error, no end, and was not aborted.
            events = body.count(b"\n\n")
            if body.count(b'"finish_reason":null') == events:
                self.events += events
                return wire
        piece = self._feed_slowly(wire, body, whole, last)
        self._plain = self._passes and self._aligned and self.opened and not (self._tail or self.done or self.trouble or self.withheld)
        return piece

    def cut(self) -> bytes | None:
        """The connection broke off: what is left to send if that came after ``[DONE]`` and nothing is missing, else None."""
        if self.trouble is not None or not self.done or self._is_none():
            return None
        self.good = self.opened = True
        self.done = False
        return self._send_or_hold(LAST_CHUNK if self._reframe else b"")

    def _feed_slowly(self, wire: bytes, body: bytes, whole: bool, last: bool) -> bytes:
        if self.trouble is not None:
            return b""
        as_read = self._passes and self._aligned and whole and not self._tail
        self._aligned = whole
        text = self._tail + body if self._tail else body
        cut = complete_bytes(text)
        if last and cut < len(text) and self.done:
            cut = len(text)  # what follows [DONE] means nothing, and need not be an event
        complete, self._tail = text[:cut], text[cut:]
        passed = self._inspect(complete)
        if self._held_bytes + len(self._tail) > HELD_BYTES_MAX and self.trouble is None:
            self.trouble = Trouble.TOO_LONG
        as_read = as_read and passed is complete and not self._tail
        if self.trouble is None and last:
            return self._finish(wire if as_read else None, passed)
        if as_read:
            return self._send_or_hold(wire)
        return self._send_or_hold(self._framed(passed))

    @property
    def has_all(self) -> bool:
        """Every choice has ended, so that nothing is missing but what its engine says behind."""
        return self.finishes >= self.choices

    @property
    def says_all(self) -> bool:
        """What has ended it says so of all of the answer, of however many choices that is."""
        return self.done or self.good

    @property
    def closing(self) -> bytes:
        """What an engine says behind an answer that has ended."""
        return DONE_EVENT

    def take_withheld(self) -> bytes:
        """The event that its client lacks, framed for it."""
        withheld, self.withheld = self.withheld, b""
        return self._framed(withheld) if withheld else b""

    def counted(self) -> Usage | None:
        """Tokens so far, where the engine tells them."""
        return self.usage

    def _finish(self, wire: bytes | None, passed: bytes) -> bytes:
        if self.withheld:  # the last event there is
            wire, passed, self.withheld = None, passed + self.withheld, b""
        ended = self.done or (self._finished_at == self.events and (self.choices == 1 or self.finishes >= self.choices))
        if not ended or self._is_none():
            self.trouble = Trouble.UNFINISHED
            return self._send_or_hold(self._framed(passed))
        self.good = self.opened = True  # a good stream without content is an answer too
        end = wire if wire is not None else self._framed(passed) + (LAST_CHUNK if self._reframe else b"")
        self.done = False
        return self._send_or_hold(end)

    def _is_none(self) -> bool:
        """Nothing was said in it, not even that the answer is an empty one."""
        return not (self.opened or self.events or self.finishes or self.usage is not None)

    def _send_or_hold(self, piece: bytes) -> bytes:
        """What may go now. Before the first content, and from ``[DONE]`` on, pieces wait; trouble before content drops them."""
        if not self.opened or self.done:
            if piece:
                self._held.append(piece)
                self._held_bytes += len(piece)
            return b""
        if self._held:
            self._held.append(piece)
            piece = b"".join(self._held)
            self._held = []
            self._held_bytes = 0
        return piece

    def _framed(self, events: bytes) -> bytes:
        return chunk(events) if self._reframe else events

    def _inspect(self, complete: bytes) -> bytes:
        """Look at every event; returns ``complete`` itself, or what is sent of it: nothing of an event that went wrong, or after it."""
        start = sent = 0
        parts: list[bytes] = []
        for match in _EVENT_END.finditer(complete):
            end, withheld = match.end(), self.withheld
            other = self._inspect_event(complete[start : match.start()])
            if self.trouble is not None:
                break
            if withheld and self.withheld is withheld:
                other, self.withheld = withheld + (complete[start:end] if other is None else other), b""
            if other is not None:
                parts += (complete[sent:start], other)
                sent = end
            start = end
        if start == len(complete) and not sent:
            return complete
        parts.append(complete[sent:start])
        return b"".join(parts)

    def _inspect_event(self, event: bytes) -> bytes | None:
        """Look at one; returns what is sent in its place, or None: itself."""
        data = data_of(event)
        if data == b"[DONE]":
            self.done = True
            return None
        if not data:
            return None
        try:
            parsed = decode_event(data)
        except UNREADABLE:
            self._unread(event, data)
            return None
        if parsed.error:
            self.error = EngineError(parsed.error) if isinstance(parsed.error, str) else parsed.error
            self.trouble = Trouble.ERROR_EVENT
            return None
        content = finished = False
        for choice in parsed.choices:
            if choice.finish_reason == "abort":
                self.trouble = Trouble.ABORTED
            elif choice.finish_reason:
                self._finish_of(choice)
                self.finish_event = event
                finished = True
            content = content or choice.has_content
        if self.trouble is not None:
            return None
        if content:
            self._content(finished)
        return self._told(event, parsed)

    def _unread(self, event: bytes, data: bytes) -> None:
        """It is not of the shape we know: the client may know it, unless it is what a stream begins with, and not even JSON."""
        if not (self.opened or is_json(data)):
            self.trouble = Trouble.NO_EVENT
            return
        reason = _FINISHED.search(event)
        self._content(reason is not None)
        if reason is not None and self.choices == 1 and not event.startswith(b'abort"', reason.end()):
            self.finishes += 1

    def _finish_of(self, choice: Choice) -> None:
        """It has ended. Where there are several, each counts once, whatever is said of it again."""
        if self.choices == 1:
            self.finishes += 1
            return
        if self._ended is None:
            self._ended = set()
        self._ended.add(bytes(choice.index))
        self.finishes = len(self._ended)

    def _told(self, event: bytes, parsed: Event) -> bytes | None:
        """An event that is one; see `_inspect_event`. Running usage of several choices is told of each for itself."""
        if parsed.usage is not None and (self.choices == 1 or not parsed.choices):
            self.usage = parsed.usage.usage()
            if not parsed.choices:
                self.usage_passed = True
                if self._drops_usage:
                    return self._dropped(event)
        return self._withhold(event, parsed, None) if self._drops_usage else None

    def _withhold(self, event: bytes, parsed: Event, shown: bytes | None) -> bytes | None:
        """What is sent of an event that is ``shown`` like this: nothing yet where it ends the answer, and does not say by what engine."""
        if _FINGERPRINT in event or not any(choice.finish_reason for choice in parsed.choices):
            return shown
        before, self.withheld = self.withheld, event + b"\n\n" if shown is None else shown
        return before

    def _dropped(self, usage_event: bytes) -> bytes:
        """What is sent in place of the chunk of usage. vLLM says there, and only there, by what engine it was answered."""
        withheld, self.withheld = self.withheld, b""
        return with_fingerprint_of(usage_event, withheld) if withheld else b""

    def _content(self, finished: bool) -> None:
        self.opened = True
        self.events += 1
        if finished:
            self._finished_at = self.events
