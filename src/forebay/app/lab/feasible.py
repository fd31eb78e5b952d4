"""Whether a pool could ever keep its promise: if not even an idle replica can, no policy will, and nothing is played.

The answer names the limit that binds and the nearest that could: the smallest promise that this profile keeps, and the
shipped profiles of the same model that keep the one that was made.
"""

import math
from collections.abc import Callable, Mapping

from forebay.domain.errors import BadInput
from forebay.domain.profile import Profile
from forebay.domain.units import format_duration
from forebay.engine.capacity import Binding, CapacityAtSlo, at_slo
from forebay.spec.problems import listed
from forebay.spec.types import Pool, Slo

LOOSENED_MAX = 1000.0
"""A promise this many times as loose is no longer "nearest"."""
_HALVINGS = 24
SIGNIFICANT = 2
"""Digits of a promise that is proposed; rounded up."""


def require(pool: Pool, shape: tuple[int, int], profiles: Mapping[str, Profile]) -> CapacityAtSlo:
    """What a replica of ``pool`` serves within its promise, for requests of ``shape`` (prompt, output tokens).

    Raises BadInput where that is nothing: no profile, or a promise that no replica keeps.
    """
    profile = pool.profile
    if profile is None:
        raise BadInput(f"pools.{pool.name}: found no profile, allowed: one; a fleet can be simulated only with the physics of its engines")
    found = _state(profile, shape, pool.slo)
    if found.requests_per_s:
        return found
    nearest = _nearest(profile, shape, pool.slo, found.binding)
    others = [
        name
        for name, other in profiles.items()
        if other.model == profile.model and other.context_tokens >= sum(shape) and _state(other, shape, pool.slo).requests_per_s
    ]
    hints = [nearest] if nearest else []
    if others:
        hints.append(f"profiles of the same model that keep it: {listed(sorted(others), most=4)}")
    raise BadInput(
        f"pools.{pool.name}: no replica of {profile.name} can keep first token {format_duration(pool.slo.ttft_s)} and "
        f"{format_duration(pool.slo.itl_s)} a token for requests of {shape[0]:,} + {shape[1]:,} tokens; {found.binding} binds: "
        f"{found.because} {'; '.join(hints)}".rstrip()
    )


def _state(profile: Profile, shape: tuple[int, int], slo: Slo) -> CapacityAtSlo:
    return at_slo(profile, shape[0], shape[1], slo.ttft_s, slo.itl_s)


def _nearest(profile: Profile, shape: tuple[int, int], slo: Slo, binding: Binding) -> str:
    """The smallest looser value of the promise that binds, or of both where one alone helps nothing; empty where not even both do."""

    def keeps(ttft_s: float, itl_s: float) -> bool:
        return at_slo(profile, shape[0], shape[1], ttft_s, itl_s).requests_per_s > 0

    def ttft(itl_s: float) -> float | None:
        return smallest(lambda value_s: keeps(value_s, itl_s), slo.ttft_s)

    def itl(ttft_s: float) -> float | None:
        return smallest(lambda value_s: keeps(ttft_s, value_s), slo.itl_s)

    alone_s = itl(slo.ttft_s) if binding is Binding.ITL else ttft(slo.itl_s) if binding is Binding.TTFT else None
    if alone_s is not None:
        return f"The nearest that it can keep is {binding}: {format_duration(alone_s)}"
    itl_s = itl(slo.ttft_s * LOOSENED_MAX)
    ttft_s = None if itl_s is None else ttft(itl_s)
    if itl_s is None or ttft_s is None:
        return ""
    return f"The nearest that it can keep is both looser, ttft: {format_duration(ttft_s)}, itl: {format_duration(itl_s)}"


def smallest(keeps: Callable[[float], bool], promised: float) -> float | None:
    """The smallest value above ``promised`` that ``keeps``, rounded up to two digits; None beyond ``LOOSENED_MAX`` times as loose."""
    low, high = promised, promised * LOOSENED_MAX
    if not keeps(high):
        return None
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return _rounded_up(high)


def _rounded_up(value: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) - SIGNIFICANT + 1)
    return math.ceil(value / unit) * unit
