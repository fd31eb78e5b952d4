"""How a streamed answer that was cut goes on: the request to another replica, and its chunks as the client's own.

The prompt's and the answer's token ids so far are the prompt of ``/v1/completions``: chat templates, images and tokenizers
play no part any more. Sampling goes on as it would have where every field of the request means the same there; a field
that is not known to do so, or whose meaning depends on what is output and what is prompt, refuses. So do tools, reasoning,
structured output, several choices, log-probabilities and a seed.
"""

import msgspec

from forebay.domain.shape import Usage
from forebay.gateway.ask import Ask
from forebay.gateway.body import output_tokens_max
from forebay.gateway.emitted import Emitted, Opening
from forebay.gateway.events import UNREADABLE, Choice, Event, UsageFields

COMPLETION_TOKENS = 16
"""``max_tokens`` of a completion that doesn't say (OpenAI's, and vLLM's)."""
PATH = b"/v1/completions"
CHAT = b"/v1/chat/completions"

_CARRIED = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop", "stop_token_ids", "include_stop_str_in_output"),
        *("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "logit_bias", "allowed_token_ids", "priority"),
        *("user", "cache_salt", "session_id", "stream_interval"),
    }
)
"""Mean the same when the answer so far is part of the prompt."""
_SPENT = frozenset(
    {
        *("model", "messages", "prompt", "stream", "stream_options", "max_tokens", "max_completion_tokens", "return_token_ids"),
        *("chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "add_special_tokens", "documents"),
        *("metadata", "store", "service_tier", "request_id", "safety_identifier", "prompt_cache_key", "reasoning_effort", "min_tokens"),
        *("parallel_tool_calls", "truncate_prompt_tokens", "truncation_side", "include_reasoning"),
    }
)
"""Have done their work once the prompt is token ids, or are set anew."""
_NEUTRAL: dict[str, frozenset[bytes]] = {
    "n": frozenset({b"1"}),
    "best_of": frozenset({b"1"}),
    "echo": frozenset({b"false"}),
    "logprobs": frozenset({b"false"}),
    "top_logprobs": frozenset({b"0"}),
    "presence_penalty": frozenset({b"0", b"0.0"}),
    "frequency_penalty": frozenset({b"0", b"0.0"}),
    "tools": frozenset({b"[]"}),
    "tool_choice": frozenset({b'"none"', b'"auto"'}),
    "response_format": frozenset({b'{"type":"text"}', b'{"type": "text"}'}),
    "use_beam_search": frozenset({b"false"}),
    "bad_words": frozenset({b"[]"}),
    "suffix": frozenset({b'""'}),
}
"""Fields that must be absent, null, or one of these; any other field must be absent or null."""

_decode_count = msgspec.json.Decoder(int | None, strict=False).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class _Part(msgspec.Struct):
    type: str = "text"


class _Message(msgspec.Struct):
    content: str | list[str | _Part] | None = None


_decode_messages = msgspec.json.Decoder(list[_Message]).decode


class Plan(msgspec.Struct, frozen=True):
    """What has to be known of a request when its body is gone."""

    chat: bool
    model: bytes
    """As JSON."""
    output_tokens_max: int | None
    """None: as many as the context holds."""
    context_tokens: int
    min_tokens: int
    carried: bytes
    """Fields that go along, as JSON, each after a comma."""

    def left(self, emitted: Emitted, kept: int) -> int:
        """How many tokens an answer of which ``kept`` are out may still have."""
        room = self.context_tokens - emitted.prompt_ids.count(b",") - 1
        return (room if self.output_tokens_max is None else min(self.output_tokens_max, room)) - kept

    def body(self, emitted: Emitted, kept: int) -> bytes:
        """The request for what is left of an answer of which ``kept`` tokens are out."""
        left = self.left(emitted, kept)
        return (
            b'{"model":%b,"prompt":[%b,%b],"max_tokens":%d,"min_tokens":%d,"stream":true,"stream_options":{"include_usage":true}'
            b',"return_token_ids":true%b}'
        ) % (self.model, emitted.prompt_ids, bytes(emitted.ids[:-1]), left, max(0, self.min_tokens - kept), self.carried)


def plan(body: bytes, path: bytes, ask: Ask, context_tokens: int | None, sequences: int = 1) -> Plan | str:
    """How the answer to ``body`` could be continued; or why not. ``context_tokens``: None where it isn't known.

    ``sequences``: over all its prompts. A list of one is as good as that one.
    """
    if path not in (CHAT, PATH):
        return "its endpoint's answers are not continued"
    try:
        fields = _decode_fields(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "its body is not all JSON"
    carried = _carried(fields)
    if isinstance(carried, str):
        return carried
    if sequences > 1:
        return "it has several prompts"
    chat = path == CHAT
    limit = output_tokens_max(ask)
    if limit is None and not chat:
        limit = COMPLETION_TOKENS
    if limit is None and context_tokens is None:
        return "neither max_tokens nor the model's context is known"
    if chat and not _all_text(fields.get("messages")):
        return "its prompt is not only text"
    min_tokens = _count(fields.get("min_tokens"))
    if min_tokens is None:
        return "its min_tokens is no number"
    return Plan(chat, bytes(fields["model"]), limit, context_tokens or 2**31, min_tokens, carried)


def _carried(fields: dict[str, msgspec.Raw]) -> bytes | str:
    """The fields that go along; or why it isn't continued."""
    carried = []
    for name, raw in fields.items():
        value = bytes(raw)
        if value == b"null" or name in _SPENT:
            continue
        if name in _CARRIED:
            carried.append(b",%b:%b" % (_encode(name), value))
        elif value not in _NEUTRAL.get(name, ()) and not (name == "tools" and bytes(fields.get("tool_choice", b"")) == b'"none"'):
            return f"{name[:64]} was asked for"
    return b"".join(carried)


def _count(value: msgspec.Raw | None) -> int | None:
    """As engines read a number of tokens: 40.0 and "40" are 40."""
    try:
        return _decode_count(bytes(value or b"0")) or 0
    except UNREADABLE:
        return None


def _all_text(messages: msgspec.Raw | None) -> bool:
    try:
        listed = _decode_messages(messages or b"[]")
    except UNREADABLE:
        return False
    parts = (part for message in listed if isinstance(message.content, list) for part in message.content)
    return all(isinstance(part, str) or part.type == "text" for part in parts)


class Translation:
    """Turns a continuation's chunks into more of the answer that the client has the beginning of."""

    __slots__ = ("_ask_ids", "_ask_running", "_ask_usage", "_base", "_chat", "_emitted", "_head")

    def __init__(self, chat: bool, ask: Ask, emitted: Emitted) -> None:
        options = ask.stream_options
        self._chat = chat
        self._ask_ids = bool(ask.return_token_ids)
        self._ask_usage = options is not None and bool(options.include_usage)
        self._ask_running = self._ask_usage and options is not None and bool(options.continuous_usage_stats)
        self._emitted = emitted
        self._base = emitted.tokens
        """Tokens of the answer that are part of this replica's prompt."""
        opening = emitted.opening
        assert opening is not None
        self._head = _head(chat, opening)

    def text(self, text: str) -> bytes:
        """An event with more text that no token comes with."""
        return self.event(Event(choices=[Choice(text=text)]))

    def usage(self, fields: UsageFields) -> Usage | None:
        """Of the whole answer, from what this replica says of its part; None where that can't be."""
        own = fields.usage()
        if own is None:
            return None
        prompt_tokens = max(0, own.prompt_tokens - self._base)
        return Usage(prompt_tokens, own.output_tokens + self._base, min(own.cached_tokens, prompt_tokens))

    def event(self, event: Event) -> bytes:
        """What the client gets for it; nothing where it didn't ask."""
        if not event.choices:
            usage = self.usage(event.usage) if self._ask_usage and event.usage is not None else None
            return b"" if usage is None else b'%b[],"usage":%b}\n\n' % (self._head, _usage(usage))
        choice = event.choices[0]
        content = b'"delta":{"content":%b}' if self._chat else b'"text":%b'
        stop_reason = b',"stop_reason":%b' % (bytes(choice.stop_reason) or b"null") if choice.finish_reason or not self._chat else b""
        running = b""
        if self._ask_running:
            prompt_tokens = self._emitted.prompt_ids.count(b",") + 1
            running = b',"usage":%b' % _usage(Usage(prompt_tokens, self._emitted.tokens))
        return b'%b[{"index":0,%b,"logprobs":null,"finish_reason":%b%b,"token_ids":%b}]%b}\n\n' % (
            self._head,
            content % _encode(choice.text or ""),
            _encode(choice.finish_reason),
            stop_reason if self._chat else stop_reason + b',"prompt_token_ids":null',
            _encode(choice.token_ids) if self._ask_ids else b"null",
            running,
        )


def asks_usage(ask: Ask) -> bool:
    """Its client wants the chunk that has only usage."""
    options = ask.stream_options
    return options is not None and bool(options.include_usage)


def usage_event(chat: bool, opening: Opening, usage: Usage) -> bytes:
    """That chunk, for a client whose engine did not send it."""
    return b'%b[],"usage":%b}\n\n' % (_head(chat, opening), _usage(usage))


def _head(chat: bool, opening: Opening) -> bytes:
    return b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":' % (
        _encode(opening.id),
        b"chat.completion.chunk" if chat else b"text_completion",
        opening.created,
        _encode(opening.model),
    )


def _usage(usage: Usage) -> bytes:
    total = usage.prompt_tokens + usage.output_tokens
    details = b',"prompt_tokens_details":{"cached_tokens":%d}' % usage.cached_tokens if usage.cached_tokens else b""
    return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b}' % (
        usage.prompt_tokens,
        total,
        usage.output_tokens,
        details,
    )
