"""What a client asks: the few fields of an OpenAI request that an emulated engine obeys, decoded and checked once.

A prompt given as token ids is counted exactly; text is taken at four bytes to a token, so a test or a replay can ask
for any size without a tokenizer. Unknown fields are ignored, as vLLM does.
"""

import zlib

import msgspec

from forebay.emulator.wire import TOKEN_IDS

BYTES_PER_TOKEN = 4
CHOICES_MAX = 128
"""Bound on prompts × ``n`` of one request."""
COMPLETION_TOKENS = 16
"""OpenAI's completions stop after 16 tokens unless told otherwise, and vLLM keeps to that."""


class ApiError(Exception):
    """An error answer in vLLM's shape."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None, headers: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": status}})


class Unauthorized(ApiError):
    """vLLM's answer to who shows no key of its own: not in the shape of its other errors."""

    def __init__(self) -> None:
        super().__init__(401, "", "Unauthorized")
        self.body = b'{"error":"Unauthorized"}'


def bad_request(message: str, param: str | None = None) -> ApiError:
    """Status 400."""
    return ApiError(400, "BadRequestError", message, param)


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _Part(msgspec.Struct):
    text: str = ""


class _Message(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None


class _Common(msgspec.Struct):
    model: str | None = None
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    n: int | None = 1
    max_tokens: int | None = None
    min_tokens: int | None = 0
    ignore_eos: bool | None = False
    return_token_ids: bool | None = False


class _Chat(_Common, kw_only=True):
    messages: list[_Message]
    max_completion_tokens: int | None = None


class _Completion(_Common, kw_only=True):
    prompt: str | list[int | str | list[int]]


class Tokens(msgspec.Struct):
    """What ``/detokenize`` is asked."""

    tokens: list[int]


class Prompt(msgspec.Struct, frozen=True):
    """One prompt: its text, or its token ids."""

    tokens: int
    last_id: int
    """Id of its last token: what follows is a function of it."""
    source: bytes | tuple[int, ...]

    def ids(self) -> list[int]:
        """All its token ids."""
        source = self.source
        return list(source) if isinstance(source, tuple) else [_id_at(source, at) for at in range(0, max(1, len(source)), BYTES_PER_TOKEN)]


class Asked(msgspec.Struct, frozen=True):
    """A request, understood; each of its ``prompts`` has ``n`` choices."""

    chat: bool
    model: str | None
    prompts: tuple[Prompt, ...]
    n: int
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    stream: bool
    include_usage: bool
    running_usage: bool
    """Usage so far on every event."""
    token_ids: bool
    """Ids of the prompt's and of the answer's tokens beside their text."""


_chat = msgspec.json.Decoder(_Chat)
_completion = msgspec.json.Decoder(_Completion)


def decode(body: bytes, chat: bool) -> Asked:
    """The request in ``body``; raises ApiError (400) that says where it is wrong."""
    try:
        common: _Chat | _Completion = _chat.decode(body) if chat else _completion.decode(body)
    except msgspec.ValidationError as error:
        raise ApiError(400, "Bad Request", str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, "Bad Request", f"JSON decode error: {error}") from error
    if isinstance(common, _Chat):
        prompts: tuple[Prompt, ...] = (_messages_prompt(common.messages),)
        limit = common.max_completion_tokens if common.max_completion_tokens is not None else common.max_tokens
    else:
        prompts = _prompts(common.prompt)
        limit = COMPLETION_TOKENS if common.max_tokens is None else common.max_tokens
    n = 1 if common.n is None else common.n
    _check(common, limit, n, len(prompts))
    options = common.stream_options or _StreamOptions()
    return Asked(
        chat=chat,
        model=common.model,
        prompts=prompts,
        n=n,
        max_tokens=limit,
        min_tokens=common.min_tokens or 0,
        ignore_eos=bool(common.ignore_eos),
        stream=bool(common.stream),
        include_usage=bool(options.include_usage),
        running_usage=bool(options.include_usage and options.continuous_usage_stats),
        token_ids=bool(common.return_token_ids),
    )


def _check(common: _Common, limit: int | None, n: int, prompts: int) -> None:
    if limit is not None and limit < 1:
        raise bad_request(f"max_tokens must be at least 1, got {limit}.", "max_tokens")
    if n < 1:
        raise bad_request(f"n must be at least 1, got {n}.", "n")
    if n * prompts > CHOICES_MAX:
        raise bad_request(f"a request has at most {CHOICES_MAX} choices over all its prompts, got {n * prompts}.", "n")
    if common.stream_options is not None and not common.stream:
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")


def prompt_tokens(body: bytes) -> int:
    """Tokens of the prompt in ``body``, a chat's or a completion's; raises ApiError."""
    return sum(prompt.tokens for prompt in decode(body, chat=b'"messages"' in body).prompts)


def text_tokens(text: str) -> int:
    """Tokens of ``text``: its UTF-8 bytes by four, at least one."""
    size = len(text) if text.isascii() else len(text.encode())
    return max(1, -(-size // BYTES_PER_TOKEN))


def _id_at(text: bytes, at: int) -> int:
    return zlib.crc32(text[at : at + BYTES_PER_TOKEN]) % TOKEN_IDS


def _text_prompt(text: bytes) -> Prompt:
    tokens = max(1, -(-len(text) // BYTES_PER_TOKEN))
    return Prompt(tokens, _id_at(text, (tokens - 1) * BYTES_PER_TOKEN), text)


def _ids_prompt(ids: list[int]) -> Prompt:
    return Prompt(len(ids), ids[-1], tuple(ids))


def _messages_prompt(messages: list[_Message]) -> Prompt:
    if not messages:
        raise bad_request("messages must not be empty.", "messages")
    pieces: list[str] = []
    for message in messages:
        content = message.content
        pieces += [content] if isinstance(content, str) else [part.text for part in content or ()]
    return _text_prompt("".join(pieces).encode())


def _prompts(prompt: str | list[int | str | list[int]]) -> tuple[Prompt, ...]:
    if isinstance(prompt, str):
        return (_text_prompt(prompt.encode()),)
    if not prompt:
        raise bad_request("prompt must not be empty.", "prompt")
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1:
        raise bad_request("prompt must be a string, or a list of only strings, only token ids, or only lists of token ids.", "prompt")
    if kinds == {int}:
        return (_ids_prompt([item for item in prompt if isinstance(item, int)]),)
    if not all(prompt) and kinds != {str}:
        raise bad_request("prompt must not be empty.", "prompt")
    return tuple(
        _text_prompt(item.encode()) if isinstance(item, str) else _ids_prompt(item) for item in prompt if not isinstance(item, int)
    )
