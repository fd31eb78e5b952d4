"""The terms of one decision, in the order in which they are considered: floors, triggers, caps."""

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from forebay.domain.due import Due
from forebay.domain.scaling import Term
from forebay.domain.units import format_time
from forebay.scaling import arrivals, caps, deadlines, floors, surge, triggers
from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.economics import Prices
from forebay.scaling.memory import Memory
from forebay.scaling.outlook import Outlook
from forebay.scaling.scale_in import gather_s
from forebay.scaling.schedule import Active
from forebay.scaling.sight import Sight
from forebay.scaling.warm import Reserve
from forebay.spec.types import Scaling

CLAIMS_FROM_S = 300.0
"""With an outlook, demand claims nothing of its own by shorter windows than this: the forecast's level is of three minutes."""
GATHERED_MAX = 0.15
"""Of what is wanted: more than this is never put off."""


class Facts(msgspec.Struct, frozen=True):
    """All that the terms are made of."""

    sight: Sight
    memory: Memory
    settings: Scaling
    capacity: PoolCapacity
    """Of one replica, at the lengths that come."""
    cold_start_s: float
    wall_s: float
    past_ramps_per_s2: Sequence[float]
    active: Active | None
    """The calendar's entry that holds now."""
    outlook: Outlook | None
    prices: Prices
    wake_s: float
    due: tuple[Due, ...] = ()
    """What waits of preemptible tiers."""
    landed: float = 0.0
    """How far into the band a change goes (`economics.landed`)."""
    landed_on_demand: float = 0.0
    """The same where present demand asks for it, and the forecast does not."""


class Reasons(msgspec.Struct, frozen=True):
    """Everything that was weighed."""

    terms: tuple[Term, ...]
    """Floors and triggers."""
    wanted: int
    """The most that one of them asks for."""
    caps: tuple[Term, ...]
    lower: Term | None
    """A hold or a step down; None where floors or triggers want all there is."""
    demand: arrivals.Demand | None
    keep: int | None = None
    """Replicas worth keeping; None: there is no outlook."""
    let_go: int | None = None
    """As few as a scale-in goes to once one is due."""
    reserve: Reserve | None = None
    """What is worth holding warm; None: nothing is, or nobody can say."""


def weighed(facts: Facts, hold: Term | None) -> Reasons:
    """Every term. ``hold``: where something isn't known."""
    sight, settings, capacity, outlook = facts.sight, facts.settings, facts.capacity, facts.outlook
    terms = [floors.minimum(settings)]
    if settings.min_replicas == 0:
        terms.append(floors.awake(facts.wake_s, facts.cold_start_s) or terms[-1])
    if facts.active is not None:
        terms.append(floors.scheduled(facts.active, facts.wall_s))
    present = arrivals.present_ramp_per_s2(facts.memory.buckets, sight.now_s, settings.noise_sigmas)
    demand = _demand(facts, present)
    if capacity.rate_per_s is None and capacity.prompt_tokens_per_s is None and capacity.output_tokens_per_s is None:
        terms.append(floors.unmeasured(capacity))
    base: Term | None = None
    if demand is not None:
        terms.append(floors.demanded(demand, capacity, 0.0 if outlook is None else floors.FRACTION_FORESEEN))
        buffer = floors.buffered(
            terms[-1].replicas, settings, capacity, present, facts.past_ramps_per_s2, facts.cold_start_s, outlook is not None
        )
        base = buffer or terms[-1]
        terms.append(base)
    if outlook is not None:
        forecast = _landed(_gathered(floors.forecasted(outlook, capacity, facts.prices), facts), base, facts)
        terms.append(forecast)
        base = forecast if base is None or forecast.replicas > base.replicas else base
        each_per_s, learnt = capacity.rate_per_s or math.inf, facts.memory.learnt
        reading_per_s, sigmas = sight.arrival_per_s, settings.noise_sigmas
        surging = surge.seen(facts.memory.buckets, sight.now_s, reading_per_s, each_per_s, sigmas, learnt.spread, learnt.swing)
        if surging is not None:
            terms.append(surge.surged(surging, capacity))
            base = max(base, terms[-1], key=lambda term: term.replicas)
    if base is not None:
        terms.append(floors.spared(base.replicas, settings) or terms[-1])
    if facts.due:
        load = demand.load if demand is not None else 0.0
        terms.append(deadlines.dated(facts.due, sight, capacity, load, facts.cold_start_s, settings.interval_s) or terms[-1])
    terms.append(triggers.kv(sight, facts.memory, settings))
    terms.append(triggers.tokens(sight, facts.memory, settings, capacity) or terms[-1])
    terms.append(triggers.queue(sight, facts.memory, settings, capacity, demand, facts.cold_start_s))
    return Reasons(
        terms=_distinct(terms),
        wanted=max([term.replicas for term in terms]),
        caps=caps.terms(settings, capacity, sight, facts.memory.lows, facts.active),
        lower=hold,
        demand=demand,
        keep=_kept(facts, 1.0),
        # As far into the band from above as a change goes from below.
        let_go=_kept(facts, 1 - facts.landed) if facts.landed else None,
    )


