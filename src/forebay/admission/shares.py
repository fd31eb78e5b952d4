"""How the limits of teams are divided among several gateways: each has whole units of each limit, and all together never more than it.

Shares follow what clients ask of each gateway, and move only where one is short. A unit moves in three steps: its holder is told to have
less, says that it does (what it has in flight counts until it has ended), and only then another has more. What its bucket of a minute's
worth has no more place for is handed on with it; nothing else comes with a share that grows. So all buckets together are never
fuller than one of the whole limit would be, and let in no more. A gateway that is silent for a lease has none: it stopped by its own
clock, as with the replicas it had (`lessee`), if it could ask another that is heard. Where nobody was heard that it could have asked, its
shares stay its own until somebody has been for a while.

Calls in, answers out, no I/O. One of these is owned by the controller; times are world seconds.
"""

import math
from collections.abc import Collection, Mapping, Sequence

import msgspec

from forebay.admission.quotas import PER_MINUTE
from forebay.admission.witness import Witness
from forebay.domain.roster import LimitShare, LimitUse, SharesGiven, SharesUsed

FLOOR_PARTS = 10
"""A gateway that nobody asks has this part of an equal share, and at least one unit where there are enough: its first request is let in."""
COARSE_PARTS = 20
"""Nothing moves for a gain of less than this part of a limit."""
LOOK_EVERY_S = 1.0
"""A limit is divided anew no more often."""
TURN_S = 60.0
"""Where several gateways are asked for requests that are larger than their shares, each has a share of that size for so long in turn."""
IN_FLIGHT_TURN_S = 15.0
"""Where more gateways are asked than a limit has units, they have them in turn: of what may be in flight for so long, which is a few
moves; of a minute's worth, which has to be refilled, for ``TURN_S``."""
POTS_MAX = 100_000
"""Limits that are remembered to have been divided: one that is forgotten begins with a full minute's worth."""

Key = tuple[str, str]
"""Team and limit (`quotas.Cap`)."""


class Ask(msgspec.Struct, frozen=True):
    """One gateway and one limit: what its clients want, their largest request, and what it has."""

    wants: int
    largest: int
    units: int


