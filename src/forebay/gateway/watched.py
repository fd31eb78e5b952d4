"""What is seen of a call's times, once a second: a silent engine, a client that reads nothing; and who of a replica's it is that waits."""

import math
from typing import Final

from forebay.admission.effects import Refuse
from forebay.admission.outcomes import Refusal
from forebay.admission.waits import NO_REPLICAS_RETRY_S
from forebay.gateway.meters import Outcome
from forebay.gateway.recovery import Recovery
from forebay.ports.upstream import End

DONE_REAL_S: Final = 5.0
"""An engine, or a proxy before it, that has sent the last of an answer has so long to end its response; its client waits for that."""


class Watched(Recovery):
    """What its times ask for."""

    __slots__ = ()

    def moved_from(self, replica: str, why: str) -> None:
        """``replica`` has stopped working: go on elsewhere if it runs there."""
        if self._exchange is None or self._over or self._replica != replica or self._ends():
            return
        if not self._another():
            if self._connection.by_peer and not self._open:
                self.shut(Refuse(self.ticket, Refusal.HANDED_BACK, NO_REPLICAS_RETRY_S))
            return
        self._drop_exchange()
        if self._open:
            self._broken(why)
        else:
            self._try_elsewhere(why, blame=False)

    def sweep(self, now_s: float) -> None:
        """An engine that is silent for too long, or a client that reads nothing, ends the call."""
        promise_s = self._ttft_promise_s
        waits = self._ask.stream and not (self._open or self._pool.peer)
        if waits and promise_s is not None and now_s - self._arrived_s > promise_s:
            # Missed already, though no first content has come: one that never comes must not look like none was late.
            self._meter.ttft_missed += 1
            self._ttft_promise_s = None
        if self._exchange is None:
            if now_s > self.quiet_until_s:  # it waits, and what there was to see has been seen
                self.quiet_until_s = math.inf
            return
        wire_bytes = self._bytes_read()
        if wire_bytes != self._progress_bytes:
            self._progress_bytes = wire_bytes
            self._progress_s = now_s
        quiet_s = now_s - self._progress_s
        late = quiet_s > self._idle_s or now_s - self._sent_s > self._total_s
        unbegun = self._ask.stream and not self._open and now_s > self._first_due_s
        if self._paused and quiet_s > self._idle_s:
            self._end(Outcome.CLIENT_SLOW, self._counted_usage(), abandon=True)
            self._connection.abort()
        elif (late or unbegun or (quiet_s > DONE_REAL_S * self._context.speed and self._reads_on)) and self._ends():
            return
        elif late:
            self._overdue(now_s - self._sent_s <= self._total_s)
        elif unbegun:
            self._begins_late()

    def _begins_late(self) -> None:
        """Its first content is overdue."""
        if self._another():
            self._drop_exchange()
            self._try_elsewhere("The engine did not begin its answer in time.")
        elif self._connection.by_peer and self._replica not in self._home.routed:
            self.shut(Refuse(self.ticket, Refusal.HANDED_BACK, NO_REPLICAS_RETRY_S))

    def _overdue(self, silent: bool) -> None:
        """Its engine has been silent for as long as may be, or (not ``silent``) it has taken as long as may be in all."""
        tries = silent and self._ask.stream and not self._open and self._another()
        self._drop_exchange()
        if self._open:
            self._take_back()
            self._broken("The engine did not go on in time.")
        elif tries:  # a tier that is promised little has a later first content than it has patience with silence
            self._take_back()
            self._try_elsewhere("The engine did not begin its answer in time.")
        else:
            self._failed(End.TIMEOUT, "")

    @property
    def _reads_on(self) -> bool:
        """What its engine may still say is not left unread for its client's sake."""
        return not self._paused or (self._stream is not None and self._stream.done)

    def streaming(self) -> tuple[str, float] | None:
        """Its replica, and when that last sent something; None unless tokens should be coming."""
        if self._exchange is None or not self._open or self._paused or self._stream is None:
            return None
        return self._replica, self._progress_s

    def owes_whole(self) -> str:
        """See `pool_desk.Caller`."""
        ask, pool = self._ask, self._pool
        if self._exchange is None or self._open or self._paused or ask.stream or pool.foreign or pool.peer:
            return ""
        return self._replica

    def last_read(self) -> tuple[float, float, float]:
        """See `pool_desk.Caller`."""
        return self._progress_s, self._idle_s, self._total_s

    def asked_at(self) -> str:
        """See `pool_desk.Caller`."""
        return self._replica_url

    def asked_for(self) -> bytes:
        """See `pool_desk.Caller`."""
        return self._path()

    def _path(self) -> bytes:
        return self._target.partition(b"?")[0]
