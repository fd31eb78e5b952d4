"""A call that its pool does not start in time leaves it by an open way, and arrives elsewhere as if it had been asked for there.

It is looked at when it arrives, each second while it waits, and when it is about to be refused. Only what may be asked
anywhere moves so: chat, completions and embeddings; what engines of the same model in another region are asked may be of every kind, but
for what one replica alone can serve. Once a replica was sent it, that replica's pool keeps it; where each replica that this gateway has
of the pool has failed it, another gateway's are tried, then another region's, for every kind of request.
"""

import math
from typing import Final

import msgspec

from forebay.admission.effects import Refuse
from forebay.admission.outcomes import Refusal
from forebay.admission.spill import SpillAdmission
from forebay.admission.waits import FAILED_RETRY_S, NO_REPLICAS_RETRY_S
from forebay.domain.shape import Shape
from forebay.gateway.answers import ErrorReply
from forebay.gateway.asking import NOTHING, UNASKED
from forebay.gateway.body import ENGINE_TIERS, rewritten
from forebay.gateway.doubting import Doubting
from forebay.gateway.meters import Outcome
from forebay.gateway.overflow import CONTENDED, Waited, Way, presses
from forebay.gateway.passed import found_in
from forebay.gateway.pool_desk import PoolDesk
from forebay.gateway.request import LargeRequest
from forebay.gateway.waits import Waits
from forebay.ports.upstream import ASKS_KEY
from forebay.spec.engine_keys import shown
from forebay.spec.types import Tier

DOUBTED_STATUSES: Final = frozenset({400, 413, 422})
"""Of other people's engines: they say that the request is wrong, which only the engines can know that it was asked of."""
FAILURES: Final = frozenset({429, *ASKS_KEY})
"""Of our own engines, as those from 500 on are: another may serve what one refuses so."""
BARREN_S: Final = 3.0
"""World seconds that what another gateway forwarded waits here where there is no replica: one may just be on its way from there to here."""


