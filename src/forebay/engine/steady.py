"""The engine in steady state: mean step, sequences in flight, and TTFT, for requests of one shape arriving at random.

The engine at ``r`` requests per second is a fixed point. A step is the base, plus what its sequences cost, plus the
prompts that came during it, so the engine is a processor shared by those in flight whose pace depends on how many they
are: ``mu(n) = n ÷ (output · (base + n·g))`` with ``g = w ÷ output``, where ``w`` is the step time one request adds (its prompt
× p, and per output token b + c × the KV it holds). The birth-and-death chain of that queue gives the mean step
``(base + g) ÷ (1 - r·w)``, how often all places are taken, and from the length of the line the 95th percentile of TTFT.

Trade-off: arrivals are Poisson, and lengths vary as ``scv`` says. Within about 15 % of the engine itself stepped over
random arrivals (mean step: 5 %), in milliseconds instead of minutes. KV that runs full preempts, which is not in here;
``KV_USABLE`` keeps away from it.
"""

import math
from collections.abc import Callable

import msgspec

from forebay.domain.profile import Profile

QUANTILE = 0.95
"""TTFT is promised at this quantile."""
KV_USABLE = 0.95
"""Mean share of KV that sequences can use before growth, block rounding and chance preempt too much."""
_HALVINGS = 30


