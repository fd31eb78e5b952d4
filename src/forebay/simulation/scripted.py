"""Policies that look at nothing: a fixed number of replicas, and a number by the clock. Yardsticks for those that do."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from forebay.domain.scaling import Decision, Observation, Term, TermKind

LOOK_S = 3600.0


class Scripted:
    """``domain.scaling.Policy``: from each ``at_s`` (world seconds) on, ``replicas``; before the first, the first's.

    Raises ValueError unless there is at least one step, times rise and replicas are 0 or more.
    """

    def __init__(self, steps: Sequence[tuple[float, int]], name: str = "scripted") -> None:
        if not steps or any(later[0] <= sooner[0] for sooner, later in pairwise(steps)):
            raise ValueError("a script is at least one step, at times that rise")
        if any(replicas < 0 for _, replicas in steps):
            raise ValueError("a script's replicas are 0 or more")
        self._times = [at_s for at_s, _ in steps]
        self._replicas = [replicas for _, replicas in steps]
        self._name = name

    def decide(self, observation: Observation) -> Decision:
        """The step that holds now; it asks to be asked again at the next one."""
        now_s = observation.now_s
        after = bisect_right(self._times, now_s)
        replicas = self._replicas[max(0, after - 1)]
        next_s = self._times[after] if after < len(self._times) else now_s + LOOK_S
        term = Term(self._name, TermKind.FLOOR, replicas, "by the script", binding=True)
        return Decision(observation.pool, now_s, replicas, self._name, (term,), look_again_at_s=next_s)


class Static(Scripted):
    """Always ``replicas``."""

    def __init__(self, replicas: int, name: str = "static") -> None:
        super().__init__([(0.0, replicas)], name)
