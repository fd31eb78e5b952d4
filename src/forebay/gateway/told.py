"""Streams whose engine was asked for more than the client: token ids or running usage, noted and taken out on the way.

What is taken out stands at one place of every event, after the content. So the usual event is again known by the bytes
around what varies in it; it is cut there and framed anew, and nothing is parsed, be there one event in a read or, as on a
busy machine, several. The ids are appended to a log as they stand, in decimal; of running usage the last event is kept.
"""

import re

from forebay.domain.shape import Usage
from forebay.gateway.asking import NOTHING, Wants
from forebay.gateway.continuing import Translation
from forebay.gateway.emitted import Emitted, opening_of
from forebay.gateway.events import UNREADABLE, Event, complete_bytes, data_of, decode_event, without_ids, without_usage
from forebay.gateway.sse import EventStream, all_open
from forebay.gateway.whole import usage_in_tail
from forebay.ports.upstream import Taker

UNTOLD_EVENTS = 2
"""With so many events of content and no token id, none will come."""
_TEXT = re.compile(rb'"(content|text|reasoning_content|reasoning)":"(?=[^"])')
_VARYING_IDS = re.compile(rb'^"[^"]*"(?:finish_reason|logprobs)":.*"token_ids":\[(\d+)\][^\n]*\n\n$', re.DOTALL)
_VARYING_USAGE = re.compile(rb'^".*,"usage":\{"prompt_tokens":\d+,"total_tokens":(\d+,"completion_tokens":\d+)[^\n]*\n\n$', re.DOTALL)
_RUNNING = re.compile(rb'\d+,"completion_tokens":\d+')
_STRING = re.compile(rb'(?:[^"\\\n]|\\[^\n])*')
"""What may stand in a JSON string: a quotation mark only behind a backslash."""
_QUOTE, _NEWLINE = b'"\n'


