"""A policy that is watched while it is played: which decision was in force at the times that were asked about."""

from collections.abc import Sequence

import msgspec

from forebay.domain.scaling import Decision, Observation, Policy

MOMENTS_MAX = 100
"""Times that may be asked about in one run."""


class Witness:
    """``policy``, of which the decisions in force at ``moments_s`` are kept, without their memories."""

    def __init__(self, policy: Policy, moments_s: Sequence[float]) -> None:
        """At most MOMENTS_MAX times of the run, each from 0 on."""
        self._policy = policy
        self._due = sorted(set(moments_s))[:MOMENTS_MAX]
        self._found: list[tuple[float, Decision]] = []
        self._last: Decision | None = None

    def decide(self, observation: Observation) -> Decision:
        """As the policy does."""
        while self._last is not None and self._due and self._due[0] < observation.now_s:
            self._found.append((self._due.pop(0), self._last))
        decision = self._policy.decide(observation)
        self._last = msgspec.structs.replace(decision, memory=b"")
        return decision

    def found(self) -> tuple[tuple[float, Decision], ...]:
        """``(moment_s, decision)``, the earliest first; of moments after the last decision, that one."""
        last = self._last
        return (*self._found, *((moment_s, last) for moment_s in self._due if last is not None))
