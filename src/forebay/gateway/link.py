"""The gateway's line to the controller: dialled from here, one JSON value a line, rosters down, snapshots
and usage up.

A gateway without a controller goes on serving by the roster it has. Each reconnection waits longer, with jitter, so that
a restarted controller isn't met by all its gateways at once.
"""

import asyncio
import contextlib
import math
import random
from collections.abc import Callable

import msgspec

from forebay.domain.events import Event
from forebay.domain.joining import Challenge, Proof, Refused, by_controller, by_gateway, proves
from forebay.domain.roster import Bye, FinishedRequests, FromGateway, Heard, ToGateway
from forebay.domain.usage import UsageMark
from forebay.gateway.keeping import Keeping
from forebay.gateway.peering import hello
from forebay.gateway.service import Gateway
from forebay.ports.clock import Clock
from forebay.ports.events import EventSink

SNAPSHOT_EVERY_S = 1.0
LINE_BYTES_MAX = 8 * 2**20
BACKOFF_REAL_S = 0.2
BACKOFF_REAL_S_MAX = 5.0
SETTLE_REAL_S = 2.0
"""A gateway that leaves waits so long, at most, for the ledger to have what it counted last; else its journal keeps that."""
PROOF_REAL_S = 5.0
"""A controller that knows the secret shows it within this."""
UNASKED = "the controller proved no secret: give it the same gateway.join_secret_env as this gateway, or a new start if it was just given"
UNKNOWN = "the controller asks for a secret: name its variable in gateway.join_secret_env, and set that in this gateway's environment"
SILENT_REAL_S = 10.0
"""A controller that has answered before, and not for so long, is told of; its connection is kept, since it may have been stopped only."""
STALLED_REAL_S = 10.0
"""A controller that takes no bytes for this long is taken for gone."""


class _NotJoined(ConnectionError):
    """One of the two does not know the secret; the message says what to do."""


