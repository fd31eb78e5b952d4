"""Requests that another gateway can start sooner, or alone, are forwarded to it: a place like any other that a call may move to.

A place for each pool at each other gateway, which neither queues nor gives permits (`admission.spill`). What goes there goes as
the client sent it, with the client's own key, and a hop key of the gateways'; it is counted where it came in, and metered where
it is answered. Nothing is forwarded twice: what comes by a hop has no such way out.
"""

from collections.abc import Iterable
from math import inf

import msgspec

from forebay.admission.spill import SpillAdmission
from forebay.domain.roster import Peer, PeerPool
from forebay.domain.shape import Shape
from forebay.gateway.desk import Desk
from forebay.gateway.heads import HeadFacts
from forebay.gateway.hop_counts import HopCounts
from forebay.gateway.meters import TierMeter
from forebay.gateway.overflow import Waited, Ways
from forebay.gateway.pool_desk import PoolDesk
from forebay.spec.types import EngineKind, Pool, Spec, Spill

GAIN_S = 1.0
"""World seconds that a request must be expected to start earlier elsewhere, where it could wait here: the news are a second old."""
STREAMS_MAX = 100_000
"""At one other gateway: it has bounds of its own."""


class _Place(msgspec.Struct):
    desk: PoolDesk
    told: PeerPool
    continues: bool
    """It takes the rest of an answer."""
    sent_tokens: int = 0
    """Since it was told."""

    @property
    def wait_s(self) -> float:
        """What waits there, with what was sent meanwhile."""
        pace = self.told.tokens_per_s
        return self.told.wait_s + (self.sent_tokens / pace if pace > 0 else 0.0)


