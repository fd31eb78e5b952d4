"""Streams whose events name their type: OpenAI's responses, Anthropic's messages, transcripts, speech and images.

They pass as `sse.EventStream` passes its own; what differs is what is content, and what is an end. Text deltas, which
are nearly all of a stream, are known by how they begin, and pass unread.
"""

import re

import msgspec

from forebay.domain.shape import Usage
from forebay.gateway.events import UNREADABLE, EngineError, data_of, usage_told
from forebay.gateway.sse import EventStream, Trouble
from forebay.ports.upstream import Taker

RESPONSE_BYTES_MAX = 64 * 1024
"""Of the object that a stream of ``/v1/responses`` begins with: kept to say, if need be, that it failed."""

_ENDS = frozenset(
    {
        "response.completed",
        "response.incomplete",
        "message_stop",
        "transcript.text.done",
        "speech.audio.done",
        "image_generation.completed",
        "image_edit.completed",
    }
)
_CONTENT = frozenset({"content_block_start", "image_generation.partial_image", "image_edit.partial_image"})
_DELTAS = (b"event: response.output_text.delta\n", b"event: content_block_delta\n", b"event: response.reasoning_text.delta\n")
_MESSAGE_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_SEQUENCE = re.compile(rb'"sequence_number":\s*(\d{1,15})(?!\d)')


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class TypedUsage(msgspec.Struct):
    """``usage`` by either API's names."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None

    def usage(self, before: Usage | None = None) -> Usage | None:
        """As a value of the domain (`events.usage_told`); what isn't told here is taken from what was told ``before``."""
        prompt = self.input_tokens if self.input_tokens is not None else self.prompt_tokens
        output = self.output_tokens if self.output_tokens is not None else self.completion_tokens
        cached = self.cache_read_input_tokens or 0
        if prompt is not None:  # Anthropic's doesn't count what was read from the cache, or written to it
            prompt += cached + (self.cache_creation_input_tokens or 0)
        elif before is not None:
            prompt, cached = before.prompt_tokens, before.cached_tokens
        if self.input_tokens_details is not None:
            cached = self.input_tokens_details.cached_tokens or 0
        if output is None and before is not None:
            output = before.output_tokens
        return usage_told(prompt or 0, output or 0, cached)


class _Response(msgspec.Struct):
    id: str = ""
    background: object = None
    usage: TypedUsage | None = None
    error: EngineError | None = None


class _Message(msgspec.Struct):
    usage: TypedUsage | None = None


class _Event(msgspec.Struct):
    type: str = ""
    response: msgspec.Raw = msgspec.Raw()
    message: _Message | str | None = None
    usage: TypedUsage | None = None
    error: EngineError | str | None = None
    code: int | str | None = None
    delta: msgspec.Raw = msgspec.Raw()


class _Stop(msgspec.Struct):
    stop_reason: str | None = None


class _Answer(msgspec.Struct):
    id: str = ""
    usage: TypedUsage | None = None


_decode = msgspec.json.Decoder(_Event).decode
_decode_stop = msgspec.json.Decoder(_Stop).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode


