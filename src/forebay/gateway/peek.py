"""A large body's beginning, looked into as it comes: the fields that must be known before the rest is passed on unread.

A body of JSON is taken apart at its top level only, and what is nested is skipped; of a form the small fields are read.
What is looked for is ``model``: once it is there, the rest may flow. A client that sends it last (as OpenAI's SDKs do
with large chats, whose messages come first) is held until then, within the budget of all bodies. So is one that sends a
list of prompts, until all of them have been counted: each takes a slot.
"""

import re

import msgspec

from forebay.gateway.ask import LooseAsk, ResponsesAsk
from forebay.gateway.heads import content_type
from forebay.gateway.request import Request
from forebay.native import nested, string_end

FIELD_BYTES_MAX = 64 * 1024
"""Of one field of a form, or one key, that is read."""
FIELDS_MAX = 256
"""Parts of a form, or fields at the top level of JSON, that are looked at. With a step for each of megabytes of them it takes seconds."""
PROMPT = b"prompt"
EMBEDS = b"prompt_embeds"
"""vLLM takes prompts here beside those in ``prompt``, which may be empty then."""
_WANTED = frozenset((*LooseAsk.__struct_fields__, *ResponsesAsk.__struct_fields__))
_KEY = re.compile(rb'[ \t\r\n]*"((?:[^"\\]|\\.){0,256})"[ \t\r\n]*:[ \t\r\n]*(?=[^ \t\r\n])')
_SCALAR = re.compile(rb"[^,}\] \t\r\n]+(?=[,}\] \t\r\n])")
_AFTER = re.compile(rb"[ \t\r\n]*([,}])")
_OPENING = re.compile(rb"[ \t\r\n]*\{")
_QUOTE = b'"'[0]
_BOUNDARY = re.compile(
    rb'multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"\r\n]{1,70})"|([!#-+\--9<-Z^-z|~]{1,70})(?=[\s;]|$))', re.IGNORECASE
)
_DISPOSITION = re.compile(rb"^content-disposition:[ \t]*form-data[ \t]*(;[^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_PARAMETER = re.compile(rb'[ \t]*;[ \t]*+([^\s;="]++)[ \t]*+=[ \t]*+(?:"((?:[^"\\]++|\\.)*+)"|([^\s;"]*+))')


