"""B16: Chiron, as SageServe's authors wrote it for comparison: the share of instances that serve interactive work, around 0.6.

Above it one more, else one fewer: there is no dead band, and one action is under way at a time, for as long as it takes to
reclaim an instance of one's own (65 s there). All instances of one pool are mixed ones. Its rule for batch needs batch as
demand, which Forebay's signals leave out, so it is left out too. With requests spread over all replicas the share is ~1 at
almost any load. What it does without metrics is not defined: it holds. Source: kjain1810/SageServe fcfde736, arbiter.py:624-720.
"""

import msgspec

from forebay.domain.scaling import Term, TermKind
from forebay.scaling.baselines import reading
from forebay.scaling.baselines.frame import Answer, Seen
from forebay.scaling.baselines.reading import Gap

TICK_S = 10.0


class ChironSettings(msgspec.Struct, frozen=True):
    """``share``: the threshold; ``action_s``: how long an action is under way."""

    share: float = 0.6
    action_s: float = 65.0


class ChironMemory(msgspec.Struct, frozen=True, array_like=True):
    """Until when an action is under way."""

    busy_until_s: float | None = None


class Chiron:
    """Interactive back-pressure."""

    tick_s = TICK_S

    def __init__(self, settings: ChironSettings = ChironSettings()) -> None:
        self.settings = settings

    def start(self) -> ChironMemory:
        return ChironMemory()

    def step(self, seen: Seen, memory: ChironMemory) -> Answer[ChironMemory]:
        now_s, current = seen.now_s, seen.current
        if memory.busy_until_s is not None and now_s < memory.busy_until_s:
            return Answer((reading.hold(seen, "scaling_in_progress", "an action is under way"),), memory)
        told = [reading.read(replica.running) for replica in seen.ready]
        known = [value for value in told if not isinstance(value, Gap)]
        if not known or len(known) < len(told):
            return Answer((reading.hold(seen, "no_metric", "an instance does not tell what it runs"),), memory)
        share = sum(value > 0 for value in known) / len(known)
        numbers = {"share": share, "threshold": self.settings.share}
        after = ChironMemory(now_s + self.settings.action_s)
        if share > self.settings.share:
            return Answer((Term("back_pressure", TermKind.TRIGGER, current + 1, f"{share:.0%} of the instances serve", numbers),), after)
        wanted = max(1, current - 1)
        return Answer((Term("slack", TermKind.SCALE_IN, wanted, f"only {share:.0%} of the instances serve", numbers),), after)
