"""What of a request's body is text, counted by the model's own tokenizer where its pool names one, and what its images and audio cost.

Counting holds the event loop, so it is bounded: up to `EXACT_CHARS_MAX` characters are counted, and of a longer prompt samples of as
many, which tell its own characters per token. A body that is no text, or none of the forms known here, is estimated by its bytes.
"""

from typing import Any

import msgspec

from forebay.admission.estimate import Sized
from forebay.gateway.media import AUDIO, BASE64, URL, media_of
from forebay.ports.tokens import TokenCounter
from forebay.spec.types import Estimate

EXACT_CHARS_MAX = 4096
"""About 2 ms."""
SAMPLES = 4
_SAMPLE_CHARS = EXACT_CHARS_MAX // SAMPLES


class _Part(msgspec.Struct):
    text: str | None = None


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None
    tool_calls: msgspec.Raw = msgspec.Raw(b"")


class _Texts(msgspec.Struct):
    messages: list[_Message] = []
    input: str | list[_Message] | None = None
    prompt: str | list[Any] | None = None
    system: str | list[_Part] | None = None
    instructions: str | None = None
    tools: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(_Texts).decode


class Sizing:
    """Of one pool. ``counter`` None: prompts are estimated by their bytes."""

    __slots__ = ("_cost", "counter")

    def __init__(self, cost: Estimate) -> None:
        self._cost = cost
        self.counter: TokenCounter | None = None

    def look(self, body: bytes) -> Sized | None:
        """What is known of ``body``; None: nothing but its size."""
        media = BASE64 in body or URL in body or AUDIO in body  # not in a function: this is looked for in every request
        if self.counter is None and not media:
            return None
        text_bytes, media_tokens = len(body), 0
        if media:
            found = media_of(body)
            text_bytes -= found.payload_bytes
            media_tokens = round(found.images * self._cost.image_tokens + found.audio_s * self._cost.audio_tokens_per_s)
        counted, messages = (None, 0) if self.counter is None else _counted(self.counter, body)
        return Sized(max(1, text_bytes), media_tokens, counted, messages)


def _counted(counter: TokenCounter, body: bytes) -> tuple[int | None, int]:
    """(tokens of all texts, messages); None where the body is of another form."""
    try:
        texts = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, 0
    messages = [*texts.messages, *(texts.input if isinstance(texts.input, list) else ())]
    pieces = [piece for each in messages for piece in (*_pieces(each.content), bytes(each.tool_calls).decode("utf-8", "replace"))]
    pieces += [*_pieces(texts.system), texts.instructions or "", bytes(texts.tools).decode("utf-8", "replace")]
    pieces.append(texts.input if isinstance(texts.input, str) else "")
    ids = 0
    if isinstance(texts.prompt, str):
        pieces.append(texts.prompt)
    elif texts.prompt:
        pieces += [each for each in texts.prompt if isinstance(each, str)]
        ids = sum(len(each) if isinstance(each, list) else not isinstance(each, str) for each in texts.prompt)
    text = "\n".join([piece for piece in pieces if piece])
    if not text and not ids:
        return None, 0
    return ids + _count(counter, text), max(1, len(messages))


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
