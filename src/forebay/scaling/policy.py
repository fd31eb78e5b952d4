"""The default policy: floors from arithmetic, triggers from the queue, and no step down without proof. One term binds.

``decide`` reads in five steps: see, remember, floors and triggers, the way down or a hold, the caps. Floors and triggers
take effect at once and at their maximum; everything that would lower the count must pass `scale_in`. With an hour of
history the forecast's worth (`outlook`, `economics`) takes the place of margins and long calms.

What is learned at one look (lengths aside) counts from the next one on: at any one look more load never means fewer replicas.

A driver that keeps the largest ramp of each day takes ``present_ramp_per_s2`` from the numbers of the ``buffer`` term:
a bare difference of two readings is mostly chance, and would buy replicas for weeks.
"""

import math
from collections.abc import Sequence

import msgspec

from forebay.domain.scaling import MEMORY_BYTES_MAX, Decision, Observation, Term, TermKind
from forebay.scaling import alerts, arrivals, caps, economics, floors, outlook, postures, scale_in, shapes, sustained, warm, weighing
from forebay.scaling import memory as memories
from forebay.scaling import sight as sights
from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.memory import Held, Memory, held
from forebay.scaling.schedule import Schedule
from forebay.scaling.sight import Sight
from forebay.scaling.triggers import too_long
from forebay.scaling.weighing import Reasons
from forebay.spec.types import CalendarEntry, Scaling, Slo

NOW_S_MAX = 1e12
UNSEEN_S_MIN = 120.0
"""Two looks further apart than this (or five intervals, where those are longer) leave the time between them unobserved."""


