"""Misses that no number of replicas prevents: prompts longer than a TTFT's worth of prefill, short answers that one prompt stalls.

Blamed on load they would buy replicas without end: fewer requests each, the same share missed, and more bought. Two things tell
them apart. *Physics*, at once: the profile says how long a prompt may be for an idle replica to prefill it in time, and
the mean length that is observed, how many are longer. And *a range of load*, in the end: each minute's share of misses goes to a
bin of the use it was seen at, what physics says stands in an idle bin as some minutes' worth of that, and ``floor + misses(use
× factor)`` is fitted to them. The floor is what stays however low the use. Lengths that change make what was seen before worthless.
"""

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from forebay.demand.lengths import LENGTH_CV
from forebay.domain.profile import Profile
from forebay.scaling.economics import ALLOWED_KEPT_MAX, misses
from forebay.scaling.spread import Values

BINS = 14
LEAST_USE, WIDTH = 0.1, 0.1
"""Use of the profile's capacity at the SLO, uncorrected: bins from 0.1 to 1.5, the outer ones open."""
FADES_MINUTES = 90.0
"""An hour after the lengths have changed, most of what is remembered is of the new ones."""
_FADED = math.exp(-1 / FADES_MINUTES)
SPAN_MIN = 1.2
"""Uses must differ by a fifth to tell a floor from a slope."""
WEIGHT_MIN = 2.0
"""Minutes' worth of requests in a bin that counts."""
PER_MINUTE = 0.3
ALONE_USE, ALONE_WEIGHT = 0.05, 10.0
"""What physics says of an idle replica counts as ten minutes at next to no load: soon outweighed where real lengths have another tail."""
LENGTHS_BAND = 0.15
"""Means of prompts that differ by less are of the same lengths."""
_NORMAL = NormalDist()
_SIGMA = math.sqrt(math.log1p(LENGTH_CV * LENGTH_CV))
_USES: Values = np.asarray([ALONE_USE, *(LEAST_USE + (np.arange(BINS) + 0.5) * WIDTH)], np.float64)
"""The idle replica's, then each bin's."""
_FLOORS: Values = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 2.0, 3.0, 5.0, 10.0])
_FACTORS: Values = np.exp(np.linspace(math.log(0.6), math.log(4.0), 40))
SHYNESS = 0.02
"""Of two floors that fit alike the lower is taken."""
_SHY: Values = SHYNESS * _FLOORS
LEFT_MIN, LEFT_FROM, LEFT_MORE = 0.25, 0.9, 2.5
"""Of the allowed share: so much may be missed for load where the floor takes nearly all of it. Beyond, the promise is out of reach
whatever is held, and a miss is again worth what a miss is worth: LEFT_MORE of what the floor takes above LEFT_FROM is left besides, up
to all of it."""


def noted(bins: tuple[float, ...], use: float, weight: float, missed: float, prompt_tokens: float, band: float = 0.0) -> tuple[float, ...]:
    """``bins`` (weights, missed weights, the mean prompt they are of) after a minute of ``weight`` mean minutes' requests at ``use``.

    They begin anew where ``prompt_tokens``, the mean of now, differs from theirs by more than LENGTHS_BAND and ``band``, which is chance's.
    """
    kept, prompt = [0.0] * (2 * BINS), prompt_tokens
    if len(bins) == 2 * BINS + 1 and _alike(bins[-1], prompt_tokens, LENGTHS_BAND + band):
        kept, prompt = [each * _FADED for each in bins[:-1]], bins[-1]
    place = min(BINS - 1, max(0, int((use - LEAST_USE) / WIDTH)))
    kept[place] += weight
    kept[BINS + place] += weight * missed
    known = float(np.add.reduce(np.array(kept[:BINS])))
    prompt += (prompt_tokens - prompt) * (weight / known if known > 0 else 1.0)
    return (*kept, float(prompt))


def alone(profile: Profile, prompt_tokens: float, ttft_s: float) -> float:
    """Share of prompts, lognormal around the mean ``prompt_tokens``, whose own prefill on an idle replica takes longer than ``ttft_s``.

    Lengths vary as they do wherever only their means are known (`demand.lengths`).
    """
    law = profile.law
    chunk_s = law.base_s + law.per_prefill_token_s * profile.prefill_chunk_tokens
    left_s = ttft_s - profile.front_end_s
    chunks = max(0, math.floor(left_s / chunk_s))
    part = max(0.0, (left_s - chunks * chunk_s - law.base_s) / max(law.per_prefill_token_s, 1e-12))
    longest = chunks * profile.prefill_chunk_tokens + min(part, float(profile.prefill_chunk_tokens))
    if longest < 1 or not prompt_tokens > 0:
        return 1.0 if longest < 1 else 0.0
    return 1 - _NORMAL.cdf(math.log(longest / prompt_tokens) / _SIGMA + _SIGMA / 2)


def floor(before: float, bins: tuple[float, ...], allowed: float, idle: float | None = None) -> float:
    """The floor, from the one ``before``: a share of requests. It stays where ``bins`` span too little to tell.

    ``idle``: what physics says of an idle replica (`alone`); None: nothing.
    """
    if len(bins) != 2 * BINS + 1:
        return before
    first = (0.0, 0.0) if idle is None else (ALONE_WEIGHT, ALONE_WEIGHT * idle)
    pairs = [first, *[pair if pair[0] >= WEIGHT_MIN else (0.0, 0.0) for pair in zip(bins[:BINS], bins[BINS:-1], strict=True)]]
    places = [place for place, (weight, _) in enumerate(pairs) if weight]
    if not places or _USES[places[-1]] < SPAN_MIN * _USES[places[0]]:
        return before if idle is None else before + PER_MINUTE * (idle - before)
    shares = [missed / max(weight, WEIGHT_MIN) for weight, missed in pairs]
    believed = [weight / max(share, allowed / 2) for (weight, _), share in zip(pairs, shares, strict=True)]
    drawn = [-2 * each * share for each, share in zip(believed, shares, strict=True)]
    # Σ believed·(expected − shares)², but for Σ believed·shares², which is the same for all.
    off = (_expected_by(allowed) @ np.array((*believed, *drawn))).reshape(len(_FLOORS), len(_FACTORS))
    total = np.add.reduce(np.array([weight for weight, _ in pairs]))
    best = np.minimum.reduce(off, axis=1) / total / allowed + _SHY
    return before + PER_MINUTE * (float(_FLOORS[int(best.argmin())]) * allowed - before)


@lru_cache(maxsize=ALLOWED_KEPT_MAX)
def _expected_by(allowed: float) -> Values:
    """A row for each of _FLOORS and each of _FACTORS: the squares of the share that misses at each of ``_USES``, and that share."""
    expected = np.asarray(_FLOORS[:, None, None] * allowed + misses(_USES * _FACTORS[:, None], allowed)[None])
    rows = expected.reshape(len(_FLOORS) * len(_FACTORS), BINS + 1)
    return np.concatenate((rows**2, rows), axis=1)


def _alike(one: float, other: float, band: float) -> bool:
    return one > 0 and other > 0 and abs(math.log(one / other)) <= band


def of_load(missed: float, allowed: float, floor_share: float) -> tuple[float, float]:
    """The part of ``missed`` that load causes, and the part of ``allowed`` that is left for it."""
    beyond = LEFT_MIN * allowed + LEFT_MORE * max(0.0, floor_share - LEFT_FROM * allowed)
    return max(0.0, missed - floor_share), max(allowed - floor_share, min(allowed, beyond))
