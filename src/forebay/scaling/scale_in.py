"""Fewer replicas: late, slowly, and only where those that stay are known to hold the load.

Asymmetry is the point: a replica too many costs some dollars an hour, one too few costs every user their answer for as
long as a start takes. So a step waits for a long calm in which nothing wanted what there is, then takes a tenth.

Where an outlook sees as far as a start takes, it judges instead of the long calm and the fixed margin: what was worth keeping
at any time of a short calm stays.
"""

import math
from functools import lru_cache

import msgspec

from forebay.domain.scaling import Term, TermKind
from forebay.domain.units import format_time
from forebay.scaling.arrivals import Demand
from forebay.scaling.capacity import REPLICAS_MAX, whole_replicas
from forebay.scaling.economics import STARTS_KEPT_MAX, slowness
from forebay.scaling.memory import Memory
from forebay.scaling.sight import Sight
from forebay.spec.types import Scaling

QUIET_WAITING_PER_REPLICA = 0.5
"""With an outlook, a queue up to this is the coming and going of a busy fleet."""


CALM_STARTS = 2.0
CALM_S_MIN, CALM_S_MAX = 60.0, 300.0
"""With an outlook, the calm before a scale-in lasts CALM_STARTS cold starts: for about so long it costs something if load comes back."""
GATHER_S_QUICK, GATHER_S_SLOW = 400.0, 60.0
"""With an outlook, few more or fewer replicas wait after the last change of that kind, and are then one change: as many steps as would
have been made meanwhile. The sooner a start serves, the more of the changes come to nothing, and the less it costs to wait."""
FURTHER = 1
"""With an outlook, a step down may go so many replicas further, into the band (`economics.LANDED_SLOW`). With a second tenth in place of
one replica more of them turn back over the recorded weeks, and the O365 week keeps 0.02 points less."""


class Foreseen(msgspec.Struct, frozen=True):
    """What the outlook says about letting go."""

    keep: int
    """The most that were worth keeping at any time of the calm."""
    calm_s: float
    gather_s: float
    let_go: int
    """As few as a step goes to once one is due: no more than are worth keeping."""


@lru_cache(maxsize=STARTS_KEPT_MAX)
def calm_s(cold_start_s: float) -> float:
    """The calm before a scale-in where an outlook judges and no other is declared."""
    return min(CALM_S_MAX, max(CALM_S_MIN, CALM_STARTS * cold_start_s))


@lru_cache(maxsize=STARTS_KEPT_MAX)
def gather_s(cold_start_s: float) -> float:
    """For how long few more or fewer replicas wait, where a start takes ``cold_start_s``."""
    return GATHER_S_QUICK + slowness(cold_start_s) * (GATHER_S_SLOW - GATHER_S_QUICK)


def quiet(sight: Sight, settings: Scaling, blind_s: float) -> bool | None:
    """With an outlook: whether hardly anything waits and KV leaves room for one replica fewer; None where that isn't known."""
    if not sight.known or (sight.ready == 0 and sight.desired > 0):
        return False if blind_s > settings.unknown_alert_s else None
    return sight.waiting <= QUIET_WAITING_PER_REPLICA * sight.ready and _for_kv(sight, settings) < max(1, sight.desired)


def calm(sight: Sight, settings: Scaling, wanted: int, blind_s: float) -> bool | None:
    """Whether nothing waits, KV is low and less is ``wanted`` than there is; None where that isn't known.

    Blindness for longer than the alert's time ends a calm: anything may have happened. A shorter one only pauses it.
    """
    if not sight.known or (sight.ready == 0 and sight.desired > 0):
        return False if blind_s > settings.unknown_alert_s else None
    return sight.waiting <= 0 and sight.kv_most < settings.in_kv_usage and wanted < sight.desired


def step(sight: Sight, memory: Memory, settings: Scaling, demand: Demand | None, wanted: int, foreseen: Foreseen | None = None) -> Term:
    """The next step down from ``sight.desired``, or a hold that says what it waits for. ``wanted``: floors and triggers."""
    desired = sight.desired
    held_s = memory.calm.for_s(sight.now_s)
    calm_s = settings.in_calm_s if foreseen is None else foreseen.calm_s
    numbers = {"calm_s": held_s, "waiting": sight.waiting, "kv_usage": sight.kv_most}
    if memory.calm.since_s is None or held_s < calm_s:
        state = f"calm for {format_time(held_s)} of {format_time(calm_s)}"
        return _hold("hold_calm", desired, f"{state} ({sight.waiting:.0f} waiting, KV {sight.kv_most:.0%} used)", numbers)
    every_s = settings.in_step_every_s if foreseen is None else max(foreseen.gather_s, settings.in_step_every_s)
    fraction = settings.in_step_fraction * (every_s / settings.in_step_every_s if settings.in_step_every_s > 0 else 1.0)
    size = max(1, math.floor(round(desired * min(1.0, fraction), 9)))
    if sight.pending > 0:
        return _hold("hold_start", desired, f"{sight.pending} still starting: what they relieve is not known yet", numbers)
    if sight.draining >= size:
        return _hold("hold_drain", desired, f"{sight.draining} still draining from the last step", numbers)
    if memory.stepped_s is not None and sight.now_s - memory.stepped_s < every_s:
        return _hold("hold_step", desired, f"the last step was less than {format_time(every_s)} ago", numbers)
    held = _for_demand(demand, settings) if foreseen is None else foreseen.keep
    holding = max(held, _for_kv(sight, settings))
    target = max(desired - size, wanted, holding)
    if foreseen is not None and target < desired:
        target = min(target, max(target - FURTHER, wanted, foreseen.let_go, _for_kv(sight, settings)))
    numbers["holding"] = float(holding)
    spare = f"{settings.in_margin:.0%} to spare" if foreseen is None else "what the forecast holds worth keeping"
    if target >= desired:
        return _hold("hold_load", desired, f"{desired - 1} would not hold the load with {spare}: that takes {holding}", numbers)
    return Term("scale_in", TermKind.SCALE_IN, target, f"calm for {format_time(held_s)}, and {target} hold the load with {spare}", numbers)


def _for_demand(demand: Demand | None, settings: Scaling) -> int:
    """Replicas that hold the present load with the margin; 0 where capacity isn't known and only KV speaks."""
    if demand is None:
        return 0
    return whole_replicas(demand.load / max(1e-9, 1 - settings.in_margin))


def _for_kv(sight: Sight, settings: Scaling) -> int:
    """Replicas over which the KV in use stays under the scale-out threshold with the margin."""
    allowed = settings.out_kv_usage * (1 - settings.in_margin)
    in_use = sight.ready * sight.kv_most
    if in_use <= 0:
        return 0
    return min(REPLICAS_MAX, whole_replicas(in_use / allowed)) if allowed > 0 else REPLICAS_MAX


def _hold(name: str, replicas: int, because: str, numbers: dict[str, float]) -> Term:
    return Term(name, TermKind.HOLD, replicas, because, numbers)
