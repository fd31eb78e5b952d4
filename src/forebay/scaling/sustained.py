"""What replicas really sustain, learned from what they did: a slow, bounded correction of the capacity that physics gives.

Physics gives the load at which the *mean* request keeps its promise. How many miss it at a given load depends on the
mix, the gateway and the engine's version. So each minute the misses of the last minutes, at the load of the same
minutes, tell where on the curve of `scaling.economics` the fleet was, and thereby at which load just the allowed share
would miss. It moves slowly, down fast where it was far off, and never up while anything waits; nor at all where a
profile has a warm-up and an engine has just started.
"""

import math
from itertools import pairwise

import msgspec
import numpy as np

from forebay.domain.replica import ReplicaState
from forebay.domain.scaling import Observation
from forebay.scaling import irreducible, pooling
from forebay.scaling.arrivals import served, summed
from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.columns import columns
from forebay.scaling.economics import ALLOWED_MIN, STEEPNESS, Prices, misses
from forebay.scaling.memory import Memory
from forebay.scaling.outlook import HISTORY_S_MIN, OUTCOME_S
from forebay.scaling.scale_in import QUIET_WAITING_PER_REPLICA
from forebay.scaling.shapes import CHANCE
from forebay.scaling.sight import Sight
from forebay.scaling.spread import Values
from forebay.spec.types import Slo

SUSTAINED_MIN = 0.3
SUSTAINED_MAX = 1.5
WINDOW_S = 300.0
"""What the attainments are of."""
COVERED_MIN = 0.8
FITTING_MAX = 4.0
HALVINGS = 16
FITTING_ERROR = 1e-5
"""Of the factor's logarithm."""
USE_MIN = 0.5
"""At a lower use the misses say nothing about those at capacity."""
OVERLOADED = 1.25
"""From this use on, demand outran what was held: what waits or was late then says nothing about what a replica sustains."""
AFTERMATH_S, BEHIND_S = 600.0, 60.0
"""For so long after a minute of such use, what waited then is still worked off, and the attainments are still of it."""
_EDGES_S = tuple(minute * BEHIND_S for minute in range(round(AFTERMATH_S / BEHIND_S) + 1))
DOUBT = 2.0
"""Standard deviations: a minute of few requests overruns by chance."""
PER_MINUTE = 0.05
"""Part of the way that one minute's evidence goes, up or down: evenly, for chance must not move it."""
FAR_PER_MINUTE = 0.2
FAR = 0.1
"""Replicas that sustain a tenth less than was thought are believed so much sooner: that is no chance."""
MISSES_SURE = 20.0
"""Evidence of fewer expected misses than this counts in proportion."""
MISSES_LEAST = 0.05
"""Of the allowed share: fewer misses than this teach no more than this."""
LEFT_TELLS = 2.0
"""Where a floor leaves less than half of the allowed share, what is left is as small as the error of the floor: that none of it misses
teaches the less for it."""
MISSES_MOST = 0.3
STEADY_MAX = 4.0
"""Times the allowed share: where more miss, and physics does not say so, something waits. One such minute hides a floor for an hour."""
STAKE = 0.5
"""Of the allowed share: while fewer miss, replicas are not said to sustain less. At a low use a few miss for other reasons."""
PRICE_PER_MINUTE = 0.0005
PRICE_MAX = 30.0
"""Of the fair price (`scaling.fair`)."""
OVER_MAX = 20.0
WEIGHT_MAX = 5.0
USUAL_MINUTES = 1440.0
"""Requests, not minutes, are promised something: a minute counts by its requests, in those of a mean minute of the last day."""


class Used(msgspec.Struct, frozen=True):
    """How busy the fleet was in the last minutes."""

    requests: Values
    """In each part of WINDOW_S, as ``uses``: of the capacity. Both are empty where too little is known."""
    uses: Values
    worths: Values
    """What each replica was worth in a fleet of as many (`scaling.pooling`): use of the whole is ``uses`` times that."""
    overrun: bool
    """Whether demand outran what was held within the last AFTERMATH_S: what is late since then is late for what came before it."""


def cold(observation: Observation, warm_up_s: float) -> bool:
    """Whether some of what was late in the last minutes may have been late on an engine that was not warm yet.

    It says nothing about what a replica sustains. What a miss should cost is learned all the same: it is missed.
    """
    if not warm_up_s:
        return False
    ready, lasting_s = ReplicaState.READY, warm_up_s + WINDOW_S
    return any(replica.state is ready and observation.now_s - replica.since_s < lasting_s for replica in observation.replicas)


