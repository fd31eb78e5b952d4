"""The settings of an emulated engine beyond its profile, with vLLM's defaults."""

from collections.abc import Sequence

import msgspec


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


def adapter_names(given: Sequence[str]) -> tuple[str, ...]:
    """As vLLM takes them, ``name=path``, or names alone: nothing is loaded."""
    return tuple(each.partition("=")[0] for each in given)
