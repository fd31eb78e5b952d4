"""This gateway's shares of teams' limits, where there are several: told to the controller, given by it, and given up in time.

The decisions are `admission.shares`. A share is good for as long as leased replicas are (`admission.lessee`); one of a process that was
stopped for longer, or of a gateway that yielded its replicas, may be another's by now, and is given up.
"""

import math

import msgspec

from forebay.admission.lessee import ASK_FRACTION, HELD_FRACTION
from forebay.admission.quotas import Cap, Hold, Quota
from forebay.domain.roster import LimitUse, SharesGiven, SharesUsed, Snapshot
from forebay.spec.types import TeamLimits

GAP_FRACTION = ASK_FRACTION + 0.04
"""Of a lease: that its end is noticed late by more than a question to the others takes means that this process was stopped."""


class SharedLimits:
    """All quotas of one gateway. It is off, and costs nothing, until limits are divided."""

    def __init__(self, quotas: dict[str, Quota]) -> None:
        self.on = False
        self._quotas = quotas
        self._hold = Hold()
        self._session = 0.0
        self._seen = 0

    def begin(self, now_s: float) -> None:
        """There are several gateways: nothing of any limit is this one's until it is told so."""
        if not self.on:
            self.on = True
            for quota in self._quotas.values():
                quota.divide(self._hold, now_s)

    def end(self, now_s: float) -> None:
        """Nobody divides: all of each limit is this gateway's."""
        if self.on:
            self.on = False
            for quota in self._quotas.values():
                quota.undivide(now_s)

    def quota(self, limits: TeamLimits) -> Quota:
        """Of a team that has just got limits."""
        return Quota(limits, self._hold if self.on else None)

    def greets(self, now_s: float) -> float:
        """Another connection to a controller: nothing comes by the one before any more. What it is known by; 0 while this is off."""
        self._session, self._seen = now_s if self.on else 0.0, 0
        return self._session

    def report(self, now_s: float) -> SharesUsed | None:
        """What the controller is told; what buckets freed is told once."""
        if not self.on:
            return None
        rows = [LimitUse(team, *row) for team, quota in self._quotas.items() for row in quota.told(now_s)]
        return SharesUsed(self._session, self._seen, tuple(rows))

    def told_with(self, snapshot: Snapshot) -> Snapshot:
        """``snapshot`` as the controller gets it."""
        shares = self.report(snapshot.at_s)
        return snapshot if shares is None else msgspec.structs.replace(snapshot, shares=shares)

    def given(self, given: SharesGiven | None, said_s: float, lease_s: float, now_s: float) -> None:
        """What it answers to what was said at ``said_s``. An answer that was so long on its way may have been taken back since."""
        if given is None:
            self.end(now_s)
            return
        self.begin(now_s)
        self._see_gap(lease_s, now_s)
        if said_s + HELD_FRACTION * lease_s <= now_s:
            return
        self._seen = max(self._seen, given.version)
        for share in given.rows:
            quota = self._quotas.get(share.team)
            if quota is not None:
                quota.share(Cap(share.cap), share.units, share.fill, now_s)

    def good_until(self, until_s: float, lease_s: float, now_s: float, *, yielded: bool) -> None:
        """Leased replicas may be used until then. ``yielded``: not at all, as another gateway hears the controller."""
        self._see_gap(lease_s, now_s)
        if yielded:
            self._give_up(now_s)
        if until_s > now_s or self._hold.until_s > -math.inf:
            self._hold.until_s = until_s

    def _see_gap(self, lease_s: float, now_s: float) -> None:
        if -math.inf < self._hold.until_s < now_s - GAP_FRACTION * lease_s:
            self._give_up(now_s)

    def _give_up(self, now_s: float) -> None:
        self._hold.until_s = -math.inf
        for quota in self._quotas.values():
            for cap in Cap:
                quota.share(cap, 0, 0.0, now_s)