class QueueFirst:
    """`domain.scaling.Policy` for one pool. Raises BadInput for a calendar entry whose time zone does not exist."""

    def __init__(
        self,
        settings: Scaling,
        capacity: PoolCapacity,
        calendar: Sequence[CalendarEntry] = (),
        pool: str = "",
        slo: Slo = Slo(),
        wake_s: float = math.inf,
    ) -> None:
        """``wake_s``: how long a first request may wait for a start from zero; a longer start keeps one replica awake."""
        self._settings = settings
        self._capacity = capacity
        self._pool = pool
        self._slo = slo
        self._wake_s = wake_s
        self._unseen_s_min = max(UNSEEN_S_MIN, 5 * settings.interval_s)
        self._schedule = Schedule(calendar, pool)
        self._shaped = shapes.ShapedCapacity(capacity, settings, slo)
        self._priced: tuple[tuple[float, float, float], economics.Prices] | None = None
        """The last prices, with what they are of: the same for a minute."""
        self._told: tuple[bytes, Memory, bool] | None = (
            None  # the last decision's, packed and not (it mostly comes back), and if it learned
        )

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
        remembered = memories.rebased(self._loaded(observation.memory), sight.now_s, observation.wall_s)
        memory = self._perceived(remembered, sight, observation.wall_s)
        capacity = self._shaped.at(shapes.observed(memory.buckets, settings), memory.sustained)
        reasons = self._weighed(observation, sight, memory, capacity)
        memory = self._calmed(memory, remembered, sight, reasons)
        if reasons.lower is None and reasons.wanted < sight.desired:
            foreseen = self._foreseen(memory, sight, reasons)
            lower = scale_in.step(sight, memory, settings, reasons.demand, reasons.wanted, foreseen)
            reasons = msgspec.structs.replace(reasons, lower=lower)
        terms, binding = _bound(reasons, sight)
        memory = self._learned(memory, observation, sight, capacity)
        if binding.kind is TermKind.SCALE_IN:
            memory = msgspec.structs.replace(memory, stepped_s=sight.now_s)
        exhausted = self._exhausted(sight, reasons)
        posture, because = postures.posture(exhausted, postures.held_for(self._schedule, sight.ready, observation.wall_s))
        asked = binding.name == caps.ASK
        warm_nodes = self._warm(observation, sight, reasons, binding.replicas)
        if reasons.reserve is not None:
            terms = warm.told(terms, reasons.reserve, settings, warm_nodes)
        memory = msgspec.structs.replace(
            memory,
            exhausted_since_s=_since(memory.exhausted_since_s, bool(exhausted), sight.now_s),
            asked_since_s=_since(memory.asked_since_s, asked, sight.now_s),
            rose_s=sight.now_s if binding.replicas > sight.desired else None if binding.replicas < sight.desired else memory.rose_s,
            lows=caps.lows(memory.lows, sight.now_s, binding.replicas),
        )
        return Decision(
            pool=observation.pool,
            at_s=sight.now_s,
            replicas=binding.replicas,
            reason=binding.name,
            terms=terms,
            posture=posture,
            posture_because=because,
            alerts=alerts.raised(
                observation.pool, sight, memory, settings, self._slo, exhausted, binding if asked else None, reasons.wanted
            ),
            look_again_at_s=sight.now_s + settings.interval_s,
            memory=self._dumped(memory, remembered),
            warm=warm_nodes,
        )

    def _loaded(self, data: bytes) -> Memory:
        """What `memories.load` gives for ``data``; the last decision's needs no reading, but for what it learned, which could be ill."""
        if self._told is None or self._told[0] != data:
            return memories.load(data)
        _, memory, learned = self._told
        return memories.proved(memory) if learned else memory

    def _dumped(self, memory: Memory, before: Memory) -> bytes:
        data = memories.dump(memory)
        self._told = (data, memory, memory.learnt is not before.learnt)
        return data

    def _perceived(self, memory: Memory, sight: Sight, wall_s: float) -> Memory:
        """``memory`` with what is seen now, all but the calm (which needs the floors)."""
        elapsed_s, unseen_s = self._gap(memory, sight.now_s)
        now_s = sight.now_s
        rose = memory.now_s is not None and sight.ready > memory.ready
        waiting = held(memory.waiting, too_long(sight, self._settings), now_s, elapsed_s, unseen_s)
        if rose and waiting.since_s is not None:
            waiting = Held(now_s, waiting.blind)
        breach = sight.attainment < self._slo.attainment if sight.attainment is not None else False if sight.late == 0 else None
        silent = [key[: memories.ID_CHARACTERS_MAX] for key in sight.silent[: memories.UNKNOWN_IDS_MAX - 1]]
        blind = [*silent, ""] if sight.missing else silent
        return msgspec.structs.replace(
            memory,
            now_s=now_s,
            wall_s=wall_s if math.isfinite(wall_s) else memory.wall_s,
            waiting=waiting,
            breach=held(memory.breach, breach, now_s, elapsed_s, unseen_s),
            unknown_since_s={key: min(now_s, memory.unknown_since_s.get(key, now_s)) for key in blind} if blind else {},
            ready=sight.ready,
            ready_rose_s=now_s if rose else memory.ready_rose_s,
            buckets=arrivals.recorded(memory.buckets, now_s, elapsed_s, sight.arrival_per_s, sight.tokens_per_s, sight.ready),
        )

    def _calmed(self, memory: Memory, before: Memory, sight: Sight, reasons: Reasons) -> Memory:
        elapsed_s, unseen_s = self._gap(before, sight.now_s)
        blind_s = sight.now_s - memory.unknown_since_s.get("", sight.now_s)
        keeps = memory.keeps
        if reasons.keep is None:
            holds = scale_in.calm(sight, self._settings, reasons.wanted, blind_s)
        else:
            holds = scale_in.quiet(sight, self._settings, blind_s)
            keeps = memories.peaks(keeps, sight.now_s, reasons.keep, self._calm_s(sight), most=True)
        return msgspec.structs.replace(memory, calm=held(memory.calm, holds, sight.now_s, elapsed_s, unseen_s), keeps=keeps)

    def _foreseen(self, memory: Memory, sight: Sight, reasons: Reasons) -> scale_in.Foreseen | None:
        if reasons.keep is None:
            return None
        gather_s = scale_in.gather_s(self._cold_start_s(sight))
        keep = self._keep(memory, reasons)
        let_go = keep if reasons.let_go is None else min(keep, reasons.let_go)
        return scale_in.Foreseen(keep, self._calm_s(sight), gather_s, let_go)

    def _calm_s(self, sight: Sight) -> float:
        declared_s = self._settings.forecast_calm_s
        return scale_in.calm_s(self._cold_start_s(sight)) if declared_s is None else declared_s

    def _keep(self, memory: Memory, reasons: Reasons) -> int:
        return max([reasons.keep or 0, *[peak.replicas for peak in memory.keeps]])

    def _gap(self, memory: Memory, now_s: float) -> tuple[float, float]:
        """Seconds since the last look, and how many of them were unobserved."""
        elapsed_s = max(0.0, now_s - memory.now_s) if memory.now_s is not None else 0.0
        return elapsed_s, elapsed_s if elapsed_s > self._unseen_s_min else 0.0

    def _weighed(self, observation: Observation, sight: Sight, memory: Memory, capacity: PoolCapacity) -> Reasons:
        """Floors, triggers, caps, and the hold where something isn't known."""
        settings = self._settings
        cold_start_s = self._cold_start_s(sight)
        missing = sight.missing
        try:
            active = self._schedule.active(observation.wall_s, cold_start_s) if len(self._schedule) else None
        except (ValueError, OverflowError):
            active = None
            missing = " and ".join(filter(None, (missing, "the time of day")))
        seen = outlook.seen(memory.learnt, memory.buckets, sight.now_s, self._horizon_s(sight)) if capacity.rate_per_s else None
        prices = self._prices(sight, memory)
        reserve = self._reserve(observation, sight, memory, capacity, seen, prices) if seen is not None and settings.forecast else None
        if seen is not None and reserve is not None:
            seen = msgspec.structs.replace(seen, headroom_start=reserve.running_start, headroom_keep=reserve.running_keep)
        # Beside warm nodes the split says what runs: more of it running is less of it warm.
        swing, landings = memory.learnt.swing, (0.0, 0.0)
        if reserve is None:
            landings = economics.landed(cold_start_s, swing), economics.landed_on_demand(swing)
        facts = weighing.Facts(
            sight,
            memory,
            settings,
            capacity,
            cold_start_s,
            observation.wall_s,
            observation.past_ramps_per_s2,
            active,
            seen if settings.forecast else None,
            prices,
            self._wake_s,
            observation.preemptible_due,
            *landings,
        )
        hold = None
        if missing:
            unknown_s = sight.now_s - memory.unknown_since_s.get("", sight.now_s)
            hold = Term("hold_unknown", TermKind.HOLD, sight.desired, f"{missing} not known: never fewer", {"unknown_s": unknown_s})
        reasons = weighing.weighed(facts, hold)
        return reasons if reserve is None else msgspec.structs.replace(reasons, reserve=reserve)

    def _reserve(
        self,
        observation: Observation,
        sight: Sight,
        memory: Memory,
        capacity: PoolCapacity,
        seen: outlook.Outlook,
        prices: economics.Prices,
    ) -> warm.Reserve | None:
        """What is worth holding running and warm, where warm nodes may be held at all."""
        if not self._settings.warm_max:
            return None
        cold_start_s = self._cold_start_s(sight)
        part = warm.caught(cold_start_s, warm.start_s(observation, self._capacity, cold_start_s), self._settings.interval_s)
        expected = seen.expected_per_s / (capacity.rate_per_s or math.inf)
        return warm.reserve(self._settings, memory.learnt, seen, prices, expected, observation.warm, part)

    def _warm(self, observation: Observation, sight: Sight, reasons: Reasons, replicas: int) -> int:
        """Warm nodes to hold beside ``replicas``. What can't be told, or isn't known, lets none go."""
        settings, most = self._settings, caps.lowest(reasons.caps).replicas
        held = max(0, min(observation.warm, settings.warm_max, most - replicas))
        if reasons.reserve is None:
            return 0 if reasons.keep is not None else held
        wanted = max((term.replicas for term in reasons.terms if term.name == warm.FORECAST), default=0)
        spare = floors.spared(wanted, settings)
        spares = spare.replicas - wanted if spare is not None else 0
        count = warm.nodes(reasons.reserve, settings, self._capacity, replicas, spares, most, held)
        return max(count, held) if sight.missing else count

    def _learned(self, memory: Memory, observation: Observation, sight: Sight, capacity: PoolCapacity) -> Memory:
        """``memory`` for the next look: outcomes of the forecast, and what replicas sustained."""
        if not self._settings.forecast or observation.history is None:
            return memory
        now_s, history = sight.now_s, observation.history
        if not sustained.due(memory, now_s):
            return memory
        prices = self._prices(sight, memory)
        horizon_s, timezone = self._horizon_s(sight), self._settings.forecast_timezone
        learnt = outlook.learned(memory.learnt, memory.buckets, now_s, observation.wall_s, horizon_s, history, prices, timezone)
        price = sustained.price(memory, sight, self._slo, prices)
        usual_per_s = sustained.usual_per_s(memory, now_s)
        if sustained.cold(observation, self._capacity.warm_up_s):
            return msgspec.structs.replace(memory, learnt=learnt, price=price, usual_per_s=usual_per_s)
        lately = sustained.used(memory, now_s, capacity, self._slo)
        uses, irreducible = sustained.unpreventable(memory, sight, capacity, self._slo, lately)
        return msgspec.structs.replace(
            memory,
            learnt=learnt,
            sustained=sustained.learned(memory, sight, capacity, self._slo, lately),
            price=price,
            usual_per_s=usual_per_s,
            uses=uses,
            irreducible=irreducible,
        )

    def _prices(self, sight: Sight, memory: Memory) -> economics.Prices:
        key = self._cold_start_s(sight), memory.price * memory.learnt.fair_price, memory.learnt.swing
        if self._priced is None or self._priced[0] != key:
            self._priced = (key, economics.prices(self._settings, self._slo, self._capacity.replica_hour_usd, *key))
        return self._priced[1]

    def _cold_start_s(self, sight: Sight) -> float:
        """Until a replica asked for now serves as the others do."""
        start_s = sight.cold_start_s if sight.cold_start_s is not None else float(round(self._capacity.cold_start_s))
        return start_s + round(self._capacity.warm_up_s)

    def _horizon_s(self, sight: Sight) -> float:
        """What is asked for now serves then: the cold start, and the next look that may ask."""
        return min(self._cold_start_s(sight) + self._settings.interval_s, outlook.HORIZON_S_MAX)

    def _exhausted(self, sight: Sight, reasons: Reasons) -> str:
        """Why no more replicas come although they are wanted; empty if they do."""
        cap = caps.lowest(reasons.caps)
        trigger = TermKind.TRIGGER
        pulled = max([term.replicas for term in reasons.terms if term.kind is trigger], default=0)
        if pulled > cap.replicas:
            return f"{reasons.wanted} replicas are wanted and {cap.replicas} is the most allowed" + (
                "" if cap.name == "max" else f" ({cap.name})"
            )
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
            warm=max(0, min(observation.warm, self._settings.warm_max)) if isinstance(observation.warm, int) else 0,
        )


def _bound(reasons: Reasons, sight: Sight) -> tuple[tuple[Term, ...], Term]:
    """All terms with exactly one of them binding, and that one."""
    terms = [*reasons.terms, reasons.lower] if reasons.lower is not None else [*reasons.terms]
    if reasons.lower is not None and reasons.wanted < sight.desired:
        index = len(terms) - 1
    else:
        index = [term.replicas for term in terms].index(reasons.wanted)
    cap = caps.lowest(reasons.caps)
    terms.extend(reasons.caps)
    if terms[index].replicas > cap.replicas:
        because = f"{cap.because}; {terms[index].replicas} would be needed ({terms[index].name})"
        index = len(terms) - len(reasons.caps) + reasons.caps.index(cap)
        terms[index] = msgspec.structs.replace(cap, because=because)
    terms[index] = msgspec.structs.replace(terms[index], binding=True)
    return tuple(terms), terms[index]


def _since(before_s: float | None, holds: bool, now_s: float) -> float | None:
    """Since when a condition has held, after one more look."""
    if not holds:
        return None
    return before_s if before_s is not None else now_s
