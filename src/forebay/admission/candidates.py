"""How a replica that a request could have gone to compared when it was sent; `weighing` computes it."""

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
