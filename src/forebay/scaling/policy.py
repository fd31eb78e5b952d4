"""The default policy: floors from arithmetic, triggers from the queue, and no step down without proof. One term binds.

``decide`` reads in five steps: see, remember, floors and triggers, the way down or a hold, the cap. Floors and triggers
take effect at once and at their maximum; everything that would lower the count must pass `scale_in`. What it trades away
is money for a quarter of an hour after each peak.

A driver that keeps the largest ramp of each day takes ``present_ramp_per_s2`` from the numbers of the ``buffer`` term:
a bare difference of two readings is mostly chance, and would buy replicas for weeks.
"""

import math
from collections.abc import Sequence

import msgspec

from forebay.domain.roster import Posture
from forebay.domain.scaling import MEMORY_BYTES_MAX, Decision, Observation, Term, TermKind
from forebay.scaling import alerts, arrivals, floors, scale_in, triggers
from forebay.scaling import memory as memories
from forebay.scaling import sight as sights
from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.memory import Held, Memory, held
from forebay.scaling.schedule import Schedule
from forebay.scaling.sight import Sight
from forebay.spec.types import CalendarEntry, Scaling, Slo

NOW_S_MAX = 1e12
UNSEEN_S_MIN = 120.0
"""Two looks further apart than this (or five intervals, where those are longer) leave the time between them unobserved."""


class _Reasons(msgspec.Struct, frozen=True):
    """Everything that was weighed, before the cap."""

    terms: tuple[Term, ...]
    """Floors and triggers."""
    lower: Term | None
    """A hold or a step down; None where floors or triggers want all there is."""
    demand: arrivals.Demand | None

    @property
    def wanted(self) -> int:
        return max(term.replicas for term in self.terms)


