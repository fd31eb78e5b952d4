"""The frame around another autoscaler's law: its own tick, its memory in the values, and the pool's limits around its answer.

A law sees a `Seen` and gives an `Answer`: its stages in the order in which its source computes them, each with the number
of replicas that stands after it. The last number is the law's; the first stage that had it binds. The frame alone is
total and silent, so a law may be written as its source is.
"""

import math
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from forebay.domain.replica import PENDING_STATES, ReplicaState
from forebay.domain.scaling import MEMORY_BYTES_MAX, Decision, Observation, ReplicaObservation, Term, TermKind
from forebay.scaling.capacity import REPLICAS_MAX

NOW_S_MAX = 1e12
BEHIND_S_MAX = 1e-6
"""A tick this little early is due: times are sums of binary fractions."""

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)


class Limits(msgspec.Struct, frozen=True):
    """The pool's own bounds, which every one of these autoscalers has too."""

    min_replicas: int = 1
    max_replicas: int = 20


class Seen(NamedTuple):
    """An observation, sorted: what a law may look at on one of its ticks."""

    observation: Observation
    now_s: float
    current: int
    """Replicas asked for (Kubernetes: ``spec.replicas``)."""
    ready: tuple[ReplicaObservation, ...]
    pending: int
    """Asked for and not ready, overdue ones included: none of these autoscalers tells the two apart."""
    booting: int
    """Those of ``pending`` whose container runs already (they load the model)."""
    limits: Limits


class Answer(NamedTuple, Generic[M]):
    """A law's stages, at least one, and what it wants to remember."""

    stages: tuple[Term, ...]
    memory: M


class Law(Protocol[M]):
    """One autoscaler's control law. ``step`` is called once a tick; it may raise on absurd values, the frame then holds."""

    tick_s: float

    def start(self) -> M:
        """The memory before the first tick; its type is the type of every later one."""
        ...

    def step(self, seen: Seen, memory: M, /) -> Answer[M]:
        """The law's stages on one tick."""
        ...


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    """What travels: the time of the last look, when the next tick is due, what bound on the last one, and the law's memory."""

    now_s: float
    due_s: float
    bound: Term | None
    law: msgspec.Raw


