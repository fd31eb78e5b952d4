"""What a call needs of the gateway it runs in, and no more."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable

from forebay.gateway.desk import Desk
from forebay.gateway.failures import Failures
from forebay.gateway.holders import Holders
from forebay.gateway.latencies import Latencies
from forebay.gateway.lending import Lending
from forebay.gateway.passed import PassedHeads
from forebay.gateway.pool_desk import PoolDesk
from forebay.gateway.records import Records
from forebay.gateway.retries import HeldIds, RetryBudget
from forebay.gateway.usage import UsageBook
from forebay.gateway.watching import Watching
from forebay.ports.upstream import Upstream
from forebay.spec.types import Limits


class Context(ABC):
    """What every call of one gateway shares."""

    desk: Desk
    upstream: Upstream
    limits: Limits
    chance: random.Random
    speed: float
    passed_heads: PassedHeads
    foreign_heads: PassedHeads
    retries: RetryBudget
    held_ids: HeldIds
    failures: Failures
    lending: Lending | None
    """To relay workers; None: there are none."""
    holders: Holders
    latencies: Latencies
    records: Records
    usage: UsageBook
    background: Watching

    @abstractmethod
    def asks_key(self, url: str, status: int) -> None:
        """The engine at ``url`` answered ``status``: it asks for a key that it isn't shown."""

    @abstractmethod
    def doubted(self, pool: PoolDesk, replica: str, url: str, path: bytes) -> None:
        """``replica`` knows nothing of what it is attached for, which another one of ``pool`` has just answered at that path."""

    @abstractmethod
    def truncated(self, pool: str, why: str) -> None:
        """A stream was broken off after its first content."""

    @abstractmethod
    def abort_by_id(self, url: str, path: bytes, request_id: bytes) -> None:
        """Tell an engine that doesn't notice that a request is over."""

    @abstractmethod
    def detokenize(self, url: str, model: str, ids: bytes, done: Callable[[str | None], None]) -> None:
        """Ask an engine for the text of tokens; ``done`` gets None where it doesn't say. Not called before this returns."""
