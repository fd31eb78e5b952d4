"""The orderly retreat of a replica: leave the roster, be acknowledged, run empty, stop. Nothing is stopped under a stream.

The whole life is the PHASES table. An engine may stop once every gateway of record has acknowledged a roster without it
(or that gateway's lease is over) *and* a later look saw no live stream; or once its deadline is past, which is the only
way a stream is ever cut. Until then the retreat can be called off and the replica serves again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec


class Phase(StrEnum):
    """Where a retreat is."""

    LISTED = "listed"
    """Begun; no roster without the replica is out yet."""
    AWAITING = "awaiting"
    """A roster without it is out; some gateway may still send requests."""
    EMPTYING = "emptying"
    """Nobody sends requests any more; streams finish."""
    STOPPED = "stopped"
    """Told to stop: there is no way back."""


PHASES: dict[Phase, frozenset[Phase]] = {
    Phase.LISTED: frozenset({Phase.AWAITING, Phase.STOPPED}),
    Phase.AWAITING: frozenset({Phase.EMPTYING, Phase.STOPPED}),
    Phase.EMPTYING: frozenset({Phase.AWAITING, Phase.STOPPED}),
    Phase.STOPPED: frozenset(),
}
"""EMPTYING → AWAITING: a gateway joined that may hold an older roster. Cancelling removes the retreat from any phase but STOPPED."""


class Withdraw(msgspec.Struct, frozen=True, tag="withdraw"):
    """Publish a roster without this replica and mark it as draining; signal nothing."""

    replica_id: str
    deadline_s: float


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Stop the engine. ``cut_streams``: the deadline is past and streams may be live."""

    replica_id: str
    cut_streams: bool


class Restore(msgspec.Struct, frozen=True, tag="restore"):
    """The retreat is off: the replica returns to the roster and serves."""

    replica_id: str


Effect = Withdraw | Stop | Restore


@dataclass
class _Leaving:
    deadline_s: float
    phase: Phase = Phase.LISTED
    roster: tuple[int, int] | None = None
    awaited: set[str] = field(default_factory=set)
    streams: int | None = None
    """Live streams seen since the phase was entered; None: not known."""

    def move(self, target: Phase) -> None:
        if target not in PHASES[self.phase]:
            raise ValueError(f"a retreat can't go from {self.phase} to {target}")
        self.phase = target
        self.streams = None


