"""What the calls of a gateway ask of it (`context.Context`), and what it tells to whoever listens."""

from abc import ABC
from collections.abc import Callable

import msgspec

from forebay.admission.outcomes import jittered
from forebay.admission.outliers import Effect as Ejection
from forebay.admission.outliers import Eject, Readmit
from forebay.domain.events import Event
from forebay.gateway.answers import ErrorReply
from forebay.gateway.context import Context
from forebay.gateway.pool_desk import PoolDesk
from forebay.gateway.prober import Prober
from forebay.ports.clock import Clock
from forebay.ports.events import EventSink


class Duties(Context, ABC):
    """A gateway without its front."""

    clock: Clock
    name: str
    _prober: Prober
    _sink: EventSink
    _truncation: tuple[str, str]
    _truncations: int
    _urls: frozenset[str]

    def spread(self, error: ErrorReply) -> ErrorReply:
        """Clients obey ``Retry-After`` exactly: told the same, they would all come back at one instant."""
        if error.retry_after_s is None:
            return error
        return msgspec.structs.replace(error, retry_after_s=jittered(error.retry_after_s, self.chance.random()))

    def serves(self, url: str) -> bool:
        """Whether the present roster has a replica there."""
        return url in self._urls

    def truncated(self, pool: str, why: str) -> None:
        """A stream was broken off; told once a sweep, however many there were."""
        self._truncations += 1
        self._truncation = (pool, why)

    def abort_by_id(self, url: str, path: bytes, request_id: bytes) -> None:
        """Tell an engine that doesn't notice that a request is over."""
        self._prober.abort(url, path, request_id)

    def detokenize(self, url: str, model: str, ids: bytes, done: Callable[[str | None], None]) -> None:
        """The text of tokens, as an engine tells it."""
        self._prober.detokenize(url, model, ids, done)

    def _on_ejection(self, pool: PoolDesk, effect: Ejection) -> None:
        if isinstance(effect, Eject):
            self._emit("replica_ejected", f"{effect.replica} for {effect.for_s:g} s: {effect.why}", pool.name)
        elif isinstance(effect, Readmit):
            self._emit("replica_readmitted", f"{effect.replica} answers again", pool.name)
        else:
            url = next((replica.url for replica in pool.roster.replicas if replica.id == effect.replica), "")
            self._prober.probe(url, pool.model, lambda well: self.desk.probed(pool, effect.replica, well))

    def tell(self, kind: str, message: str) -> None:
        """An event of this gateway."""
        self._emit(kind, message)

    def _emit(self, kind: str, message: str, pool: str = "") -> None:
        self._sink.emit(Event(kind, self.clock.now_s(), self.clock.wall_s(), pool, message, {"gateway": self.name}))
