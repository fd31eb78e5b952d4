"""The events of an engine's stream, decoded as far as the gateway looks, and what is cut out of their bytes.

A field is cut by its bytes: inside a JSON string every quote is escaped, so what looks like a key with its colon is one.
"""

import json
import re

import msgspec

from forebay.domain.shape import Usage
from forebay.domain.usage import NUMBER_BITS

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are not what was looked for, down to JSON that is nested too deeply."""
_RAW = msgspec.Raw()
_EMPTY = (b"", b"null", b"[]", b"{}")
_NEWLINE = b"\n"[0]
_ENDS = ((b"{", b"}"), (b"[", b"]"))
_IDS = re.compile(rb'("(?:prompt_)?token_ids"\s*:\s*)\[[0-9,\s]*\]')
_RUNNING = re.compile(rb'\s*,\s*"usage"\s*:\s*\{(?:[^{}]|\{[^{}]*\})*\}')


class Delta(msgspec.Struct):
    """What a chat chunk adds."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: msgspec.Raw = _RAW
    function_call: msgspec.Raw = _RAW


class Choice(msgspec.Struct):
    """One choice's part of an event."""

    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: msgspec.Raw = _RAW
    token_ids: list[int] | None = None
    prompt_token_ids: msgspec.Raw = _RAW
    index: msgspec.Raw = _RAW
    """Looked at where there are several."""

    @property
    def has_content(self) -> bool:
        """It is part of an answer."""
        delta = self.delta
        if self.text or self.finish_reason:
            return True
        if delta is None:
            return False
        plain = delta.content or delta.reasoning_content or delta.reasoning or delta.refusal
        return bool(plain) or self.calls_tools

    @property
    def calls_tools(self) -> bool:
        """It is part of a call."""
        delta = self.delta
        return delta is not None and (bytes(delta.tool_calls) not in _EMPTY or bytes(delta.function_call) not in _EMPTY)

    @property
    def content(self) -> str:
        """Its text, but for reasoning."""
        return (self.text or "") if self.delta is None else (self.delta.content or "")

    @property
    def reasons(self) -> bool:
        """It is part of the reasoning before an answer."""
        delta = self.delta
        return delta is not None and bool(delta.reasoning_content or delta.reasoning)


def usage_told(prompt_tokens: int, output_tokens: int, cached_tokens: int) -> Usage | None:
    """As an engine told it; None where one of these can be no number of tokens, so that nothing was told.

    It would be charged to its team, and taught to what estimates; and no float holds an int of hundreds of digits.
    """
    if (prompt_tokens | output_tokens | cached_tokens) >> NUMBER_BITS:  # one is too large, or negative
        return None
    return Usage(prompt_tokens, output_tokens, min(cached_tokens, prompt_tokens))


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class UsageFields(msgspec.Struct, gc=False):
    """OpenAI's ``usage`` object, as far as it is read."""

    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Details | None = None

    def usage(self) -> Usage | None:
        """As a value of the domain (`usage_told`)."""
        details = self.prompt_tokens_details
        return usage_told(self.prompt_tokens or 0, self.completion_tokens or 0, (details.cached_tokens or 0) if details else 0)


class Ended(msgspec.Struct, gc=False):
    """How one choice of a whole answer ended."""

    finish_reason: str | None = None


class Answer(msgspec.Struct, gc=False):
    """What is read of a whole answer."""

    usage: UsageFields | None = None
    choices: list[Ended] = []


class EngineError(msgspec.Struct):
    """vLLM's ``code`` is a number (the status); others send a string or nothing."""

    message: str | None = None
    type: str | None = None
    param: str | None = None
    code: int | str | None = None


class Event(msgspec.Struct):
    """One event of either protocol."""

    choices: list[Choice] = []
    usage: UsageFields | None = None
    error: EngineError | str | None = None
    prompt_token_ids: msgspec.Raw = _RAW


class _Fingerprint(msgspec.Struct):
    system_fingerprint: str | None = None


PARSED_BYTES_MAX = 64 * 1024
"""Of what is longer, only the two ends are looked at."""
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode
decode_answer = msgspec.json.Decoder(Answer).decode
decode_usage = msgspec.json.Decoder(UsageFields).decode
decode_event = msgspec.json.Decoder(Event).decode
_decode_fingerprint = msgspec.json.Decoder(_Fingerprint).decode


def is_json(text: bytes) -> bool:
    """Whether ``text`` is a JSON object or list, as liberally as clients read it: with NaN, control characters, and cut ones."""
    text = text.strip()
    if (text[:1], text[-1:]) not in _ENDS:
        return False
    if len(text) > PARSED_BYTES_MAX:
        return True
    try:
        _decode_raw(text)
    except RecursionError:
        return True
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _is_loose_json(text)
    return True


def _is_loose_json(text: bytes) -> bool:
    try:
        json.loads(text.decode("utf-8", "replace"), strict=False)
    except json.JSONDecodeError:
        return False
    except (ValueError, RecursionError):  # a number of thousands of digits, or nested too deeply
        return True
    return True


def complete_bytes(text: bytes) -> int:
    """How many bytes of ``text`` are complete events."""
    if text.endswith(b"\n\n"):
        return len(text)
    return max(text.rfind(b"\n\n") + 2, text.rfind(b"\n\r\n") + 3, 2) if text.find(b"\n\n") >= 0 or text.find(b"\n\r\n") >= 0 else 0


def data_of(event: bytes) -> bytes:
    """The event's data lines, joined; empty for a comment or a keep-alive."""
    if event.startswith(b"data: ") and _NEWLINE not in event:
        return event[6:].strip()
    lines = (line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))
    return b"\n".join(lines)


def without_ids(event: bytes) -> bytes:
    """``event`` as it would be had no token ids been asked for."""
    return _IDS.sub(rb"\1null", event)


def without_usage(event: bytes) -> bytes:
    """``event`` without usage in it."""
    return _RUNNING.sub(b"", event)


def with_fingerprint_of(usage_event: bytes, last: bytes) -> bytes:
    """``last``, the event (with its end) that ended an answer, with the ``system_fingerprint`` that only ``usage_event`` tells."""
    try:
        told = _decode_fingerprint(data_of(usage_event)).system_fingerprint
    except UNREADABLE:
        told = None
    body = last.rstrip()
    if told is None or not body.endswith(b"}"):
        return last
    return b'%b,"system_fingerprint":%b}%b' % (body[:-1], msgspec.json.encode(told), last[len(body) :])