class Retreat:
    """All retreats under one roster. Times are world seconds; its size is bounded by the replicas of the fleet."""

    def __init__(self, lease_s: float, drain_s_max: float) -> None:
        self._lease_s = lease_s
        self._drain_s_max = drain_s_max
        self._leaving: dict[str, _Leaving] = {}
        self._lease_ends_s: dict[str, float] = {}
        """Gateways that are lost, until they are heard again."""
        self._now_s = float("-inf")

    def begin(self, replica_id: str, now_s: float, drain_s_max: float | None = None) -> list[Effect]:
        """Start a retreat; without effect if one is under way. ``drain_s_max`` overrides the default for this replica."""
        if replica_id in self._leaving:
            return self.advance(now_s)
        deadline_s = now_s + (self._drain_s_max if drain_s_max is None else drain_s_max)
        self._leaving[replica_id] = _Leaving(deadline_s)
        return [Withdraw(replica_id, deadline_s), *self.advance(now_s)]

    def cancel(self, replica_id: str, now_s: float) -> list[Effect]:
        """``[Restore]`` if nothing was signalled yet; without effect where it is too late or nothing was begun."""
        effects = self.advance(now_s)
        if self.cancellable(replica_id):
            del self._leaving[replica_id]
            effects.append(Restore(replica_id))
        return effects

    def cancellable(self, replica_id: str) -> bool:
        """Whether this replica retreats and may still be taken back."""
        leaving = self._leaving.get(replica_id)
        return leaving is not None and leaving.phase is not Phase.STOPPED

    def roster_published(self, term: int, version: int, without: Iterable[str], gateways: Iterable[str], now_s: float) -> list[Effect]:
        """Roster (``term``, ``version``) is out and lacks the replicas ``without``; ``gateways`` of record must acknowledge it."""
        gateways = frozenset(gateways)
        for replica_id in without:
            leaving = self._leaving.get(replica_id)
            if leaving is not None and leaving.phase is Phase.LISTED:
                leaving.roster = (term, version)
                leaving.awaited = set(gateways)
                leaving.move(Phase.AWAITING)
        return self.advance(now_s)

    def acknowledged(self, gateway: str, term: int, version: int, now_s: float) -> list[Effect]:
        """``gateway`` routes by this roster from now on; an older one than a retreat needs changes nothing for it."""
        self._lease_ends_s.pop(gateway, None)
        for leaving in self._leaving.values():
            if leaving.roster is not None and (term, version) >= leaving.roster:
                leaving.awaited.discard(gateway)
        return self.advance(now_s)

    def gateway_joined(self, gateway: str, now_s: float) -> list[Effect]:
        """``gateway`` (re)connected: it may route by an older roster until it acknowledges a newer one."""
        self._lease_ends_s.pop(gateway, None)
        for leaving in self._leaving.values():
            if leaving.phase in {Phase.AWAITING, Phase.EMPTYING}:
                leaving.awaited.add(gateway)
                if leaving.phase is Phase.EMPTYING:
                    leaving.move(Phase.AWAITING)
        return self.advance(now_s)

    def gateway_lost(self, gateway: str, now_s: float) -> list[Effect]:
        """``gateway`` was last heard at ``now_s``: it holds back stops for one lease more, unless it is heard again."""
        self._lease_ends_s.setdefault(gateway, now_s + self._lease_s)
        return self.advance(now_s)

    def gateway_left(self, gateway: str, now_s: float) -> list[Effect]:
        """``gateway`` has drained and left for good: nothing waits for it."""
        self._lease_ends_s.pop(gateway, None)
        for leaving in self._leaving.values():
            leaving.awaited.discard(gateway)
        return self.advance(now_s)

    def live(self, replica_id: str, streams: int | None, now_s: float) -> list[Effect]:
        """Live streams on a replica, looked at *now*; None: not known, so it keeps waiting."""
        effects = self.advance(now_s)
        leaving = self._leaving.get(replica_id)
        if leaving is not None and leaving.phase is not Phase.STOPPED:
            leaving.streams = streams
        return effects + self.advance(now_s)

    def gone(self, replica_id: str) -> None:
        """The replica no longer exists (stopped, or crashed while it drained): forget its retreat."""
        self._leaving.pop(replica_id, None)

    def advance(self, now_s: float) -> list[Effect]:
        """Everything that is due at ``now_s``. Time never runs backwards here: an earlier ``now_s`` counts as the latest one."""
        self._now_s = max(self._now_s, now_s)
        lapsed = {gateway for gateway, end_s in self._lease_ends_s.items() if end_s <= self._now_s}
        for gateway in lapsed:
            del self._lease_ends_s[gateway]
        effects: list[Effect] = []
        for replica_id, leaving in self._leaving.items():
            leaving.awaited -= lapsed
            if leaving.phase is Phase.AWAITING and not leaving.awaited:
                leaving.move(Phase.EMPTYING)
            empty = leaving.phase is Phase.EMPTYING and leaving.streams == 0
            if leaving.phase is not Phase.STOPPED and (empty or self._now_s >= leaving.deadline_s):
                leaving.move(Phase.STOPPED)
                effects.append(Stop(replica_id, cut_streams=not empty))
        return effects

    def next_deadline_s(self) -> float | None:
        """When ``advance`` has something to do at the latest; None if only a call can move anything."""
        active = [leaving for leaving in self._leaving.values() if leaving.phase is not Phase.STOPPED]
        times = [leaving.deadline_s for leaving in active]
        awaited = set().union(*(leaving.awaited for leaving in active))
        times += [end_s for gateway, end_s in self._lease_ends_s.items() if gateway in awaited]
        return min(times, default=None)

    def phase(self, replica_id: str) -> Phase | None:
        """Where this replica's retreat is; None if it has none."""
        leaving = self._leaving.get(replica_id)
        return leaving.phase if leaving is not None else None

    def leaving(self) -> frozenset[str]:
        """Replicas that must be absent from every roster: all that retreat or were stopped and are not gone yet."""
        return frozenset(self._leaving)

    def check(self) -> None:
        """Invariants; raises AssertionError with the one that is broken."""
        for replica_id, leaving in self._leaving.items():
            if leaving.phase in {Phase.AWAITING, Phase.EMPTYING}:
                assert leaving.roster is not None, f"{replica_id}: {leaving.phase} before a roster without it is out"
                waits = leaving.phase is Phase.AWAITING
                assert bool(leaving.awaited) is waits, f"{replica_id}: {leaving.phase} while it awaits {sorted(leaving.awaited)}"
            if leaving.phase is Phase.LISTED:
                assert leaving.roster is None, f"{replica_id}: listed, yet a roster without it is out"
            if leaving.phase is not Phase.STOPPED:
                assert self._now_s < leaving.deadline_s, f"{replica_id}: past its deadline"
