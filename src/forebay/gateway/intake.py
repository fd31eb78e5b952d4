"""What the connections of one server share: limits, who is let in, and the budget of all bodies that are held.

A team may hold no more of them than is left free for all others: alone half of the budget, beside another that does the same a
third, so that there is room for whoever comes next. One body by itself always may.
"""

from collections.abc import Callable
from typing import Final
from urllib.parse import quote

from forebay.gateway import bounds
from forebay.gateway.answers import BODIES_FULL, TEAM_BODIES_FULL, ErrorReply
from forebay.gateway.request import Peek, Request
from forebay.spec.types import Limits

TURNED_AWAY_MAX = 64
"""Kinds of refusals that are told apart on the metrics page."""
_FULL: Final = BODIES_FULL
_TEAM_FULL: Final = TEAM_BODIES_FULL


class Intake:
    """``peek(request)``: how to look into a body over the limit; None where such a one is refused. ``admits(request)``: what a request
    with a body is refused with at its head, before any of the body is read; None: nothing."""

    def __init__(
        self, limits: Limits, peek: Callable[[Request], Peek | None], admits: Callable[[Request], ErrorReply | None] | None = None
    ) -> None:
        self.limits = limits
        self.peek = peek
        self.admits = admits
        self.bodies_bytes = 0
        self.tick = 0
        self.clients_max = self.refused_max = bounds.CONNECTIONS_MAX
        """What the process has open files for: clients, and beside them those that are given time to read why they are refused."""

        self.turned_away: dict[tuple[int, str], int] = {}
        """Requests refused before they were any pool's, by status and code: no meter counts them."""
        self.itself = b""
        """What the gateway is called in the ``Via`` of what it sends on; empty: it says nothing there."""

    def is_called(self, gateway: str, run: bytes) -> None:
        """Name it in ``Via``, as no other process is."""
        self.itself = b"forebay-%b-%b" % (quote(gateway, safe="").encode(), run)

    def clients_most(self) -> int:
        """So many connections are let in."""
        return min(self.limits.connections_max, self.clients_max)

    def crowded(self, connections: int) -> bool:
        """Whether there is no file left for one that only reads its refusal."""
        return connections > self.clients_max + self.refused_max

    def turns_away(self, error: ErrorReply) -> None:
        """Count a request that is refused before it is any pool's."""
        key = (error.status, error.code or "")
        if key not in self.turned_away and len(self.turned_away) >= TURNED_AWAY_MAX:
            key = (error.status, "other")
        self.turned_away[key] = self.turned_away.get(key, 0) + 1

    def hold(self, request: Request, size: int, fraction: float) -> ErrorReply | None:
        """So many bytes more of its body are held; returns what it is refused with if they are too many. ``fraction``: of the budget."""
        most = self.limits.bodies_bytes_max
        holding = request.holding
        crowds = holding is not None and holding.crowds(request.held_bytes, size, most - self.bodies_bytes)
        self.bodies_bytes += size
        request.held_bytes += size
        if holding is not None:
            holding.held_bytes += size
        if self.bodies_bytes > (most if fraction == 1.0 else most * fraction):
            return _FULL
        return _TEAM_FULL if crowds else None

    def let_go(self, request: Request) -> None:
        """Nothing of its body is held any more."""
        self.bodies_bytes -= request.held_bytes
        holding = request.holding
        if holding is not None:
            holding.held_bytes -= request.held_bytes
        request.held_bytes = 0


def no_peek(_: Request) -> None:
    """No body may be over the limit."""


def as_it_is(error: ErrorReply) -> ErrorReply:
    """Refusals are told as they stand."""
    return error


def own_or_none(own: bytes) -> bytes:
    """Requests are called what their clients call them."""
    return own