class Framed(Generic[M]):
    """`domain.scaling.Policy` of one law for one pool."""

    def __init__(self, law: Law[M], limits: Limits) -> None:
        self._law = law
        self._limits = limits
        self._first = law.start()

    @property
    def law(self) -> Law[M]:
        """The law inside, for those who want to read its settings."""
        return self._law

    def decide(self, observation: Observation) -> Decision:
        """Replicas wanted now, and why. Never raises: what can't be understood is held, with its reason."""
        try:
            if not math.isfinite(observation.now_s) or abs(observation.now_s) > NOW_S_MAX:
                return self._ill(observation, "the observation's clock is ill", observation.memory)
            return self._decide(observation)
        except Exception as error:
            # Memory is the one thing that comes back: were it the cause, keeping it would hold for ever.
            return self._ill(observation, f"the observation is ill ({type(error).__name__})", b"")

    def _decide(self, observation: Observation) -> Decision:
        now_s = float(observation.now_s)
        seen = looked(observation, self._limits)
        due_s, bound, memory = self._load(observation.memory, now_s)
        if now_s < due_s - BEHIND_S_MAX:
            if bound is None or bound.replicas != seen.current:
                bound = Term("between_ticks", TermKind.HOLD, seen.current, f"this autoscaler looks every {self._law.tick_s:g} s")
            return self._said(observation, (bound,), due_s, memory)
        stages, memory = self._law.step(seen, memory)
        # The loop keeps its phase: a driver that looks more seldom than it ticks finds it as often as it can.
        missed = math.floor((now_s + BEHIND_S_MAX - due_s) / self._law.tick_s) if math.isfinite(due_s) else 0
        due_s = (due_s if math.isfinite(due_s) else now_s) + (missed + 1) * self._law.tick_s
        return self._said(observation, stages, due_s, memory)

    def _said(self, observation: Observation, stages: tuple[Term, ...], due_s: float, memory: M) -> Decision:
        now_s = float(observation.now_s)
        terms, index = self._limited(stages)
        bound = terms[index]
        terms[index] = msgspec.structs.replace(bound, binding=True)
        packed = msgspec.msgpack.encode(_Envelope(now_s, due_s, bound, msgspec.Raw(msgspec.msgpack.encode(memory))))
        return Decision(
            pool=observation.pool,
            at_s=now_s,
            replicas=bound.replicas,
            reason=bound.name,
            terms=tuple(terms),
            look_again_at_s=max(due_s, now_s),
            memory=packed if len(packed) <= MEMORY_BYTES_MAX else b"",
        )

    def _limited(self, stages: tuple[Term, ...]) -> tuple[list[Term], int]:
        """All terms, the limits among them, and the place of the one that binds."""
        wanted, least, most = stages[-1].replicas, self._limits.min_replicas, self._limits.max_replicas
        named = {term.name for term in stages}
        limits = [
            Term("min", TermKind.FLOOR, least, f"never fewer than {least}", {"min": float(least)}),
            Term("max", TermKind.CAP, most, f"never more than {most}", {"max": float(most)}),
        ]
        terms = [*stages, *(limit for limit in limits if limit.name not in named)]
        replicas = min(max(wanted, least), most)
        if replicas == wanted:
            return terms, next(place for place, term in enumerate(terms) if term.replicas == replicas)
        limit = "max" if replicas == most else "min"
        return terms, next(place for place, term in enumerate(terms) if term.name == limit)

    def _load(self, data: bytes, now_s: float) -> tuple[float, Term | None, M]:
        """When the next tick is due, what bound, and the law's memory: all new where they can't be believed or the clock was set back."""
        new = (-math.inf, None, self._first)
        if not data or len(data) > MEMORY_BYTES_MAX:
            return new
        try:
            envelope = msgspec.msgpack.decode(data, type=_Envelope)
            memory = msgspec.msgpack.decode(envelope.law, type=type(self._first))
        except (msgspec.DecodeError, RecursionError, ValueError):
            return new
        sane = math.isfinite(envelope.due_s) and envelope.now_s <= now_s < envelope.now_s + NOW_S_MAX
        if not sane or not 0 < envelope.due_s - envelope.now_s <= self._law.tick_s + BEHIND_S_MAX or not _finite(memory):
            return new
        return envelope.due_s, envelope.bound, memory

    def _ill(self, observation: Observation, because: str, memory: bytes) -> Decision:
        """The decision about an observation that can't be understood: what was wanted stays wanted."""
        replicas = min(max(_count(observation.desired), self._limits.min_replicas), self._limits.max_replicas)
        at_s = observation.now_s if isinstance(observation.now_s, int | float) and math.isfinite(observation.now_s) else 0.0
        return Decision(
            pool=observation.pool,
            at_s=at_s,
            replicas=replicas,
            reason="hold_ill",
            terms=(Term("hold_ill", TermKind.HOLD, replicas, because, binding=True),),
            look_again_at_s=at_s + self._law.tick_s,
            memory=memory if len(memory) <= MEMORY_BYTES_MAX else b"",
        )


def looked(observation: Observation, limits: Limits) -> Seen:
    """``observation`` with its replicas sorted, each once."""
    replicas = {replica.id: replica for replica in reversed(observation.replicas)}.values()
    ready = tuple(sorted((replica for replica in replicas if replica.state is ReplicaState.READY), key=lambda replica: replica.id))
    return Seen(
        observation=observation,
        now_s=float(observation.now_s),
        current=_count(observation.desired),
        ready=ready,
        pending=sum(replica.state in PENDING_STATES for replica in replicas),
        booting=sum(replica.state is ReplicaState.LOADING for replica in replicas),
        limits=limits,
    )


def _count(desired: object) -> int:
    return max(0, min(desired, REPLICAS_MAX)) if isinstance(desired, int) else 0


def _finite(value: object) -> bool:
    """Whether every number within a decoded memory is finite (None is no number)."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, msgspec.Struct):
        return all(_finite(getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, tuple | list):
        return all(_finite(item) for item in value)
    return True
