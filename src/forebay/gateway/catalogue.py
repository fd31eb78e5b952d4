"""The names that clients may use for models: a pool's model, its aliases, and adapters that the pool's engines have loaded."""

from urllib.parse import unquote

import msgspec

from forebay.gateway.answers import ErrorReply
from forebay.gateway.ask import Ask
from forebay.gateway.body import ENGINE_TIERS, rewritten
from forebay.gateway.desk import Desk
from forebay.gateway.pool_desk import PoolDesk
from forebay.gateway.request import Peek
from forebay.spec.types import Spec

MODELS = b"/v1/models"
NAME_BYTES_MAX = 400

CREATED_UNIX_S = 1_700_000_000
"""``created`` of a listed model: clients' types require one, and a deployment has none that means anything."""


class Catalogue:
    """Every name → its pool; of several pools that serve one name the first declared that is where the asking team may be served."""

    def __init__(self, spec: Spec, desk: Desk) -> None:
        serving: dict[str, list[PoolDesk]] = {}
        long = {pool.long_context.pool for pool in spec.pools if pool.long_context is not None}
        for pool in sorted(spec.pools, key=lambda pool: pool.name in long):  # which is for long requests, if there is another
            serving.setdefault(pool.model, []).append(desk.pools[pool.name])
        for model in spec.models:
            for alias in model.aliases if model.name in serving else ():
                serving.setdefault(alias, serving[model.name])
        self._parents: dict[str, str] = {}
        for pool in spec.pools:
            for adapter in pool.adapters:
                if self._parents.get(adapter, "" if adapter in serving else pool.model) == pool.model:
                    self._parents[adapter] = pool.model
                    serving.setdefault(adapter, []).append(desk.pools[pool.name])
        self._serving = serving
        self._first = {name: pools[0] for name, pools in serving.items()}
        self.adapters = self._parents.keys()
        """Names that go to the engine as they are: it knows them."""
        models = {pool.model for pool in spec.pools}
        self.only = next(iter(models)) if len(models) == 1 else ""
        """What is meant where an endpoint lets the model be left out."""

    def of(self, name: str, residency: tuple[str, ...]) -> PoolDesk | None:
        """The pool of a model for a team of this ``residency``; None: there is none, or not there."""
        pool = self._first.get(name or self.only)
        if pool is None or not residency or pool.within(residency):
            return pool
        return next((other for other in self._serving[name or self.only] if other.within(residency)), None)

    def for_engines(self, ask: Ask, body: bytes, model: str, peek: Peek | None) -> bytes | ErrorReply:
        """The body for engines that serve ``model``: without an alias, and without a tier of ours.

        The latter stays in a body that is only looked into: what is not read as a whole isn't put together anew.
        """
        renamed = ask.model != model and ask.model not in self.adapters
        foreign_tier = ask.service_tier is not None and ask.service_tier not in ENGINE_TIERS
        if peek is not None:
            return peek.with_model(model) if renamed else body
        return rewritten(body, model if renamed else None, foreign_tier) if renamed or foreign_tier else body

    def told(self, path: bytes, residency: tuple[str, ...] = ()) -> bytes | ErrorReply:
        """``GET /v1/models``, or one of them by its name: those that a team of this ``residency`` may ask for."""
        if path == MODELS:
            names = [name for name in self._first if self.of(name, residency) is not None]
            return msgspec.json.encode({"object": "list", "data": [self._object(name) for name in names]})
        name = unquote(path[len(MODELS) + 1 :][:NAME_BYTES_MAX].decode("utf-8", "replace"))
        return msgspec.json.encode(self._object(name)) if name and self.of(name, residency) is not None else no_model(name)

    def _object(self, name: str) -> dict[str, str | int | None]:
        told: dict[str, str | int | None] = {"id": name, "object": "model", "created": CREATED_UNIX_S, "owned_by": "forebay"}
        if name in self._parents:
            told["parent"] = self._parents[name]
        return told


def no_model(name: str) -> ErrorReply:
    """404, as OpenAI says it."""
    if not name:
        return ErrorReply(400, "invalid_request_error", None, "Name a model: several are served here.", "model")
    message = f"The model {name[:200]!r} does not exist or you do not have access to it."
    return ErrorReply(404, "invalid_request_error", "model_not_found", message, "model")