class Link:
    """``await run()`` until cancelled. Lines: `domain.roster.FromGateway` up, `.ToGateway` down."""

    def __init__(
        self,
        gateway: Gateway,
        clock: Clock,
        chance: random.Random,
        sink: EventSink,
        host: str,
        port: int,
        keeping: Keeping | None = None,
        secret: str = "",
        nonce: Callable[[], str] = lambda: "",
    ) -> None:
        """``secret``: what the controller must prove to know, and this gateway proves; empty: nothing. ``nonce``: see `Channel`."""
        self.connected = False
        self._gateway = gateway
        self._clock = clock
        self._chance = chance
        self._sink = sink
        self._host = host
        self._port = port
        self._keeping = keeping
        self._secret = secret
        self._nonce = nonce
        self._refusal = ""
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(ToGateway | Challenge | Proof | Refused)
        self._writer: asyncio.StreamWriter | None = None
        self._greeted_s = 0.0
        self._rostered = False
        """A roster has come over the present connection."""
        self._answered_s = math.inf
        """When the controller said something last; a snapshot is answered, but by older ones."""
        self._silent = False

    async def run(self) -> None:
        """Keep one connection for as long as the gateway lives."""
        if self._keeping is None:
            await self._dial()
            return
        keeping = asyncio.create_task(self._keeping.run(), name="keeping the roster")
        try:
            await self._dial()
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _dial(self) -> None:
        failures = 0
        while True:
            with contextlib.suppress(OSError, msgspec.DecodeError):
                reader, writer = await asyncio.open_connection(self._host, self._port, limit=LINE_BYTES_MAX)
                try:
                    await self._serve(reader, writer)
                except _NotJoined as error:
                    self._told(str(error))
                finally:
                    self._writer = None
                    writer.close()
            failures = 0 if self.connected else failures + 1
            if self.connected:
                self.connected = False
                self._emit("controller_lost", "serving on by the last roster")
            wait_real_s = min(BACKOFF_REAL_S_MAX, BACKOFF_REAL_S * 2 ** min(failures, 10)) * self._chance.uniform(0.5, 1.0)
            await self._clock.sleep_until(self._clock.now_s() + wait_real_s * self._clock.speed)

    async def goodbye(self) -> None:
        """Tell the controller that this gateway leaves for good, if it is there: its silence is no outage then."""
        if self._writer is not None:
            with contextlib.suppress(OSError, TimeoutError):
                await self._account(self._writer)
                await self._gateway.metering.settle(SETTLE_REAL_S)
                await self._send(self._writer, Bye(self._gateway.name))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._secret:
            await self._prove(reader, writer)
        self._writer = writer
        gateway = self._gateway
        self._rostered = self._silent = False
        self._answered_s = math.inf
        self._greeted_s = self._clock.now_s()
        session = gateway.desk.shares.greets(self._greeted_s)
        await self._send(writer, hello(gateway.name, gateway.url, gateway.peering, session))
        reporting = asyncio.ensure_future(self._report(writer))
        taking = asyncio.ensure_future(self._take(reader, writer))
        try:
            done, _ = await asyncio.wait({reporting, taking}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (reporting, taking):
                task.cancel()
            await asyncio.gather(reporting, taking, return_exceptions=True)

    async def _prove(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Show that this gateway knows the secret, and see that the controller does. Raises _NotJoined."""
        try:
            async with asyncio.timeout(PROOF_REAL_S):
                challenge = self._decoder.decode(await _line(reader))
                if not isinstance(challenge, Challenge):
                    raise _NotJoined(UNASKED)
                nonce = self._nonce()
                self._say(writer, Proof(by_gateway(self._secret, challenge.nonce, nonce), nonce))
                answer = self._decoder.decode(await _line(reader))
        except (TimeoutError, msgspec.DecodeError):
            raise _NotJoined(UNASKED) from None
        if isinstance(answer, Refused):
            raise _NotJoined(answer.why)
        if not isinstance(answer, Proof) or not proves(answer.proof, by_controller(self._secret, challenge.nonce, nonce)):
            raise _NotJoined(UNASKED)

    def _told(self, refusal: str) -> None:
        """Once, and not at every attempt."""
        if refusal != self._refusal:
            self._refusal = refusal
            self._emit("join_refused", refusal)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await _line(reader):
            told = self._decoder.decode(line)
            self._speaks(told)
            if isinstance(told, Challenge | Proof | Refused):
                raise _NotJoined(UNKNOWN)
            if isinstance(told, UsageMark):
                self._gateway.metering.acknowledged(told)
                continue
            if isinstance(told, Heard):
                # A controller that has just begun may answer before it has said who holds what, which may have changed since.
                if self._gateway.peering is not None and self._rostered:
                    self._gateway.peering.heard(told)
                continue
            present = self._gateway.roster
            if self._keeping is not None and (told.term, told.version) > (present.term, present.version):
                await self._keeping.comes(told)  # before a snapshot can say that it is routed by
            ack = self._gateway.apply(told)
            self._rostered = True
            if self._gateway.peering is not None:  # at the latest, what answers the greeting
                self._gateway.peering.renewed(self._greeted_s, told.lease_s)
            if not self.connected:
                self.connected = True
                self._refusal = ""
                self._emit("controller_found", f"roster of term {ack.term}, version {ack.version}")
            await self._send(writer, ack)

    def _speaks(self, told: ToGateway | Challenge | Proof | Refused) -> None:
        """The controller lives. One of before it answered snapshots is silent for hours, and says nothing by that."""
        if isinstance(told, Heard) or self._silent:
            self._answered_s = self._clock.now_s()
        if self._silent:
            self._silent = False
            self._emit("controller_found", "the controller answers again")

    async def _report(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await self._send(writer, self._gateway.report())
            await self._account(writer)
            if not self._silent and self._clock.now_s() - self._answered_s > SILENT_REAL_S * self._clock.speed:
                self._silent = True
                words = f"it has said nothing for {SILENT_REAL_S:g} s, though its connection stands: serving on by the last roster"
                self._emit("controller_lost", words)
            await self._clock.sleep_until(self._clock.now_s() + SNAPSHOT_EVERY_S)

    async def _account(self, writer: asyncio.StreamWriter) -> None:
        """What was used, until the ledger has it; and what became of requests."""
        for batch in self._gateway.metering.outgoing():
            await self._send(writer, batch)
        finished = self._gateway.records.leaving.take()
        if finished:
            await self._send(writer, FinishedRequests(self._gateway.name, finished))

    async def _send(self, writer: asyncio.StreamWriter, value: FromGateway) -> None:
        self._say(writer, value)
        async with asyncio.timeout(STALLED_REAL_S):
            await writer.drain()

    def _say(self, writer: asyncio.StreamWriter, value: FromGateway | Proof) -> None:
        """Raises ConnectionResetError where the controller is gone: what writing would raise then is each event loop's own."""
        if writer.is_closing():
            raise ConnectionResetError("the controller has closed the connection")
        writer.write(self._encoder.encode(value) + b"\n")

    def _emit(self, kind: str, message: str) -> None:
        self._sink.emit(Event(kind, self._clock.now_s(), self._clock.wall_s(), "", message, {"gateway": self._gateway.name}))


async def _line(reader: asyncio.StreamReader) -> bytes:
    """The next line, or nothing at the end; a line that is too long ends the connection."""
    try:
        return await reader.readline()
    except ValueError as error:
        raise ConnectionError(f"a line of more than {LINE_BYTES_MAX} bytes") from error
