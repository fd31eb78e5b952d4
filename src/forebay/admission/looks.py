"""What is seen of an admission machine by whoever looks into it: values, made where somebody asks."""

import msgspec

from forebay.admission.outcomes import Shortage


class TeamLoad(msgspec.Struct, frozen=True):
    """One team in one lane, for whoever looks; tokens are virtual ones."""

    tier: str
    team: str
    waiting: int
    waiting_tokens: int
    given_tokens: int
    """Since the gateway started."""


class Position(msgspec.Struct, frozen=True):
    """Where a request stands."""

    tier: str
    waiting: bool
    """False: it holds a permit, and nothing is before it."""
    ahead: int
    """Requests that start before it, if nothing else comes."""
    ahead_tokens: int
    """Their virtual tokens."""
    waited_s: float
    starts_in_s: float | None
    """At the measured pace, else as foreseen without one; None: nothing is known."""
    refused_in_s: float
    """How long it will wait at most."""
    short_of: Shortage | None = None
    """What the least loaded replica is missing for it; None: it doesn't wait."""
