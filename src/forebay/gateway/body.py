"""The few fields of a request body that the gateway needs, decoded once with their types; the bytes go on as they came.

A body is rewritten only where the engine would not understand it: an alias for the model, or a tier of ours. Then the
top level is taken apart and put together again, with every other value's bytes untouched.
"""

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from forebay.gateway.answers import ErrorReply, bad_request

_PATH = re.compile(r" - at `\$\.?([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")

ENGINE_TIERS = frozenset({"auto", "default", "flex", "scale", "priority", "standard_only"})
"""OpenAI's own values of ``service_tier``, and Anthropic's: engines know them, so they may stay in the body."""


THIN_BYTES_MIN = 64 * 1024
"""Of bodies from this size on the inside of long strings is not even skipped."""
RUN_BYTES = 8 * 1024
"""So long without a quotation mark is the inside of a long string, or numbers."""
ESCAPE_BYTES_MAX = 8
_BRACKETS = (b"[", b"]", b"{", b"}")
_NOT_IN_STRINGS = frozenset(b":,]} \t\r\n")
"""One of these follows the end of a string; its beginning is followed by another, mostly."""


CHOICES_MAX = 16_384
"""vLLM's bound of ``n`` (``VLLM_MAX_N_SEQUENCES``); OpenAI's is 128."""


class StreamOptions(msgspec.Struct, frozen=True, gc=False):
    """OpenAI's ``include_usage``, and vLLM's ``continuous_usage_stats``."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Ask(msgspec.Struct, frozen=True, gc=False):
    """What is read of a body; all else is skipped, and passed on."""

    model: str
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    service_tier: str | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool | None = None

    @property
    def choices(self) -> int:
        """Answers asked for. More than engines take count as so many: the engine will say what is wrong."""
        n = self.n
        return 1 if n is None else max(1, min(n, CHOICES_MAX))

    @property
    def output_tokens_max(self) -> int | None:
        """The client's own bound on each choice, if it gave one that is one."""
        bound = self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
        return bound if bound is not None and bound > 0 else None


class LooseAsk(Ask, frozen=True, gc=False):
    """Of endpoints where ``model`` may be left out: engines serve one."""

    model: str = ""


class ResponsesAsk(Ask, frozen=True, gc=False):
    """``/v1/responses`` calls the bound otherwise, and may go on from an answer that an engine keeps."""

    max_output_tokens: int | None = None
    previous_response_id: str | None = None

    @property
    def output_tokens_max(self) -> int | None:
        """The client's own bound."""
        return self.max_output_tokens if self.max_output_tokens is not None and self.max_output_tokens > 0 else None


def previous_of(ask: Ask) -> str | None:
    """The answer that it goes on from, if any."""
    return ask.previous_response_id if isinstance(ask, ResponsesAsk) else None


AskType = TypeVar("AskType", bound=Ask)


_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def thinned(body: bytes) -> bytes:
    """``body`` (JSON) without most of the inside of its long strings and flat lists: found by searches, in a tenth of the time.

    A string that is read may lose its inside too; of those only a ``stop`` may be long.
    """
    parts: list[bytes] = []
    kept = at = 0
    while at + RUN_BYTES <= len(body):
        if body.find(b'"', at, at + RUN_BYTES) >= 0:
            at += RUN_BYTES
            continue
        quote = body.find(b'"', at + RUN_BYTES)
        end = quote if quote > 0 else len(body)
        begin = body.rfind(b'"', kept, at) + 1
        if begin and quote > 0 and body[begin] not in _NOT_IN_STRINGS:
            first, last = _between_escapes(body, at), _between_escapes(body, end - RUN_BYTES // 2)
        else:
            first, last = _between_numbers(body, at, end)
        if 0 < first < last:
            parts.append(body[kept:first])
            kept = last
        at = end
    return b"".join([*parts, body[kept:]]) if parts else body


def _between_numbers(body: bytes, at: int, end: int) -> tuple[int, int]:
    """The first and the last comma of a flat list that goes from before ``at`` to near ``end``; 0, 0 where it is none, or not flat."""
    first, last = body.find(b",", at, at + RUN_BYTES), body.rfind(b",", at, body.rfind(b"]", at, end) + 1)
    flat = 0 < first < last and all(body.find(bracket, first, last) < 0 for bracket in _BRACKETS)
    return (first, last) if flat else (0, 0)


def _between_escapes(body: bytes, at: int) -> int:
    """The first place from ``at`` on, in a string, that is not inside of an escape; 0 where none is near."""
    for place in range(at + ESCAPE_BYTES_MAX, at + RUN_BYTES // 4, ESCAPE_BYTES_MAX):
        if b"\\" not in body[place - ESCAPE_BYTES_MAX : place]:
            return place
    return 0


def decoder(form: type[AskType]) -> Callable[[bytes], AskType | ErrorReply]:
    """What decodes a body's fields, or says what is wrong with them.

    Not strictly: 5.0 for 5 and "true" for true are taken, as engines take them.
    """
    decode_fields = msgspec.json.Decoder(form, strict=False).decode

    def decode(body: bytes) -> AskType | ErrorReply:
        if len(body) >= THIN_BYTES_MIN:
            thin = thinned(body)
            try:
                ask = decode_fields(thin)
                if ask.stop is None or thin is body:
                    return ask
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass  # to be said of the body itself
        try:
            return decode_fields(body)
        except msgspec.ValidationError as error:
            text = str(error)
            where = _PATH.search(text) or _MISSING.search(text)
            return bad_request(f"The request body is not valid: {text}", param=where[1] if where and where[1] else None)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return bad_request(f"The request body is not valid JSON: {error}")

    return decode


decode = decoder(Ask)
decode_loose = decoder(LooseAsk)
decode_responses = decoder(ResponsesAsk)


def rewritten(body: bytes, model: str | None, drop_tier: bool) -> bytes | ErrorReply:
    """``body`` with another model name, and without ``service_tier`` where ``drop_tier``.

    What was skipped while the fields were read is read now, and may turn out to be wrong.
    """
    try:
        fields = _decode_fields(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return bad_request(f"The request body is not valid JSON: {error}")
    if model is not None:
        fields["model"] = msgspec.Raw(_encode(model))
    if drop_tier:
        fields.pop("service_tier", None)
    return _encode(fields)
