"""Which gateway uses which replica, where there may be several: owns the leases, remembers them, and tells each gateway of the others.

The decisions are `admission.leases`; here is what it is told (who serves, who asked for how much), and what is stored before a roster
says it, so that the next leader grants nothing twice.
"""

from collections.abc import Iterable, Mapping

import msgspec

from forebay.admission.leases import Effect as Lease
from forebay.admission.leases import Grant, Leases, Revoke, Wants
from forebay.admission.shares import Shares
from forebay.controller.gateways import GatewayBook
from forebay.controller.remembered import remembered
from forebay.controller.ward import Ward
from forebay.domain.replica import ReplicaState
from forebay.domain.roster import Heard, Hello, Peer, PeerPool, Residue, Roster, RosterPool, Snapshot
from forebay.ports import Store

LEASES_KEY = "leases"
SHARES_KEY = "limit_shares"
HOP_KEY = "hop_key"
STALL_TICKS = 3


class Leasing:
    """The leases of one leader over the gateways in ``book``. ``fresh_key``: shown between gateways, unless one is stored."""

    def __init__(self, store: Store, book: GatewayBook, expected: int, interval_s: float, fresh_key: str, now_s: float) -> None:
        past = remembered(store, LEASES_KEY, dict[str, str])
        self.leases = Leases(book.lease_s, past, expected, now_s, STALL_TICKS * interval_s)
        holders = remembered(store, SHARES_KEY, list[str])
        self.shares = Shares(book.lease_s, holders, expected, now_s, STALL_TICKS * interval_s)
        self._holders = holders
        self._book = book
        self._store = store
        self._stored = past
        self._urls: dict[str, str] = {}
        self._continuing: set[str] = set()
        """Of those, who takes the rest of an answer."""
        self.hop_key = remembered(store, HOP_KEY, str) or fresh_key
        store.put(HOP_KEY, msgspec.json.encode(self.hop_key))

    def joined(self, hello: Hello, now_s: float) -> None:
        """A gateway is there (again). One that others can't forward to is leased nothing: what comes to it is forwarded."""
        self.shares.joined(hello.gateway, hello.session, now_s)
        self._keep_holders()
        if hello.url:
            self._urls[hello.gateway] = hello.url
            (self._continuing.add if hello.continues else self._continuing.discard)(hello.gateway)
            self.leases.joined(hello.gateway, hello.holds, now_s)

    def heard(self, gateway: str, now_s: float) -> None:
        """It told how it is. One that was silent for a lease on a connection that stood (a process that was stopped) is there again,
        with nothing: what it had is others', and it knows by its own clock."""
        if gateway in self._urls and gateway not in self.leases.members:
            self.leases.joined(gateway, (), now_s)

    def left(self, gateway: str) -> None:
        """It left for good."""
        self._urls.pop(gateway, None)
        self._continuing.discard(gateway)
        self.leases.left(gateway)
        self.shares.left(gateway)

    def look(self, wards: Iterable[Ward], leaving: frozenset[str], now_s: float) -> list[tuple[str, str, str]]:
        """Move what is to be moved; (pool, kind of event, words) of what was decided. To be followed by a roster."""
        pools = {ward.pool.name: self._wants(ward, leaving, now_s) for ward in wards}
        of = {replica: pool for pool, wants in pools.items() for replica in wants.replicas}
        told = [_told(effect, of) for effect in self.leases.balance(pools, now_s)]
        held = self.leases.held()
        if held != self._stored:
            self._stored = held
            self._store.put(LEASES_KEY, msgspec.json.encode(held))
        self.shares.look(now_s)
        self._keep_holders()
        return told

    def _keep_holders(self) -> None:
        """Before any of them is answered: the next leader waits for their word."""
        holders = self.shares.holders()
        if holders != self._holders:
            self._holders = holders
            self._store.put(SHARES_KEY, msgspec.json.encode(holders))

    def _wants(self, ward: Ward, leaving: frozenset[str], now_s: float) -> Wants:
        pool = ward.pool.name
        replicas = [view.id for view in ward.views if view.state is ReplicaState.READY and view.id not in leaving]
        demand = {name: self._book.asked_tokens(pool, name, now_s) for name in self._urls}
        return Wants(replicas, demand, {replica: self._book.live_tokens(pool, replica)[0] for replica in replicas})

    def answer(self, snapshot: Snapshot, roster: Roster, now_s: float) -> Heard:
        """What a gateway is told for its snapshot: that it was heard, how the others are, and what changes of its shares."""
        name, members = snapshot.gateway, self.leases.members
        others = [(other, url) for other, url in self._urls.items() if other != name and other in members]
        rests = self._continuing
        peers = tuple(Peer(other, url, tuple(self._pool(pool, other) for pool in roster.pools), other in rests) for other, url in others)
        mine = {replica.id for pool in roster.pools for replica in pool.replicas if replica.gateway == name}
        shares = self.shares.heard(name, snapshot.shares, now_s)
        self._keep_holders()
        return Heard(snapshot.at_s, self.hop_key, peers, self._residues(name, mine), shares)

    def _pool(self, pool: RosterPool, gateway: str) -> PeerPool:
        out = self._book.out_at(pool.pool, gateway)
        leased = [replica for replica in pool.replicas if replica.gateway == gateway]
        paces = [replica.capacity.decode_tokens_per_s for replica in leased if replica.id not in out]
        pace = sum(paces)
        waiting_tokens = self._book.waiting_tokens(pool.pool, gateway)
        return PeerPool(pool.pool, len(paces), waiting_tokens / pace if pace > 0 else 0.0, pace, len(leased) - len(paces))

    def _residues(self, name: str, mine: set[str]) -> tuple[Residue, ...]:
        """What others still run on the replicas of ``name``."""
        left: dict[str, tuple[int, int]] = {}
        for record in self._book.records.values():
            if record.name == name or record.snapshot is None or record.name not in self.leases.members:
                continue
            for load in record.snapshot.pools:
                for row in load.replicas:
                    if row.replica in mine and row.streams:
                        streams, tokens = left.get(row.replica, (0, 0))
                        left[row.replica] = (streams + row.streams, tokens + row.kv_tokens)
        return tuple(Residue(replica, *rest) for replica, rest in sorted(left.items()))


def _told(effect: Lease, of: Mapping[str, str]) -> tuple[str, str, str]:
    if isinstance(effect, Grant):
        return of.get(effect.replica_id, ""), "lease_granted", f"{effect.replica_id} is {effect.gateway}'s"
    if isinstance(effect, Revoke):
        return of.get(effect.replica_id, ""), "lease_revoked", f"{effect.replica_id} is taken from {effect.gateway}"
    return "", "lease_lapsed", f"gateway {effect.gateway} was silent for a lease: its replicas go to the others"
