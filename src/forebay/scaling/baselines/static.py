"""No autoscaler: a fixed number of replicas. What is saved is measured against it."""

import msgspec

from forebay.domain.scaling import Term, TermKind
from forebay.scaling.baselines.frame import Answer, Seen

TICK_S = 60.0


class StaticMemory(msgspec.Struct, frozen=True, array_like=True):
    """Nothing."""


class Static:
    """Always ``replicas``, whatever is observed."""

    tick_s = TICK_S

    def __init__(self, replicas: int, because: str = "a fixed number of replicas") -> None:
        self.replicas = replicas
        self.because = because

    def start(self) -> StaticMemory:
        return StaticMemory()

    def step(self, _seen: Seen, memory: StaticMemory) -> Answer[StaticMemory]:
        return Answer((Term("static", TermKind.FLOOR, self.replicas, self.because),), memory)
