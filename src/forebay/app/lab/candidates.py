"""What may be tuned: the settings that are tried for each policy, its defaults first.

Other autoscalers have their own grids. Forebay's own knobs are few on purpose: how long the calm before a step down lasts, what
a miss costs beside an idle replica (the quantile of demand that is held), and the margin that a scale-in leaves.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from forebay.app.lab import own_settings
from forebay.app.lab.policies import favourite, typed
from forebay.app.lab.summaries import FAVOURITE
from forebay.app.lab.world import Prepared
from forebay.domain.scaling import Policy
from forebay.scaling.baselines import named, settable, settings
from forebay.scaling.baselines.frame import Framed
from forebay.scaling.baselines.grid import candidates as grid
from forebay.scaling.capacity import pool_capacity
from forebay.spec.types import Scaling

CALMS_S = (120.0, 600.0)
MISS_RATIOS = (3.0, 12.0, 24.0)
"""What a replica-hour of misses costs ÷ an idle one; by default it is the fair price (`scaling.economics`)."""
MARGINS = (0.05, 0.25)
DEFAULTS = "defaults"


class Candidate(msgspec.Struct, frozen=True):
    """One setting: where it stands in its policy's list, and what it sets. It can be made anew wherever it is played."""

    policy: str
    place: int
    settings: Mapping[str, float]
    peak_replicas: int = 1
    """What the list was made for: the peak of the span on which it was tried."""
    hourly: tuple[float, ...] = ()
    """The same: replicas needed by hour, which calendars are made from."""


class Told(msgspec.Struct, frozen=True):
    """A candidate as it can be put to use."""

    policy: str
    """What `--policies` takes to play it; empty where nothing can be typed for it."""
    spec: Mapping[str, Any]
    """Of Forebay's own: what stands below ``scaling:`` in the configuration, as JSON."""
    words: str
    """For people: what to paste, or what was tried; ``defaults`` where nothing is set."""


def listed(name: str, ready: Prepared, hourly: tuple[float, ...]) -> list[Candidate]:
    """Every setting of the policy ``name`` that is tried on ``ready``; the first is its defaults, and for some the only one."""
    if name == FAVOURITE:
        return [Candidate(name, place, values) for place, values in enumerate(_own())]
    of = settings.targets(ready.request.pool, pool_capacity(ready.request.pool))
    found = grid(name, of, peak_replicas=ready.peak_replicas, hourly=hourly)
    return [Candidate(name, place, each.settings, ready.peak_replicas, hourly) for place, each in enumerate(found)]


def make(candidate: Candidate, ready: Prepared) -> Policy:
    """The policy with these settings, for the pool of ``ready``."""
    request = ready.request
    pool = request.pool
    if candidate.policy != FAVOURITE:
        of = settings.targets(pool, pool_capacity(pool))
        found = grid(candidate.policy, of, peak_replicas=candidate.peak_replicas, hourly=candidate.hourly)
        return found[candidate.place].make()
    return favourite(request, _scaling(candidate, ready))


def told(candidate: Candidate, ready: Prepared) -> Told:
    """What to paste to have ``candidate``, which was tried on ``ready``, again."""
    name, request = candidate.policy, ready.request
    if name == FAVOURITE:
        changed = own_settings.changes(_scaling(candidate, ready), request.pool.scaling)
        words = own_settings.yaml(changed) if changed else DEFAULTS
        return Told(typed(name, own_settings.pairs_of(changed)), own_settings.nested(changed), words)
    made = make(candidate, ready)
    default = named(request.pool, pool_capacity(request.pool), peak_replicas=candidate.peak_replicas, calendar=request.calendar)[name]()
    assert isinstance(made, Framed)
    assert isinstance(default, Framed)
    pairs = settable.pairs_of(name, made.law, default.law)
    if pairs is None:
        return Told("", {}, f"{described(candidate)}: a plan by the hour, made from the training span")
    return Told(typed(name, pairs), {}, typed(name, pairs) if pairs else DEFAULTS)


def described(candidate: Candidate) -> str:
    """What was tried, in the grid's own words: ``target 26, down 300``; ``defaults`` where nothing is set."""
    return ", ".join(f"{key} {value:.4g}" for key, value in candidate.settings.items()) or DEFAULTS


def _scaling(candidate: Candidate, ready: Prepared) -> Scaling:
    scaling = ready.request.pool.scaling
    changes = dict(candidate.settings)
    if "miss_ratio" in changes:
        changes["idle_usd"] = scaling.idle_usd or _replica_usd(ready)
        changes["miss_usd"] = changes.pop("miss_ratio") * changes["idle_usd"]
    return msgspec.structs.replace(scaling, **changes)


def _own() -> list[dict[str, float]]:
    calms: list[dict[str, float]] = [{}, *({"forecast_calm_s": calm} for calm in CALMS_S)]
    ratios: list[dict[str, float]] = [{}, *({"miss_ratio": ratio} for ratio in MISS_RATIOS)]
    return [*({**calm, **ratio} for ratio in ratios for calm in calms), *({"in_margin": margin} for margin in MARGINS)]


def _replica_usd(ready: Prepared) -> float:
    profile = ready.request.pool.profile
    return (profile.gpus * profile.gpu_hour_usd if profile is not None else 0.0) or 1.0
