"""What a policy would know and hold by ``--start``: it is played through the time just before, which is not counted.

History feeds its forecast; what replicas sustain, how lengths stray and what it answers to are learned by doing. So each run
has a lead-in of the same arrivals without faults. What is taken over is what outlives a restart of the controller, the
policy's memory, and the number of replicas it had; engines begin empty.
"""

from collections.abc import Callable

import msgspec
import numpy as np

from forebay.app.lab.faults import FaultPlan
from forebay.app.lab.playing import play_one
from forebay.app.lab.world import Prepared, Tell, scenario
from forebay.domain.scaling import Decision, History, Observation, Policy

LEAD_IN_S_MAX = 3 * 3600.0
"""An hour teaches most of it (azure2024 at two days: of three seeds two begin as after half a day), three all."""
LEAD_IN_REQUESTS_MAX = 1_000_000
"""Some seconds of each run at most."""


class Remembering:
    """``policy``, which begins with a memory, and whose last one is kept."""

    def __init__(self, policy: Policy, memory: bytes = b"") -> None:
        self._policy = policy
        self._begin_with: bytes | None = memory
        self.memory = memory

    def decide(self, observation: Observation) -> Decision:
        """As the policy does."""
        if self._begin_with is not None:
            observation = msgspec.structs.replace(observation, memory=self._begin_with)
            self._begin_with = None
        decision = self._policy.decide(observation)
        self.memory = decision.memory
        return decision


def length_s(past: History | None) -> float:
    """Seconds before the span that a lead-in takes: unbroken ones, for what is not known would be played as idle. 0: none."""
    if past is None:
        return 0.0
    # The newest first.
    counts = np.nan_to_num(np.frombuffer(past.requests, "<f4").astype(np.float64))[::-1][: int(LEAD_IN_S_MAX / past.bucket_s)]
    usable = (counts > 0) & (np.cumsum(counts) <= LEAD_IN_REQUESTS_MAX)
    return past.bucket_s * (len(counts) if usable.all() else int(np.argmin(usable)))


def begun(ready: Prepared, make: Callable[[], Policy], name: str, seed: int, tell: Tell) -> tuple[Prepared, Policy]:
    """``ready`` with the replicas that the policy had at its second 0, and the policy with what it knew."""
    lead_s = length_s(ready.past)
    if not lead_s:
        return ready, make()
    trace = ready.request.trace
    before = msgspec.structs.replace(
        ready,
        request=msgspec.structs.replace(
            ready.request,
            trace=msgspec.structs.replace(trace, start_s=trace.start_s - lead_s, duration_s=lead_s),
            faults=FaultPlan(),
            faults_text="",
        ),
        duration_s=lead_s,
        # Unknown stays unknown: the scenario then goes by where the span begins.
        start_wall_s=ready.start_wall_s and ready.start_wall_s - lead_s,
    )
    learner = Remembering(make())
    run = play_one(before, scenario(before, seed), learner, name, seed, tell)
    return msgspec.structs.replace(ready, initial_replicas=run.timeline[-1].desired), Remembering(make(), learner.memory)