class JsonPeek:
    """The beginning of a body of JSON. ``lists``: the field in which there may be several prompts, where there is one."""

    __slots__ = (
        "_at",
        "_before",
        "_deep",
        "_fields",
        "_key",
        "_lists",
        "_lost",
        "_named",
        "_phase",
        "_quoted",
        "_settled",
        "_start",
        "_values",
        "found",
        "held",
        "model_span",
        "prompts",
        "too_many",
    )

    def __init__(self, lists: bytes = b"", *, whole: bool = False) -> None:
        """``whole``: nothing is looked for, and it flows when all of it is here: any of its fields may say where it may go."""
        self.held = bytearray()
        self._fields, self.too_many = 0, False
        self.prompts = 0 if lists else 1
        """Seen so far."""
        self._lists = lists
        self._named, self._settled = False, not lists
        self._before = 0  # prompts that stand before the present value
        self.found = False
        self.model_span = (0, 0)
        """Where the value of ``model`` stands in ``held``."""
        self._values: dict[bytes, bytes] = {}
        self._at = 0
        self._phase = 0  # 0: {, 1: a key, 2: a value begins, 3: in a string, 4: in something nested, 5: after a value
        self._key = b""
        self._start = 0
        self._deep, self._quoted = 0, False
        self._lost = whole  # or it is not JSON, or it is over: the engine will say which

    def feed(self, part: bytes) -> None:
        """Look on."""
        self.held += part
        while not self._lost and self._step():
            pass

    def fields(self) -> bytes:
        """What is known of it, as an object of its own."""
        return b"{%b}" % b",".join([b'"%b":%b' % field for field in self._values.items()])

    def with_model(self, name: str) -> bytes:
        """What is held, with another model."""
        start, end = self.model_span
        return bytes(self.held[:start]) + msgspec.json.encode(name) + bytes(self.held[end:])

    def _step(self) -> bool:
        """One step on; False where more bytes are needed for it."""
        phase = self._phase
        if phase == 3:
            return self._string()
        if phase == 4:
            return self._nested()
        if phase == 2:
            return self._value()
        held, at = self.held, self._at
        match = (_OPENING, _KEY, _OPENING, _OPENING, _OPENING, _AFTER)[phase].match(held, at)
        if match is None:
            self._lost = len(held) - at > FIELD_BYTES_MAX
            return False
        self._at = match.end()
        if phase == 0:
            self._phase = 1
        elif phase == 1:
            self._key, self._phase = match[1], 2
        elif match[1] == b",":
            self._fields += 1
            self._lost = self.too_many = self._fields >= FIELDS_MAX
            self._phase = 1
        else:
            self._lost = True  # the end
        return True

    def _value(self) -> bool:
        held, at = self.held, self._at
        self._start, self._before = at, self.prompts
        first = bytes(held[at : at + 1])
        if first == b'"':
            self._at, self._phase = at + 1, 3
            return True
        if first in (b"{", b"["):
            self._at, self._phase, self._deep = at + 1, 4, 1
            return True
        match = _SCALAR.match(held, at)
        if match is None:
            self._lost = len(held) - at > FIELD_BYTES_MAX
            return False
        self._over(match.end())
        return True

    def _string(self) -> bool:
        """Go on to the quote that ends it."""
        held, at = self.held, self._at
        end = string_end(held, at)
        if not self._settled and self._key == self._lists and len(held) > self._start + 1 and held[self._start + 1] != _QUOTE:
            self._settled = True  # one, and it is not empty
            self.prompts += 1
            self.found = self._named
        if held[end : end + 1] != b'"':
            self._at = end
            return False
        self._over(end + 1)
        return True

    @property
    def _counts(self) -> bool:
        """What is nested here is a list of prompts, or may be one."""
        return not self._settled and (self._key == self._lists or (self._key == EMBEDS and self._lists == PROMPT))

    def _nested(self) -> bool:
        self._at, self._deep, self._quoted, strings, lists = nested(self.held, self._at, self._deep, self._quoted)
        if self._counts:
            self.prompts += lists + (strings if self._lists == PROMPT else 0)
        if self._deep:
            return False
        self._over(self._at)
        return True

    def _over(self, end: int) -> None:
        """A value of the top level ends here."""
        key = self._key
        known = key.decode("utf-8", "replace") in _WANTED and not (self._named and key == b"model")
        if self._counts:
            empty = end - self._start <= 4 and bytes(self.held[self._start : end]) in (b'""', b"null")
            if self.prompts == self._before and not (empty and self.held[end - 1] != _QUOTE):
                self.prompts += 1  # a text, or the ids of one
            self._settled = key == self._lists and not empty
        if known and end - self._start <= FIELD_BYTES_MAX:
            self._values[key] = bytes(self.held[self._start : end])
            if key == b"model":
                self.model_span = (self._start, end)
                self._named = True
        self.found = self._named and self._settled
        self._at, self._phase = end, 5


