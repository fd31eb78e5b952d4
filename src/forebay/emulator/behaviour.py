"""The settings of an emulated engine beyond its profile, with vLLM's defaults."""

import hmac
from collections.abc import Sequence

import msgspec

GUARDED = ("/v1", "/v2", "/inference", "/cohere")
"""How paths begin that vLLM asks a key for: ``/health`` and ``/metrics`` are open, and so are ``/tokenize`` and ``/detokenize``."""


class Behaviour(msgspec.Struct, frozen=True):
    """How one engine behaves where vLLM has an option for it, or where clients leave it open."""

    max_queued_requests: int | None = None
    """vLLM's ``--max-num-queued-reqs``: running and waiting ones; None: no bound."""
    keep_alive_real_s: float = 5.0
    """Idle connections are closed after this many real seconds."""
    start_jitter: float = 0.0
    """Each stage of a start takes up to this fraction longer or shorter, drawn from the seed."""
    started_before_s: float = 0.0
    """A start counts from when its process was asked for: this much of it (world seconds) is over already."""
    output_tokens_median: float = 150.0
    """Answers without ``max_tokens`` have a log-normal length."""
    output_tokens_sigma: float = 0.8
    adapters: tuple[str, ...] = ()
    """vLLM's ``--lora-modules``, by their names: served as the model is, at no cost of their own."""
    api_keys: tuple[str, ...] = ()
    """vLLM's ``--api-key``: what is below `GUARDED` is answered only to who shows one of them; empty: to anybody."""


def lets_in(path: str, authorization: bytes, keys: Sequence[str]) -> bool:
    """Whether ``path`` is answered to who sends this Authorization header, or none, as vLLM reads it."""
    if not keys or not path.startswith(GUARDED):
        return True
    scheme, _, shown = authorization.partition(b" ")
    return scheme.lower() == b"bearer" and any(hmac.compare_digest(shown, key.encode()) for key in keys)


def adapter_names(given: Sequence[str]) -> tuple[str, ...]:
    """As vLLM takes them, ``name=path``, or names alone: nothing is loaded."""
    return tuple(each.partition("=")[0] for each in given)
