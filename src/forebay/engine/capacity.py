"""How many requests one replica serves inside its promises, which limit stops it, and at which context a fleet falls over.

The answer is the largest rate at which the steady state keeps every promise: step within ITL, sequences within slots and
KV, prompts within the step's token budget, TTFT within its own. The limit that is met first is named, with what to do
about it; a TTFT met within a tenth of the engine's own limit is named after that limit, since waiting longer gains little.
"""

import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from forebay.domain.errors import BadInput
from forebay.domain.profile import Profile
from forebay.domain.roster import Capacity
from forebay.engine.steady import QUANTILE, Load

SATURATED = 0.95
"""From this fraction of the rate that endless places would give, the step's own work is what binds."""
NEAR_LIMIT = 0.9
"""From this fraction of the engine's limit, that limit binds, not the TTFT."""
GATE_HEADROOM = 0.05
"""Service rate kept above the rate at the SLO where the ITL promise limits the sequences admitted, so that no line forms at that gate."""
TTFT_PREFILL_SHARE = 0.5
"""Share of the TTFT promise that outstanding prompts on a replica may take; the rest is for lanes, the step under way and the network."""
REFERENCE_PROMPT_TOKENS = 1000
REFERENCE_OUTPUT_TOKENS = 200
_HALVINGS = 30


class Binding(StrEnum):
    """The limit that stops a replica from serving more."""

    COMPUTE = "compute"
    BANDWIDTH = "bandwidth"
    KV = "kv"
    SEQUENCES = "sequences"
    ITL = "itl"
    TTFT = "ttft"


class CapacityAtSlo(msgspec.Struct, frozen=True):
    """What one replica serves inside its promises, and the state it is in then (means; ``ttft_s`` is the 95th percentile)."""

    requests_per_s: float
    """0 where no rate keeps the promises."""
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    sequences: float
    step_s: float
    kv_usage: float
    ttft_s: float
    binding: Binding
    because: str


def at_slo(profile: Profile, prompt_tokens: int, output_tokens: int, ttft_s: float, itl_s: float, scv: float = 1.0) -> CapacityAtSlo:
    """What a replica of ``profile`` serves of requests with these mean lengths, at TTFT (95th percentile) and mean ITL within the promises.

    ``scv``: how lengths vary (variance ÷ mean²; 1 as an exponential, 0 all alike). Promises may be ``math.inf``.
    Raises BadInput for a shape that is empty or longer than the profile's context.
    """
    _check_shape(profile, prompt_tokens, output_tokens)
    if not (ttft_s > 0 and itl_s > 0):
        raise BadInput(f"TTFT and ITL are promises of more than 0 s, not {ttft_s:g} and {itl_s:g}")
    load = Load(profile, prompt_tokens, output_tokens, scv)
    limit, limit_binding = _engine_limit(load)
    by_itl = load.rate_at_step(itl_s)
    by_ttft = _rate_at_ttft(load, min(limit, by_itl), ttft_s)
    rate = min(limit, by_itl, by_ttft)
    if by_itl <= min(limit, by_ttft):
        binding = Binding.ITL
    elif by_ttft < limit * NEAR_LIMIT:
        binding = Binding.TTFT
    else:
        binding = limit_binding
    step_s = min(load.step_at_rate_s(rate), load.step_with_s(load.places)) if load.places else math.inf
    sequences = load.sequences_at(rate) if rate else 0.0
    return CapacityAtSlo(
        requests_per_s=rate,
        prompt_tokens_per_s=rate * prompt_tokens,
        output_tokens_per_s=rate * output_tokens,
        sequences=sequences,
        step_s=step_s,
        kv_usage=sequences * (load.held_tokens + profile.block_tokens / 2) / profile.kv_tokens,
        ttft_s=load.ttft_s(rate),
        binding=binding,
        because=_because(load, binding, rate, ttft_s, itl_s),
    )


