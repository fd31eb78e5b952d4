"""What a client has of a streamed answer, as token ids: what it is continued from, and counted by.

Text may lag behind tokens: half a character is held back by the engine, and so is what may become a stop string. An
answer is continued only from a place where the text that is out is exactly the text of the tokens kept; tokens after
it that have shown nothing are forgotten, and generated anew.
"""

from collections import deque

import msgspec

from forebay.domain.shape import Usage
from forebay.gateway.events import UNREADABLE, Event, data_of
from forebay.gateway.several import Several

PROMPT_IDS_BYTES_MAX = 256 * 1024
"""Of a longer prompt (as JSON) the ids are not kept: an answer to it is not continued."""
STOPS_MAX = 64
STOP_CHARS_MAX = 1024
"""Of one. With more, or longer ones, an answer is not continued: whether it ends inside one is asked of each beginning of each."""
REPLACED = "\ufffd"
"""What half a character is decoded to."""


class Opening(msgspec.Struct, frozen=True):
    """What all chunks of one answer share."""

    id: str = ""
    created: int = 0
    model: str = ""


_decode_opening = msgspec.json.Decoder(Opening).decode


def opening_of(event: bytes) -> Opening:
    """What ``event`` shares with all chunks of its answer."""
    try:
        return _decode_opening(data_of(event))
    except UNREADABLE:
        return Opening()


class Stops:
    """Stop strings, and where the tokens' text ends while they make the engine hold text back.

    vLLM holds back ``longest - 1`` characters unless stop strings are part of the output: the text of all tokens is as
    much longer than what is out. A place is exact where what is out has come up to the end of an earlier token's text.
    """

    __slots__ = ("_ends", "_out_chars", "_strings", "_tail", "held_chars", "unfollowed")

    def __init__(self, strings: list[str], in_output: bool) -> None:
        given = [string for string in strings if string]
        longest = max(map(len, given), default=1)
        self.unfollowed = ""
        """Why it can't be told whether what is out ends inside one."""
        if len(given) > STOPS_MAX or longest > STOP_CHARS_MAX:
            self.unfollowed = f"it has more than {STOPS_MAX} stop strings, or one of more than {STOP_CHARS_MAX} characters"
        self._strings = [] if self.unfollowed else given
        self.held_chars = 0 if in_output else longest - 1
        self._tail = ""
        self._out_chars = 0
        self._ends: deque[tuple[int, int]] = deque()

    def out(self, text: str, tokens: int) -> None:
        """``text`` went out with an event after which there are ``tokens``."""
        if not text:
            return
        self._tail = (self._tail + text)[-STOP_CHARS_MAX:]
        self._out_chars += len(text)
        if self.held_chars:
            self._ends.append((self._out_chars + self.held_chars, tokens))
            while self._ends[0][0] < self._out_chars:
                self._ends.popleft()

    def restart(self, tokens: int) -> None:
        """What is out is exactly the text of so many tokens, and another engine goes on from there."""
        self._ends.clear()
        self._ends.append((self._out_chars, tokens))

    def held_back(self, text: str) -> str | None:
        """What of ``text``, that of all tokens, is not out yet; None where it isn't the text of which the beginning is out."""
        end = len(text) - self.held_chars
        return text[end:] if self._out_chars == end and text[:end].endswith(self._tail) else None

    def tokens_out(self) -> int | None:
        """How many tokens' text is out exactly; None where the end of what is out is inside one."""
        if self._ends and self._ends[0][0] == self._out_chars:
            return self._ends[0][1]
        return None

    @property
    def straddled(self) -> bool:
        """What is out ends with the beginning of a stop string."""
        return any(self._tail.endswith(string[:size]) for string in self._strings for size in range(1, len(string)))


