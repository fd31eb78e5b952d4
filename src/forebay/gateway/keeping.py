"""The last roster, kept where the next process finds it: a gateway that starts again while its controller is away serves on by it.

A controller that lives answers within milliseconds, so what was kept is used only where none does. Whatever a controller
says replaces it, and a roster is routed by and acknowledged only once it is kept: no engine that a kept roster lists was told
to stop on this gateway's word. Rosters under leases are not kept: a process that has just begun has no lease to use them by.
"""

import asyncio
import contextlib
from typing import Protocol

import msgspec

from forebay.domain.errors import ForebayError
from forebay.domain.roster import Roster
from forebay.gateway.service import Gateway
from forebay.ports.clock import Clock

ANSWER_REAL_S = 1.0
"""A controller that has sent no roster by then is taken for away."""
KEEP_REAL_S = 1.0
"""A roster waits so long, at most, for a disk that hangs."""
REFRESH_REAL_S = 30.0
"""So often is said that it is still routed by."""
AGE_REAL_S_MAX = 600.0
"""No gateway routed by it for longer: its addresses may be other engines' by now."""


class Kept(msgspec.Struct, frozen=True):
    """What is kept."""

    run: str
    """Of the supervisor: engines and addresses are its own."""
    routed_s: float
    """When it was last routed by, by the world clock that all processes of a run share."""
    roster: Roster


class Shelf(Protocol):
    """Where bytes are kept, for one gateway; each call raises ForebayError where that fails."""

    async def load(self) -> bytes:
        """What was saved last; empty: nothing."""
        ...

    async def save(self, content: bytes) -> None:
        """Replace it, whole or not at all."""
        ...

    async def drop(self) -> None:
        """Keep nothing."""
        ...


_decode = msgspec.json.Decoder(Kept).decode


class Keeping:
    """The rosters of one gateway under ``run``. ``await run()`` beside its link; only that task writes, so no write passes another."""

    def __init__(self, gateway: Gateway, clock: Clock, shelf: Shelf, run: str) -> None:
        self._gateway = gateway
        self._clock = clock
        self._shelf = shelf
        self._run = run
        self._roster: Roster | None = None
        """As the controller made it."""
        self._changed = asyncio.Event()
        self._kept = asyncio.Event()
        self._fails = False

    async def comes(self, roster: Roster) -> None:
        """The controller's ``roster`` is about to be routed by; returns once it is kept, or can't be, or that takes too long."""
        self._roster = roster
        self._kept.clear()
        self._changed.set()
        if not roster.leased:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KEEP_REAL_S):
                    await self._kept.wait()

    async def run(self) -> None:
        """Until cancelled: fall back on what was kept if nobody answers, and keep what is routed by."""
        if not await self._changes_within(ANSWER_REAL_S):
            await self._fall_back()
        while True:
            await self._changes_within(REFRESH_REAL_S)
            await self._keep()

    async def _changes_within(self, real_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(real_s):
                await self._changed.wait()
        return self._changed.is_set()

    async def _keep(self) -> None:
        self._changed.clear()
        roster = self._roster
        if roster is None:
            return
        try:
            if roster.leased:
                await self._shelf.drop()
            else:
                await self._shelf.save(msgspec.json.encode(Kept(self._run, self._clock.now_s(), roster)))
            self._fails = False
        except ForebayError as error:
            if not self._fails:
                self._gateway.tell(
                    "roster_not_kept", f"{error}: without its controller, a gateway that starts again has nowhere to send to"
                )
            self._fails = True
            with contextlib.suppress(ForebayError):
                await self._shelf.drop()  # none is better than one that was replaced
        if roster is self._roster:
            self._kept.set()

    async def _fall_back(self) -> None:
        try:
            content = await self._shelf.load()
            kept = _decode(content) if content else None
        except (ForebayError, msgspec.MsgspecError) as error:
            self._gateway.tell("roster_unusable", f"the controller does not answer, and the roster that was kept can't be read ({error})")
            return
        if kept is None or kept.run != self._run or kept.roster.leased or self._gateway.roster.version:
            return
        age_real_s = (self._clock.now_s() - kept.routed_s) / self._clock.speed
        if not 0.0 <= age_real_s <= AGE_REAL_S_MAX:
            words = f"the roster that was kept has not been used for {age_real_s:.0f} s; allowed: {AGE_REAL_S_MAX:.0f} s"
            self._gateway.tell("roster_unusable", f"the controller does not answer, and {words}")
            return
        self._roster = roster = kept.roster
        # Under term 0, so that any controller's roster replaces it; and nobody says any more when others are expected.
        pools = tuple(msgspec.structs.replace(pool, next_ready_in_s=None) for pool in roster.pools)
        self._gateway.apply(msgspec.structs.replace(roster, term=0, version=1, pools=pools))
        words = f"serving by the roster of term {roster.term}, version {roster.version}, which was routed by {age_real_s:.0f} s ago"
        self._gateway.tell("roster_kept", f"the controller does not answer: {words}")
