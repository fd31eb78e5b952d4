"""What the calls of a gateway ask of it (`context.Context`), and what it tells to whoever listens."""

from abc import ABC
from collections.abc import Callable
from typing import Final

import msgspec

from forebay.admission.outcomes import jittered
from forebay.admission.outliers import Effect as Ejection
from forebay.admission.outliers import Eject, Readmit
from forebay.domain.events import Event
from forebay.domain.roster import Roster
from forebay.gateway.answers import ErrorReply
from forebay.gateway.context import Context
from forebay.gateway.continuing import PATH
from forebay.gateway.doubting import UNKNOWN_HERE
from forebay.gateway.pool_desk import PoolDesk
from forebay.gateway.prober import PROBE_REAL_S, Prober
from forebay.gateway.silence import Listen
from forebay.ports.clock import Clock
from forebay.ports.events import EventSink
from forebay.ports.upstream import ASKS_KEY
from forebay.spec import engine_keys
from forebay.spec.types import Spec

DOUBTFUL: Final = frozenset({403})
"""Of `ASKS_KEY`."""
LISTEN_REAL_S_MAX: Final = 60.0
"""How long a replica that seems to hang is given for one token at most, where many prompts are before that."""


def nobody(pool: str, url: str) -> None:
    """Of the engines none asks for a key."""
    del pool, url


class Duties(Context, ABC):
    """A gateway without its front."""

    clock: Clock
    name: str
    _prober: Prober
    _sink: EventSink
    _truncation: tuple[str, str]
    _truncations: int
    _urls: frozenset[str]
    _asked: set[str]
    """Addresses of engines that are asked whether they take their key."""
    spec: Spec
    meet: Callable[[str, str], None]
    """Told of each engine's pool and address before anything is sent there: it may ask for a key."""

    def spread(self, error: ErrorReply) -> ErrorReply:
        """Clients obey ``Retry-After`` exactly: told the same, they would all come back at one instant."""
        if error.retry_after_s is None:
            return error
        return msgspec.structs.replace(error, retry_after_s=jittered(error.retry_after_s, self.chance.random()))

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

    def _meet(self, roster: Roster) -> None:
        for pool in roster.pools:
            for replica in pool.replicas:
                self.meet(pool.pool, replica.url)

    def asks_key(self, url: str, status: int, *, sure: bool = False) -> None:
        """The engine at ``url`` answered ``status``, one of `ASKS_KEY`: nothing is sent there until it is shown what it asks for.

        ``sure``: to a request of our own. A 403 to a client's may be for what that says, as by a filter before the engine: it is asked
        first, or one client could take every engine away.
        """
        if sure or status not in DOUBTFUL:
            for pool in self.desk.pools.values():
                for replica in pool.roster.replicas:
                    if replica.url == url:
                        self.desk.locked(pool, replica.id, engine_keys.refused(self.spec.pool(pool.name), url, status))
        elif url not in self._asked:
            model = next((pool.model for pool in self.desk.pools.values() if any(each.url == url for each in pool.roster.replicas)), "")
            self._asked.add(url)
            self._prober.probe(url, model, lambda answered: self._was_asked(url, answered))

    def _was_asked(self, url: str, status: int | None) -> None:
        self._asked.discard(url)
        if status is not None and status in ASKS_KEY:
            self.asks_key(url, status, sure=True)

    def doubted(self, pool: PoolDesk, replica: str, url: str, path: bytes) -> None:
        """See `context.Context`. What it says to a request of our own is true for all."""
        if url in self._asked:
            return
        self._asked.add(url)

        def told(status: int | None) -> None:
            self._asked.discard(url)
            if status is not None and status in ASKS_KEY:
                self.asks_key(url, status, sure=True)
            elif status in UNKNOWN_HERE:
                why = f"The engine answered {status} at {path.decode()} for {pool.model!r}, which others of its pool serve."
                self.failures.note(pool.name, replica, url, why)
                self.desk.wrong(pool, replica, path, why)
            else:
                pool.lacking.forget(path.decode(), replica)

        self._prober.probe(url, pool.model, told, path)

    def out(self) -> set[str]:
        """Addresses of replicas that are ejected."""
        pools = [pool for pool in self.desk.pools.values() if len(pool.routed) < len(pool.roster.replicas)]
        return {replica.url for pool in pools for replica in pool.roster.replicas if replica.id not in pool.routed}

    def is_locked(self, url: str) -> bool:
        """Whether the engine at ``url`` asks for a key."""
        for pool in self.desk.pools.values():
            asking = pool.outliers.asking
            if asking and any(replica.url == url and replica.id in asking for replica in pool.roster.replicas):
                return True
        return False

    def is_out(self, url: str) -> bool:
        """Whether the replica at ``url`` is ejected."""
        return url in self.out()

    def _probed(self, pool: PoolDesk, replica: str, url: str, status: int | None) -> None:
        """``status``: of the answer to a probe; None: there was none."""
        if status is not None and status in ASKS_KEY:
            self.asks_key(url, status, sure=True)
        # Any other refusal is of the probe itself, as by an engine that only embeds; unless that is what it was ejected for.
        well = status is not None and (200 <= status < 300 or 400 <= status < 500) and status != 429 and status not in ASKS_KEY
        if status in UNKNOWN_HERE and replica in pool.silences.targets:
            well = False
        if well:
            pool.silences.targets.pop(replica, None)
        self.desk.probed(pool, replica, well)

    def _on_ejection(self, pool: PoolDesk, effect: Ejection | Listen) -> None:
        if isinstance(effect, Listen):
            self._listen(pool, effect)
            return
        if isinstance(effect, Eject):
            pool.last_ejected = f"{effect.replica}: {effect.why}"
        if isinstance(effect, Eject) and effect.locked:
            self._emit("engine_asks_key", f"{effect.replica} {effect.why}", pool.name)
        elif isinstance(effect, Eject):
            self._emit("replica_ejected", f"{effect.replica} for {effect.for_s:g} s: {effect.why}", pool.name)
        elif isinstance(effect, Readmit):
            self._emit("replica_readmitted", f"{effect.replica} answers again", pool.name)
        else:
            url = _url_of(pool, effect.replica)
            target = pool.silences.targets.get(effect.replica, PATH)
            self._prober.probe(url, pool.model, lambda status: self._probed(pool, effect.replica, url, status), target)

    def _listen(self, pool: PoolDesk, effect: Listen) -> None:
        replica, target = effect.replica, effect.target

        def heard(status: int | None, computed: bool | None) -> None:
            self.desk.listened(pool, replica, target, status is not None, computed)

        wait_real_s = min(LISTEN_REAL_S_MAX, PROBE_REAL_S + 2 * effect.clear_in_s / self.speed)
        self._prober.listen(effect.url, pool.model, target, wait_real_s, heard)

    def tell(self, kind: str, message: str) -> None:
        """An event of this gateway."""
        self._emit(kind, message)

    def _emit(self, kind: str, message: str, pool: str = "") -> None:
        self._sink.emit(Event(kind, self.clock.now_s(), self.clock.wall_s(), pool, message, {"gateway": self.name}))


def _url_of(pool: PoolDesk, replica: str) -> str:
    return next((each.url for each in pool.roster.replicas if each.id == replica), "")
