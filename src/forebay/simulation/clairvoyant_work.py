"""Demand as work: seconds of a full engine's time, second by second, and the least of it that any schedule must pay for.

A request's work is the step time that it alone is the cause of: its uncached prompt, and per further output token its own decode,
the reading of its KV, and its share of the step's base with every slot taken. No engine serves requests with less: a step gives at
most one token to each of the sequences in it, so the bases of the steps that gave a request its tokens come to at least
``base ÷ sequences`` a token. So one replica does at most one second of work a second, and the work of the lightest requests
that suffice for the promise is a lower bound on the replica seconds of every schedule, cold starts not even counted.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.demand.arrays import Arrivals, ArrivalSource
from forebay.domain.errors import BadInput
from forebay.engine.spread import mean_of
from forebay.simulation.values import FleetRules, Queueing

BIN_S = 1.0
"""Width of a bin: about the wait that a first token is promised within."""
BINS_MAX = 60 * 86_400
"""Two months."""
PACE = 0.8
"""A request gets its tokens at about this share of the inter-token time that is promised, in a fleet that is used well."""
CLASSES = 2048
"""Classes of requests by their work, each class 1.2 % wider than the one below: from a microsecond to ten hours."""
_LEAST_S = 1e-6
_RATIO = 1.012

Floats = npt.NDArray[np.float64]


class Work(NamedTuple):
    """What arrived, in bins of ``BIN_S``; preemptible tiers left out."""

    requests: Floats
    """Arrivals of each bin."""
    work_s: Floats
    """Work of each bin: prompts where they arrive, tokens spread over the time in which they are given."""
    least_s: float
    """Work of the lightest requests that the promise can be kept with."""


class WorkOf:
    """The work of requests, by the law of the fleet's profile."""

    def __init__(self, rules: FleetRules) -> None:
        law = rules.profile.law
        sequences = rules.profile.sequences_max
        if rules.queueing is Queueing.GATEWAY:
            sequences = max(1, min(sequences, rules.capacity.sequences))
        self._prompt_s = law.per_prefill_token_s
        # Where steps scatter no schedule chooses what they draw, and over the many steps of a run they take the mean.
        mean = mean_of(rules.profile.spread)
        self._token_s = mean * (law.per_sequence_s + law.base_s / sequences)
        self._kv_s = mean * law.per_kv_token_s
        self._cached = rules.prefix_groups_max > 0

    def prompts_s(self, chunk: Arrivals) -> Floats:
        """Seconds of each request's prompt; what it shares counts as cached where replicas remember prefixes."""
        shared = np.minimum(chunk.shared_tokens, chunk.prompt_tokens - 1) if self._cached else 0
        return self._prompt_s * (chunk.prompt_tokens - shared).astype(np.float64)

    def tokens_s(self, chunk: Arrivals) -> Floats:
        """Seconds of each request's output beyond its first token, which its prompt brings."""
        steps = chunk.output_tokens.astype(np.float64) - 1
        return steps * (self._token_s + self._kv_s * (chunk.prompt_tokens + (steps - 1) / 2))


