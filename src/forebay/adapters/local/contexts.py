"""Whether an engine serves the model, and takes the context, that the configuration says: one ready engine of each pool is asked once,
and each that a pool is attached to later.

Another name is told where engines mind theirs (llama.cpp answers to any). Of the context the engine's word is ``max_model_len`` of
``/v1/models`` (vLLM, SGLang and emulated engines tell it). One that says nothing of it is believed to be as configured.
"""

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from forebay.domain.events import Event
from forebay.domain.replica import ReplicaState, ReplicaView
from forebay.ports.clock import Clock
from forebay.ports.events import EventSink
from forebay.ports.upstream import FetchFailed, Upstream, fetch, get_request
from forebay.spec.types import Model, Pool, Spec

MODELS_PATH = "/v1/models"
BODY_BYTES_MAX = 2**20
TIMEOUT_REAL_S = 2.0
NAMES_TOLD_MAX = 8
TRIES_MAX = 3
"""An engine that does not answer is asked so often in all."""


class _Model(msgspec.Struct):
    id: str = ""
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model] = []


class Contexts:
    """Asks beside whoever shows it replicas; `close` ends what is under way."""

    def __init__(self, spec: Spec, upstream: Upstream, clock: Clock, sink: EventSink) -> None:
        models = {model.name: model for model in spec.models}
        self._open = {pool.name: pool for pool in spec.pools if pool.model in models}
        self._expected = {pool.name: expected(pool, models[pool.model]) for pool in self._open.values()}
        self._tries = dict.fromkeys(self._open, 0)
        self._pools = dict(self._open)
        self._anew: frozenset[str] = frozenset()
        self._upstream = upstream
        self._clock = clock
        self._sink = sink
        self._tasks: set[asyncio.Task[None]] = set()

    def attached(self, replica_ids: Iterable[str]) -> None:
        """These are listed anew: each is asked once it is ready."""
        self._anew = self._anew.union(replica_ids)

    def see(self, views: Sequence[ReplicaView]) -> None:
        """Ask the first ready one of each pool that was not asked yet, and those listed anew; ``views`` are all there are."""
        if not self._open and not self._anew:
            return
        self._anew &= {view.id for view in views}
        for view in views:
            if view.state is not ReplicaState.READY or not view.url:
                continue
            pool = self._open.pop(view.pool, None)
            if pool is None and view.id in self._anew:
                pool = self._pools.get(view.pool)
            self._anew -= {view.id}
            if pool is not None:
                task = asyncio.create_task(self._ask(pool, view), name=f"context of {view.id}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ask no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self, pool: Pool, view: ReplicaView) -> None:
        self._tries[pool.name] += 1
        try:
            status, body = await fetch(self._upstream, view.url, get_request(view.url, MODELS_PATH), BODY_BYTES_MAX, TIMEOUT_REAL_S)
        except FetchFailed:
            if self._tries[pool.name] < TRIES_MAX:
                self._open[pool.name] = pool
            return
        found = _models(body) if status == 200 else []
        if found and pool.engine.metrics == "vllm" and all(one.id != pool.model for one in found):
            names = ", ".join(one.id for one in found[:NAMES_TOLD_MAX])
            what = f"{view.id} at {view.url} serves {names}, and not {pool.model}"
            self._emit("model_differs", pool, f"{what}: call the model so, or start it with --served-model-name {pool.model}")
        told, here = _told(found, pool.model), self._expected[pool.name]
        if told is not None and told != here.tokens:
            words = f"{here.whence}, but {view.id} takes {told} tokens: {consequence(here.tokens, told)}; {here.mend(told)}"
            self._emit("context_differs", pool, f"{words}, or start the engine with {here.tokens}")

    def _emit(self, kind: str, pool: Pool, words: str) -> None:
        self._sink.emit(Event(kind, self._clock.now_s(), self._clock.wall_s(), pool.name, words))


def consequence(declared: int, told: int) -> str:
    """What comes of a context that is declared as other than the engine's own."""
    return "what is longer is booked with too few tokens" if declared < told else "what is longer is let through, and the engine refuses it"


class Expected(msgspec.Struct, frozen=True):
    """The context that engines of a pool are taken to have, and who says so: nobody is told of a line that is not in their file."""

    tokens: int
    whence: str
    smaller: str
    """What to do for it to be less; ``{}`` stands for how many tokens…"""
    larger: str
    """…and to be more."""

    def mend(self, tokens: int) -> str:
        """What to do for it to be ``tokens``."""
        return (self.smaller if tokens < self.tokens else self.larger).format(tokens)


def expected(pool: Pool, model: Model) -> Expected:
    """One pool of a model may hold less than another: its profile says so."""
    path, tokens, profile = f"models.{model.name}.context", model.context_tokens, pool.profile
    if profile is not None and (profile.context_tokens < tokens or (profile.context_tokens == tokens and not model.context_written)):
        whence = f"the context of {profile.name}, the profile of pool {pool.name}, is {profile.context_tokens}"
        other = f"give the pool a profile with a context of {{}} (profiles.{profile.name})"
        return Expected(profile.context_tokens, whence, other if model.context_written else f"set {path} to {{}}", other)
    if model.context_written:
        return Expected(tokens, f"{path} is {tokens}", "set it to {}", "set it to {}")
    return Expected(tokens, f"{path} is not set, and taken to be {tokens}", "set it to {}", "set it to {}")


def _models(body: bytes) -> list[_Model]:
    try:
        return msgspec.json.decode(body, type=_Models).data
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []


def _told(found: list[_Model], model: str) -> int | None:
    own = [one for one in found if one.id == model] or found[:1]
    return next((one.max_model_len for one in own if one.max_model_len), None)
