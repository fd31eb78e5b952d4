"""A call that one replica alone can serve, since its engine keeps the answer that it goes on from.

It waits for that replica's permit as any other waits for one, and is sent nowhere else: another would only say that it knows nothing of
it. Where that replica is leased to another gateway, it is forwarded there. What that replica does wrong is its own fault, and the
client is told at once that its conversation can't go on there now.
"""

from typing import Final

from forebay.admission.effects import Refuse
from forebay.admission.outcomes import ANSWERS, Refusal
from forebay.admission.waits import HOLDER_RETRY_S
from forebay.gateway.answers import ErrorReply, retry_after_real_s
from forebay.gateway.refusals import ENGINE_ASKS_KEY
from forebay.gateway.relay import Call

_HOLDER_OUT: Final = Refusal.HOLDER_OUT
_LIKE_IT: Final = frozenset({Refusal.NO_REPLICAS, Refusal.SHED})
"""By the place at another gateway that did not take it."""


class BoundCall(Call):
    """Where ``kept_at`` is empty, a call like any other."""

    __slots__ = ()

    def overflowed(self, effect: Refuse) -> bool:
        """See `desk.Caller`."""
        if not self.kept_at:
            return super().overflowed(effect)
        return effect.why is _HOLDER_OUT and not self._open and self._to_holder()

    def refused(self, effect: Refuse) -> None:
        """See `desk.Caller`."""
        if self.kept_at and self._pool.peer and effect.why in _LIKE_IT:
            effect = Refuse(effect.ticket, _HOLDER_OUT, HOLDER_RETRY_S)
        super().refused(effect)

    def moved_from(self, replica: str, why: str) -> None:
        """See `desk.Caller`. Nobody else can go on with it, and it need not wait until its engine's silence is too long."""
        if not self.kept_at:
            super().moved_from(replica, why)
        elif self._exchange is not None and not (self._over or self._open) and self._replica == replica:
            self._drop_exchange()
            self._try_elsewhere(why, blame=False)

    def _try_elsewhere(self, message: str, *, blame: bool = True, detail: str = "", paid: bool = True, gone: bool = False) -> None:
        if not self.kept_at or self._pool.peer:
            super()._try_elsewhere(message, blame=blame, detail=detail, paid=paid, gone=gone)
            return
        if blame:
            self._blame(f"{message} {detail}" if detail else message, gone=gone)
        answer = ANSWERS[_HOLDER_OUT]
        code = "engine_asks_key" if message == ENGINE_ASKS_KEY else answer.code
        wait_s = retry_after_real_s(HOLDER_RETRY_S, self._context.speed, self._context.chance)
        self._give_up(ErrorReply(answer.status, answer.type, code, f"{message} {answer.message}", retry_after_s=wait_s))

    def _to_holder(self) -> bool:
        """To the gateway that its replica is leased to, unless it came from another one."""
        ways = self._home.ways
        if ways is None or ways.peers is None or self._connection.by_peer:
            return False
        now_s = self._context.desk.now_s()
        place = ways.peers.at(self._home, self.kept_at, (*self._left, self._pool.name), self._estimate, now_s)
        if place is None:
            return False
        self._forward(place, now_s)
        return True

    def _to_peer(self, now_s: float, *, stuck: bool) -> bool:
        return not self.kept_at and super()._to_peer(now_s, stuck=stuck)

    def _elsewhere(self) -> bool:
        return not self.kept_at and super()._elsewhere()

    def _another(self) -> bool:
        return not self.kept_at and super()._another()
