"""Keeps the journal of usage beside the data path, and has a ledger told what is in it: earlier starts' first, then this one's.

Who carries batches to a ledger asks for `outgoing` each second and brings its answers to `acknowledged`: the link to the
controller, or, for a gateway alone, a ledger of its own.
"""

import asyncio
import contextlib
from collections.abc import Callable

from forebay.domain.usage import UsageBatch, UsageMark
from forebay.gateway.usage import Past, UsageBook
from forebay.ports.clock import Clock
from forebay.ports.journal import Journal

KEEP_EVERY_REAL_S = 0.25
"""What a loss of power may take, and a little for the disk. A crash of the process takes nothing."""
SETTLE_POLL_REAL_S = 0.05

Say = Callable[[str, str], None]
"""Kind and words of an event."""


class Metering:
    """One gateway's."""

    def __init__(self, gateway: str, journal: Journal, clock: Clock, say: Say) -> None:
        self.book = UsageBook(gateway, journal)
        self.lost_requests = 0
        """Of earlier starts."""
        self._journal = journal
        self._clock = clock
        self._say = say
        self._past: Past | None = None
        self._told_problem = ""
        self._told_lost = self._told_lost_files = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look after the journal from now on."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="usage journal")

    async def close(self) -> None:
        """Look after it no more; what is counted still goes in."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def leave(self) -> int:
        """The last is counted, and told if it could be. What no ledger has and no disk takes ends here, which is said: so many requests."""
        book = self.book
        if book.unreported_requests:
            await self._journal.keep(book.blocks)  # some disks say only when they are synced that they are full
        book.look()
        lost = min(book.unreported_requests, book.unwritten_requests)
        if lost:
            prompt, output = book.unreported_tokens()
            why = self._journal.problem.partition("; ")[0]
            words = f"{lost} requests at most, of {prompt} prompt and {output} output tokens at most, were counted in memory only"
            self._say("usage_lost", f"{words}, and are in no ledger ({why})")
        self._journal.close(acknowledged=not book.unreported_requests)
        return lost

    def outgoing(self) -> list[UsageBatch]:
        """What a ledger should be told now; the same again until it has answered."""
        past = self._past.outgoing() if self._past is not None else None
        own = self.book.outgoing()
        return [batch for batch in (past, own) if batch is not None]

    def acknowledged(self, mark: UsageMark) -> None:
        """A ledger said what it has."""
        if not self.book.acknowledged(mark) and self._past is not None:
            self._past.acknowledged(mark)

    async def settle(self, patience_real_s: float) -> None:
        """Wait until a ledger has everything, so long at most."""
        deadline_s = self._clock.now_s() + patience_real_s * self._clock.speed
        while self.book.unreported_requests and self._clock.now_s() < deadline_s:
            await self._clock.sleep_until(self._clock.now_s() + SETTLE_POLL_REAL_S * self._clock.speed)

    async def _run(self) -> None:
        looks_for_past = True
        while True:
            await self._journal.keep(self.book.blocks)
            self.book.look()
            if looks_for_past:
                looks_for_past = await self._look_for_past()
            self._tell()
            await self._clock.sleep_until(self._clock.now_s() + KEEP_EVERY_REAL_S * self._clock.speed)

    async def _look_for_past(self) -> bool:
        """One after the other; False: there is none any more."""
        past = self._past
        if past is not None and not past.done:
            return True
        if past is not None:
            await self._journal.forget(past.journal)
            self.lost_requests += past.lost_requests
            self._past = None
        left = await self._journal.leftover()
        if left is None:
            return False
        self._past = past = Past(left)
        if past.requests:
            self._say("usage_found", f"{past.requests} requests at most that an earlier gateway counted go to the ledger now")
        if left.unread_bytes:
            self._say("usage_lost", f"{left.unread_bytes} bytes of the journal of an earlier gateway can't be read, and count nowhere")
        return True

    def _tell(self) -> None:
        problem = self._journal.problem
        if problem != self._told_problem:
            if problem and not self._told_problem:
                self._say("usage_journal_failed", problem)
            elif not problem:
                self._say("usage_journal_works", "usage is written to the journal again; what was in memory only is in it")
            self._told_problem = problem
        lost = self.lost_requests + self.book.lost_requests
        if lost > self._told_lost:
            self._say("usage_lost", f"{lost - self._told_lost} requests were counted where nothing could keep it, and are in no ledger")
            self._told_lost = lost
        files = self._journal.lost_files
        if files > self._told_lost_files:
            words = f"{files - self._told_lost_files} journals of earlier gateways can't be read, or are too many: they count nowhere"
            self._say("usage_lost", words)
            self._told_lost_files = files
