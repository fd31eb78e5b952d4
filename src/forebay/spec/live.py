"""What of a configuration may change while Forebay runs, and what changed in the lists of attached engines.

Teams, their keys, weights, tiers, promises and limits, the times and aliases of tiers, the gateway's bounds, models' aliases, which
engines a pool attaches, and where the keys of those stand. Lanes, pools and addresses of Forebay's own are made of the rest; whoever
changes that starts anew. So does who takes away the last team: nobody is let in without a key by a file that changed.
"""

from collections.abc import Iterator

import msgspec

from forebay.domain.errors import BadInput
from forebay.domain.replica import attached_id
from forebay.spec.types import Model, Pool, Spec, Tier

_LIVE = frozenset({"teams", "limits"})
_LIVE_OF_TIERS = ("ttft_s", "longest_wait_s", "idle_s", "total_s")
_IN_THE_FILE = {
    "gateway": "gateway.listen",
    "tls": "gateway.tls",
    "relay_workers": "gateway.workers",
    "own_port": "gateway.own_port",
    "state_dir": "state",
}


def check_live(before: Spec, after: Spec) -> None:
    """Raises BadInput that names all that a running Forebay can't take."""
    if before.teams and not after.teams:
        # A file that is half written, or whose folder of teams is away for a moment, must not open the gateway to everybody.
        raise BadInput(
            "teams: found none; allowed while Forebay runs: one at least, as without teams no key is asked for; put one back, "
            "or stop Forebay and start it again to serve everybody"
        )
    fixed = list(_fixed(before, after))
    if fixed:
        raise BadInput(
            f"the configuration: found changes in {', '.join(fixed)}; allowed while Forebay runs: teams, limits, models' aliases, pools' "
            "attach, key_env and key_file of engines that already run, and of tiers ttft, longest_wait, idle, total and aliases; undo "
            "those changes, or stop Forebay and start it again"
        )


def attach_changes(before: Spec, after: Spec) -> dict[str, str]:
    """By pool, in words such as ``attach: +10.0.0.17:8000, -10.0.0.11:8000``; without the pools whose engines are the same in any order."""
    words = {}
    for was, now in zip(before.pools, after.pools, strict=True):
        old, new = attached(was), attached(now)
        changes = [*(f"+{_bare_id(one)}" for one in new if one not in old), *(f"-{_bare_id(one)}" for one in old if one not in new)]
        if changes:
            words[now.name] = f"attach: {', '.join(changes)}"
    return words


def attached(pool: Pool) -> dict[str, str]:
    """Address of each engine that ``pool`` attaches, by the replica's id."""
    return {attached_id(pool.name, url): url.rstrip("/") for url in pool.engine.attach}


def _bare_id(replica_id: str) -> str:
    return replica_id.rpartition("@")[2]


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
    """Without what may change, and whether a context is written that is taken all the same."""
    if isinstance(one, Tier):
        return msgspec.structs.replace(one, aliases=(), **dict.fromkeys(_LIVE_OF_TIERS, 0.0))
    return _bare_pool(one) if isinstance(one, Pool) else msgspec.structs.replace(one, aliases=(), context_written=True)


def _bare_pool(pool: Pool) -> Pool:
    """Where a profile's numbers come from names lines of the file, which move; a pool that attaches is of the size of its list."""
    if pool.profile is not None:
        pool = msgspec.structs.replace(pool, profile=msgspec.structs.replace(pool.profile, sources=()))
    if pool.engine.kind != "attach":
        return pool
    scaling = msgspec.structs.replace(pool.scaling, min_replicas=0, max_replicas=0)
    return msgspec.structs.replace(
        pool, engine=msgspec.structs.replace(pool.engine, attach=(), keys=(), key_env="", key_file=""), scaling=scaling
    )