def _demand(facts: Facts, present_ramp_per_s2: float) -> arrivals.Demand | None:
    if facts.sight.arrival_per_s is None:
        return None
    buckets, now_s, settings = facts.memory.buckets, facts.sight.now_s, facts.settings
    sigmas = settings.noise_sigmas * (arrivals.RISING_DOUBT if present_ramp_per_s2 > 0 else 1.0)
    claims_from_s = max(facts.cold_start_s, CLAIMS_FROM_S) if facts.outlook is not None else 0.0
    return arrivals.demand(buckets, now_s, facts.capacity, sigmas, claims_from_s)


def _gathered(forecast: Term, facts: Facts) -> Term:
    """``forecast``, put off where it asks for few more soon after the last time: they come with the next ones, in one change."""
    sight, rose_s = facts.sight, facts.memory.rose_s
    spare = floors.spared(forecast.replicas, facts.settings)
    until_s = gather_s(facts.cold_start_s)
    more = (spare or forecast).replicas - sight.desired
    if rose_s is None or sight.now_s - rose_s >= until_s or not 0 < more <= GATHERED_MAX * sight.desired:
        return forecast
    because = f"{forecast.because}; {more} more are put off until {format_time(until_s)} after the last"
    return msgspec.structs.replace(forecast, replicas=max(0, forecast.replicas - more), because=because)


def _landed(forecast: Term, demand: Term | None, facts: Facts) -> Term:
    """``forecast``, where it, or ``demand``, asks for more than there is: into the band, so that the next change is not due at once."""
    outlook, enough, part = facts.outlook, forecast.replicas, 0.0
    if _rises(forecast, facts):
        part = facts.landed
    elif demand is not None and _rises(demand, facts):
        enough, part = demand.replicas, facts.landed_on_demand
    if outlook is None or not part:
        return forecast
    replicas = floors.landing(outlook, facts.capacity, facts.prices.allowed, part)
    if replicas <= enough:
        return forecast
    because = f"{forecast.because}; {enough} would do, and once there is a change it goes as far as {replicas}"
    return msgspec.structs.replace(forecast, replicas=replicas, because=because)


def _rises(floor: Term, facts: Facts) -> bool:
    """Whether ``floor``, spares included, asks for more than there is."""
    return (floors.spared(floor.replicas, facts.settings) or floor).replicas > facts.sight.desired


def _kept(facts: Facts, part: float) -> int | None:
    """Replicas that a scale-in leaves which goes down to ``part`` of the band, spares included; None: there is no outlook."""
    if facts.outlook is None:
        return None
    keep = floors.kept(facts.outlook, facts.capacity, facts.prices.allowed, part)
    spare = floors.spared(keep, facts.settings)
    return spare.replicas if spare is not None else keep


def _distinct(terms: list[Term]) -> tuple[Term, ...]:
    """``terms`` without the repetitions, each of the one before, that stand for a floor that adds nothing."""
    return (terms[0], *[term for before, term in pairwise(terms) if term is not before])
