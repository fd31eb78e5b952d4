"""One gateway among several: uses what is leased to it and stops in time, takes what others forward, and tells them what it hears.

It comes to life with the first roster under leases, so that a gateway which is the only one has none of this.
"""

import asyncio
import contextlib
import hmac
import http
from typing import Annotated, Protocol

import msgspec

from forebay.admission.lessee import Ask, Effect, Lessee, State
from forebay.domain.roster import Heard, Hello, Residue, Roster, RosterPool, RosterReplica
from forebay.gateway.answers import JSON, ErrorReply, bad_request
from forebay.gateway.desk import Desk
from forebay.gateway.forwarding import Forwarding
from forebay.gateway.holders import ID_BYTES_MAX, Holder, Holders
from forebay.gateway.hop_counts import HOPS, HopCounts
from forebay.gateway.http import ClientConnection
from forebay.gateway.records import REQUESTS
from forebay.gateway.request import Request
from forebay.gateway.usage import UsageBook
from forebay.ports.clock import Clock, TimerHandle
from forebay.ports.upstream import BodySource, Exchange, FetchFailed, ResponseSink, Upstream, fetch
from forebay.spec.types import Spec

HEARD = b"/forebay/v1/heard"
HOLDERS = b"/forebay/v1/holders"
"""Who keeps an answer, by its id."""
ANSWER_BYTES_MAX = 4096
ASK_REAL_S = 1.0
PEERS_MAX = 256
"""Remembered."""
RESIDUE_MAX = 0.25
"""Of a budget: while the gateway that had a replica before still runs more there, nothing is sent to it."""
OPEN_PATHS = frozenset({b"/health", b"/ready", b"/metrics"})
"""Of this process alone, as are the records of its requests: the address that clients know may be any gateway's."""
NO_HOP = ErrorReply(
    403, "invalid_request_error", "not_a_gateway", "Only other gateways ask here; clients use the gateways' common address."
)


class _HeardAgo(msgspec.Struct):
    heard_ago_s: float | None
    """World seconds since the controller's last answer."""


_decode = msgspec.json.Decoder(_HeardAgo).decode
_decode_holder = msgspec.json.Decoder(Holder | None).decode
_decode_id = msgspec.json.Decoder(Annotated[str, msgspec.Meta(max_length=ID_BYTES_MAX)]).decode


class Owner(Protocol):
    """The gateway."""

    name: str
    spec: Spec
    clock: Clock
    desk: Desk
    upstream: Upstream
    usage: UsageBook
    holders: Holders

    def tell(self, kind: str, message: str) -> None:
        """An event."""
        ...


