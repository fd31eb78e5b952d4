"""The ways out of a pool: one of the same model in another region, one of a smaller model, then other people's engines; for teams that
allow it.

Other people's engines are a pool like any other here, but with an admission that neither queues nor gives permits
(`admission.spill`), and with a key and a path of their own. So a request that moves is one that arrives elsewhere.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from forebay.admission.estimate import Estimator
from forebay.admission.machine import Admission
from forebay.admission.outcomes import Refusal
from forebay.admission.overflow import Rung
from forebay.admission.spill import SpillAdmission
from forebay.domain.shape import Shape
from forebay.gateway.desk import Desk
from forebay.gateway.heads import HeadFacts
from forebay.gateway.hop_counts import HopCounts
from forebay.gateway.pool_desk import PoolDesk
from forebay.ports.clock import Clock
from forebay.spec.types import EngineKind, Pool, Spec, Spill, Team, Tier

CONTENDED = frozenset({Refusal.QUEUE_FULL, Refusal.DISPLACED, Refusal.EXPIRED, Refusal.WOULD_EXPIRE, Refusal.SHED, Refusal.NO_REPLICAS})
"""Refusals that another place may not share. A request that never fits is refused."""


class Way(msgspec.Struct, frozen=True):
    """One. ``spill`` is None where it leads to a pool of ours."""

    pool: PoolDesk
    rung: Rung
    """Its own, where it leads to a pool of ours: that may fail while others serve."""
    spill: Spill | None = None
    beside: bool = False
    """It leads to a pool of ours that serves the same model in another region."""

    @property
    def kind(self) -> str:
        """As metrics name it."""
        return "spill" if self.spill is not None else "region" if self.beside else "degrade"

    @property
    def to(self) -> str:
        """What it is called: a pool of ours, a model of ours, or a place."""
        return self.spill.name if self.spill is not None else self.pool.name if self.beside else self.pool.model

    def agreed(self, team: Team) -> bool:
        """Whether the team lets its requests take it."""
        return ("degrade" if self.kind == "degrade" else "spill") in team.overflow and self._within(team.residency)

    def _within(self, residency: tuple[str, ...]) -> bool:
        return self.pool.within(residency) if self.spill is None else not residency or self.spill.region in residency

    def starts(self, tier: Tier, shape: Shape, now_s: float) -> bool:
        """Whether a request of this tier and shape would be started there now."""
        admission = self.pool.admission
        if isinstance(admission, SpillAdmission):
            return admission.room(shape, now_s)
        return bool(self.pool.routed) and shape.longest_tokens <= self.pool.context_tokens and admission.starts(tier.name, shape, now_s)


def presses(tier: Tier, wait_s: float) -> bool:
    """Whether a request of this tier that has waited so long is a sign of overload: batch waits, as it is meant to."""
    return not tier.preemptible or wait_s >= tier.ttft_s


class Look(msgspec.Struct, frozen=True):
    """One way out of a pool, for whoever looks."""

    pool: str
    way: str
    """`Way.kind`."""
    to: str
    """The other pool, the smaller model (whichever pools serve it), or the place's name."""
    open: bool
    opened_total: int
    requests_total: int
    used_usd: float
    """Spent within the last hour, and reserved; 0 where nothing is priced."""
    budget_usd: float


Tell = Callable[[str, str, str], None]
Spent = dict[str, list[tuple[float, float]]]
"""By place: (Unix time, US dollars), of the last hour."""


class Ledger(Protocol):
    """Keeps what was spent, so that a process which starts again doesn't begin at nothing."""

    def load(self) -> Spent:
        """As it was saved last; empty where nothing was."""
        ...

    def save(self, spent: Spent) -> None:
        """In place of what was saved before. Must not raise."""
        ...


class Waited(msgspec.Struct, frozen=True):
    """What a request has waited before it is forwarded."""

    real_s: float
    late: bool
    """Its TTFT is counted as missed already."""


