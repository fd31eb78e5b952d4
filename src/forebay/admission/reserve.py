"""When preemptible work may start beside others: some replicas are kept clear of prompts for whatever comes next.

An engine finishes the step it is in, so a prompt that came before is in the way of one that comes during it, however unimportant.
No order in the queue helps there, but the choice of the moment does: a preemptible prompt goes to one replica while others are
clear. How many, the others' own prompts tell: as many as these keep busy. It begins some time after it was sent, so a replica that is
clear by then is clear soon enough. To wait longer than that costs little, until places stand empty: the more are idle, the longer the
way to a clear replica may be. Until it begins the moment can be lost again, to a prompt that takes the last clear replica; then it is
taken back.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from forebay.admission.budget import RESERVE, Replica

DEMAND_TAU_S: Final = 30.0
"""Time constant of the measured demand: what came this long ago counts 1/e."""
FOLD_S: Final = 0.01
"""What came is taken into the demand in steps no shorter than this."""
BUSY_MIN: Final = 0.01
"""Demand that keeps less than this of a replica busy is gone."""
PATIENCE_S: Final = 0.45
"""Seconds until the next clear replica that a wholly idle replica may accept beyond its lag; one with no idle places accepts none."""
LAG_SHARE: Final = 0.6
"""Of its lag, what passes before a prompt that is sent now is in a step of its engine; the rest is that step's own decodes."""
AGAIN_S_MIN = 0.001
"""A moment that is foreseen is asked for no sooner than this after it was not yet there."""


class Reserve:
    """What others than preemptible requests lately asked to have prefilled, and the replicas kept clear for that."""

    __slots__ = ("_at_s", "_tokens_per_s", "arrived_tokens")

    def __init__(self) -> None:
        self.arrived_tokens = 0
        """Uncached prompt tokens of requests that are not preemptible since anybody asked; whoever lets them in adds theirs."""
        self._tokens_per_s = 0.0
        self._at_s = -math.inf

    def tokens_per_s(self, now_s: float) -> float:
        """The demand as of ``now_s``; what came since the last question came evenly since then."""
        passed_s = now_s - self._at_s
        if passed_s > FOLD_S:
            kept = math.exp(-passed_s / DEMAND_TAU_S)
            spread_s = passed_s / (1 - kept) if kept else DEMAND_TAU_S
            self._tokens_per_s = self._tokens_per_s * kept + self.arrived_tokens / spread_s
            self.arrived_tokens = 0
            self._at_s = now_s
        return self._tokens_per_s

    def replicas(self, listed: int, prefill_tokens_per_s: float, now_s: float) -> int:
        """How many of ``listed`` replicas, each prefilling at this pace, are to be clear beside the one that takes preemptible work."""
        if prefill_tokens_per_s <= 0:
            return 0
        busy = self.tokens_per_s(now_s) / prefill_tokens_per_s
        return 0 if busy < BUSY_MIN else min(math.ceil(busy), listed - 1)

    def moment_s(self, replica: Replica, listed: Iterable[Replica], prefill_tokens_per_s: float, now_s: float) -> float:
        """From when on preemptible work that fits on ``replica`` leaves enough of the ``listed`` ones clear, now or soon enough.

        As it is foreseen at ``now_s``, which is the answer where that is so already.
        """
        clear_in_s = sorted([other.clear_in_s(now_s) for other in listed if other is not replica])
        kept = self.replicas(len(clear_in_s) + 1, prefill_tokens_per_s, now_s)
        if kept < 1:
            return now_s
        return now_s + max(0.0, clear_in_s[kept - 1] - patience_s(replica))

    def leaves_none(self, replica: Replica, listed: Sequence[Replica], prefill_tokens_per_s: float, now_s: float) -> bool:
        """Whether, with preemptible work about to begin on ``replica``, none of the ``listed`` ones is clear, now or soon enough."""
        if self.replicas(len(listed), prefill_tokens_per_s, now_s) < 1:
            return False
        soon_s = patience_s(replica)
        return all(other is replica or other.clear_in_s(now_s) > soon_s for other in listed)


def patience_s(replica: Replica) -> float:
    """In how many seconds another replica must be clear for preemptible work to start on ``replica``."""
    return LAG_SHARE * replica.lag_s + PATIENCE_S * idle_share(replica)


def idle_share(replica: Replica) -> float:
    """Fraction 0..1 of the slots or the KV of ``replica``, whichever is fuller, that preemptible work could have and nobody has."""
    capacity = replica.capacity
    taken = replica.sequences / capacity.sequences if capacity.sequences else 1.0
    held = replica.held_tokens / capacity.kv_tokens if capacity.kv_tokens else 1.0
    return max(0.0, 1.0 - RESERVE - max(taken, held))
