"""What a replica serves of the requests that really come: capacity at the observed lengths, computed once per shape and kept.

Two hours at the same request rate can differ tenfold in work, so demand is divided by the capacity at the mix of the last
quarter of an hour: what is declared, times how much more or less of these than of the declared shape a replica serves within
its ITL. TTFT is left out of that ratio, for it is a fleet's and not a replica's: long prompts would leave a lone replica no
rate at all, and buy replicas without end.

The declared shape stands as far as chance explains the difference: the mean of few requests proves little.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from forebay.domain.errors import BadInput
from forebay.domain.profile import Profile
from forebay.engine import capacity as engine_capacity
from forebay.engine.steady import Load
from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.columns import columns
from forebay.scaling.memory import Bucket
from forebay.spec.types import Scaling, Slo

STEPS_PER_OCTAVE = 64
"""Shapes are rounded to 1.1 %, so that a fleet's whole life needs a few hundred of them."""
KEPT_MAX = 512
BAND = 0.02
CHANCE = 3.0
"""The logarithm of a mean over n requests counts as far as it is beyond BAND + CHANCE ÷ √n of the declared one's: three
standard deviations of lengths that vary as an exponential."""


class Shape(msgspec.Struct, frozen=True):
    """Mean tokens of a request."""

    prompt_tokens: float
    output_tokens: float
    requests: float
    """Observed ones behind it; 0: declared only."""


class ShapedCapacity:
    """Capacity of one replica at a shape. A pure function with a bounded store of answers."""

    def __init__(self, declared: PoolCapacity, settings: Scaling, slo: Slo) -> None:
        self._declared = declared
        self._prompt_tokens = settings.prompt_tokens
        self._output_tokens = settings.output_tokens
        self._slo = slo
        self._at = lru_cache(maxsize=KEPT_MAX)(self._computed)

    def at(self, shape: Shape, sustained: float = 1.0) -> PoolCapacity:
        """The declared capacity where there is no profile or nothing was observed, else the profile's at ``shape``; × ``sustained``."""
        found = self._found(shape)
        if sustained == 1.0 or found.rate_per_s is None:
            return found
        prompt, output = found.prompt_tokens_per_s, found.output_tokens_per_s
        return msgspec.structs.replace(
            found,
            rate_per_s=found.rate_per_s * sustained,
            prompt_tokens_per_s=prompt * sustained if prompt is not None else None,
            output_tokens_per_s=output * sustained if output is not None else None,
            tokens_in_flight=found.tokens_in_flight * sustained if found.tokens_in_flight is not None else None,
        )

    def _found(self, shape: Shape) -> PoolCapacity:
        profile = self._declared.profile
        as_declared = shape.prompt_tokens == self._prompt_tokens and shape.output_tokens == self._output_tokens
        if profile is None or self._declared.rate_per_s is None or shape.requests <= 0 or as_declared:
            return self._declared
        output = _rounded(shape.output_tokens, profile.context_tokens // 2)
        return self._at(_rounded(shape.prompt_tokens, profile.context_tokens - output), output)

    def _computed(self, prompt_tokens: int, output_tokens: int) -> PoolCapacity:
        declared, profile = self._declared, self._declared.profile
        assert isinstance(profile, Profile)
        assert declared.rate_per_s is not None
        each, _ = self._within_itl(profile, self._prompt_tokens, self._output_tokens)
        per_s, tokens = self._within_itl(profile, prompt_tokens, output_tokens)
        rate_per_s = declared.rate_per_s * per_s / each
        origin = f"profile {profile.name} at its SLO, {prompt_tokens} prompt and {output_tokens} output tokens as observed"
        return msgspec.structs.replace(
            declared, rate_per_s=rate_per_s, prompt_tokens_per_s=None, output_tokens_per_s=None, origin=origin, tokens_in_flight=tokens
        )

    def _within_itl(self, profile: Profile, prompt_tokens: int, output_tokens: int) -> tuple[float, float | None]:
        """Requests per second within ITL, and tokens in flight then. Never 0: where no rate keeps it, the work of a request alone tells."""
        try:
            found = engine_capacity.at_slo(profile, prompt_tokens, output_tokens, math.inf, self._slo.itl_s)
        except BadInput:
            found = None
        if found is None or not found.requests_per_s:
            return 1 / Load(profile, prompt_tokens, output_tokens).work_s, None
        return found.requests_per_s, found.kv_usage * profile.kv_tokens


def observed(buckets: Sequence[Bucket], settings: Scaling) -> Shape:
    """The mean shape over ``buckets``, drawn towards the declared one while few requests are known."""
    found = columns(buckets)
    if found.token_seconds == found.seconds:
        requests, prompt, output = math.fsum(found.requests), math.fsum(found.prompt_tokens), math.fsum(found.output_tokens)
    else:
        told = [bucket for bucket in buckets if bucket.token_seconds > 0 and bucket.seconds > 0]
        requests = math.fsum([each.requests * min(1.0, each.token_seconds / each.seconds) for each in told])
        prompt = math.fsum([bucket.prompt_tokens for bucket in told])
        output = math.fsum([bucket.output_tokens for bucket in told])
    if not requests > 0 or not prompt + output > 0:
        return Shape(settings.prompt_tokens, settings.output_tokens, 0.0)
    band = BAND + CHANCE / math.sqrt(requests)
    return Shape(
        settings.prompt_tokens * _beyond(prompt / requests / settings.prompt_tokens, band),
        settings.output_tokens * _beyond(output / requests / settings.output_tokens, band),
        requests,
    )


def _beyond(ratio: float, band: float) -> float:
    """``ratio`` less what ``band`` explains; 1 where that is all of it."""
    logarithm = math.log(max(ratio, 1e-6))
    beyond = abs(logarithm) - band
    return math.exp(math.copysign(beyond, logarithm)) if beyond > 0 else 1.0


def _rounded(tokens: float, most: int) -> int:
    """``tokens`` to the nearest step of the grid, within 1 and ``most``."""
    if not tokens > 1:
        return 1
    step = round(math.log2(min(tokens, 1e12)) * STEPS_PER_OCTAVE)
    return max(1, min(int(most), round(math.pow(2.0, step / STEPS_PER_OCTAVE))))
