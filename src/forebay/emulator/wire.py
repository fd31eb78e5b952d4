"""The bytes of answers: everything about a chunk but its token is made once per choice, so that a token costs a join.

Each token follows from the one before it, and the first from the prompt's last: the text and the ids of any stretch of
an answer can be made when it is sent, nothing needs to be kept while a client reads slowly, and another engine that is
given prompt and answer so far as token ids goes on exactly where this one was.
"""

import msgspec

VOCABULARY = (
    *("water", "gate", "flow", "head", "level", "turbine", "spill", "basin", "intake", "canal", "weir", "lock", "stream"),
    *("power", "load", "shaft", "wheel", "pond", "rise", "fall", "drop", "hold", "feed", "drain", "reach", "bank", "depth"),
    *("surge", "calm", "pressure"),
)
_WORDS = tuple(f" {word}".encode() for word in VOCABULARY)
_WORDS_BY_SIZE = tuple(b"x" * size for size in range(max(map(len, _WORDS)) + 1))
"""Stand-ins of each possible length, for the chunk sizes."""
_SIZE = len(_WORDS)
TOKEN_IDS = 1000 * _SIZE
"""Ids of tokens, from 0; as many for each word, so that the next id is always the next word."""
DONE = b"data: [DONE]\n\n"


def framed(data: bytes, chunked: bool) -> bytes:
    """``data`` as one HTTP chunk, or as it is for HTTP/1.0."""
    return b"%x\r\n%b\r\n" % (len(data), data) if chunked else data


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)


def usage(prompt_tokens: int, output_tokens: int) -> dict[str, object]:
    """OpenAI's usage object, as vLLM fills it in without prompt-token details."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
        "prompt_tokens_details": None,
    }


class Names:
    """What all chunks of one answer share."""

    __slots__ = ("chat", "created", "id", "model")

    def __init__(self, answer_id: str, model: str, created_s: int, chat: bool) -> None:
        self.id = answer_id
        self.model = model
        self.created = created_s
        self.chat = chat

    def opening(self, streamed: bool) -> bytes:
        """An answer's JSON up to and including ``"choices":``."""
        kind = "chat.completion" if self.chat else "text_completion"
        if streamed and self.chat:
            kind = "chat.completion.chunk"
        return b'{"id":%b,"object":"%b","created":%d,"model":%b,"choices":' % (
            _json(self.id),
            kind.encode(),
            self.created,
            _json(self.model),
        )

    def usage_event(self, prompt_tokens: int, output_tokens: int) -> bytes:
        """The last chunk before ``[DONE]`` of a stream that asked for its usage."""
        told = {name: tokens for name, tokens in usage(prompt_tokens, output_tokens).items() if tokens is not None}
        return b'data: %b[],"usage":%b}\n\n' % (self.opening(True), _json(told))


class Extras(msgspec.Struct, frozen=True):
    """What a client asked to be told besides the text of a choice. ``prompt_ids``: None unless token ids were asked for."""

    prompt_ids: bytes | None = None
    """Its own prompt's token ids, as JSON."""
    running_usage_of: int | None = None
    """``continuous_usage_stats``: usage so far on every event, of its own prompt and this choice alone; the prompt's tokens."""