class Gatherer:
    """Adds up arrivals, chunk by chunk."""

    def __init__(self, rules: FleetRules, duration_s: float, attainment: float) -> None:
        """Raises BadInput for a span beyond ``BINS_MAX``."""
        bins = int(np.ceil(duration_s / BIN_S))
        if not 0 < bins <= BINS_MAX:
            raise BadInput(f"a span of {duration_s:g} s, allowed: more than 0 and at most {BINS_MAX * BIN_S:g} s")
        self._of = WorkOf(rules)
        self._attainment = attainment
        self._requests = np.zeros(bins)
        self._work = np.zeros(bins)
        self._spread = np.zeros(bins + 1)
        """Rises and falls of the rate at which tokens are worked on, by bin."""
        self._last_s = 0.0
        self._counted = 0
        self._class_requests = np.zeros(CLASSES)
        self._class_s = np.zeros(CLASSES)
        self._duration_s = duration_s
        self._kept = np.array([not tier.preemptible for tier in rules.tiers])
        self._ttft_s = np.array([tier.ttft_s for tier in rules.tiers])
        self._itl_s = np.array([tier.itl_s for tier in rules.tiers])
        itl_s = float(self._itl_s[self._kept].min(initial=np.inf))
        self._pace_s = PACE * itl_s if np.isfinite(itl_s) else rules.profile.law.base_s

    def take(self, chunk: Arrivals) -> None:
        """Add ``chunk``; what lies beyond the span or is preemptible does not count. Raises BadInput where time goes back."""
        self._vet(chunk.at_s)
        bins = len(self._requests)
        at = (chunk.at_s / BIN_S).astype(np.int64)
        keep = (at < bins) & self._kept[chunk.tier]
        if not keep.all():
            chunk = Arrivals._make(column[keep] for column in chunk)
            at = at[keep]
        if not len(at):
            return
        first, last = int(at[0]), int(at[-1]) + 1
        prompts_s, tokens_s = self._of.prompts_s(chunk), self._of.tokens_s(chunk)
        local = at - first
        self._requests[first:last] += np.bincount(local, minlength=last - first)
        self._work[first:last] += np.bincount(local, prompts_s, minlength=last - first)
        lasting = np.maximum(1, np.rint(chunk.output_tokens * self._pace_s / BIN_S)).astype(np.int64)
        rate_s = tokens_s / lasting
        self._spread[first:last] += np.bincount(local, rate_s, minlength=last - first)
        end = np.minimum(at + lasting, bins) - first
        ended = np.bincount(end, rate_s)
        self._spread[first : first + len(ended)] -= ended
        self._weigh(chunk, prompts_s + tokens_s)

    def _vet(self, at_s: Floats) -> None:
        if not len(at_s):
            return
        if at_s[0] < self._last_s or bool(np.any(at_s[1:] < at_s[:-1])):
            raise BadInput(f"arrivals: found a time before the one it follows, after {self._last_s:g} s; allowed: times in order")
        self._last_s = float(at_s[-1])

    def _weigh(self, chunk: Arrivals, work_s: Floats) -> None:
        """Sort requests into classes. One that can be in time and yet be worked on after the span, unpaid, weighs nothing."""
        self._counted += len(work_s)
        late_s = chunk.at_s + self._ttft_s[chunk.tier] + (chunk.output_tokens - 1) * self._itl_s[chunk.tier]
        work_s = np.maximum(work_s[late_s <= self._duration_s], _LEAST_S)
        classes = np.clip(np.log(work_s / _LEAST_S) / np.log(_RATIO), 0, CLASSES - 1).astype(np.int64)
        self._class_requests += np.bincount(classes, minlength=CLASSES)
        self._class_s += np.bincount(classes, work_s, minlength=CLASSES)

    def done(self) -> Work:
        """What came. Raises BadInput where nothing did."""
        if not self._requests.any():
            raise BadInput("no request of a tier that isn't preemptible arrives in this span; there is nothing to plan for")
        spread = np.maximum(np.cumsum(self._spread[:-1]), 0.0)
        return Work(self._requests, self._work + spread, self._lightest_s())

    def _lightest_s(self) -> float:
        """Work of the lightest ``attainment`` of the requests: the heaviest may all be missed, and are then not even served."""
        spare = self._counted * (1.0 - self._attainment)
        edges = _LEAST_S * _RATIO ** np.arange(1, CLASSES + 1)
        total = float(self._class_s.sum())
        for place in range(CLASSES - 1, -1, -1):
            count = float(self._class_requests[place])
            if count > spare:
                # The spare ones of this class are at most as heavy as its upper edge.
                return max(0.0, total - min(spare * float(edges[place]), float(self._class_s[place])))
            spare -= count
            total -= float(self._class_s[place])
        return 0.0


def gathered(arrivals: ArrivalSource, rules: FleetRules, duration_s: float, attainment: float) -> Work:
    """The work of all ``arrivals``; ``attainment``: share of requests that must be served in time. Raises BadInput where there are none."""
    gatherer = Gatherer(rules, duration_s, attainment)
    for chunk in arrivals:
        gatherer.take(chunk)
    return gatherer.done()