class Forwarding:
    """`overflow.Peers` of one gateway. It gives every pool of ``desk`` this way out."""

    def __init__(self, spec: Spec, desk: Desk, counts: HopCounts) -> None:
        self.hop_key = b""
        self.counts = counts
        self.forwarded: dict[tuple[str, str], int] = {}
        """Requests by pool and gateway, of places that are gone too."""
        self.lessees: dict[str, str] = {}
        """Replica → the gateway that it is leased to."""
        self._desk = desk
        self._spec = spec
        self._places: dict[tuple[str, str], _Place] = {}
        for pool in desk.pools.values():
            if pool.ways is None:
                pool.ways = Ways(pool, (), {}, lambda *_: None)
            pool.ways.peers = self

    def told(self, peers: Iterable[Peer], hop_key: str) -> None:
        """How the others are now."""
        self.hop_key = hop_key.encode()
        present = set()
        for peer in peers:
            for told in peer.pools:
                if told.pool in self._desk.pools:
                    key = (told.pool, peer.gateway)
                    present.add(key)
                    place = self._places.get(key)
                    if place is None or _url(place.desk) != peer.url:
                        self._places[key] = _Place(self._made(self._desk.pools[told.pool], peer), told, peer.continues)
                    else:
                        place.told, place.continues, place.sent_tokens = told, peer.continues, 0
        self._places = {key: place for key, place in self._places.items() if key in present}
        for pool in self._desk.pools.values():
            self._desk.elsewhere(pool, self.replicas(pool.name), self._ejected(pool.name))
        kept = {id(place.desk) for place in self._places.values()}
        # One that is gone goes when its last request has ended.
        self._desk.spills[:] = [each for each in self._desk.spills if not each.peer or each.calls or id(each) in kept]

    def out(
        self, pool: PoolDesk, left: tuple[str, ...], shape: Shape, now_s: float, *, stuck: bool, begun: bool = False
    ) -> PoolDesk | None:
        """See `overflow.Peers`."""
        best = self._best(pool, left, shape, now_s, begun)
        if best is None or (pool.routed and not stuck and self._wait_s(pool, shape, now_s) <= best.wait_s + GAIN_S):
            return None
        return self._sent(best, pool, shape)

    def at(self, pool: PoolDesk, replica: str, left: tuple[str, ...], shape: Shape, now_s: float) -> PoolDesk | None:
        """See `overflow.Peers`."""
        place = self._places.get((pool.name, self.lessees.get(replica, "")))
        if place is None or place.desk.name in left:
            return None
        admission = place.desk.admission
        assert isinstance(admission, SpillAdmission)
        return self._sent(place, pool, shape) if admission.room(shape, now_s) else None

    def _sent(self, place: _Place, pool: PoolDesk, shape: Shape) -> PoolDesk:
        place.sent_tokens += shape.total_tokens
        key = (pool.name, place.desk.peer)
        self.forwarded[key] = self.forwarded.get(key, 0) + 1
        return place.desk

    def would_take(self, pool: PoolDesk, left: tuple[str, ...], shape: Shape, now_s: float, *, begun: bool) -> bool:
        """See `overflow.Peers`."""
        return self._best(pool, left, shape, now_s, begun) is not None

    def replicas(self, pool: str) -> int:
        """See `overflow.Peers`."""
        return sum(place.told.replicas for (name, _), place in self._places.items() if name == pool)

    def _ejected(self, pool: str) -> int:
        """How many they give no requests."""
        return sum(place.told.ejected for (name, _), place in self._places.items() if name == pool)

    def hop_lines(self, facts: HeadFacts, patience_s: float, hop: bytes, waited: Waited | None) -> bytes:
        """See `overflow.Peers`."""
        lines = b"x-forebay-hop: %b\r\nx-forebay-hop-id: %b\r\n" % (self.hop_key, hop)
        if waited is None:
            lines += b"x-forebay-hop-continues: 1\r\n"
        else:
            lines += b"x-forebay-hop-waited: %d\r\n" % round(waited.real_s * 1000)
            if waited.late:
                lines += b"x-forebay-hop-late: 1\r\n"
        if facts.authorization:
            lines += b"authorization: %b\r\n" % facts.authorization
        if patience_s < inf:
            lines += b"x-forebay-deadline: %d\r\n" % max(1, round(patience_s * 1000))
        return lines

    def adopts(self, ticket: int, hop: bytes) -> bool:
        """See `overflow.Peers`."""
        calls = (place.calls.get(ticket) for place in self._desk.spills if place.peer)
        return any(call is not None and call.adopted(hop) for call in calls)

    def _best(self, pool: PoolDesk, left: tuple[str, ...], shape: Shape, now_s: float, begun: bool) -> _Place | None:
        """The place that is there for it with the shortest wait."""
        best: _Place | None = None
        for (name, _), place in self._places.items():
            admission = place.desk.admission
            assert isinstance(admission, SpillAdmission)
            usable = name == pool.name and place.told.replicas and place.desk.name not in left and admission.room(shape, now_s)
            if usable and (place.continues or not begun) and (best is None or place.wait_s < best.wait_s):
                best = place
        return best

    def _wait_s(self, pool: PoolDesk, shape: Shape, now_s: float) -> float:
        """What waits here, but for the request itself."""
        pace = sum(replica.capacity.decode_tokens_per_s for replica in pool.roster.replicas if replica.id in pool.routed)
        tokens = sum(lane.waiting_tokens for lane in pool.admission.load(now_s)[0])
        return max(0, tokens - shape.total_tokens) / pace if pace > 0 else 0.0

    def _made(self, pool: PoolDesk, peer: Peer) -> PoolDesk:
        engine = EngineKind("attach", attach=(peer.url,), metrics="llamacpp", continues=False)
        place = PoolDesk(self._spec, Pool(f"{pool.name}/{peer.gateway}", pool.model, engine), self._desk.estimator)
        place.admission = SpillAdmission(Spill(peer.gateway, peer.url, streams_max=STREAMS_MAX))
        place.peer = peer.gateway
        place.context_tokens = pool.context_tokens
        # What the client saw is the pool's to tell; what it took is metered where it was answered, so this is shown nowhere.
        place.meters = {tier.name: TierMeter(place.name, tier, 0.0) for tier in self._spec.tiers}
        self._desk.spills.append(place)
        return place


def _url(place: PoolDesk) -> str:
    admission = place.admission
    return admission.spill.url if isinstance(admission, SpillAdmission) else ""
