"""How fast a pool goes while none of its lanes has been measured: for the first seconds of an overload, when most is decided.

Best, from requests that ended: the virtual tokens that each second of a permit brought × the permits there are now. Before some have ended,
what the profile declares, and no faster than if everything that runs ended at this moment, which tells a pool that stands still. Tokens are
those estimated at arrival, as they are of what waits: where estimates are wrong, they are wrong on both sides (and where they have learned
since, `pace.Pace.outgrown` says by how much).
"""

from collections.abc import Sequence
from typing import Final

from forebay.admission.budget import Replica

ENDED_MIN: Final = 8.0
"""Requests that must have ended before what they took is a pace."""
ENDED_MAX: Final = 128.0
"""As many and more are halved with what they took, so that the last hundred count."""
SPARSELY: Final = 7
"""While nothing waits, only tickets without these bits are counted: it costs a request a twentieth of all that admission does."""
RUN_S_MIN: Final = 5.0
"""Younger ones tell nothing by not having ended."""
LOOK_EVERY_S: Final = 0.1
"""What runs is added up anew no more often than this."""
MARGIN: Final = 1.5
"""A request is refused by a pace that isn't measured only where the wait would be longer than its longest by this factor."""


class Served:
    """What the requests of one pool took that ended, and whether what runs moves."""

    __slots__ = ("_best_per_s", "_ended", "_held_s", "_looked_s", "_run_s", "_tokens", "running_tokens")

    def __init__(self) -> None:
        self._ended = 0.0
        self._tokens = 0.0
        self._held_s = 0.0
        self._looked_s = float("-inf")
        self._run_s = 0.0
        """How long all that run have been running, when last looked at."""
        self._best_per_s: float | None = None
        self.running_tokens = 0.0
        """Virtual tokens of one that runs, when last looked at."""

    def ended(self, tokens: int, held_s: float) -> None:
        """A request ended that was estimated to take so many virtual tokens, ``held_s`` after it was dispatched."""
        self._ended += 1
        self._tokens += tokens
        self._held_s += held_s
        if self._ended >= ENDED_MAX:
            self._ended /= 2
            self._tokens /= 2
            self._held_s /= 2

    @property
    def each_tokens(self) -> float:
        """Of those virtual tokens, one request's."""
        return self._tokens / self._ended if self._ended else 0.0

    def tokens_per_s(self, replicas: Sequence[Replica], now_s: float) -> float | None:
        """Virtual tokens per second that those of ``replicas`` which run bring; None: too few have ended, or none run.

        The first to end are the short ones: until as many have ended as run, what runs has its say by how long it has not ended.
        """
        running = sum(len(replica.permits) for replica in replicas)
        if self._ended < ENDED_MIN or not running or self._held_s <= 0 or self._tokens <= 0:
            return None
        held_s, young = self._held_s, 2 - self._ended / running
        if young > 0:
            self._look(replicas, now_s)
            held_s += min(1.0, young) * self._run_s
        return self._tokens / held_s * running

    def best_per_s(self, replicas: Sequence[Replica], now_s: float) -> float | None:
        """The same if all that runs ended now, as estimated at arrival; None: what runs is too young to tell."""
        self._look(replicas, now_s)
        return self._best_per_s

    def _look(self, replicas: Sequence[Replica], now_s: float) -> None:
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            permits = [permit for replica in replicas for permit in replica.permits.values()]
            run_s = self._run_s = sum([now_s - permit.dispatched_s for permit in permits])
            tokens = sum([permit.cost for permit in permits])
            self.running_tokens = tokens / len(permits) if permits else 0.0
            self._best_per_s = tokens * len(permits) / run_s if permits and tokens > 0 and run_s >= RUN_S_MIN * len(permits) else None
