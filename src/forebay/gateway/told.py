"""Streams whose engine was asked for more than the client: token ids or running usage, noted and taken out on the way.

What is taken out stands at one place of every event, after the content. So the usual event is again known by the bytes
around what varies in it; it is cut there and framed anew, and nothing is parsed. The ids are appended to a log as they
stand, in decimal; of running usage the last event is kept.
"""

import re

import msgspec

from forebay.domain.shape import Usage
from forebay.gateway.asking import Wants
from forebay.gateway.continuing import Translation
from forebay.gateway.emitted import Emitted, Opening, decode_opening
from forebay.gateway.events import Event, complete_bytes, data_of, decode_event, without_ids, without_usage
from forebay.gateway.sse import EventStream

UNTOLD_EVENTS = 2
"""With so many events of content and no token id, none will come."""
HEADS = tuple(b"%x\r\n" % size for size in range(0x1000))
"""How a chunk of so many bytes begins."""
_TEXT = re.compile(rb'"(content|text|reasoning_content|reasoning)":"(?=[^"])')
_VARYING_IDS = re.compile(rb'^"[^"]*"(?:finish_reason|logprobs)":.*"token_ids":\[(\d+)\][^\n]*\n\n$', re.DOTALL)
_VARYING_USAGE = re.compile(rb'^".*,"usage":\{"prompt_tokens":\d+,"total_tokens":(\d+,"completion_tokens":\d+)[^\n]*\n\n$', re.DOTALL)
_RUNNING = re.compile(rb'\d+,"completion_tokens":\d+')
_QUOTE, _NEWLINE = b'"\n'


class ToldStream(EventStream):
    """As `sse.EventStream`, with a log of what went out."""

    __slots__ = (
        "_end",
        "_end_bytes",
        "_head_bytes_max",
        "_ids",
        "_mid",
        "_ready",
        "_reasons",
        "_running",
        "_untold",
        "_varies_end",
        "_wants",
        "_would_pass",
        "emitted",
    )

    def __init__(self, engine_chunked: bool, client_chunked: bool, wants: Wants, emitted: Emitted) -> None:
        super().__init__(engine_chunked, client_chunked, wants.usage)
        self._would_pass = self._passes
        self._passes = False  # every event is noted
        self._untold = False  # the engine tells nothing of what was asked: its bytes pass as they came
        self._wants = wants
        self.emitted = emitted
        self._ids = emitted.ids
        self._running = b""  # the last event with usage in it
        self._reasons = False  # the text of plain events is reasoning
        self._ready = False  # nothing stands against events passing
        self._mid = self._end = b""  # from the text's end to what varies; from the text's end on, as the client gets it
        self._end_bytes = self._head_bytes_max = self._varies_end = 0

    def data(self, wire: bytes, body: bytes, whole: bool, last: bool) -> None:
        """The hot path: a read that is the last plain event again, with other content and another token."""
        if self._ready:
            head, _, tail = body.partition(self._mid)
            if (
                head.startswith(self._before)
                and tail.endswith(self._after)
                and (text := head[self._text_start :])
                and _QUOTE not in text
                and _NEWLINE not in text
                and len(head) < self._head_bytes_max
                and not last
            ):
                varies = tail[: self._varies_end]
                if varies.isdigit():
                    ids = self._ids
                    ids += varies
                    ids += b","
                elif self._wants.running_usage and _RUNNING.fullmatch(varies):
                    self._running = body
                else:
                    self._slowly(wire, body, whole, last)
                    return
                events = self.events = self.events + 1
                self.wire_bytes += len(wire)
                write = self._write
                write(HEADS[len(head) + self._end_bytes] + head + self._end)
                if events >= self.report_at:
                    self._report()
                return
        self._slowly(wire, body, whole, last)

    def _slowly(self, wire: bytes, body: bytes, whole: bool, last: bool) -> None:
        if self._untold:
            super().data(wire, body, whole, last)
            return
        self.wire_bytes += len(wire)
        self._attend(wire, body, whole, last)
        emitted = self.emitted
        if self.events > UNTOLD_EVENTS and not (emitted.prompt_tokens or emitted.tokens or self._running):
            self._passes, self._untold = self._would_pass, True
            return
        clear = self._reframe and self.opened and not (self._tail or self.done or self.trouble or self.withheld or emitted.stops)
        if clear and self._learns and body.endswith(b"\n\n") and complete_bytes(body) == len(body) and body.count(b"\n\n") == 1:
            self._learn(body)
        self._ready = clear and self._text_start > 0 and (self._reasons or not self._wants.ids or (emitted.exact and not emitted.pending))

    def _learn(self, body: bytes) -> None:
        """Remember a plain event around its content and what varies after it."""
        if self._text_start and body.startswith(self._before):
            return
        self._learns -= 1
        match = _TEXT.search(body)
        if match is None or not body.startswith(b"data: {") or body.find(b'"finish_reason":null') < 0:
            return
        start = match.end()
        quote = body.find(_QUOTE, start)
        rest = body[quote:]
        varying = (_VARYING_IDS if self._wants.ids else _VARYING_USAGE).search(rest)
        if varying is None:
            return
        begin, end = varying.span(1)
        self._before, self._text_start = body[:start], start
        self._reasons = match[1].startswith(b"reasoning")
        self._ids = self.emitted.pending if self._reasons else self.emitted.ids
        self._mid = rest[:begin]
        self._after, self._varies_end = rest[end:], end - len(rest)
        shown = without_ids(rest) if self._wants.ids else without_usage(rest)
        self._end, self._end_bytes = shown + b"\r\n", len(shown)
        self._head_bytes_max = len(HEADS) - len(shown)

    def counted(self) -> Usage | None:
        """From the last usage told, else from the ids of prompt and tokens."""
        if self.usage is None and self._running:
            usage = decode_event(data_of(self._running.rstrip())).usage
            return None if usage is None else usage.usage()
        emitted = self.emitted
        if self.usage is None and emitted.prompt_tokens:
            return Usage(emitted.prompt_tokens, emitted.tokens)
        return self.usage

    def _told(self, event: bytes, parsed: Event) -> bytes | None:
        wants, emitted, shown = self._wants, self.emitted, event
        if emitted.opening is None and parsed.choices:
            emitted.opening = _opening(event)
        emitted.note(parsed)
        if parsed.usage is not None:
            self._running = b""
            if not parsed.choices:
                self.usage = parsed.usage.usage()
                return self._dropped(event) if wants.usage else None
            self._running = event
            if wants.running_usage:
                shown = without_usage(shown)
        if wants.ids:
            shown = without_ids(shown)
        changed = None if shown is event or shown == event else shown + b"\n\n"
        return self._withhold(event, parsed, changed) if wants.usage else changed


class ContinuedStream(ToldStream):
    """The stream of a replica that goes on with an answer which another has begun."""

    __slots__ = ("_translation",)

    def __init__(self, engine_chunked: bool, client_chunked: bool, emitted: Emitted, translation: Translation) -> None:
        super().__init__(engine_chunked, client_chunked, Wants(), emitted)
        self._translation = translation
        self._learns = 0
        self.opened = True

    def _told(self, event: bytes, parsed: Event) -> bytes | None:
        del event
        self.emitted.note(parsed)
        if parsed.usage is not None and not parsed.choices:
            self.usage = self._translation.usage(parsed.usage)
        return self._translation.event(parsed)


def _opening(event: bytes) -> Opening:
    try:
        return decode_opening(data_of(event))
    except msgspec.DecodeError:
        return Opening()
