"""The emulator's other endpoints: each is a chat or a completion in another dress, on the way in and on the way out.

What is asked becomes a body that `body.decode` understands, so the engine does the same work for it; the answer is then
told in the endpoint's own form, as vLLM 0.32 tells it: the events of ``/v1/responses`` and ``/v1/messages``, scores, vectors, a transcript.
"""

import base64
import re
import struct
from collections.abc import Callable
from typing import Any

import msgspec

from forebay.emulator import wire
from forebay.emulator.answers import Answer
from forebay.emulator.body import ApiError, Asked, Tokens, bad_request
from forebay.emulator.core import Sequence
from forebay.emulator.http import Exchange, Request
from forebay.emulator.kept import Kept, plain
from forebay.emulator.wire import text_of

DIMENSIONS = 8
AUDIO_TOKENS = 50
_FIELD = re.compile(rb'name="(model|stream|language|response_format)"\r\n\r\n([^\r\n]*)\r\n')
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode
Ended = Callable[[Answer, Sequence], None]


Translate = Callable[[Request, Kept], dict[str, Any]]
"""Makes a chat's body, or a completion's, of a request; some go on from what the engine keeps."""


class Form:
    """One endpoint. ``prefix`` of the answer's id; ``make`` its answer."""

    def __init__(self, prefix: str, chat: bool, translate: Translate, make: "type[FormAnswer]") -> None:
        self.prefix = prefix
        self.chat = chat
        self._translate = translate
        self._make = make

    def body(self, request: Request, kept: Kept) -> bytes:
        """The request as a chat's, or a completion's; raises ApiError (400, and 404 for one that goes on from what is not ``kept``)."""
        try:
            return _encode(self._translate(request, kept))
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
            raise bad_request(f"the request is not valid: {error!r}") from error

    def answer(self, exchange: Exchange, asked: Asked, names: wire.Names, ended: Ended, kept: Kept) -> Answer:
        """What will answer it; ``kept`` takes what the engine keeps."""
        return self._make(exchange, asked, names, ended, kept)


def _text(offset: int, start: int, end: int) -> str:
    return "".join(f" {wire.VOCABULARY[(offset + k) % len(wire.VOCABULARY)]}" for k in range(start, end))


class FormAnswer(Answer):
    """An answer that is one body, or a stream of typed events, of one choice."""

    streams = False

    def __init__(self, exchange: Exchange, asked: Asked, names: wire.Names, ended: Ended, kept: Kept) -> None:
        super().__init__(exchange, asked, names, ended)
        self._kept = kept
        self._number = 0
        exchange.on_writable = self.flush

    def flush(self) -> None:
        """Tell what there is to tell: a body at the end, or the events so far."""
        self._count_ended()
        if self.asked.stream and self.streams:
            if self.exchange.writable:
                self._flush_events()
        elif self._left == 0:
            self.exchange.respond(200, _encode(self.whole()))

    def fail(self, body: bytes) -> None:
        """The engine died."""
        if self.asked.stream and self.streams:
            self.exchange.end_stream(wire.framed(self.error(body), self.exchange.chunked))
        else:
            self.exchange.respond(500, body)

    def _flush_events(self) -> None:
        sequence = self.sequences[0]
        parts: list[bytes] = []
        if not self._number:
            parts += [self._event(event) for event in self.opening()]
        for k in range(sequence.sent, sequence.produced):
            parts.append(self._event(self.delta(_text(self._offsets[0], k, k + 1))))
        sequence.sent = sequence.produced
        if sequence.done and sequence.reason == "abort":
            self.exchange.write(b"".join(parts))
            self.exchange.cut()
        elif sequence.done:
            parts += [self._event(event) for event in self.closing()]
            self.exchange.end_stream(b"".join(parts))
        elif parts:
            self.exchange.write(b"".join(parts))

    def _event(self, event: dict[str, Any]) -> bytes:
        self._number += 1
        return wire.framed(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(event)), self.exchange.chunked)

    @property
    def text(self) -> str:
        """All of it, so far."""
        return _text(self._offsets[0], 0, self.sequences[0].produced)

    def whole(self) -> dict[str, Any]:
        """The body of an answer that is no stream."""
        raise AssertionError("every form says its own")

    def opening(self) -> list[dict[str, Any]]:
        """The events before the first token."""
        return []

    def delta(self, text: str) -> dict[str, Any]:
        """The event of one token."""
        return {"type": "delta", "delta": text}

    def closing(self) -> list[dict[str, Any]]:
        """The events after the last token."""
        return []

    def error(self, body: bytes) -> bytes:
        """The event that ends a stream whose engine died."""
        return b"event: error\ndata: %b\n\n" % body