class Peers(Protocol):
    """The other gateways."""

    forwarded: dict[tuple[str, str], int]
    """Requests by pool and gateway."""

    def out(
        self, pool: PoolDesk, left: tuple[str, ...], shape: Shape, now_s: float, *, stuck: bool, begun: bool = False
    ) -> PoolDesk | None:
        """Where a request of this shape is forwarded to that waits in ``pool``, if anywhere; not to one that it has ``left``.

        ``stuck``: no replica of ours will take it, however long it waits. ``begun``: it is for the rest of an answer.
        """
        ...

    def at(self, pool: PoolDesk, replica: str, left: tuple[str, ...], shape: Shape, now_s: float) -> PoolDesk | None:
        """The place at the gateway that ``replica`` is leased to, for a request that nobody else can serve."""
        ...

    def would_take(self, pool: PoolDesk, left: tuple[str, ...], shape: Shape, now_s: float, *, begun: bool) -> bool:
        """Whether there is a place for one that is stuck."""
        ...

    def replicas(self, pool: str) -> int:
        """How many the others have of it in routing."""
        ...

    counts: HopCounts

    def hop_lines(self, facts: HeadFacts, patience_s: float, hop: bytes, waited: Waited | None) -> bytes:
        """Header lines that go with it. ``waited`` is None of the rest of an answer, which is counted here."""
        ...

    def adopts(self, ticket: int, hop: bytes) -> bool:
        """Another gateway says that ``hop`` has ended: whether a request is on it, which is counted here then, however it ends."""
        ...


class Ways:
    """Of one pool, in order. ``tell(kind, message, pool)`` hears when they open and close."""

    peers: Peers | None = None
    """Where there are several gateways: they come before any other way."""

    def __init__(self, home: PoolDesk, ways: tuple[Way, ...], teams: Mapping[str, Team], tell: Tell, *, sleeps: bool = False) -> None:
        """``sleeps``: the pool may be meant to have no replica, and is woken by what waits in it."""
        self._home = home
        self._sleeps = sleeps
        self._all = ways
        self._tell = tell
        self._standing: set[str] = set()
        """Kinds."""
        self._went = dict.fromkeys(ways, 0)
        self._full: dict[tuple[Way, str], tuple[float, int, int]] = {}
        """What a way did not take last, by tier: when that was, the tokens and the sequences."""
        self.use(teams)

    def use(self, teams: Mapping[str, Team]) -> None:
        """What teams allow, from now on. Nobody need have written down a way to another region: without a team that agrees it is none."""
        self._teams = teams
        spills = any("spill" in team.overflow for team in teams.values())
        self._ways = tuple(way for way in self._all if spills or not way.beside)
        self._rungs = tuple(dict.fromkeys(way.rung for way in self._ways))

    def sweep(self, now_s: float) -> None:
        """Tell of those that have opened or closed since the last time."""
        for kind in dict.fromkeys(way.kind for way in self._ways):
            ways = [way for way in self._ways if way.kind == kind]
            rung = ways[0].rung  # those of one kind open and close at once
            stands = rung.stands(now_s)
            if stands == (kind in self._standing):
                continue
            to = " or ".join(dict.fromkeys(way.to for way in ways))
            if stands:
                self._standing.add(kind)
                found = f"some waited {rung.after_s:g} s, or had no room{' or no replica' if kind == 'region' else ''}"
                self._tell("overflow_began", f"what would have to wait goes to {to}: {found}", self._home.name)
            else:
                self._standing.discard(kind)
                found = "none has waited half as long for a minute"
                self._tell("overflow_over", f"nothing goes to {to} any more: {found}", self._home.name)

    def went(self, way: Way) -> None:
        """A request leaves by it."""
        self._went[way] += 1

    def looks(self, now_s: float) -> list[Look]:
        """All of them; the pools of one smaller model as one."""
        found: dict[tuple[str, str], Look] = {}
        for way in self._ways:
            look = self._look(way, way.pool.admission, now_s)
            before = found.get((look.way, look.to))
            if before is not None:
                look = msgspec.structs.replace(before, requests_total=before.requests_total + look.requests_total)
            found[look.way, look.to] = look
        return list(found.values())

    def _look(self, way: Way, admission: Admission | SpillAdmission, now_s: float) -> Look:
        used_usd = budget_usd = 0.0
        if isinstance(admission, SpillAdmission) and admission.priced:
            used_usd, budget_usd = admission.budget.used_usd(now_s), admission.budget.usd_per_hour
        rung = way.rung
        return Look(self._home.name, way.kind, way.to, rung.stands(now_s), rung.opened_total, self._went[way], used_usd, budget_usd)

    def waited(self, tier: Tier, wait_s: float, now_s: float) -> None:
        """A request has waited so long, and waits on or was just started."""
        if presses(tier, wait_s):
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

    def out(
        self, team: str, tier: Tier, shape: Shape, left: tuple[str, ...], now_s: float, *, adapter: str = "", beside: bool = False
    ) -> Way | None:
        """The first open way that takes it, but for pools that it has ``left``.

        ``adapter``: which it asks for, so that only a pool will do that has it. ``beside``: none but to the same model in another region.
        """
        who = self._teams.get(team)
        if who is None or not who.overflow:
            return None
        if self._is_bare():
            self._hold_open(now_s)
        for way in self._ways:
            may = way.beside or not (beside or adapter)
            may = may and way.rung.is_open(now_s) and way.pool.name not in left and way.agreed(who) and _has(way, adapter)
            if may and self._starts(way, tier, shape, now_s):
                return way
        return None

    def stand_in(self, team: str, adapter: str) -> PoolDesk | None:
        """Another region's pool of the same model, for what needs no permit, where this one has no replica."""
        who = self._teams.get(team)
        if who is None or not self._is_bare():
            return None
        ways = (way for way in self._ways if way.beside and way.pool.routed and way.agreed(who) and _has(way, adapter))
        return next((way.pool for way in ways), None)

    def _is_bare(self) -> bool:
        """No replica is in routing, here or at another gateway."""
        return not self._home.routed and (self.peers is None or not self.peers.replicas(self._home.name))

    def _hold_open(self, now_s: float) -> None:
        """Where nothing serves, no rung that stands closes since nobody waits any more; and another region is open at once where nothing is
        on its way either.

        But one that sleeps is left to what waits there, which wakes it.
        """
        comes = self._home.roster.next_ready_in_s is not None
        for way in self._ways if comes or not self._sleeps else ():
            if way.rung.stands(now_s) or (way.beside and not comes):
                way.rung.refused(now_s)

    def _starts(self, way: Way, tier: Tier, shape: Shape, now_s: float) -> bool:
        """As the way says; what is no smaller than what it has not taken at this very instant is not asked about: thousands may wait."""
        if way.spill is not None:
            return way.starts(tier, shape, now_s)
        at_s, tokens, sequences = self._full.get((way, tier.name), (-inf, 0, 0))
        if at_s == now_s and shape.total_tokens >= tokens and shape.sequences >= sequences:
            return False
        starts = way.starts(tier, shape, now_s)
        if not starts:
            self._full[way, tier.name] = now_s, shape.total_tokens, shape.sequences
        return starts


