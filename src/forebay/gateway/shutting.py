"""The end of a gateway: what is inside goes on to a deadline, and what is still inside then is told so before it is let go.

An answer that has begun ends with an error event in its API's own form; a request that waits, or was not answered yet, gets a
503 with a ``Retry-After``. Only a client that does not take its last words in time sees a reset.
"""

from collections.abc import Collection
from typing import Protocol

from forebay.admission.effects import Refuse
from forebay.admission.outcomes import ANSWERS, Refusal
from forebay.gateway.answers import ErrorReply
from forebay.gateway.desk import Desk
from forebay.gateway.http import ClientConnection, HttpServer
from forebay.ports.clock import Clock

POLL_REAL_S = 0.05
LAST_WORDS_REAL_S = 2.0
"""Clients have so long to take what they are told last."""
RETRY_AFTER_REAL_S = 2.0
"""By then another gateway, or the next process of this one, answers."""


class Inside(Protocol):
    """What is inside without a permit."""

    def shut(self, error: ErrorReply) -> None:
        """The gateway ends before it does."""
        ...


class Leaver(Protocol):
    """A gateway that leaves."""

    clock: Clock
    desk: Desk
    servers: list[HttpServer]

    @property
    def direct(self) -> Collection[Inside]:
        """All that is inside without a permit."""
        ...

    def spread(self, error: ErrorReply) -> ErrorReply:
        """With its ``Retry-After`` jittered."""
        ...


def live(gateway: Leaver) -> int:
    """Requests inside."""
    return gateway.desk.live + len(gateway.direct)


async def until_empty(gateway: Leaver, deadline_s: float) -> None:
    """Wait until nothing is inside and clients have taken all that was written, or until ``deadline_s`` (world seconds)."""
    clock = gateway.clock
    # What was written last is still on its way to slow clients when the engines are done.
    while (live(gateway) or any(server.unsent_bytes() for server in gateway.servers)) and clock.now_s() < deadline_s:
        await clock.sleep_until(min(deadline_s, clock.now_s() + POLL_REAL_S * clock.speed))


async def cut(gateway: Leaver) -> int:
    """End what is inside, each with its last words, and give clients the time to take them; returns how many were cut."""
    inside = live(gateway)
    if not inside:
        return 0
    for server in gateway.servers:
        if server.by_peer:
            continue  # it hands to the others' what is no question of a gateway's
        server.handle = server.handle_large = lambda connection, _: _too_late(gateway, connection)
    effect = Refuse(0, Refusal.SHUTTING_DOWN, RETRY_AFTER_REAL_S * gateway.clock.speed)
    pools = (*gateway.desk.pools.values(), *gateway.desk.spills)
    # Those that wait go first: a permit that ends must not start one of them.
    for started in (False, True):
        for pool in pools:
            for ticket, call in list(pool.calls.items()):
                if started or not pool.admission.runs(ticket):
                    call.shut(effect)
    for direct in list(gateway.direct):
        direct.shut(gateway.spread(_reply()))
    await until_empty(gateway, gateway.clock.now_s() + LAST_WORDS_REAL_S * gateway.clock.speed)
    return inside


def _reply() -> ErrorReply:
    answer = ANSWERS[Refusal.SHUTTING_DOWN]
    return ErrorReply(answer.status, answer.type, answer.code, answer.message, retry_after_s=RETRY_AFTER_REAL_S)


def _too_late(gateway: Leaver, connection: ClientConnection) -> None:
    """A request on a connection that was kept alive, after the deadline."""
    connection.refuse(gateway.spread(_reply()))
