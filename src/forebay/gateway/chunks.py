"""A body in chunks, decoded as it comes, to the byte where the next request begins.

llhttp decodes chunks too, but does not say where in a read a message ended; what comes after a message must not be parsed
before that message is judged. Strict: a size of one to eight hexadecimal digits, CRLF and nothing else ends a line, and
whoever frames otherwise is refused, since proxies that disagree about a frame are what request smuggling lives on.
"""

import re

SIZE_LINE_BYTES_MAX = 1024
"""Of a chunk's size with its extensions."""
TRAILERS_BYTES_MAX = 8 * 1024
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:[ \t]*;[\t -~\x80-\xff]*)?\r\n")
_TRAILER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[\t -~\x80-\xff]*\r\n")
_FRAMING = frozenset({b"content-length", b"transfer-encoding", b"host"})
_CRLF = b"\r\n"


class BadChunk(Exception):
    """The bytes are no chunks."""


class Chunks:
    """Feed it what follows the head. ``done``: the body and its trailers, which are dropped, are over."""

    __slots__ = ("_left", "_line", "_trailers_bytes", "done")

    def __init__(self) -> None:
        self.done = False
        self._left = -1  # of the present chunk with its CRLF; -1: a size line comes, -2: trailers do
        self._line = b""  # the part of a line that is here
        self._trailers_bytes = 0

    def feed(self, data: bytes, at: int, parts: list[bytes]) -> int:
        """Add the body in ``data`` from ``at`` on to ``parts``; returns where it stopped: the end, or behind the body. Raises BadChunk."""
        size = len(data)
        while at < size and not self.done:
            if self._left < 0:
                at = self._feed_line(data, at)
                continue
            end = at + self._left - 2
            if end > at:  # inside the chunk's data
                piece = data[at:end]
                parts.append(piece)
                self._left -= len(piece)
                at += len(piece)
            elif self._left == 2 and data.startswith(_CRLF, at):
                at += 2
                self._left = -1
            elif data[at] != _CRLF[2 - self._left]:
                raise BadChunk
            else:
                at += 1
                self._left -= 1
                if not self._left:
                    self._left = -1
        return at

    def _feed_line(self, data: bytes, at: int) -> int:
        end = data.find(b"\n", at) + 1
        line = self._line + data[at : end or len(data)]
        if len(line) > SIZE_LINE_BYTES_MAX + TRAILERS_BYTES_MAX:
            raise BadChunk
        if not end:
            self._line = line
            return len(data)
        self._line = b""
        if self._left == -2:
            self._trailer(line)
            return end
        match = _SIZE_LINE.fullmatch(line)
        if match is None or len(line) > SIZE_LINE_BYTES_MAX:
            raise BadChunk
        length = int(match[1], 16)
        self._left = length + 2 if length else -2
        return end

    def _trailer(self, line: bytes) -> None:
        if line == _CRLF:
            self.done = True
            return
        self._trailers_bytes += len(line)
        match = _TRAILER.fullmatch(line)
        if match is None or self._trailers_bytes > TRAILERS_BYTES_MAX or match[1].lower() in _FRAMING:
            raise BadChunk