def _has(way: Way, adapter: str) -> bool:
    return not adapter or adapter in way.pool.adapters


def join(spec: Spec, desk: Desk, keys: Mapping[str, str], tell: Tell, ledger: Ledger | None = None) -> None:
    """Give the pools of ``desk`` their ways out. ``keys``: API keys by the name of their environment variable."""
    teams = {team.name: team for team in spec.teams}
    long = {pool.long_context.pool for pool in spec.pools if pool.long_context is not None}
    for pool in spec.pools:
        overflow = pool.overflow
        # What was set apart for long requests is for those, here as there.
        same = [other for other in spec.pools if other.model == pool.model and (other.name in long) == (pool.name in long)]
        ways = [Way(desk.pools[other.name], Rung(overflow.spill_after_s), beside=True) for other in same if other.region != pool.region]
        smaller = [other for other in spec.pools if other.model == overflow.degrade_to and other.name not in long]
        ways += [Way(desk.pools[other.name], Rung(overflow.degrade_after_s)) for other in smaller]
        rung = Rung(overflow.spill_after_s)
        for spill in overflow.spill:
            place = _place(spec, pool, spill, keys.get(spill.key_env, ""), desk.estimator)
            desk.spills.append(place)
            ways.append(Way(place, rung, spill))
        if ways:
            home, sleeps = desk.pools[pool.name], not pool.scaling.min_replicas
            home.ways = Ways(home, tuple(ways), teams, tell, sleeps=sleeps)
    if ledger is not None:
        _remember(desk.spills, desk.clock, ledger)


def _remember(places: list[PoolDesk], clock: Clock, ledger: Ledger) -> None:
    """Count what was spent before, and have all that is spent from now on kept."""
    priced = {place.name: place.admission for place in places if isinstance(place.admission, SpillAdmission) and place.admission.priced}

    def keep() -> None:
        now_s, wall_s = clock.now_s(), clock.wall_s()
        kept = {name: admission.budget.kept(now_s) for name, admission in priced.items()}
        ledger.save({name: [(wall_s - ago_s, usd) for ago_s, usd in spent] for name, spent in kept.items() if spent})

    before = ledger.load() if priced else {}
    for name, admission in priced.items():
        wall_s = clock.wall_s()
        admission.budget.restore([(wall_s - at_s, usd) for at_s, usd in before.get(name, ())], clock.now_s())
        admission.changed = keep


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