class Moving(Doubting):
    """Leaving a pool before anything was sent."""

    __slots__ = ()

    moves = True
    """Whether requests of this kind may be asked of another model, or of other people's engines."""

    def _look_around(self, now_s: float) -> None:
        """It waits: leave at once if a way is open."""
        if self._exchange is None and not self._over and not self._open:
            self._leave(now_s)

    def sweep(self, now_s: float) -> None:
        """See `recovery.Recovery.sweep`."""
        if self._connection.by_peer and self._lies_idle(now_s):
            self.shut(Refuse(self.ticket, Refusal.NO_REPLICAS, NO_REPLICAS_RETRY_S))
            return
        if self._home.ways is not None and self._exchange is None and not (self._over or self._open or self._left):
            if self._retries:
                self._flee(now_s)
            else:
                self._home.ways.waited(self._tier, now_s - self._arrived_s, now_s)
                self._leave(now_s)
            if self._left:
                return
        elif self._open and self._exchange is None:
            self._flee(now_s)
        if self._pool.peer and not self._open and self._exchange is not None:
            # It waits there, by that gateway's times and within ours of the whole.
            self._progress_s = now_s
            self._first_due_s = math.inf
        late = self._exchange is not None and self._ask.stream and not self._open and now_s > self._first_due_s
        if late and self._pool.foreign and not self._ends():
            self._drop_exchange()
            self._try_elsewhere("The place it was spilled to did not begin its answer in time.")
            return
        super().sweep(now_s)

    def _lies_idle(self, now_s: float) -> bool:
        """No replica was sent it, and there has been none here to send it to: the gateway that forwarded it may have some."""
        admission = self._home.admission
        if self._exchange is not None or self._open or self._over or self._tried or isinstance(admission, SpillAdmission):
            return False
        since_s = admission.barren_since_s
        return since_s is not None and now_s - max(since_s, self._arrived_s) > BARREN_S

    def _as_told(self, effect: Refuse) -> Refuse:
        """To another gateway, that there is no replica *here* is no last word on what none was asked. Ejected ones are asked anew soon."""
        if effect.why is not Refusal.NO_REPLICAS:
            return effect
        if self._connection.by_peer and not self._tried:
            return Refuse(effect.ticket, Refusal.HANDED_BACK, effect.retry_after_s)
        wait_s = effect.retry_after_s
        if wait_s is None or not self._home.outliers.recovering:
            return effect
        return Refuse(effect.ticket, effect.why, min(FAILED_RETRY_S, wait_s))

    def overflowed(self, effect: Refuse) -> bool:
        """It is about to be refused, and admission has let go of it: whether it arrives elsewhere instead."""
        if self._doubt is not None and self._doubt.replica == self._replica:
            return False  # its client is told what that one said
        ways = self._home.ways
        now_s = self._context.desk.now_s()
        if self._open and effect.why is Refusal.NO_REPLICAS:
            return self._go_abroad(now_s)
        if ways is None or self._open or effect.why not in CONTENDED:
            return False
        if self._pool is self._home:
            if not self._tier.preemptible:
                ways.refused(now_s)
            return self._leave(now_s, stuck=self._stuck or effect.why is Refusal.NO_REPLICAS, last=True)
        ways.failed(self._pool, now_s)
        return self._leave(now_s, stuck=self._stuck, last=True) or self._return(now_s)

    @property
    def _stuck(self) -> bool:
        """Each replica that this gateway has of its pool has failed it."""
        tried = self._tried
        return bool(tried) and all(replica in tried for replica in self._home.routed)

    def _try_elsewhere(self, message: str, *, blame: bool = True, detail: str = "", paid: bool = True, gone: bool = False) -> None:
        super()._try_elsewhere(message, blame=blame, detail=detail, paid=paid, gone=gone)
        self._flee(self._context.desk.now_s())

    def _failed_with(self, status: int) -> None:
        """Its engine has answered so, which is to be tried elsewhere."""
        foreign = self._pool.foreign
        if status in ASKS_KEY and not (foreign or self._pool.peer):
            self._locked_out(status)
        elif self._open:
            self._broken(f"The engine that was to go on answered {status}.")
        else:
            said = f"The engine answered {status}." if status != 200 else "The engine answered 200, but neither JSON nor events."
            found = self._key_refused(status) if foreign else found_in(self._failure)
            if self._pool.peer:
                said = f"The gateway that it was forwarded to answered {status}."
                self._take_back()
            blame = status not in DOUBTED_STATUSES if foreign else status not in {404, 429}
            self._try_elsewhere(said, blame=blame, detail=found, paid=status == 200)

    def _key_refused(self, status: int) -> str:
        """What the operator is told of a place that it is spilled to, and that refuses our key there."""
        admission = self._pool.admission
        if status not in ASKS_KEY or not isinstance(admission, SpillAdmission) or self._pool.peer:
            return ""
        name = admission.spill.key_env
        return f"It refuses the key in {shown(name)}: set it anew and start again." if name else "It asks for a key: name it with key_env."

    def _resume(self) -> str:
        why = super()._resume()
        if not why:
            self._flee(self._context.desk.now_s())
        return why

    def _flee(self, now_s: float) -> None:
        """A replica has failed it, and no other is in routing: not even to be refused by."""
        if self._exchange is not None or self._over or self._home.routed:
            return
        if not self._open:
            if self._connection.by_peer and self._tried:
                self.shut(Refuse(self.ticket, Refusal.NO_REPLICAS, NO_REPLICAS_RETRY_S))
            elif not self._left and not self._to_peer(now_s, stuck=True):
                self._out(now_s, beside=True)
        elif self._pool is self._home and not self._pool.admission.runs(self.ticket):  # else an engine is asked what its last tokens mean
            self._go_abroad(now_s)

    def _elsewhere(self) -> bool:
        ways = self._home.ways
        if ways is None or ways.peers is None or self._connection.by_peer or self._left or (self._open and self._plan is None):
            return False
        now_s = self._context.desk.now_s()
        return ways.peers.would_take(self._home, (self._home.name,), self._estimate, now_s, begun=self._open)

    def _to_peer(self, now_s: float, *, stuck: bool) -> bool:
        """To another gateway, unless one has forwarded it already, or its client's time is over."""
        ways = self._home.ways
        if ways is None or ways.peers is None or self._connection.by_peer or self._patience_left_s(now_s) <= 0:
            return False
        place = ways.peers.out(self._home, (*self._left, self._pool.name), self._estimate, now_s, stuck=stuck)
        if place is None:
            return False
        self._forward(place, now_s)
        return True

    def _patience_left_s(self, now_s: float) -> float:
        """Real seconds."""
        return self._patience_s - (now_s - self._arrived_s) / self._context.speed

    def _waits_left(self, tier: Tier, now_s: float) -> Waits:
        """Under ``tier``, for one that has waited since it arrived."""
        waited_s = now_s - self._arrived_s
        longest_s, patience_s = max(0.0, tier.longest_wait_s - waited_s), max(0.0, self._patience_left_s(now_s))
        return Waits(longest_s, tier.ttft_s - waited_s, patience_s, not self._ask.stream)

    def _leave(self, now_s: float, *, stuck: bool = False, last: bool = False) -> bool:
        """Whether it does. ``last``: it is refused otherwise."""
        ways = self._home.ways
        if ways is None:
            return False
        if self._to_peer(now_s, stuck=stuck):
            return True
        return (last or presses(self._tier, now_s - self._arrived_s)) and self._out(now_s, beside=not self.moves)

    def _out(self, now_s: float, *, beside: bool) -> bool:
        """By the first way that is open to it. ``beside``: by none but to the same model in another region."""
        ways = self._home.ways
        if ways is None or self.kept_at:
            return False
        named = self._ask.model
        adapter = named if named in self._home.adapters else ""
        way = ways.out(self._team, self._tier, self._estimate, (*self._left, self._pool.name), now_s, adapter=adapter, beside=beside)
        body = self._body_for(adapter or way.pool.model) if way is not None else None
        if way is None or body is None or isinstance(body, ErrorReply):
            return False
        self._move(way, body, now_s)
        return True

    def _body_for(self, model: str) -> bytes | ErrorReply:
        """As engines are sent it that serve ``model``. What is asked of that kind is nothing more than the client asks, so it stays."""
        return rewritten(self._request.body, model, self._has_our_tier()) if self.moves else self._body

    def _forward(self, place: PoolDesk, now_s: float) -> None:
        """To another gateway, as the client sent it: that one makes of it what this one would have."""
        request = self._request
        whole = not isinstance(request, LargeRequest) or request.ended
        self._arrive_at(place, request.body if whole else self._body, b"", now_s)

    def _go_abroad(self, now_s: float) -> bool:
        """No replica here goes on with its answer, whose rest is the body to be sent: whether another gateway is asked for that."""
        ways, before = self._home.ways, self._pool
        if ways is None or ways.peers is None or self._connection.by_peer or not (before is self._home or self._abroad):
            return False
        place = ways.peers.out(self._home, (*self._left, before.name), self._estimate, now_s, stuck=True, begun=True)
        if place is None:
            return False
        self._left = (*self._left, before.name)
        self._pool, self._abroad = place, True
        waits = Waits(self._tier.longest_wait_s, self._tier.ttft_s, self._patience_s, whole=False)
        self._context.desk.move(before, place, self, self._tier, self._team, self._estimate, now_s, waits)
        return True

    def _hop_lines(self) -> bytes:
        """See `recovery.Recovery`."""
        ways = self._home.ways
        assert ways is not None
        assert ways.peers is not None
        self._hop = ways.peers.counts.fresh(self.ticket)
        self._orphaned = False
        now_s = self._context.desk.now_s()
        # A client that has the beginning of its answer waits anew for more of it.
        patience_s = self._patience_s if self._abroad else self._patience_left_s(now_s)
        waited_s = (now_s - self._arrived_s) / self._context.speed
        waited = None if self._abroad else Waited(waited_s, late=self._ttft_promise_s is None)
        return ways.peers.hop_lines(self._request.facts, patience_s, self._hop, waited)

    def _take_back(self) -> None:
        """What was forwarded isn't the other gateway's to count any more."""
        ways = self._home.ways
        if self._pool.peer and self._hop and ways is not None and ways.peers is not None:
            ways.peers.counts.mine(self._hop)
            self._orphaned = True

    def _return(self, now_s: float) -> bool:
        """Where it went it was not served: back to its own pool, once, for what is left of its longest wait, and to no replica tried."""
        if not self._left or self._left[0] != self._home.name or self._left.count(self._home.name) > 1:
            return False
        if self._tried and ((self._stuck and self._home.routed) or not self._context.retries.take()):
            return False
        named = self._ask.model
        model = named if named in self._home.adapters else self._home.model
        if self._pool.peer and named == model and not self._has_our_tier():
            self._arrive_at(self._home, self._request.body, b"", now_s)
            return True
        body = rewritten(self._request.body, model, self._has_our_tier()) if self.moves or self._pool.peer else self._body
        if isinstance(body, ErrorReply):
            return False
        self._arrive_at(self._home, body, b"", now_s)
        return True

    def _has_our_tier(self) -> bool:
        tier = self._ask.service_tier
        return tier is not None and tier not in ENGINE_TIERS

    def _move(self, way: Way, body: bytes, now_s: float) -> None:
        if way.kind == "degrade":
            told = b"x-forebay-degraded: %b\r\n" % self._home.model.encode()
        else:
            told = b"x-forebay-spilled: %b\r\n" % way.to.encode()
        ways = self._home.ways
        assert ways is not None
        ways.went(way)
        self._arrive_at(way.pool, body, told, now_s)

    def _arrive_at(self, pool: PoolDesk, body: bytes, told: bytes, now_s: float) -> None:
        before, tier = self._pool, self._tier
        self._meter.outcomes[Outcome.MOVED] += 1
        self._left = (*self._left, before.name)
        self._pool = pool
        self._meter = pool.meters[tier.name]
        self._body = body
        if not pool.peer and pool is not self._home:
            self._retries = 0
        self._resent = self._orphaned = False
        self._hop = b""
        self._forget_answer()
        self._forget_emitted()
        self.way = told
        self._wants = UNASKED if self._ask.stream and not pool.peer else NOTHING
        if self.sized is not None:  # another model's tokens were counted
            self.sized = msgspec.structs.replace(self.sized, counted_tokens=None)
        shape: Shape = self._estimate
        expected = self._meter.arrive(shape)
        if not pool.peer:  # what is forwarded is demand of the pool that it came to
            self._demanded = (self._meter, shape.prompt_tokens, expected)
        waits = self._waits_left(tier, now_s)
        self._context.desk.move(before, pool, self, tier, self._team, shape, now_s, waits, tried=self._tried)
