"""Long prompts apart: a pool of their own for those of which more than so many tokens have to be prefilled.

One of them holds up every stream of the replica that prefills it, and takes the KV of dozens of others. What counts is what is not
cached: the next turn of a long conversation stays where its beginning is. A long request goes home all the same where its own pool has no
replica, or where only home can hold it; one that home can't hold goes to the other pool, however much of it is cached.
"""

from collections.abc import Callable

import msgspec

from forebay.admission.estimate import Estimator
from forebay.admission.machine import Admission
from forebay.admission.prefixes import Prefix
from forebay.domain.shape import Shape, Sized
from forebay.gateway.pool_desk import PoolDesk
from forebay.spec.types import Spec


class Asked(msgspec.Struct, frozen=True, gc=False):
    """What a shape is estimated from."""

    team: str
    size: int
    output_max: int | None
    n: int
    sized: Sized | None

    def shape(self, estimator: Estimator, model: str, context_tokens: int) -> Shape:
        """As it would be in a context of so many tokens."""
        return estimator.shape(self.team, model, self.size, self.output_max, self.n, context_tokens, self.sized)


class LongContext:
    """Of one pool: where its long requests go."""

    __slots__ = ("_above", "_home", "_to")

    def __init__(self, home: PoolDesk, to: PoolDesk, above_tokens: int) -> None:
        self._home = home
        self._to = to
        self._above = above_tokens

    def choose(
        self, estimator: Estimator, asked: Asked, shape: Shape, prefix_of: Callable[[Shape], Prefix | None], residency: tuple[str, ...] = ()
    ) -> tuple[PoolDesk, Shape, bytes]:
        """(pool, shape in its context, header lines that say why); ``shape``: as it would be at home."""
        home, to = self._home, self._to
        if not to.within(residency):
            return home, shape, b""
        whole = shape if to.context_tokens <= home.context_tokens else asked.shape(estimator, home.model, to.context_tokens)
        uncached = whole.prompt_tokens
        too_long = uncached >= home.context_tokens
        if uncached <= self._above and not too_long:
            return home, shape, b""
        if not too_long and home.by_prefix and isinstance(home.admission, Admission):
            prefix = prefix_of(shape)
            uncached -= home.admission.foreseen(prefix, uncached) if prefix is not None else 0
            if uncached <= self._above:
                return home, shape, b""
        if not to.routed or (whole.prompt_tokens >= to.context_tokens and home.context_tokens > to.context_tokens):
            return home, shape, b""
        at = asked.shape(estimator, to.model, to.context_tokens)
        return to, at, b"x-forebay-long-context: %d\r\n" % uncached


def join(spec: Spec, desks: dict[str, PoolDesk]) -> None:
    """Tell the pools that have one where their long requests go."""
    for pool in spec.pools:
        if pool.long_context is not None:
            desks[pool.name].long = LongContext(desks[pool.name], desks[pool.long_context.pool], pool.long_context.above_tokens)
