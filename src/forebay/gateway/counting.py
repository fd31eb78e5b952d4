"""What of a request's body is text, counted by the model's own tokenizer where its pool names one.

Counting holds the event loop, so it is bounded: up to `EXACT_CHARS_MAX` characters are counted, and of a longer prompt samples of as
many, which tell its own characters per token. A prompt of token ids is counted by its commas where it is long. A body that is no
text, or none of the forms known here, is estimated by its bytes.
"""

from typing import Any

import msgspec

from forebay.ports.tokens import TokenCounter

EXACT_CHARS_MAX = 4096
"""About 2 ms."""
SAMPLES = 4
_SAMPLE_CHARS = EXACT_CHARS_MAX // SAMPLES
LIST_BYTES_MAX = 64 * 1024
"""A longer list of ids, or of prompts, is not taken apart item by item: millions of them would hold the loop for a second."""
BLANKS_MAX = 16
"""Between the key of a prompt and its list."""
KEYS_MAX = 4
"""A value may be named as the key is."""
_LIST = ord("[")
_PROMPT = b'"prompt"'
STRINGS_MAX = 10_000
"""Prompts in one list: more are estimated by their bytes."""


class _Part(msgspec.Struct):
    text: str | None = None


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None
    tool_calls: msgspec.Raw = msgspec.Raw(b"")


class _Texts(msgspec.Struct):
    messages: list[_Message] = []
    input: str | list[_Message] | None = None
    prompt: msgspec.Raw = msgspec.Raw(b"")
    system: str | list[_Part] | None = None
    instructions: str | None = None
    tools: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(_Texts).decode
_decode_prompt = msgspec.json.Decoder(str | list[Any] | None).decode
_decode_strings = msgspec.json.Decoder(list[str]).decode


def counted(counter: TokenCounter, body: bytes) -> tuple[int | None, int]:
    """(tokens of all texts, messages); None where the body is of another form."""
    body, many_ids = _without_ids(body) if len(body) > LIST_BYTES_MAX else (body, 0)
    try:
        texts = _decode(body)
        ids, prompts = _prompts(memoryview(texts.prompt))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, 0
    messages = [*texts.messages, *(texts.input if isinstance(texts.input, list) else ())]
    pieces = [piece for each in messages for piece in (*_pieces(each.content), bytes(each.tool_calls).decode("utf-8", "replace"))]
    pieces += [*_pieces(texts.system), texts.instructions or "", bytes(texts.tools).decode("utf-8", "replace")]
    pieces.append(texts.input if isinstance(texts.input, str) else "")
    pieces += prompts
    text = "\n".join([piece for piece in pieces if piece])
    ids += many_ids
    if not text and not ids:
        return None, 0
    return ids + _count(counter, text), max(1, len(messages))


def _without_ids(body: bytes) -> tuple[bytes, int]:
    """``body`` without a long ``prompt`` of ids alone, and how many those are: between any two is one comma, also in a list of lists.

    They are found by searches: to read over them takes four times as long, to make them numbers twenty times. Where what was
    found is no such prompt after all, what is left is no JSON.
    """
    begin = _list_of_prompt(body)
    if not begin:
        return body, 0
    quote = body.find(b'"', begin)
    end = body.rfind(b"]", begin, quote if quote > 0 else len(body))
    if end - begin < LIST_BYTES_MAX:
        return body, 0
    return body[:begin] + b"[]" + body[end + 1 :], body.count(b",", begin, end) + 1


def _list_of_prompt(body: bytes) -> int:
    """Where the list begins that a key ``prompt`` has; 0 where none of the first few has one."""
    at = 0
    for _ in range(KEYS_MAX):
        found = body.find(_PROMPT, at)
        if found < 0:
            break
        at = found + len(_PROMPT)
        begin = body.find(b"[", at, at + BLANKS_MAX)
        if begin > 0 and body[at:begin].strip() == b":":
            return begin
    return 0


def _prompts(raw: memoryview) -> tuple[int, list[str]]:
    """(ids, texts) of a ``prompt``: one of either, or a list of either. Raises DecodeError for what is neither, and for too many items."""
    if len(raw) <= LIST_BYTES_MAX or raw[0] != _LIST:
        found = _decode_prompt(raw) if raw else None
        if not isinstance(found, list):
            return 0, [found] if found else []
        ids = sum(len(each) if isinstance(each, list) else not isinstance(each, str) for each in found)
        return ids, [each for each in found if isinstance(each, str)]
    listed = bytes(raw)
    if listed.count(b'"') - listed.count(b'\\"') > 2 * STRINGS_MAX:
        raise msgspec.DecodeError("too many prompts to be looked at")
    return 0, _decode_strings(listed)


def _pieces(content: str | list[_Part] | None) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part.text for part in content if part.text] if content else []


def _count(counter: TokenCounter, text: str) -> int:
    if len(text) <= EXACT_CHARS_MAX:
        return counter.count(text) if text else 0
    stride = (len(text) - _SAMPLE_CHARS) // (SAMPLES - 1)
    sampled = sum(counter.count(text[number * stride : number * stride + _SAMPLE_CHARS]) for number in range(SAMPLES))
    return round(sampled * len(text) / (SAMPLES * _SAMPLE_CHARS))
