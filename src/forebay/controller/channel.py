"""The listening side of the roster channel: rosters down to every gateway, acknowledgements, snapshots and usage up.

Newline-delimited JSON over TCP, one connection a gateway, dialled by the gateway. A gateway that can't keep up with
rosters is cut: it dials again and gets the newest one, which is all that matters.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable

import msgspec

from forebay.domain.joining import Challenge, Proof, Refused, by_controller, by_gateway, proves
from forebay.domain.roster import Ack, Bye, FinishedRequests, FromGateway, Hello, Roster, Snapshot, ToGateway
from forebay.domain.usage import UsageBatch

LINE_BYTES_MAX = 4 * 2**20
UNSENT_BYTES_MAX = 4 * 2**20
CONNECTIONS_MAX = 512
NAME_CHARS_MAX = 128
"""A gateway's name is in events, metrics and every status."""

PROOF_REAL_S = 5.0
"""A gateway proves within this that it knows the secret."""
NONCE_CHARS_MAX = 128
UNPROVED = (
    "the controller asks for a secret, and this gateway proved none or another: set the variable that gateway.join_secret_env names to the "
    "controller's, in the gateway's environment"
)

Listener = Callable[[FromGateway], ToGateway | None]
"""Hears a message; what it returns goes back to the gateway."""


class Channel:
    """Owns the connections; what comes up is handed to ``on_message``, a lost gateway's name to ``on_lost``."""

    def __init__(
        self, on_message: Listener, on_lost: Callable[[str], None], secret: str = "", nonce: Callable[[], str] = lambda: ""
    ) -> None:
        """``secret``: what a gateway must prove to know; empty: nothing. ``nonce``: a string that nobody can foresee."""
        self._secret = secret
        self._nonce = nonce
        self._on_message = on_message
        self._on_lost = on_lost
        self._roster: Roster | None = None
        self._decoder = msgspec.json.Decoder(FromGateway)
        self._proof_decoder = msgspec.json.Decoder(Proof)
        self._writers: dict[asyncio.StreamWriter, str] = {}
        self._server: asyncio.Server | None = None
        self._dialled = 0

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
        if self._dialled >= CONNECTIONS_MAX:
            writer.close()
            return
        self._dialled += 1
        try:
            if not self._secret or await self._proved(reader, writer):
                await self._hear(reader, writer)
        finally:
            self._dialled -= 1
            writer.close()

    async def _proved(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether who dialled knows the secret; it gets the same proof in turn, or is told what to do."""
        challenge = self._nonce()
        with contextlib.suppress(OSError, TimeoutError, ValueError, msgspec.MsgspecError):
            self._send(writer, _line(Challenge(challenge)))
            async with asyncio.timeout(PROOF_REAL_S):
                said = self._proof_decoder.decode(await reader.readline())
            known = 0 < len(said.nonce) <= NONCE_CHARS_MAX and proves(said.proof, by_gateway(self._secret, challenge, said.nonce))
            if known:
                self._send(writer, _line(Proof(by_controller(self._secret, challenge, said.nonce))))
                return True
        self._send(writer, _line(Refused(UNPROVED)))
        return False

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers[writer] = ""
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError, msgspec.MsgspecError):
                while line := await reader.readline():
                    self._take(writer, self._decoder.decode(line))
        finally:
            name = self._writers.pop(writer)
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


def _line(value: ToGateway | Challenge | Proof | Refused) -> bytes:
    return msgspec.json.encode(value) + b"\n"