class ToldStream(EventStream):
    """As `sse.EventStream`, with a log of what went out."""

    __slots__ = (
        "_event_end",
        "_joint",
        "_joint_shown",
        "_ready",
        "_reasons",
        "_running",
        "_untold",
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
        self._running = b""  # the last event with usage in it
        self._reasons = False  # the text of plain events is reasoning
        self._ready = False  # nothing stands against events passing
        self._event_end = b""  # from what varies on
        if emitted.several is not None and wants.running_usage:
            self._learns = 0  # it is told of each choice for itself, and none is like the last
        self._joint = self._joint_shown = b""  # from what varies to the next event's text; as the client gets it, from text to text

    @property
    def usual(self) -> bool:
        """See `sse.EventStream`."""
        return super().usual if self._untold else self._ready

    @property
    def tells(self) -> Wants:
        """What it is told and the client is not; nothing where its engine has turned out to tell nothing."""
        return NOTHING if self._untold else self._wants

    @property
    def running(self) -> bytes:
        """The last event that told usage."""
        return self._running

    def goes_on(self, body: bytes) -> bool:
        """See `sse.EventStream`."""
        return all_open(body) if self._wants.running_usage else super().goes_on(body)

    def came_back(self, last: bytes) -> None:
        """See `sse.EventStream`."""
        self._ready = False
        self._running = last or self._running

    def data(self, wire: bytes, body: bytes, whole: bool, last: bool) -> Taker | None:
        """What isn't taken: plain events, one or more, or whatever else came."""
        if self._untold:
            return super().data(wire, body, whole, last)
        if last or not self._ready or not self._take_several(wire, body):
            self.wire_bytes += len(wire)
            self._slowly(wire, body, whole, last)
        return self.take_told if self._ready and not self._wants.running_usage else None

    def _take_several(self, wire: bytes, body: bytes) -> bool:
        """Plain events, and nothing else, in one read: all of them, or False, and nothing was done."""
        if not (body.startswith(self._before) and body.endswith(self._event_end)):
            return False
        texts, told = [], []
        mid, running = self._mid, self._wants.running_usage
        for piece in body[self._text_start : -len(self._event_end)].split(self._joint):
            text, _, varies = piece.partition(mid)
            if not text or not (varies.isdigit() or (running and _RUNNING.fullmatch(varies))):
                return False
            texts.append(text)
            told.append(varies)
        together = b"".join(texts)
        if (_QUOTE in together or _NEWLINE in together) and not all(map(_STRING.fullmatch, texts)):
            return False
        if running:
            self._running = b"%b%b%b%b%b" % (self._before, texts[-1], mid, told[-1], self._event_end)
        else:
            ids = self._ids
            ids += b"%b," % b",".join(told)
        self.wire_bytes += len(wire)
        events = self.events = self.events + len(texts)
        size = len(together) + (len(texts) - 1) * len(self._joint_shown) + self._shown_bytes
        write = self._write
        write(b"%x\r\n%b%b%b" % (size, self._before, self._joint_shown.join(texts), self._end))
        if events >= self.report_at:
            self._report()
        return True

    def _slowly(self, wire: bytes, body: bytes, whole: bool, last: bool) -> None:
        self._attend(wire, body, whole, last)
        emitted = self.emitted
        if self.events > UNTOLD_EVENTS and not (emitted.prompt_tokens or emitted.tokens or self._running):
            self._passes, self._untold, self._ready = self._would_pass, True, False
            return
        clear = self._reframe and self.opened and not (self._tail or self.done or self.trouble or self.withheld or emitted.stops)
        if clear and self._learns and body.endswith(b"\n\n") and complete_bytes(body) == len(body) and body.count(b"\n\n") == 1:
            self._learn(body)
        # A plain event changes nothing of whether the answer is at its reasoning: it may go on from what the last one was.
        alike = self._text_start > 0 and self._reasons == bool(emitted.reasons)
        self._ready = clear and alike and (self._reasons or not self._wants.ids or (emitted.exact and not emitted.pending))

    def _learn(self, body: bytes) -> None:
        """Remember a plain event around its content and what varies after it.

        What is known may differ from it also behind the text: only a completion's first content has the prompt's ids there.
        """
        known = self._text_start and body.startswith(self._before) and body.endswith(self._event_end)
        if known and body.find(self._mid, self._text_start) >= 0:
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
        before, event_end = body[:start], rest[end:]
        shown = without_ids(rest) if self._wants.ids else without_usage(rest)
        self._reasons = match[1].startswith(b"reasoning")
        ids = self.emitted.pending if self._reasons else self.emitted.ids
        self._shape_told(before, rest[:begin], event_end + b"\r\n", shown + b"\r\n", ids)
        self._event_end = event_end
        self._joint, self._joint_shown = event_end + before, shown + before

    def counted(self) -> Usage | None:
        """From the last usage told, else from the ids of prompt and tokens; of several sequences none of these is the whole."""
        if self.emitted.several is not None:
            return self.usage
        if self.usage is None and self._running:
            usage = _usage_of(self._running)
            if usage is not None:
                return usage
        emitted = self.emitted
        if self.usage is None and emitted.prompt_tokens:
            return Usage(emitted.prompt_tokens, emitted.tokens)
        return self.usage

    def _unread(self, event: bytes, data: bytes) -> None:
        super()._unread(event, data)
        self.emitted.forget("one of its events could not be read")

    def _told(self, event: bytes, parsed: Event) -> bytes | None:
        wants, emitted, shown = self._wants, self.emitted, event
        if emitted.opening is None and parsed.choices:
            emitted.opening = opening_of(event)
        emitted.note(parsed)
        if parsed.usage is not None:
            self._running = b""
            if not parsed.choices:
                self.usage = parsed.usage.usage()
                self.usage_passed = True
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

    def _is_none(self) -> bool:
        """See `sse.EventStream`: it is open since another began it, and may not end in silence."""
        return not (self.events or self.finishes or self.usage is not None)

    def _told(self, event: bytes, parsed: Event) -> bytes | None:
        del event
        self.emitted.note(parsed)
        if parsed.usage is not None and not parsed.choices:
            self.usage = self._translation.usage(parsed.usage)
            self.usage_passed = self.usage is not None
        return self._translation.event(parsed)


def _usage_of(event: bytes) -> Usage | None:
    """What an event tells that was taken by what stands around its text: it need not be JSON, as where an engine cuts a character."""
    try:
        fields = decode_event(data_of(event.rstrip())).usage
    except UNREADABLE:
        return usage_in_tail(event)
    return None if fields is None else fields.usage()
