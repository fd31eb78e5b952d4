"""What may be tuned: the settings that are tried for each policy, its defaults first.

Other autoscalers have their own grids. Forebay's own knobs are few on purpose: how long the calm before a step down lasts, what
a miss costs beside an idle replica (the quantile of demand that is held), and the margin that a scale-in leaves.
"""

from collections.abc import Mapping

import msgspec

from forebay.app.lab.policies import favourite
from forebay.app.lab.summaries import FAVOURITE
from forebay.app.lab.world import Prepared
from forebay.domain.scaling import Policy
from forebay.scaling.baselines import settings
from forebay.scaling.baselines.grid import candidates as grid
from forebay.scaling.capacity import pool_capacity

CALMS_S = (120.0, 600.0)
MISS_RATIOS = (3.0, 12.0, 24.0)
"""What a replica-hour of misses costs ÷ an idle one; by default it is the fair price (`scaling.economics`)."""
MARGINS = (0.05, 0.25)


class Candidate(msgspec.Struct, frozen=True):
    """One setting: where it stands in its policy's list, and what it sets. It can be made anew wherever it is played."""

    policy: str
    place: int
    settings: Mapping[str, float]
    peak_replicas: int = 1
    """What the list was made for: the peak of the span on which it was tried."""
    hourly: tuple[float, ...] = ()
    """The same: replicas needed by hour, which calendars are made from."""


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
    changes = dict(candidate.settings)
    if "miss_ratio" in changes:
        changes["miss_usd"] = changes.pop("miss_ratio") * (pool.scaling.idle_usd or _replica_usd(ready))
        changes["idle_usd"] = pool.scaling.idle_usd or _replica_usd(ready)
    return favourite(request, msgspec.structs.replace(pool.scaling, **changes))


def _own() -> list[dict[str, float]]:
    calms: list[dict[str, float]] = [{}, *({"forecast_calm_s": calm} for calm in CALMS_S)]
    ratios: list[dict[str, float]] = [{}, *({"miss_ratio": ratio} for ratio in MISS_RATIOS)]
    return [*({**calm, **ratio} for ratio in ratios for calm in calms), *({"in_margin": margin} for margin in MARGINS)]


def _replica_usd(ready: Prepared) -> float:
    profile = ready.request.pool.profile
    return (profile.gpus * profile.gpu_hour_usd if profile is not None else 0.0) or 1.0
