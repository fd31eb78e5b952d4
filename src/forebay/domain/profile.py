"""The physics of one model on one hardware shape, as values; `engine` is what computes with them.

One linear law for the time of an engine step is enough: it fits 101 measured points of vLLM on H100 and H200 at
0.9-3.7 % mean error. Four numbers a shape, each with the source it comes from.
"""

import msgspec


class StepLaw(msgspec.Struct, frozen=True):
    """In seconds: ``step = base + per_sequence·decoding + per_kv_token·(KV tokens read) + per_prefill_token·(prompt tokens)``."""

    base_s: float
    per_sequence_s: float
    per_kv_token_s: float
    per_prefill_token_s: float


class StepSpread(msgspec.Struct, frozen=True):
    """How steps scatter about the law: quantiles of what they take of the time that their base, sequences and KV cost by it.

    1 throughout: each step takes exactly what the law says. What a step's prompts cost does not scatter.
    """

    p5: float = 1.0
    p25: float = 1.0
    p50: float = 1.0
    p75: float = 1.0
    p90: float = 1.0
    p95: float = 1.0
    p99: float = 1.0

    @property
    def steady(self) -> bool:
        """Whether nothing scatters."""
        return all(quantile == 1.0 for quantile in msgspec.structs.astuple(self))


class WarmUp(msgspec.Struct, frozen=True):
    """What an engine is like when it has just started: its first ``passes`` steps take ``factor`` times as long, prompts included.

    It answers, so its start is over; but kernels are compiled and caches filled on the first batches. 0 passes: none of that.
    """

    passes: int = 0
    factor: float = 1.0
    """At least 1."""


class ColdStart(msgspec.Struct, frozen=True):
    """The stages from "start a replica" to its first answer. A warm start skips ``provision_s``."""

    provision_s: float
    weights_bytes: float
    weights_bandwidth_bytes_per_s: float
    init_s: float

    @property
    def weights_s(self) -> float:
        """Seconds to read the weights with the bandwidth to oneself."""
        return self.weights_bytes / self.weights_bandwidth_bytes_per_s

    @property
    def total_s(self) -> float:
        """Cold: a node is provisioned first."""
        return self.provision_s + self.warm_s

    @property
    def warm_s(self) -> float:
        """Warm: the node is there, the weights are read and the engine starts."""
        return self.weights_s + self.init_s


class Source(msgspec.Struct, frozen=True):
    """Where one number (or group of numbers) of a profile comes from."""

    what: str
    origin: str


class Profile(msgspec.Struct, frozen=True):
    """What one replica can do. ``kv_tokens`` is the real capacity; ``prefill_chunk_tokens`` is the step's token budget."""

    name: str
    model: str
    hardware: str
    gpus: int
    law: StepLaw
    sequences_max: int
    kv_tokens: int
    block_tokens: int
    prefill_chunk_tokens: int
    kv_bytes_per_token: int
    context_tokens: int
    cold_start: ColdStart
    front_end_s: float = 0.0
    """Seconds a request spends outside the engine's steps before its first token (HTTP, tokenising, scheduling)."""
    front_end_per_token_s: float = 0.0
    """Seconds the front end adds to each output token (detokenising, SSE); not on the engine's critical path."""
    gpu_hour_usd: float = 0.0
    spread: StepSpread = StepSpread()
    warm_up: WarmUp = WarmUp()
    not_measured: tuple[str, ...] = ()
    """Of the law's numbers, by their keys in a configuration (``per_sequence``…), those that no measurement could tell."""
    sources: tuple[Source, ...] = ()

    @property
    def doubt(self) -> str:
        """What is to be known before it is sized by; empty where all was measured."""
        if not self.not_measured:
            return ""
        return f"step.{', step.'.join(self.not_measured)} of profile {self.name}: not measured, so what is computed from it is a guess"
