"""The gateways of a world: each with its link to the controller; where there are several, they crash, come back, and are cut off."""

import asyncio
import random
from collections.abc import Iterable, Sequence

from forebay.adapters.upstream import HttpUpstream
from forebay.app.world.clients import CUT, CUT_OFF, Answer, Told, Wish
from forebay.app.world.plan import Event, Plan, Trouble
from forebay.app.world.promises import Broken
from forebay.gateway.carrying import Worker
from forebay.gateway.keeping import Keeping
from forebay.gateway.link import Link
from forebay.gateway.service import Gateway
from forebay.ports.journal import NoJournal
from forebay.testing.clock import LoopClock
from forebay.testing.crew import FakeCrew
from forebay.testing.events import ListSink
from forebay.testing.ids import CountingIds
from forebay.testing.loop import network
from forebay.testing.shelf import MemoryShelf

GATEWAY_PORT = 8000
HOPS_PORT = 8100
"""The same for each process of one name, as under a supervisor."""


class Front:
    """One gateway, under one name and at one port, whichever process it is."""

    def __init__(self, number: int, plan: Plan, clock: LoopClock, sink: ListSink, channel_port: int) -> None:
        self.number = number
        self.port = GATEWAY_PORT + number
        self.crashes: list[tuple[float, float]] = []
        """When it was away."""
        self._plan = plan
        self._clock = clock
        self._sink = sink
        self._channel_port = channel_port
        self._lives = 0
        self._linking: asyncio.Task[None] | None = None
        self._busy = False
        self._shelf = MemoryShelf()
        self.crew: FakeCrew | None = None
        self.kills_s: list[float] = []
        """When one of its relay workers was killed."""
        self._lost_before = 0
        self.gateway = self._made()

    def _made(self) -> Gateway:
        first = not self.number and not self._lives
        name = f"gateway-{self.number}" if self._plan.spec.leases else "gateway"
        words = f"{self._plan.seed}/gateway" if first else f"{self._plan.seed}/gateway/{self.number}/{self._lives}"
        # A ledger knows journals by their names: each process has one of its own.
        journal = NoJournal(f"journal-{self.number}-{self._lives}")
        workers, chance = self._plan.spec.relay_workers, random.Random(words)
        self.crew = FakeCrew(workers, lambda owner: Worker(self._clock, owner)) if workers else None
        return Gateway(
            self._plan.spec, self._clock, CountingIds(), HttpUpstream(), chance, self._sink, name, journal=journal, crew=self.crew
        )

    async def start(self) -> None:
        """Serve."""
        await self.gateway.start("127.0.0.1", self.port)
        if self._plan.spec.leases:
            await self.gateway.take_hops_on(None, port=HOPS_PORT + self.number)
        self.link()

    def link(self) -> None:
        """Look for the controller."""
        words = f"{self._plan.seed}/link" if not self.number and not self._lives else f"{self._plan.seed}/link/{self.number}/{self._lives}"
        keeping = Keeping(self.gateway, self._clock, self._shelf, f"{self._plan.seed}")
        link = Link(self.gateway, self._clock, random.Random(words), self._sink, "127.0.0.1", self._channel_port, keeping)
        self._linking = asyncio.create_task(link.run(), name=f"link {self.number}")

    async def unlink(self) -> None:
        """Hear and say nothing more."""
        if self._linking is not None:
            self._linking.cancel()
            await asyncio.gather(self._linking, return_exceptions=True)
            self._linking = None

    async def cut_off(self, for_s: float) -> None:
        """No way to the controller for so long."""
        if not self._busy:
            self._busy = True
            await self.unlink()
            await self._clock.sleep_until(self._clock.now_s() + for_s)
            self.link()
            self._busy = False

    def cut_hops(self) -> None:
        """Every connection on which others forward to it breaks; both ends live."""
        network().cut(HOPS_PORT + self.number)

    async def suffer(self, event: Event) -> None:
        """One of the troubles that gateways have."""
        if event.trouble is Trouble.GATEWAY_CRASH:
            await self.crash(event.for_s)
        elif event.trouble is Trouble.GATEWAY_CUT_OFF:
            await self.cut_off(event.for_s)
        elif event.trouble is Trouble.HOPS_CUT:
            self.cut_hops()
        else:
            self.kill_worker(event.draw)

    def kill_worker(self, draw: int) -> None:
        """As by SIGKILL; the gateway starts another."""
        if self.crew is not None and self.crew.lines:
            self.crew.lines[draw % len(self.crew.lines)].kill()
            self.kills_s.append(self._clock.now_s())

    @property
    def streams_lost(self) -> int:
        """Those that ended with their relay workers."""
        lending = self.gateway.lending
        return self._lost_before + (lending.streams_lost if lending is not None else 0)

    async def crash(self, for_s: float) -> None:
        """As by SIGKILL; another process takes its place after so long."""
        if self._busy:
            return
        self._busy = True
        began_s = self._clock.now_s()
        await self.unlink()
        network().cut(self.port)
        network().cut(HOPS_PORT + self.number)
        await self.gateway.close()
        self._lost_before = self.streams_lost
        self._lives += 1
        await self._clock.sleep_until(began_s + for_s)
        self.gateway = self._made()
        await self.start()
        self.crashes.append((began_s, self._clock.now_s()))
        self._busy = False

    def usable(self) -> set[str]:
        """Replicas that it may give permits on at this instant; all where there are no leases."""
        peering = self.gateway.peering
        if peering is None or self._clock.now_s() >= peering.lessee.until_s:
            return set()
        return {replica.id for pool in self.gateway.desk.pools.values() for replica in pool.roster.replicas}


