"""The few fields of a request body that the gateway needs, decoded once with their types; the bytes go on as they came.

A body is rewritten only where the engine would not understand it: an alias for the model, or a tier of ours. Then the
top level is taken apart and put together again, with every other value's bytes untouched.
"""

import re
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from forebay.gateway.answers import ErrorReply, bad_request
from forebay.gateway.ask import NOTHING, Ask, Lead, ListedAsk, LooseAsk, OneAsk, ResponsesAsk
from forebay.gateway.prompts import conversations_in, prompts_in

_PATH = re.compile(r" - at `\$\.?([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")
KEPT_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""What a response may be called that is asked for by its id."""

ENGINE_TIERS = frozenset({"auto", "default", "flex", "scale", "priority", "standard_only"})
"""OpenAI's own values of ``service_tier``, and Anthropic's: engines know them, so they may stay in the body."""


THIN_BYTES_MIN: Final = 64 * 1024
"""Of bodies from this size on the inside of long strings is not even skipped."""
RUN_BYTES: Final = 8 * 1024
"""So long without a quotation mark is the inside of a long string, or numbers."""
ESCAPE_BYTES_MAX = 8
_BRACKETS = (b"[", b"]", b"{", b"}")
_NOT_IN_STRINGS = frozenset(b":,]} \t\r\n")
"""One of these follows the end of a string; its beginning is followed by another, mostly."""


LED_BYTES_MAX: Final = 1024 * 1024
"""Of a longer body it is not looked what its prompt begins with: that takes 0.4 µs a kB."""
CHOICES_MAX: Final = 16_384
"""vLLM's bound of ``n`` (``VLLM_MAX_N_SEQUENCES``); OpenAI's is 128."""


def choices_of(ask: Ask) -> int:
    """Answers asked for to each prompt. More than engines take count as so many: the engine will say what is wrong."""
    n = ask.n
    return 1 if n is None else max(1, min(n, CHOICES_MAX))


def prompts_of(ask: Ask) -> int:
    """How many it has."""
    return ask.prompts if type(ask) is ListedAsk else 1


def output_tokens_max(ask: Ask) -> int | None:
    """The client's own bound on each choice, if it gave one that is one."""
    if type(ask) is ResponsesAsk:  # `isinstance` is slow for Structs
        bound = ask.max_output_tokens
    else:
        bound = ask.max_completion_tokens
        if bound is None:
            bound = ask.max_tokens
    return bound if bound is not None and bound > 0 else None


def previous_of(ask: Ask) -> str | None:
    """The answer that it goes on from, if any."""
    return (ask.previous_response_id or None) if isinstance(ask, ResponsesAsk) else None


AskType = TypeVar("AskType", bound=Ask)


_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_named = msgspec.json.Decoder(ResponsesAsk, strict=False).decode
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
_decode_listed = decoder(ListedAsk)
_decode_one = decoder(OneAsk)
_STRING: Final = b'"'[0]
_ABSENT = (b"", b"null")


def decode_prompts(body: bytes) -> Ask | ErrorReply:
    """A completion's fields: its ``prompt`` may be a list, and vLLM's ``prompt_embeds`` too. Where no list is in the body, neither is."""
    if body.find(b"[") < 0:
        one = _decode_one(body)
        if type(one) is not OneAsk or one.prompt_embeds is NOTHING:
            return one
    ask = _decode_listed(body)
    if type(ask) is ListedAsk:
        prompt, embeds = ask.prompt, ask.prompt_embeds
        if embeds is NOTHING and prompt is not NOTHING and memoryview(prompt)[0] == _STRING:
            ask.counted(1)
        else:
            ask.counted(sum([prompts_in(raw) for raw in (prompt, embeds) if memoryview(raw) not in _ABSENT]))
    return ask


def decode_conversations(body: bytes) -> Ask | ErrorReply:
    """The fields of a batch of chats: its ``messages`` are a list of conversations."""
    ask = _decode_listed(body)
    if type(ask) is ListedAsk:
        ask.counted(conversations_in(ask.messages))
    return ask


_decode_any_response = decoder(ResponsesAsk)


def decode_responses(body: bytes) -> ResponsesAsk | ErrorReply:
    """As `decode`; one that goes on in the background is to have an id by which it can be asked for."""
    ask = _decode_any_response(body)
    if type(ask) is ErrorReply or not ask.background or ask.request_id is None:
        return ask
    try:
        named = _decode_named(body).request_id  # all of it: of a long one not all was read
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return bad_request(f"The request body is not valid JSON: {error}")
    if named is not None and not KEPT_ID.fullmatch(named):
        message = (
            f"`request_id` is {named[:40]!r}; with `background` 1 to 128 letters, digits, _ and - are allowed. Leave it out, or change it."
        )
        return bad_request(message, param="request_id")
    return ask


_decode_lead = msgspec.json.Decoder(Lead).decode


def lead_of(body: bytes) -> bytes:
    """What a prompt begins with, as it is written in ``body``, where official clients have it behind the messages."""
    if len(body) > LED_BYTES_MAX:
        return b""
    try:
        lead = _decode_lead(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b""
    return b"".join([lead.system, lead.instructions, lead.tools])


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


def with_tier(body: bytes, tier: str) -> bytes:
    """An answer that says the ``tier`` that served it, where it leaves that open; all other values keep their bytes."""
    try:
        fields = _decode_fields(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body
    said = fields.get("service_tier")
    if not fields or (said is not None and bytes(said) != b"null"):
        return body
    fields["service_tier"] = msgspec.Raw(_encode(tier))
    return _encode(fields)
