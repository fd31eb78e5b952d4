"""A replica that knows nothing of the model it was attached for, or of the route: another is asked before its client is told.

Where all say so, it is what the client is told, in the engine's words. Where another answers, the first one is asked by the gateway itself:
what is wrong for everybody is no news of one client's request.
"""

from typing import Final

from forebay.gateway.answers import ErrorReply
from forebay.gateway.body import previous_of
from forebay.gateway.events import is_json
from forebay.gateway.meters import Outcome
from forebay.gateway.passed import PassedHead
from forebay.gateway.pool_desk import PoolDesk
from forebay.gateway.routes import POSTS
from forebay.gateway.watched import Watched

UNKNOWN_HERE: Final = frozenset({404, 405})
"""Of our own engines, as of a wrong model behind an address, or of something that is no engine."""
MAIN: Final = frozenset({b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings"})
"""Paths that each engine of a pool has or none: of others, versions of one engine know more and fewer."""
SPACE: Final = b" \t\r\n"
BROKEN_OFF: Final = "The engine broke its answer off."
NO_ANSWER: Final = "The engine said that it succeeded, with nothing that is an answer."


class Doubt:
    """What a replica said, while another is asked."""

    __slots__ = ("body", "error", "passed", "pool", "replica", "url")

    def __init__(self, pool: PoolDesk, replica: str, url: str, passed: PassedHead, body: bytes, error: ErrorReply | None) -> None:
        """``error``: as the client would be told it, where that isn't the ``body`` as it came."""
        self.pool, self.replica, self.url = pool, replica, url
        self.passed, self.body, self.error = passed, body, error


class Doubting(Watched):
    """Asking another."""

    __slots__ = ()

    def _known_as(self) -> str:
        """Under which name `lacking.Lacking` knows of replicas that can't serve it: its adapter, or its path."""
        model = self._ask.model
        return model if model in self._pool.adapters else self._path().decode("latin-1")

    def _doubts(self, status: int, body: bytes, error: ErrorReply | None) -> bool:
        """Its engine says that there is no such thing: whether another is asked first."""
        pool, before = self._pool, self._doubt
        if pool.foreign or pool.peer or self._ask.model in pool.adapters:
            return False
        path, now_s = self._known_as(), self._context.desk.now_s()  # a doubt is of the first try: nothing is continued yet
        if before is not None:  # two say so: it is nothing of theirs
            self._doubt = None
            pool.lacking.told_by_all(path, before.replica, now_s)
            return False
        tried = (*self._tried, self._replica)
        others = any(replica not in tried for replica in pool.routed)
        if self._retries or not others or not self._context.retries.left or previous_of(self._ask) is not None:
            return False
        if self._path() not in MAIN and pool.lacking.is_nowhere(path, now_s):
            return False
        self._doubt = Doubt(pool, self._replica, self._replica_url, self._passed, body, error)
        pool.lacking.add(path, self._replica, now_s)
        self._try_elsewhere(f"The engine answered {status}.", blame=False)
        return True

    def _confirm(self) -> None:
        """Another answers what one knew nothing of."""
        doubt, self._doubt = self._doubt, None
        if doubt is not None and doubt.pool is self._pool:
            path = self._request.target.partition(b"?")[0]
            if path in MAIN:
                self._context.doubted(self._pool, doubt.replica, doubt.url, path)

    def _says_doubted(self) -> bool:
        """No other could be asked, and admission has let go of it: its client is told what the one said; whether that is so."""
        doubt, self._doubt = self._doubt, None
        if doubt is None or doubt.replica != self._replica:
            return False
        if doubt.error is not None:
            self._end(Outcome.REFUSED_BY_ENGINE, None, let_go=True)
            self._refuse(doubt.error)
            return True
        self._passed = doubt.passed
        self._write_whole(doubt.body)
        self._end(Outcome.REFUSED_BY_ENGINE, None, let_go=True)
        self._connection.finish(self._keep_alive)
        return True

    def _unfit(self, passed: PassedHead) -> bool:
        """Whether what an engine of our own answers, and is neither JSON nor events, is none of what was asked for."""
        route = POSTS[self._request.target.partition(b"?")[0]]
        return not (self._pool.foreign or self._pool.peer) and (passed.html or (route.generates and not route.multipart))

    def _is_none(self, body: bytes, *, begins: bool = False) -> bool:
        """Whether the ``body`` of a success is no answer: there is nothing in it, or no JSON where that is due.

        ``begins``: it is only the beginning of one.
        """
        if self._pool.peer:
            return False
        text, passed, route = body.lstrip(SPACE), self._passed, POSTS[self._path()]
        if not text:
            return True
        due = passed.json or (route.generates and not route.multipart)
        if not due or passed.coded:
            return False
        return not (text.startswith((b"{", b"[")) if begins else is_json(text))
