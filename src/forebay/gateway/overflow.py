"""The ways out of a pool: a sibling that serves a smaller model, then other people's engines; for teams that allow it.

Other people's engines are a pool like any other here, but with an admission that neither queues nor gives permits
(`admission.spill`), and with a key and a path of their own. So a request that moves is one that arrives elsewhere.
"""

from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from forebay.admission.estimate import Estimator
from forebay.admission.outcomes import Refusal
from forebay.admission.overflow import Rung
from forebay.admission.spill import SpillAdmission
from forebay.domain.shape import Shape
from forebay.gateway.desk import Desk
from forebay.gateway.heads import HeadFacts
from forebay.gateway.pool_desk import PoolDesk
from forebay.spec.types import EngineKind, Pool, Spec, Spill, Team

CONTENDED = frozenset({Refusal.QUEUE_FULL, Refusal.DISPLACED, Refusal.EXPIRED, Refusal.WOULD_EXPIRE, Refusal.SHED, Refusal.NO_REPLICAS})
"""Refusals that another place may not share. A request that never fits is refused."""


class Way(msgspec.Struct, frozen=True):
    """One. ``spill`` is None where it leads to a pool of ours."""

    pool: PoolDesk
    rung: Rung
    spill: Spill | None

    def takes(self, team: Team, shape: Shape, now_s: float) -> bool:
        """Whether a request of this team and shape would be started there now, and may be."""
        if self.spill is None:
            pool = self.pool
            fits = bool(pool.routed) and not pool.admission.waiting and shape.total_tokens <= pool.context_tokens
            return "degrade" in team.overflow and fits
        residency = team.residency
        admission = self.pool.admission
        return (
            "spill" in team.overflow
            and (not residency or self.spill.region in residency)
            and isinstance(admission, SpillAdmission)
            and admission.room(shape, now_s)
        )


class Peers(Protocol):
    """The other gateways."""

    forwarded: dict[tuple[str, str], int]
    """Requests by pool and gateway."""

    def out(self, pool: PoolDesk, left: tuple[str, ...], shape: Shape, now_s: float) -> PoolDesk | None:
        """Where a request of this shape is forwarded to that waits in ``pool``, if anywhere; not to one that it has ``left``."""
        ...

    def hop_lines(self, facts: HeadFacts, patience_s: float) -> bytes:
        """Header lines that go with it."""
        ...


class Ways:
    """Of one pool, in order."""

    peers: Peers | None = None
    """Where there are several gateways: they come before any other way."""

    def __init__(self, ways: tuple[Way, ...], teams: Mapping[str, Team]) -> None:
        self._ways = ways
        self._teams = teams
        self._rungs = tuple(dict.fromkeys(way.rung for way in ways))

    def waited(self, wait_s: float, now_s: float) -> None:
        """A request has waited so long, and waits on or was just started."""
        for rung in self._rungs:
            rung.waited(wait_s, now_s)

    def refused(self, now_s: float) -> None:
        """A request was about to be refused because others were in its way."""
        for rung in self._rungs:
            rung.refused(now_s)

    def failed(self, pool: PoolDesk, now_s: float) -> None:
        """A request that went to ``pool`` failed there, or was refused."""
        for way in self._ways:
            if way.pool is pool and way.spill is None:
                way.rung.hold_off(now_s)

    def out(self, team: str, shape: Shape, left: tuple[str, ...], now_s: float) -> Way | None:
        """The first open way that takes it, but for pools that it has ``left``."""
        who = self._teams.get(team)
        if who is None or not who.overflow:
            return None
        for way in self._ways:
            if way.rung.is_open(now_s) and way.pool.name not in left and way.takes(who, shape, now_s):
                return way
        return None


def join(spec: Spec, desk: Desk, keys: Mapping[str, str]) -> None:
    """Give the pools of ``desk`` their ways out. ``keys``: API keys by the name of their environment variable."""
    teams = {team.name: team for team in spec.teams}
    serving: dict[str, PoolDesk] = {}
    for pool in spec.pools:
        serving.setdefault(pool.model, desk.pools[pool.name])
    for pool in spec.pools:
        overflow = pool.overflow
        ways = []
        if overflow.degrade_to in serving:
            ways.append(Way(serving[overflow.degrade_to], Rung(overflow.degrade_after_s), None))
        rung = Rung(overflow.spill_after_s)
        for spill in overflow.spill:
            place = _place(spec, pool, spill, keys.get(spill.key_env, ""), desk.estimator)
            desk.spills.append(place)
            ways.append(Way(place, rung, spill))
        if ways:
            desk.pools[pool.name].ways = Ways(tuple(ways), teams)


def _place(spec: Spec, pool: Pool, spill: Spill, key: str, estimator: Estimator) -> PoolDesk:
    parts = urlsplit(spill.url)
    origin = f"{parts.scheme}://{parts.netloc}"
    # Nobody else's engines are asked for what only vLLM knows.
    engine = EngineKind("attach", attach=(origin,), metrics="llamacpp", continues=False)
    place = PoolDesk(spec, Pool(f"{pool.name}/{spill.name}", spill.model or pool.model, engine), estimator)
    place.admission = SpillAdmission(msgspec.structs.replace(spill, url=origin))
    place.foreign = True
    place.base = parts.path.rstrip("/").removesuffix("/v1").encode()
    place.head = b"authorization: Bearer %b\r\n" % key.encode() if key else b""
    return place
