"""What a configuration that was taken while Forebay runs has changed, in words for the log: every change by its place, and no secret."""

from collections.abc import Iterator
from typing import Any

import msgspec

from forebay.spec.live import attach_changes
from forebay.spec.types import Pool, Spec

TOLD_MAX = 20
"""Changes told one by one; of more, how many they are."""


def changes(before: Spec, after: Spec) -> str:
    """Such as ``teams: +trial; teams.search: limits.requests_per_minute none → 60; keys``; empty for none that can be told."""
    found = list(_all(before, after))
    told = found if len(found) <= TOLD_MAX else [*found[:TOLD_MAX], f"and {len(found) - TOLD_MAX} changes more"]
    return "; ".join(told)


def _all(before: Spec, after: Spec) -> Iterator[str]:
    yield from _named("teams", before.teams, after.teams)
    yield from _named("tiers", before.tiers, after.tiers)
    yield from _named("models", before.models, after.models)
    limits = _fields(before.limits, after.limits)
    if limits:
        yield f"limits: {', '.join(limits)}"
    for pool, words in attach_changes(before, after).items():
        yield f"{pool}: {words}"
    for was, now in zip(before.pools, after.pools, strict=True):
        stay = frozenset(was.engine.attach) & frozenset(now.engine.attach)
        if _keys(was, stay) != _keys(now, stay):
            yield f"{now.name}: where its engines' keys stand"


def _named(kind: str, old: tuple[Any, ...], new: tuple[Any, ...]) -> Iterator[str]:
    before, after = {one.name: one for one in old}, {one.name: one for one in new}
    came = [*(f"+{name}" for name in after if name not in before), *(f"-{name}" for name in before if name not in after)]
    if came:
        yield f"{kind}: {', '.join(came)}"
    for name, one in after.items():
        fields = _fields(before[name], one) if name in before else []
        if fields:
            yield f"{kind}.{name}: {', '.join(fields)}"


def _fields(old: msgspec.Struct, new: msgspec.Struct) -> list[str]:
    """What differs, with both values where they are numbers."""
    found = []
    for field in new.__struct_fields__:
        was, now = getattr(old, field), getattr(new, field)
        if was == now or field == "context_written":  # to write what is taken anyway changes nothing
            continue
        if isinstance(now, msgspec.Struct) and type(was) is type(now):
            found += [f"{field}.{each}" for each in _fields(was, now)]
        elif isinstance(was, int | float | None) and isinstance(now, int | float | None):
            found.append(f"{field} {_value(was)} → {_value(now)}")
        else:
            found.append(field)
    return found


def _value(value: float | None) -> str:
    return "none" if value is None else f"{value:.12g}"


def _keys(pool: Pool, urls: frozenset[str]) -> tuple[object, ...]:
    """Of engines that stay: those that come and go bring or take theirs."""
    return (pool.engine.key_env, pool.engine.key_file, [key for key in pool.engine.keys if key.url in urls])
