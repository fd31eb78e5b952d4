"""Requests of the right length at the price of one copy: prompts are slices of one big text made beforehand.

The text is common English words of three letters, each with its space one token in the usual vocabularies and four
bytes long, so that "four bytes per token" holds for real tokenisers as well as for emulated ones. Slices begin at
random words: two long prompts share no prefix by which an engine could serve the second from its cache.
"""

import random

import msgspec

TEXT_BYTES = 2**20
"""Of the text at first; it doubles where a prompt needs more than half of it."""
_WORDS = (
    "the and for are but not you all any can her was one our out day get has him his how man new now old see two way "
    "who boy did its let put say she too use act add age ago air arm art ask bad bag bed big bit box buy car cut dog "
    "dry eat end eye far few fit fly fun god got guy hit hot job key kid law lay led leg lie lot low map may men mix"
)
_WORD_BYTES = 4


class Prompts:
    """Texts of a wanted number of tokens."""

    def __init__(self, chance: random.Random, bytes_per_token: float = 4.0) -> None:
        words = chance.choices(_WORDS.split(), k=TEXT_BYTES // _WORD_BYTES)
        self._text = memoryview((" ".join(words) + " ").encode())
        self._chance = chance
        self.bytes_per_token = bytes_per_token

    def slice(self, tokens: int) -> memoryview:
        """A text of ``tokens`` tokens, ASCII without anything JSON would escape."""
        size = max(1, round(tokens * self.bytes_per_token))
        while size > len(self._text) // 2:
            self._text = memoryview(bytes(self._text) * 2)
        start = int(self._chance.random() * ((len(self._text) - size) // _WORD_BYTES)) * _WORD_BYTES
        return self._text[start : start + size]


class RequestMaker:
    """The unchanging parts of a request, encoded once; a request is then one ``join``."""

    def __init__(self, prompts: Prompts, *, host: str, prefix: str, model: str, chat: bool, ignore_eos: bool, service_tier: bool) -> None:
        self._prompts = prompts
        self._chat = chat
        self._fixed: dict[str, object] = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
        if ignore_eos:
            self._fixed["ignore_eos"] = True
        self._service_tier = service_tier
        self._start = f"POST {prefix}/{'chat/completions' if chat else 'completions'} HTTP/1.1\r\nHost: {host}\r\n"
        self._parts: dict[tuple[str, str], tuple[bytes, bytes]] = {}

    def _of(self, tier: str, key: str) -> tuple[bytes, bytes]:
        parts = self._parts.get((tier, key))
        if parts is None:
            fixed = self._fixed | ({"service_tier": tier} if self._service_tier and tier else {})
            authorization = f"Authorization: Bearer {key}\r\n" if key else ""
            head = self._start + "Content-Type: application/json\r\nAccept: text/event-stream\r\n" + authorization + "Content-Length: "
            parts = self._parts[tier, key] = head.encode("latin-1"), msgspec.json.encode(fixed)[:-1]
        return parts

    def request(self, prompt_tokens: int, output_tokens: int, tier: str, key: str) -> bytes:
        """Head and body, ready to be written."""
        head, fixed = self._of(tier, key)
        opening = b',"max_tokens":%d,"messages":[{"role":"user","content":"' if self._chat else b',"max_tokens":%d,"prompt":"'
        opening %= output_tokens
        text = self._prompts.slice(prompt_tokens)
        closing = b'"}]}' if self._chat else b'"}'
        size = len(fixed) + len(opening) + len(text) + len(closing)
        return b"".join((head, b"%d\r\n\r\n" % size, fixed, opening, text, closing))
