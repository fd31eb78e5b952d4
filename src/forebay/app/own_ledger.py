"""The history of a gateway that runs alone: without a controller, it keeps the ledger and the records of requests itself."""

import asyncio
import contextlib
from pathlib import Path

from forebay.adapters.sqlite import SqliteStore
from forebay.app.files import STORE_FILE
from forebay.app.gateway_wiring import GatewaySystem
from forebay.domain.errors import ForebayError
from forebay.domain.events import Event
from forebay.domain.usage import UsageMark

TOLD_EVERY_REAL_S = 1.0


class OwnLedger:
    """Over the SQLite file in the folder ``state``; every write is done in a thread, and none twice at once."""

    def __init__(self, system: GatewaySystem, state: Path) -> None:
        self._system = system
        self._path = state / STORE_FILE
        self._store: SqliteStore | None = None
        self._problem = ""
        self._taking: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Take what is counted, each second, for ever: where the file can't be written, the journal keeps it."""
        clock = self._system.clock
        while True:
            await self.take()
            await clock.sleep_until(clock.now_s() + TOLD_EVERY_REAL_S * clock.speed)

    async def take(self) -> None:
        """Take what there is. A thread can't be stopped: whoever is cancelled here leaves it to the next one to wait for."""
        if self._taking is not None:
            await asyncio.wait({self._taking})
        self._taking = asyncio.create_task(self._take(), name="taking")
        await asyncio.shield(self._taking)

    async def _take(self) -> None:
        system = self._system
        try:
            if self._store is None:
                self._store = await asyncio.to_thread(SqliteStore, self._path)
            for batch in system.gateway.metering.outgoing():
                taken = await asyncio.to_thread(self._store.append_usage, batch, system.clock.wall_s())
                system.gateway.metering.acknowledged(UsageMark(batch.journal, taken.upto))
            finished = system.gateway.records.leaving.take()
            if finished:
                await asyncio.to_thread(self._store.append_finished, finished)
        except ForebayError as error:
            self._say(str(error))
        else:
            self._say("")

    async def close(self) -> None:
        """Take the last, twice at most: what was sealed and what came since."""
        for _ in range(2):
            await self.take()
        if self._store is not None:
            with contextlib.suppress(ForebayError):
                self._store.close()

    def _say(self, problem: str) -> None:
        if problem == self._problem:
            return
        self._problem = problem
        clock = self._system.clock
        kind, words = ("ledger_failed", problem) if problem else ("ledger_works", "usage goes to the ledger again")
        self._system.sink.emit(Event(kind, clock.now_s(), clock.wall_s(), "", words))
