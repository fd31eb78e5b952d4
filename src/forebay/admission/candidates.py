"""What was decided when a request was sent: how the replicas compared, what its permit took, how its team stood; `weighing` computes it."""

import msgspec


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One replica, for one request."""

    replica: str
    load: float
    """Share of its tightest budget in use (KV, slots, or both with outstanding prefill): the least loaded goes first…"""
    streams: int
    prefill_tokens: int
    """Outstanding before the request's own prompt."""
    cached_tokens: int
    """Of its prompt, foreseen to be cached there: it goes where least is prefilled before its first token, within a bound of load."""
    short_of: str
    """What it lacked there (`Shortage`); empty: it fitted; ``failed``: it had failed it before."""
    chosen: bool = False


class Permit(msgspec.Struct, frozen=True, gc=False):
    """What it took of the budgets of its replica."""

    kv_tokens: int
    """Of its own at its end: the prompt, and the output as estimated."""
    sequences: int
    prefill_tokens: int
    """Of its prompt, but for what was foreseen to be cached."""


class TeamShare(msgspec.Struct, frozen=True, gc=False):
    """Its team in its lane, with the request itself."""

    given: float
    """Of all virtual tokens that the lane has given since its gateway started."""
    due: float
    """Its weight among the teams that had something waiting there; 1: none did."""
    waiting_teams: int
    """The others that had."""


class Weighed(msgspec.Struct, frozen=True, gc=False):
    """All of it."""

    candidates: tuple[Candidate, ...] = ()
    permit: Permit | None = None
    share: TeamShare | None = None
    """None: there are more than `weighing.TEAMS_MAX` teams."""


UNWEIGHED = Weighed()