class ChoiceWire:
    """Makes the events of one choice of one streamed answer; ``offset`` is the id of its first token."""

    __slots__ = ("_chunked", "_extras", "_heads", "_index", "_names", "_offset", "_plain", "_prefix", "_suffix")

    def __init__(self, names: Names, index: int, offset: int, chunked: bool, extras: Extras = Extras()) -> None:
        self._names = names
        self._index = index
        self._offset = offset
        self._chunked = chunked
        self._extras = extras
        self._plain = extras == Extras()
        opening = b'data: %b[{"index":%d,' % (names.opening(True), index)
        if names.chat:
            self._prefix = opening + b'"delta":{"content":"'
            self._suffix = b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
        else:
            self._prefix = opening + b'"text":"'
            self._suffix = b'","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}\n\n'
        fixed = len(self._prefix) + len(self._suffix)
        if chunked:
            tail = b"\r\n"
            self._suffix += tail
            self._heads = tuple(b"%x\r\n%b" % (fixed + len(word), self._prefix) for word in _WORDS_BY_SIZE)
        else:
            self._heads = (self._prefix,) * len(_WORDS_BY_SIZE)

    def role(self) -> bytes:
        """The first event of a chat stream."""
        delta = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":%b%b}\n\n' % (
            self._extras.prompt_ids or b"null",
            self._running(0),
        )
        return framed(b'data: %b[{"index":%d,%b' % (self._names.opening(True), self._index, delta), self._chunked)

    def token(self, k: int) -> bytes:
        """The event of the ``k``-th token (from 0)."""
        if not self._plain:
            return self._told(k, k + 1, None)
        word = _WORDS[(self._offset + k) % _SIZE]
        return self._heads[len(word)] + word + self._suffix

    def tokens(self, start: int, end: int) -> bytes:
        """One event with all tokens in ``start..end``: what a client gets that had stopped reading."""
        if not self._plain:
            return self._told(start, end, None)
        text = _text(self._offset, start, end)
        if self._chunked:
            body = self._prefix + text + self._suffix[:-2]
            return framed(body, True)
        return self._prefix + text + self._suffix

    def last(self, start: int, end: int, shown: int, reason: str) -> bytes:
        """The event that ends the choice, with the tokens ``start..end`` and the text of those before ``shown`` (often one, or none)."""
        return self._told(start, end, reason, shown)

    def _told(self, start: int, end: int, reason: str | None, shown: int | None = None) -> bytes:
        """An event with tokens ``start..end``, and all that was asked for."""
        names, extras = self._names, self._extras
        text = _text(self._offset, start, end if shown is None else shown)
        content = (b'"delta":{"content":"%b"}' if names.chat else b'"text":"%b"') % text
        finish = b"null" if reason is None else b'"%b"' % reason.encode()
        stop = b"" if names.chat and reason is None else b',"stop_reason":null'
        ids = b"null" if extras.prompt_ids is None else _ids(self._offset, start, end)
        prompt = b"" if names.chat else b',"prompt_token_ids":%b' % (b"null" if start else extras.prompt_ids or b"null")
        body = b'data: %b[{"index":%d,%b,"logprobs":null,"finish_reason":%b%b%b,"token_ids":%b}]%b}\n\n' % (
            names.opening(True),
            self._index,
            content,
            finish,
            stop,
            prompt,
            ids,
            self._running(end),
        )
        return framed(body, self._chunked)

    def _running(self, produced: int) -> bytes:
        prompt_tokens = self._extras.running_usage_of
        if prompt_tokens is None:
            return b""
        return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (
            prompt_tokens,
            prompt_tokens + produced,
            produced,
        )


def text_of(ids: list[int]) -> str:
    """What the tokens ``ids`` say."""
    return "".join(f" {VOCABULARY[each % _SIZE]}" for each in ids)


def _ids(offset: int, start: int, end: int) -> bytes:
    return b"[%b]" % b",".join([b"%d" % ((offset + k) % TOKEN_IDS) for k in range(start, end)])


def _text(offset: int, start: int, end: int) -> bytes:
    return b"".join([_WORDS[(offset + k) % _SIZE] for k in range(start, end)])


def whole(names: Names, choices: list[tuple[int, int, str]], prompt_tokens: int, output_tokens: int) -> bytes:
    """A whole answer's JSON. ``choices``: (offset, tokens of text, finish reason) by index."""
    listed: list[dict[str, object]] = []
    for index, (offset, tokens, reason) in enumerate(choices):
        text = _text(offset, 0, tokens).decode()
        choice: dict[str, object] = {"index": index}
        if names.chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
        else:
            choice["text"] = text
        listed.append({**choice, "logprobs": None, "finish_reason": reason, "stop_reason": None, "token_ids": None})
    tail = b',"service_tier":null,"system_fingerprint":null,"usage":%b,"kv_transfer_params":null}'
    return names.opening(False) + _json(listed) + tail % _json(usage(prompt_tokens, output_tokens))


def error_event(body: bytes, chunked: bool) -> bytes:
    """An error inside a stream: the event, then the end marker."""
    return framed(b"data: " + body + b"\n\n", chunked) + framed(DONE, chunked)
