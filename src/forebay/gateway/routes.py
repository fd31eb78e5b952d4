"""Every path that is passed on to engines, and in which way. What is not named here never reaches one.

Engines have routes that no client may reach, such as vLLM's ``/pause``, ``/sleep`` and ``/v1/load_lora_adapter``; so this
is a list of what is allowed, and a path is compared as it was sent, byte for byte.
"""

import re
from collections.abc import Callable
from typing import Final

from forebay.gateway.answers import ErrorReply
from forebay.gateway.ask import Ask
from forebay.gateway.body import decode, decode_conversations, decode_loose, decode_prompts, decode_responses


class Route:
    """One path that is asked with POST."""

    __slots__ = ("binary", "decode", "generates", "light", "lists", "multipart", "plain", "pooled", "stateful", "typed")

    def __init__(
        self,
        decode: Callable[[bytes], Ask | ErrorReply],
        *,
        plain: bool = False,
        generates: bool = False,
        typed: bool = False,
        stateful: bool = False,
        multipart: bool = False,
        binary: bool = False,
        light: bool = False,
        pooled: bool = False,
        lists: bytes = b"",
    ) -> None:
        self.decode = decode
        self.plain = plain
        """None of what follows but ``generates``: the way that nearly all requests take."""
        self.generates = generates
        """Tokens are made: the answer's length is estimated, and bounded by the client."""
        self.typed = typed
        """Its streams' events name their type, and its usage is in input and output tokens."""
        self.stateful = stateful
        """Engines keep the answer, and may be asked for it again."""
        self.multipart = multipart
        """The body is a form; its size says nothing of tokens."""
        self.binary = binary
        """The answer is passed on from its first byte, whatever it is."""
        self.light = light
        """No work for a GPU: any replica answers at once, without a permit."""
        self.pooled = pooled
        """Inputs are read, perhaps a whole list of them, and none is answered."""
        self.lists = lists
        """The field in which there may be several prompts."""


_CHAT = Route(decode, plain=True, generates=True)
_POOLED = Route(decode_loose, plain=True, pooled=True)
_FORM = Route(decode_loose, generates=True, typed=True, multipart=True)
_LIGHT = Route(decode_loose, light=True)

POSTS: Final[dict[bytes, Route]] = {
    b"/v1/chat/completions": _CHAT,
    b"/v1/completions": Route(decode_prompts, plain=True, generates=True, lists=b"prompt"),
    b"/v1/embeddings": Route(decode, plain=True, pooled=True),
    b"/v1/responses": Route(decode_responses, generates=True, typed=True, stateful=True),
    b"/v1/messages": Route(decode, generates=True, typed=True),
    b"/v1/messages/count_tokens": Route(decode, light=True),
    b"/v1/audio/transcriptions": _FORM,
    b"/v1/audio/translations": _FORM,
    b"/v1/audio/speech": Route(decode, typed=True, binary=True),
    b"/v1/images/generations": Route(decode_loose, typed=True),
    b"/v1/images/edits": Route(decode_loose, typed=True, multipart=True),
    b"/v1/images/variations": Route(decode_loose, multipart=True),
    b"/v1/moderations": _POOLED,
    b"/v1/rerank": _POOLED,
    b"/v2/rerank": _POOLED,
    b"/rerank": _POOLED,
    b"/v1/score": _POOLED,
    b"/score": _POOLED,
    b"/classify": _POOLED,
    b"/pooling": _POOLED,
    b"/v1/chat/completions/batch": Route(decode_conversations, plain=True, generates=True, lists=b"messages"),
    b"/tokenize": _LIGHT,
    b"/detokenize": _LIGHT,
}

_KEPT = re.compile(rb"/v1/responses/([A-Za-z0-9_-]{1,128})(/cancel|/input_items)?")
_KEPT_METHODS = {None: (b"GET", b"DELETE"), b"/cancel": (b"POST",), b"/input_items": (b"GET",)}


def unknown_url(path: bytes) -> ErrorReply:
    """404, with the path that was meant where a base URL lacks its ``/v1`` (OpenAI's clients need it) or has one (Anthropic's add it)."""
    message = f"Unknown request URL: {path[:200].decode('utf-8', 'replace')}."
    meant = next((other for other in (b"/v1" + path, path.removeprefix(b"/v1")) if other in POSTS and other != path), None)
    if meant is not None:
        message += f" Did you mean {meant.decode()}? Look at the client's base URL."
    return ErrorReply(404, "invalid_request_error", "unknown_url", message)


def kept_response(path: bytes) -> tuple[str, tuple[bytes, ...]] | None:
    """The id in a path that asks for an answer kept by an engine, and the methods it may be asked with."""
    match = _KEPT.fullmatch(path)
    return None if match is None else (match[1].decode(), _KEPT_METHODS[match[2]])
