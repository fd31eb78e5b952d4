"""The shape of a request, estimated when it comes: its prompts' tokens, and those of as many answers as each of them is asked for.

A list of prompts is so many sequences to the engine. Inputs that are only read, as for embeddings, are none that stay: they take one slot
after the other, so the request counts as one, and all that its inputs have to be prefilled.
"""

import msgspec

from forebay.admission.estimate import Estimator
from forebay.domain.shape import Shape, Sized
from forebay.gateway.ask import Ask
from forebay.gateway.body import THIN_BYTES_MIN, choices_of, output_tokens_max, prompts_of
from forebay.gateway.pool_desk import PoolDesk
from forebay.gateway.request import Peek
from forebay.gateway.routes import Route


def shape_of(
    estimator: Estimator,
    route: Route,
    pool: PoolDesk,
    ask: Ask,
    team: str,
    body: bytes,
    size: int,
    peek: Peek | None,
    history_tokens: int = 0,
) -> tuple[Shape, Sized | None]:
    """Its shape, and what is known of its body beside its ``size``; of a large one this is the beginning, looked into by ``peek``.

    ``history_tokens`` were said before, in what it goes on from: they are in the KV with it, and mostly cached there.
    """
    sizing = pool.sizing
    if route.generates:
        sized = sizing.look(body) if peek is None else None
        prompts = prompts_of(ask) if peek is None else max(1, peek.prompts)
        bound, n = output_tokens_max(ask), choices_of(ask)
        if not history_tokens:
            return estimator.shape(team, pool.model, size, bound, n, pool.context_tokens, sized, prompts), sized
        shape = estimator.shape(team, pool.model, size, bound, n, max(2, pool.context_tokens - history_tokens), sized, prompts)
        prompt_tokens = shape.prompt_tokens + history_tokens
        return msgspec.structs.replace(shape, prompt_tokens=prompt_tokens, cached_tokens=history_tokens), sized
    if route.pooled and (peek is None or not sizing.pictures(body)):
        # What is small is text, or counts as little; what is not may be pictures, and no longer than they cost.
        sized = sizing.look(body) if peek is None and size >= THIN_BYTES_MIN else None
        return estimator.inputs(team, pool.model, size, pool.input_tokens_max, sized), sized
    return estimator.shape(team, pool.model, size, 1, choices_of(ask), pool.context_tokens), None