def used(memory: Memory, now_s: float, capacity: PoolCapacity, slo: Slo) -> Used:
    """What `learned` and `unpreventable` go by; to be asked once a minute."""
    if not capacity.rate_per_s:
        return Used(np.empty(0), np.empty(0), np.empty(0), False)
    # Until there is an outlook no floor knows what few replicas are worth: then it is learned here, with all the rest.
    pooled = capacity.profile is not None and memory.learnt.known_s >= HISTORY_S_MIN
    allowed = max(ALLOWED_MIN, 1 - slo.attainment) if pooled else None
    return Used(*_uses(memory, now_s, capacity.rate_per_s, allowed), _overrun(memory, now_s, capacity.rate_per_s))


def learned(memory: Memory, sight: Sight, capacity: PoolCapacity, slo: Slo, lately: Used | None = None) -> float:
    """The correction for the next look, from the one in ``memory``; to be asked once a minute."""
    lately = used(memory, sight.now_s, capacity, slo) if lately is None else lately
    before, requests, uses = memory.sustained, lately.requests, lately.uses
    if capacity.profile is None or sight.attainment is None or not capacity.rate_per_s or not sight.known or not len(uses):
        return before
    allowed = max(ALLOWED_MIN, 1 - slo.attainment)
    caused, left = irreducible.of_load(_missed(sight), allowed, memory.irreducible)
    least = max(MISSES_LEAST, 1 - LEFT_TELLS * left / allowed) * allowed
    missed = min(MISSES_MOST, max(least, caused * allowed / left))
    busiest = float(uses.max())
    if busiest <= USE_MIN or float((uses * lately.worths).max()) >= OVERLOADED or lately.overrun:
        return before
    step = -math.log(_fitting(lately, missed, allowed))
    sure = min(1.0, float(requests.sum()) * max(missed, allowed) / MISSES_SURE) * min(1.0, (busiest - USE_MIN) / (1 - USE_MIN))
    if step < 0 and missed < STAKE * allowed:
        return before
    if step > 0 and (sight.waiting > QUIET_WAITING_PER_REPLICA * sight.ready or memory.learnt.known_s < HISTORY_S_MIN):
        return before
    moved = before * math.exp(step * sure * (FAR_PER_MINUTE if step < -FAR else PER_MINUTE))
    return min(SUSTAINED_MAX, max(SUSTAINED_MIN, moved))


def _uses(memory: Memory, now_s: float, rate_per_s: float, allowed: float | None) -> tuple[Values, Values, Values]:
    """Requests, use of the capacity, and what a replica was worth, in each part of the last minutes; empty where too little is known."""
    found = columns(memory.buckets)
    first = found.since(now_s - WINDOW_S)
    seconds, requests, held = (np.array(column[first:]) for column in (found.seconds, found.requests, found.replica_seconds))
    if not len(held) or held.min() <= 0:
        some = held > 0
        seconds, requests, held = seconds[some], requests[some], held[some]
    if seconds.sum() < COVERED_MIN * WINDOW_S:
        return np.empty(0), np.empty(0), np.empty(0)
    worths = np.ones(len(held)) if allowed is None else pooling.worths(held / seconds, allowed)
    return requests, requests / (held * worths * rate_per_s), worths


def _fitting(lately: Used, missed: float, allowed: float) -> float:
    """The factor on the uses with which the curve gives the share ``missed`` over all parts: a fleet's spikes miss, not its mean.

    It is as much flatter as a replica is worth less: the steps from 1 % of misses to a third are as large in any fleet.
    """
    requests, uses, steepness = lately.requests, lately.uses, STEEPNESS * lately.worths
    total = float(requests.sum())
    if total <= 0:
        return 1.0
    weights, wanted = requests / total, math.log(missed)
    low, high, at, slope = -math.log(FITTING_MAX), math.log(FITTING_MAX), 0.0, STEEPNESS
    before: tuple[float, float] | None = None
    for _ in range(HALVINGS):
        off = wanted - math.log(max(1e-300, float(weights @ misses(uses * math.exp(at), allowed, steepness))))
        low, high = (at, high) if off > 0 else (low, at)
        # By the secant of the logarithms, which are nearly a line; by halves where that leads out of what is left.
        if before is not None and at != before[0]:
            slope = (before[1] - off) / (at - before[0])
        before = (at, off)
        following = at + off / slope if slope > 0 else math.inf
        if not low < following < high:
            following = (low + high) / 2
        if abs(following - at) < FITTING_ERROR:
            return math.exp(following)
        at = following
    return math.exp(at)