def shared(fronts: Sequence[Front], now_s: float) -> list[Broken]:
    """Replicas that more than one gateway may use."""
    seen: dict[str, int] = {}
    broken = []
    for front in fronts:
        for replica in sorted(front.usable()):
            if replica in seen:
                broken.append(Broken(now_s, "no replica is shared", f"{replica} by gateways {seen[replica]} and {front.number}"))
            seen[replica] = front.number
    return broken


CLOSED_S = 1.0
"""A client sees within so long that its stream's worker was killed."""


def lost_with_workers(answers: Iterable[Answer], wishes: Sequence[Wish], fronts: Sequence[Front]) -> tuple[list[Answer], list[Broken]]:
    """Streams that ended with their worker were cut, and not ended: no lie either. Nothing else may end so."""
    judged: list[Answer] = []
    cut = 0
    for answer, wish in zip(answers, wishes, strict=True):
        kills_s = fronts[wish.number % len(fronts)].kills_s
        cut_off = wish.stream and answer.told is Told.LIED and answer.detail.startswith((CUT, CUT_OFF))
        if cut_off and any(at_s <= answer.ended_s <= at_s + CLOSED_S for at_s in kills_s):
            answer = Answer(answer.number, Told.GONE, 0, "its relay worker was killed", answer.ended_s)
            cut += 1
        judged.append(answer)
    lost = sum(front.streams_lost for front in fronts)
    return judged, [Broken(0.0, "a killed worker ends its own streams", f"{cut} clients, {lost} streams")] if cut > lost else []


def excused(answers: Iterable[Answer], wishes: Sequence[Wish], fronts: Sequence[Front]) -> list[Answer]:
    """Who asked a gateway that crashed meanwhile was told nothing, and that is no lie: it is as if the client had gone."""
    judged = []
    for answer, wish in zip(answers, wishes, strict=True):
        away = fronts[wish.number % len(fronts)].crashes
        if answer.told is Told.LIED and any(began_s <= answer.ended_s and wish.at_s <= ended_s for began_s, ended_s in away):
            answer = Answer(answer.number, Told.GONE, 0, "its gateway crashed", answer.ended_s)
        judged.append(answer)
    return judged