class Peering:
    """Leases, other gateways, and the fence in front of the engines."""

    def __init__(self, owner: Owner) -> None:
        self.lessee = Lessee()
        self.counts = HopCounts(owner.name, owner.usage.journal.name, owner.clock, self._ask_counts, self._adopts)
        self.forwarding = Forwarding(owner.spec, owner.desk, self.counts)
        self._owner = owner
        self.raw = owner.upstream
        """Not fenced: what goes to other gateways."""
        self._roster = Roster(0, 0, 0.0, ())
        self._residues: tuple[Residue, ...] = ()
        self.urls: dict[str, str] = {}
        """Of the other gateways, those too that were silent when the controller was last heard: they may hear it when this one doesn't."""
        self.present: frozenset[str] = frozenset()
        """Those that weren't."""
        self._leased: frozenset[str] = frozenset()
        """Addresses of replicas that may be used while the lease lasts."""
        self._may = False
        self._shares = owner.desk.shares
        self._shares.begin(owner.clock.now_s())
        self._timer: TimerHandle | None = None
        self._asking: set[asyncio.Task[None]] = set()
        owner.upstream = Fence(self)

    def close(self) -> None:
        """No more timers, nobody is asked."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._asking:
            task.cancel()
        self.counts.close()

    # -- what the controller says --------------------------------------------------------------------------------------

    def apply(self, roster: Roster) -> None:
        """Use what is leased here by ``roster``."""
        self._roster = roster
        self.forwarding.lessees = {replica.id: replica.gateway for pool in roster.pools for replica in pool.replicas}
        self._route()

    def renewed(self, said_s: float, lease_s: float) -> None:
        """The controller has answered what was said at ``said_s``."""
        self._carry_out(self.lessee.renewed(said_s, lease_s, self._owner.clock.now_s()))

    def heard(self, heard: Heard) -> None:
        """It has answered a snapshot, and tells of the others."""
        for peer in heard.peers:
            self.urls.pop(peer.gateway, None)
            self.urls[peer.gateway] = peer.url
        for gateway in list(self.urls)[:-PEERS_MAX]:
            del self.urls[gateway]
        self.present = frozenset(peer.gateway for peer in heard.peers)
        self.forwarding.told(heard.peers, heard.hop_key)
        if heard.residues != self._residues:
            self._residues = heard.residues
            self._route()
        self._shares.given(heard.shares, heard.said_s, self._roster.lease_s, self._owner.clock.now_s())
        self.renewed(heard.said_s, self._roster.lease_s)

    def holds(self) -> tuple[str, ...]:
        """Replicas that are leased here."""
        return tuple(replica.id for pool in self._roster.pools for replica in pool.replicas if replica.gateway == self._owner.name)

    def _route(self) -> None:
        rest = {residue.replica: residue for residue in self._residues}
        pools = tuple(self._mine(pool, rest) for pool in self._roster.pools)
        self._leased = frozenset(replica.url for pool in pools for replica in pool.replicas)
        self._owner.desk.apply(pools)

    def _mine(self, pool: RosterPool, rest: dict[str, Residue]) -> RosterPool:
        mine = [replica for replica in pool.replicas if self._may and replica.gateway == self._owner.name]
        return msgspec.structs.replace(pool, replicas=tuple(replica for replica in mine if _is_free(replica, rest.get(replica.id))))

    # -- the lease -----------------------------------------------------------------------------------------------------

    def in_time(self, url: str) -> bool:
        """Whether a request may go to ``url`` now. Where it may not, nothing that is leased is used from here on."""
        if url not in self._leased or self._owner.clock.now_s() < self.lessee.until_s:
            return True
        self._carry_out(self.lessee.advance(self._owner.clock.now_s()))
        return False

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Ask):
                self._ask()
            elif effect.may != self._may:
                self._may = effect.may
                words = "leased replicas are used" if effect.may else "the controller does not answer in time: leased replicas are not used"
                self._owner.tell("lease_used" if effect.may else "lease_unused", words)
                self._route()
        if self._timer is not None:
            self._timer.cancel()
        lessee, lease_s = self.lessee, self._roster.lease_s
        self._shares.good_until(lessee.until_s, lease_s, self._owner.clock.now_s(), yielded=lessee.state is State.YIELDED)
        due_s = lessee.next_deadline_s()
        self._timer = None if due_s is None else self._owner.clock.call_at(due_s, self._due)

    def _due(self) -> None:
        self._timer = None
        self._carry_out(self.lessee.advance(self._owner.clock.now_s()))

    def _ask(self) -> None:
        """Ask every other gateway how long ago it heard the controller."""
        now_s = self._owner.clock.now_s()
        for gateway, url in self.urls.items():
            task = asyncio.ensure_future(self._ask_one(gateway, url))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        self._carry_out(self.lessee.asked(self.urls, now_s))

    async def _ask_one(self, gateway: str, url: str) -> None:
        host = url.partition("//")[2].encode()
        wire = b"GET %b HTTP/1.1\r\nhost: %b\r\nx-forebay-hop: %b\r\n\r\n" % (HEARD, host, self.forwarding.hop_key)
        ago_s = None
        with contextlib.suppress(FetchFailed, ValueError, msgspec.MsgspecError):
            _, body = await fetch(self.raw, url, wire, ANSWER_BYTES_MAX, ASK_REAL_S)
            ago_s = _decode(body).heard_ago_s
        self._carry_out(self.lessee.told(gateway, ago_s, self._owner.clock.now_s()))

    def _adopts(self, ticket: int, hop: bytes) -> bool:
        return self.forwarding.adopts(ticket, hop)

    async def _ask_counts(self, gateway: str, hops: bytes) -> bytes | None:
        """`hop_counts.Ask`."""
        url = self.urls.get(gateway)
        if url is None:
            return None
        with contextlib.suppress(FetchFailed, ValueError):
            status, body = await fetch(self.raw, url, self._post(url, HOPS, hops), ANSWER_BYTES_MAX, ASK_REAL_S)
            return body if status == http.HTTPStatus.OK else None
        return None

    async def holder(self, response_id: str) -> tuple[Holder | None, bool]:
        """Who keeps an answer, as another gateway knows; and, where none knows, whether each has said so."""
        body = msgspec.json.encode(response_id)
        told = await asyncio.gather(*[self._holder(url, body) for name, url in self.urls.items() if name in self.present])
        known = next((holder for holder, _ in told if holder is not None), None)
        return known, len(told) == len(self.present) and all(answered for _, answered in told)

    async def _holder(self, url: str, body: bytes) -> tuple[Holder | None, bool]:
        with contextlib.suppress(FetchFailed, ValueError, msgspec.MsgspecError):
            status, answer = await fetch(self.raw, url, self._post(url, HOLDERS, body), ANSWER_BYTES_MAX, ASK_REAL_S)
            if status == http.HTTPStatus.OK:
                return _decode_holder(answer), True
            return None, status == http.HTTPStatus.NOT_FOUND  # one of an older version, which remembers for itself alone
        return None, False

    def _post(self, url: str, path: bytes, body: bytes) -> bytes:
        head = b"POST %b HTTP/1.1\r\nhost: %b\r\nx-forebay-hop: %b\r\ncontent-length: %d\r\n\r\n"
        return head % (path, url.partition("//")[2].encode(), self.forwarding.hop_key, len(body)) + body

    # -- what others ask -----------------------------------------------------------------------------------------------

    def knows(self, request: Request) -> bool:
        """Whether it comes from another gateway."""
        return bool(self.forwarding.hop_key) and hmac.compare_digest(request.facts.hop, self.forwarding.hop_key)

    def admits(self, connection: ClientConnection, request: Request) -> bool:
        """Whether a request that came to the gateways' own address is to be handled; if not it is answered."""
        path = request.target.partition(b"?")[0]
        if path in OPEN_PATHS or path.startswith(REQUESTS):
            return True
        if not self.knows(request):
            connection.refuse(NO_HOP)
            return False
        if path == HEARD:
            ago_s = self._owner.clock.now_s() - self.lessee.renewed_s
            connection.answer(200, JSON, msgspec.json.encode(_HeardAgo(ago_s if ago_s < float("inf") else None)))
            return False
        if path == HOPS:
            try:
                connection.answer(200, JSON, self.counts.answer(request.body))
            except msgspec.DecodeError as error:
                connection.refuse(bad_request(f"This is no list of hops: {error}."))
            return False
        if path == HOLDERS:
            try:
                connection.answer(200, JSON, msgspec.json.encode(self._owner.holders.find(_decode_id(request.body))))
            except msgspec.DecodeError as error:
                connection.refuse(bad_request(f"This is no id of a response: {error}."))
            return False
        return True


