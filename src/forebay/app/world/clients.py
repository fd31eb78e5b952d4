"""Clients of the world: they stream or not, hang up at seeded moments, and check that no answer is silently short."""

import asyncio
import contextlib
from enum import StrEnum
from itertools import pairwise

import msgspec

from forebay.emulator.wire import VOCABULARY
from forebay.ports import Clock

CUT = "the chunked body is cut"
CUT_OFF = "connection: "
"""How details begin of answers that nobody can take for whole: their connection ended inside them."""
HONEST_STATUSES = frozenset({429, 503, 504})
"""Contended, nothing to serve with, and an engine that hung: others of an engine's errors are the gateway's to mend."""


class Told(StrEnum):
    """What one client was told in the end."""

    COMPLETE = "complete"
    ERROR_STATUS = "error_status"
    """A status of 400 or more, in the API's error shape."""
    ERROR_EVENT = "error_event"
    """A stream that ended with an error event: broken, but honest."""
    GONE = "gone"
    """The client hung up."""
    LIED = "lied"
    """A short or malformed answer without a word: never allowed."""


class Wish(msgspec.Struct, frozen=True):
    """One request: when, how large, whether streamed, and how long the client waits before it hangs up."""

    number: int
    at_s: float
    prompt_tokens: int
    output_tokens: int
    stream: bool
    key: str
    patience_s: float


class Answer(msgspec.Struct, frozen=True):
    """How it went."""

    number: int
    told: Told
    status: int
    detail: str
    """Of an error status that no replica was sent before: its code."""
    ended_s: float


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None

    @property
    def text(self) -> str:
        """Of an event, or of a whole answer."""
        said = self.delta or self.message
        return (said.content or "") if said is not None else ""


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: dict[str, object] | None = None


class _Refused(msgspec.Struct):
    class Error(msgspec.Struct):
        code: str | None = None

    error: Error


def _request(wish: Wish, model: str) -> bytes:
    body = msgspec.json.encode(
        {
            "model": model,
            "messages": [{"role": "user", "content": "word" * wish.prompt_tokens}],
            "max_tokens": wish.output_tokens,
            "ignore_eos": True,
            "stream": wish.stream,
            **({"stream_options": {"include_usage": True}} if wish.stream else {}),
        }
    )
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: world\r\nAuthorization: Bearer {wish.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


async def send(wish: Wish, port: int, model: str, clock: Clock) -> Answer:
    """Send ``wish`` at its time and judge the answer."""
    await clock.sleep_until(wish.at_s)
    raw = b""
    writer = None
    try:
        async with asyncio.timeout(wish.patience_s):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(_request(wish, model))
            raw = await reader.read()
            told, status, detail = judge(wish, raw)
    except TimeoutError:
        told, status, detail = Told.GONE, 0, ""
    except OSError as error:
        told, status, detail = Told.LIED, 0, f"{CUT_OFF}{error}"
    finally:
        if writer is not None:
            writer.transport.abort()
    return Answer(wish.number, told, status, detail, clock.now_s())


def judge(wish: Wish, raw: bytes) -> tuple[Told, int, str]:
    """(told, status, detail) of a whole response as bytes."""
    head, separator, rest = raw.partition(b"\r\n\r\n")
    if not separator:
        return Told.LIED, 0, f"no head: {raw[:80]!r}"
    status = int(head.split(b" ", 2)[1])
    body = _dechunked(rest) if b"transfer-encoding: chunked" in head.lower() else rest
    if body is None:
        return Told.LIED, status, CUT
    if status >= 400 and status not in HONEST_STATUSES:
        return Told.LIED, status, f"nobody deserves this status here: {body[:160]!r}"
    if status >= 400:
        with contextlib.suppress(msgspec.DecodeError):
            refused = msgspec.json.decode(body, type=_Refused)
            started = b"\r\nx-forebay-replica:" in head.lower()
            return Told.ERROR_STATUS, status, "" if started else refused.error.code or ""
        return Told.LIED, status, f"an error that is none: {body[:80]!r}"
    return _judge_stream(wish, status, body) if wish.stream else _judge_whole(wish, status, body)


def _judge_whole(wish: Wish, status: int, body: bytes) -> tuple[Told, int, str]:
    try:
        event = msgspec.json.decode(body, type=_Event)
    except msgspec.DecodeError as error:
        return Told.LIED, status, f"not JSON: {error}"
    if event.usage is None or event.usage.completion_tokens != wish.output_tokens:
        return Told.LIED, status, f"asked for {wish.output_tokens} tokens, got {event.usage}"
    return _judge_text(wish, status, "".join(choice.text for choice in event.choices))


def _judge_text(wish: Wish, status: int, text: str) -> tuple[Told, int, str]:
    """Emulated engines say the next word after each: one that is lost or said twice, on whichever of them, shows."""
    words = text.split()
    if len(words) != wish.output_tokens:
        return Told.LIED, status, f"{len(words)} words of {wish.output_tokens} tokens"
    places = [VOCABULARY.index(word) for word in words]
    for before, place in pairwise(places):
        if place != (before + 1) % len(VOCABULARY):
            return Told.LIED, status, f"{VOCABULARY[place]!r} after {VOCABULARY[before]!r}: something is lost, or there twice"
    return Told.COMPLETE, status, ""


def _judge_stream(wish: Wish, status: int, body: bytes) -> tuple[Told, int, str]:
    lines = [part[6:] for part in body.split(b"\n\n") if part.startswith(b"data: ")]
    if not body.endswith(b"\n\n"):
        return Told.LIED, status, f"half an event: {body[-40:]!r}"
    finished, tokens, text = "", 0, ""
    for line in lines:
        if line == b"[DONE]":
            continue
        event = msgspec.json.decode(line, type=_Event)
        if event.error is not None:
            return Told.ERROR_EVENT, status, str(event.error.get("message", ""))
        if event.usage is not None:
            tokens = event.usage.completion_tokens
        for choice in event.choices:
            finished = choice.finish_reason or finished
            text += choice.text
    if not lines or lines[-1] != b"[DONE]":
        return Told.LIED, status, "the stream ended without [DONE] and without an error"
    if finished != "length" or tokens != wish.output_tokens:
        return Told.LIED, status, f"finished {finished!r} with {tokens} of {wish.output_tokens} tokens"
    return _judge_text(wish, status, text)


def _dechunked(rest: bytes) -> bytes | None:
    """The body behind chunked framing, or None where the framing is cut."""
    body, at = b"", 0
    while True:
        end = rest.find(b"\r\n", at)
        if end < 0:
            return None
        size = int(rest[at:end].split(b";")[0], 16)
        if size == 0:
            return body
        body += rest[end + 2 : end + 2 + size]
        at = end + 2 + size + 2
        if at > len(rest):
            return None
