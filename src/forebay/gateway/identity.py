"""Who asks, and which tier they get: a key names a team and a default tier, and a request may only lower it.

Keys are kept and looked up as digests, so that neither a dump of the process nor the time a comparison takes tells one.
"""

import hashlib
from typing import Final

from forebay.gateway.answers import ErrorReply, bad_request
from forebay.gateway.holding import Holding
from forebay.spec.types import Spec, Team, Tier

ANONYMOUS = "anonymous"
FLEX: Final = "flex"
"""OpenAI's value for what may wait."""
_DEFAULTS = frozenset({"auto", "default", "scale", "priority", "standard_only"})
"""OpenAI's values, and Anthropic's, that ask for the usual or for more; more is never given, so both mean the key's own tier."""

UNAUTHORIZED = ErrorReply(
    401,
    "invalid_request_error",
    "invalid_api_key",
    "Incorrect or missing API key. Send 'Authorization: Bearer <key>' (or 'x-api-key: <key>') with a key of your team.",
)


class Caller:
    """One key: whose it is, and the tier of requests made with it."""

    __slots__ = ("allowed", "holding", "residency", "team", "tier")

    def __init__(
        self, team: str, tier: Tier, allowed: dict[str, Tier], residency: tuple[str, ...] = (), holding: Holding | None = None
    ) -> None:
        """``allowed``: tiers that ``service_tier`` may choose: those the team may use, of the key's own rank or lower.

        ``holding``: what the team's bodies that are held are counted in; None: no team has to be kept from taking another's room.
        """
        self.residency = residency
        """Regions; empty: any."""
        self.team = team
        self.tier = tier
        self.allowed = allowed
        self.holding = holding


class Identity:
    """All keys of a spec. Without teams everybody is ``anonymous``, at the top tier."""

    def __init__(self, spec: Spec, before: "Identity | None" = None) -> None:
        """``before``: by whom requests were known that are inside still: what their teams hold is counted on."""
        self.holdings: dict[str, Holding] = {}
        if len(spec.teams) > 1:
            held = before.holdings if before is not None else self.holdings
            self.holdings = {team.name: held.get(team.name) or Holding() for team in spec.teams}
        self._tiers = sorted(spec.tiers, key=lambda tier: tier.rank)
        self._by_name = {tier.name: tier for tier in spec.tiers}
        self._aliases = {alias: tier.name for tier in spec.tiers for alias in tier.aliases}
        self._callers: dict[bytes, Caller] = {}
        for team in spec.teams:
            for secret, tier in team.keys:
                self._callers[_digest(secret.encode())] = self._caller(team, tier)
        self.anonymous = None if spec.teams else self._caller(Team(ANONYMOUS, ()), self._tiers[0].name)

    def caller(self, authorization: bytes) -> Caller | None:
        """Whose ``Authorization`` header that is, or None."""
        if self.anonymous is not None:
            return self.anonymous
        if authorization[:7].lower() != b"bearer ":
            return None
        return self._callers.get(_digest(authorization[7:].strip()))

    def tier(self, caller: Caller, asked: str) -> Tier | ErrorReply:
        """The tier a request gets: ``asked`` where it lowers, the key's own where it would raise."""
        asked, named = self._aliases.get(asked, asked), asked
        if asked in caller.allowed:
            return caller.allowed[asked]
        if asked in self._by_name and self._by_name[asked].rank < caller.tier.rank:
            return caller.tier
        if asked == FLEX:
            return max(caller.allowed.values(), key=lambda tier: tier.rank, default=caller.tier)
        if asked in _DEFAULTS:
            return caller.tier
        names = ", ".join([*caller.allowed, *(alias for alias, name in self._aliases.items() if name in caller.allowed)])
        return bad_request(f"service_tier {named!r} is not one this key may use. Allowed: {names}, auto, default, flex.", "service_tier")

    def _caller(self, team: Team, name: str) -> Caller:
        """Each tier as it is promised to this team, which may have a promise of its own."""
        promised = self._by_name | {own.name: own for own in team.promises}
        tier = promised[name]
        lower = [other.name for other in self._tiers if other.rank >= tier.rank and (not team.tiers or other.name in team.tiers)]
        allowed = {other: promised[other] for other in (*lower, name)}
        return Caller(team.name, tier, allowed, team.residency, self.holdings.get(team.name))


def told_tier(asked: str, tier: Tier) -> str:
    """What a client that asked for ``service_tier`` is told of the one that served it, in its own words where it got that."""
    if asked == FLEX or asked == tier.name or asked in tier.aliases:
        return asked
    return "default" if asked in _DEFAULTS else tier.name


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