class Fence:
    """`ports.Upstream` that sends nothing to a leased replica once the lease is over, whatever timers have or haven't run by then."""

    def __init__(self, peering: Peering) -> None:
        self._peering = peering
        self._upstream = peering.raw

    def send(
        self,
        url: str,
        request: bytes,
        sink: ResponseSink,
        timeout_s: float | None = None,
        more: BodySource | None = None,
        body: bytes = b"",
    ) -> Exchange:
        """See `ports.Upstream`. Raises ValueError where the lease is over, so that it is tried again as what was not sent."""
        if not self._peering.in_time(url):
            raise ValueError("the lease on this replica is over")
        return self._upstream.send(url, request, sink, timeout_s, more, body)

    def forget(self, url: str) -> None:
        """See `ports.Upstream`."""
        self._upstream.forget(url)

    async def close(self) -> None:
        """See `ports.Upstream`."""
        await self._upstream.close()


def _is_free(replica: RosterReplica, rest: Residue | None) -> bool:
    """Whether others run so little on ``replica`` that its budgets are true without it."""
    if rest is None:
        return True
    capacity = replica.capacity
    return rest.streams <= RESIDUE_MAX * capacity.sequences and rest.kv_tokens <= RESIDUE_MAX * capacity.kv_tokens


def hello(name: str, url: str, peering: Peering | None, session: float) -> Hello:
    """A gateway's first words."""
    return Hello(name, url, () if peering is None else peering.holds(), session, continues=bool(url))