class QueueFirst:
    """`domain.scaling.Policy` for one pool. Raises BadInput for a calendar entry whose time zone does not exist."""

    def __init__(
        self,
        settings: Scaling,
        capacity: PoolCapacity,
        calendar: Sequence[CalendarEntry] = (),
        pool: str = "",
        slo: Slo = Slo(),
    ) -> None:
        self._settings = settings
        self._capacity = capacity
        self._pool = pool
        self._slo = slo
        self._schedule = Schedule(calendar, pool)

    def decide(self, observation: Observation) -> Decision:
        """Replicas wanted now, and why. Never raises: what can't be understood is held, with its reason."""
        try:
            if not math.isfinite(observation.now_s) or abs(observation.now_s) > NOW_S_MAX:
                return self._held(observation, "the observation's clock is ill", observation.memory)
            return self._decide(observation)
        except Exception as error:
            # Memory is the one thing that comes back: were it the cause, keeping it would hold for ever.
            return self._held(observation, f"the observation is ill ({type(error).__name__})", b"")

    def _decide(self, observation: Observation) -> Decision:
        settings = self._settings
        sight = sights.look(observation, settings)
        remembered = memories.rebased(memories.load(observation.memory), sight.now_s, observation.wall_s)
        memory = self._perceived(remembered, sight, observation.wall_s)
        reasons = self._weighed(observation, sight, memory)
        memory = self._calmed(memory, remembered, sight, reasons.wanted)
        if reasons.lower is None and reasons.wanted < sight.desired:
            lower = scale_in.step(sight, memory, settings, reasons.demand, reasons.wanted)
            reasons = msgspec.structs.replace(reasons, lower=lower)
        terms, binding = self._bound(reasons, sight)
        if binding.kind is TermKind.SCALE_IN:
            memory = msgspec.structs.replace(memory, stepped_s=sight.now_s)
        exhausted = self._exhausted(sight, reasons)
        since_s = (memory.exhausted_since_s if memory.exhausted_since_s is not None else sight.now_s) if exhausted else None
        memory = msgspec.structs.replace(memory, exhausted_since_s=since_s)
        return Decision(
            pool=observation.pool,
            at_s=sight.now_s,
            replicas=binding.replicas,
            reason=binding.name,
            terms=terms,
            posture=Posture.SHED_PREEMPTIBLE if exhausted else Posture.OPEN,
            alerts=alerts.raised(observation.pool, sight, memory, settings, self._slo, exhausted),
            look_again_at_s=sight.now_s + settings.interval_s,
            memory=memories.dump(memory),
        )

    def _perceived(self, memory: Memory, sight: Sight, wall_s: float) -> Memory:
        """``memory`` with what is seen now, all but the calm (which needs the floors)."""
        elapsed_s, unseen_s = self._gap(memory, sight.now_s)
        now_s = sight.now_s
        rose = memory.now_s is not None and sight.ready > memory.ready
        waiting = held(memory.waiting, triggers.too_long(sight, self._settings), now_s, elapsed_s, unseen_s)
        if rose and waiting.since_s is not None:
            waiting = Held(now_s, waiting.blind)
        breach = None if sight.attainment is None else sight.attainment < self._slo.attainment
        silent = [key[: memories.ID_CHARACTERS_MAX] for key in sight.silent[: memories.UNKNOWN_IDS_MAX - 1]]
        blind = [*silent, ""] if sight.missing else silent
        return msgspec.structs.replace(
            memory,
            now_s=now_s,
            wall_s=wall_s if math.isfinite(wall_s) else memory.wall_s,
            waiting=waiting,
            breach=held(memory.breach, breach, now_s, elapsed_s, unseen_s),
            unknown_since_s={key: min(now_s, memory.unknown_since_s.get(key, now_s)) for key in blind},
            ready=sight.ready,
            ready_rose_s=now_s if rose else memory.ready_rose_s,
            buckets=arrivals.recorded(memory.buckets, now_s, elapsed_s, sight.arrival_per_s, sight.tokens_per_s),
        )

    def _calmed(self, memory: Memory, before: Memory, sight: Sight, wanted: int) -> Memory:
        elapsed_s, unseen_s = self._gap(before, sight.now_s)
        blind_s = sight.now_s - memory.unknown_since_s.get("", sight.now_s)
        holds = scale_in.calm(sight, self._settings, wanted, blind_s)
        return msgspec.structs.replace(memory, calm=held(memory.calm, holds, sight.now_s, elapsed_s, unseen_s))

    def _gap(self, memory: Memory, now_s: float) -> tuple[float, float]:
        """Seconds since the last look, and how many of them were unobserved."""
        elapsed_s = max(0.0, now_s - memory.now_s) if memory.now_s is not None else 0.0
        return elapsed_s, elapsed_s if elapsed_s > max(UNSEEN_S_MIN, 5 * self._settings.interval_s) else 0.0

    def _weighed(self, observation: Observation, sight: Sight, memory: Memory) -> _Reasons:
        """Floors, triggers, and the hold where something isn't known."""
        settings, capacity = self._settings, self._capacity
        cold_start_s = sight.cold_start_s if sight.cold_start_s is not None else float(round(capacity.cold_start_s))
        terms = [floors.minimum(settings)]
        missing = sight.missing
        try:
            active = self._schedule.active(observation.wall_s, cold_start_s) if len(self._schedule) else None
        except (ValueError, OverflowError):
            active = None
            missing = " and ".join(filter(None, (missing, "the time of day")))
        if active is not None:
            terms.append(floors.scheduled(active, observation.wall_s))
        demand = None
        present = arrivals.present_ramp_per_s2(memory.buckets, sight.now_s, settings.noise_sigmas)
        if sight.arrival_per_s is not None:
            sigmas = settings.noise_sigmas * (arrivals.RISING_DOUBT if present > 0 else 1.0)
            demand = arrivals.demand(memory.buckets, sight.now_s, capacity, sigmas)
        if capacity.rate_per_s is None and capacity.prompt_tokens_per_s is None and capacity.output_tokens_per_s is None:
            terms.append(floors.unmeasured(capacity))
        if demand is not None:
            terms.append(floors.demanded(demand, capacity))
            past = observation.past_ramps_per_s2
            terms.append(floors.buffered(terms[-1].replicas, settings, capacity, present, past, cold_start_s) or terms[-1])
            terms.append(floors.spared(terms[-1].replicas, settings) or terms[-1])
        terms.append(triggers.kv(sight, memory, settings))
        terms.append(triggers.queue(sight, memory, settings, capacity, demand, cold_start_s))
        hold = None
        if missing:
            since_s = memory.unknown_since_s.get("", sight.now_s)
            hold = Term(
                "hold_unknown", TermKind.HOLD, sight.desired, f"{missing} not known: never fewer", {"unknown_s": sight.now_s - since_s}
            )
        return _Reasons(_distinct(terms), hold, demand)

    def _bound(self, reasons: _Reasons, sight: Sight) -> tuple[tuple[Term, ...], Term]:
        """All terms with exactly one of them binding, and that one."""
        terms = [*reasons.terms, *([reasons.lower] if reasons.lower is not None else [])]
        most = self._settings.max_replicas
        terms.append(Term("max", TermKind.CAP, most, f"never more than {most}", {"max": float(most)}))
        if reasons.lower is not None and reasons.wanted < sight.desired:
            index = len(terms) - 2
        else:
            index = next(place for place, term in enumerate(terms) if term.replicas == reasons.wanted)
        if terms[index].replicas > most:
            index = len(terms) - 1
        terms[index] = msgspec.structs.replace(terms[index], binding=True)
        return tuple(terms), terms[index]

    def _exhausted(self, sight: Sight, reasons: _Reasons) -> str:
        """Why no more replicas come although they are wanted; empty if they do."""
        most = self._settings.max_replicas
        pulled = max((term.replicas for term in reasons.terms if term.kind is TermKind.TRIGGER), default=0)
        if pulled > most:
            return f"{pulled} replicas are wanted and {most} is the most allowed"
        if alerts.starved(sight):
            return f"all {sight.overdue} starts under way are overdue: no hardware comes"
        return ""

    def _held(self, observation: Observation, because: str, memory: bytes) -> Decision:
        """The decision about an observation that can't be understood: what was wanted stays wanted."""
        least, most = self._settings.min_replicas, self._settings.max_replicas
        desired = observation.desired if isinstance(observation.desired, int) else least
        replicas = min(max(desired, least), most)
        at_s = observation.now_s if isinstance(observation.now_s, int | float) and math.isfinite(observation.now_s) else 0.0
        return Decision(
            pool=observation.pool,
            at_s=at_s,
            replicas=replicas,
            reason="hold_ill",
            terms=(Term("hold_ill", TermKind.HOLD, replicas, because, binding=True),),
            look_again_at_s=at_s + self._settings.interval_s,
            memory=memory if len(memory) <= MEMORY_BYTES_MAX else b"",
        )


def _distinct(terms: list[Term]) -> tuple[Term, ...]:
    """``terms`` without the repetitions that stand for a floor that adds nothing."""
    return tuple(term for place, term in enumerate(terms) if term not in terms[:place])