def price(memory: Memory, sight: Sight, slo: Slo, prices: Prices) -> float:
    """What the fair price of a miss (`scaling.fair`) is multiplied with at the next look; to be asked once a minute.

    It integrates: dearer while more than the aim of the allowed share misses, a little cheaper
    while less does. A day at twice the share doubles it.
    """
    if sight.attainment is None:
        return memory.price
    allowed = max(ALLOWED_MIN, 1 - slo.attainment)
    sums = summed(memory.buckets, sight.now_s, WINDOW_S)
    usual = memory.usual_per_s or sums.requests / WINDOW_S
    weight = min(WEIGHT_MAX, sums.requests / WINDOW_S / usual) if usual > 0 else 0.0
    caused, left = irreducible.of_load(_missed(sight), allowed, memory.irreducible)
    over = weight * min(OVER_MAX, caused / (prices.aim * left) - 1)
    return min(PRICE_MAX, max(prices.moved_min, memory.price * math.exp(over * PRICE_PER_MINUTE)))


def unpreventable(
    memory: Memory, sight: Sight, capacity: PoolCapacity, slo: Slo, lately: Used | None = None
) -> tuple[tuple[float, ...], float]:
    """Misses by use, and the share that misses at any load, at the next look; to be asked once a minute."""
    if sight.attainment is None or not capacity.rate_per_s:
        return memory.uses, memory.irreducible
    lately = used(memory, sight.now_s, capacity, slo) if lately is None else lately
    requests, total = lately.requests, lately.requests.sum()
    if total <= 0:
        return memory.uses, memory.irreducible
    prompt_tokens, band = _mean_prompt(memory, sight.now_s)
    bins, allowed, missed = memory.uses, max(ALLOWED_MIN, 1 - slo.attainment), min(1.0, _missed(sight))
    idle = irreducible.alone(capacity.profile, prompt_tokens, slo.ttft_s) if capacity.profile is not None and prompt_tokens > 0 else None
    steady = missed <= max(STEADY_MAX * allowed, 2 * (idle or 0.0)) and not lately.overrun
    if steady:
        use = float(requests @ lately.uses / total) * memory.sustained
        per_s = total / WINDOW_S
        weight = min(WEIGHT_MAX, per_s / memory.usual_per_s) if memory.usual_per_s > 0 else 1.0
        bins = irreducible.noted(bins, use, weight, missed, prompt_tokens, band)
    return bins, irreducible.floor(memory.irreducible, bins, allowed, idle)


def _mean_prompt(memory: Memory, now_s: float) -> tuple[float, float]:
    """Mean tokens of the last minutes' prompts, and by how much of it chance may move it; 0 where nobody tells."""
    found = columns(memory.buckets)
    first = found.since(now_s - WINDOW_S)
    seconds, requests, told_s, prompt = (
        column[first:] for column in (found.seconds, found.requests, found.token_seconds, found.prompt_tokens)
    )
    if seconds == told_s:
        count, tokens = sum(requests), sum(prompt)
    else:
        parts = [each for each in zip(seconds, requests, told_s, prompt, strict=True) if each[0] > 0 and each[2] > 0]
        count = sum([each * min(1.0, told / whole) for whole, each, told, _ in parts])
        tokens = sum([each for _, _, _, each in parts])
    return (tokens / count, CHANCE / math.sqrt(count)) if count > 0 else (0.0, 0.0)


def _overrun(memory: Memory, now_s: float, rate_per_s: float) -> bool:
    for (before, held_before), (until, held_until) in pairwise(served(memory.buckets, now_s, _EDGES_S)):
        requests, held = until - before, rate_per_s * (held_until - held_before)
        if requests - DOUBT * math.sqrt(max(0.0, requests)) > OVERLOADED * held:
            return True
    return False


def usual_per_s(memory: Memory, now_s: float) -> float:
    """Mean arrival rate over about a day, at the next look; to be asked once a minute. 0: not known."""
    rate = summed(memory.buckets, now_s, WINDOW_S).requests / WINDOW_S
    return memory.usual_per_s + (rate - memory.usual_per_s) / USUAL_MINUTES if memory.usual_per_s > 0 else rate


def _missed(sight: Sight) -> float:
    """Share of requests that missed a promise in the last minutes; one that missed both counts twice."""
    ttft = 1 - sight.attainment if sight.attainment is not None else 0.0
    return ttft + (1 - sight.itl_attainment if sight.itl_attainment is not None else 0.0)


def due(memory: Memory, now_s: float) -> bool:
    """Whether a minute has passed since the last time."""
    at_s = memory.learnt.minute_s
    return at_s is None or not 0 <= now_s - at_s < OUTCOME_S
