"""A new configuration for a gateway that goes on serving: what may change so, and the change, in one step between two requests.

Teams, their keys, weights, tiers, promises and limits, the times of tiers, the gateway's bounds, and models' aliases. Requests that
are inside keep what they came with: tier, promises, timeouts, even a key that is gone. Lanes, pools and addresses are made of the
rest; whoever changes that starts anew.
"""

from collections.abc import Iterator

import msgspec

from forebay.domain.errors import BadInput
from forebay.gateway.desk import Desk
from forebay.spec.types import Model, Pool, Spec, TeamLimits, Tier

_LIVE = frozenset({"teams", "limits"})
_LIVE_OF_TIERS = ("ttft_s", "longest_wait_s", "idle_s", "total_s")
_IN_THE_FILE = {"gateway": "gateway.listen", "tls": "gateway.tls", "relay_workers": "gateway.workers", "state_dir": "state"}


def check_live(before: Spec, after: Spec) -> None:
    """Raises BadInput that names all that a running gateway can't take."""
    fixed = list(_fixed(before, after))
    if fixed:
        raise BadInput(
            f"the configuration: found changes in {', '.join(fixed)}; allowed while Forebay runs: teams, limits, models' aliases, and of "
            "tiers ttft, longest_wait, idle and total; undo those changes, or stop Forebay and start it again"
        )


def apply(after: Spec, desk: Desk) -> None:
    """Have the desk's pools and teams go by ``after``."""
    weights = {team.name: team.weight for team in after.teams}
    for pool in (*desk.pools.values(), *desk.spills):
        pool.admission.reweigh(weights)
        if pool.ways is not None:
            pool.ways.use({team.name: team for team in after.teams})
    quotas = {}
    for team in after.teams:
        if team.limits != TeamLimits():
            quota = quotas[team.name] = desk.quotas.get(team.name) or desk.shares.quota(team.limits)
            quota.use(team.limits, desk.clock.now_s())
    desk.quotas.clear()
    desk.quotas.update(quotas)


def _fixed(before: Spec, after: Spec) -> Iterator[str]:
    """What differs and can't."""
    for name in Spec.__struct_fields__:
        old, new = getattr(before, name), getattr(after, name)
        if old == new or name in _LIVE:
            continue
        if name in {"pools", "tiers", "models"}:
            yield from _fixed_of(name, [_bare(one) for one in old], [_bare(one) for one in new])
        else:
            yield _IN_THE_FILE.get(name, name)


def _fixed_of(name: str, old: list[Pool | Tier | Model], new: list[Pool | Tier | Model]) -> Iterator[str]:
    if [one.name for one in old] != [one.name for one in new]:
        yield f"{name} (which there are, or their order)"
        return
    for was, now in zip(old, new, strict=True):
        fields = [field for field in was.__struct_fields__ if getattr(was, field) != getattr(now, field)]
        if fields:
            yield f"{name}.{now.name} ({', '.join(fields)})"


def _bare(one: Pool | Tier | Model) -> Pool | Tier | Model:
    """Without what may change; where a profile's numbers come from names lines of the file, which move."""
    if isinstance(one, Tier):
        return msgspec.structs.replace(one, **dict.fromkeys(_LIVE_OF_TIERS, 0.0))
    if isinstance(one, Pool) and one.profile is not None:
        return msgspec.structs.replace(one, profile=msgspec.structs.replace(one.profile, sources=()))
    return msgspec.structs.replace(one, aliases=()) if isinstance(one, Model) else one