class Load(msgspec.Struct, frozen=True):
    """A profile under requests of one mean shape. ``scv``: variance of the lengths ÷ mean² (1: as an exponential, 0: all alike)."""

    profile: Profile
    prompt_tokens: float
    output_tokens: float
    scv: float = 1.0

    @property
    def held_tokens(self) -> float:
        """Mean KV of a sequence in flight: longer ones are met more often, so half an output counts ``1 + scv`` times."""
        return self.prompt_tokens + self.output_tokens * (1 + self.scv) / 2

    @property
    def prefill_work_s(self) -> float:
        """Step time that one request's prompt adds."""
        return self.profile.law.per_prefill_token_s * self.prompt_tokens

    @property
    def decode_work_s(self) -> float:
        """Step time that one request's output adds, beside the base of the steps it is in."""
        law = self.profile.law
        return self.output_tokens * (law.per_sequence_s + law.per_kv_token_s * self.held_tokens)

    @property
    def work_s(self) -> float:
        """Step time that one request adds in all."""
        return self.prefill_work_s + self.decode_work_s

    @property
    def kv_places(self) -> int:
        """Sequences whose KV fits at once, on average; a single one may have all of it."""
        held = self.held_tokens + self.profile.block_tokens / 2
        alone = self.prompt_tokens + self.output_tokens <= self.profile.kv_tokens
        return max(int(self.profile.kv_tokens * KV_USABLE / held), int(alone))

    @property
    def places(self) -> int:
        """Sequences in flight at most."""
        return min(self.profile.sequences_max, self.kv_places)

    def step_at_rate_s(self, rate: float) -> float:
        """Mean step that a token sees at ``rate`` requests per second, places without end; inf beyond what the engine can do."""
        left = 1 - rate * self.work_s
        return (self.profile.law.base_s + self.work_s / self.output_tokens) / left if left > 0 else math.inf

    def rate_at_step(self, step_s: float) -> float:
        """The rate whose mean step is ``step_s``; 0 where even one sequence takes longer."""
        return max(0.0, (1 - (self.profile.law.base_s + self.work_s / self.output_tokens) / step_s) / self.work_s)

    def step_with_s(self, sequences: float) -> float:
        """Mean step with ``sequences`` in flight that are replaced as they finish."""
        return self.profile.law.base_s + sequences * self.work_s / self.output_tokens

    def rate_with(self, sequences: float) -> float:
        """Requests per second that leave when ``sequences`` are in flight."""
        return sequences / (self.output_tokens * self.step_with_s(sequences))

    def sequences_at(self, rate: float) -> float:
        """Mean sequences that decode at ``rate`` (Little's law), at most ``places``."""
        return min(rate * self.output_tokens * self.step_at_rate_s(rate), float(self.places))

    def prompt_service_s(self, sequences: float) -> float:
        """Seconds the engine needs per prompt when prompts fill every step beside ``sequences`` decodes; inf if they leave no budget."""
        room = self.profile.prefill_chunk_tokens - sequences
        return self.prefill_work_s + self.decode_step_s(sequences) * self.prompt_tokens / room if room > 0 else math.inf

    def decode_step_s(self, sequences: float) -> float:
        """A step that only decodes."""
        return self.profile.law.base_s + sequences * self.decode_work_s / self.output_tokens

    def all_taken(self, rate: float) -> tuple[float, float]:
        """Fractions of arrivals that find every place taken, and that find an idle engine."""
        if not self.places or rate >= self.rate_with(self.places):
            return 1.0, 0.0
        load = rate / self.rate_with(self.places)
        base_s, per_sequence_s = self.profile.law.base_s, self.work_s / self.output_tokens
        offered = rate * self.output_tokens
        weight = total = 1.0
        for n in range(1, self.places):
            weight *= offered * (base_s + n * per_sequence_s) / n  # rate ÷ rate_with(n)
            total += weight
            if total > 1e250:
                weight /= total
                total = 1.0
        line = weight * load / (1 - load)
        return line / (total + line), 1.0 / (total + line)

    def ttft_s(self, rate: float) -> float:
        """95th percentile of TTFT at ``rate``; inf where a line grows without end.

        A request waits either for a place (the tail falls with the spare rate) or, in a step's budget, behind other
        prompts (as in M/G/1: with exponential lengths the tail of wait and own prefill together is
        ``exp(-(1 - busy)·t ÷ service)``, with equal ones that of the wait alone begins at ``busy``). The rest of the step
        under way and the steps of its own prefill come on top.
        """
        sequences = self.sequences_at(rate)
        service_s = self.prompt_service_s(sequences)
        pace = self.rate_with(self.places) if self.places else 0.0
        busy = rate * service_s
        if rate >= pace or busy >= 1:
            return math.inf
        taken, idle = self.all_taken(rate)
        spread = 2 / (1 + self.scv)
        alike = max(0.0, 1 - self.scv)
        prompts = (1 - taken) * math.pow(busy, alike)

        def tail(wait_s: float) -> float:
            place = taken * math.exp(-(pace - rate) * spread * wait_s)
            return place + prompts * math.exp(-(1 - busy) / service_s * spread * wait_s)

        wait_s = _where_falls_to(tail, 1 - QUANTILE)
        chunks = math.ceil(self.prompt_tokens / (self.profile.prefill_chunk_tokens - sequences))
        own_s = chunks * self.decode_step_s(sequences) + alike * self.prefill_work_s
        return self.profile.front_end_s + wait_s + (1 - idle) * self._rest_of_step_s(rate, sequences) + own_s

    def _rest_of_step_s(self, rate: float, sequences: float) -> float:
        """Mean rest of the step that an arrival falls into: long steps are hit more often, half of one is left."""
        step_s = self.decode_step_s(sequences) / max(1 - rate * self.prefill_work_s, 1e-9)
        variance = self.prefill_work_s**2 * (1 + self.scv) * rate * step_s / max(1 - (rate * self.prefill_work_s) ** 2, 1e-9)
        longest_s = self.decode_step_s(sequences) + self.profile.law.per_prefill_token_s * self.profile.prefill_chunk_tokens
        return min((step_s + variance / step_s) / 2, longest_s)


def _where_falls_to(tail: Callable[[float], float], level: float) -> float:
    """The smallest x ≥ 0 at which a falling ``tail`` is at ``level``."""
    if tail(0.0) <= level:
        return 0.0
    high = 1.0
    while tail(high) > level and high < 1e9:
        high *= 2
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > level else (low, middle)
    return high