class Emitted:
    """The log of one answer, over all the replicas that have written it."""

    __slots__ = (
        "_counted",
        "_unsure",
        "exact",
        "held",
        "ids",
        "missing",
        "opening",
        "pending",
        "prompt_ids",
        "prompt_tokens",
        "reasons",
        "several",
        "stops",
    )

    def __init__(self, stops: Stops | None = None, several: Several | None = None) -> None:
        self.ids = bytearray()
        """Of tokens whose text is out, in decimal, a comma after each."""
        self.pending = bytearray()
        """Of tokens after those, of which no text has come yet, or only that of reasoning."""
        self.exact = False
        """The text that is out is that of ``ids``: the last event with text had one token."""
        self.prompt_ids = b""
        """As JSON without its brackets."""
        self.opening: Opening | None = None
        self.stops = None if stops is not None and stops.unfollowed else stops
        self.several = several
        """Where there is more than one sequence."""
        self.missing = "" if stops is None else stops.unfollowed
        """Why it can't be continued, once that is known."""
        self.reasons = ""
        """The same for as long as it holds: reasoning under way."""
        self.held = 0
        """Bytes of this that are counted against the gateway's bound."""
        self._counted = 0
        self._unsure = b""  # ids of the last event, where it had several
        self.prompt_tokens = 0
        """As counted from the ids."""

    def note(self, event: Event) -> None:
        """An engine's event is on its way to the client."""
        if self.several is not None:
            self.several.note(event)
        prompt_ids = bytes(event.prompt_token_ids)
        for choice in event.choices:
            prompt_ids = bytes(choice.prompt_token_ids) or prompt_ids
            if choice.calls_tools:
                self.forget("it calls tools")
            text = choice.content
            if choice.reasons:
                self.reasons = "it is reasoning"
            elif text:
                self.reasons = ""
            if choice.token_ids is not None:
                self.add(choice.token_ids, text)
            elif text:
                self.exact = False
                self._unsure = b""
        if prompt_ids.startswith(b"["):
            self.prompt(prompt_ids)

    def prompt(self, raw: bytes) -> None:
        """The engine told the prompt's ids, as a JSON list."""
        if not self.prompt_tokens:
            self.prompt_tokens = raw.count(b",") + 1
            if len(raw) > PROMPT_IDS_BYTES_MAX:
                self.forget("its prompt is too long")
            elif not self.missing:
                self.prompt_ids = bytes(raw[1:-1])

    def add(self, ids: list[int], text: str) -> None:
        """An event's tokens and text."""
        stops = self.stops
        if stops is not None and stops.held_chars:
            self.ids += _joined(ids)
            self.exact = True
        elif text:
            self.ids += self.pending
            self.pending.clear()
            self.ids += _joined(ids)
            self.exact = len(ids) == 1
            self._unsure = b"" if self.exact else _joined(ids)
        else:
            self.pending += _joined(ids)
        if stops is not None:
            stops.out(text, self.tokens)

    def counted(self, estimated_prompt_tokens: int) -> Usage | None:
        """What it took, by the ids; None where none were told."""
        if self.several is not None:
            return self.several.usage(self.tokens, estimated_prompt_tokens)
        return Usage(self.prompt_tokens, self.tokens) if self.prompt_tokens else None

    @property
    def tokens(self) -> int:
        """How many there are."""
        return self._counted + self.ids.count(b",") + self.pending.count(b",")

    def took(self, tokens: bytes, pending_bytes: int) -> None:
        """Somebody else noted ``tokens`` (as in ``ids``); so many bytes at the end of all that was noted are now ``pending``."""
        self.pending += tokens
        out = max(0, len(self.pending) - pending_bytes)
        self.ids += self.pending[:out]
        del self.pending[:out]

    @property
    def doubted(self) -> bytes:
        """Ids of the last event, where it had several."""
        return self._unsure

    def go_on_from(self, exact: bool, reasons: str, doubted: bytes) -> None:
        """What somebody else last knew of it."""
        self.exact, self.reasons, self._unsure = exact, reasons, doubted

    def unsure(self) -> bytes:
        """Token ids (each with a comma) whose text would tell whether the answer can be continued; nothing where none would."""
        if self.missing or self.reasons:
            return b""
        stops = self.stops
        if stops is not None and stops.held_chars:
            return bytes(self.ids) if stops.tokens_out() is None else b""
        return b"" if self.exact else self._unsure

    def told(self, text: str) -> str:
        """``text`` is that of the tokens which `unsure` named. What of it should go out before the answer is continued."""
        if text.endswith(REPLACED):
            return ""  # half a character
        stops = self.stops
        if stops is None or not stops.held_chars:
            self.exact = True
            return ""
        rest = stops.held_back(text)
        if rest:
            stops.out(rest, self.tokens)
            stops.restart(self.tokens)
        return rest or ""

    def place(self) -> int | str:
        """Of how many tokens the text is out, exactly; or why the answer can't be continued from here."""
        why = self.missing or self.reasons
        if why:
            return why
        if not self.prompt_ids or not self.ids:
            return "its engine tells no token ids"
        stops = self.stops
        if stops is not None and stops.straddled:
            return "it ends with the beginning of a stop string"
        if not self.exact:
            return "part of its text may have been held back"
        if stops is not None and stops.held_chars:
            kept = stops.tokens_out()
            return "text was held back for a stop string" if kept is None else kept
        return self.ids.count(b",")

    def keep(self) -> int | str:
        """Forget the tokens whose text is not out. How many are left; or why the answer can't be continued from here."""
        kept = self.place()
        if isinstance(kept, str):
            return kept
        stops = self.stops
        if stops is not None and stops.held_chars:
            self.ids[:] = b"%b," % b",".join(self.ids.split(b",")[:kept])
            stops.restart(kept)
        self.pending.clear()
        return kept

    def forget(self, why: str) -> None:
        """Keep no ids any more, only their number."""
        self._counted = self.tokens
        self.ids.clear()
        self.pending.clear()
        self.prompt_ids = b""
        self.missing = why

    @property
    def size_bytes(self) -> int:
        """About what this takes of memory."""
        return len(self.ids) + len(self.pending) + len(self.prompt_ids)


def _joined(ids: list[int]) -> bytes:
    return b"%b," % b",".join([b"%d" % each for each in ids]) if ids else b""
