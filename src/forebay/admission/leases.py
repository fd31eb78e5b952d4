"""Which gateway may give permits on which replica: whole replicas, each leased to one gateway at most. The granting side.

A lease moves in three steps: revoke (a roster without it), acknowledge (its gateway routes by that roster), grant. A gateway
that is silent for a lease has lost its replicas: by its own clock it stopped using them before (`lessee`), or asked another gateway,
which heard this controller. So they are given away only once another one has been there for long enough to be asked. Shares follow
demand, whole replicas at a time, one each where there are enough, and move only when they are off by most of a replica for a while.

Calls in, effects out, no I/O. One of these is owned by the controller, which puts ``holder`` into its rosters.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from forebay.admission.witness import Witness

OFF_REPLICAS = 0.75
"""A share that is off by less is left alone: after a move each side would be off by a quarter, so nothing moves back and forth."""
OFF_FOR_S = 30.0
"""…and it must have been off for so long (world seconds)."""


class Phase(StrEnum):
    """Where a lease is. A replica that is leased to nobody has none."""

    HELD = "held"
    REVOKING = "revoking"
    """Its gateway may still use it, until it has acknowledged a roster in which it may not, or its time is up."""


class Grant(msgspec.Struct, frozen=True, tag="grant"):
    """From the next roster on ``gateway`` may use ``replica_id``."""

    replica_id: str
    gateway: str


class Revoke(msgspec.Struct, frozen=True, tag="revoke"):
    """From the next roster on ``gateway`` may not."""

    replica_id: str
    gateway: str


class Lapse(msgspec.Struct, frozen=True, tag="lapse"):
    """``gateway`` was silent for a lease: it uses nothing any more."""

    gateway: str


Effect = Grant | Revoke | Lapse


class Wants(msgspec.Struct, frozen=True):
    """One pool at one instant."""

    replicas: Sequence[str]
    """That serve."""
    demand: Mapping[str, float | None]
    """Tokens that each gateway was asked for lately, and that wait there; None: not known, so shares stay as they are."""
    live_tokens: Mapping[str, float]
    """In flight by replica: the emptiest moves."""


class _Lease:
    __slots__ = ("gateway", "phase", "roster")

    def __init__(self, gateway: str) -> None:
        self.gateway = gateway
        self.phase = Phase.HELD
        self.roster: tuple[int, int] | None = None
        """The first that says so, once it is out; only while it is being revoked."""


class Leases:
    """All leases of one leader. Its size is bounded by the replicas of the fleet, and the gateways of record.

    ``remembered``: holders as an earlier leader stored them, or None where nobody knows: then nothing is granted before ``expected``
    gateways have said what they hold, or a lease is over. ``stall_s``: a leader that did not look for so long does not know who was
    silent. Times are world seconds.
    """

    def __init__(self, lease_s: float, remembered: Mapping[str, str] | None, expected: int, now_s: float, stall_s: float = 0.0) -> None:
        self.lease_s = lease_s
        self._stall_s = max(stall_s, lease_s / 2)
        self._looked_s = now_s
        self._leases = {replica: _Lease(gateway) for replica, gateway in (remembered or {}).items()}
        self._heard_s = {lease.gateway: now_s for lease in self._leases.values()}
        self._members: set[str] = set()
        self._witness = Witness(lease_s)
        self._expected = 0 if remembered is not None else expected
        self._settled_at_s = now_s + lease_s
        self._off: dict[str, tuple[str, str, float]] = {}
        """By pool: who has too many, who too few, and since when it is those two."""

    # -- what gateways say --------------------------------------------------------------------------------------------

    def joined(self, gateway: str, holds: Sequence[str], now_s: float) -> None:
        """``gateway`` is there (again) and uses ``holds``. A new process under an old name takes over what that one had."""
        self._witness.heard(now_s)
        self._heard_s[gateway] = now_s
        self._members.add(gateway)
        for replica in holds:
            self._leases.setdefault(replica, _Lease(gateway))

    def heard(self, gateway: str, now_s: float) -> None:
        """It spoke."""
        if gateway in self._heard_s:
            self._witness.heard(now_s)
            self._heard_s[gateway] = now_s
            self._members.add(gateway)

    def acknowledged(self, gateway: str, term: int, version: int, now_s: float) -> None:
        """It routes by this roster from now on."""
        self.heard(gateway, now_s)
        for replica, lease in list(self._leases.items()):
            if lease.gateway == gateway and lease.roster is not None and (term, version) >= lease.roster:
                del self._leases[replica]

    def left(self, gateway: str) -> None:
        """It has drained and left for good."""
        self._members.discard(gateway)
        self._heard_s.pop(gateway, None)
        self._free(gateway)

    # -- what the controller does -------------------------------------------------------------------------------------

    def published(self, term: int, version: int) -> None:
        """A roster made from ``holder`` is out."""
        for lease in self._leases.values():
            if lease.phase is Phase.REVOKING and lease.roster is None:
                lease.roster = (term, version)

    def balance(self, pools: Mapping[str, Wants], now_s: float) -> list[Effect]:
        """Let go of what is over, hand out what is free, and move what is too unevenly held."""
        effects: list[Effect] = []
        if now_s - self._looked_s > self._stall_s:  # whoever spoke meanwhile has not been heard yet
            self._heard_s = dict.fromkeys(self._heard_s, now_s)
        self._looked_s = now_s
        silent = [gateway for gateway, heard_s in self._heard_s.items() if now_s - heard_s > self.lease_s]
        self._members.difference_update(silent)
        for gateway in silent if self._witness.stands(now_s) else ():
            if any(lease.gateway == gateway for lease in self._leases.values()):
                effects.append(Lapse(gateway))
            self.left(gateway)
        serving = {replica for wants in pools.values() for replica in wants.replicas}
        for replica, lease in self._leases.items():
            if replica not in serving and lease.phase is Phase.HELD:
                effects.append(self._revoke(replica))
        if not self._members or (len(self._members) < self._expected and now_s < self._settled_at_s):
            return effects
        self._expected = 0
        for pool, wants in pools.items():
            effects += self._share(pool, wants, now_s)
        return effects

    def _share(self, pool: str, wants: Wants, now_s: float) -> list[Effect]:
        members = sorted(self._members)
        ideal = shares(len(wants.replicas), {gateway: wants.demand.get(gateway) for gateway in members})
        held: dict[str, list[str]] = {gateway: [] for gateway in members}
        free, moving = [], False
        for replica in wants.replicas:
            lease = self._leases.get(replica)
            if lease is None:
                free.append(replica)
            elif lease.phase is Phase.REVOKING:
                moving = True
            else:
                held.setdefault(lease.gateway, []).append(replica)
        effects: list[Effect] = []
        for replica in free:
            poorest = max(members, key=lambda gateway: (ideal[gateway] - len(held[gateway]), -len(held[gateway])))
            held[poorest].append(replica)
            self._leases[replica] = _Lease(poorest)
            effects.append(Grant(replica, poorest))
        giver = self._giver(pool, wants, ideal, {gateway: len(held[gateway]) for gateway in members}, now_s) if not moving else None
        if giver is not None:
            victim = min(held[giver], key=lambda replica: (wants.live_tokens.get(replica, 0.0), replica))
            effects.append(self._revoke(victim))
        return effects

    def _giver(self, pool: str, wants: Wants, ideal: Mapping[str, float], has: Mapping[str, int], now_s: float) -> str | None:
        """Who should give one replica up, if anybody: at once where another one has none, and else after a while of too uneven shares."""
        off = {gateway: has[gateway] - ideal[gateway] for gateway in has}
        giver, taker = max(off, key=off.__getitem__), min(off, key=off.__getitem__)
        if len(wants.replicas) >= len(has) and not min(has.values()):
            return max((gateway for gateway in has if has[gateway] > 1), key=off.__getitem__, default=None)
        known = [wants.demand.get(gateway) for gateway in has]
        told = None not in known and any(known)  # where nobody knows, or nobody asks, shares stay as they are
        if not told or not has[giver] or min(off[giver], -off[taker]) < OFF_REPLICAS:
            self._off.pop(pool, None)
            return None
        who = self._off.get(pool)
        if who is None or who[:2] != (giver, taker):
            who = self._off[pool] = (giver, taker, now_s)
        if now_s - who[2] < OFF_FOR_S:
            return None
        del self._off[pool]
        return giver

    def _revoke(self, replica: str) -> Revoke:
        lease = self._leases[replica]
        lease.phase = Phase.REVOKING
        return Revoke(replica, lease.gateway)

    def _free(self, gateway: str) -> None:
        self._leases = {replica: lease for replica, lease in self._leases.items() if lease.gateway != gateway}

    # -- what is asked ------------------------------------------------------------------------------------------------

    def holder(self, replica: str) -> str:
        """Who may use it by the next roster; empty: nobody."""
        lease = self._leases.get(replica)
        return lease.gateway if lease is not None and lease.phase is Phase.HELD else ""

    def may_use(self, replica: str) -> str:
        """Who may be using it still, or again; empty: surely nobody."""
        lease = self._leases.get(replica)
        return lease.gateway if lease is not None else ""

    @property
    def members(self) -> frozenset[str]:
        """Gateways that are there."""
        return frozenset(self._members)

    def held(self) -> dict[str, str]:
        """Whoever may use what: to be stored, so that the next leader does not grant it twice."""
        return {replica: lease.gateway for replica, lease in self._leases.items()}

    def check(self) -> None:
        """Raises AssertionError unless each lease is of a gateway that is waited for, and a roster is known only to revoke."""
        for replica, lease in self._leases.items():
            assert lease.gateway in self._heard_s, f"{replica} is leased to {lease.gateway}, which nobody waits for"
            assert lease.roster is None or lease.phase is Phase.REVOKING, f"{replica} is {lease.phase}, by a roster"


def shares(replicas: int, demand: Mapping[str, float | None]) -> dict[str, float]:
    """Replicas for each gateway, in proportion to its demand, at least one each where there are enough; equal where none is known."""
    known = {gateway: tokens if tokens >= 1.0 else 0.0 for gateway, tokens in demand.items() if tokens is not None}
    if len(known) < len(demand) or sum(known.values()) <= 0:
        known = dict.fromkeys(demand, 1.0)
    least = 1.0 if replicas >= len(known) else 0.0
    made: dict[str, float] = {}
    left = float(replicas)
    # Those whose proportion is under the least get that; the others share what is left. The poorest are looked at first, so one pass does.
    rest = sum(known.values())
    for gateway in sorted(known, key=lambda one: (known[one], one)):
        share = max(least, left * known[gateway] / rest if rest > 0 else 0.0)
        made[gateway] = share
        left -= share
        rest -= known[gateway]
    return made
