"""The listening side of the roster channel: rosters down to every gateway, acknowledgements, snapshots and usage up.

Newline-delimited JSON over TCP, one connection a gateway, dialled by the gateway. A gateway that can't keep up with
rosters is cut: it dials again and gets the newest one, which is all that matters.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable

import msgspec

from forebay.domain.roster import Ack, Bye, FinishedRequests, FromGateway, Hello, Roster, Snapshot, ToGateway
from forebay.domain.usage import UsageBatch

LINE_BYTES_MAX = 4 * 2**20
UNSENT_BYTES_MAX = 4 * 2**20
CONNECTIONS_MAX = 512
NAME_CHARS_MAX = 128
"""A gateway's name is in events, metrics and every status."""

Listener = Callable[[FromGateway], ToGateway | None]
"""Hears a message; what it returns goes back to the gateway."""


class Channel:
    """Owns the connections; what comes up is handed to ``on_message``, a lost gateway's name to ``on_lost``."""

    def __init__(self, on_message: Listener, on_lost: Callable[[str], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._roster: Roster | None = None
        self._decoder = msgspec.json.Decoder(FromGateway)
        self._writers: dict[asyncio.StreamWriter, str] = {}
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=LINE_BYTES_MAX)
        return int(self._server.sockets[0].getsockname()[1])

    async def start_on(self, listening: socket.socket) -> None:
        """Listen on a socket that is already open, handed down by a supervisor."""
        self._server = await asyncio.start_server(self._serve, sock=listening, limit=LINE_BYTES_MAX)

    def publish(self, roster: Roster) -> None:
        """Send ``roster`` to every gateway, and to those that dial later."""
        self._roster = roster
        line = _line(roster)
        for writer in list(self._writers):
            self._send(writer, line)

    async def close(self) -> None:
        """Stop listening and hang up."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.close()

    def _send(self, writer: asyncio.StreamWriter, line: bytes) -> None:
        transport = writer.transport
        if transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            transport.abort()
        elif not transport.is_closing():
            writer.write(line)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._writers) >= CONNECTIONS_MAX:
            writer.close()
            return
        self._writers[writer] = ""
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError, msgspec.MsgspecError):
                while line := await reader.readline():
                    self._take(writer, self._decoder.decode(line))
        finally:
            name = self._writers.pop(writer)
            writer.close()
            if name and name not in self._writers.values():
                self._on_lost(name)

    def _take(self, writer: asyncio.StreamWriter, message: FromGateway) -> None:
        match message:
            case Hello(gateway=name) if not 0 < len(name) <= NAME_CHARS_MAX:
                writer.close()
            case Hello(gateway=name):
                self._writers[writer] = name
                self._on_message(message)
                if self._roster is not None:
                    self._send(writer, _line(self._roster))
            case Bye():
                self._on_message(message)
                self._writers[writer] = ""
            case Ack() | Snapshot() | UsageBatch() | FinishedRequests():
                answer = self._on_message(message)
                if answer is not None:
                    self._send(writer, _line(answer))


def _line(value: ToGateway) -> bytes:
    return msgspec.json.encode(value) + b"\n"
