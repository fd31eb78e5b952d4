"""Which replicas of a pool lack an adapter, or a path, that others have: those that answered 404 for it, for a while.

An adapter is loaded into each engine apart, by an option of its start or while it runs, so replicas of one pool may differ, and versions
of one engine differ in their paths. What is known is forgotten after a minute, since an adapter may be loaded at any time; where all lack
it, all are asked, and the engine says so.
"""

from collections.abc import Collection

LACKING_S = 60.0


class Lacking:
    """Of one pool; times are world seconds. Bounded by the configuration's adapters and the paths there are, and the roster's replicas."""

    __slots__ = ("_nowhere_until_s", "_until_s")

    def __init__(self) -> None:
        self._until_s: dict[tuple[str, str], float] = {}
        self._nowhere_until_s: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._until_s)

    def add(self, adapter: str, replica: str, now_s: float) -> None:
        """``replica`` does not know ``adapter``."""
        self._until_s[adapter, replica] = now_s + LACKING_S

    def forget(self, adapter: str, replica: str) -> None:
        """It was not that: ``replica`` is asked again."""
        self._until_s.pop((adapter, replica), None)

    def told_by_all(self, path: str, replica: str, now_s: float) -> None:
        """Not ``replica`` alone does not know ``path``."""
        self.forget(path, replica)
        self._nowhere_until_s[path] = now_s + LACKING_S

    def is_nowhere(self, path: str, now_s: float) -> bool:
        """Whether two replicas said lately, one after the other, that they don't know ``path``."""
        return self._nowhere_until_s.get(path, now_s) > now_s

    def replicas(self, adapter: str, routed: Collection[str], now_s: float) -> tuple[str, ...]:
        """Those of ``routed`` that are known to lack it; none where that is all of them."""
        found = tuple(replica for replica in routed if self._until_s.get((adapter, replica), now_s) > now_s)
        return found if len(found) < len(routed) else ()

    def keep(self, listed: Collection[str], now_s: float) -> None:
        """Forget replicas that are not in the roster, and what was told long ago."""
        self._until_s = {key: until_s for key, until_s in self._until_s.items() if key[1] in listed and until_s > now_s}