def divided(limit: int, asks: Mapping[str, Ask], turn: str = "") -> dict[str, int]:
    """Units for each gateway; they sum up to ``limit``, or to less where nothing is to be moved yet.

    What is wanted is given, the least wanted first, and what nobody wants is spread evenly. ``turn``: who has room for its largest request.
    """
    least = min(limit // len(asks), max(1, limit // (FLOOR_PARTS * len(asks))))
    floors = dict.fromkeys(asks, least)
    if turn in asks:
        floors[turn] = max(least, min(asks[turn].largest, limit - least * (len(asks) - 1)))
    has = {gateway: ask.units for gateway, ask in asks.items()}
    wants = {gateway: max(floors[gateway], min(limit, ask.wants)) for gateway, ask in asks.items()}
    held = sum(has.values())
    if held <= limit and all(has[gateway] >= wants[gateway] for gateway in asks):
        return _spread(limit - held, has, None)
    made = _spread(limit - sum(floors.values()), floors, wants, has)
    made = _spread(limit - sum(made.values()), made, None, has)
    below = any(has[gateway] < floors[gateway] for gateway in asks)
    gain = max(made[gateway] - has[gateway] for gateway in asks)
    return has if held == limit and not below and gain < max(1, limit // COARSE_PARTS) else made


def _spread(amount: int, base: Mapping[str, int], tops: Mapping[str, int] | None, has: Mapping[str, int] | None = None) -> dict[str, int]:
    """``base`` and ``amount`` more, evenly, nobody over its top; what can't be halved goes to whoever ``has`` most."""
    has = base if has is None else has
    room = {gateway: amount if tops is None else tops[gateway] - base[gateway] for gateway in base}
    made = dict(base)
    for left, gateway in zip(range(len(made), 0, -1), sorted(made, key=lambda one: (room[one], has[one], one)), strict=True):
        more = min(room[gateway], amount // left)
        made[gateway] += more
        amount -= more
    return made


class _Seat:
    """One gateway of record."""

    __slots__ = ("has_said", "heard_s", "pending", "said", "session")

    def __init__(self, session: float, now_s: float) -> None:
        self.session = session
        self.heard_s = now_s
        self.has_said = False
        """Since it connected."""
        self.said: dict[Key, LimitUse] = {}
        self.pending: dict[Key, tuple[int, int]] = {}
        """Told and not known to have arrived: in which answer, and how many units."""

    def holds(self, key: Key) -> int:
        """At most so many units are its own, or in flight there."""
        row = self.said.get(key)
        return max(self.pending.get(key, (0, 0))[1], max(row.units, row.used) if row is not None else 0)


class Shares:
    """All limits of one leader, and who has what of them. Bounded by the gateways of record and the teams with limits.

    ``remembered``: gateways that may have shares, as an earlier leader stored them, or None where nobody knows: then no share grows before
    ``expected`` gateways have said what they have, or a lease is over. ``stall_s``: a leader that did not look for so long does not know
    who was silent.
    """

    def __init__(self, lease_s: float, remembered: Collection[str] | None, expected: int, now_s: float, stall_s: float = 0.0) -> None:
        self.lease_s = lease_s
        self.pots: dict[Key, float] = {}
        """What is left of a minute's worth that is in nobody's bucket, of each limit that was ever divided."""
        self._stall_s = max(stall_s, lease_s / 2)
        self._looked_s = now_s
        self._settled_at_s = now_s + lease_s
        self._seats: dict[str, _Seat] = {}
        self._ghosts: dict[str, _Seat] = {}
        """Silent for a lease, and nobody was heard that could have told them."""
        self._awaited: set[str] | None = set(remembered or ())
        """Whose shares are not known yet; None: everybody's are."""
        self._expected = 0 if remembered is not None else expected
        self._witness = Witness(lease_s)
        self._version = 0
        self._targets: dict[Key, tuple[float, dict[str, int]]] = {}
        self._turns: dict[Key, tuple[str, float]] = {}

    # -- what gateways say ----------------------------------------------------------------------------------------------

    def joined(self, gateway: str, session: float, now_s: float) -> None:
        """``gateway`` is there (again), on a new connection; what is read late of an earlier one changes nothing."""
        known = self._seats.get(gateway)
        if known is not None and session < known.session:
            return
        seat = known or self._ghosts.pop(gateway, None) or _Seat(session, now_s)
        seat.session, seat.heard_s, seat.has_said = session, now_s, False
        self._seats[gateway] = seat

    def left(self, gateway: str) -> None:
        """It has drained and left for good."""
        self._seats.pop(gateway, None)
        self._ghosts.pop(gateway, None)
        if self._awaited is not None:
            self._awaited.discard(gateway)

    def heard(self, gateway: str, used: SharesUsed | None, now_s: float) -> SharesGiven:
        """It told what it has, and is answered what changes of that. One that tells nothing has all of each limit for its own."""
        nothing = SharesGiven(self._version, ())
        if used is None:
            return nothing
        seat = self._seats.get(gateway)
        if seat is None:
            self.joined(gateway, used.session, now_s)
            seat = self._seats[gateway]
        if used.session != seat.session:
            return nothing
        self._take(gateway, seat, used, now_s)
        self._version += 1
        given = tuple(share for row in used.rows if (share := self._share(gateway, seat, row, now_s)) is not None)
        for share in given:
            seat.pending[share.team, share.cap] = (self._version, share.units)
        return SharesGiven(self._version, given)

    def _take(self, gateway: str, seat: _Seat, used: SharesUsed, now_s: float) -> None:
        if used.seen:  # it is answered, too
            self._witness.heard(now_s)
        seat.heard_s = now_s
        if seat.has_said:
            seat.pending = {key: told for key, told in seat.pending.items() if told[0] > used.seen}
        else:
            seat.pending.clear()  # by the connection before nothing comes any more
        seat.has_said = True
        seat.said = {(row.team, row.cap): row for row in used.rows}
        if self._awaited is not None:
            self._awaited.discard(gateway)
            if not self._awaited and sum(seat.has_said for seat in self._seats.values()) >= self._expected:
                self._awaited = None

    # -- what the controller does ---------------------------------------------------------------------------------------

    def look(self, now_s: float) -> None:
        """See who is silent, and what may be given away for it."""
        if now_s - self._looked_s > self._stall_s:  # whoever spoke meanwhile has not been heard yet
            for seat in self._seats.values():
                seat.heard_s = now_s
        self._looked_s = now_s
        for gateway in [name for name, seat in self._seats.items() if now_s - seat.heard_s > self.lease_s]:
            self._ghosts[gateway] = self._seats.pop(gateway)
        if self._witness.stands(now_s):
            self._ghosts.clear()
            if now_s >= self._settled_at_s:
                self._awaited = None
        known = {key for seat in (*self._seats.values(), *self._ghosts.values()) for key in seat.said}
        for kept in (self._targets, self._turns):
            for key in [key for key in kept if key not in known]:
                del kept[key]
        for key in list(self.pots)[:-POTS_MAX]:
            del self.pots[key]

    def holders(self) -> list[str]:
        """Who may have shares: to be stored, so that the next leader waits for their word."""
        return sorted({*self._seats, *self._ghosts, *(self._awaited or ())})

    # -- the shares -----------------------------------------------------------------------------------------------------

    def _share(self, gateway: str, seat: _Seat, row: LimitUse, now_s: float) -> LimitShare | None:
        """What becomes of one share of ``gateway``; None: nothing."""
        key = (row.team, row.cap)
        others = [other for other in (*self._seats.values(), *self._ghosts.values()) if other is not seat]
        limit = min([row.limit, *(other.said[key].limit for other in others if key in other.said)])
        taken = sum(other.holds(key) for other in others)
        free = max(0, limit - taken)
        held = taken + seat.holds(key)
        units = row.units
        if key not in seat.pending:
            units = min(units if self._awaited is not None else self._target(key, gateway, limit, now_s), free)
        fill = 0.0
        if row.cap in PER_MINUTE and (held or self._awaited is None):
            pot = self._pot(key, row, limit, held)
            fill = min(pot, float(max(0, units - row.units)))
            self.pots[key] = min(pot - fill, float(max(0, limit - taken - max(units, seat.holds(key)))))
        return LimitShare(row.team, row.cap, units, fill) if units != row.units else None

    def _pot(self, key: Key, row: LimitUse, limit: int, held: int) -> float:
        """What is in nobody's bucket, never more than buckets have place for; at the first division a whole minute's worth."""
        pot = self.pots.get(key)
        if pot is None:
            pot = 0.0 if held or self._awaited is not None else float(limit)
        return min(pot + row.freed, float(max(0, limit - held)))

    def _target(self, key: Key, gateway: str, limit: int, now_s: float) -> int:
        """What ``gateway`` should have of it."""
        known = self._targets.get(key)
        if known is None or now_s - known[0] >= LOOK_EVERY_S or gateway not in known[1]:
            rows = {name: seat.said[key] for name, seat in self._seats.items() if key in seat.said}
            asks = {name: Ask(row.wants, min(row.largest, limit), self._seats[name].holds(key)) for name, row in rows.items()}
            asking = sorted(name for name, ask in asks.items() if ask.wants)
            made = self._in_turn(key, limit, asks, asking, now_s) if limit < len(asking) else None
            known = self._targets[key] = (now_s, made or divided(limit, asks, self._turn(key, limit, asks, now_s)))
        return known[1][gateway]

    def _in_turn(self, key: Key, limit: int, asks: Mapping[str, Ask], asking: Sequence[str], now_s: float) -> dict[str, int]:
        """One unit each for as many as there are units; at each turn whoever has had one for longest gives it to the next in line."""
        holder, since_s = self._turns.get(key, ("", -math.inf))
        if holder not in asking or now_s - since_s >= (TURN_S if key[1] in PER_MINUTE else IN_FLIGHT_TURN_S):
            holder = next((name for name in asking if name > holder), asking[0])
            self._turns[key] = (holder, now_s)
        first = asking.index(holder)
        having = {asking[(first + place) % len(asking)] for place in range(limit)}
        return {name: int(name in having) for name in asks}

    def _turn(self, key: Key, limit: int, asks: Mapping[str, Ask], now_s: float) -> str:
        """Who has room for its largest request just now; empty: all have it in an equal share."""
        claims = sorted(name for name, ask in asks.items() if ask.wants and ask.largest > limit // len(asks))
        holder, since_s = self._turns.get(key, ("", now_s))
        if not claims:
            self._turns.pop(key, None)
            return ""
        if holder not in claims or (now_s - since_s >= TURN_S and len(claims) > 1):
            holder = next((name for name in claims if name > holder), claims[0])
            self._turns[key] = (holder, now_s)
        return holder