class TypedStream(EventStream):
    """As its base, for events that have a ``type``; events that have none are the base's."""

    __slots__ = ("_last", "_stopped", "background", "begun", "response", "response_id")

    def __init__(self, engine_chunked: bool, client_chunked: bool) -> None:
        super().__init__(engine_chunked, client_chunked)
        self._last = b""
        self._stopped = False  # it has said why its message ends
        self.begun: Usage | None = None
        """As told before the first token: no count of what was made, but one of the prompt."""
        self.response = b""
        """The object of ``response.created``; empty where there was none, or a long one."""
        self.response_id = ""
        self.background = False
        """The engine goes on with it if nobody reads."""

    @property
    def next_sequence_number(self) -> int:
        """After the last event's."""
        match = _SEQUENCE.search(self._last)
        return int(match[1]) + 1 if match else 0

    @property
    def last(self) -> bytes:
        """The last event."""
        return self._last

    @property
    def usual(self) -> bool:
        """See `sse.EventStream`."""
        begun = self._tail or self._held or self.done or self.trouble
        return self.opened and self._passes and self._aligned and not begun and self._last.startswith(_DELTAS)

    @property
    def says_all(self) -> bool:
        """See `sse.EventStream`."""
        return self._stopped or super().says_all

    @property
    def closing(self) -> bytes:
        """See `sse.EventStream`."""
        return _MESSAGE_STOP if self._stopped else super().closing

    def goes_on(self, body: bytes) -> bool:
        """See `sse.EventStream`."""
        return all(event.startswith(_DELTAS) for event in body[:-2].split(b"\n\n"))

    def came_back(self, last: bytes) -> None:
        """See `sse.EventStream`."""
        self._last = last or self._last

    def data(self, wire: bytes, body: bytes, whole: bool, last: bool) -> Taker | None:
        """The usual read is one delta in one chunk."""
        self.wire_bytes += len(wire)
        if (
            self.opened
            and whole
            and not last
            and body.startswith(_DELTAS)
            and body.find(b"\n\n") == len(body) - 2
            and self._passes
            and self._aligned
            and not (self._tail or self._held or self.done or self.trouble)
        ):
            self.events += 1
            self._last = body
            self._write(wire)
            if self.events >= self.report_at:
                self._report()
        else:
            self._attend(wire, body, whole, last)
        return None

    def feed(self, wire: bytes, body: bytes, whole: bool, last: bool) -> bytes:
        """Bytes to send now."""
        return self._feed_slowly(wire, body, whole, last)

    def _inspect_event(self, event: bytes) -> bytes | None:
        data = data_of(event)
        try:
            parsed = _decode(data) if data.startswith(b"{") else None
        except UNREADABLE:
            parsed = None
        if parsed is None or not parsed.type:
            return super()._inspect_event(event)
        self._last = event
        kind = parsed.type
        response = bytes(parsed.response)
        if response:
            self._see_response(kind, response)
        if isinstance(parsed.message, _Message) and parsed.message.usage is not None:
            self.begun = parsed.message.usage.usage()
        if parsed.usage is not None:
            self.usage = parsed.usage.usage(self.begun)
        if kind == "error":
            self._fail(parsed)
        elif kind in _ENDS:
            self._content(False)
            self.done = True
        elif kind in _CONTENT or kind.endswith("delta"):
            self._content(False)
            if kind == "message_delta" and _stops(bytes(parsed.delta)):
                self._stopped, self.finishes = True, self.choices
        return None

    def _see_response(self, kind: str, raw: bytes) -> None:
        try:
            response = _decode_response(raw)
        except UNREADABLE:
            return
        if kind == "response.created":
            self.response_id = response.id
            self.background = response.background is True
            self.response = raw if len(raw) <= RESPONSE_BYTES_MAX else b""
        if response.usage is not None:
            self.usage = response.usage.usage()
        if kind == "response.failed":
            self.error = response.error or EngineError()
            self.trouble = Trouble.ERROR_EVENT

    def _fail(self, parsed: _Event) -> None:
        error = parsed.error
        if isinstance(error, EngineError):
            self.error = error
        else:
            message = error if isinstance(error, str) else parsed.message
            self.error = EngineError(message if isinstance(message, str) else None, code=parsed.code)
        self.trouble = Trouble.ERROR_EVENT


def _stops(delta: bytes) -> bool:
    """Whether this of an Anthropic message says why it ends: all its content is out then."""
    try:
        return bool(_decode_stop(delta).stop_reason)
    except UNREADABLE:
        return False


def typed_usage(body: bytes) -> tuple[Usage | None, str]:
    """The usage in a whole answer, and its ``id``."""
    try:
        answer = _decode_answer(body)
    except UNREADABLE:
        return None, ""
    return (None if answer.usage is None else answer.usage.usage()), answer.id