class ResponseAnswer(FormAnswer):
    """``/v1/responses``; with ``background`` it goes on whoever reads, and an answer that is no stream is given at once, as it stands."""

    streams = True

    def __init__(self, exchange: Exchange, asked: Asked, names: wire.Names, ended: Ended, kept: Kept) -> None:
        super().__init__(exchange, asked, names, ended, kept)
        request = _decode(exchange.request.body)
        self._before = kept.conversation(request)
        self.background = bool(request.get("background"))
        if self.background and not request.get("store", True):
            raise bad_request("background can only be used when `store` is true", "background")

    def begun(self) -> None:
        """The engine has it."""
        if self.background:
            queued = self._keep(self._response("queued"), self._cancelled)
            if not self.asked.stream:
                self.exchange.respond(200, queued)

    def _keep(self, response: dict[str, Any], cancel: Callable[[], bytes] | None = None) -> bytes:
        """As it is now, and the conversation up to it; returns what is told of it."""
        body = _encode(response)
        self._kept.put(self.names.id, body, [*self._before, *map(plain, response["output"])], cancel)
        return body

    def _cancelled(self) -> bytes:
        self.stop()
        return _encode(self._response("cancelled"))

    def flush(self) -> None:
        """See `FormAnswer.flush`; what goes on in the background ends in the store."""
        if not self.background or (self.asked.stream and not self.exchange.done):
            super().flush()
        else:
            self._count_ended()
            if self._left == 0:
                self.whole()
        if self.background and self._left == 0:
            self.over()

    def fail(self, body: bytes) -> None:
        """See `FormAnswer.fail`."""
        super().fail(body)
        self.over()

    def _usage(self) -> dict[str, Any]:
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + self.output_tokens,
        }

    def _item(self, text: str, status: str) -> dict[str, Any]:
        content: list[dict[str, Any]] = [{"type": "output_text", "text": text, "annotations": [], "logprobs": None}] if text else []
        return {"id": f"msg_{self.names.id}", "type": "message", "role": "assistant", "status": status, "content": content}

    def _response(self, status: str) -> dict[str, Any]:
        done = status == "completed"
        return {
            "id": self.names.id,
            "object": "response",
            "created_at": self.names.created,
            "model": self.names.model,
            "status": status,
            "background": self.background,
            "output": [self._item(self.text, "completed")] if done else [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": self._usage() if done else None,
        }

    def whole(self) -> dict[str, Any]:
        response = self._response("completed")
        self._keep(response)
        return response

    def _event(self, event: dict[str, Any]) -> bytes:
        return super()._event({"type": event["type"], "sequence_number": self._number, **event})

    def opening(self) -> list[dict[str, Any]]:
        part = {"type": "output_text", "text": "", "annotations": []}
        return [
            {"type": "response.created", "response": self._response("in_progress")},
            {"type": "response.in_progress", "response": self._response("in_progress")},
            {"type": "response.output_item.added", "output_index": 0, "item": self._item("", "in_progress")},
            {"type": "response.content_part.added", "output_index": 0, "content_index": 0, "item_id": f"msg_{self.names.id}", "part": part},
        ]

    def _place(self) -> dict[str, Any]:
        return {"output_index": 0, "content_index": 0, "item_id": f"msg_{self.names.id}"}

    def delta(self, text: str) -> dict[str, Any]:
        return {"type": "response.output_text.delta", **self._place(), "delta": text, "logprobs": []}

    def closing(self) -> list[dict[str, Any]]:
        return [
            {"type": "response.output_text.done", **self._place(), "text": self.text, "logprobs": []},
            {"type": "response.output_item.done", "output_index": 0, "item": self._item(self.text, "completed")},
            {"type": "response.completed", "response": self.whole()},
        ]


class MessageAnswer(FormAnswer):
    """Anthropic's ``/v1/messages``."""

    streams = True

    def _usage(self, output_tokens: int) -> dict[str, Any]:
        return {"input_tokens": self.prompt_tokens, "output_tokens": output_tokens}

    def _message(self, content: list[dict[str, Any]], reason: str | None, output_tokens: int) -> dict[str, Any]:
        return {
            "id": self.names.id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.names.model,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": self._usage(output_tokens),
        }

    def _reason(self) -> str:
        return "max_tokens" if self.sequences[0].reason == "length" else "end_turn"

    def whole(self) -> dict[str, Any]:
        return self._message([{"type": "text", "text": self.text}], self._reason(), self.output_tokens)

    def opening(self) -> list[dict[str, Any]]:
        return [
            {"type": "message_start", "message": self._message([], None, 0)},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        ]

    def delta(self, text: str) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}

    def closing(self) -> list[dict[str, Any]]:
        delta = {"stop_reason": self._reason(), "stop_sequence": None}
        return [
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": delta, "usage": self._usage(self.output_tokens)},
            {"type": "message_stop"},
        ]

    def error(self, body: bytes) -> bytes:
        told = _decode(body)["error"]["message"]
        return b"event: error\ndata: %b\n\n" % _encode({"type": "error", "error": {"type": "internal_error", "message": told}})


