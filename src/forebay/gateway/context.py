"""What a call needs of the gateway it runs in, and no more."""

import random
from typing import Protocol

from forebay.gateway.answers import PassedHeads
from forebay.gateway.desk import Desk
from forebay.gateway.holders import Holders
from forebay.ports.upstream import Upstream
from forebay.spec.types import Limits


class Context(Protocol):
    """What every call of one gateway shares."""

    desk: Desk
    upstream: Upstream
    limits: Limits
    chance: random.Random
    speed: float
    passed_heads: PassedHeads
    holders: Holders

    def serves(self, url: str) -> bool:
        """Whether the present roster has a replica there."""
        ...

    def truncated(self, pool: str, why: str) -> None:
        """A stream was broken off after its first content."""
        ...