def roster_capacity(
    profile: Profile,
    ttft_s: float,
    itl_s: float,
    prompt_tokens: int = REFERENCE_PROMPT_TOKENS,
    output_tokens: int = REFERENCE_OUTPUT_TOKENS,
) -> Capacity:
    """The budgets of one replica for admission, at this reference shape.

    Sequences: where ITL binds, as many as serve the rate at the SLO with ``GATE_HEADROOM`` to spare; else (and where no
    rate keeps the promises, so that holding back gains nothing) the engine's slots. Prefill tokens: ``TTFT_PREFILL_SHARE``
    of the TTFT × the rate at which full steps take prompts beside the decodes of that state; never less than one step's budget.
    The step law goes with them, so that long contexts keep the ITL promise too (unless nothing can).
    """
    output_tokens = max(1, min(output_tokens, profile.context_tokens // 2))
    prompt_tokens = max(1, min(prompt_tokens, profile.context_tokens - output_tokens))
    load = Load(profile, prompt_tokens, output_tokens)
    state = at_slo(profile, prompt_tokens, output_tokens, ttft_s, itl_s)
    sequences = profile.sequences_max
    if state.binding is Binding.ITL and state.requests_per_s:
        rate = min(state.requests_per_s / (1 - GATE_HEADROOM), load.rate_with(sequences))
        sequences = max(1, min(sequences, math.ceil(rate * output_tokens * load.step_at_rate_s(rate))))
    prefill_per_s = prompt_tokens / load.prompt_service_s(min(state.sequences, profile.prefill_chunk_tokens / 2))
    return Capacity(
        kv_tokens=profile.kv_tokens,
        sequences=sequences,
        prefill_tokens=max(profile.prefill_chunk_tokens, int(TTFT_PREFILL_SHARE * ttft_s * prefill_per_s)),
        prefill_tokens_per_s=prefill_per_s,
        decode_tokens_per_s=state.output_tokens_per_s or load.rate_with(max(1, load.places)) * output_tokens,
        context_tokens=profile.context_tokens,
        itl_s=itl_s if state.requests_per_s and math.isfinite(itl_s) else 0.0,
        step_base_s=profile.law.base_s,
        step_per_sequence_s=profile.law.per_sequence_s,
        step_per_kv_token_s=profile.law.per_kv_token_s,
    )


class ContextRow(msgspec.Struct, frozen=True):
    """What one replica does when every request ends at ``context_tokens`` (prompt and output together)."""

    context_tokens: int
    sequences_fit: int
    """Sequences that can be at this context at once: the peak, by KV and by slots."""
    requests_per_s: float
    binding: Binding
    because: str


class FallsOver(msgspec.Struct, frozen=True):
    """The largest context at which a fleet still serves its rate; None: it does not even at the shortest one."""

    replicas: int
    rate_per_s: float
    context_tokens: int | None
    holds_to_the_end: bool
    """True where it still does at the profile's whole context: context alone can't fell it at this rate."""
    binding: Binding
    """What stops it just beyond."""


def by_context(
    profile: Profile, output_tokens: int, ttft_s: float, itl_s: float, contexts: Sequence[int] = (), scv: float = 0.0
) -> tuple[ContextRow, ...]:
    """The capacity review by peak context: one row for each of ``contexts`` (default: powers of two, and the profile's own)."""
    rows = []
    for context in contexts or _contexts(profile, output_tokens):
        state = at_slo(profile, context - output_tokens, output_tokens, ttft_s, itl_s, scv)
        blocks = math.ceil(context / profile.block_tokens)
        fit = min(profile.sequences_max, profile.kv_tokens // profile.block_tokens // blocks)
        rows.append(ContextRow(context, fit, state.requests_per_s, state.binding, state.because))
    return tuple(rows)


def falls_over(
    profile: Profile, replicas: int, rate_per_s: float, output_tokens: int, ttft_s: float, itl_s: float, scv: float = 0.0
) -> FallsOver:
    """The context at which ``replicas`` of ``profile`` can no longer serve ``rate_per_s`` inside the promises."""

    def state(context: int) -> CapacityAtSlo:
        return at_slo(profile, context - output_tokens, output_tokens, ttft_s, itl_s, scv)

    def holds(context: int) -> bool:
        return state(context).requests_per_s * replicas >= rate_per_s

    low, high = output_tokens + 1, profile.context_tokens
    _check_shape(profile, 1, output_tokens)
    if holds(high):
        return FallsOver(replicas, rate_per_s, high, True, state(high).binding)
    if not holds(low):
        return FallsOver(replicas, rate_per_s, None, False, state(low).binding)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return FallsOver(replicas, rate_per_s, low, False, state(high).binding)


def _check_shape(profile: Profile, prompt_tokens: int, output_tokens: int) -> None:
    if prompt_tokens < 1 or output_tokens < 1:
        raise BadInput(f"a request has at least one token each of prompt and output, not {prompt_tokens} and {output_tokens}")
    if prompt_tokens + output_tokens > profile.context_tokens:
        raise BadInput(
            f"profile {profile.name}: {prompt_tokens} prompt and {output_tokens} output tokens exceed its context of "
            f"{profile.context_tokens} tokens; shorten either, or take a profile with a longer context"
        )


def _contexts(profile: Profile, output_tokens: int) -> list[int]:
    _check_shape(profile, 1, output_tokens)
    powers = [2**power for power in range(10, 24) if output_tokens < 2**power < profile.context_tokens]
    return [*powers, profile.context_tokens]


def _engine_limit(load: Load) -> tuple[float, Binding]:
    """The rate at which a line grows without end whatever is promised, and why."""
    if not load.places:
        return 0.0, Binding.KV
    limit = load.rate_with(load.places)
    if limit * load.prompt_service_s(load.sequences_at(limit)) > 1:
        return _prefill_limit(load, limit), Binding.COMPUTE
    if limit >= SATURATED / load.work_s:
        return limit, Binding.COMPUTE if load.prefill_work_s >= load.decode_work_s else Binding.BANDWIDTH
    return limit, Binding.KV if load.kv_places < load.profile.sequences_max else Binding.SEQUENCES


def _prefill_limit(load: Load, high: float) -> float:
    """The rate at which prompts fill every step's token budget."""
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fits = middle * load.prompt_service_s(load.sequences_at(middle)) < 1
        low, high = (middle, high) if fits else (low, middle)
    return low


def _rate_at_ttft(load: Load, high: float, ttft_s: float) -> float:
    """The largest rate up to ``high`` whose TTFT is within the promise; 0 where none is."""
    if math.isinf(ttft_s) or load.ttft_s(high) <= ttft_s:
        return high
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if load.ttft_s(middle) <= ttft_s else (low, middle)
    return low


def _because(load: Load, binding: Binding, rate: float, ttft_s: float, itl_s: float) -> str:
    """One sentence: what binds, with its numbers, and what would help."""
    if not rate and binding is not Binding.KV:
        return _impossible(load, binding, ttft_s, itl_s)
    slots = load.profile.sequences_max
    work_ms = load.work_s * 1e3
    prefill = load.prefill_work_s / load.work_s
    sentences = {
        Binding.ITL: (
            f"The mean step reaches the ITL of {itl_s * 1e3:.0f} ms with {load.sequences_at(rate):.0f} sequences in flight, prompts "
            f"being {prefill:.0%} of the work: allow a looser ITL, cache prefixes, or use more GPUs per replica."
        ),
        Binding.TTFT: f"One request in twenty waits {ttft_s:g} s for its first token, most of it {_waits_for(load, rate)}.",
        Binding.KV: (
            f"Bursts fill the KV: {load.kv_places} sequences of {load.held_tokens:.0f} tokens fit, of {slots} slots: add memory, "
            "keep KV in fewer bits, or give long contexts a pool of their own."
        ),
        Binding.SEQUENCES: (
            f"Bursts fill all {slots} sequence slots ({load.sequences_at(rate):.0f} in flight on average) while KV has room: "
            "raise the profile's `sequences` (vLLM: --max-num-seqs)."
        ),
        Binding.COMPUTE: (
            f"Prompts are {prefill:.0%} of a request's {work_ms:.1f} ms of step time: cache prefixes, shorten prompts, or use more GPUs."
        ),
        Binding.BANDWIDTH: (
            f"Decoding is {1 - prefill:.0%} of a request's {work_ms:.1f} ms of step time, mostly reading KV: "
            "keep KV in fewer bits, or use more or faster GPUs."
        ),
    }
    return sentences[binding]


def _impossible(load: Load, binding: Binding, ttft_s: float, itl_s: float) -> str:
    if binding is Binding.ITL:
        found = f"One sequence alone makes steps of {load.step_with_s(1) * 1e3:.1f} ms, over the ITL of {itl_s * 1e3:.0f} ms"
        return f"{found}: use more or faster GPUs."
    found = f"An idle replica needs {load.ttft_s(0.0):.2f} s to the first token, over the TTFT of {ttft_s:g} s"
    return f"{found}: shorten prompts, or use more or faster GPUs."


def _waits_for(load: Load, rate: float) -> str:
    if load.all_taken(rate)[0] > 1 - QUANTILE:
        return f"for one of {load.places} places: allow a looser TTFT, let more replicas share a queue, or raise the profile's `sequences`"
    return "behind earlier prompts: allow a looser TTFT, cache prefixes, or give long prompts a pool of their own"