class PooledAnswer(FormAnswer):
    """Vectors, scores and ranks: the prompts are read, and nothing is written."""

    def whole(self) -> dict[str, Any]:
        request = _decode(self.exchange.request.body)
        path = self.exchange.request.path
        usage = {"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens}
        scores = [round(1 / (2 + at), 4) for at in range(len(self.sequences))]
        if path.endswith("rerank"):
            results = [
                {"index": at, "document": {"text": text}, "relevance_score": score}
                for at, (text, score) in enumerate(zip(request["documents"], scores, strict=True))
            ]
            return {"id": self.names.id, "model": self.names.model, "usage": usage, "results": results}
        rows: list[dict[str, Any]] = []
        for at, score in enumerate(scores):
            vector = [score] * DIMENSIONS
            packed = base64.b64encode(struct.pack(f"<{DIMENSIONS}f", *vector)).decode()
            embedding = packed if request.get("encoding_format") == "base64" else vector
            row = {"score": score} if path.endswith("score") else {"data": embedding} if path == "/pooling" else {"embedding": embedding}
            kind = "embedding" if "embedding" in row else "score"
            rows.append({"index": at, "object": kind, **row})
        return {
            "id": self.names.id,
            "object": "list",
            "created": self.names.created,
            "model": self.names.model,
            "data": rows,
            "usage": usage,
        }


class TranscriptAnswer(FormAnswer):
    """``/v1/audio/…``."""

    def whole(self) -> dict[str, Any]:
        return {"text": self.text.strip(), "usage": {"type": "duration", "seconds": 1}}


def _limits(request: dict[str, Any], bound: str) -> dict[str, Any]:
    wanted: dict[str, Any] = {name: request[name] for name in ("model", "stream", "ignore_eos") if name in request}
    if request.get(bound) is not None:
        wanted["max_tokens"] = int(request[bound])
    return wanted


def _response_body(request: Request, kept: Kept) -> dict[str, Any]:
    asked = _decode(request.body)
    return {**_limits(asked, "max_output_tokens"), "messages": kept.conversation(asked)}


def _message_body(request: Request, _: Kept) -> dict[str, Any]:
    asked = _decode(request.body)
    if "max_tokens" not in asked:
        raise bad_request("max_tokens: Field required", "max_tokens")
    system = asked.get("system") or ""
    first = [plain({"role": "system", "content": system})] if system else []
    return {**_limits(asked, "max_tokens"), "messages": [*first, *map(plain, asked["messages"])]}


def _pooled_body(request: Request, _: Kept) -> dict[str, Any]:
    asked = _decode(request.body)
    texts = asked.get("input", asked.get("documents", asked.get("text_2", asked.get("queries"))))
    return {**_limits(asked, ""), "stream": False, "prompt": texts, "max_tokens": 1}


def _audio_body(request: Request, _: Kept) -> dict[str, Any]:
    fields = {name.decode(): value.decode() for name, value in _FIELD.findall(request.body)}
    named = {"model": fields["model"]} if "model" in fields else {}
    return {**named, "prompt": [0] * AUDIO_TOKENS, "max_tokens": 16}


_POOLED = Form("pool", False, _pooled_body, PooledAnswer)
_AUDIO = Form("trsc", False, _audio_body, TranscriptAnswer)
FORMS: dict[str, Form] = {
    "/v1/responses": Form("resp", True, _response_body, ResponseAnswer),
    "/v1/messages": Form("msg", True, _message_body, MessageAnswer),
    "/v1/embeddings": _POOLED,
    "/v1/rerank": _POOLED,
    "/v1/score": _POOLED,
    "/pooling": _POOLED,
    "/v1/audio/transcriptions": _AUDIO,
    "/v1/audio/translations": _AUDIO,
}


def counted(exchange: Exchange, tokens: Callable[[bytes], int]) -> None:
    """``/tokenize`` and ``/v1/messages/count_tokens``: the number of tokens, without a turn of the engine."""
    if exchange.request.path == "/tokenize":
        count = tokens(_encode({**_decode(exchange.request.body), "max_tokens": 1}))
        exchange.respond(200, _encode({"count": count, "max_model_len": 0, "tokens": list(range(count)), "token_strs": None}))
    else:
        messages = [plain(message) for message in _decode(exchange.request.body)["messages"]]
        exchange.respond(200, _encode({"input_tokens": tokens(_encode({"messages": messages}))}))


def detokenized(exchange: Exchange) -> None:
    """``/detokenize``: the text of token ids."""
    try:
        ids = msgspec.json.decode(exchange.request.body, type=Tokens).tokens
    except msgspec.MsgspecError as error:
        raise ApiError(400, "Bad Request", str(error)) from error
    exchange.respond(200, _encode({"prompt": text_of(ids)}))
