"""What the emulated engine counts, by vLLM's rules, which are not the obvious ones.

TTFT is observed at the first token, everything else about a request only when it finishes: a client that leaves is
counted nowhere but in TTFT, so the latency histograms know survivors only. Prompt tokens count once, with the first
token. An engine step's size is the prompts that it completed plus the tokens that it gave.
"""

from bisect import bisect_left
from collections.abc import Sequence

from forebay.emulator.families import HISTOGRAMS


class Number:
    """A counter or a gauge."""

    __slots__ = ("value",)

    def __init__(self, value: float = 0.0) -> None:
        self.value = value


class Histogram:
    """Observations by upper bound; ``counts`` are per bucket, the last one unbounded."""

    __slots__ = ("bounds", "count", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.count = 0
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count ``value`` (``times`` times)."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.count += times
        self.sum += value * times


class RequestTimes:
    """When one sequence was where (world seconds), and its sizes: what its finish adds to the histograms."""

    __slots__ = (
        "arrived_s",
        "first_s",
        "last_s",
        "max_tokens",
        "output_tokens",
        "preemptions",
        "prompt_tokens",
        "queued_s",
        "scheduled_s",
    )

    def __init__(self, arrived_s: float, prompt_tokens: int, max_tokens: int) -> None:
        self.arrived_s = arrived_s
        self.queued_s = arrived_s
        self.scheduled_s: float | None = None
        self.first_s = 0.0
        self.last_s = 0.0
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.output_tokens = 0
        self.preemptions = 0


class Stats:
    """Every number of the page, by the name that ``families`` gives it."""

    def __init__(self, context_tokens: int) -> None:
        self.zero, self.one = Number(), Number(1.0)
        self.running, self.waiting, self.kv_usage = Number(), Number(), Number()
        self.preemptions, self.rejected = Number(), Number()
        self.prompt_tokens, self.generation_tokens, self.cache_queries = Number(), Number(), Number()
        self.ended_stop, self.ended_length, self.ended_abort, self.ended_error = Number(), Number(), Number(), Number()
        made = {family.number: Histogram(family.upper_bounds(context_tokens)) for family in HISTOGRAMS}
        self.request_prompt, self.request_generation = made["request_prompt"], made["request_generation"]
        self.request_max_generation, self.params_max_tokens = made["request_max_generation"], made["params_max_tokens"]
        self.params_n, self.step_tokens = made["params_n"], made["step_tokens"]
        self.ttft_s, self.itl_s, self.per_output_token_s = made["ttft_s"], made["itl_s"], made["per_output_token_s"]
        self.e2e_s, self.queue_s, self.inference_s = made["e2e_s"], made["queue_s"], made["inference_s"]
        self.prefill_s, self.decode_s = made["prefill_s"], made["decode_s"]
        self.request_preemptions, self.request_prefill_computed = made["request_preemptions"], made["request_prefill_computed"]

    def first_token(self, times: RequestTimes, at_s: float) -> None:
        """The prompt is prefilled and its first token is out."""
        times.first_s = times.last_s = at_s
        self.ttft_s.observe(at_s - times.arrived_s)
        self.prompt_tokens.value += times.prompt_tokens
        self.cache_queries.value += times.prompt_tokens

    def ended(self, times: RequestTimes, reason: str, at_s: float, n: int) -> None:
        """A sequence came to its end inside the engine: ``reason`` is ``stop``, ``length``, ``abort`` or ``error``."""
        number: Number = getattr(self, f"ended_{reason}")
        number.value += 1
        scheduled_s = times.queued_s if times.scheduled_s is None else times.scheduled_s
        first_s, last_s = (times.first_s, times.last_s) if times.output_tokens else (at_s, at_s)
        self.e2e_s.observe(at_s - times.arrived_s)
        self.queue_s.observe(scheduled_s - times.queued_s)
        self.inference_s.observe(last_s - scheduled_s)
        self.prefill_s.observe(first_s - scheduled_s)
        self.decode_s.observe(last_s - first_s)
        if times.output_tokens > 1:
            self.per_output_token_s.observe((last_s - first_s) / (times.output_tokens - 1))
        else:
            self.per_output_token_s.observe(0.0)
        self.request_prompt.observe(times.prompt_tokens)
        self.request_prefill_computed.observe(times.prompt_tokens)
        self.request_generation.observe(times.output_tokens)
        self.request_max_generation.observe(times.output_tokens)
        self.params_max_tokens.observe(times.max_tokens)
        self.params_n.observe(n)
        self.request_preemptions.observe(times.preemptions)
