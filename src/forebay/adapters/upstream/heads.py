"""Response heads that come again: an engine repeats its head byte for byte but for the length and, each second, the date.

So what the parser made of a head is kept per engine under the head's own bytes, without the digits of its length. Only
heads that say plainly where the body ends are kept, and only those after which the connection goes on.
"""

from typing import Final

from forebay.ports.upstream import ResponseHead

PROTOCOL: Final = b"HTTP/"
HEAD_BYTES_MAX = 64 * 1024
"""An engine whose response head is longer is answering something else than HTTP."""
KNOWN_MAX = 64
"""Heads remembered of one engine; all are forgotten at once then, since most are of seconds that have passed."""
KNOWN_BYTES_MAX = 4096
LENGTH_DIGITS_MAX = 12
LENGTHS_MAX: Final = 256
"""Remembered of the head with a length that came last: an engine's answers are often as long as some before them."""
_LENGTH = b"\r\ncontent-length: "


class KnownHeads:
    """What the heads of one engine mean."""

    __slots__ = ("_known", "_last", "_lengths", "after", "before")

    def __init__(self) -> None:
        self._known: dict[bytes, ResponseHead] = {}
        self.before, self.after = b"", b"0"
        """What stands around the length in the one with a length that came last; at first what stands nowhere (`native.pure.framed`)."""
        self._last = ResponseHead(0, (), False, None)
        self._lengths: dict[int, ResponseHead] = {}

    def last(self, length: int) -> ResponseHead:
        """The one between whose ``before`` and ``after`` so many bytes were said to follow."""
        head = self._lengths.get(length)
        if head is None:
            if len(self._lengths) >= LENGTHS_MAX:
                self._lengths.clear()
            head = self._lengths[length] = _with_length(self._last, length, b"%d" % length)
        return head

    def find(self, raw: bytes) -> ResponseHead | None:
        """The meaning of ``raw`` (to the end of the blank line), if it has been here before with any length."""
        at = raw.find(_LENGTH) + len(_LENGTH)
        if at < len(_LENGTH):
            return self._known.get(raw)
        end = raw.find(b"\r", at)
        head = self._known.get(raw[:at] + raw[end:])
        digits = raw[at:end]
        if head is None or not digits.isdigit() or len(digits) > LENGTH_DIGITS_MAX:
            return None
        self._last, self.before, self.after = head, raw[:at], raw[end:]
        self._lengths.clear()
        length = int(digits)
        return head if length == head.content_length else _with_length(head, length, digits)

    def remember(self, raw: bytes, head: ResponseHead) -> ResponseHead:
        """Keep what the parser said of ``raw``; returns ``head``, marked as known if it is now."""
        if head.chunked == (head.content_length is not None) or head.status in (204, 304) or len(raw) > KNOWN_BYTES_MAX:
            return head
        if raw.count(b"\n") != raw.count(b"\r\n"):
            return head  # its end may not be where it is searched for
        at = raw.find(_LENGTH) + len(_LENGTH)
        if (at >= len(_LENGTH)) == head.chunked:
            return head  # its length is written in another way
        key = raw if head.chunked else raw[:at] + raw[raw.find(b"\r", at) :]
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        head = self._known[key] = ResponseHead(head.status, head.headers, head.chunked, head.content_length, key)
        return head


def _with_length(head: ResponseHead, length: int, digits: bytes) -> ResponseHead:
    headers = tuple([(name, digits) if name == b"content-length" else (name, value) for name, value in head.headers])
    return ResponseHead(head.status, headers, False, length, head.alike)


def no_head(begun: bytes) -> str:
    """Why what has ``begun`` so can't become the head of a response; empty: it can."""
    if len(begun) > HEAD_BYTES_MAX:
        return f"a response head of more than {HEAD_BYTES_MAX} bytes"
    line = begun.lstrip(b"\r\n")[: len(PROTOCOL)]
    return "" if PROTOCOL.startswith(line) else f"not HTTP: it begins with {begun[:16]!r}"
