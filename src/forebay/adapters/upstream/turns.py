"""Long streams are read in turns: one wake-up of the event loop for all that have something at the same time (`native.Poller`).

An engine's step gives each of its streams a token at once. Where the event loop reads each connection for itself, more is spent on
that, and on objects made to hand a read on, than on what is done with it. A stream that has lasted moves here, and back for all that
isn't usual in a connection's life: its end, a pause, being lent. Only plain connections, and only where reading so is done in C.
"""

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from forebay.native import POLLS, Poller, Seat
from forebay.ports.upstream import Taker

if TYPE_CHECKING:
    from forebay.adapters.upstream.connection import EngineConnection


class Turns:
    """Of one upstream; bounded by the streams that it has."""

    def __init__(self, loop: asyncio.AbstractEventLoop, polls: bool = POLLS) -> None:
        """``polls``: whether it is worth it; else nobody ever sits."""
        self._loop = loop
        self._polls = polls
        self._poller: Poller | None = None

    @property
    def seated(self) -> int:
        """Connections that are read here."""
        return 0 if self._poller is None else self._poller.seated

    def sit(self, connection: "EngineConnection", taker: Taker | None) -> None:
        """Read for it from now on; nothing where that can't be."""
        transport = connection.transport
        own = transport.get_extra_info("socket") if self._polls and connection.origin.tls is None else None
        if own is None or transport.is_closing() or (poller := self._begun()) is None:
            return
        seat = Seat(own.fileno(), connection.received, partial(self.rise, connection, True), partial(self._failed, connection))
        try:
            poller.add(seat)
        except OSError:  # a bound of the machine's
            return
        transport.pause_reading()
        seat.taker = taker
        connection.seat = seat

    def rise(self, connection: "EngineConnection", read_on: bool) -> None:
        """Let the event loop read for it again; unless ``read_on`` that stays paused. Nothing where it does anyway."""
        seat, connection.seat = connection.seat, None
        if seat is None or self._poller is None:
            return
        seat.taker = None
        self._poller.remove(seat)
        if read_on and not connection.transport.is_closing():
            connection.transport.resume_reading()

    def close(self) -> None:
        """Read for nobody any more."""
        poller, self._poller, self._polls = self._poller, None, False
        if poller is not None:
            self._loop.remove_reader(poller.fileno())
            poller.close()

    def _begun(self) -> Poller | None:
        if self._poller is None:
            try:
                poller = Poller()
                self._loop.add_reader(poller.fileno(), poller.turn)
            except (OSError, RuntimeError):  # no descriptors are left; not every event loop can
                return None
            self._poller = poller
        return self._poller

    def _failed(self, connection: "EngineConnection", error: BaseException) -> None:
        """Something above has raised ``error``: as event loops do then."""
        self.rise(connection, read_on=False)
        message = "Fatal error: what was read from an engine could not be handled"
        self._loop.call_exception_handler({"message": message, "exception": error, "transport": connection.transport})
        connection.transport.abort()