class FormPeek:
    """The beginning of a ``multipart/form-data`` body."""

    __slots__ = ("_at", "_edge", "_lost", "_parts", "_skipped", "_values", "found", "held", "model_span", "prompts", "too_many")

    def __init__(self, boundary: bytes) -> None:
        self.held = bytearray(b"")
        self.found = False
        self.prompts = 1
        self.model_span = (0, 0)
        """Where the value of ``model`` stands in ``held``."""
        self._edge = b"--" + boundary
        self._values: dict[str, str] = {}
        self._at = -1  # of the part being looked at, behind its edge; -1: before the first
        self._parts, self.too_many = 0, False
        self._skipped = 0  # up to here the part being skipped has no edge; 0: none is being skipped
        self._lost = False

    def feed(self, part: bytes) -> None:
        """Look on."""
        self.held += part
        while not self._lost and self._step():
            pass

    def fields(self) -> bytes:
        """What is known of it, as an object of JSON."""
        return msgspec.json.encode(self._values)

    def with_model(self, name: str) -> bytes:
        """What is held, with another model; where the form names none, as it is."""
        start, end = self.model_span
        return bytes(self.held[:start]) + name.encode() + bytes(self.held[end:]) if end else bytes(self.held)

    def _step(self) -> bool:
        held, edge = self.held, self._edge
        if self._skipped:
            return self._skip()
        if self._at < 0:
            at = 0 if held.startswith(edge) else held.find(b"\r\n" + edge) + 2
            if at == 1:
                self._lost = len(held) > FIELD_BYTES_MAX
                return False
            self._at = at + len(edge)
            return True
        if len(held) < self._at + 2 or held.startswith(b"--", self._at):  # what follows the last edge is no part
            self._lost = len(held) >= self._at + 2
            return False
        head_end = held.find(b"\r\n\r\n", self._at, self._at + FIELD_BYTES_MAX)
        if head_end < 0:
            self._lost = len(held) - self._at >= FIELD_BYTES_MAX
            return False
        head = bytes(held[self._at : head_end])
        start = head_end + 4
        name = field_name(head)
        if name is not None:
            end = held.find(b"\r\n" + edge, start, start + FIELD_BYTES_MAX)
            if end >= 0:
                self._note(name.decode("utf-8", "replace"), start, end)
            elif len(held) - start < FIELD_BYTES_MAX:
                return False
        self._skipped = start - 2
        return self._skip()

    def _skip(self) -> bool:
        """To the edge behind the present part; what has been searched isn't searched again."""
        edge = b"\r\n" + self._edge
        end = self.held.find(edge, self._skipped)
        if end < 0:
            self._skipped = max(self._skipped, len(self.held) - len(edge) + 1)
            return False
        self._at = end + len(edge)
        self._skipped = 0
        self._parts += 1
        self._lost = self.too_many = self._parts > FIELDS_MAX
        return True

    def _note(self, name: str, start: int, end: int) -> None:
        if name in _WANTED and name not in self._values:
            self._values[name] = self.held[start:end].decode("utf-8", "replace")
            if name == "model":
                self.model_span = (start, end)
                self.found = True


def field_name(head: bytes) -> bytes | None:
    """Of the part of a form that has ``head``; None where it is a file, or has none. In one pass: heads come from anybody."""
    line = _DISPOSITION.search(head)
    name, at = None, 0
    while line is not None and (parameter := _PARAMETER.match(line[1], at)) is not None:
        at = parameter.end()
        key = parameter[1].lower()
        if key in (b"filename", b"filename*"):
            return None
        if key == b"name" and name is None:
            name = parameter[2] if parameter[2] is not None else parameter[3]
    return name


def form_peek(request: Request) -> FormPeek | None:
    """The fields of a form that is here as a whole; None where it isn't one."""
    match = _BOUNDARY.match(content_type(request.facts).strip())
    if match is None:
        return None
    peek = FormPeek(match[1] or match[2])
    peek.feed(request.body)
    return peek


def peek_for(kind: bytes, multipart: bool, lists: bytes = b"", *, whole: bool = False) -> JsonPeek | FormPeek | None:
    """How to look into a body of this type; None where a form says no boundary. ``lists``, ``whole``: see `JsonPeek`."""
    if not multipart:
        return JsonPeek(lists, whole=whole)
    match = _BOUNDARY.match(kind.strip())
    return None if match is None else FormPeek(match[1] or match[2])
