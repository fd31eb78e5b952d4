"""The roster of a gateway that runs alone, which follows its file: engines that are listed anew are looked at, those that left run empty.

Nobody else says when an engine that was taken off the list may be stopped: it is told here, once nothing of this gateway's runs on it.
"""

import asyncio

from forebay.app.first_look import FirstLook
from forebay.app.gateway_wiring import GatewaySystem
from forebay.domain.events import Event
from forebay.domain.replica import attaching_pool
from forebay.gateway.roster import next_static_roster, static_roster
from forebay.spec.types import Spec

LOOK_EVERY_REAL_S = 0.5


class OwnRoster:
    """Of one gateway without a controller. Bounded by the engines listed, and those left that have streams."""

    def __init__(self, system: GatewaySystem) -> None:
        self._system = system
        self._first_look = FirstLook(system)
        self._leaving: set[str] = set()
        self._watching: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Route by what the gateway's configuration lists, and take a first look at it."""
        self._system.gateway.apply(static_roster(self._system.gateway.spec))
        await self._first_look.begin()

    def take(self, spec: Spec) -> None:
        """Route by what ``spec`` lists from now on."""
        gateway = self._system.gateway
        roster = next_static_roster(spec, gateway.roster)
        if roster is gateway.roster:
            return
        before = self._listed()
        gateway.apply(roster)
        self._first_look.go_on()
        self._leaving = (self._leaving | before) - self._listed()
        if self._leaving and self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="engines that leave")

    async def close(self) -> None:
        """Look after nothing any more."""
        await self._first_look.close()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    def _listed(self) -> set[str]:
        return {replica.id for pool in self._system.gateway.roster.pools for replica in pool.replicas}

    async def _watch(self) -> None:
        while self._leaving:
            used = {one.replica for load in self._system.gateway.snapshot().pools for one in load.replicas if one.streams}
            for replica_id in sorted(self._leaving - used):
                self._tell(replica_id)
            self._leaving &= used
            await asyncio.sleep(LOOK_EVERY_REAL_S)
        self._watching = None

    def _tell(self, replica_id: str) -> None:
        clock, name = self._system.clock, self._system.gateway.name
        words = f"{replica_id} is off the list, and nothing that came by here runs on it any more"
        event = Event("engine_left", clock.now_s(), clock.wall_s(), attaching_pool(replica_id), words, {"gateway": name})
        self._system.sink.emit(event)
