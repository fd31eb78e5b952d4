"""How long a request that goes from one pool to another may go on waiting."""

import msgspec


class Waits(msgspec.Struct, frozen=True):
    """How long a request that moves waits: world seconds in a lane, real ones for its client, and for what."""

    longest_s: float
    ttft_s: float
    """After which it is late: none is left, or less, to one that is."""
    patience_s: float
    whole: bool
