"""What `relay.c` does, in Python: how the usual read of a stream is taken. Either of them is the base of the classes that know the rest.

Beside that, two questions that are asked of every request: whether a read is a head that is known and a whole body (`framed`), and
whether a body may have images or audio (`names_media`).

Both are kept alike to the byte, the count and the exception; what differs is that C's fields are changed only by the methods here.
"""

import os
import re
import select
import socket
from collections.abc import Callable
from contextlib import suppress

from forebay.domain.chunks import FRAMES, FRAMES_END, HEADS

LENGTH_DIGITS_MAX = 10
BASE64, URL, AUDIO = b"base64", b'_url"', b"input_audio"
"""Where none of these is in a body, it has neither images nor audio."""
_SIGN = re.compile(rb'["{}\[\]]')
_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
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

    def _straight(self, client: int, unsent: Callable[[], int], closing: Callable[[], bool]) -> None:
        """In C, what is to be written goes to the socket ``client`` itself while nothing is ``unsent`` there, and it isn't ``closing``."""

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


class Seat:
    """One engine's connection, whose reads a `Poller` does in the place of the event loop."""

    __slots__ = ("ended", "failed", "fd", "place", "received", "taker")

    taker: Callable[[bytes], bool] | None
    """Who is asked first."""

    def __init__(
        self, fd: int, received: Callable[[bytes], None], ended: Callable[[], None], failed: Callable[[BaseException], None]
    ) -> None:
        """``received`` gets what the taker doesn't. ``ended``: it may be over, which the event loop must find out.

        ``failed``: one of these, or the taker, has raised this."""
        self.fd, self.received, self.ended, self.failed = fd, received, ended, failed
        self.taker = None
        self.place = -1


class Poller:
    """Many streams' connections behind one descriptor: what is ready at the same time is read in one turn. Closed by `close`."""

    READY_MAX = 64
    READ_BYTES = 65536

    def __init__(self) -> None:
        """Raises OSError where there are no descriptors left."""
        self._epoll = select.epoll()
        self._seats: dict[int, Seat] = {}

    @property
    def seated(self) -> int:
        """How many there are."""
        return len(self._seats)

    def fileno(self) -> int:
        """What the event loop watches, to call `turn`. Raises ValueError after `close`."""
        return self._epoll.fileno()

    def add(self, seat: Seat) -> None:
        """Read for this seat from now on. Raises OSError where that can't be, ValueError where it sits somewhere."""
        if seat.place >= 0:
            raise ValueError("it sits somewhere already")
        self._epoll.register(seat.fd, select.EPOLLIN)
        self._seats[seat.fd], seat.place = seat, seat.fd

    def remove(self, seat: Seat) -> None:
        """Read for it no more; nothing where it doesn't sit here."""
        if self._seats.get(seat.place) is seat:
            del self._seats[seat.place]
            seat.place = -1
            with suppress(OSError):  # it was closed
                self._epoll.unregister(seat.fd)

    def turn(self) -> None:
        """One read for each seat that has something."""
        for fd, _ in self._epoll.poll(0, self.READY_MAX):
            seat = self._seats.get(fd)
            if seat is not None:
                try:
                    self._serve(seat)
                except Exception as error:
                    seat.failed(error)

    def close(self) -> None:
        """Read for nobody any more."""
        for seat in self._seats.values():
            seat.place = -1
        self._seats.clear()
        self._epoll.close()

    def _serve(self, seat: Seat) -> None:
        with socket.socket(fileno=os.dup(seat.fd)) as own:
            try:
                data = own.recv(self.READ_BYTES, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
        if not data:
            seat.ended()
        elif seat.taker is None or not seat.taker(data):
            seat.received(data)


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


def string_end(held: bytearray, at: int) -> int:
    """Where the quote stands that ends the string which ``at`` is in; else the end of ``held``, or of it but for half an escape."""
    quote = held.find(b'"', at)
    end = quote if quote >= 0 else len(held)
    if held.find(b"\\", at, end) < 0:
        return end
    match = _STRING.match(held, at)
    return match.end() if match is not None else at


def nested(held: bytearray, at: int, deep: int, quoted: bool) -> tuple[int, int, bool, int, int]:
    """Pass over JSON from ``at`` in ``held``, ``deep`` brackets in (and in a string: ``quoted``), to where the outermost one is closed.

    Returns where that is, how deep it is there (0: it is closed; else ``held`` has no more), whether in a string, and how many strings
    have ended and lists begun right in the outermost one. Any bracket closes any other: whether it is JSON is for others to say.
    """
    strings = lists = 0
    while deep > 0:
        if quoted:
            at = string_end(held, at)
            if held[at : at + 1] != b'"':
                break
            at, quoted = at + 1, False
            strings += deep == 1
            continue
        match = _SIGN.search(held, at)
        if match is None:
            at = len(held)
            break
        sign, at = match[0], match.end()
        if sign == b'"':
            quoted = True
        elif sign in (b"{", b"["):
            lists += deep == 1 and sign == b"["
            deep += 1
        else:
            deep -= 1
    return at, deep, quoted, strings, lists
