"""Which streams relay workers carry, for the owner of the queue: lent when they have settled, counted as they go on, taken back in time.

Nothing is decided by a worker. It hands back what is not usual, and is asked to hand back what the owner has something to do with:
time that is over, a replica that stalls, a place that may have to be given up, the gateway's end. A worker that dies takes its streams
with it: their clients see the connection close inside the answer, and what was last told of them is what is counted.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from forebay.gateway.handing import Back, Count, Drop, Gone, Piece, Ready, Recall, Report, Slow, Take, decode_news, encode
from forebay.ports.clock import Clock
from forebay.ports.crew import PACKET_BYTES_MAX, Crew, Line

STREAMS_PER_WORKER_MAX = 5000
"""Further ones stay with the owner."""
SETTLE_REAL_S = 0.005
"""From a stream's report to its being lent: by then what was written of it is sent."""
SILENT_SWEEPS_MAX = 15
"""A worker of which nothing is heard in so many seconds, each of them one in which this process ran, is ended."""


Reclaim = Callable[[asyncio.Transport], None]
"""Reads again from a connection that was lent."""


class Carriable(Protocol):
    """A call whose stream may be lent (`lent.LentCall`)."""

    def settled(self) -> tuple[Take, asyncio.Transport, asyncio.Transport] | None:
        """What a worker is told of it, and its two connections; None: not now."""
        ...

    def gone_on(self, count: Count) -> None:
        """It has, at the worker."""
        ...

    def told_slow(self, slow: bool) -> None:
        """Whether its client reads too slowly."""
        ...

    def came_back(self, back: Back, from_client: bytes, from_engine: bytes, reclaim: Reclaim) -> None:
        """It is the owner's again, with what was read and not handled; ``reclaim`` reads on."""
        ...

    def left(self, reclaim: Reclaim) -> None:
        """Its client has."""
        ...

    def lost(self, why: str, reclaim: Reclaim) -> None:
        """Nobody knows how far it came."""
        ...


class Lent:
    """One stream at a worker."""

    __slots__ = ("call", "from_client", "from_engine", "line", "number", "recalled", "then")

    def __init__(self, number: int, call: Carriable, line: Line) -> None:
        self.number, self.call, self.line = number, call, line
        self.from_client = self.from_engine = b""
        self.recalled = False
        self.then: list[Callable[[], None]] = []
        """What is to be done once it is back."""


class Post:
    """What is known of one worker that has started."""

    __slots__ = ("lent", "silent_sweeps")

    def __init__(self) -> None:
        self.silent_sweeps = 0
        self.lent: dict[int, Lent] = {}


class Lending:
    """All that is lent; `ports.crew.Overseer`."""

    def __init__(self, crew: Crew, clock: Clock, tell: Callable[[str, str], None]) -> None:
        """``tell``: an event for the operator, kind and words."""
        self.lent_total = self.early_total = self.workers_lost = self.streams_lost = 0
        """Streams lent; those that came back before they were worth it; workers that ended, and streams that ended with them."""
        self._crew, self._clock, self._tell = crew, clock, tell
        self._posts: dict[Line, Post] = {}
        self._number = 0

    def start(self) -> None:
        """Have the workers started."""
        self._crew.start(self)

    async def close(self) -> None:
        """End them."""
        self._posts.clear()
        await self._crew.close()

    @property
    def workers(self) -> int:
        """How many have started."""
        return len(self._posts)

    @property
    def streams(self) -> int:
        """How many are lent."""
        return sum(len(post.lent) for post in self._posts.values())

    # -- lending ------------------------------------------------------------------------------------------------------

    def soon(self, give: Callable[[], None]) -> None:
        """Have ``give`` called once what is written is sent; nothing where there is no worker."""
        if self._posts:
            self._clock.call_at(self._clock.now_s() + SETTLE_REAL_S * self._clock.speed, give)

    def lend(self, call: Carriable) -> Lent | None:
        """Lend it, if it has settled and a worker takes it."""
        line = min(self._posts, key=lambda line: len(self._posts[line].lent), default=None)
        if line is None or len(self._posts[line].lent) >= STREAMS_PER_WORKER_MAX:
            return None
        settled = call.settled()
        if settled is None:
            return None
        take, client, engine = settled
        self._number += 1
        take.number = self._number
        packet = encode(take)
        if len(packet) > PACKET_BYTES_MAX or not line.lend(packet, client, engine):
            return None
        self.lent_total += 1
        lent = self._posts[line].lent[take.number] = Lent(take.number, call, line)
        return lent

    def recall(self, lent: Lent, then: Callable[[], None]) -> None:
        """Ask for it, and do ``then`` when it is back."""
        lent.then.append(then)
        if not lent.recalled:
            lent.recalled = True
            if not lent.line.send(encode(Recall(lent.number))):
                lent.line.kill()

    def drop(self, lent: Lent) -> None:
        """It is over: the worker lets go of it."""
        post = self._posts.get(lent.line)
        if post is not None and post.lent.pop(lent.number, None) is not None and not lent.line.send(encode(Drop(lent.number))):
            lent.line.kill()

    def sweep(self) -> None:
        """Once a second: end workers that say nothing any more."""
        for line, post in list(self._posts.items()):
            post.silent_sweeps += 1
            if post.silent_sweeps > SILENT_SWEEPS_MAX:
                line.kill()

    # -- workers ------------------------------------------------------------------------------------------------------

    def told(self, line: Line, packet: bytes) -> None:
        """See `ports.crew.Overseer`."""
        news = decode_news(packet)
        if isinstance(news, Ready):
            self._posts[line] = Post()
            return
        post = self._posts.get(line)
        if post is None:
            return  # it is being closed
        post.silent_sweeps = 0
        if isinstance(news, Report):
            for count in news.counts:
                lent = post.lent.get(count.number)
                if lent is not None:
                    lent.call.gone_on(count)
            return
        one = post.lent.get(news.count.number if isinstance(news, Back | Gone) else news.number)
        if one is None:
            return  # it ended here while this was on its way
        if isinstance(news, Slow):
            one.call.told_slow(news.slow)
        elif not isinstance(news, Piece):
            del post.lent[one.number]
            self._ended(one, news)
        elif news.from_client:
            one.from_client += news.data
        else:
            one.from_engine += news.data

    def _ended(self, lent: Lent, news: Back | Gone) -> None:
        lent.call.gone_on(news.count)
        if isinstance(news, Gone):
            lent.call.left(self._crew.reclaim)
            return
        lent.call.came_back(news, lent.from_client, lent.from_engine, self._crew.reclaim)
        for then in lent.then:
            then()

    def lost(self, line: Line, why: str) -> None:
        """See `ports.crew.Overseer`."""
        post = self._posts.pop(line, None)
        self.workers_lost += 1
        streams = list(post.lent.values()) if post is not None else []
        self.streams_lost += len(streams)
        for lent in streams:
            lent.call.lost(f"The relay process that carried the answer {why}.", self._crew.reclaim)
        self._tell("relay_worker_lost", f"{line.name} {why}; {len(streams)} streams ended with it")
