"""What `relay.c` does, in Python: how the usual read of a stream is taken. Either of them is the base of the classes that know the rest.

Beside that, two questions that are asked of every request: whether a read is a head that is known and a whole body (`framed`), and
whether a body may have images or audio (`names_media`).

Both are kept alike to the byte, the count and the exception; what differs is that C's fields are changed only by the methods here.
"""

import re
from collections.abc import Callable

from forebay.domain.chunks import FRAMES, FRAMES_END, HEADS

LENGTH_DIGITS_MAX = 10
BASE64, URL, AUDIO = b"base64", b'_url"', b"input_audio"
"""Where none of these is in a body, it has neither images nor audio."""
_DIGITS = re.compile(rb"(?:0|[1-9][0-9]{0,9})(?![0-9])")
_QUOTE, _NEWLINE = b'"\n'  # as numbers: asking whether bytes contain bytes costs ten times as much


class Takes:
    """A stream's counters, and the shape of its usual event: all its bytes but the text, and but the token where that is told."""

    __slots__ = (
        "_after",
        "_before",
        "_end",
        "_ids",
        "_mid",
        "_report",
        "_shown_bytes",
        "_text_end",
        "_text_start",
        "_varies_end",
        "_write",
        "events",
        "report_at",
        "wire_bytes",
    )

    _ids: bytearray
    _report: Callable[[], None]
    _write: Callable[[bytes], None]

    def __init__(self) -> None:
        """Of no shape: nothing is taken."""
        self.events = 0
        """Events with content, about one token each."""
        self.report_at = 0
        """With so many events ``report`` is called, which names the next number."""
        self.wire_bytes = 0
        self._before = self._after = self._end = b""
        self._mid = b'"'
        self._text_start = self._text_end = self._varies_end = self._shown_bytes = 0

    def _shape_plain(self, before: bytes, after: bytes) -> None:
        """For `take_plain`: what stands before an event's text, and after it to the end of the chunk."""
        self._before, self._after = before, after
        self._text_start, self._text_end = len(before), -len(after)
        self._varies_end = 0

    def _shape_told(self, before: bytes, mid: bytes, after: bytes, end: bytes, ids: bytearray) -> None:
        """For `take_told`. ``mid``: from the text to the token. ``after``: from there to the end of the chunk.

        ``end`` is what the client gets of both. Tokens are appended to ``ids``, a comma after each. Raises ValueError where
        ``mid`` doesn't begin with a quotation mark, or ``after`` or ``end`` can't end a chunk.
        """
        if not mid.startswith(b'"') or len(after) < 2 or len(end) < 2:
            raise ValueError("a text ends with its quotation mark, and a chunk with a line's end")
        self._before, self._mid, self._after, self._end, self._ids = before, mid, after, end, ids
        self._text_start, self._varies_end = len(before), -len(after)
        self._shown_bytes = len(before) + len(end) - 2
        self._text_end = 0

    def take_plain(self, wire: bytes) -> bool:
        """The hot path (a `ports.Taker`): a read that is the last plain event again, with another text."""
        size = len(wire)
        if size < FRAMES_END:
            lead, begin = FRAMES[size]
            if (
                wire.startswith(lead)
                and wire.startswith(self._before, begin)
                and wire.endswith(self._after)
                and (text := wire[begin + self._text_start : self._text_end])
                and _QUOTE not in text
                and _NEWLINE not in text
            ):
                events = self.events = self.events + 1
                self.wire_bytes += size
                write = self._write  # in a name first: calling a slot straight is slower
                write(wire)
                if events >= self.report_at:
                    self._report()
                return True
        return False

    def take_told(self, wire: bytes) -> bool:
        """The hot path (a `ports.Taker`): a read that is the last plain event again, with other content and another token."""
        size = len(wire)
        if size < FRAMES_END:
            head, _, tail = wire.partition(self._mid)
            lead, begin = FRAMES[size]
            before = self._before
            if (
                head.startswith(lead)
                and head.startswith(before, begin)
                and tail.endswith(self._after)
                and (varies := tail[: self._varies_end]).isdigit()
                and (text := head[begin + self._text_start :])
                and _QUOTE not in text
                and _NEWLINE not in text
            ):
                ids = self._ids
                ids += varies
                ids += b","
                events = self.events = self.events + 1
                self.wire_bytes += size
                write = self._write  # in a name first: calling a slot straight is slower
                write(b"".join((HEADS[len(text) + self._shown_bytes], before, text, self._end)))
                if events >= self.report_at:
                    self._report()
                return True
        return False


class Reads:
    """The front of a connection whose usual reads somebody takes."""

    __slots__ = ("_taker",)

    _taker: Callable[[bytes], bool] | None

    def __init__(self) -> None:
        self._taker = None

    def data_received(self, data: bytes) -> None:
        """A read: for the taker, else for `received`."""
        taker = self._taker  # in a name first: calling a slot straight is slower
        if taker is None or not taker(data):
            self.received(data)

    def received(self, data: bytes) -> None:
        """What nobody has taken; a connection does something with it."""
        del data


def framed(read: bytes, before: bytes, after: bytes) -> bytes | None:
    """The rest of ``read``, where it is ``before``, the number of bytes in that rest as it is written, and ``after``; else None.

    Of up to `LENGTH_DIGITS_MAX` digits. An ``after`` that begins with one is never found.
    """
    if not read.startswith(before):
        return None
    start = len(before)
    digits = _DIGITS.match(read, start, start + LENGTH_DIGITS_MAX + 1)
    if digits is None or not read.startswith(after, digits.end()):
        return None
    body = read[digits.end() + len(after) :]
    return body if len(body) == int(digits[0]) else None


def names_media(body: bytes) -> bool:
    """Whether ``body`` has a word without which it has neither images nor audio."""
    return BASE64 in body or URL in body or AUDIO in body
