"""A pool's long-context pool: it must exist, serve the same model, and keep what it is given."""

from collections.abc import Mapping

from forebay.spec.problems import Problems, quoted
from forebay.spec.records import Got
from forebay.spec.types import LongContext, Spec


def build_long_context(got: Got) -> LongContext | None:
    """The one of a pool, or None; best effort where something is wrong (reported)."""
    written = got.record_of("long_context")
    return LongContext(**written.filled()) if "pool" in written.values else None


def check_long_context(spec: Spec, pools: Mapping[str, Got], problems: Problems) -> None:
    """Report pools that long requests can't go to."""
    named = {pool.name: pool for pool in spec.pools}
    for pool in spec.pools:
        if pool.long_context is None:
            continue
        place = pools[pool.name].record_of("long_context").at("pool")
        others = [each.name for each in spec.pools if each.model == pool.model and each.name != pool.name]
        target = named.get(pool.long_context.pool)
        if target is None or target.name not in others:
            problems.unknown(place, pool.long_context.pool, others, f"pool that serves {pool.model} too")
        elif target.long_context is not None:
            problems.add(
                place, quoted(target.name), "a pool without a long_context of its own", "long requests are passed on once: remove it there"
            )
